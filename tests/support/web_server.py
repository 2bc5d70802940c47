"""A web server of objects in memory, with byte ranges or without."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def _tagged(body: bytes) -> dict[str, str]:
    return {"ETag": f'"{hashlib.md5(body).hexdigest()}"'}  # noqa: S324 (no secret)


class WebServer(ThreadingHTTPServer):
    """Serves what is in `objects`, by path; nothing can be written, and folders are not listed.

    As a hub it also speaks as much of the Hugging Face Hub's protocol as reading a repository of
    data takes; `objects` are then the files of one repository, ``/datasets/OWNER/NAME/resolve/…``.
    `version` makes the headers that tell the version of an object, also of a range if `tells`.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.ranges = True
        self.is_hub = False
        self.version: Callable[[bytes], dict[str, str]] = _tagged
        self.tells = True
        self.log: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *_: object) -> None:
        """Say nothing: a client that has enough closes its connection."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: WebServer

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.server.is_hub and self.path.startswith("/api/"):
            self._answer_of_hub()
            return
        body = self.server.objects.get(urllib.parse.unquote(self.path.partition("?")[0]))
        asked = self.headers.get("Range", "")
        self.server.log.append(f"{self.command} {self.path} {asked}".strip())
        if body is None:
            self._answer(404, b"")
            return
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", asked) if self.server.ranges else None
        tag = self.server.version(body)
        if span is None:
            self._answer(200, body, tag)
            return
        first, last = int(span[1]), min(int(span[2] or len(body)), len(body) - 1)
        tag = tag if self.server.tells else {}
        tag["Content-Range"] = f"bytes {first}-{last}/{len(body)}"
        self._answer(206, body[first : last + 1], tag)

    def _answer_of_hub(self) -> None:
        """Facts of the repository, or its files below a path."""
        self.server.log.append(f"{self.command} {self.path}")
        path = urllib.parse.unquote(self.path.partition("?")[0])
        repository, _, below = path.removeprefix("/api").partition("/tree/main")
        files = f"{repository}/resolve/main"
        if not below and "/tree/" not in path:
            found: object = {"id": repository.removeprefix("/datasets/"), "sha": "0" * 40}
        else:
            found = [
                {"type": "file", "path": name[len(files) + 1 :], "size": len(body),
                 "oid": hashlib.sha1(body).hexdigest()}  # noqa: S324 (no secret)
                for name, body in self.server.objects.items()
                if name.rpartition("/")[0] == files + below
            ]  # fmt: skip
            if not found:
                self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
                return
        self._answer(200, json.dumps(found).encode(), {"Content-Type": "application/json"})

    do_HEAD = do_GET  # noqa: N815 (http.server's name)

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer(405, b"")

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(OSError):  # who asked has enough
                self.wfile.write(body)


@pytest.fixture
def web() -> Iterator[WebServer]:
    """A web server without objects."""
    with WebServer() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
