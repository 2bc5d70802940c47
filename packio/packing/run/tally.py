"""Counters of each shard's progress, in a mapped file that all processes of a run write."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

_FIELDS = 3  # those of `Done`


class Done(NamedTuple):
    """Sums over all shards."""

    samples: int  # read, the bad ones included
    size: int  # source bytes of the good samples
    bad: int


class Tally:
    """Counters of a run's shards, and a flag that asks all writers of shards to stop."""

    def __init__(self, path: Path, shards: int) -> None:
        self._path, self._shards = path, shards
        size = (shards + 1) * _FIELDS * 8
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if os.fstat(descriptor).st_size < size:
                os.ftruncate(descriptor, size)
            self._map = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self._counts = np.frombuffer(self._map, np.int64).reshape(shards + 1, _FIELDS)

    def __reduce__(self) -> tuple[object, ...]:
        return Tally, (self._path, self._shards)

    def clear(self) -> None:
        self._counts[:] = 0

    def restart(self, shard: int) -> None:
        """Set the counters of one shard to zero, as an attempt at it begins."""
        self._counts[shard] = 0

    def add(self, shard: int, samples: int, size: int, bad: int) -> None:
        self._counts[shard] += (samples, size, bad)

    def total(self) -> Done:
        return Done(*self._counts[: self._shards].sum(axis=0).tolist())

    def stop(self) -> None:
        """Ask all writers of shards to stop after their present sample."""
        self._counts[self._shards, 0] = 1

    @property
    def stopped(self) -> bool:
        return bool(self._counts[self._shards, 0])
