"""URLs, as fsspec knows them: ``s3://``, ``gs://``, ``https://``, ``memory://`` and many more.

Credentials, endpoints and timeouts are fsspec's business: its configuration (``FSSPEC_S3`` and the
like, https://filesystem-spec.readthedocs.io/en/latest/features.html#configuration), and that of the
service, as ``AWS_PROFILE``. Its chained URLs work, too: ``filecache::s3://bucket/train.tar`` keeps
whole files here. ``file://`` is the plain path.

Every operation asks fsspec for its file system, which it makes once, and anew in a forked process:
0.1 ms beside the network's several. What goes wrong for the moment is tried again; what came is
checked for its length.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PosixPath
from typing import Any, TypeVar

from packio import registry
from packio.errors import MissingPackageError, OptionError, PackioError

T = TypeVar("T")

_URL = re.compile(r"(?:\w+::)*[A-Za-z][A-Za-z0-9+.-]+:/")
_SLASHES = re.compile(r"((?:^|::)[A-Za-z][A-Za-z0-9+.-]+):/+")
_LOCAL = re.compile(r"(?:file|local):(?://)?")
_WAITS = (0.1, 0.4, 1.6, 6.4)  # seconds between attempts, about
_PATIENCE = 300  # seconds after which nothing is tried again
_FINAL = (  # another attempt would give the same
    PackioError, FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError,
    NotImplementedError, ImportError, TypeError,
)  # fmt: skip
# What tells that an object was written again, whatever the service calls it; the best comes first.
_STAMPS = ("ETag", "etag", "md5Hash", "LastModified", "last_modified", "updated", "mtime",
           "created")  # fmt: skip


class LengthError(OSError):
    """An answer has another length than what was asked for."""


class Url(PosixPath):
    """A URL with the name, parents and children of a path; its text keeps the two slashes."""

    def __str__(self) -> str:
        return _SLASHES.sub(r"\1://", super().__str__())


def place(path: str | os.PathLike[str]) -> Path:
    """A path as what it means: a `Url`, also where pathlib has had it, or a plain path."""
    text = os.fspath(path)
    if not _URL.match(text):
        return Path(path)
    if (local := _LOCAL.match(text)) is not None:
        return Path(text[local.end() :])
    if "://" not in text and os.path.isdir(text.partition("/")[0]):
        return Path(text)  # a folder whose name ends in a colon
    return Url(text)


def absolute(path: str | os.PathLike[str]) -> Path:
    """As `place`; a plain path is made absolute."""
    found = place(path)
    return found if isinstance(found, Url) else Path(os.path.abspath(found))


def filesystem(url: str | os.PathLike[str]) -> tuple[Any, str]:
    """The file system that fsspec has for a URL, and what the URL is called there.

    Raises:
        MissingPackageError: fsspec, or its package for this kind of URL, is not installed.
        OptionError: it knows no such kind of URL.
    """
    fsspec, text = registry.require("fsspec", "remote"), os.fspath(url)
    try:
        found: tuple[Any, str] = fsspec.core.url_to_fs(text)
    except ImportError as error:
        raise MissingPackageError(
            f"{text}: {error}; for s3://, try: pip install 'packio[remote]'"
        ) from error
    except ValueError as error:
        raise OptionError(f"{text}: {error}") from error
    return found


def retried(work: Callable[[], T]) -> T:
    """Call something until it succeeds: five times at most, waiting longer each time."""
    began = time.monotonic()
    for wait in _WAITS:
        try:
            return work()
        except _FINAL:
            raise
        except Exception:  # each service has errors of its own
            if time.monotonic() - began > _PATIENCE:
                raise
        time.sleep(random.uniform(wait / 2, wait))
    return work()


@contextlib.contextmanager
def errors_as(kind: type[PackioError], where: object) -> Iterator[None]:
    """Raise whatever goes wrong as an error of packio's."""
    try:
        yield
    except PackioError:
        raise
    except Exception as error:
        raise kind(f"{where}: {str(error) or type(error).__name__}") from error


def info(url: str | os.PathLike[str]) -> dict[str, Any] | None:
    """What a service says of an object, or of a folder: its "type", "size", …; None: not there."""

    def ask() -> dict[str, Any] | None:
        fs, path = filesystem(url)
        fs.invalidate_cache(path)
        try:
            found: dict[str, Any] = fs.info(path)
        except FileNotFoundError:
            return None
        return found

    return retried(ask)


def is_file(url: str | os.PathLike[str]) -> bool:
    """Whether there is an object of this name."""
    found = info(url)
    return found is not None and found["type"] == "file"


def below(url: str | os.PathLike[str]) -> dict[str, dict[str, Any]]:
    """What a service says of all objects below a URL, by their names relative to it."""

    def ask() -> dict[str, dict[str, Any]]:
        fs, path = filesystem(url)
        fs.invalidate_cache(path)
        top = path.rstrip("/") + "/"
        try:
            found = fs.find(path, detail=True).items()
        except FileNotFoundError:
            return {}
        return {n[len(top) :]: entry for n, entry in found if n.startswith(top) and n != top}

    return retried(ask)


def version(found: Mapping[str, Any]) -> str:
    """What changes where an object is written anew, as far as `info` tells; "" if it does not."""
    stamp = next((f"{n} {found[n]}" for n in _STAMPS if found.get(n)), "")
    return stamp and f"{stamp} {found.get('size')}"


def read(fs: Any, path: str, offset: int, length: int | None, *, is_end: bool = False) -> bytes:
    """Read a range of an object, all of it.

    Args:
        fs, path: As `filesystem` gives them.
        offset, length: Bytes; a length of None is all there is, as far as the service says.
        is_end: The object ends there: it has grown if there is more.

    Raises:
        LengthError: more or fewer bytes come, again and again.
        Exception: what the service says, after several attempts.
    """
    if length == 0:
        return b""
    stop = None if length is None else offset + length + is_end

    def ask() -> bytes:
        data: bytes = fs.cat_file(path, start=offset, end=stop)
        if length is not None and len(data) != length:
            raise LengthError(f"{len(data)} bytes came instead of {length}")
        return data

    return retried(ask)
