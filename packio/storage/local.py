"""Local files, read by `os.pread`, so that threads and forked workers can share open files."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from packio.errors import IntegrityError, ReadError
from packio.system.files import read_at, spare_descriptors
from packio.system.locks import ForkSafeLock

MOST_BYTES = 1 << 33  # of a value, as of a member of a tar; an index may claim any number
_LEAST_OPEN = 64  # files of a pack that may stay open, however many packs there are


def warn_of_missing(path: Path) -> None:
    """Warn that a file of a pack is missing that packio does not read."""
    warnings.warn(
        f"{path}: missing, though the index lists it; packio does not read this file, other "
        "readers may need it",
        stacklevel=4,
    )


class _Descriptor:
    """A file descriptor that is closed when its last reader lets go of it."""

    __slots__ = ("number",)

    def __init__(self, path: Path) -> None:
        self.number = -1
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self.number >= 0:
            close(self.number)  # at the end of Python the module os may be gone


class LocalFiles:
    """Files that are opened at their first read, of which so many stay open as the system allows.

    The packs that a process reads share a quarter of its descriptors (`files.spare_descriptors`),
    and each has 64 at least. The file that has been open for longest is closed first. Safe in
    threads and after a fork, as pread moves no position. Pickles without its open files.
    """

    def __init__(self, root: Path, paths: Sequence[str], sizes: Sequence[int]) -> None:
        self._root, self._paths, self._sizes = root, list(paths), list(sizes)
        self._open: OrderedDict[int, _Descriptor] = OrderedDict()
        self._lock = ForkSafeLock()

    def __reduce__(self) -> tuple[object, ...]:
        return LocalFiles, (self._root, self._paths, self._sizes)

    def check(self, is_read: Callable[[int], bool]) -> None:
        """Check that every file with samples exists and has its size.

        A file that packio does not read, as the ``.idx`` that DALI needs, may have another size:
        appending replaces such files before the index. It may be missing: a warning says so.
        """
        folder = os.fspath(self._root)
        for number, (name, expected) in enumerate(zip(self._paths, self._sizes, strict=True)):
            path = os.path.join(folder, name)  # a quarter of a Path's time: there may be many
            try:
                status = os.stat(path)
            except OSError as error:
                if isinstance(error, FileNotFoundError) and not is_read(number):
                    warn_of_missing(Path(path))
                    continue
                raise ReadError(f"{path}: {error.strerror}; the index lists this file") from error
            if not stat.S_ISREG(status.st_mode):  # opening a FIFO would wait for ever
                raise IntegrityError(f"{path}: not a regular file, though the index lists it")
            if status.st_size != expected and is_read(number):
                raise IntegrityError(
                    f"{path}: {status.st_size} bytes, the index says {expected}; "
                    "truncated, changed, or of another pack"
                )

    def read(self, file: int, offset: int, length: int) -> bytes:
        """Read one range."""
        if file >= len(self._sizes) or not 0 <= offset <= offset + length <= self._sizes[file]:
            raise self._outside(file, offset, length)
        if length > MOST_BYTES:
            raise IntegrityError(
                f"{self.path(file)}: the index asks for {length} bytes at {offset}; a value has "
                f"{MOST_BYTES} at most; restore the index or pack again"
            )
        handle = self._open.get(file) or self._opened(file)
        try:
            data = read_at(handle.number, length, offset)
        except OSError as error:
            raise ReadError(f"{self.path(file)}, byte {offset}: {error.strerror}") from error
        if len(data) < length:
            raise IntegrityError(
                f"{self.path(file)}: ends at byte {offset + len(data)}, the index says "
                f"{self._sizes[file]}; truncated while it was open"
            )
        return data

    def descriptors(self, files: Sequence[int]) -> list[_Descriptor]:
        """Open files of some numbers; each stays open as long as somebody holds its descriptor."""
        return [self._open.get(file) or self._opened(file) for file in files]

    def within(self, files: np.ndarray, offsets: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Which ranges lie within their files, (N,) bool; see `read` for the arguments."""
        sizes = np.array(self._sizes, np.int64)
        known = sizes[np.minimum(files, len(sizes) - 1)] if len(sizes) else np.zeros_like(offsets)
        ends = offsets + lengths
        fits: np.ndarray = (files >= 0) & (files < len(sizes)) & (offsets >= 0)
        fits &= (ends >= offsets) & (ends <= known) & (lengths <= MOST_BYTES)
        return fits

    def announce(self, ranges: Sequence[tuple[int, int, int]]) -> None:
        """Ask the kernel to read ranges (file, offset, length) that will be read soon.

        The disk then works on many ranges at a time: random batches of 64 samples of 78 KB, not in
        memory, took 29 ms instead of 65. A range that is in memory costs 1 to 3 µs.
        """
        with contextlib.suppress(OSError):  # the read itself will raise it
            for file, offset, length in sorted(ranges):
                if file < len(self._sizes) and 0 <= offset <= offset + length <= self._sizes[file]:
                    handle = self._open.get(file) or self._opened(file)
                    os.posix_fadvise(handle.number, offset, length, os.POSIX_FADV_WILLNEED)

    def _outside(self, file: int, offset: int, length: int) -> IntegrityError:
        if file >= len(self._sizes):
            return IntegrityError(f"{self._root}: no file {file}, there are {len(self._sizes)}")
        return IntegrityError(
            f"{self.path(file)}: the index asks for {length} bytes at {offset}, "
            f"the file has {self._sizes[file]}; restore the index or pack again"
        )

    def path(self, file: int) -> Path:
        """Path of a file."""
        if file >= len(self._paths):
            raise self._outside(file, 0, 0)
        return self._root / self._paths[file]

    def close(self) -> None:
        """Close all files; the next read opens its file again."""
        with self._lock:
            self._open.clear()
            _all.discard(self)

    def _opened(self, file: int) -> _Descriptor:
        with self._lock:
            handle = self._open.get(file)
            if handle is None:
                try:
                    handle = self._new(file)
                except OSError as error:
                    raise ReadError(f"{self.path(file)}: {error.strerror}") from error
                self._open[file] = handle
                _all.add(self)
                self._close_all_but(max(_LEAST_OPEN, spare_descriptors() // max(len(_all), 1)))
            return handle

    def _new(self, file: int) -> _Descriptor:
        """Open a file; if too many are open, close half of them first."""
        path = self.path(file)
        try:
            return _Descriptor(path)
        except OSError as error:
            if error.errno != errno.EMFILE or not self._open:
                raise
        self._close_all_but(len(self._open) // 2)
        return _Descriptor(path)

    def _close_all_but(self, most: int) -> None:
        while len(self._open) > most:
            self._open.popitem(last=False)  # closed when its last reader lets go of it


_all: weakref.WeakSet[LocalFiles] = weakref.WeakSet()  # that have files open, in this process
