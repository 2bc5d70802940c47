"""Every store does what the contract of stores says."""

from __future__ import annotations

import itertools
import urllib.parse
from typing import TYPE_CHECKING, Any

import fsspec
import pytest
from store_contract import StoreContract

from packio.storage import stores, urls
from packio.storage.fsspec_store import FsspecStore
from packio.storage.http_store import HttpStore
from packio.storage.local import LocalStore
from packio.storage.s3_store import S3Store
from packio.storage.urls import Url

if TYPE_CHECKING:
    import pathlib

    from object_store import Proxy
    from range_server import RangeServer

    from packio.storage.store import Store

_WHO = {"Authorization": "AWS a:b"}
_numbers = itertools.count()


class TestLocalStore(StoreContract):
    """Files in a folder."""

    notices = False

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: pathlib.Path) -> None:
        self._root = tmp_path

    def put(self, name: str, data: bytes) -> None:
        (self._root / name).parent.mkdir(exist_ok=True)
        (self._root / name).write_bytes(data)

    def remove(self, name: str) -> None:
        (self._root / name).unlink()

    def at(self, names: list[str], sizes: list[int]) -> Store:
        found = stores.open_store(self._root, names, sizes)
        assert type(found) is LocalStore
        return found


class TestHttpStore(TestLocalStore):
    """A web server with byte ranges, and no lists."""

    notices, lists, writes = True, False, False

    @pytest.fixture(autouse=True)
    def _server(self, web: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root, self._url = web.folder, Url(web.url)
        monkeypatch.setattr(urls, "_WAITS", (0.01,))

    def at(self, names: list[str], sizes: list[int]) -> Store:
        found = stores.open_store(self._url, names, sizes)
        assert type(found) is HttpStore
        return found


class TestFsspecStoreOfHttp(TestHttpStore):
    """The same server, read by fsspec."""

    notices = False

    def at(self, names: list[str], sizes: list[int]) -> Store:
        return FsspecStore(self._url, names, sizes)


class TestFsspecStore(StoreContract):
    """fsspec's file system in memory."""

    notices = False

    @pytest.fixture(autouse=True)
    def _memory(self) -> None:
        self._fs, self._name = fsspec.filesystem("memory"), f"contract-{next(_numbers)}"

    def put(self, name: str, data: bytes) -> None:
        self._fs.pipe_file(f"/{self._name}/{name}", data)

    def remove(self, name: str) -> None:
        self._fs.rm_file(f"/{self._name}/{name}")

    def at(self, names: list[str], sizes: list[int]) -> Store:
        found = stores.open_store(Url(f"memory://{self._name}"), names, sizes)
        assert type(found) is FsspecStore
        return found


class TestS3Store(StoreContract):
    """A bucket."""

    @pytest.fixture(autouse=True)
    def _server(self, s3: Proxy) -> None:
        self._s3 = s3

    def put(self, name: str, data: bytes) -> None:
        path = f"/{self._s3.bucket}/here/{name.replace(' ', '%20')}"
        self._s3.forward("PUT", path, _WHO, data)

    def remove(self, name: str) -> None:
        self._s3.forward("DELETE", f"/{self._s3.bucket}/here/{name}", _WHO, b"")

    def at(self, names: list[str], sizes: list[int]) -> Store:
        found = stores.open_store(Url(f"s3://{self._s3.bucket}/here"), names, sizes)
        assert type(found) is S3Store
        return found

    def test_a_list_has_several_pages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def one_a_page(asked: dict[str, str], **given: Any) -> str:
            return urllib.parse.urlencode({**asked, "max-keys": "1"}, **given)

        monkeypatch.setattr("packio.storage.s3_store.urlencode", one_a_page)
        self.test_a_list_has_every_file()
