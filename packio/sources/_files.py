"""Files below a folder, each read whole, and the same from beginning to end."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence

from packio.errors import DecodeError
from packio.sources import Item, ReadItem

MAX_BYTES = (1 << 31) - 1  # of one sample


@contextlib.contextmanager
def opened(root: str | os.PathLike[str], keys: Sequence[bytes]) -> Iterator[ReadItem]:
    """Yield a function that reads the file of a key by its position.

    Args:
        root: Folder that the keys are relative to.
        keys: Relative paths.

    Raises:
        OSError: the folder is gone.
    """
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield lambda position: Item(_whole_file(descriptor, keys[position]))
    finally:
        os.close(descriptor)


def _whole_file(root: int, key: bytes) -> bytes:
    """Read a regular file; a file that changes meanwhile is read again, once."""
    # without O_NONBLOCK, opening a FIFO would wait for its writer
    descriptor = os.open(key, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=root)
    try:
        for _ in range(2):
            before = os.fstat(descriptor)
            if not stat.S_ISREG(before.st_mode):
                raise DecodeError("not a regular file")
            if before.st_size > MAX_BYTES:
                raise DecodeError(f"{before.st_size} bytes; the limit is {MAX_BYTES:,}")
            data = _read_up_to(descriptor, before.st_size + 1)
            after = os.fstat(descriptor)
            if len(data) == before.st_size and after.st_mtime_ns == before.st_mtime_ns:
                return data
    finally:
        os.close(descriptor)
    raise DecodeError("changed while it was read, twice")


def _read_up_to(descriptor: int, length: int) -> bytes:
    data = os.pread(descriptor, length, 0)
    while data and len(data) < length:  # at its end, beyond 2 GiB, or on an odd file system
        more = os.pread(descriptor, length - len(data), len(data))
        if not more:
            break
        data += more
    return data
