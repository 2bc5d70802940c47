"""Samples that are not one byte range: compressed, in several chunks, or of variable length."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from packio.formats import Entry

if TYPE_CHECKING:
    import numpy as np

_KEPT_BYTES = 256 << 20  # of the row of chunks that was decoded last


class Found(NamedTuple):
    """The samples of a container."""

    total: int
    entries: Iterator[Entry]  # the offset is -1 where a sample must be read by `read`
    read: Callable[[int], bytes]  # a sample by its number


class Reader:
    """Read samples through the library of their format.

    Each process opens the container when it first reads a sample. A reader works in any number of
    threads, and in forked and spawned processes. It pickles as its arguments.
    """

    survives_fork = False  # whether a forked process may use the container its parent opened

    def __init__(self, path: Path, image: str | None = None, layout: str = "") -> None:
        """Remember the path and the options that ``scan`` was given."""
        self.path, self.image, self.layout = path, image, layout
        self._opened: tuple[int, Found] | None = None  # by which process

    def __reduce__(self) -> tuple[type[Reader], tuple[Path, str | None, str]]:
        return type(self), (self.path, self.image, self.layout)

    def get(self, record_number: int) -> bytes:
        """Read a sample, by its position in what ``scan`` yields.

        Raises:
            IndexError: the container has fewer samples.
            IntegrityError: the container is damaged.
            ReadError: a file cannot be read.
            MissingPackageError: the format's library does not load.
        """
        process = 0 if self.survives_fork else os.getpid()
        if self._opened is None or self._opened[0] != process:
            self._opened = process, self.find()
        found = self._opened[1]
        if not 0 <= record_number < found.total:
            raise IndexError(f"{self.path}: no sample {record_number}; it has {found.total}")
        return found.read(record_number)

    def find(self) -> Found:
        """Open the container."""
        raise NotImplementedError


class Rows:
    """Samples of an array, decoded one row of chunks at a time; the last row is kept."""

    def __init__(self, load: Callable[[int, int], np.ndarray], chunk: int, size: int) -> None:
        """Describe the array.

        Args:
            load: Decodes samples, from one number up to another, which may be beyond the last.
            chunk: Samples in a row of chunks.
            size: Bytes of a sample.
        """
        self._load = load
        self._step = chunk if chunk * size <= _KEPT_BYTES else 1
        self._kept: tuple[int, np.ndarray] | None = None  # replaced as a whole: threads may read

    def __call__(self, number: int) -> bytes:
        """The bytes of a sample, little-endian."""
        first = number - number % self._step
        kept = self._kept
        if kept is None or kept[0] != first:
            values = self._load(first, first + self._step)
            kept = self._kept = (first, values.astype(values.dtype.newbyteorder("<"), copy=False))
        value: bytes = kept[1][number - first].tobytes()
        return value
