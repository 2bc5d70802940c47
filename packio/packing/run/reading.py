"""Reading source files ahead in threads: whole, unchanged while read, and known to be images.

Where images are encoded anew, that is done in the same threads.
"""

from __future__ import annotations

import dataclasses
import errno
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from typing import NamedTuple

from packio.errors import DecodeError, OptionError
from packio.images.decoders import MAX_PIXELS, Decoder
from packio.images.encodings import Facts, check_raw, read_facts
from packio.images.jpeg.restarts import make_seekable
from packio.packing.images.encode import Encoding
from packio.sources import Item, Listing, ReadItem
from packio.system import processors
from packio.system.pools import ThreadPool

CHECKS = ("header", "decode")
_NOTHING = Item(b"")
_OUT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # says nothing about the file
_CHUNK_FILES, _CHUNK_BYTES = 32, 4 << 20  # one task of a thread
_PIXEL_FILES, _PIXEL_BYTES = 8, 1 << 20  # where it holds pixels, too


class Read(NamedTuple):
    """One sample read, or the reason why it cannot be packed."""

    position: int  # in the listing
    item: Item  # as it goes into the pack
    facts: Facts | None
    problem: str | None
    size: int = 0  # source bytes


@dataclasses.dataclass(frozen=True)
class Treatment:
    """What is done to every sample between the source and the container.

    Attributes:
        encoding: How it is encoded.
        check: "header", or "decode": decode every image, to see that all of it is sound.
        seekable: Put restart markers into JPEGs, without loss, so that parts can be cut out.
    """

    encoding: Encoding = dataclasses.field(default_factory=Encoding)
    check: str = "header"
    seekable: bool = False

    def __post_init__(self) -> None:
        if self.check not in CHECKS:
            raise OptionError(f"check={self.check!r}: expected one of {', '.join(CHECKS)}")

    def as_options(self) -> dict[str, object]:
        """For the plan: what of this changes the bytes, or which samples are packed."""
        more: dict[str, object] = {} if self.check == "header" else {"check": self.check}
        if self.seekable:
            more["seekable"] = True
        return {**self.encoding.as_options(), **more}

    @property
    def decodes(self) -> bool:
        """Whether images are decoded."""
        return self.check == "decode" or self.encoding != Encoding() or self.seekable

    def __call__(self, item: Item, facts: Facts) -> tuple[Item, Facts]:
        """The sample as it goes into the pack.

        Raises:
            DecodeError: its image is damaged, or cannot be encoded so.
            MissingPackageError: JPEGs cannot be made seekable without numba.
        """
        if self.check == "decode":
            Decoder(mode="UNCHANGED")(item.data, facts)
        item, facts = self.encoding(item, facts)
        if self.seekable and facts.encoding == "jpeg" and not facts.progressive:
            data = make_seekable(item.data, check=True)
            if data is not item.data:
                item, facts = item._replace(data=data), facts._replace(seekable=True)
        return item, facts

    @property
    def threads(self) -> int:
        """Threads that keep one process busy: those that only read wait for the disk."""
        count = processors.usable()
        return count if self.decodes else min(16, 4 * count)


KEEP = Treatment()


def read_ahead(
    listing: Listing,
    positions: range,
    *,
    threads: int,
    treatment: Treatment = KEEP,
    memory: int | None = None,
) -> Iterator[list[Read]]:
    """Read and check some samples of a listing, in order, chunk by chunk.

    At most ``threads + 2`` chunks of 4 MiB (or one larger file each) are in memory.

    Args:
        listing: The samples.
        positions: Which of them.
        threads: That read.
        treatment: What is done to them.
        memory: Bytes of files that may be in memory at a time, about; None: as above.

    Raises:
        OSError: descriptors or memory run out, or the folder itself is gone.
    """
    chunks = _chunks(listing.sizes, positions, *_limits(threads, treatment, memory))
    pool = ThreadPool(threads, "packio-read")
    waiting: deque[Future[list[Read]]] = deque()
    try:
        for chunk in chunks:
            waiting.append(pool.submit(_read_chunk, listing, chunk, treatment))
            if len(waiting) >= threads + 2:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _limits(threads: int, treatment: Treatment, memory: int | None) -> tuple[int, int]:
    """Files and bytes of a chunk."""
    files, size = _CHUNK_FILES, _CHUNK_BYTES
    if treatment.decodes:
        files, size = _PIXEL_FILES, _PIXEL_BYTES
    return files, size if memory is None else max(1, min(size, memory // (threads + 2)))


def _chunks(sizes: list[int], positions: range, files: int, size: int) -> Iterator[range]:
    start, total = positions.start, 0
    for i in positions:
        total += max(sizes[i], 0)
        if i + 1 - start == files or total >= size:
            yield range(start, i + 1)
            start, total = i + 1, 0
    if start < positions.stop:
        yield range(start, positions.stop)


def _read_chunk(listing: Listing, chunk: range, treatment: Treatment) -> list[Read]:
    with listing.opened() as read:
        return [read_one(read, i, treatment) for i in chunk]


def read_one(read: ReadItem, position: int, treatment: Treatment = KEEP) -> Read:
    """Read and check one sample.

    Args:
        read: What reads it.
        position: In the listing.
        treatment: What is done to it.

    Raises:
        OSError: descriptors or memory run out.
    """
    size = 0
    try:
        item = read(position)
        size = len(item.data)
        facts = item.facts or read_facts(item.data)
        if item.facts is not None:
            check_raw(facts, len(item.data))
        if facts.height * facts.width > MAX_PIXELS:
            raise DecodeError(
                f"{facts.width}x{facts.height} pixels; the limit is {MAX_PIXELS:,} in all"
            )
        item, facts = treatment(item, facts)
    except OSError as error:
        if error.errno in _OUT_OF:
            raise
        problem = f"cannot be read: {error.strerror or error}"
        return Read(position, _NOTHING, None, problem, size)
    except DecodeError as error:
        return Read(position, _NOTHING, None, str(error), size)
    return Read(position, item, facts, None, size)
