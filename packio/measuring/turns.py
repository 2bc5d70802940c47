"""Candidates in turns, because machines are noisy; and loaders that run now and then."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from packio.batches.draws import PositionedIndex
from packio.system.progress import Meter, ProgressCallback

Candidate = TypeVar("Candidate")
Figure = TypeVar("Figure")

_ENDLESS = 1 << 30


def run_in_turns(
    candidates: Sequence[Candidate], rounds: int, run: Callable[[Candidate], Figure], *,
    sizes: Sequence[tuple[int, int]] | None = None, progress: ProgressCallback | None = None,
    stage: str = "measuring",
) -> list[list[Figure]]:  # fmt: skip
    """Measure each candidate once a round, none always first; `sizes` (images, bytes): progress."""
    figures: list[list[Figure]] = [[] for _ in candidates]
    sizes = sizes or [(0, 0)] * len(candidates)
    meter = Meter(progress)
    meter.begin(stage, *(rounds * sum(numbers) for numbers in zip(*sizes, strict=True)))
    for turn in range(rounds):
        start = turn * len(candidates) // rounds
        for i in (*range(start, len(candidates)), *range(start)):
            figures[i].append(run(candidates[i]))
            meter.step(*sizes[i])
    return figures


class IndexOrder:
    """Indices in the order of the loader's sampler, epoch after epoch, for several loops.

    Each loop takes others: no loop finds samples in the page cache that another has just read.
    """

    def __init__(self, epochs: Callable[[], Iterable[Any]]) -> None:
        self._source = _repeat(epochs)
        self._left: list[Any] = []

    def take(self, size: int | None = None) -> Any:
        """Take so many indices, or the next batch, which begins with what is left of a batch.

        Indices that carry sizes, those of a `packio.BucketSampler`, get the size of the first.
        """
        if size is None:
            left, self._left = self._left, []
            return left or next(self._source)
        while len(self._left) < size:
            self._left = self._left + next(self._source)
        taken, self._left = self._left[:size], self._left[size:]
        first = taken[0] if taken else None
        if not isinstance(first, PositionedIndex) or first.size is None:
            return taken
        return [PositionedIndex(int(i), i.epoch, i.position, first.size) for i in taken]


class IndexFeed:
    """A loop's batches of indices, until it is closed."""

    def __init__(self, order: IndexOrder, size: int | None = None) -> None:
        self.is_open = True
        self._order, self._size = order, size

    def __len__(self) -> int:
        return _ENDLESS

    def __iter__(self) -> Iterator[Any]:
        while self.is_open:
            try:
                yield self._order.take(self._size)
            except StopIteration:
                return


def _repeat(epochs: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    is_empty = False
    while not is_empty:
        is_empty = True
        for batch in epochs():
            is_empty = False
            yield list(batch) if isinstance(batch, tuple) else batch
