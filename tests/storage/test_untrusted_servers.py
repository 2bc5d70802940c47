"""Web servers that send what nobody asked for; credentials, and selections that others made."""

from __future__ import annotations

import base64
import copy
import gzip
import os
import pathlib
import pickle
import shutil
import threading
import warnings
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import web_server
from PIL import Image
from web_server import WebServer, web

import packio
from packio.errors import NotAPackError, OptionError, ReadError
from packio.storage import stores, urls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["web"]

SECRET = b"hush-hush"


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A pack of four images in two classes."""
    folder = tmp_path_factory.mktemp("untrusted")
    for number in range(4):
        path = folder / "photos" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((30, 40, 3), 60 * number, np.uint8)).save(path)
    return packio.pack(folder / "photos", folder / "x.tfrecord").out


# Hostile servers


class _Hostile(ThreadingHTTPServer):
    """Announces 1,000 bytes, and answers GET by `answer`.

    Attributes:
        sent: Bytes of bodies that were taken from it.
        asked: Requests so far.
    """

    daemon_threads = True

    def __init__(self, answer: Callable[[_Handler], None]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer, self.sent, self.asked = answer, 0, 0
        self.url = f"http://127.0.0.1:{self.server_address[1]}/x.tar"

    def handle_error(self, *_: object) -> None:
        """Say nothing of clients that have enough."""


class _Handler(BaseHTTPRequestHandler):
    server: _Hostile

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.head(200, {"Content-Length": "1000", "ETag": '"1"'})

    def do_GET(self) -> None:
        self.server.asked += 1
        self.server.answer(self)

    def head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def body(self, data: bytes) -> None:
        self.wfile.write(data)
        self.server.sent += len(data)


@pytest.fixture
def hostile() -> Iterator[Callable[[Callable[[_Handler], None]], _Hostile]]:
    """Makes a server that answers so."""
    servers: list[_Hostile] = []

    def made(answer: Callable[[_Handler], None]) -> _Hostile:
        servers.append(_Hostile(answer))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return servers[-1]

    yield made
    for server in servers:
        server.shutdown()
        server.server_close()


def _endless(status: int, headers: dict[str, str]) -> Callable[[_Handler], None]:
    def answer(handler: _Handler) -> None:
        handler.head(status, headers)
        while handler.server.sent < 1 << 28:
            handler.body(bytes(1 << 16))

    return answer


@pytest.mark.parametrize(
    ("status", "headers"),
    [(200, {}), (206, {}), (206, {"Content-Range": "bytes 0-1000/1000"}),
     (200, {"Content-Type": "text/html"})],
)  # fmt: skip
def test_no_more_of_an_index_is_read_than_was_asked_for(
    status: int, headers: dict[str, str], hostile: Any
) -> None:
    server = hostile(_endless(status, headers))
    with pytest.raises(ReadError, match=r"more than 1,000 bytes|not which"):
        packio.open(server.url)
    assert server.sent < 1 << 24  # what buffers of sockets take
    assert server.asked == 1


def test_a_compressed_index_is_not_unpacked(hostile: Any) -> None:
    bomb = gzip.compress(bytes(1 << 26), 9)

    def answer(handler: _Handler) -> None:
        handler.head(206, {"Content-Encoding": "gzip", "Content-Length": str(len(bomb))})
        handler.body(bomb)

    with pytest.raises(ReadError, match=r"gzip data|more than"):
        packio.open(hostile(answer).url)


def test_an_index_of_unknown_length_is_read_to_a_limit(
    hostile: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(urls, "MOST_UNASKED", 1 << 20)
    monkeypatch.setattr(_Handler, "do_HEAD", lambda handler: handler.head(200, {}))
    server = hostile(_endless(200, {}))
    with pytest.raises(ReadError, match="more than 1,048,576 bytes"):
        packio.open(server.url)
    assert server.sent < 1 << 25


def test_an_index_without_a_version_must_be_of_plausible_length(
    hostile: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        _Handler, "do_HEAD", lambda handler: handler.head(200, {"Content-Length": str(1 << 40)})
    )
    server = hostile(_endless(200, {}))
    with pytest.raises(ReadError, match="tells no version"):
        packio.open(server.url)
    assert server.sent == 0


def test_an_index_that_drips_is_given_up(hostile: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urls, "ANSWER", 0.2)
    monkeypatch.setattr(urls, "_WAITS", ())
    over = threading.Event()

    def answer(handler: _Handler) -> None:
        handler.head(206, {"Content-Length": "1000", "Content-Range": "bytes 0-999/1000"})
        while not over.wait(0.02):
            handler.body(b"\0")

    with pytest.raises(ReadError, match=r"no answer in|of 1000 bytes came in"):
        packio.open(hostile(answer).url)
    over.set()


def test_a_list_of_a_folder_that_never_ends_is_given_up(
    hostile: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(urls, "MOST_UNASKED", 1 << 20)
    server = hostile(_endless(200, {"Content-Type": "text/html"}))
    with pytest.raises(ReadError, match="more than"):
        stores.open_url(urls.Url(server.url)).list(deep=False)
    assert server.sent < 1 << 25


def test_redirects_in_a_loop_are_told(hostile: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def around(handler: _Handler) -> None:
        handler.head(302, {"Location": handler.path, "Content-Length": "0"})

    monkeypatch.setattr(_Handler, "do_HEAD", around)
    with pytest.raises(ReadError, match="redirects lead around in a loop"):
        packio.open(hostile(around).url)


def test_data_within_a_url_is_no_pack() -> None:
    with pytest.raises(OptionError, match="data within a URL"):
        packio.open("data:/")


# Credentials


class _Guarded(web_server._Handler):
    def do_GET(self) -> None:  # noqa: N802 (http.server's name)
        told = self.headers.get("Authorization")
        if told == "Basic " + base64.b64encode(b"me:" + SECRET).decode():
            super().do_GET()
        else:
            self._answer(401, b"", {"WWW-Authenticate": "Basic"})

    do_HEAD = do_GET  # noqa: N815 (http.server's name)


@pytest.fixture
def guarded(web: WebServer, pack: pathlib.Path) -> str:
    """URL, with user and password, of a pack that the server gives to nobody else."""
    web.RequestHandlerClass = _Guarded
    for path in pack.parent.glob(f"{pack.name}*"):
        web.objects[f"/{path.name}"] = path.read_bytes()
    return web.url.replace("://", f"://me:{SECRET.decode()}@") + f"/{pack.name}"


@pytest.mark.parametrize("scheme", ["s3", "s3a", "gs", "simplecache::s3"])
def test_credentials_in_the_url_of_a_bucket_are_refused_and_not_shown(
    scheme: str, tmp_path: pathlib.Path
) -> None:
    url = f"{scheme}://AKIAUSER:SECRETKEY@bucket/x.tar"
    for call in (packio.open, packio.PackDataset, lambda u: packio.pack(u, tmp_path / "o.tar")):
        with pytest.raises(OptionError, match="bucket holds no credentials") as caught:
            call(url)
        assert "SECRETKEY" not in repr(caught.value)


def test_credentials_are_in_nothing_that_is_shown_or_kept(
    guarded: str, tmp_path: pathlib.Path
) -> None:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        ds = packio.PackDataset(
            guarded, crop=packio.CenterCrop(16), local_copy=tmp_path / "copies", local_bytes=1 << 20
        )
        assert len(ds[0]) == 2
        packio.select(guarded, "class = 'a'", out=tmp_path / "a.selection")
        packio.reindex(guarded, index=tmp_path / "again.packio")
        with packio.open(guarded, index=tmp_path / "again.packio") as again:
            shown = [repr(ds), repr(ds.pack), str(ds.pack.path), repr(ds.pack.path), repr(again)]
            pickles = [pickle.dumps(ds), pickle.dumps(again), pickle.dumps(ds.pack)]
    shown += [str(warning.message) for warning in warned]
    with pytest.raises(NotAPackError) as caught:
        packio.open(guarded.replace(".tfrecord", "-missing"))
    shown += [str(caught.value), repr(caught.value)]
    assert SECRET not in b"".join(pickles) + "".join(shown).encode()
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or SECRET not in path.read_bytes(), path


def test_cache_shows_no_credentials(
    guarded: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from packio.cli.checking import cache

    packio.PackDataset(guarded, local_copy=tmp_path, local_bytes=1 << 20)
    cache(local_copy=[tmp_path], clear=False, as_json=False)
    assert "samples of http" in (said := capsys.readouterr().out)
    assert SECRET.decode() not in said


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_workers_have_the_credentials_that_they_need(guarded: str, method: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fsspec reads what urllib3 is refused
        ds = packio.PackDataset(guarded, crop=packio.CenterCrop(16))
        assert SECRET in bytes(ForkingPickler.dumps(ds))
        assert SECRET.decode() in os.fspath(copy.deepcopy(ds).pack.path)
        if method == "fork":
            return
        loader = torch.utils.data.DataLoader(
            ds, 2, num_workers=1, multiprocessing_context=method, collate_fn=packio.collate
        )
        assert sum(len(images) for images, _ in loader) == 4


def test_a_pickle_without_credentials_says_that_it_is_refused(guarded: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        text = pickle.dumps(packio.open(guarded))
    with pytest.raises(ReadError, match="401"):
        len(pickle.loads(text))


def test_a_url_with_a_query_is_refused_without_it(web: WebServer) -> None:
    for opening in (packio.open, packio.reindex):
        with pytest.raises(OptionError, match=r"x\.tar: has a query") as caught:
            opening(f"{web.url}/x.tar?token={SECRET.decode()}")
        assert SECRET.decode() not in str(caught.value)
    assert web.log == []


def test_urls_that_differ_in_credentials_are_two() -> None:
    one, other = urls.Url("https://a:b@h/x"), urls.Url("https://c:d@h/x")
    assert one != other
    assert len({one, other, urls.Url("https://a:b@h/x")}) == 2
    assert str(one) == str(other) == "https://h/x"
    assert os.fspath(one.parent / "y") == "https://a:b@h/y"
    assert one.with_name("z") == urls.Url("https://a:b@h/z")


# Selections that others made


@pytest.fixture
def served(web: WebServer, pack: pathlib.Path) -> str:
    for path in pack.parent.glob(f"{pack.name}*"):
        web.objects[f"/{path.name}"] = path.read_bytes()
    return f"{web.url}/{pack.name}"


def test_a_selection_that_was_made_here_opens(served: str, tmp_path: pathlib.Path) -> None:
    packio.select(served, "class = 'a'", out=tmp_path / "a.selection")
    with packio.open(tmp_path / "a.selection") as chosen:
        assert [sample.key for sample in chosen] == ["a/0.jpg", "a/2.jpg"]


def test_a_selection_from_elsewhere_asks_no_url(
    served: str, web: WebServer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "a.selection"
    packio.select(served, "class = 'a'", out=out)
    monkeypatch.setenv("PACKIO_CACHE_DIR", str(tmp_path / "of somebody else"))
    web.log.clear()
    with pytest.raises(NotAPackError, match=r"asks no URL.*packio select http"):
        packio.open(out)
    assert web.log == []
    with packio.open(out, pack=served) as chosen:
        assert len(chosen) == 2
    packio.select(served, keys_of=out, out=tmp_path / "mine.selection")
    with packio.open(tmp_path / "mine.selection") as mine:
        assert [sample.key for sample in mine] == ["a/0.jpg", "a/2.jpg"]


@pytest.mark.parametrize(
    "place", ["data:/", "filecache::http://127.0.0.1:9/x", "s3://b/x", "http:/127.0.0.1:9/x"]
)
def test_no_kind_of_url_in_a_selection_is_asked(
    place: str, pack: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tmp_path / pack.name
    for path in pack.parent.glob(f"{pack.name}*"):
        shutil.copy(path, tmp_path)
    out = tmp_path / "a.selection"
    packio.select(whole, "class = 'a'", out=out)
    content = out.read_bytes()
    size = int.from_bytes(content[:8], "little")
    head = content[8 : 8 + size].rstrip().replace(
        f'\\"pack\\":\\"{pack.name}\\"'.encode(), f'\\"pack\\":\\"{place}\\"'.encode()
    )  # fmt: skip
    head = head.ljust(-(-len(head) // 8) * 8)
    body = content[8 + size :]
    out.write_bytes(len(head).to_bytes(8, "little") + head + body)
    monkeypatch.setattr(stores, "open_url", lambda *_: pytest.fail("asked"))
    with suppress(packio.IntegrityError), pytest.raises(NotAPackError, match="asks no URL"):
        packio.open(out)
