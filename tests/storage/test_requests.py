"""Byte ranges by plain HTTP: what a server may answer, and what becomes of it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import threading
import traceback
import warnings
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import fsspec
import pytest

import packio
from packio.errors import IntegrityError, ReadError
from packio.packs import braces
from packio.storage import requests, urls
from packio.storage.remote_files import RemoteFiles
from packio.storage.requests import Client
from packio.storage.urls import Url

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable

    from object_store import Proxy
    from range_server import RangeServer

DATA = bytes(range(256)) * 40


@pytest.fixture(autouse=True)
def _quick(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACKIO_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(urls, "_WAITS", (0.01,) * 4)


def _serve(web: RangeServer) -> tuple[Client, Url]:
    (web.folder / "x.bin").write_bytes(DATA)
    client = requests.client(Url(web.url))
    assert client is not None
    return client, Url(f"{web.url}/x.bin")


@pytest.mark.parametrize(("start", "stop"), [(0, 1), (0, len(DATA)), (100, 5000), (10239, 10240)])
def test_a_range_is_the_bytes_that_were_asked_for(start: int, stop: int, web: RangeServer) -> None:
    client, url = _serve(web)
    assert client.read(url, start, stop, None) == DATA[start:stop]


@pytest.mark.parametrize("fault", ["500", "503", "429", "408", "reset", "short", "elsewhere"])
def test_what_may_pass_is_tried_again(fault: str, web: RangeServer) -> None:
    client, url = _serve(web)
    web.fault = lambda *_: fault if len(web.asked) < 4 else None
    assert client.read(url, 10, 500, None) == DATA[10:500]
    assert len(web.asked) == 4
    web.fault = lambda *_: fault
    with pytest.raises(Exception, match=r".") as error:
        client.read(url, 10, 500, None)
    assert not isinstance(error.value, IntegrityError)
    assert len(web.asked) == 4 + 5


@pytest.mark.parametrize(
    ("fault", "kind", "text"),
    [
        ("whole", ReadError, "not with byte ranges"),
        ("412", IntegrityError, "was replaced"),
        ("416", IntegrityError, "ends before"),
        ("404", FileNotFoundError, "404"),
        ("400", ReadError, "400"),
        ("403", requests.RefusedError, "403"),
    ],
)
def test_what_would_not_pass_is_told_at_once(
    fault: str, kind: type[Exception], text: str, web: RangeServer
) -> None:
    client, url = _serve(web)
    web.fault = lambda *_: fault
    with pytest.raises(kind, match=text):
        client.read(url, 10, 500, None)
    assert len(web.asked) <= 2  # a refusal may come of a signature that has expired


@pytest.mark.parametrize("fault", [None, "no If-Match"])
def test_a_replaced_object_is_an_error(fault: str | None, web: RangeServer) -> None:
    client, url = _serve(web)
    tag = urls.info(url)["ETag"]  # type: ignore[index]  # an object that is there
    assert client.read(url, 0, 9, tag) == DATA[:9]
    (web.folder / "x.bin").write_bytes(DATA[::-1])
    web.fault = lambda *_: fault
    with pytest.raises(IntegrityError, match="was replaced"):
        client.read(url, 0, 9, tag)


def test_a_replaced_object_is_an_error_where_nobody_told_its_tag(web: RangeServer) -> None:
    client, url = _serve(web)
    assert client.read(url, 0, 9, None) == DATA[:9]
    (web.folder / "x.bin").write_bytes(DATA[::-1])
    with pytest.raises(IntegrityError, match="was replaced"):
        client.read(url, 0, 9, None)


def test_an_object_of_another_size_is_an_error(web: RangeServer) -> None:
    client, url = _serve(web)
    with pytest.raises(IntegrityError, match="was replaced"):
        client.read(url, 0, 9, None, len(DATA) + 1)
    assert len(web.asked) == 1


def test_a_body_that_drips_is_given_up(web: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_SILENCE", 0.2)
    client, url = _serve(web)
    web.fault = lambda *_: "drip"  # 200 seconds in all
    with pytest.raises(TimeoutError, match="of 10000 bytes"):
        client.read(url, 0, 10000, None)


def test_a_dead_server_is_an_error(web: RangeServer) -> None:
    client, url = _serve(web)
    assert client.read(url, 0, 9, None) == DATA[:9]
    web.shutdown()
    web.server_close()
    web.fault = lambda *_: "reset"  # for the connection that is still open
    with pytest.raises(Exception, match=r"(?i)refused|aborted|closed|reset"):
        client.read(url, 0, 9, None)


@pytest.mark.parametrize(
    "error", [ValueError("Invalid endpoint: x"), type("ProfileNotFound", (Exception,), {})()]
)
def test_a_wrong_setting_is_not_tried_again(error: Exception) -> None:
    asked = []

    def ask() -> None:
        asked.append(1)
        raise error

    with pytest.raises(type(error)):
        urls.retried(ask)
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("setting", "advice"),
    [
        ({"endpoint_url": "store.example"}, "as https://s3.example"),
        ({"endpoint": "http://store.example"}, r"FSSPEC_.* have an option"),
        ({"endpoint_url": "http://127.0.0.1:1"}, "AWS_ENDPOINT_URL"),
    ],
)
def test_a_wrong_setting_is_named(
    setting: dict[str, str], advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(urls, "_WAITS", ())
    keys = {"key": "x", "secret": "y", "config_kwargs": {"retries": {"max_attempts": 0}}}
    monkeypatch.setitem(fsspec.config.conf, "s3", setting | keys)
    with pytest.raises(ReadError, match=advice):
        packio.open("s3://bucket/x.tar")


@pytest.mark.parametrize("scheme", ["http", "s3"])
def test_a_server_that_says_nothing_is_given_up(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(urls, "_ANSWER", 1.0)
    monkeypatch.setattr(urls, "_WAITS", (0.01,))
    with socket.create_server(("127.0.0.1", 0)) as server:  # takes connections, and that is all
        here = f"http://127.0.0.1:{server.getsockname()[1]}"
        options = {"endpoint_url": here, "key": "x", "secret": "y"} if scheme == "s3" else {}
        monkeypatch.setitem(fsspec.config.conf, scheme, options)
        root = "s3://bucket" if scheme == "s3" else here
        with pytest.raises(ReadError, match="no answer in 1 seconds"):
            packio.open(f"{root}/x.tar")
        with pytest.raises(TimeoutError, match="no answer in 1 seconds"):
            urls.read(*urls.filesystem(f"{root}/x.bin"), 0, 100)


def test_no_error_shows_a_signature() -> None:
    client = Client(lambda _: "http://127.0.0.1:9/x.bin?X-Amz-Signature=secret")
    with pytest.raises(OSError, match="refused") as found:
        client.read(Url("http://127.0.0.1:9/x.bin"), 0, 9, None)
    assert "secret" not in "".join(traceback.format_exception(found.value))


def test_threads_and_forks_share_a_client(web: RangeServer) -> None:
    client, url = _serve(web)
    found: dict[int, bytes] = {}

    def read(at: int) -> None:
        found[at] = client.read(url, at, at + 100, None)

    threads = [threading.Thread(target=read, args=(at,)) for at in range(40)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        child = os.fork()
        if not child:
            os._exit(0 if client.read(url, 7, 77, None) == DATA[7:77] else 1)
        assert os.waitpid(child, 0)[1] == 0
    for thread in threads:
        thread.join()
    assert found == {at: DATA[at : at + 100] for at in range(40)}


def test_an_object_of_s3_is_read_by_a_signed_url(s3: Proxy, image_folder: pathlib.Path) -> None:
    packio.pack(image_folder, f"s3://{s3.bucket}/x.tar")
    s3.reset()
    pack = packio.open(f"s3://{s3.bucket}/x.tar")
    pack.read_many(range(len(pack)))
    (line,) = [line for line in s3.log if "bytes=" in line]
    assert re.search(r"X-Amz-Algorithm=AWS4-HMAC-SHA256.*X-Amz-Signature=", line)


def test_a_replaced_object_of_s3_is_an_error(s3: Proxy, image_folder: pathlib.Path) -> None:
    packio.pack(image_folder, f"s3://{s3.bucket}/x.tar")
    pack = packio.open(f"s3://{s3.bucket}/x.tar")
    s3.forward("PUT", f"/{s3.bucket}/x.tar", {"Authorization": "AWS a:b"}, bytes(1 << 20))
    with pytest.raises(IntegrityError, match="was replaced"):
        pack[3]


def test_a_refusal_leaves_an_object_to_fsspec(
    s3: Proxy, image_folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packio.pack(image_folder, f"s3://{s3.bucket}/x.tar")
    pack = packio.open(f"s3://{s3.bucket}/x.tar")
    expected = pack.read_many(range(len(pack)))

    def refuse(*_: Any) -> bytes:
        raise requests.RefusedError("no signature will do")

    monkeypatch.setattr(Client, "read", refuse)
    with pytest.warns(UserWarning, match="more slowly, by fsspec"):
        assert pack.read_many(range(len(pack))) == expected
    assert not pack.looks_ahead


@pytest.mark.parametrize(
    "options",
    [
        {"requester_pays": True},
        {"client_kwargs": {"verify": False}},
        {"config_kwargs": {"proxies": {}}},
    ],
)
def test_what_a_signed_url_cannot_do_is_left_to_fsspec(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(fsspec.config.conf, "s3", {"key": "a", "secret": "b", **options})
    assert requests.client(Url("s3://bucket/x")) is None
    monkeypatch.setitem(fsspec.config.conf, "s3", {"key": "a", "secret": "b"})
    assert requests.client(Url("s3://bucket/x")) is not None
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    assert requests.client(Url("s3://bucket/x")) is None


def test_a_service_that_refuses_warns_once_for_all_objects(web: RangeServer) -> None:
    names = [f"{i}.bin" for i in range(8)]
    for name in names:
        (web.folder / name).write_bytes(DATA)
    files = RemoteFiles(Url(web.url), names, [len(DATA)] * 8)
    web.fault = lambda *_: "403"
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        ahead = files.fetched([(i, 10, 5) for i in range(8)])
        for i in range(8):
            with contextlib.suppress(ReadError):
                ahead.read(i, 10, 5)
    assert len([w for w in told if "read more slowly" in str(w.message)]) == 1


NAME = "a#b?c%20d é.tar"  # as a file is named: in a URL, each of these means something else


@pytest.fixture
def odd_pack(web: RangeServer, image_folder: pathlib.Path) -> Callable[..., str]:
    """Packs the image folder under an odd name on the web server; the pack's URL."""

    def packed(**options: Any) -> str:
        packio.pack(image_folder, web.folder / NAME, **options)
        return f"{web.url}/{quote(NAME)}"

    return packed


@pytest.mark.parametrize("options", [{}, {"shards": 2}, {"shards": 9}])
def test_names_of_files_may_have_any_characters(
    options: dict[str, Any], odd_pack: Callable[..., str], image_folder: pathlib.Path
) -> None:
    with packio.open(odd_pack(**options)) as pack:
        assert len(pack) == 25
        assert all(sample.data == (image_folder / sample.key).read_bytes() for sample in pack)


@pytest.mark.parametrize("name", [NAME, "{a#b,a#c}%.tar"])
def test_containers_of_others_may_have_any_names(
    name: str, web: RangeServer, tmp_path: pathlib.Path, image_folder: pathlib.Path
) -> None:
    packio.pack(image_folder, tmp_path / "x.tar")
    for one in braces.expanded(name):
        shutil.copy(tmp_path / "x.tar", web.folder / one)
    url = f"{web.url}/{quote(name, safe='{,}')}"
    packio.reindex(url, index=tmp_path / "x.packio")
    with packio.open(url, index=tmp_path / "x.packio") as pack:
        images = sorted(p.read_bytes() for p in image_folder.rglob("*.*"))
        assert sorted(sample.data for sample in pack) == sorted(images * (len(pack) // 25))
        assert len(pack) == 25 * len(braces.expanded(name))
