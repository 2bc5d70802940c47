"""Where a path or a URL is parsed: which store has its files; and one object, read as a stream."""

from __future__ import annotations

import hashlib
import os
import re
import threading
import urllib.request
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path

from packio import registry
from packio.errors import ReadError
from packio.storage import s3_store, urls
from packio.storage.fsspec_store import FsspecStore, options
from packio.storage.http_store import HttpStore
from packio.storage.local import LocalStore
from packio.storage.remote_store import RemoteStore
from packio.storage.s3_store import S3Store
from packio.storage.store import Facts, Range, Store
from packio.storage.urls import Url

# Options of fsspec's HTTP file system that change no request.
_HTTP_OPTIONS = frozenset({"block_size", "cache_type", "cache_options", "simple_links",
                           "same_scheme", "size_policy", "use_listings_cache",
                           "skip_instance_cache"})  # fmt: skip
_PIECE = 4 << 20  # bytes of a request that reads ahead
_KEPT = 16 << 20  # bytes of pieces that stay, for a reader that looks back
_BUCKET = re.compile(r"s3a?://[a-z0-9][a-z0-9.-]+(/|$)")  # no access point, for one


def open_store(
    root: Path, names: Sequence[str] = (), sizes: Sequence[int] = (),
    tags: Mapping[str, str] | None = None,
) -> Store:  # fmt: skip
    """The store of files below a folder or a URL; see `Store` and `RemoteStore`."""
    url = urls.parse(root)
    if url is None:
        return LocalStore(root, names, sizes)
    return open_url(url, names, sizes, tags)


def open_url(
    root: Url, names: Sequence[str] = (), sizes: Sequence[int] = (),
    tags: Mapping[str, str] | None = None,
) -> RemoteStore:  # fmt: skip
    """The store of files below a URL; a name may be "" for an object at the URL itself."""
    return _kind(root)(root, names, sizes, tags)


def _kind(root: Url) -> type[RemoteStore]:
    text = os.fspath(root)
    has_proxy = bool(urllib.request.getproxies().keys() - {"no"})
    if "::" in text or has_proxy or not registry.is_installed("urllib3"):
        return FsspecStore
    if text.startswith(("http://", "https://")):
        return HttpStore if set(options("http", "https")) <= _HTTP_OPTIONS else FsspecStore
    if _BUCKET.match(text) and registry.is_installed("botocore"):
        return S3Store if s3_store.reads(options("s3", "s3a")) else FsspecStore
    return FsspecStore


def facts(place: Path) -> Facts | None:
    """What is at a path or a URL; None if there is nothing."""
    return open_store(place).facts("")


def file_facts(url: Url) -> Facts:
    """The facts of an object that has to be there."""
    with urls.errors_as(ReadError, url):
        found = facts(url)
    if found is None or not found.is_file:
        raise ReadError(f"{url}: no such object")
    if found.size < 0:
        raise ReadError(f"{url}: the server tells no size; copy the object to a disk or a bucket")
    return found


def is_file(place: Path) -> bool:
    """Tell whether there is a file, or an object, at a place."""
    found = facts(place)
    return found is not None and found.is_file


def content(url: Url, known: Facts) -> bytes:
    """Read a whole object, of the version that the server has now.

    Servers behind a balancer may tell other tags of the same bytes; an index checks its own.
    """
    return open_url(url).whole("", known._replace(tag=""))


def read_range(url: Url, offset: int, length: int, known: Facts) -> bytes:
    """Read a range of an object."""
    return open_url(url, [""], [known.size], {"": known.tag}).read(0, offset, length)


def write_object(url: Url, data: bytes | Path) -> Facts:
    """Write an object, whole or not at all."""
    return open_url(url).put("", data)


def remove(url: Url) -> None:
    """Remove an object, if it is there."""
    open_url(url).remove("")


class StreamedObject:
    """An object that is read from the beginning to the end, all of its bytes, and digested.

    It comes in pieces of 4 MiB, several at a time and ahead of the reader. Not for several threads.
    Reading back further than 16 MiB asks for the bytes again.
    """

    def __init__(self, url: Url, facts: Facts, ahead: int, stopped: threading.Event) -> None:
        self.url: Url = url
        self.size: int = facts.size
        self._store = open_url(url, [""], [self.size], {"": facts.tag})
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
        data = self._store.prefetch([wanted]).read(*wanted)
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
