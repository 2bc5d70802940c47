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

from packio.errors import IntegrityError, ReadError
from packio.storage import stores
from packio.storage.store import Facts, Range
from packio.storage.urls import Url

_PIECE = 4 << 20  # bytes of a request that reads ahead
_KEPT = 16 << 20  # bytes of pieces that stay, for a reader that looks back


class StreamedObject:
    """An object that is read from the beginning to the end, all of its bytes.

    Not for several threads. Reading back further than 16 MiB asks for the bytes again.
    """

    def __init__(self, url: Url, facts: Facts, ahead: int, stopped: threading.Event) -> None:
        self.url: Url = url
        self.size: int = facts.size
        self._store = stores.of_url(url, [""], [self.size], {"": facts.tag})
        self._ahead, self._stopped = ahead, stopped
        self._pieces = -(-self.size // _PIECE)
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
            data = self._store.read(*self._range(number))
            self._keep(number, data)
        return data

    def _forward(self) -> None:
        if self._stopped.is_set():
            raise ReadError(f"{self.url}: stopped, as another object could not be read")
        number = self._next
        later = range(number, min(number + self._ahead + 1, self._pieces))
        self._store.expect(map(self._range, later))
        wanted = self._range(number)
        data = self._store.fetched([wanted]).read(*wanted)
        self._digest.update(data)
        self._next += 1
        self._keep(number, data)

    def _keep(self, number: int, data: bytes) -> None:
        self._kept[number] = data
        while len(self._kept) > max(1, _KEPT // _PIECE):
            self._kept.popitem(last=False)

    def _range(self, number: int) -> Range:
        start = number * _PIECE
        return 0, start, min(_PIECE, self.size - start)

    def digest(self) -> bytes:
        """SHA-256 of the object; reads what has not been read yet."""
        while self._next < self._pieces:
            self._forward()
        return self._digest.digest()

    def close(self) -> None:
        """Forget what was asked for, and all pieces."""
        self._store.forget()
        self._kept.clear()


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
    now = stores.file_facts(url)
    if (now.size, now.version) != (before.size, before.version):
        raise IntegrityError(f"{url}: was replaced while it was read; run the same command again")
