"""Objects of S3, and of services that speak its protocol, by plain HTTP.

The settings are those of s3fs (``FSSPEC_S3`` and fsspec's files), then AWS's environment, then what
botocore finds (profiles, roles of machines). URLs are signed for an hour (AWS Signature Version 4,
in the query; version 2 is refused by buckets made since June 2020), so that a request takes no
time for signing.

Source: Amazon S3 API Reference, GetObject, HeadObject, ListObjectsV2.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote_plus, urlencode
from xml.etree import ElementTree as ET

from packio import registry
from packio.storage import urls
from packio.storage.fsspec_store import options
from packio.storage.http_store import HttpStore, body, failure
from packio.storage.remote_store import index_by_name
from packio.storage.store import Facts
from packio.storage.urls import Url
from packio.system import locks

_SIGNED_FOR = 3600  # seconds
_MOST_SIGNED = 10_000  # addresses that are kept
# Options of s3fs with which a signed URL reads what s3fs would read.
_OPTIONS = frozenset({
    "anon", "endpoint_url", "key", "secret", "token", "profile", "use_ssl", "client_kwargs",
    "config_kwargs", "default_block_size", "default_fill_cache", "default_cache_type",
    "max_concurrency", "use_listings_cache", "skip_instance_cache", "cache_regions",
})  # fmt: skip
_CLIENT = frozenset({"region_name", "endpoint_url", "aws_access_key_id",
                     "aws_secret_access_key", "aws_session_token"})  # fmt: skip
_CONFIG = frozenset({"connect_timeout", "read_timeout", "retries", "max_pool_connections",
                     "signature_version", "s3", "region_name"})  # fmt: skip


def reads(options: Mapping[str, Any]) -> bool:
    """Tell whether a signed URL reads what s3fs would read under these options."""
    return (
        set(options) <= _OPTIONS
        and set(options.get("client_kwargs") or {}) <= _CLIENT
        and set(options.get("config_kwargs") or {}) <= _CONFIG
    )


class S3Store(HttpStore):
    """Objects of a bucket, below a prefix."""

    lists_folders = True
    advice = f"; {urls.ENDPOINT}"

    @property
    def certificates(self) -> str | None:  # type: ignore[override]  # read only
        """File of the certificates to trust; None: the system's."""
        return os.environ.get("AWS_CA_BUNDLE") or None

    def headers(self) -> dict[str, str]:
        return {}

    def address(self, method: str, url: Url, query: str) -> str:
        """Sign the address of an object, or take the one that was signed in the last half hour."""
        return self._service.address(method, os.fspath(url), query)

    @locks.cached_property
    def _service(self) -> _Service:
        """What the settings say now."""
        env = {n: v for n, v in os.environ.items() if n.startswith("AWS_")}
        return _made(json.dumps([options("s3", "s3a"), env], sort_keys=True, default=str))

    def has_moved(self, url: Url, answer: Any) -> bool:
        """See `HttpStore.has_moved`: a bucket is of another region, or signatures have expired."""
        region = answer.headers.get("x-amz-bucket-region")
        return answer.status in (301, 307, 400, 401, 403) and self._service.forget(
            os.fspath(url), region, is_refused=answer.status in (401, 403)
        )

    def facts(self, name: str) -> Facts | None:
        """See `Store.facts`; a bucket is no file."""
        is_bucket = not split_url(os.fspath(self._url(name)))[1]
        return Facts(-1, is_file=False) if is_bucket else super().facts(name)

    def list(self, *, deep: bool = True) -> dict[str, Facts]:
        bucket, key = split_url(os.fspath(self.root))
        top = f"{key.rstrip('/')}/" if key else ""
        asked = {"encoding-type": "url", "list-type": "2", "prefix": top}
        asked |= {} if deep else {"delimiter": "/"}
        found: dict[str, Facts] = {}
        while True:
            page = urls.retry(functools.partial(self._page, Url(f"s3://{bucket}"), asked))
            is_quoted = page.findtext("{*}EncodingType") == "url"
            for entry in page.iterfind("{*}Contents"):
                name = entry.findtext("{*}Key", "")
                found[unquote_plus(name) if is_quoted else name] = _facts(entry)
            token = page.findtext("{*}NextContinuationToken")
            if not token or page.findtext("{*}IsTruncated") != "true":
                return index_by_name(found.items(), top) if top else found
            asked["continuation-token"] = token

    def _page(self, bucket: Url, asked: Mapping[str, str]) -> ET.Element:
        """One page of a list; an empty one of a bucket that is not there."""
        with self.request("GET", bucket, query=urlencode(asked, quote_via=quote)) as answer:
            if answer.status == 404:
                return ET.Element("missing")
            if answer.status != 200:
                raise failure(bucket, answer)
            try:
                return ET.fromstring(body(bucket, answer, None))  # noqa: S314 (no more than 64 MB; expat limits what it unfolds)
            except ET.ParseError as error:
                raise urls.LengthError(f"a list that is cut off: {error}") from error


def _facts(entry: ET.Element) -> Facts:
    size, tag = int(entry.findtext("{*}Size", "0")), entry.findtext("{*}ETag", "")
    stamp = f"ETag {tag}" if tag else f"LastModified {entry.findtext('{*}LastModified')}"
    return Facts(size, f"{stamp} {size}", tag if tag.startswith('"') else "")


def split_url(url: str) -> tuple[str, str]:
    """Bucket and key."""
    bucket, _, key = url.partition("://")[2].partition("/")
    return bucket, key


class _Service:
    """Addresses under some settings."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        client, config = options.get("client_kwargs") or {}, options.get("config_kwargs") or {}
        session = registry.require("botocore.session", "remote").Session(options.get("profile"))
        told = registry.require("botocore.configprovider", "remote").ConfiguredEndpointProvider(
            session.full_config, session.get_scoped_config(), "s3"
        )
        self._region: str = (
            client.get("region_name") or config.get("region_name")
            or session.get_config_variable("region") or "us-east-1"
        )  # fmt: skip
        self._endpoint = (
            options.get("endpoint_url") or client.get("endpoint_url") or told.provide() or ""
        )
        if self._endpoint and not self._endpoint.startswith(("http://", "https://")):
            raise ValueError(f"Invalid endpoint: {self._endpoint}")
        self._scheme = "https" if options.get("use_ssl", True) else "http"
        self._style = (config.get("s3") or {}).get("addressing_style", "auto")
        key = options.get("key") or client.get("aws_access_key_id")
        secret = options.get("secret") or client.get("aws_secret_access_key")
        if key and secret:
            token = options.get("token") or client.get("aws_session_token")
            session.set_credentials(key, secret, token)
        self._credentials = None if options.get("anon") else session.get_credentials()
        if self._credentials is None and not options.get("anon"):
            raise registry.require("botocore.exceptions", "remote").NoCredentialsError
        self._regions: dict[str, str] = {}  # of buckets that are elsewhere
        self._signed: dict[tuple[str, str, str], tuple[str, float]] = {}  # and until when

    def address(self, method: str, url: str, query: str) -> str:
        name = method, url, query
        address, until = self._signed.get(name, ("", 0.0))
        if time.monotonic() > until:
            address = self._sign(method, *split_url(url), query)
            if len(self._signed) >= _MOST_SIGNED:  # as of a folder of images
                self._signed.clear()
            self._signed[name] = address, time.monotonic() + _SIGNED_FOR / 2
        return address

    def _sign(self, method: str, bucket: str, key: str, query: str) -> str:
        region = self._regions.get(bucket, self._region)
        top = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
        service = self._endpoint.rstrip("/") or f"{self._scheme}://s3.{region}.{top}"
        path = quote(key, safe="/-_.~")
        is_host = "." not in bucket and self._style != "path" and not self._endpoint
        if is_host or self._style == "virtual":
            scheme, _, host = service.partition("://")
            address = f"{scheme}://{bucket}.{host}/{path}"
        else:
            address = f"{service}/{bucket}/{path}" if path else f"{service}/{bucket}"
        request = registry.require("botocore.awsrequest", "remote").AWSRequest(
            method, f"{address}?{query}" if query else address
        )
        if self._credentials is not None:
            registry.require("botocore.auth", "remote").S3SigV4QueryAuth(
                self._credentials.get_frozen_credentials(), "s3", region, expires=_SIGNED_FOR
            ).add_auth(request)
        return str(request.url)

    def forget(self, url: str, region: str | None, *, is_refused: bool) -> bool:
        """Sign anew; whether that may help."""
        bucket, _ = split_url(url)
        is_elsewhere = region not in (None, self._regions.get(bucket, self._region))
        if region is not None and is_elsewhere:
            self._regions[bucket] = region
        if is_elsewhere or is_refused:  # credentials, or what they signed, may have expired
            for name in [name for name in list(self._signed) if split_url(name[1])[0] == bucket]:
                self._signed.pop(name, None)
        return is_elsewhere or is_refused


@functools.lru_cache(16)  # forked processes have their parent's
def _made(settings: str) -> _Service:
    return _Service(json.loads(settings)[0])
