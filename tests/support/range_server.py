"""A web server of a folder that answers byte ranges, and whose answers a test can spoil."""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class RangeServer(ThreadingHTTPServer):
    """Serves the files of a folder.

    Attributes:
        fault: Path and (start, stop) of a GET of a range → what goes wrong with it; None: nothing.
        asked: Path and (start, stop) of each GET of a range so far.
        held: Is called before a range is answered.
        tags: Whether versions are told by entity tags, or only by a date that never changes.
    """

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.fault: Callable[[str, tuple[int, int]], str | None] = lambda *_: None
        self.held: Callable[[], None] = lambda: None
        self.asked: list[tuple[str, tuple[int, int]]] = []
        self.tags = True

    @property
    def url(self) -> str:
        """URL of the folder."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: RangeServer

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._serve()

    def do_GET(self) -> None:
        self._serve()

    def _serve(self) -> None:
        path = self.server.folder / urllib.parse.unquote(self.path).lstrip("/")
        if not path.is_file():
            self._answer(404, b"")
            return
        data = path.read_bytes()
        tag = f'"{hashlib.sha256(data).hexdigest()[:16]}"'
        given = self.headers.get("Range")
        if given is None:
            self._answer(200, data, ETag=tag)
            return
        first, _, last = given.removeprefix("bytes=").partition("-")
        start, stop = int(first), int(last) + 1 if last else len(data)
        self.server.asked.append((self.path, (start, stop)))
        self.server.held()
        self._range(data, tag, start, stop)

    def _range(self, data: bytes, tag: str, start: int, stop: int) -> None:
        fault = self.server.fault(self.path, (start, stop))
        shown, body = f"bytes {start}-{stop - 1}/{len(data)}", data[start:stop]
        if fault is not None and fault.isdigit():
            self._answer(int(fault), b"no")
        elif fault == "whole":
            self._answer(200, data, ETag=tag)
        elif fault == "elsewhere":
            self._answer(206, body, **{"Content-Range": f"bytes {start + 1}-{stop}/{len(data)}"})
        elif fault == "drip":
            self._head(206, len(body), {"Content-Range": shown, "ETag": tag})
            for at in range(len(body)):
                time.sleep(0.02)
                with contextlib.suppress(OSError):
                    self.wfile.write(body[at : at + 1])
        elif fault == "reset":
            self.close_connection = True
        elif fault == "short":
            self._head(206, len(body), {"Content-Range": shown, "ETag": tag})
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
        elif (
            fault != "no If-Match" and self.server.tags and self.headers.get("If-Match", tag) != tag
        ):
            self._answer(412, b"")
        else:
            self._answer(206, body, **{"Content-Range": shown, "ETag": tag})

    def _head(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        if not self.server.tags:
            headers = {**headers, "Last-Modified": "Sat, 01 Jan 2000 00:00:00 GMT"}
            headers.pop("ETag", None)
        for name, value in {**headers, "Content-Length": str(length)}.items():
            self.send_header(name, value)
        self.end_headers()

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self._head(status, len(body), {"Accept-Ranges": "bytes", **headers})
        if self.command != "HEAD":
            with contextlib.suppress(OSError):  # who asked has given up
                self.wfile.write(body)


@pytest.fixture
def web(tmp_path: Path) -> Iterator[RangeServer]:
    """A web server of an empty folder."""
    folder = tmp_path / "web"
    folder.mkdir()
    server = RangeServer(folder)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
