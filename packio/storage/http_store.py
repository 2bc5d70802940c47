"""Objects by plain HTTP: of ``https://``, and of ``s3://`` by signed URLs.

A request by urllib3 takes 0.35 ms of a processor, one by s3fs 1.8 ms, and s3fs takes most of a
second to start. Every answer is checked: its status, its range (Content-Range), its length, and its
version. ``If-Match`` asks for the version of the object that was there when the pack was opened, so
an object that was replaced is an error, not wrong bytes.

What plain HTTP cannot do as fsspec's settings say (proxies, requester pays, own certificates) is
left to fsspec: see `packio.storage.stores.open_store`. So are the folders of web servers.

Source: RFC 9110, sections 13.1.1 (If-Match), 14.2 (Range) and 15.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from packio import registry
from packio.errors import IntegrityError, ReadError
from packio.storage import urls
from packio.storage.fsspec_store import FsspecStore
from packio.storage.remote_store import CONNECTIONS
from packio.storage.store import Facts
from packio.storage.urls import Url

_QUERY = re.compile(r"\?[^\s'\")]*")  # of a URL in a message: it may be signed
_GIVEN = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")  # of Content-Range
_MISSING = (404, 410)  # statuses of HTTP


class HttpStore(FsspecStore):
    """Objects of a web server, which fsspec lists and writes."""

    looks_ahead, lists_folders = True, False
    certificates: str | None = None  # file of those to trust; None: the system's
    advice = ""  # where nobody answers

    def __init__(
        self, root: Url, names: Sequence[str] = (), sizes: Sequence[int] = (),
        tags: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(root, names, sizes, tags)
        connections(self.certificates)  # imports here, and not in a thread while another one forks

    def address(self, method: str, url: Url, query: str) -> str:
        """The address that is asked for an object."""
        scheme, _, rest = os.fspath(url).partition("://")
        host, slash, path = rest.partition("/")
        return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"

    def has_moved(self, url: Url, answer: Any) -> bool:
        """Whether the address of an object, which was refused, is another one by now."""
        return False

    def headers(self) -> dict[str, str]:
        """What each request has: user and password of the URL, if there are any."""
        user, at, _ = os.fspath(self.root).partition("://")[2].partition("/")[0].rpartition("@")
        found: dict[str, str] = {}
        if at:
            found = registry.require("urllib3", "remote").make_headers(basic_auth=unquote(user))
        return found

    def facts(self, name: str) -> Facts | None:
        return urls.retry(lambda: self._facts(self._url(name)))

    def _facts(self, url: Url) -> Facts | None:
        """Ask for the head of an object; of its first byte, where a server refuses that."""
        with self.request("HEAD", url) as answer:
            if answer.status in _MISSING:
                return None
            if answer.status == 200 and (found := _facts_of(answer)).size >= 0:
                return found
            if answer.status in urls.BUSY or (answer.status >= 500 and answer.status != 501):
                raise failure(url, answer)
        with self.request("GET", url, {"Range": "bytes=0-0"}) as answer:
            if answer.status in _MISSING:
                return None
            if answer.status not in (200, 206, 416):
                raise failure(url, answer)
            return _facts_of(answer)

    def whole(self, name: str, facts: Facts) -> bytes:
        if facts.size == 0:
            return b""
        if facts.tag:
            self._tags[name] = facts.tag
        size = facts.size if facts.size > 0 else None
        return urls.retry(lambda: self._attempt(name, 0, size, size, is_whole=True))

    def _fetch(self, file: int, start: int, stop: int) -> bytes:
        name, size = self._names[file], self._sizes[file]
        return urls.retry(lambda: self._attempt(name, start, stop, size))

    def _attempt(
        self, name: str, start: int, stop: int | None, size: int | None, *, is_whole: bool = False
    ) -> bytes:
        """Read a range of an object of a size; ``stop`` None: to the end, wherever that is."""
        url, tag = self._url(name), self._tags.get(name, "")
        headers = {} if stop is None else {"Range": f"bytes={start}-{stop - 1}"}
        if tag:
            headers["If-Match"] = tag
        with self.request("GET", url, headers) as answer:
            _check(url, answer, start, stop, size, tag, is_whole=is_whole)
            data = body(url, answer, None if stop is None else stop - start)
        if not tag and (told := _strong(answer)):  # the next answer has to be of the same version
            self._tags[name] = told
        return data

    @contextlib.contextmanager
    def request(
        self, method: str, url: Url, headers: Mapping[str, str] | None = None, query: str = ""
    ) -> Iterator[Any]:
        """Ask for an object; the answer's body is read while the block runs, or never."""
        headers = {"Accept-Encoding": "identity", **self.headers(), **(headers or {})}
        with _unsigned(url, self.advice):
            answer = self._answer(method, url, headers, query)
            if self.has_moved(url, answer):
                answer.close()
                answer = self._answer(method, url, headers, query)
            try:
                yield answer
            finally:
                if answer.length_remaining == 0:
                    answer.drain_conn()  # for http.client, an answer is open until it is read
                else:  # what is left would be the next answer
                    answer.close()
                answer.release_conn()

    def _answer(self, method: str, url: Url, headers: Mapping[str, str], query: str) -> Any:
        address, connected = self.address(method, url, query), connections(self.certificates)
        timeout = registry.require("urllib3", "remote").Timeout(urls.ANSWER / 3, urls.ANSWER)
        return connected.request(
            method, address, headers=headers, preload_content=False, timeout=timeout
        )


_connections: dict[str | None, tuple[int, Any]] = {}  # by certificates: process, its connections


def connections(certificates: str | None) -> Any:
    """The connections of this process: a forked one must not share its parent's."""
    process, found = _connections.get(certificates, (0, None))
    if process != os.getpid():
        urllib3 = registry.require("urllib3", "remote")
        tries = urllib3.Retry(total=None, connect=0, read=0, status=0, other=0, redirect=4)
        found = urllib3.PoolManager(
            num_pools=64, maxsize=CONNECTIONS, retries=tries, ca_certs=certificates
        )
        _connections[certificates] = os.getpid(), found
    return found


@contextlib.contextmanager
def _unsigned(url: Url, advice: str) -> Iterator[None]:
    """Leave signatures out of urllib3's errors: who reads a log could read the object with them."""
    errors = registry.require("urllib3", "remote").exceptions
    try:
        yield
    except errors.HTTPError as error:
        reason = getattr(error, "reason", None) or error  # what the last attempt met
        text = _QUERY.sub("", str(reason)) or type(reason).__name__
        if "too many redirects" in text:
            raise ReadError(f"{url}: redirects lead around in a loop") from None
        if isinstance(reason, errors.SSLError):
            raise ReadError(f"{url}: {text}") from None  # another attempt would meet it again
        if isinstance(reason, errors.NewConnectionError):  # which is a TimeoutError of urllib3
            raise OSError(f"{text}{advice}") from None
        if isinstance(reason, errors.TimeoutError):
            raise TimeoutError(f"no answer in {urls.ANSWER:.0f} seconds") from None
        raise OSError(text) from None


def _facts_of(answer: Any) -> Facts:
    headers, size = answer.headers, ""
    if answer.status != 200:
        size = headers.get("Content-Range", "").rpartition("/")[2]
    elif headers.get("Content-Encoding", "identity") == "identity":
        size = headers.get("Content-Length", "")
    length = int(size) if size.isdigit() else None
    names = (n for n in ("ETag", "Last-Modified") if headers.get(n))
    version = next((f"{n} {headers[n]} {length}" for n in names), "")
    length = -1 if length is None else length
    is_page = headers.get("Content-Type", "").partition(";")[0] == "text/html"
    return Facts(length, version, _strong(answer), is_page=is_page)


def _strong(answer: Any) -> str:
    tag: str = answer.headers.get("ETag", "")
    return tag if tag.startswith('"') else ""


def _check(
    url: Url, answer: Any, start: int, stop: int | None, size: int | None, tag: str, *,
    is_whole: bool,
) -> None:  # fmt: skip
    """Check that an answer is the range that was asked for, of the object that was opened.

    An answer to one who wants the whole object may be that, and no range.
    """
    status, headers = answer.status, answer.headers
    length = headers.get("Content-Length")
    if status < 300 and (coding := headers.get("Content-Encoding", "identity")) != "identity":
        raise ReadError(f"{url}: the server sends {coding} data, unasked for")
    if status == 206:
        _check_range(url, headers.get("Content-Range", ""), start, stop, size, is_whole=is_whole)
    elif status == 200 and not is_whole and not (start == 0 and length == str(stop)):
        raise ReadError(
            f"{url}: the server sends no byte ranges, so packio cannot read one sample alone; copy "
            "the object to a disk, or to a server that sends them"
        )
    elif status != 200:
        raise failure(url, answer)
    if stop is not None and length not in (None, str(stop - start)):
        raise urls.LengthError(f"{length} bytes came instead of {stop - start}")
    if tag and (found := headers.get("ETag")) and found.removeprefix("W/") != tag:
        raise IntegrityError(replaced_message(url))


def _check_range(
    url: Url, told: str, start: int, stop: int | None, size: int | None, *, is_whole: bool
) -> None:
    given = _GIVEN.fullmatch(told)
    if given is None or (given[3] != "*" and int(given[2]) >= int(given[3])):
        raise ReadError(f"{url}: the server sends a range, and not which; Content-Range: {told!r}")
    if given[3] != "*" and size is not None and int(given[3]) != size:
        if is_whole:
            raise urls.LengthError(f"{given[3]} bytes are there, {size} were announced")
        raise IntegrityError(replaced_message(url))
    if stop is None or (int(given[1]), int(given[2])) != (start, stop - 1):
        raise urls.LengthError(f"Content-Range {given[0]!r} came for bytes {start}-{stop}")


def failure(url: Url, answer: Any) -> Exception:
    """The error that an answer's status stands for."""
    status = answer.status
    text = f"HTTP status {status} {answer.reason or ''}".rstrip()
    if status == 412:
        return IntegrityError(replaced_message(url))
    if status == 416:
        return IntegrityError(f"{url}: ends before the range that the index lists; {text}")
    if status in (404, 410):
        return FileNotFoundError(errno.ENOENT, text)
    if status in (401, 403):
        return PermissionError(errno.EACCES, text)
    if status in urls.BUSY or status >= 500:
        return OSError(text)  # come again later
    return ReadError(f"{url}: {text}")


def replaced_message(url: Url) -> str:
    """Say that an object is another one by now."""
    return f"{url}: was replaced since the pack was opened; open the pack anew, or pack again"


def body(url: Url, answer: Any, length: int | None) -> bytes:
    """Read the body of an answer; give it up if it comes too slowly, or is too long."""
    most = urls.MOST_UNASKED if length is None else length
    began, limit, left = time.monotonic(), urls.patience(most), most
    parts: list[bytes] = []
    while left:
        part = answer.read1(left, decode_content=False)
        if not part:
            if length is None:
                return b"".join(parts)
            raise urls.LengthError(f"{most - left} bytes came instead of {most}")
        parts.append(part)
        left -= len(part)
        if left and time.monotonic() - began > limit:
            raise TimeoutError(f"{most - left} of {most} bytes came in {limit:.0f} seconds")
    is_bounded = length is not None and "Content-Length" in answer.headers
    if not is_bounded and answer.read1(1, decode_content=False):
        raise ReadError(f"{url}: the server sends more than {most:,} bytes, unasked for")
    return parts[0] if len(parts) == 1 else b"".join(parts)
