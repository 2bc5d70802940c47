"""Objects of all services that fsspec knows: ``gs://``, ``hf://``, ``memory://`` and many more.

Credentials, endpoints and timeouts are set in fsspec's configuration (``FSSPEC_S3`` and the like,
https://filesystem-spec.readthedocs.io/en/latest/features.html#configuration) and in the service's.
fsspec's chained URLs work: ``filecache::s3://bucket/train.tar`` keeps whole files on this machine.

Every operation asks fsspec for the file system. fsspec makes a file system once in each process;
asking takes 0.1 ms, a request several. The length of each answer is checked.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import os
import re
import shutil
from collections.abc import Mapping
from concurrent.futures import Future
from http import HTTPStatus
from pathlib import Path
from typing import Any

from packio import registry
from packio.errors import MissingPackageError, OptionError, ReadError
from packio.storage import urls
from packio.storage.remote_store import RemoteStore, index_by_name
from packio.storage.store import Facts
from packio.system import interrupts
from packio.system.locks import ForkSafeLock

# Names that services give to an object's version, the best first.
_STAMPS = ("ETag", "etag", "md5Hash", "blob_id", "LastModified", "Last-Modified", "last_modified",
           "updated", "mtime", "created")  # fmt: skip
_COPIED = 4 << 20  # bytes at a time
_ONE = ForkSafeLock()  # file systems that wait for each answer are not safe in threads


class FsspecStore(RemoteStore):
    """Objects that fsspec reads and writes."""

    @property
    def looks_ahead(self) -> bool:  # type: ignore[override]  # read only
        """Whether the service is asked for many ranges at a time."""
        return bool(filesystem(self.root)[0].async_impl)

    def facts(self, name: str) -> Facts | None:
        def ask() -> Facts | None:
            fs, path = filesystem(self._url(name))
            fs.invalidate_cache(path)
            try:
                return _facts(_within(urls.ANSWER, fs, "info", path))
            except FileNotFoundError as error:
                if _is_no_answer(cause := error.__cause__):
                    raise OSError(str(cause)) from error
                if getattr(cause, "status", 0) == HTTPStatus.UNAUTHORIZED:
                    raise PermissionError(errno.EACCES, str(cause)) from error
                if type(cause).__name__ == "TooManyRedirects":  # aiohttp's
                    raise ReadError(f"{self.root}: redirects lead around in a loop") from error
                return None

        return urls.retry(ask)

    def list(self, *, deep: bool = True) -> dict[str, Facts]:
        def ask() -> dict[str, Facts]:
            fs, path = filesystem(self.root)
            fs.invalidate_cache(path)
            try:
                if deep:
                    seconds = urls.PATIENCE if is_web(fs) else None  # folders may go on for ever
                    found = _within(seconds, fs, "find", path, detail=True).items()
                else:
                    listed = fs.ls(path, detail=True)
                    found = [(e["name"], e) for e in listed if e["type"] == "file"]
            except (FileNotFoundError, NotADirectoryError):
                return {}
            inner = index_by_name(found, path)
            return {urls.name_of(self.root, text): _facts(entry) for text, entry in inner.items()}

        return urls.retry(ask)

    def whole(self, name: str, facts: Facts) -> bytes:
        """See `RemoteStore.whole`; a byte more would mean that the object has grown."""
        if facts.size == 0:
            return b""
        fs, path = filesystem(self._url(name))
        if facts.size < 0:
            return _read(fs, path, 0, None, None)
        return _read(fs, path, 0, facts.size + 1, facts.size)

    def _fetch(self, file: int, start: int, stop: int) -> bytes:
        fs, path = filesystem(self.path(file))
        return _read(fs, path, start, stop, stop - start)

    def put(self, name: str, data: bytes | Path) -> Facts:
        url, size = self._url(name), data.stat().st_size if isinstance(data, Path) else len(data)

        def attempt() -> Facts:
            fs, path = filesystem(url)
            try:
                _write(fs, path, data)
            except FileNotFoundError as error:  # the service has ended the upload in parts
                raise OSError(str(error)) from error
            if (found := self.facts(name)) is None or found.size not in (-1, size):
                fs.rm_file(path)
                raise OSError(f"{url}: {found.size if found else 0} of {size} bytes have arrived")
            return found

        return urls.retry(attempt)

    def remove(self, name: str) -> None:
        def attempt() -> None:
            fs, path = filesystem(self._url(name))
            with contextlib.suppress(FileNotFoundError):
                fs.rm_file(path)

        urls.retry(attempt)


def _write(fs: Any, path: str, data: bytes | Path) -> None:
    if not fs.async_impl:  # a service with folders, or one that shows a file before it is whole
        fs.makedirs(path.rpartition("/")[0] or "/", exist_ok=True)
    if isinstance(data, bytes):
        fs.pipe_file(path, data)
    elif fs.async_impl:
        fs.put_file(os.fspath(data), path)
    else:
        with fs.transaction, fs.open(path, "wb") as file, data.open("rb") as source:
            shutil.copyfileobj(source, file, _COPIED)


def _facts(found: Mapping[str, Any]) -> Facts:
    told = ((name, found[name]) for name in _STAMPS if found.get(name))
    # fsspec's memory tells a time as a number in a list, and as a datetime of one object
    stamp = next((f"{n} {v.timestamp() if hasattr(v, 'timestamp') else v}" for n, v in told), "")
    size, tag = found.get("size"), str(found.get("ETag") or "")
    return Facts(
        size if isinstance(size, int) else -1, stamp and f"{stamp} {size}",
        tag if tag.startswith('"') else "", found["type"] == "file",
        found.get("mimetype") == "text/html",
    )  # fmt: skip


def options(*protocols: str) -> dict[str, Any]:
    """What fsspec's settings say of a service."""
    conf = registry.require("fsspec.config", "remote").conf
    return {name: value for p in protocols for name, value in conf.get(p, {}).items()}


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
                most = int(span[2]) - int(span[1]) + 1 if span else urls.MOST_UNASKED
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


def _within(seconds: float | None, fs: Any, method: str, *arguments: Any, **options: Any) -> Any:
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


def _is_no_answer(cause: BaseException | None) -> bool:
    """Tell whether a connection failed, or a server did: fsspec calls that "not found" for HTTP."""
    is_connection = isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError)
    status = getattr(cause, "status", 0)
    return is_connection or status >= 500 or status in urls.BUSY


def _read(fs: Any, path: str, start: int, stop: int | None, length: int | None) -> bytes:
    """Read a range, whose length must be as expected."""
    seconds = urls.patience(urls.MOST_UNASKED if length is None else length)
    # a buffered file of fsspec would read 5 MiB more
    options = {"cache_type": "none"} if fs.protocol == "hf" else {}

    def ask() -> bytes:
        with contextlib.nullcontext() if fs.async_impl else _ONE:
            data: bytes = _within(seconds, fs, "cat_file", path, start=start, end=stop, **options)
        if length is not None and len(data) != length:
            raise urls.LengthError(f"{len(data)} bytes came instead of {length}")
        return data

    return urls.retry(ask)
