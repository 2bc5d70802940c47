"""What packio keeps in the user's cache and can make anew, it makes anew when it is damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import fsspec
import made
import pytest

import packio

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


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


def _damage(folder: Path, damage: Callable[[bytes], bytes]) -> None:
    (index,) = folder.glob("*.packio")
    content = index.read_bytes()
    index.unlink()  # another inode, as after a crash
    index.write_bytes(damage(content))


def _tar(path: Path) -> Path:
    path.write_bytes(made.tar_bytes((f"{i}.png", made.png(width=3 + i)) for i in range(4)))
    return path


@each_damage
def test_the_index_of_a_container_of_others(
    tmp_path: Path, own_cache: Path, damage: Callable[[bytes], bytes]
) -> None:
    expected = [sample.data for sample in packio.open(_tar(tmp_path / "w.tar"))]
    _damage(own_cache / "indexes", damage)
    for _ in range(2):
        assert [sample.data for sample in packio.open(tmp_path / "w.tar")] == expected


@each_damage
def test_the_index_of_a_selection(
    tmp_path: Path, own_cache: Path, damage: Callable[[bytes], bytes]
) -> None:
    packio.convert(_tar(tmp_path / "w.tar"), tmp_path / "p.tar")
    packio.select(tmp_path / "p.tar", "width > 3", out=tmp_path / "some.selection")
    expected = [sample.data for sample in packio.open(tmp_path / "some.selection")]
    _damage(own_cache / "selections", damage)
    for _ in range(2):
        assert [s.data for s in packio.open(tmp_path / "some.selection")] == expected


@each_damage
def test_the_copy_of_an_index_at_a_url(
    tmp_path: Path, own_cache: Path, damage: Callable[[bytes], bytes]
) -> None:
    packio.convert(_tar(tmp_path / "w.tar"), tmp_path / "p.tar")
    fs = fsspec.filesystem("memory")
    for name in ("p.tar", "p.tar.packio", "p.tar.idx"):
        fs.pipe_file(f"/damaged/{name}", (tmp_path / name).read_bytes())
    expected = [sample.data for sample in packio.open("memory://damaged/p.tar")]
    _damage(own_cache / "remote", damage)
    for _ in range(2):
        assert [s.data for s in packio.open("memory://damaged/p.tar")] == expected
