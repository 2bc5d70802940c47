"""Runs that are killed just before any of their changes on disk: the same command ends the work."""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import TYPE_CHECKING, Any

import killing
import latents
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


def _contents(pack: Path) -> dict[str, tuple[bytes, str]]:
    """Bytes and class of each key."""
    with packio.open(pack) as opened:
        return {s.key: (s.data, opened.classes[int(str(s.label))]) for s in opened}


@pytest.mark.parametrize(
    ("suffix", "shards", "is_there", "step"),
    long.after(
        3,
        [
            (".lmdb", 1, True, 6), (".tar", 1, False, 8), (".h5", 3, False, 9),
            (".lmdb", 1, True, 1), (".tar", 1, False, 1), (".tar", 1, True, 1),
            (".rec", 1, False, 1), (".rec", 1, True, 1),
            *[(latents.suffix(name), 3, False, 3) for name in latents.FORMATS],
        ],
    ),
)  # fmt: skip
def test_packing(
    suffix: str, shards: int, is_there: bool, step: int, small: Path, tmp_path: Path
) -> None:
    place = tmp_path / "out"
    place.mkdir()
    out = place / f"x{suffix}"

    def pack(**how: Any) -> str:
        return packio.pack(small, out, shards=shards, num_workers=1, **how).digest

    old, new = pack(limit=2), pack(overwrite=True)
    expected = _contents(out)
    _remove_all(place)
    for at in range(_LATE, _MANY, step):
        if is_there:
            pack(limit=2)
        if not killing.killed(lambda: pack(overwrite=is_there), at):
            break
        if is_there and at % 4 < 2:
            workshop.tidy(out, keep=False)  # as giving up does
            assert packio.open(out).digest in (old, new)
        elif not is_there:
            with contextlib.suppress(UnfinishedPackError, NotAPackError):
                assert packio.open(out).digest == new
        assert pack(overwrite=is_there) == packio.open(out).digest == new
        assert _contents(out) == expected
        assert not [name for name in os.listdir(place) if "packio-" in name]
        _remove_all(place)
    assert _LATE + 10 < at < _MANY


@pytest.mark.parametrize(
    ("verb", "step"), long.after(2, [("convert", 9), ("merge", 9), ("merge", 1)])
)
def test_making_packs_of_packs(verb: str, step: int, small: Path, tmp_path: Path) -> None:
    place, parts = tmp_path / "out", [tmp_path / "a.lmdb", tmp_path / "b.rec"]
    place.mkdir()
    for part in parts:
        packio.pack(small, part)

    def make() -> str:
        if verb == "convert":
            return packio.convert(parts[0], place / "x.tar", shards=2, num_workers=1).digest
        return packio.merge(place / "x.tar", parts, prefix=True, shards=2, num_workers=1).digest

    new = make()
    expected = _contents(place / "x.tar")
    _remove_all(place)
    for at in range(_LATE, _MANY, step):
        if not killing.killed(make, at):
            break
        assert make() == packio.open(place / "x.tar").digest == new
        assert _contents(place / "x.tar") == expected
        assert os.listdir(place) == ["x.tar"]
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


@pytest.mark.parametrize("suffix", long.after(1, [".tar", ".rec", ".lmdb"]))
@pytest.mark.parametrize("is_repeated", [True, False], ids=["repeated", "other"])
def test_appending(suffix: str, is_repeated: bool, small: Path, tmp_path: Path) -> None:
    """Readers see the old pack or the new pack; the next append finishes, or takes back."""
    place, few = tmp_path / "out", _images(tmp_path / "few", 4)
    place.mkdir()
    out, whole = place / f"x{suffix}", packio.pack(small, tmp_path / "whole.tar").out
    for at in range(_LATE + 15, _MANY):
        packio.pack(few, out, shards=2)
        if not killing.killed(lambda: packio.append(out, small, num_workers=1), at):
            break
        seen = len(packio.open(out))
        assert seen in (4, 6)
        packio.append(out, small if is_repeated else few, num_workers=1)
        assert len(packio.open(out)) == (6 if is_repeated else seen)
        assert _contents(out).items() <= _contents(whole).items()
        report = packio.verify(out)
        assert (report.damages, report.warnings) == ((), ())
        assert os.listdir(place) == [out.name]
        _remove_all(place)
    assert _LATE + 20 < at < _MANY
