"""Byte ranges by plain HTTP: what a server may answer, and what becomes of it."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import fsspec
import pytest

import packio
from packio.errors import IntegrityError, ReadError
from packio.packs import recognising
from packio.storage import stores, urls
from packio.storage.fsspec_store import FsspecStore
from packio.storage.http_store import HttpStore
from packio.storage.remote_store import RemoteStore
from packio.storage.s3_store import S3Store
from packio.storage.urls import Url

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable

    from object_store import Proxy
    from range_server import RangeServer

DATA = bytes(range(256)) * 40


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urls, "_WAITS", (0.01,) * 4)


def _serve(web: RangeServer, size: int = len(DATA), tag: str = "") -> RemoteStore:
    (web.folder / "x.bin").write_bytes(DATA)
    client = stores.open_url(Url(web.url), ["x.bin"], [size], {"x.bin": tag} if tag else None)
    assert type(client) is HttpStore
    return client


@pytest.mark.parametrize("fault", ["500", "503", "429", "408", "reset", "short", "elsewhere"])
def test_what_may_pass_is_tried_again(fault: str, web: RangeServer) -> None:
    client = _serve(web)
    web.fault = lambda *_: fault if len(web.asked) < 4 else None
    assert client._fetch(0, 10, 500) == DATA[10:500]
    assert len(web.asked) == 4
    web.fault = lambda *_: fault
    with pytest.raises(Exception, match=r".") as error:
        client._fetch(0, 10, 500)
    assert not isinstance(error.value, IntegrityError)
    assert len(web.asked) == 4 + 5


@pytest.mark.parametrize(
    ("fault", "kind", "text"),
    [("whole", ReadError, "sends no byte ranges"), ("412", IntegrityError, "was replaced"),
     ("416", IntegrityError, "ends before"), ("404", FileNotFoundError, "404"),
     ("400", ReadError, "400"), ("403", PermissionError, "403")],
)  # fmt: skip
def test_what_would_not_pass_is_told_at_once(
    fault: str, kind: type[Exception], text: str, web: RangeServer
) -> None:
    client = _serve(web)
    web.fault = lambda *_: fault
    with pytest.raises(kind, match=text):
        client._fetch(0, 10, 500)
    assert len(web.asked) <= 2  # a refusal may come of a signature that has expired


@pytest.mark.parametrize("fault", [None, "no If-Match"])
@pytest.mark.parametrize("told", [False, True])
def test_a_replaced_object_is_an_error(fault: str | None, told: bool, web: RangeServer) -> None:
    client = _serve(web, len(DATA) + 1)
    with pytest.raises(IntegrityError, match="was replaced"):
        client._fetch(0, 0, 9)  # by its size
    assert len(web.asked) == 1
    found = client.facts("x.bin")
    assert found is not None
    client = _serve(web, tag=found.tag if told else "")
    assert client._fetch(0, 0, 9) == DATA[:9]
    (web.folder / "x.bin").write_bytes(DATA[::-1])
    web.fault = lambda *_: fault
    with pytest.raises(IntegrityError, match="was replaced"):
        client._fetch(0, 0, 9)


def test_a_whole_object_may_have_another_tag_than_a_machine_beside_told(web: RangeServer) -> None:
    _serve(web)
    url = urls.child(Url(web.url), "x.bin")
    known = stores.file_facts(url)
    assert known.tag
    assert stores.content(url, known._replace(tag='"of another machine"')) == DATA


def test_a_body_that_drips_is_given_up(web: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urls, "ANSWER", 0.2)
    client = _serve(web)
    web.fault = lambda *_: "drip"  # 200 seconds in all
    with pytest.raises(TimeoutError, match="of 10000 bytes"):
        client._fetch(0, 0, 10000)


def test_a_dead_server_is_an_error(web: RangeServer) -> None:
    client = _serve(web)
    assert client._fetch(0, 0, 9) == DATA[:9]
    web.shutdown()
    web.server_close()
    web.fault = lambda *_: "reset"  # for the connection that is still open
    with pytest.raises(Exception, match=r"(?i)refused|aborted|closed|reset"):
        client._fetch(0, 0, 9)


@pytest.mark.parametrize(
    "error", [ValueError("Invalid endpoint: x"), type("ProfileNotFound", (Exception,), {})()]
)
def test_a_wrong_setting_is_not_tried_again(error: Exception) -> None:
    asked = []

    def ask() -> None:
        asked.append(1)
        raise error

    with pytest.raises(type(error)):
        urls.retry(ask)
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("setting", "advice"),
    [({"endpoint_url": "store.example"}, "as https://s3.example"),
     ({"endpoint": "http://store.example"}, r"FSSPEC_.* have an option"),
     ({"endpoint_url": "http://127.0.0.1:1"}, "AWS_ENDPOINT_URL")],
)  # fmt: skip
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
    monkeypatch.setattr(urls, "ANSWER", 1.0)
    monkeypatch.setattr(urls, "_WAITS", (0.01,))
    with socket.create_server(("127.0.0.1", 0)) as server:  # takes connections, and that is all
        here = f"http://127.0.0.1:{server.getsockname()[1]}"
        options = {"endpoint_url": here, "key": "x", "secret": "y"} if scheme == "s3" else {}
        monkeypatch.setitem(fsspec.config.conf, scheme, options)
        root = "s3://bucket" if scheme == "s3" else here
        with pytest.raises(ReadError, match="no answer in 1 seconds"):
            packio.open(f"{root}/x.tar")
        for kind in (FsspecStore, HttpStore if scheme == "http" else S3Store):
            with pytest.raises(ReadError, match="no answer in 1 seconds"):
                kind(Url(root), ["x.bin"], [200]).read(0, 0, 100)


def test_no_error_shows_a_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    signed = "http://127.0.0.1:9/x.bin?X-Amz-Signature=secret"
    monkeypatch.setattr(HttpStore, "address", lambda *_: signed)
    with pytest.raises(OSError, match="refused") as found:
        HttpStore(Url("http://127.0.0.1:9"), ["x.bin"], [10])._fetch(0, 0, 9)
    assert "secret" not in "".join(traceback.format_exception(found.value))


def test_threads_and_forks_share_a_client(web: RangeServer) -> None:
    client = _serve(web)
    found: dict[int, bytes] = {}

    def read(at: int) -> None:
        found[at] = client._fetch(0, at, at + 100)

    threads = [threading.Thread(target=read, args=(at,)) for at in range(40)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        child = os.fork()
        if not child:
            os._exit(0 if client._fetch(0, 7, 77) == DATA[7:77] else 1)
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


def test_s3_is_read_and_listed_without_s3fs(
    s3: Proxy, image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    packio.pack(image_folder, f"s3://{s3.bucket}/x.tar", shards=6)  # so the folder is listed
    code = (
        "import sys, packio\n"
        f"pack = packio.open('s3://{s3.bucket}/x.tar')\n"
        "print(len(pack.read_many(range(len(pack)))), 's3fs' in sys.modules)"
    )
    env = {**os.environ, "PACKIO_CACHE_DIR": str(tmp_path / "other")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env,
                          check=False)  # fmt: skip
    assert done.stdout.split() == ["25", "False"], done.stderr


@pytest.mark.parametrize("refused", [403, 400])
def test_an_address_that_is_refused_is_signed_anew(
    refused: int, s3: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.forward("PUT", f"/{s3.bucket}/x", {}, DATA)
    store = stores.open_url(Url(f"s3://{s3.bucket}"), ["x"], [len(DATA)])
    assert store.read(0, 0, 9) == DATA[:9]
    asked = S3Store._answer

    def answer(*given: Any) -> Any:
        found = asked(*given)
        if "us-east-1" in store.address("GET", given[2], ""):  # type: ignore[attr-defined]  # it is an S3Store
            found.status = refused
            found.headers["x-amz-bucket-region"] = "eu-central-1"
        return found

    monkeypatch.setattr(S3Store, "_answer", answer)
    assert store.read(0, 0, 9) == DATA[:9]
    assert store.read(0, 5, 9) == DATA[5:14]


@pytest.mark.parametrize(
    "options",
    [{"requester_pays": True}, {"client_kwargs": {"verify": False}},
     {"config_kwargs": {"proxies": {}}}],
)  # fmt: skip
def test_what_a_signed_url_cannot_do_is_left_to_fsspec(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(fsspec.config.conf, "s3", {"key": "a", "secret": "b", **options})
    assert type(stores.open_url(Url("s3://bucket/x"))) is FsspecStore
    monkeypatch.setitem(fsspec.config.conf, "s3", {"key": "a", "secret": "b"})
    assert type(stores.open_url(Url("s3://bucket/x"))) is S3Store
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    assert type(stores.open_url(Url("s3://bucket/x"))) is FsspecStore


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
    for one in recognising.expand_braces(name):
        shutil.copy(tmp_path / "x.tar", web.folder / one)
    url = f"{web.url}/{quote(name, safe='{,}')}"
    packio.reindex(url, index=tmp_path / "x.packio")
    with packio.open(url, index=tmp_path / "x.packio") as pack:
        images = sorted(p.read_bytes() for p in image_folder.rglob("*.*"))
        assert sorted(sample.data for sample in pack) == sorted(images * (len(pack) // 25))
        assert len(pack) == 25 * len(recognising.expand_braces(name))
