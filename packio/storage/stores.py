"""Where a path or a URL is parsed: which store has its files."""

from __future__ import annotations

import os
import re
import urllib.request
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
from packio.storage.store import Facts, Store
from packio.storage.urls import Url

# Options of fsspec's HTTP file system that change no request.
_HTTP_OPTIONS = frozenset({"block_size", "cache_type", "cache_options", "simple_links",
                           "same_scheme", "size_policy", "use_listings_cache",
                           "skip_instance_cache"})  # fmt: skip
_BUCKET = re.compile(r"s3a?://[a-z0-9][a-z0-9.-]+(/|$)")  # no access point, for one


def at(
    root: Path, names: Sequence[str] = (), sizes: Sequence[int] = (),
    tags: Mapping[str, str] | None = None,
) -> Store:  # fmt: skip
    """The store of files below a folder or a URL; see `Store` and `RemoteStore`."""
    url = urls.of(root)
    if url is None:
        return LocalStore(root, names, sizes)
    return of_url(url, names, sizes, tags)


def of_url(
    root: Url, names: Sequence[str] = (), sizes: Sequence[int] = (),
    tags: Mapping[str, str] | None = None,
) -> RemoteStore:  # fmt: skip
    """The store of files below a URL; a name may be "" for an object at the URL itself."""
    return _kind(root)(root, names, sizes, tags)


def _kind(root: Url) -> type[RemoteStore]:
    text = os.fspath(root)
    has_proxy = bool(urllib.request.getproxies().keys() - {"no"})
    if "::" in text or has_proxy or not registry.installed("urllib3"):
        return FsspecStore
    if text.startswith(("http://", "https://")):
        return HttpStore if set(options("http", "https")) <= _HTTP_OPTIONS else FsspecStore
    if _BUCKET.match(text) and registry.installed("botocore"):
        return S3Store if s3_store.reads(options("s3", "s3a")) else FsspecStore
    return FsspecStore


def facts(place: Path) -> Facts | None:
    """What is at a path or a URL; None if there is nothing."""
    return at(place).facts("")


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
    """Read a whole object."""
    return of_url(url).whole("", known)


def read(url: Url, offset: int, length: int, known: Facts | None = None) -> bytes:
    """Read a range of an object."""
    found = known or file_facts(url)
    return of_url(url, [""], [found.size], {"": found.tag}).read(0, offset, length)


def put(url: Url, data: bytes | Path) -> Facts:
    """Write an object, whole or not at all."""
    return of_url(url).put("", data)


def remove(url: Url) -> None:
    """Remove an object, if it is there."""
    of_url(url).remove("")
