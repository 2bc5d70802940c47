"""An epoch of a loader while it runs: its batches, and how far those delivered go."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from torch.utils.data import BatchSampler

from packio.loading import steps
from packio.loading.steps import Span


class EpochBatches(BatchSampler):
    """Batches of a sampler that pass on the epoch that is set here, as transformers sets it."""

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the sampler, if it has one."""
        set_epoch = getattr(self.sampler, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)


def is_plain(batches: object) -> TypeGuard[BatchSampler]:
    """Tell whether batches are the indices of a sampler in its order."""
    return type(batches) in (BatchSampler, EpochBatches)


class Reached(NamedTuple):
    """How far a rank has got in an epoch, with steps that are left out.

    Attributes:
        samples: Used in this pass, those of steps that are left out included.
        used: Hash of the indices used; None: not needed.
    """

    step: int
    samples: int = 0
    used: Any = None

    def after(self, indices: Sequence[int]) -> Reached:
        """How far it has got after the next batch."""
        used = self.used
        if used is not None:
            used = used.copy()
            try:
                used.update(np.asarray(indices, "<i8").tobytes())
            except (TypeError, ValueError):  # indices of a foreign dataset may be anything
                used.update("".join(map(repr, indices)).encode())
        return Reached(self.step + 1, self.samples + len(indices), used)


class Epoch:
    """One iteration of a loader.

    Args:
        batches: Those that are left, with the batches of steps that are left out.

    Attributes:
        resumed: Whether it is the rest of an epoch that was loaded.
    """

    def __init__(
        self, number: int, batches: Iterator[list[int]], *, resumed: bool,
        start: Reached, left_out: Sequence[Span] = (),
    ) -> None:  # fmt: skip
        self.number: int = number
        self.resumed: bool = resumed
        self.reached: Reached = start
        self._left_out = [s for s in left_out if s.epoch == number and s.last >= start.step]
        self._waiting: deque[Reached] = deque()  # taken by workers or threads, not delivered yet
        self._source, self._drawn = batches, start
        self._next = self._following()  # a sampler draws here, at once
        self.batches: Iterator[list[int]] = self._taken()

    def _following(self) -> tuple[list[int], Reached] | None:
        """The next batch that is not left out, and how far the epoch gets by it."""
        for batch in self._source:
            step = self._drawn.step
            self._drawn = self._drawn.after(batch)
            if not steps.is_left_out(self._left_out, self.number, step):
                return batch, self._drawn
        return None

    def _taken(self) -> Iterator[list[int]]:
        while self._next is not None:
            batch, reached = self._next
            self._waiting.append(reached)  # first: `is_over` may be asked for by another thread
            self._next = self._following()
            yield batch

    @property
    def is_over(self) -> bool:
        """Whether all batches have been delivered."""
        return self._next is None and not self._waiting

    def delivered(self) -> None:
        """Note that the next batch has been handed out."""
        self.reached = self._waiting.popleft()


def used_hash() -> Any:
    """Begin a hash of the indices used, for `Reached`."""
    return hashlib.blake2b(digest_size=16)
