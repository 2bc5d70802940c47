"""Byte ranges by plain HTTP: of ``https://`` objects, and of ``s3://`` objects by signed URLs.

A request by urllib3 takes 0.35 ms of a processor, one by s3fs 1.8 ms. A signed URL (AWS Signature
Version 4, in the query) lets urllib3 read an object of S3: s3fs signs once an hour for each object,
so credentials stay s3fs's business. Every answer is checked: its status, its range
(Content-Range), its length, and its version. ``If-Match`` asks for the version of the object that
was there when the pack was opened, so an object that was replaced is an error, not wrong bytes.

What plain HTTP cannot do as s3fs is told to (proxies, requester pays, own certificates) is left to
fsspec: `client` then returns None.

Source: RFC 9110, sections 13.1.1 (If-Match), 14.2 (Range) and 15.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from packio import registry
from packio.errors import IntegrityError, ReadError
from packio.storage import urls
from packio.storage.urls import Url

CONNECTIONS = 64  # at once, of one process
_SILENCE = 30.0  # seconds without a byte, after which an attempt is given up
_SLOWEST = 64 << 10  # bytes per second: a body that comes slower is given up
_SIGNED_FOR = 3600  # seconds
_QUERY = re.compile(r"\?[^\s'\")]*")  # of a URL in a message: it may be signed
# Options of s3fs with which a signed URL reads what s3fs would read.
_S3_OPTIONS = frozenset({
    "anon", "endpoint_url", "key", "secret", "token", "profile", "use_ssl", "client_kwargs",
    "config_kwargs", "default_block_size", "default_fill_cache", "default_cache_type",
    "max_concurrency", "use_listings_cache", "skip_instance_cache", "cache_regions",
})  # fmt: skip
_S3_CLIENT = frozenset({"region_name", "endpoint_url", "aws_access_key_id",
                        "aws_secret_access_key", "aws_session_token"})  # fmt: skip
_S3_CONFIG = frozenset({"connect_timeout", "read_timeout", "retries", "max_pool_connections",
                        "signature_version", "s3", "region_name"})  # fmt: skip
# Options of fsspec's HTTP file system that change no request.
_HTTP_OPTIONS = frozenset({"block_size", "cache_type", "cache_options", "simple_links",
                           "same_scheme", "size_policy", "use_listings_cache",
                           "skip_instance_cache"})  # fmt: skip


class RefusedError(ReadError):
    """The service refuses a plain HTTP request, which it may not refuse fsspec."""


class _BusyError(OSError):
    """The service asks to come again later."""


def client(root: Url) -> Client | None:
    """Return a client for the objects below a URL; None if plain HTTP does not reach them."""
    text = os.fspath(root)
    has_proxy = bool(urllib.request.getproxies().keys() - {"no"})
    if "::" in text or has_proxy or not registry.installed("urllib3"):
        return None
    _urllib3()  # imported here, and not in a thread while another one forks
    scheme, (fs, _) = text.partition(":")[0], urls.filesystem(root)
    options = fs.storage_options
    if scheme in ("http", "https") and set(options) <= _HTTP_OPTIONS:
        return Client(_encoded)
    if scheme in ("s3", "s3a") and _is_usual(options):
        return Client(_signed, os.environ.get("AWS_CA_BUNDLE"))
    return None


def _is_usual(options: Mapping[str, Any]) -> bool:
    """Tell whether a signed URL reads what s3fs would read under these options."""
    return (
        set(options) <= _S3_OPTIONS
        and set(options.get("client_kwargs") or {}) <= _S3_CLIENT
        and set(options.get("config_kwargs") or {}) <= _S3_CONFIG
    )


def _encoded(url: Url) -> str:
    fs, path = urls.filesystem(url)
    return str(fs.encode_url(path))


def _signed(url: Url) -> str:
    """Sign a URL of an object for an hour, by version 4 of Amazon's signatures.

    botocore would take version 2 for some regions and for endpoints that are not Amazon's; buckets
    made since June 2020 refuse that.
    """
    fs, path = urls.filesystem(url)
    if not fs.anon:
        fs.connect()
        events = fs.s3.meta.events
        events.register_first("choose-signer.s3", _by_version_4, unique_id="packio")
    return str(fs.sign(path, expiration=_SIGNED_FOR))


def _by_version_4(signature_version: str | None = None, **_: Any) -> str | None:
    """Choose how a URL is signed; how requests are signed stays as it is."""
    is_url = isinstance(signature_version, str) and signature_version.endswith("-query")
    return "s3v4-query" if is_url else None


class _Wanted(NamedTuple):
    """A range of an object, and what is known of the object."""

    start: int
    stop: int
    tag: str | None
    size: int | None


class Client:
    """Reads byte ranges. Safe in threads; a forked process makes connections of its own."""

    def __init__(self, address: Callable[[Url], str], certificates: str | None = None) -> None:
        self._address, self._certificates = address, certificates or None
        self._known: dict[str, tuple[str, float]] = {}  # object → its address, and until when
        self._tags: dict[str, str] = {}  # of objects that were read, if nobody knew their tags
        self._connected: tuple[int, Any] = (0, None)  # process, and its connections

    def know(self, url: Url) -> str:
        """Return the address of an object; one that was asked for within half an hour is kept."""
        name = os.fspath(url)
        address, until = self._known.get(name, ("", 0.0))
        if time.monotonic() > until:
            try:
                address = self._address(url)
            except Exception as error:  # no credentials, or none that sign
                raise RefusedError(f"{url}: {error}") from error
            self._known[name] = address, time.monotonic() + _SIGNED_FOR / 2
        return address

    def read(
        self, url: Url, start: int, stop: int, tag: str | None, size: int | None = None,
    ) -> bytes:  # fmt: skip
        """Read a range of an object, in several attempts if need be."""
        return urls.retried(lambda: self._read(url, _Wanted(start, stop, tag, size)))

    def _read(self, url: Url, wanted: _Wanted) -> bytes:
        try:
            return self._attempt(url, wanted)
        except PermissionError:  # the address or the credentials that signed it may have expired
            self._known.pop(os.fspath(url), None)
        try:
            return self._attempt(url, wanted)
        except PermissionError as error:
            raise RefusedError(f"{url}: {error}") from error

    def _attempt(self, url: Url, wanted: _Wanted) -> bytes:
        tag = wanted.tag or self._tags.get(os.fspath(url))
        headers = {
            "Range": f"bytes={wanted.start}-{wanted.stop - 1}", "Accept-Encoding": "identity",
        } | ({"If-Match": tag} if tag is not None else {})  # fmt: skip
        with _unsigned():
            answer = self._asked(url, headers)
            try:
                found = _check(url, answer, wanted._replace(tag=tag))
                body = _body(answer, wanted.stop - wanted.start)
                if tag is None and found is not None:
                    self._tags[os.fspath(url)] = found
                return body
            except BaseException:
                answer.close()  # what is left of the body would be the next request's answer
                raise
            finally:
                answer.release_conn()

    def _asked(self, url: Url, headers: Mapping[str, str]) -> Any:
        try:
            return self._connections().request(
                "GET", self.know(url), headers=headers, preload_content=False
            )
        except _urllib3().exceptions.SSLError as error:
            raise RefusedError(f"{url}: {_QUERY.sub('', str(error))}") from None

    def _connections(self) -> Any:
        process, connections = self._connected
        if process != os.getpid():
            urllib3 = _urllib3()
            tries = urllib3.Retry(total=None, connect=0, read=0, status=0, other=0, redirect=4)
            timeout = urllib3.Timeout(connect=_SILENCE / 3, read=_SILENCE)
            connections = urllib3.PoolManager(
                num_pools=64, maxsize=CONNECTIONS, timeout=timeout, retries=tries,
                ca_certs=self._certificates,
            )  # fmt: skip
            self._connected = os.getpid(), connections
        return connections


@contextlib.contextmanager
def _unsigned() -> Iterator[None]:
    """Leave signatures out of urllib3's errors: who reads a log could read the object with them."""
    try:
        yield
    except _urllib3().exceptions.HTTPError as error:
        raise OSError(_QUERY.sub("", str(error)) or type(error).__name__) from None


def _urllib3() -> Any:
    return registry.require("urllib3", "remote")


def _check(url: Url, answer: Any, wanted: _Wanted) -> str | None:
    """Check that an answer is the range that was asked for, of the object that was opened."""
    start, stop, tag, size = wanted
    status, headers = answer.status, answer.headers
    length = headers.get("Content-Length")
    if status == 206:
        given = headers.get("Content-Range", "")
        whole = given.rpartition("/")[2]
        if whole.isdigit() and size is not None and int(whole) != size:
            raise IntegrityError(replaced(url))
        if not given.startswith(f"bytes {start}-{stop - 1}/"):
            raise urls.LengthError(f"Content-Range {given!r} came for bytes {start}-{stop - 1}")
    elif status == 200 and not (start == 0 and length == str(stop)):
        raise ReadError(f"{url}: the server answers with whole objects, not with byte ranges")
    elif status != 200:
        raise _error(url, status, answer.reason)
    if length not in (None, str(stop - start)):
        raise urls.LengthError(f"{length} bytes came instead of {stop - start}")
    found = str(headers.get("ETag", ""))
    if tag is not None and found and found.removeprefix("W/") != tag:
        raise IntegrityError(replaced(url))
    return found if found.startswith('"') else None


def _error(url: Url, status: int, reason: str | None) -> Exception:
    text = f"HTTP status {status} {reason or ''}".rstrip()
    if status == 412:
        return IntegrityError(replaced(url))
    if status == 416:
        return IntegrityError(f"{url}: ends before the range that the index lists; {text}")
    if status in (404, 410):
        return FileNotFoundError(errno.ENOENT, text)
    if status in (401, 403):
        return PermissionError(errno.EACCES, text)
    if status in urls.BUSY or status >= 500:
        return _BusyError(text)
    return ReadError(f"{url}: {text}")


def replaced(url: Url) -> str:
    """Say that an object is another one by now."""
    return f"{url}: was replaced since the pack was opened; open the pack anew, or pack again"


def _body(answer: Any, length: int) -> bytes:
    """Read the body of an answer; give it up if it comes too slowly."""
    began, limit = time.monotonic(), _SILENCE + length / _SLOWEST
    parts, left = [], length
    while left:
        part = answer.read1(left)
        if not part:
            raise urls.LengthError(f"{length - left} bytes came instead of {length}")
        parts.append(part)
        left -= len(part)
        if left and time.monotonic() - began > limit:
            raise TimeoutError(f"{length - left} of {length} bytes came in {limit:.0f} seconds")
    return parts[0] if len(parts) == 1 else b"".join(parts)
