"""An S3 server for the tests of storage."""

from object_store import _servers, s3

__all__ = ["_servers", "s3"]
