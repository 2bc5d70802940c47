"""Reading source files ahead in threads: whole, unchanged while read, and known to be images."""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from packio.decoders import MAX_PIXELS
from packio.encodings import Facts, read_facts
from packio.errors import DecodeError
from packio.sources import Listing

MAX_BYTES = (1 << 31) - 1  # of one sample
_OUT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # says nothing about the file
_CHUNK_FILES, _CHUNK_BYTES = 32, 4 << 20  # one task of a thread


class Read(NamedTuple):
    """One sample read, or the reason why it cannot be packed."""

    position: int  # in the listing
    data: bytes
    facts: Facts | None
    problem: str | None


def read_ahead(listing: Listing, *, threads: int) -> Iterator[list[Read]]:
    """Read and check all samples of a listing, in order, chunk by chunk.

    At most ``threads + 2`` chunks of 4 MiB (or one larger file each) are in memory.

    Raises:
        OSError: descriptors or memory run out, or the folder itself is gone.
    """
    chunks = _chunks(listing.sizes)
    pool = ThreadPoolExecutor(threads, "packio-read")
    waiting: deque[Future[list[Read]]] = deque()
    try:
        for chunk in chunks:
            waiting.append(pool.submit(_read_chunk, listing, chunk))
            if len(waiting) >= threads + 2:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _chunks(sizes: list[int]) -> Iterator[range]:
    start = total = 0
    for i in range(len(sizes)):
        total += max(sizes[i], 0)
        if i + 1 - start == _CHUNK_FILES or total >= _CHUNK_BYTES:
            yield range(start, i + 1)
            start, total = i + 1, 0
    if start < len(sizes):
        yield range(start, len(sizes))


def _read_chunk(listing: Listing, chunk: range) -> list[Read]:
    root = os.open(listing.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return [read_one(root, listing.keys[i], i) for i in chunk]
    finally:
        os.close(root)


def read_one(root: int, key: bytes, position: int) -> Read:
    """Read and check one sample.

    Args:
        root: Descriptor of the folder that the key is relative to.
        key: Relative path.
        position: In the listing.

    Raises:
        OSError: descriptors or memory run out.
    """
    try:
        data = _whole_file(root, key)
        facts = read_facts(data)
        if facts.height * facts.width > MAX_PIXELS:
            raise DecodeError(
                f"{facts.width}x{facts.height} pixels; the limit is {MAX_PIXELS:,} in all"
            )
    except OSError as error:
        if error.errno in _OUT_OF:
            raise
        return Read(position, b"", None, f"cannot be read: {error.strerror or error}")
    except DecodeError as error:
        return Read(position, b"", None, str(error))
    return Read(position, data, facts, None)


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
