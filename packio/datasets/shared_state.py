"""State of datasets that all processes share: epoch, counts, seed, chosen positions, labels."""

from __future__ import annotations

import contextlib
import os
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch

from packio.errors import OptionError
from packio.images.native import REASONS
from packio.system.threads import alone

_WORKERS = 128  # DataLoader workers with a column of their own
_LARGE = 1 << 16  # bytes of positions
COUNTS = ("replaced", "fallbacks", *REASONS)  # rows of a tally; then come
_EPOCH, _FIRST, _LATER, _WARNED = range(len(COUNTS), len(COUNTS) + 4)


class Seed:
    """A seed that is given, or drawn from torch's generator when it is first needed.

    Nothing is drawn before, so that a model that is made after a dataset gets the weights that it
    would get without. All processes have the same seed: one that needs it first in a DataLoader's
    worker takes what the loader drew for all of its workers.
    """

    def __init__(self, given: int | None = None) -> None:
        self._given = None if given is None else int(given)
        if given is None:
            self._cell = _share_zeros(())
            self._cell.sub_(1)

    @property
    def value(self) -> int:
        if self._given is not None:
            return self._given
        if self._cell < 0:
            info = torch.utils.data.get_worker_info()
            drawn = info is None and int(torch.randint(1 << 62, (), device="cpu"))
            self._cell.fill_(drawn if info is None else (info.seed - info.id) % (1 << 62))
        return int(self._cell)


class SeededMixin:
    """Something with a seed of random numbers, given or drawn when it is needed."""

    _seed: Seed

    @property
    def seed(self) -> int:
        """Seed of the random numbers; one that was not given is drawn when it is first needed."""
        return self._seed.value

    @seed.setter
    def seed(self, seed: int) -> None:
        self._seed = Seed(seed)


_left: list[torch.Tensor] = []  # cells of a block of shared memory that no tally has yet
os.register_at_fork(after_in_child=_left.clear)  # its parent hands them out


def _take_cells() -> torch.Tensor:
    """Hand out zeros, none twice; many share a block, as each block costs a file descriptor."""
    with contextlib.suppress(IndexError):
        return _left.pop()
    _left.extend(_share_zeros((64, _WARNED + 1, _WORKERS + 1)).unbind())  # 0.9 MB
    return _take_cells()


def _share_zeros(shape: tuple[int, ...]) -> torch.Tensor:
    """Zeros that processes share; not of inference mode, in which nobody else may change them."""
    with torch.inference_mode(False), alone():  # a forked process would wait for torch's threads
        zeros = torch.zeros(shape, dtype=torch.int64, device="cpu")
        zeros.share_memory_()  # type: ignore[no-untyped-call]  # torch's own
    return zeros


class Tally:
    """An epoch and counts of one dataset.

    Live workers see an epoch that is set, and the parent sees what workers count. Each worker
    writes to a column of its own, so nothing is lost.
    """

    def __init__(self, epoch: int = 0) -> None:
        self.asked: list[int] = []  # the epoch that the user has set last; another list each time
        self._cells = _take_cells()
        self._cells[_EPOCH, 0] = epoch

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_cells": self._cells.clone()}  # not the whole block

    @property
    def epoch(self) -> int:
        """The epoch whose random numbers are drawn; may be set."""
        return int(self._cells[_EPOCH, 0])

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._cells[_EPOCH, 0] = epoch
        self._cells[_FIRST : _LATER + 1] = 0

    @property
    def totals(self) -> np.ndarray:
        """The counts of all workers, as `COUNTS` has them."""
        totals: np.ndarray = self._cells[: len(COUNTS)].sum(dim=1).numpy()
        return totals

    def count(self, *numbers: int) -> None:
        """Add to the first of the counts of this process."""
        self._cells[: len(numbers), _column()] += torch.tensor(numbers, device="cpu")

    def comes_again(self, digest: int) -> bool:
        """Tell, once for all workers, that a batch comes again in the same epoch.

        A worker's first batch of the epoch is compared with its later batches. That finds an epoch
        that is repeated in the same order, also by new workers. A batch that is asked for twice in
        a row, as to look at it, does not count.
        """
        signed, column = (digest >> 1) or 1, _column()  # 0 is no batch yet
        first = int(self._cells[_FIRST, column])
        if not first:
            self._cells[_FIRST, column] = signed
            return False
        self._cells[_LATER, column] += 1
        if first != signed or self._cells[_LATER, column] < 2 or self._cells[_WARNED, 0]:
            return False
        self._cells[_WARNED, 0] = 1
        return True


# Processes that are started with a tally share its cells.
ForkingPickler.register(Tally, lambda tally: (object.__new__, (Tally,), vars(tally)))


def _column() -> int:
    info = torch.utils.data.get_worker_info()
    return 0 if info is None else 1 + info.id % _WORKERS


class Positions:
    """Positions of some samples of a pack, or of all.

    Forked processes share the array. To processes that torch spawns a large array is sent once,
    through shared memory, whatever their number; it costs a file descriptor.
    """

    def __init__(self, array: np.ndarray | torch.Tensor | None = None) -> None:
        # (n,) int64, read-only; None: all samples, in their order
        self.array = array.numpy() if isinstance(array, torch.Tensor) else array
        self._tensor: torch.Tensor | None = None  # what is sent; kept, so that it is sent once
        if self.array is not None:
            self.array.flags.writeable = False

    def __reduce__(self) -> tuple[object, ...]:
        if self._tensor is None and self.array is not None and self.array.nbytes > _LARGE:
            self._tensor = torch.from_numpy(self.array.copy())
        return Positions, (self.array if self._tensor is None else self._tensor,)


class Targets(np.ndarray):
    """Labels, (N,) int64 or (N, k) float32; its items are ints of Python."""

    def __getitem__(self, index: Any) -> Any:
        item = super().__getitem__(index)
        return item.item() if isinstance(item, np.generic) else item

    def __bool__(self) -> bool:
        """Whether there are labels; of a comparison, what NumPy says."""
        return super().__bool__() if self.dtype == bool else len(self) > 0

    def count(self, label: int) -> int:
        """Count the samples with a label."""
        return int((self == label).sum())

    def index(self, label: int) -> int:
        """Find the first sample with a label."""
        return int(self.tolist().index(label))

    def __add__(self, other: Any) -> Any:
        if isinstance(other, (list, Targets)):
            raise OptionError(
                "targets + targets: lists are joined, arrays added; numpy.concatenate joins these"
            )
        return super().__add__(other)
