"""Runs that are killed just before any of their changes on disk: the same command ends the work."""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import TYPE_CHECKING

import killing
import long
import made
import pytest

import packio
from packio.errors import NotAPackError, UnfinishedPackError
from packio.inspecting.extracting import extract
from packio.storage import workshop

if TYPE_CHECKING:
    from pathlib import Path

_LATE = 20  # changes on disk, before publishing begins
_MANY = 300  # changes on disk, more than any run here has


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six images in two classes."""
    return _images(tmp_path_factory.mktemp("small") / "source", 6)


def _images(root: Path, number: int) -> Path:
    for i in range(number):
        path = root / "ab"[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(made.png(width=4 + i))
    return root


def _remove_all(folder: Path) -> None:
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize(
    ("suffix", "is_there", "step"),
    long.after(
        2,
        [
            (".lmdb", True, 6), (".tar", False, 8), (".lmdb", True, 1), (".tar", False, 1),
            (".tar", True, 1), (".rec", False, 1),
        ],
    ),
)  # fmt: skip
def test_packing(suffix: str, is_there: bool, step: int, small: Path, tmp_path: Path) -> None:
    place = tmp_path / "out"
    place.mkdir()
    out = place / f"x{suffix}"
    old = packio.pack(small, out, limit=2).digest
    new = packio.pack(small, out, overwrite=True).digest
    _remove_all(place)
    for at in range(_LATE, _MANY, step):
        if is_there:
            packio.pack(small, out, limit=2)
        if not killing.killed(lambda: packio.pack(small, out, overwrite=is_there), at):
            break
        if is_there and at % 4 < 2:
            workshop.tidy(out, keep=False)  # as giving up does
            assert packio.open(out).digest in (old, new)
        elif not is_there:
            with contextlib.suppress(UnfinishedPackError, NotAPackError):
                assert packio.open(out).digest == new
        packio.pack(small, out, overwrite=is_there)
        assert packio.open(out).digest == new
        assert not [name for name in os.listdir(place) if "packio-" in name]
        _remove_all(place)
    assert _LATE + 10 < at < _MANY


@pytest.mark.long
def test_packing_a_file_over_a_folder(small: Path, tmp_path: Path) -> None:
    """A target of shards gives way to one of a single file, and comes back if the run is killed."""
    place = tmp_path / "out"
    place.mkdir()
    out = place / "x.tar"
    for at in range(_LATE, _MANY):
        packio.pack(small, out, limit=2, shards=2)
        if not killing.killed(lambda: packio.pack(small, out, overwrite=True), at):
            break
        packio.pack(small, out, overwrite=True)
        assert len(packio.open(out)) == 6
        assert sorted(os.listdir(place)) == ["x.tar", "x.tar.idx", "x.tar.packio"]
        _remove_all(place)
    assert _LATE + 10 < at < _MANY


def test_extracting_over_a_folder(small: Path, tmp_path: Path) -> None:
    place, source = tmp_path / "out", tmp_path / "x.tar"
    place.mkdir()
    packio.pack(small, source)
    for at in range(1, _MANY):
        (place / "images").mkdir()
        (place / "images" / "old.txt").write_bytes(b"old")
        if not killing.killed(lambda: extract(source, place / "images", overwrite=True), at):
            break
        extract(source, place / "images", overwrite=True)
        assert os.listdir(place) == ["images"]
        assert {p.read_bytes() for p in (place / "images").rglob("*.png")} == {
            p.read_bytes() for p in small.rglob("*.png")
        }
        assert not (place / "images" / "old.txt").exists()
        _remove_all(place)
    assert 10 < at < _MANY


@pytest.mark.parametrize("suffix", [".tar", ".rec"])
@pytest.mark.parametrize("is_repeated", [True, False], ids=["repeated", "other"])
def test_appending(suffix: str, is_repeated: bool, small: Path, tmp_path: Path) -> None:
    """Readers see the old pack or the new pack; the next append finishes, or takes back."""
    place, few = tmp_path / "out", _images(tmp_path / "few", 4)
    place.mkdir()
    out = place / f"x{suffix}"
    for at in range(_LATE + 15, _MANY):
        packio.pack(few, out, shards=2)
        if not killing.killed(lambda: packio.append(out, small, num_workers=1), at):
            break
        seen = len(packio.open(out))
        assert seen in (4, 6)
        packio.append(out, small if is_repeated else few, num_workers=1)
        assert len(packio.open(out)) == (6 if is_repeated else seen)
        report = packio.verify(out)
        assert (report.damages, report.warnings) == ((), ())
        assert os.listdir(place) == [out.name]
        _remove_all(place)
    assert _LATE + 25 < at < _MANY
