"""A gallery of a whole pack, of any size, by a server on this machine: thumbnails when asked for.

Only 127.0.0.1 is listened on, every address begins with a secret, and no other name of the host is
answered, so that neither other users nor pages of other sites can ask.
"""

from __future__ import annotations

import functools
import json
import secrets
import sys
import threading
import urllib.parse
from collections.abc import Callable, Iterable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from packio.datasets.selection import iterate_selected
from packio.errors import CannotCreateError, OptionError, PackioError
from packio.images.dct import as_file
from packio.inspecting.gallery import concatenate, make_entry, make_values, media_of
from packio.inspecting.pages import make_page, readable
from packio.packs import opening
from packio.system import processors
from packio.system.pools import ThreadPool
from packio.system.quantities import pluralize

HOST = "127.0.0.1"
_MOST = 200  # samples of an answer
_FILTERS = 8  # results of filters that are kept


class GalleryServer:
    """A server of a gallery; a context manager, which listens from its beginning to its end."""

    def __init__(
        self, pack: opening.Pack, *, classes: Iterable[str] | None = None,
        split: str | None = None, size: int = 128, port: int = 0,
    ) -> None:  # fmt: skip
        """Listen on a port of 127.0.0.1 (0: one that is free), as `write_contact_sheet` shows.

        The pack stays open as long as the server is used.
        """
        self._pack, self._size = pack, size
        self._classes = None if classes is None else tuple(classes)
        self._split = split
        self._samples = self._find("", "", "")
        self._filtered = functools.lru_cache(_FILTERS)(self._find)
        self._finding = threading.Lock()  # one filter at a time: each goes through all keys
        self._pool = ThreadPool(min(8, processors.usable()), "packio-gallery")
        token = secrets.token_urlsafe(16)
        try:
            self.server = _Server((HOST, port), functools.partial(_Handler, self, f"/{token}/"))
        except OSError as error:
            raise CannotCreateError(f"port {port} of {HOST}: {error.strerror}") from error
        self.url = f"http://{HOST}:{self.server.server_port}/{token}/"

    def serve(self) -> None:
        """Answer until `close` is called, or Ctrl-C is pressed."""
        self.server.serve_forever(poll_interval=0.2)

    def close(self) -> None:
        """Stop listening; what has begun is ended, what has not is left."""
        self.server.closing = True
        self.server.server_close()
        self._pool.shutdown(cancel_futures=True)

    def stop(self) -> None:
        """End `serve`, from another thread."""
        self.server.shutdown()

    def __enter__(self) -> GalleryServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def page(self) -> bytes:
        """The page, which asks for all else."""
        said = pluralize(len(self._samples), "sample")
        values = make_values(self._pack, said, self._size, samples=None)
        return make_page(Path(__file__).parent, values, served=True).encode()

    def samples(self, asked: dict[str, str]) -> dict[str, Any]:
        """Some samples, and how many there are in all.

        Asked is for ``index``; or ``class`` and ``split`` (numbers, or empty), ``q`` (a part of the
        key), ``first`` and ``count``.
        """
        if "index" in asked:
            return {"total": 1, "samples": self._entries([self._index(asked)])}
        with self._finding:
            wanted = asked.get("class", ""), asked.get("split", ""), asked.get("q", "").lower()
            found = self._pool.submit(self._filtered, *wanted).result()
        first = max(0, _number(asked.get("first", "0")))
        count = min(_MOST, max(0, _number(asked.get("count", "60"))))
        shown = found[first : first + count].tolist()
        return {"total": len(found), "samples": self._entries(shown)}

    def image(self, asked: dict[str, str]) -> tuple[str, bytes]:
        """Media type and bytes of an image, as they were packed."""
        (row,) = self._pack.rows([self._index(asked)])
        if (media := media_of(row)) is None:
            raise OptionError(f"{row.encoding}, orientation {row.orientation}: not for browsers")
        data = self._pool.submit(self._pack.read, row).result()
        return media, as_file(data, row.encoding)

    def _index(self, asked: dict[str, str]) -> int:
        index = _number(asked.get("index", ""))
        at = int(np.searchsorted(self._samples, index))
        if at >= len(self._samples) or self._samples[at] != index:
            raise OptionError(f"no sample {index} here")
        return index

    def _entries(self, indices: list[int]) -> list[dict[str, Any]]:
        return list(self._pool.map(lambda i: make_entry(self._pack, i, self._size), indices))

    def _find(self, one: str, split: str, text: str) -> np.ndarray:
        """Positions of the samples of a class and split whose key has a text: (n,) int64."""
        pack, classes, wanted = self._pack, self._classes, self._split
        if one:
            name = _choose_name(pack.classes, one, "class")
            classes = (name,) if classes is None or name in classes else ()
        if split:
            chosen = _choose_name(pack.metadata.get("splits", []), split, "split")
            if wanted not in (None, chosen):
                return np.zeros(0, np.int64)
            wanted = chosen
        found = concatenate(iterate_selected(pack, classes, wanted))
        if text:
            has = np.zeros(len(found), bool)
            for at, i in enumerate(found.tolist()):
                has[at] = text in readable(pack.key_bytes(i)).lower()
                if self.server.closing:
                    break
            found = found[has]
        return found


def _choose_name(names: Sequence[str], number: str, what: str) -> str:
    if _number(number) >= len(names):
        raise OptionError(f"no {what} {number}")
    return names[int(number)]


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > 18:
        raise OptionError(f"{text!r}: expected a number")
    return int(text)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    closing = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        # `_Handler` answers with the errors of the pack: an OSError is of a client that has left
        if not self.closing and not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """Answers requests below a root, a secret path."""

    protocol_version = "HTTP/1.1"
    timeout = 60  # seconds, of a connection that says nothing

    def __init__(self, gallery: GalleryServer, root: str, *connection: Any) -> None:
        self._gallery, self._root = gallery, root
        self._answers: dict[str, Callable[[dict[str, str]], tuple[str, bytes]]] = {
            "": lambda _: ("text/html; charset=utf-8", gallery.page()),
            "samples": lambda asked: (
                "application/json", json.dumps(gallery.samples(asked)).encode()
            ),
            "image": gallery.image,
        }  # fmt: skip
        super().__init__(*connection)

    def do_GET(self) -> None:
        place, _, query = self.path.partition("?")
        host, root = self._gallery.url.split("/")[2], self._root
        known = place.startswith(root) and place[len(root) :] in self._answers
        if self.headers.get("Host") != host or not known:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"not found")
            return
        asked = dict(urllib.parse.parse_qsl(query))
        try:
            kind, data = self._answers[place[len(root) :]](asked)
        except PackioError as error:
            text = readable(str(error)).encode()
            self._answer(HTTPStatus.BAD_REQUEST, "text/plain; charset=utf-8", text)
        except Exception as error:  # noqa: BLE001 (a damaged pack, perhaps: the page tells it)
            if self._gallery.server.closing:
                self.close_connection = True
                return
            text = readable(f"{type(error).__name__}: {error}").encode()
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain; charset=utf-8", text)
        else:
            self._answer(HTTPStatus.OK, kind, data)

    def do_HEAD(self) -> None:
        self.do_GET()  # _answer leaves the body out

    def _answer(self, status: HTTPStatus, kind: str, data: bytes) -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind), ("Content-Length", str(len(data))),
            ("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"), ("Cross-Origin-Resource-Policy", "same-origin"),
        ):  # fmt: skip
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass
