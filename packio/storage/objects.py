"""One object at a URL, read from its beginning to its end.

The object comes in pieces of 4 MiB, several at a time and ahead of the reader, and is digested on
its way.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import Future
from typing import NamedTuple

from packio.errors import IntegrityError, ReadError
from packio.storage import urls
from packio.storage.urls import Url
from packio.system import interrupts
from packio.system.pools import ThreadPool

_PIECE = 4 << 20  # bytes of a request that reads ahead
_KEPT = 16 << 20  # bytes of pieces that stay, for a reader that looks back


class Facts(NamedTuple):
    """What a service says of an object."""

    size: int  # bytes
    version: str  # changes when the object is written again; "" if the service tells none


def facts(url: Url) -> Facts:
    """Ask for the size and the version of an object."""
    with urls.errors_as(ReadError, url):
        found = urls.info(url)
    if found is None or found.get("type") != "file":
        raise ReadError(f"{url}: no such object")
    if not isinstance(found.get("size"), int):
        raise ReadError(f"{url}: the server tells no size; copy the object to a disk or a bucket")
    return Facts(found["size"], urls.version(found))


def check_ranges(url: Url, size: int) -> None:
    """Check that a server of web pages answers byte ranges; it may send whole objects instead."""
    fs, path = urls.filesystem(url)
    if size < 2 or not urls.is_web(fs):
        return

    refused = ReadError(
        f"{url}: the server sends no byte ranges, so packio cannot read one sample alone; copy the "
        "object to a disk, or to a server that sends them"
    )

    def ask() -> bytes:
        with fs.open(path, size=size, cache_type="none") as file:
            file.seek(size - 1)
            try:
                data: bytes = file.read(1)
            except ValueError as error:  # of fsspec, for such a server
                raise refused from error
            return data

    with urls.errors_as(ReadError, url):
        if len(urls.retried(ask)) != 1:
            raise refused


class StreamedObject:
    """An object that is read from the beginning to the end, all of its bytes.

    Not for several threads. Reading back further than 16 MiB asks for the bytes again.
    """

    def __init__(self, url: Url, size: int, ahead: int, stopped: threading.Event) -> None:
        self.url: Url = url
        self.size: int = size
        self._fs, self._path = urls.filesystem(url)
        self._ahead, self._stopped = ahead, stopped
        self._pool = ThreadPool(ahead + 1, "packio-object")
        self._asked: dict[int, Future[bytes]] = {}
        self._kept: OrderedDict[int, bytes] = OrderedDict()
        self._digest, self._next = hashlib.sha256(), 0  # of the pieces before this one

    def read(self, length: int, offset: int) -> bytes:
        """Read a range within the object."""
        if not length:
            return b""
        first, last = offset // _PIECE, (offset + length - 1) // _PIECE
        parts = [self._piece(number) for number in range(first, last + 1)]
        start = offset - first * _PIECE
        whole = parts[0] if len(parts) == 1 else b"".join(parts)
        return whole[start : start + length]

    def _piece(self, number: int) -> bytes:
        while self._next <= number:  # all pieces in their order, for the digest
            self._forward()
        if (data := self._kept.get(number)) is None:
            data = self._fetched(number)
            self._keep(number, data)
        return data

    def _forward(self) -> None:
        number = self._next
        for later in range(number, min(number + self._ahead, self._pieces - 1) + 1):
            if later not in self._asked:
                self._asked[later] = self._pool.submit(self._fetched, later)
        data = interrupts.result(self._asked.pop(number))
        self._digest.update(data)
        self._next += 1
        self._keep(number, data)

    def _keep(self, number: int, data: bytes) -> None:
        self._kept[number] = data
        while len(self._kept) > max(1, _KEPT // _PIECE):
            self._kept.popitem(last=False)

    def _fetched(self, number: int) -> bytes:
        start = number * _PIECE
        return _fetched(self, start, min(_PIECE, self.size - start), self._stopped)

    @property
    def _pieces(self) -> int:
        return -(-self.size // _PIECE)

    def digest(self) -> bytes:
        """SHA-256 of the object; reads what has not been read yet."""
        while self._next < self._pieces:
            self._forward()
        return self._digest.digest()

    def close(self) -> None:
        """End the requests that wait, and forget all pieces."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._asked.clear()
        self._kept.clear()


def _fetched(of: StreamedObject, start: int, length: int, stopped: threading.Event) -> bytes:
    if stopped.is_set():
        raise ReadError(f"{of.url}: stopped, as another object could not be read")
    with urls.errors_as(ReadError, f"{of.url}, byte {start}"):
        return urls.read(*urls.filesystem(of.url), start, length)


class OpenUrl(Url):
    """The URL of an object that is open: whoever opens the URL reads through the same object."""

    opened: StreamedObject

    @property
    def _kind(self) -> type[Url]:
        return Url


@contextlib.contextmanager
def opened_once(found: StreamedObject) -> Iterator[OpenUrl]:
    """The URL of an object, for all that read the object while the block runs."""
    url = OpenUrl(found.url)
    url.opened = found
    try:
        yield url
    finally:
        found.close()


def check_unchanged(url: Url, before: Facts) -> None:
    """Check that an object is still the one that it was."""
    if facts(url) != before:
        raise IntegrityError(f"{url}: was replaced while it was read; run the same command again")
