"""Local files mapped into memory, one after the other, in one range of addresses."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from packio.system.lengths import Length, Status, at_path
from packio.system.mapping import map_at, reserved

_MOST_OPEN = 4  # files that stay open; others are asked for by their paths


class MappedFiles:
    """Files mapped read-only; only pages that are touched are read. Forked processes share them.

    Python's own mmap would keep a descriptor of every file open, and choose the addresses. Here at
    most 4 stay open.
    """

    def __init__(self, paths: Sequence[Path], sizes: Sequence[int]) -> None:
        page = mmap.PAGESIZE
        ends = list(itertools.accumulate(-(-size // page) * page for size in sizes))
        self.starts: np.ndarray = np.array([0, *ends[:-1]], np.int64)
        self._taken = reserved(ends[-1])
        begin, count = self._taken.ctypes.data, len(self._taken)
        self.lengths: list[Length] = []
        for path, size, start in zip(paths, sizes, self.starts.tolist(), strict=True):
            self._add(path, size, begin + start)
        self.bytes: np.ndarray = np.ctypeslib.as_array((ctypes.c_ubyte * count).from_address(begin))

    def _add(self, path: Path, size: int, address: int) -> None:
        """Map a file at an address, over the mapping that is there."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if status.st_size != size:  # reading beyond the end is a signal, not an error
                raise OSError(f"{path}: its size is not {size} any more")
            map_at(descriptor, size, address)
            few, inode = len(self.lengths) < _MOST_OPEN, (status.st_dev, status.st_ino)
            now = Status(descriptor) if few else at_path(path, inode)
            self.lengths.append(Length(path, size, now))
        finally:
            os.close(descriptor)
