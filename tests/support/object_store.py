"""An S3 server behind a proxy with faults, as fixtures."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import random
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import fsspec
import pytest
import s3fs
from moto.server import ThreadedMotoServer

from packio.storage import urls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_numbers = itertools.count()  # of buckets: all servers of a process have the same ones


class Proxy(ThreadingHTTPServer):
    """Hands requests on to a server; some fail on their way there, or on their way back.

    The same request fails twice at most, unless `outage` says that it always does. Kinds of faults
    take turns: signed requests differ from run to run, and so would what is drawn by them.
    """

    daemon_threads = True
    faults = ("500", "503", "reset", "lost", "short", "shorter", "hang")

    def __init__(self, server: tuple[str, int]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.server, self._lock = server, threading.Lock()
        self.reset()

    def reset(self, rate: float = 0.0) -> None:
        """Forget everything; from now on so many of the requests fail."""
        self.rate = rate
        self.log: list[str] = []
        self.failed: list[str] = []
        self.outage: Callable[[str], str | None] = lambda _: None
        self.watch: Callable[[], None] = lambda: None
        self._seen: dict[str, int] = {}

    def fault(self, request: str) -> str | None:
        """What is to happen to a request; None: nothing."""
        with self._lock:
            self.log.append(request)
            seen = self._seen[request] = self._seen.get(request, 0) + 1
            fault = self.outage(request)
            draw = random.Random(f"{request} {seen}").random()
            if fault is None and seen % 3 and draw < self.rate:
                fault = self.faults[len(self.failed) % len(self.faults)]
                if fault == "hang" and "hang" in self.failed:  # one takes seconds
                    fault = "reset"
            if fault is not None:
                self.failed.append(fault)
            return fault

    def forward(self, method: str, path: str, headers: Any, body: bytes) -> Any:
        """The server's answer: status, headers, body."""
        connection = http.client.HTTPConnection(*self.server, timeout=600)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def make_bucket(self) -> None:
        """Make a new bucket, and use it."""
        self.bucket = f"bucket-{next(_numbers)}"
        self.forward("PUT", f"/{self.bucket}", {}, b"")

    def objects(self) -> dict[str, int]:
        """Name and size of every object in the bucket."""
        text = self.forward("GET", f"/{self.bucket}?list-type=2", {}, b"")[2].decode()
        found = re.findall(r"<Key>(.*?)</Key>.*?<Size>(\d+)</Size>", text, re.DOTALL)
        return {name: int(size) for name, size in found}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        request = f"{self.command} {self.path} {self.headers.get('Range', '')}".strip()
        fault = self.server.fault(request)
        if fault in ("500", "503"):
            code = {"500": "InternalError", "503": "SlowDown"}[fault]
            text = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>"
            self._answer(int(fault), [], b"" if self.command == "HEAD" else text.encode())
            return
        if fault == "hang":
            time.sleep(2.2)  # a little more than the client waits
        if fault in ("hang", "reset"):
            self.close_connection = True
            return
        kept = {n: v for n, v in self.headers.items() if n.lower() not in ("expect", "connection")}
        status, headers, answer = self.server.forward(self.command, self.path, kept, body)
        if self.command not in ("GET", "HEAD"):
            self.server.watch()
        if fault == "lost":
            self.close_connection = True
            return
        self._answer(status, headers, answer, fault)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 (http.server's names)

    def _answer(
        self, status: int, headers: list[tuple[str, str]], body: bytes, fault: str | None = None
    ) -> None:
        length = len(body)
        if fault in ("short", "shorter") and self.command == "GET" and "Range" in self.headers:
            body = body[: length // 2]
            length = length if fault == "short" else len(body)  # "shorter" looks like all there is
            self.close_connection = True
        if self.command == "HEAD":
            length = next((int(v) for n, v in headers if n.lower() == "content-length"), 0)
        self.send_response(status)
        hop = ("content-length", "transfer-encoding", "connection", "date", "server")
        for name, value in headers:
            if name.lower() not in hop:
                self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        with contextlib.suppress(OSError):  # who asked has given up
            self.wfile.write(body)


@pytest.fixture(scope="module")
def _servers() -> Iterator[Proxy]:
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    proxy = Proxy(moto.get_host_and_port())
    thread = threading.Thread(target=proxy.serve_forever, daemon=True)
    thread.start()
    yield proxy
    proxy.shutdown()
    proxy.server_close()
    moto.stop()


@pytest.fixture
def s3(_servers: Proxy, monkeypatch: pytest.MonkeyPatch) -> Proxy:
    """An S3 server with an empty bucket, and nothing that fails yet; only packio tries again."""
    options = {
        "endpoint_url": f"http://127.0.0.1:{_servers.server_address[1]}",
        "key": "nobody",
        "secret": "nothing",
        "client_kwargs": {"region_name": "us-east-1"},
        "config_kwargs": {"connect_timeout": 2, "read_timeout": 2, "retries": {"max_attempts": 0}},
    }
    monkeypatch.setenv("FSSPEC_S3", json.dumps(options))  # for processes that are spawned
    monkeypatch.setitem(fsspec.config.conf, "s3", options)
    monkeypatch.setattr(urls, "_WAITS", (0.01,) * 4)
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    _servers.reset()
    _servers.make_bucket()
    return _servers
