"""Local files, read by `os.pread`, so that threads and forked workers can share open files."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from packio.errors import IntegrityError, ReadError
from packio.storage.store import MOST_BYTES, Facts, Range, Store, warn_of_missing
from packio.system import files
from packio.system.files import OF_ONE_FILE, read_at, spare_descriptors
from packio.system.locks import ForkSafeLock

_LEAST_OPEN = 64  # files of a pack that may stay open, however many packs there are
# without O_NONBLOCK, opening a FIFO would wait for its writer
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


class _Descriptor:
    """A file descriptor that is closed when its last reader lets go of it."""

    __slots__ = ("number",)

    def __init__(self, path: Path) -> None:
        self.number = -1
        self.number = os.open(path, _FLAGS)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self.number >= 0:
            close(self.number)  # at the end of Python the module os may be gone


class LocalStore(Store):
    """Files that are opened at their first read, of which so many stay open as the system allows.

    The packs that a process reads share a quarter of its descriptors (`files.spare_descriptors`),
    and each has 64 at least. The file that has been open for longest is closed first. As pread
    moves no position, threads and forks share them. Pickles without its open files.
    """

    is_mappable = True

    def __init__(self, root: Path, names: Sequence[str] = (), sizes: Sequence[int] = ()) -> None:
        super().__init__(root, names, sizes)
        self._open: OrderedDict[int, _Descriptor] = OrderedDict()
        self._lock = ForkSafeLock()

    def __reduce__(self) -> tuple[object, ...]:
        return LocalStore, (self.root, self._names, self._sizes)

    def facts(self, name: str) -> Facts | None:
        try:
            status = os.stat(self.root / name)
        except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: NUL in the name
            return None
        version = f"{status.st_dev} {status.st_ino} {status.st_size} {status.st_mtime_ns}"
        return Facts(status.st_size, version, is_file=stat.S_ISREG(status.st_mode))

    def list(self, *, deep: bool = True) -> dict[str, Facts]:
        found = {}
        for folder, folders, names in os.walk(self.root):
            for name in names:
                inner = os.path.relpath(os.path.join(folder, name), self.root)
                if (facts := self.facts(inner)) is not None and facts.is_file:
                    found[inner] = facts
            if not deep:
                folders.clear()
        return found

    def put(self, name: str, data: bytes | Path) -> Facts:
        with files.replacing(self.root / name) as out:
            if isinstance(data, bytes):
                out.write(data)
            else:
                with files.open_file(data) as source:
                    shutil.copyfileobj(source, out)
        found = self.facts(name)
        assert found is not None  # noqa: S101 (for mypy)
        return found

    def remove(self, name: str) -> None:
        (self.root / name).unlink(missing_ok=True)

    def check(self, is_read: Callable[[int], bool]) -> None:
        folder = os.fspath(self.root)
        for number, (name, expected) in enumerate(zip(self._names, self._sizes, strict=True)):
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
        sizes = self._sizes  # `_has` would be a call for each sample
        if file >= len(sizes) or not 0 <= offset <= offset + length <= sizes[file]:
            raise self._outside(file, offset, length)
        if length > MOST_BYTES:
            raise self._outside(file, offset, length)
        handle = self._open.get(file) or self._opened(file)
        try:
            data = read_at(handle.number, length, offset)
        except OSError as error:
            raise ReadError(f"{self.path(file)}, byte {offset}: {error.strerror}") from error
        if len(data) < length:
            raise IntegrityError(
                f"{self.path(file)}: {os.fstat(handle.number).st_size} bytes, the index says "
                f"{self._sizes[file]}; truncated while it was open"
            )
        return data

    def descriptor(self, file: int) -> _Descriptor:
        """Open a file, which stays open as long as somebody holds its descriptor."""
        return self._open.get(file) or self._opened(file)

    def check_ranges(
        self, files: np.ndarray, offsets: np.ndarray, lengths: np.ndarray
    ) -> np.ndarray:
        """Which ranges lie within their files, (N,) bool; see `read` for the arguments."""
        sizes = np.array(self._sizes, np.int64)
        known = sizes[np.minimum(files, len(sizes) - 1)] if len(sizes) else np.zeros_like(offsets)
        ends = offsets + lengths
        fits: np.ndarray = (files >= 0) & (files < len(sizes)) & (offsets >= 0)
        fits &= (ends >= offsets) & (ends <= known) & (lengths <= MOST_BYTES)
        return fits

    def prefetch(self, ranges: Sequence[Range]) -> Store:
        """Ask the kernel to read ranges that will be read soon.

        The disk then works on many ranges at a time: random batches of 64 samples of 78 KB, not in
        memory, took 29 ms instead of 65. A range that is in memory costs 1 to 3 µs.
        """
        with contextlib.suppress(OSError):  # the read itself will raise it
            for file, offset, length in sorted(ranges):
                if file < len(self._sizes) and 0 <= offset <= offset + length <= self._sizes[file]:
                    handle = self._open.get(file) or self._opened(file)
                    os.posix_fadvise(handle.number, offset, length, os.POSIX_FADV_WILLNEED)
        return self

    def close(self) -> None:
        """Close all files; the next read opens its file again."""
        with self._lock:
            self._open.clear()
            _all.discard(self)

    def _opened(self, file: int) -> _Descriptor:
        with self._lock:
            handle = self._open.get(file)
            while handle is None:
                path = self.path(file)
                try:
                    handle = self._open[file] = _Descriptor(path)
                except OSError as error:
                    if error.errno != errno.EMFILE or not self._open:
                        raise ReadError(f"{path}: {error.strerror}") from error
                    self._close_all_but(len(self._open) // 2)  # too many are open
                    continue
                _all.add(self)
                self._close_all_but(max(_LEAST_OPEN, spare_descriptors() // max(len(_all), 1)))
            return handle

    def _close_all_but(self, most: int) -> None:
        while len(self._open) > most:
            self._open.popitem(last=False)  # closed when its last reader lets go of it


_all: weakref.WeakSet[LocalStore] = weakref.WeakSet()  # that have files open, in this process


def path_problem(key: bytes) -> str | None:
    """Say why a key is no path of a file below a folder; None if it is such a path."""
    if b"\0" in key:
        return "contains a NUL byte"
    if key.startswith(b"/"):
        return "is an absolute path"
    parts = key.split(b"/")
    if b".." in parts:
        return "leads upwards"
    return "is not a plain path" if b"" in parts or b"." in parts else None


class FolderStore(LocalStore):
    """Files below a folder, in any number, named by the keys of an index: none of them stays open.

    A file's number is the position of its sample; the sample's length is the size of the file.
    """

    is_mappable = reads_ahead = False  # opening a file ahead would cost as much as reading it

    def __init__(self, root: Path, key: Callable[[int], bytes]) -> None:
        super().__init__(root)
        self._prefix, self._key = os.fsencode(root) + b"/", key

    def check(self, is_read: Callable[[int], bool]) -> None:
        """Check nothing: each read checks the size of its file."""

    def read(self, file: int, offset: int, length: int) -> bytes:
        """Read one file; ``offset`` is 0."""
        try:
            descriptor = os.open(self._path(file), _FLAGS)
            try:
                data = read_at(descriptor, length + 1, offset)  # one byte more shows a longer file
            finally:
                os.close(descriptor)
        except OSError as error:
            if error.errno in OF_ONE_FILE:
                raise IntegrityError(
                    f"{self.path(file)}: {error.strerror}; it was there when the folder was "
                    "listed; make the dataset anew"
                ) from error
            raise ReadError(f"{self.path(file)}: {error.strerror}") from error
        if len(data) != length:
            found = "more" if len(data) > length else str(len(data))
            raise IntegrityError(
                f"{self.path(file)}: {found} bytes, it had {length} when the folder was listed; "
                "make the dataset anew"
            )
        return data

    def join_paths(self, files: Sequence[int]) -> tuple[bytes, Sequence[int]]:
        """Paths of files, a NUL byte behind each, and where each begins; -1: it has no path."""
        paths: dict[int, bytes] = {}
        starts, end = [], 0
        for number, file in enumerate(files):
            try:
                paths[number] = self._path(file) + b"\0"
            except IntegrityError:
                starts.append(-1)
                continue
            starts.append(end)
            end += len(paths[number])
        return b"".join(paths.values()), starts

    def path(self, file: int) -> Path:
        """Path of a file, for messages."""
        return Path(os.fsdecode(self._path(file)))

    def _path(self, file: int) -> bytes:
        key = self._key(file)
        if problem := path_problem(key):
            raise IntegrityError(f"{os.fsdecode(self._prefix)}: the key {key!r} {problem}")
        return self._prefix + key
