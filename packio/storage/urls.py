"""URLs: ``s3://``, ``gs://``, ``https://``, ``memory://``, and all others that fsspec knows.

``file://`` is the plain path. `packio.storage.stores` says who reads which URL. A request that
fails is tried again.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import time
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path, PosixPath
from typing import Any, TypeVar
from urllib.parse import quote, unquote_to_bytes

from packio.errors import OptionError, PackioError, without_credentials
from packio.system import files, interrupts

T = TypeVar("T")

_URL = re.compile(r"(?:\w+::)*[A-Za-z][A-Za-z0-9+.-]+:/")
_SLASHES = re.compile(r"((?:^|::)[A-Za-z][A-Za-z0-9+.-]+):/+")
_KEYS = re.compile(r"(?:\w+::)*(?:s3a?|gs|gcs):/+[^/]*@")  # of a bucket, with credentials
_LOCAL = re.compile(r"(?:file|local):(?://)?")
_PLAIN = "/!$&'()*+,;=:@"  # in names of objects that web servers have, besides letters and digits
_WAITS = (0.1, 0.3, 1.0, 3.0, 6.0, 10.0)  # seconds between attempts, about
ANSWER = 30.0  # seconds without a byte, after which an attempt is given up
_SLOWEST = 64 << 10  # bytes per second: a range that comes slower is given up
BUSY = frozenset({408, 425, 429})  # statuses of HTTP: come again later
MOST_UNASKED = 64 << 20  # bytes that a web server may send where nobody knows how many come
PATIENCE = 120  # seconds after which no request is tried again
_FINAL = (  # errors that another attempt would meet again
    PackioError, FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError,
    NotImplementedError, ImportError, TypeError,
)  # fmt: skip
_NO_CREDENTIALS = frozenset({"NoCredentialsError", "PartialCredentialsError"})  # of botocore
_HOPELESS = _NO_CREDENTIALS | {"ProfileNotFound", "ConfigParseError", "UnknownEndpointError"}
_CREDENTIALS = (
    "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; a public bucket is read "
    """without, under FSSPEC_S3='{"anon": true}'"""
)
ENDPOINT = "AWS_ENDPOINT_URL, FSSPEC_S3 or the AWS profile says which endpoint"


class LengthError(OSError):
    """An answer has another length than the range that was asked for."""


class Url(PosixPath):
    """A URL with the name, parents and children of a path; its text keeps the two slashes.

    Credentials are in `os.fspath` of it only: what is shown, written or pickled by anybody but
    multiprocessing, whose workers need them, lacks them.
    """

    def __init_subclass__(cls) -> None:
        ForkingPickler.register(cls, cls._whole)

    def __fspath__(self) -> str:
        return _SLASHES.sub(r"\1://", super().__str__())

    def __str__(self) -> str:
        return without_credentials(os.fspath(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, os.PathLike) and os.fspath(self) == os.fspath(other)

    def __hash__(self) -> int:
        return hash(os.fspath(self))

    def __copy__(self) -> Url:
        return self

    def __deepcopy__(self, _: object) -> Url:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return self._kind, (str(self),)

    def _whole(self) -> tuple[Any, ...]:
        return self._kind, (os.fspath(self),)

    @property
    def _kind(self) -> type[Url]:
        return type(self)


ForkingPickler.register(Url, Url._whole)  # noqa: SLF001 (its own)


def parse(path: str | os.PathLike[str]) -> Url | None:
    """Return the URL that a text is, even after pathlib joined the slashes; None for a path."""
    if isinstance(path, Url):
        return path
    text = os.fspath(path)
    if not _URL.match(text) or _LOCAL.match(text):
        return None
    if "://" not in text and os.path.isdir(text.partition("/")[0]):
        return None  # a folder whose name ends in a colon
    if _KEYS.match(text):  # the service's library would show them in its errors
        raise OptionError(f"{Url(text)}: the URL of a bucket holds no credentials; {_CREDENTIALS}")
    return Url(text)


def place(path: str | os.PathLike[str]) -> Path:
    """Return the URL that a text is, else a path; ``file://`` is one."""
    if (url := parse(path)) is not None:
        return url
    local = _LOCAL.match(text := os.fspath(path))
    return Path(path) if local is None else Path(text[local.end() :])


def absolute(path: str | os.PathLike[str]) -> Path:
    """Return what `place` does, with a plain path made absolute."""
    return parse(path) or files.absolute(place(path))


def child(root: Url, name: str) -> Url:
    """Return the URL of an object by its name below another URL; see `name_of`."""
    text = quote(os.fsencode(name), safe=_PLAIN) if _is_quoted(root) else name
    return root / text


def refuse_query(url: Url) -> None:
    """Refuse the URL of a pack, or of a container, that ends in a query."""
    if _is_quoted(url) and "?" in os.fspath(url):
        raise OptionError(
            f"{url}: has a query (?…), which is of one object, where packio asks for several; give "
            "credentials by fsspec's settings, as FSSPEC_HTTP; a '?' in a name is %3F"
        )


def name_of(root: Url, text: str) -> str:
    """Return the name of an object, as `child` takes it, by the text of its URL below a root."""
    return os.fsdecode(unquote_to_bytes(text)) if _is_quoted(root) else text


def _is_quoted(url: Url) -> bool:
    """Tell whether the text of a URL stands for a name with ``%`` escapes, as that of HTTP does."""
    return os.fspath(url).rpartition("::")[2].startswith(("http://", "https://"))


def retry(work: Callable[[], T]) -> T:
    """Call a function until it succeeds, at most seven times, waiting longer each time."""
    began = time.monotonic()
    for wait in _WAITS:
        interrupts.heed()
        try:
            return work()
        except _FINAL:
            raise
        except Exception as error:  # each service has errors of its own
            # a setting is wrong: botocore has a plain ValueError for a wrong endpoint
            is_hopeless = type(error) is ValueError or type(error).__name__ in _HOPELESS
            if is_hopeless or time.monotonic() - began > PATIENCE:
                raise
        time.sleep(random.uniform(wait / 2, wait))
    return work()


@contextlib.contextmanager
def errors_as(kind: type[PackioError], where: object) -> Iterator[None]:
    """Raise any error within the block as an error of packio."""
    try:
        yield
    except PackioError:
        raise
    except Exception as error:
        raise kind(f"{where}: {str(error) or type(error).__name__}{_advice(error)}") from error


def _advice(error: Exception) -> str:
    """Name the setting that is wrong."""
    text = str(error)
    if type(error).__name__ in _NO_CREDENTIALS:
        return f"; {_CREDENTIALS}"
    if type(error).__name__ == "EndpointConnectionError":
        return f"; {ENDPOINT}"
    if type(error) is ValueError and text.startswith("Invalid endpoint"):
        return "; an endpoint is a URL, as https://s3.example"
    if type(error) is TypeError and "unexpected keyword argument" in text:
        return "; FSSPEC_… or fsspec's settings have an option that its file system does not know"
    return ""


def patience(length: int) -> float:
    """Seconds that a request for so many bytes may take."""
    return ANSWER + length / _SLOWEST


def is_version(one: str, other: str) -> bool:
    """Tell whether two versions of `Facts` are the same.

    A weak tag differs from a strong one by its prefix only. Servers tell one object both ways,
    and with its size or without.
    """
    (stamp, _, size), (stamp_, _, size_) = (
        text.replace(" W/", " ", 1).rpartition(" ") for text in (one, other)
    )
    return stamp == stamp_ and (size == size_ or "None" in (size, size_))
