"""An S3 server and a web server for the tests of containers at URLs."""

from object_store import _servers, s3
from web_server import web

__all__ = ["_servers", "s3", "web"]
