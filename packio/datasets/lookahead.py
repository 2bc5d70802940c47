"""Look-ahead: a dataset at a URL asks for the bytes of its next batches while it makes one.

`packio.Loader` knows the next batches, of any sampler, and hands them over with each batch of
indices (`add_lookahead`).

torch's DataLoader shows a process one batch of indices at a time. But the order of packio's
samplers is a function, and their indices carry it (`packio.loading.order.Course`). So a process
that gets a batch computes the batches that come to it later (`Guesses`). It assumes first that
workers take turns. If another batch comes than the one that was guessed, the distance of the two
batches that came is the next assumption. A wrong guess costs bytes, and nothing else. It costs few:
a process asks for one batch more than it has guessed right in a row, at most 256 samples or a
batch; after a wrong guess for none, until a guess was right. So no more is read in vain than was
read, and a batch.

torch's Subset of a dataset hands on what indices carry if it is a `PlacedSubset`.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from packio.batches.draws import PositionedIndex
from packio.system.locks import ForkSafeLock

AHEAD = 256  # samples ahead of each process, at least


class BatchWithLookahead(list[Any]):
    """The indices of a batch. Anybody can use it as a list."""

    def __init__(
        self, indices: Iterable[Any], later: Sequence[Sequence[Any]], *, anew: bool
    ) -> None:
        super().__init__(indices)
        self.later: Sequence[Sequence[Any]] = later
        self.anew: bool = anew

    def __reduce__(self) -> tuple[object, ...]:
        return functools.partial(BatchWithLookahead, anew=self.anew), (list(self), self.later)


def add_lookahead(batches: Iterator[list[Any]], processes: int) -> Iterator[list[Any]]:
    """Let each batch tell the next ones."""
    processes, waiting = max(processes, 1), deque(itertools.islice(batches, 1))
    if not waiting:
        return
    ahead = processes * math.ceil(AHEAD / max(len(waiting[0]), 1))
    for number in itertools.count():
        waiting.extend(itertools.islice(batches, ahead + 1 - len(waiting)))
        if not waiting:
            return
        batch, anew = waiting.popleft(), number < processes
        # waiting[i] comes i + 1 batches later
        first = processes - 1 if anew else ahead - 1
        later = list(itertools.islice(waiting, first, ahead, processes))
        yield BatchWithLookahead(batch, later, anew=anew)


class Guesses:
    """The guesses of one process for one dataset. Safe in threads and after fork; pickles empty."""

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._forget()

    def _forget(self) -> None:
        self._process, self._trust = os.getpid(), 1
        self._course: Any = None  # the `packio.loading.order.Course` of the batch that came last
        self._sampler: Any = None  # of the course; None: unknown
        self._step = self._stride = self._size = 0  # of the batch that came last
        self._coming: deque[list[PositionedIndex]] = deque()  # guessed, and not come yet

    def __reduce__(self) -> tuple[object, ...]:
        return Guesses, ()

    def after(self, data: Any, batch: Sequence[int]) -> BatchWithLookahead:
        """Guess what comes after a batch that came from a loader."""
        first = batch[0] if len(batch) else None
        if not isinstance(first, PositionedIndex) or first.course is None:
            return BatchWithLookahead(batch, (), anew=False)
        with self._lock:
            if self._process != os.getpid():
                self._forget()
            if first.course != self._course:
                self._sampler = first.course.make_sampler(data)
            anew = self._compare(first.course, first.position, batch)
            later = list(self._guess(len(batch)))
            return BatchWithLookahead(batch, later if self._trust else (), anew=anew)

    def _compare(self, course: Any, position: int, batch: Sequence[int]) -> bool:
        """Compare a batch with the guess; return whether what was guessed will not come."""
        step = (position - course.part.start) // course.part.world_size
        size, before = len(batch), self._step
        is_other: bool = course != self._course
        is_wrong = bool(self._coming) and (is_other or self._coming[0] != list(batch))
        self._step = step
        if is_other:
            self._trust = 0 if is_wrong and self._trust < 2 else min(self._trust, 1)
            self._course = course
            if size != self._size:
                self._stride, self._size = size * _processes(), size
        elif is_wrong:
            self._trust = 0
            self._stride = step - before if step > before else size * _processes()
        elif self._coming:
            self._coming.popleft()
            self._trust += 1
        if is_other or is_wrong:
            self._coming.clear()
        return is_other or is_wrong

    def _guess(self, size: int) -> Iterator[list[PositionedIndex]]:
        """Guess more batches, as many as the guesses are trusted."""
        most, part = max(1, min(self._trust, math.ceil(AHEAD / size))), self._course.part
        while self._sampler is not None and len(self._coming) < most:
            step = self._step + self._stride * (len(self._coming) + 1)
            if not 0 <= step <= part.steps - size:
                return
            batch = self._sampler.at(part.positions(step, step + size), part.epoch)
            self._coming.append(batch)
            yield batch


def _processes() -> int:
    worker = torch.utils.data.get_worker_info()
    return 1 if worker is None else worker.num_workers


class PlacedSubset(torch.utils.data.Subset[Any]):
    """A `Subset` whose indices keep their places in the epoch, which crops are drawn from."""

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[self._moved(index)]

    def __getitems__(self, indices: list[Any]) -> list[Any]:
        moved = list(map(self._moved, indices))
        if isinstance(indices, BatchWithLookahead):
            later = [list(map(self._moved, batch)) for batch in indices.later]
            moved = BatchWithLookahead(moved, later, anew=indices.anew)
        together = getattr(self.dataset, "__getitems__", None)
        return [self.dataset[i] for i in moved] if together is None else list(together(moved))

    def _moved(self, index: Any) -> Any:
        """The index of the same sample in the dataset beneath."""
        within = self.indices[index]
        return index.with_index(int(within)) if isinstance(index, PositionedIndex) else within


def wrap_subset(dataset: Any) -> Any:
    """Make torch's Subsets keep the places of indices; other datasets stay as they are."""
    if type(dataset) is torch.utils.data.Subset:
        return PlacedSubset(wrap_subset(dataset.dataset), dataset.indices)
    return dataset


def unwrap_subset(dataset: Any) -> Any:
    """Find the dataset beneath torch's Subsets: it draws crops and flips, the subsets do not."""
    while isinstance(dataset, torch.utils.data.Subset):
        dataset = dataset.dataset
    return dataset
