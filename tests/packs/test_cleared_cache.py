"""Packs whose index is in the user's cache: it is made anew when it is gone, or damaged."""

from __future__ import annotations

import pathlib
import pickle
import shutil
from typing import TYPE_CHECKING

import fsspec
import made
import numpy as np
import pytest
from range_server import web

import packio

if TYPE_CHECKING:
    from collections.abc import Callable

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


# Damage


def _cut(data: bytes) -> bytes:
    return data[:-100]


def _emptied(_: bytes) -> bytes:
    return b""


def _changed(data: bytes) -> bytes:
    """In a column: the header stays as it is."""
    return data[:-100] + bytes(100 * [0xA5])


def _header_changed(data: bytes) -> bytes:
    return data[:40] + b"\0\0\0\0" + data[44:]


each_damage = pytest.mark.parametrize("damage", [_cut, _emptied, _changed, _header_changed])


def _damage(folder: pathlib.Path, damage: Callable[[bytes], bytes]) -> None:
    (index,) = folder.glob("*.packio")
    content = index.read_bytes()
    index.unlink()  # another inode, as after a crash
    index.write_bytes(damage(content))


def _tar(path: pathlib.Path) -> pathlib.Path:
    path.write_bytes(made.tar_bytes((f"{i}.png", made.png(width=3 + i)) for i in range(4)))
    return path


@each_damage
def test_the_index_of_a_container_of_others(
    tmp_path: pathlib.Path, cache: pathlib.Path, damage: Callable[[bytes], bytes]
) -> None:
    expected = [sample.data for sample in packio.open(_tar(tmp_path / "w.tar"))]
    _damage(cache / "indexes", damage)
    for _ in range(2):
        assert [sample.data for sample in packio.open(tmp_path / "w.tar")] == expected


@each_damage
def test_the_index_of_a_selection(
    tmp_path: pathlib.Path, cache: pathlib.Path, damage: Callable[[bytes], bytes]
) -> None:
    packio.convert(_tar(tmp_path / "w.tar"), tmp_path / "p.tar")
    packio.select(tmp_path / "p.tar", "width > 3", out=tmp_path / "some.selection")
    expected = [sample.data for sample in packio.open(tmp_path / "some.selection")]
    _damage(cache / "selections", damage)
    for _ in range(2):
        assert [s.data for s in packio.open(tmp_path / "some.selection")] == expected


@each_damage
def test_the_copy_of_an_index_at_a_url(
    tmp_path: pathlib.Path, cache: pathlib.Path, damage: Callable[[bytes], bytes]
) -> None:
    packio.convert(_tar(tmp_path / "w.tar"), tmp_path / "p.tar")
    fs = fsspec.filesystem("memory")
    for name in ("p.tar", "p.tar.packio", "p.tar.idx"):
        fs.pipe_file(f"/damaged/{name}", (tmp_path / name).read_bytes())
    expected = [sample.data for sample in packio.open("memory://damaged/p.tar")]
    _damage(cache / "remote", damage)
    for _ in range(2):
        assert [s.data for s in packio.open("memory://damaged/p.tar")] == expected
