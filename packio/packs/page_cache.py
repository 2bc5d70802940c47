"""Bring a pack into the page cache before training begins, and tell how much of it is there.

cachestat(2) of Linux 6.5 and newer counts the pages in the cache. It answers only the owner of a
file and users who may write it. packio fills the cache by reading: posix_fadvise(WILLNEED) would
read only as much as the disk's read-ahead allows, often 128 KB.
"""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import functools
import mmap
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from packio.errors import OptionError, ReadError
from packio.packs import opening
from packio.packs.opening import Pack
from packio.system import files, memory
from packio.system.pools import ThreadPool

_PIECE = 8 << 20  # bytes, read at a time
_THREADS = 4  # that read
_CACHESTAT = 451  # the system call's number, on every architecture but Alpha


@dataclasses.dataclass(frozen=True, slots=True)
class Residency:
    """How much of a file is in the page cache."""

    path: Path  # path of the file
    bytes: int  # size of the file
    # Bytes in memory before and after `warm`; None if the kernel does not tell, because it is older
    # than Linux 6.5, or the file is another user's
    before: int | None
    after: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class WarmReport:
    """What `warm` found and did."""

    path: Path  # path of the pack
    files: tuple[Residency, ...]  # the index, and all files that hold samples
    available: int  # bytes of memory that were available for files
    read: int  # bytes read
    seconds: float  # duration

    @property
    def bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.bytes for file in self.files)

    @property
    def before(self) -> int | None:
        """Bytes of all files in memory before; None if that is unknown for any file."""
        return _sum([file.before for file in self.files])

    @property
    def after(self) -> int | None:
        """Bytes of all files in memory now; None if that is unknown for any file."""
        return _sum([file.after for file in self.files])

    @property
    def fits(self) -> bool:
        """Whether all files fit into memory together."""
        return self.bytes <= self.available


def _sum(counts: list[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def warm(
    path: str | os.PathLike[str], *, check: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> WarmReport:  # fmt: skip
    """Bring a pack into the page cache, as far as memory goes, and tell how much of it is there.

    Files are read in the order of the index, each from its beginning, until memory is full. The
    kernel may drop pages that are not used for long; it never drops ``cache="ram"`` of a dataset.

    Args:
        path: A pack on a disk, or a container that opens as a pack.
        check: Read nothing, only tell how much is there.
        progress: Callback that receives the bytes done and the bytes to do.

    Raises:
        OptionError: the pack is at a URL, or is an image folder.
        ReadError: a file cannot be read.
        PackioError: see `packio.open`.
    """
    began = time.monotonic()
    with opening.open(path) as pack:
        files = _files(pack)
    available = memory.available()
    try:
        before = [_of_file(file) for file in files]
        read = 0 if check else _read(files, available, progress or (lambda _, __: None))
        after = before if check else [_of_file(file) for file in files]
    except OSError as error:
        raise ReadError(f"{error.filename or path}: {error.strerror}") from error
    found = tuple(
        Residency(file, size, was, now)
        for file, (size, was), (_, now) in zip(files, before, after, strict=True)
    )
    return WarmReport(pack.path, found, available, read, time.monotonic() - began)


def _files(pack: Pack) -> list[Path]:
    """The index, and the files that samples are read from."""
    index, storage = pack.index_file, pack.storage
    if not storage.is_mappable:
        raise OptionError(
            f"{pack.path}: not a pack on a disk, so it cannot be warmed; local_copy= of a dataset "
            "copies it to a disk, cache='ram' keeps it in memory"
        )
    numbers = [index.column(f"{name}/file").array() for name in pack.fields]
    used: list[int] = np.unique(np.concatenate(numbers)).tolist()
    return [index.path, *map(storage.path, used)]


def _of_file(path: Path) -> tuple[int, int | None]:
    """Size of a file, and its bytes in the page cache; None if the kernel does not tell."""
    with files.open_file(path) as file:
        status = os.fstat(file.fileno())
        return status.st_size, _resident(file.fileno(), 0, status.st_size)


def _resident(file: int, start: int, length: int) -> int | None:
    """Bytes of a range of an open file in the page cache; None if the kernel does not tell."""
    if not length:
        return 0
    wanted, found = (ctypes.c_uint64 * 2)(start, length), (ctypes.c_uint64 * 5)()
    if _libc().syscall(_CACHESTAT, file, wanted, found, 0) != 0:
        number = ctypes.get_errno()
        if number in (errno.ENOSYS, errno.EPERM, errno.EOPNOTSUPP, errno.EACCES):
            return None
        raise OSError(number, os.strerror(number))
    return min(found[0] * mmap.PAGESIZE, length)


@functools.cache  # the same in every process
def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _read(files: list[Path], room: int, progress: Callable[[int, int], None]) -> int:
    """Read what is not in memory, as far as it fits; return the number of bytes read."""
    pieces = list(_pieces(files, room))
    total, done, read = sum(length for _, _, length in pieces), 0, 0
    with ThreadPool(_THREADS, "packio-warm") as pool:
        for (_, _, length), count in zip(pieces, pool.map(_read_piece, pieces), strict=True):
            done, read = done + length, read + count
            progress(done, total)
    return read


def _pieces(files: list[Path], room: int) -> Iterator[tuple[Path, int, int]]:
    for path in files:
        size = path.stat().st_size
        for start in range(0, min(size, room), _PIECE):
            yield path, start, min(_PIECE, size - start, room - start)
        room -= min(size, room)


def _read_piece(piece: tuple[Path, int, int]) -> int:
    """Read a piece unless it is in memory; return the number of bytes read."""
    path, start, length = piece
    with path.open("rb", buffering=0) as file:
        if _resident(file.fileno(), start, length) == length:
            return 0
        return len(os.pread(file.fileno(), length, start))
