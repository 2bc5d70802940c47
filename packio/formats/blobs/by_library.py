"""Images that are not one range of bytes: compressed, in several chunks, or of variable length."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from packio.formats import Reading
from packio.sample.record import Place, Record
from packio.system import isolation
from packio.system.isolation import IsolatedFunction

if TYPE_CHECKING:
    import numpy as np

_KEPT_BYTES = 256 << 20  # of the row of chunks that was decoded last
_SECONDS, _OPENING, _OPENING_A_BYTE = 60, 120, 1e-6  # of processor time, for a sample; and before


class FoundSamples(NamedTuple):
    total: int
    records: Iterator[Record[Place]]  # the image's offset is -1 where `read` must read it
    read: Callable[[int], bytes]  # an image by its number


class Reader:
    """Read images through the library of their format.

    Each process opens the container when it first reads an image. A reader works in any number of
    threads, and in forked and spawned processes. It pickles as its arguments; so `find`, which
    opens the container, is a function of a module, or a method of a format.
    """

    def __init__(
        self, path: Path, reading: Reading, find: Callable[[Path, Reading], FoundSamples], *,
        survives_fork: bool = False,  # a forked process may use what its parent opened
    ) -> None:  # fmt: skip
        self._path, self._find, self._survives_fork = path, find, survives_fork
        self._reading = dataclasses.replace(reading, label="")
        self._opened: tuple[int, FoundSamples] | None = None  # by which process

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def get(self, number: int) -> bytes:
        process = 0 if self._survives_fork else os.getpid()
        if self._opened is None or self._opened[0] != process:
            self._opened = process, self._find(self._path, self._reading)
        found = self._opened[1]
        if not 0 <= number < found.total:
            raise IndexError(f"{self._path}: no sample {number}; it has {found.total}")
        return found.read(number)


class ReaderApart:
    """As `Reader`, in another process, as a library may crash or hang over damage."""

    def __init__(self, path: Path, reading: Reading, find: str) -> None:
        self._arguments = path, reading, find
        size = path.stat().st_size if path.exists() else 0
        self._read = IsolatedFunction(
            f"{__name__}:_opened", os.path.abspath(path), dataclasses.asdict(reading), find,
            where=path, seconds=_OPENING + size * _OPENING_A_BYTE,
        )  # fmt: skip

    def __reduce__(self) -> tuple[Any, ...]:
        return ReaderApart, self._arguments

    def get(self, number: int) -> bytes:
        return self._read(number, f"sample {number}", _SECONDS)


def _opened(path: str, reading: dict[str, Any], find: str) -> Callable[[int], bytes]:
    """What reads the images of a container, in the process of the library."""
    return Reader(Path(path), Reading(**reading), isolation.find_function(find)).get


class RowCache:
    """Samples of an array, decoded one row of chunks at a time; the last row is kept."""

    def __init__(self, load: Callable[[int, int], np.ndarray], chunk: int, size: int) -> None:
        """`load` decodes samples, from one number up to another, which may be beyond the last."""
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
        return bytes(kept[1][number - first].tobytes())
