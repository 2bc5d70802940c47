"""URLs, as fsspec knows them: ``s3://``, ``gs://``, ``https://``, ``memory://`` and many more.

Credentials, endpoints and timeouts are set in fsspec's configuration (``FSSPEC_S3`` and the like,
https://filesystem-spec.readthedocs.io/en/latest/features.html#configuration) and in the service's,
as ``AWS_PROFILE``. fsspec's chained URLs work: ``filecache::s3://bucket/train.tar`` keeps whole
files on this machine. ``file://`` is the plain path.

Every operation asks fsspec for the file system. fsspec makes a file system once in each process;
asking takes 0.1 ms, a request several. A request that fails is tried again, and the length of the
answer is checked.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import os
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from http import HTTPStatus
from multiprocessing.reduction import ForkingPickler
from pathlib import Path, PosixPath
from typing import Any, TypeVar
from urllib.parse import quote, unquote_to_bytes

from packio import registry
from packio.errors import (
    MissingPackageError,
    OptionError,
    PackioError,
    ReadError,
    without_credentials,
)
from packio.system import files, interrupts

T = TypeVar("T")

_URL = re.compile(r"(?:\w+::)*[A-Za-z][A-Za-z0-9+.-]+:/")
_SLASHES = re.compile(r"((?:^|::)[A-Za-z][A-Za-z0-9+.-]+):/+")
_KEYS = re.compile(r"(?:\w+::)*(?:s3a?|gs|gcs):/+[^/]*@")  # of a bucket, with credentials
_LOCAL = re.compile(r"(?:file|local):(?://)?")
_PLAIN = "/!$&'()*+,;=:@"  # in names of objects that web servers have, besides letters and digits
_WAITS = (0.1, 0.3, 1.0, 3.0, 6.0, 10.0)  # seconds between attempts, about
_ANSWER = 30.0  # seconds for an answer about an object, and for the beginning of a range
_SLOWEST = 64 << 10  # bytes per second: a range that comes slower is given up
BUSY = frozenset({408, 425, 429})  # statuses of HTTP: come again later
MOST_UNASKED = 64 << 20  # bytes that a web server may send where nobody knows how many come
_PATIENCE = 120  # seconds after which no request is tried again
_FINAL = (  # errors that another attempt would meet again
    PackioError, FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError,
    NotImplementedError, ImportError, TypeError,
)  # fmt: skip
_HOPELESS = frozenset({"ProfileNotFound", "ConfigParseError", "UnknownEndpointError"})  # botocore's
_NO_CREDENTIALS = frozenset({"NoCredentialsError", "PartialCredentialsError"})  # of botocore
_CREDENTIALS = (
    "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; a public bucket is read "
    """without, under FSSPEC_S3='{"anon": true}'"""
)
# Names that services give to an object's version, the best first.
_STAMPS = ("ETag", "etag", "md5Hash", "blob_id", "LastModified", "Last-Modified", "last_modified",
           "updated", "mtime", "created")  # fmt: skip


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
        return isinstance(other, Url) and os.fspath(self) == os.fspath(other)

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


def place(path: str | os.PathLike[str]) -> Path:
    """Return a `Url` if the text is a URL, even after pathlib joined the slashes; else a path."""
    text = os.fspath(path)
    if not _URL.match(text):
        return Path(path)
    if (local := _LOCAL.match(text)) is not None:
        return Path(text[local.end() :])
    if "://" not in text and os.path.isdir(text.partition("/")[0]):
        return Path(text)  # a folder whose name ends in a colon
    if _KEYS.match(text):  # the service's library would show them in its errors
        raise OptionError(f"{Url(text)}: the URL of a bucket holds no credentials; {_CREDENTIALS}")
    return Url(text)


def absolute(path: str | os.PathLike[str]) -> Path:
    """Return what `place` does, with a plain path made absolute."""
    found = place(path)
    return found if isinstance(found, Url) else files.absolute(found)


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


def filesystem(url: str | os.PathLike[str]) -> tuple[Any, str]:
    """Return fsspec's file system for a URL, and the path of the URL in that file system."""
    fsspec, text = registry.require("fsspec", "remote"), os.fspath(url)
    try:
        found: tuple[Any, str] = fsspec.core.url_to_fs(text)
    except ImportError as error:
        raise MissingPackageError(
            f"{text}: {error}; for s3://, try: pip install 'packio[remote]'"
        ) from error
    except ValueError as error:
        raise OptionError(f"{text}: {error}") from error
    if found[0].protocol == "data":
        raise OptionError(f"{text}: data within a URL is no pack; expected the URL of a place")
    inner = found[0]
    while inner is not None:
        if is_web(inner) and "response_class" not in inner.client_kwargs:
            inner.client_kwargs = {**inner.client_kwargs, "response_class": _bounded_response()}
            told = inner.kwargs.get("headers") or {}
            inner.kwargs["headers"] = {"Accept-Encoding": "identity", **told}
        inner = getattr(inner, "fs", None)  # of a chained URL
    return found


def is_web(fs: Any) -> bool:
    """Tell whether a file system is that of web servers, which are not trusted."""
    return "https" in fs.protocol and hasattr(fs, "client_kwargs")


@functools.cache
def _bounded_response() -> Any:
    """The class of answers of web servers: no more is read than was asked for, or is plausible."""
    aiohttp: Any = registry.require("aiohttp", "remote")

    class BoundedResponse(aiohttp.ClientResponse):  # type: ignore[misc]  # known at run time
        _body: bytes | None  # aiohttp's, which its other methods look at first

        async def read(self) -> bytes:
            if self._body is None:
                asked = self.request_info.headers.get("Range", "")
                span = re.fullmatch(r"bytes=(\d+)-(\d+)", asked)
                most = int(span[2]) - int(span[1]) + 1 if span else MOST_UNASKED
                coding = self.headers.get("Content-Encoding", "identity")
                parts, length = [], 0
                async for part in self.content.iter_any():
                    parts.append(part)
                    length += len(part)
                    if length > most or (asked and coding != "identity"):
                        self.close()
                        what = f"more than {most:,} bytes" if length > most else f"{coding} data"
                        raise ReadError(f"{self.url}: the server sends {what}, unasked for")
                self._body = b"".join(parts)
            return self._body

    return BoundedResponse


def retried(work: Callable[[], T]) -> T:
    """Call a function until it succeeds, at most seven times, waiting longer each time."""
    began = time.monotonic()
    for wait in _WAITS:
        interrupts.heed()
        try:
            return work()
        except _FINAL:
            raise
        except Exception as error:  # each service has errors of its own
            if time.monotonic() - began > _PATIENCE or _is_hopeless(error):
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
    name, text = type(error).__name__, str(error)
    if _lacks_credentials(error):
        return f"; {_CREDENTIALS}"
    if name == "EndpointConnectionError":
        return "; AWS_ENDPOINT_URL, FSSPEC_S3 or the AWS profile says which endpoint"
    if type(error) is ValueError and text.startswith("Invalid endpoint"):
        return "; an endpoint is a URL, as https://s3.example"
    if type(error) is TypeError and "unexpected keyword argument" in text:
        return "; FSSPEC_… or fsspec's settings have an option that its file system does not know"
    return ""


def _is_hopeless(error: BaseException) -> bool:
    """Tell whether a setting is wrong: botocore has a plain ValueError for a wrong endpoint."""
    is_set_wrong = type(error) is ValueError or type(error).__name__ in _HOPELESS
    return is_set_wrong or _lacks_credentials(error)


def _lacks_credentials(error: BaseException) -> bool:
    return type(error).__name__ in _NO_CREDENTIALS


def within(seconds: float | None, fs: Any, method: str, *arguments: Any, **options: Any) -> Any:
    """Call a method of a file system; a service that says nothing is not waited for for ever."""
    if not fs.async_impl:
        return getattr(fs, method)(*arguments, **options)
    loop = fs.loop  # raises an error in a forked process, before there is a coroutine
    work = getattr(fs, f"_{method}")(*arguments, **options)
    found: Future[Any] = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        return interrupts.result(found, seconds)
    except BaseException as error:
        is_ours = not found.done() and isinstance(error, TimeoutError)
        found.cancel()
        if is_ours:
            raise TimeoutError(f"no answer in {seconds or 0:.0f} seconds") from error
        raise


def patience(length: int) -> float:
    """Seconds that a request for so many bytes may take."""
    return _ANSWER + length / _SLOWEST


def info(url: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Ask for the "type", "size", … of an object or a folder; None if there is none."""

    def ask() -> dict[str, Any] | None:
        fs, path = filesystem(url)
        fs.invalidate_cache(path)
        try:
            found: dict[str, Any] = within(_ANSWER, fs, "info", path)
        except FileNotFoundError as error:
            if _is_no_answer(cause := error.__cause__):
                raise OSError(str(cause)) from error
            if getattr(cause, "status", 0) == HTTPStatus.UNAUTHORIZED:
                raise PermissionError(errno.EACCES, str(cause)) from error
            if type(cause).__name__ == "TooManyRedirects":  # aiohttp's
                raise ReadError(f"{url}: redirects lead around in a loop") from error
            return None
        return found

    return retried(ask)


def _is_no_answer(cause: BaseException | None) -> bool:
    """Tell whether a connection failed, or a server did: fsspec calls that "not found" for HTTP."""
    is_connection = isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError)
    status = getattr(cause, "status", 0)
    return is_connection or status >= 500 or status in BUSY


def is_file(url: str | os.PathLike[str]) -> bool:
    """Tell whether there is an object with this URL."""
    found = info(url)
    return found is not None and found["type"] == "file"


def below(url: str | os.PathLike[str]) -> dict[str, dict[str, Any]]:
    """Ask for the "type", "size", … of all objects below a URL, by their names relative to it."""

    def ask() -> dict[str, dict[str, Any]]:
        fs, path = filesystem(url)
        fs.invalidate_cache(path)
        top = path.rstrip("/") + "/"
        try:
            seconds = _PATIENCE if is_web(fs) else None  # folders may go on for ever
            found = within(seconds, fs, "find", path, detail=True).items()
        except FileNotFoundError:
            return {}
        return {n[len(top) :]: entry for n, entry in found if n.startswith(top) and n != top}

    return retried(ask)


def inside(url: str | os.PathLike[str]) -> dict[str, dict[str, Any]]:
    """Ask for the objects in a folder, by name, as `below` does, without those in its folders."""

    def ask() -> dict[str, dict[str, Any]]:
        fs, path = filesystem(url)
        fs.invalidate_cache(path)
        top = path.rstrip("/") + "/"
        try:
            found = [e for e in fs.ls(path, detail=True) if e["type"] == "file"]
        except (FileNotFoundError, NotADirectoryError):
            return {}
        return {e["name"][len(top) :]: e for e in found if e["name"].startswith(top)}

    return retried(ask)


def version(found: Mapping[str, Any]) -> str:
    """Text that changes when an object is written again; "" if the service tells no version."""
    stamp = next((f"{n} {found[n]}" for n in _STAMPS if found.get(n)), "")
    return stamp and f"{stamp} {found.get('size')}"


def is_version(one: str, other: str) -> bool:
    """Tell whether two texts of `version` say the same.

    A weak tag differs from a strong one by its prefix only. Servers tell one object both ways,
    and with its size or without.
    """
    (stamp, _, size), (stamp_, _, size_) = (
        text.replace(" W/", " ", 1).rpartition(" ") for text in (one, other)
    )
    return stamp == stamp_ and (size == size_ or "None" in (size, size_))


def read(fs: Any, path: str, offset: int, length: int | None, *, is_end: bool = False) -> bytes:
    """Read a whole range of an object, or to its end.

    ``is_end``: the object ends with the range; more bytes mean that it has grown.
    """
    if length == 0:
        return b""
    stop = None if length is None else offset + length + is_end

    seconds = patience(MOST_UNASKED if length is None else length)
    # a buffered file of fsspec would read 5 MiB more
    options = {"cache_type": "none"} if fs.protocol == "hf" else {}

    def ask() -> bytes:
        data: bytes = within(seconds, fs, "cat_file", path, start=offset, end=stop, **options)
        if length is not None and len(data) != length:
            raise LengthError(f"{len(data)} bytes came instead of {length}")
        return data

    return retried(ask)
