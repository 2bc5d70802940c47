"""Reading source files ahead in threads: whole, unchanged while read, and known to be images."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from packio.decoders import MAX_PIXELS
from packio.encodings import Facts, check_raw, read_facts
from packio.errors import DecodeError
from packio.sources import Item, Listing, ReadItem

_NOTHING = Item(b"")
_OUT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # says nothing about the file
_CHUNK_FILES, _CHUNK_BYTES = 32, 4 << 20  # one task of a thread


class Read(NamedTuple):
    """One sample read, or the reason why it cannot be packed."""

    position: int  # in the listing
    item: Item
    facts: Facts | None
    problem: str | None


def read_ahead(listing: Listing, positions: range, *, threads: int) -> Iterator[list[Read]]:
    """Read and check some samples of a listing, in order, chunk by chunk.

    At most ``threads + 2`` chunks of 4 MiB (or one larger file each) are in memory.

    Raises:
        OSError: descriptors or memory run out, or the folder itself is gone.
    """
    chunks = _chunks(listing.sizes, positions)
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


def _chunks(sizes: list[int], positions: range) -> Iterator[range]:
    start, total = positions.start, 0
    for i in positions:
        total += max(sizes[i], 0)
        if i + 1 - start == _CHUNK_FILES or total >= _CHUNK_BYTES:
            yield range(start, i + 1)
            start, total = i + 1, 0
    if start < positions.stop:
        yield range(start, positions.stop)


def _read_chunk(listing: Listing, chunk: range) -> list[Read]:
    with listing.opened() as read:
        return [read_one(read, i) for i in chunk]


def read_one(read: ReadItem, position: int) -> Read:
    """Read and check one sample.

    Args:
        read: What reads it.
        position: In the listing.

    Raises:
        OSError: descriptors or memory run out.
    """
    try:
        item = read(position)
        facts = item.facts or read_facts(item.data)
        if item.facts is not None:
            check_raw(facts, len(item.data))
        if facts.height * facts.width > MAX_PIXELS:
            raise DecodeError(
                f"{facts.width}x{facts.height} pixels; the limit is {MAX_PIXELS:,} in all"
            )
    except OSError as error:
        if error.errno in _OUT_OF:
            raise
        return Read(position, _NOTHING, None, f"cannot be read: {error.strerror or error}")
    except DecodeError as error:
        return Read(position, _NOTHING, None, str(error))
    return Read(position, item, facts, None)
