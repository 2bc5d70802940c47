"""How far each shard is: counters in a mapped file, written by whatever process writes it."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

_FIELDS = 4  # samples done, source bytes, of the samples bad, functions being compiled


class Done(NamedTuple):
    """Sums over all shards."""

    samples: int
    size: int  # source bytes
    bad: int
    compiling: int  # functions that are compiled just now, by those who write


class Tally:
    """Counters of a run's shards, and a flag that asks those who write them to stop.

    Args:
        path: Of the file; made if it is not there.
        shards: How many.
    """

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
        """Set everything to zero, the flag too."""
        self._counts[:] = 0

    def restart(self, shard: int) -> None:
        """Set the counters of one shard to zero: it is begun, perhaps again."""
        self._counts[shard] = 0

    def add(self, shard: int, samples: int, size: int, bad: int) -> None:
        """Count samples of a shard."""
        self._counts[shard, :3] += (samples, size, bad)

    def compile(self, shard: int, begun: int) -> None:
        """Count what is being compiled to write a shard: 1 where that begins, -1 where it ends."""
        self._counts[shard, 3] += begun

    def total(self) -> Done:
        """Sums over all shards."""
        return Done(*self._counts[: self._shards].sum(axis=0).tolist())

    def stop(self) -> None:
        """Ask all that write shards to stop at the next chunk."""
        self._counts[self._shards, 0] = 1

    @property
    def stopped(self) -> bool:
        """Whether they are asked to."""
        return bool(self._counts[self._shards, 0])
