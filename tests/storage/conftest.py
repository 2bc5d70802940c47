"""Servers for the tests of storage: S3's protocol, and plain byte ranges; and a cache for each."""

from caching import own_cache
from far_index import by_blocks, made, url
from object_store import _servers, s3
from range_server import web

__all__ = ["_servers", "by_blocks", "made", "own_cache", "s3", "url", "web"]
