"""Files mapped into memory: without a descriptor that stays open, and guarded against truncation.

Reading beyond the end of a mapped file kills the process: the kernel answers by SIGBUS, which
Python cannot turn into an error. And a file that somebody writes over, as ``cp`` does, shows other
bytes than those that were compared with checksums. So the system is asked for the length and the
times of a mapped file before it is read. What is left: a file that changes within the microseconds
between asking and reading, or shrinks while a batch of raw pixels is made; times that a network's
file system tells late; and a page that the disk or the server cannot deliver.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import itertools
import mmap
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from packio.errors import IntegrityError

_FIXED = 0x10  # MAP_FIXED of Linux and macOS: exactly there
_FAILED = ctypes.c_void_p(-1).value
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE. Source: madvise(2), Linux 5.14 and newer
_MOST_OPEN = 4  # files that stay open; others are asked for by their paths


def reserve(size: int, protection: int = 0) -> np.ndarray:
    """Addresses for files to be mapped at, (size,) uint8; they are free again when it is deleted.

    Do not touch the bytes before a file is mapped there.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    pages = mmap.mmap(-1, max(size, mmap.PAGESIZE), flags=flags, prot=protection)
    return np.frombuffer(pages, np.uint8)


def map_at(descriptor: int, size: int, address: int, protection: int = mmap.PROT_READ) -> None:
    """Map a file over addresses that are reserved. The descriptor may be closed afterwards."""
    flags = mmap.MAP_SHARED | _FIXED
    if size and _libc().mmap(address, size, protection, flags, descriptor, 0) == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def map_file(descriptor: int, size: int) -> np.ndarray:
    """A file, (size,) uint8, read-only; only pages that are touched are read."""
    array = reserve(size)
    map_at(descriptor, size, array.ctypes.data)
    array.flags.writeable = False
    return array[:size]


def map_shared(descriptor: int, size: int) -> np.ndarray:
    """A file to be written to, (size,) uint8, which other processes see."""
    both = mmap.PROT_READ | mmap.PROT_WRITE
    array = reserve(size, both)
    map_at(descriptor, size, array.ctypes.data, both)
    return array


def populate(array: np.ndarray) -> None:
    """Give memory all of its pages now, or raise OSError; without Linux 5.14, they come later."""
    before = array.ctypes.data % mmap.PAGESIZE
    place, size = (
        ctypes.c_void_p(array.ctypes.data - before),
        ctypes.c_size_t(array.nbytes + before),
    )
    if _libc().madvise(place, size, _POPULATE_WRITE) and ctypes.get_errno() != errno.EINVAL:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@functools.cache  # the same in every process
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    numbers = (ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *numbers)
    libc.mmap.restype = ctypes.c_void_p
    return libc


class Length:
    """The length that a mapped file has to keep, and what of it has been checked.

    ``status`` tells the length and the times that the file has now; None: it is out of reach.
    ``marks`` say what has been compared with checksums, and become zeros once the times change,
    unless packio itself writes to the file (``is_ours``).
    """

    __slots__ = ("_is_ours", "_length", "_path", "_remedy", "_status", "_times", "marks")

    def __init__(
        self, path: Path, length: int, status: Callable[[], os.stat_result | None],
        remedy: str = "restore the file, or pack again", *, is_ours: bool = False,
    ) -> None:  # fmt: skip
        self._path, self._length, self._status, self._remedy = path, length, status, remedy
        self._is_ours = is_ours
        self.marks: list[bytearray | memoryview] = []
        now = status()
        self._times = now and (now.st_mtime_ns, now.st_ctime_ns)

    def check(self) -> None:
        """Check that the file has not shrunk: 3 µs; forget what was checked if it was written."""
        if (now := self._status()) is None:
            return
        if now.st_size < self._length:
            raise IntegrityError(
                f"{self._path}: {now.st_size} bytes, {self._length} when it was opened; it was "
                f"truncated while it was open: {self._remedy}"
            )
        times = now.st_mtime_ns, now.st_ctime_ns
        if times != self._times and not self._is_ours:
            for mark in self.marks:
                mark[:] = bytes(len(mark))
            self._times = times


class Status:
    """Asks the system for an open file; a descriptor stays open until nobody can ask any more."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = os.dup(descriptor)

    def __call__(self) -> os.stat_result:
        return os.fstat(self._descriptor)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self._descriptor)  # at the end of Python the module os may be gone


def watch_path(path: Path, inode: tuple[int, int]) -> Callable[[], os.stat_result | None]:
    """Ask for a file by its path; if another file is there, nobody can find ours to change it."""
    absolute = os.path.abspath(path)  # a later chdir changes nothing

    def status() -> os.stat_result | None:
        try:
            found = os.stat(absolute)
        except OSError:
            return None
        return found if (found.st_dev, found.st_ino) == inode else None

    return status


class MappedFiles:
    """Files mapped read-only, for forked processes, too; only pages that are touched are read.

    Python's mmap would keep a descriptor of every file, and choose the addresses; here 4 stay open.
    """

    def __init__(self, paths: Sequence[Path], sizes: Sequence[int]) -> None:
        page = mmap.PAGESIZE
        ends = list(itertools.accumulate(-(-size // page) * page for size in sizes))
        self.starts: np.ndarray = np.array([0, *ends[:-1]], np.int64)
        self._taken = reserve(ends[-1])
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
            now = Status(descriptor) if few else watch_path(path, inode)
            self.lengths.append(Length(path, size, now))
        finally:
            os.close(descriptor)
