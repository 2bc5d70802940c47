"""Packs whose index is in the user's cache, sent to another process after the cache was emptied."""

from __future__ import annotations

import pathlib
import pickle
import shutil
from typing import TYPE_CHECKING

import made
import numpy as np
import pytest
from range_server import web

import packio

if TYPE_CHECKING:
    from range_server import RangeServer

__all__ = ["web"]


@pytest.fixture(autouse=True)
def cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The user's cache; relative paths are of the folder beside it."""
    monkeypatch.setenv("PACKIO_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


def _png(value: int) -> bytes:
    return made.saved(np.full((4, 4, 3), value, np.uint8))


def _folder(path: pathlib.Path) -> pathlib.Path:
    for value in range(3):
        place = path / f"class{value}"
        place.mkdir(parents=True)
        (place / "x.png").write_bytes(_png(value))
    return path


def _opened(how: str, tmp_path: pathlib.Path) -> packio.Pack:
    _folder(tmp_path / "images")
    (tmp_path / "there").mkdir()
    if how == "an image folder":
        return packio.FolderDataset("images").pack
    if how == "a container":
        with pytest.importorskip("h5py").File("c.h5", "w") as file:
            file["a"] = file["b"] = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)
        return packio.open("c.h5", image="b")
    pytest.importorskip("duckdb")
    packio.pack("images", "there/p.tar")
    packio.select("there/p.tar", "label > 0", out="s.selection")
    (tmp_path / "there").rename("moved")
    if how == "a selection by key":
        packio.reindex("moved/p.tar")
    return packio.open("s.selection", pack="moved/p.tar", by_key=how == "a selection by key")


@pytest.mark.parametrize(
    "how", ["a selection", "a selection by key", "a container", "an image folder"]
)
def test_packs_pickle_after_the_cache_was_emptied(
    how: str, tmp_path: pathlib.Path, cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = _opened(how, tmp_path)
    expected = [sample.data for sample in pack]
    sent = pickle.dumps(pack)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    shutil.rmtree(cache)
    assert [sample.data for sample in pickle.loads(sent)] == expected
    shutil.rmtree(cache)
    assert [sample.data for sample in pickle.loads(pickle.dumps(pickle.loads(sent)))] == expected
    shutil.rmtree(cache)
    assert [sample.data for sample in pack.reopen("range")] == expected


def test_a_given_index_at_a_url_comes_again(
    tmp_path: pathlib.Path, cache: pathlib.Path, web: RangeServer
) -> None:
    packio.pack(_folder(tmp_path / "images"), web.folder / "p.tar")
    (web.folder / "p.tar.packio").rename(web.folder / "other.packio")
    pack = packio.open(f"{web.url}/p.tar", index=f"{web.url}/other.packio")
    sent = pickle.dumps(packio.TarDataset(pack))
    shutil.rmtree(cache)
    assert [sample.data for sample in pickle.loads(sent).pack] == [s.data for s in pack]
