"""Files that are mapped, and change while they are open: an error, not a bus error."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from PIL import Image

import packio
from packio.errors import IntegrityError
from packio.index import layout

if TYPE_CHECKING:
    from collections.abc import Callable

_READS: dict[str, Callable[[Any], Any]] = {
    "one": lambda ds: ds[5],
    "batch": lambda ds: ds.__getitems__(range(6)),
    "gather": lambda ds: ds.gather([5, 0, 3, 1, 2, 4]),
    "label": lambda ds: ds.pack.label(5),
    "labels": lambda ds: ds.pack.labels,
    "taken labels": lambda ds: ds.pack.take_labels(np.arange(6)),
    "key": lambda ds: ds.pack.key(4),
    "sample": lambda ds: ds.pack[5],
    "find": lambda ds: ds.pack.find("z/5.png"),
    "where": lambda ds: len(ds.where(label="z")),
}
_READ = pytest.mark.parametrize("way", _READS)


@pytest.fixture(autouse=True)
def _mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "_MOST_PRIVATE", 0)  # as if the index were large


def _packed(
    folder: Path, name: str, last: str, add: int = 0, suffix: str = ".tar", **options: Any
) -> Path:
    """Six images in the classes a and z, with keys of one length; the last one is in `last`."""
    for i in range(6):
        place = folder / name / ("a" if i < 3 else last if i == 5 else "z")
        place.mkdir(parents=True, exist_ok=True)
        pixels = np.full((8, 9, 3), 20 * i + add, np.uint8)
        Image.fromarray(pixels).save(place / f"{i}.png")
    return packio.pack(folder / name, folder / f"{name}{suffix}", **options).out


def _overwrite(path: Path, data: bytes) -> None:
    """Write over a file as `cp` does: same inode, another content."""
    before = os.stat(path).st_mtime_ns
    while os.stat(path).st_mtime_ns == before:  # the clock of a file system has ticks
        time.sleep(0.002)
        path.write_bytes(data)


@_READ
def test_an_index_that_is_replaced_in_place_is_an_error(way: str, tmp_path: Path) -> None:
    ours, theirs = _packed(tmp_path, "ours", "z"), _packed(tmp_path, "them", "a")
    index, other = (path.with_name(f"{path.name}.packio") for path in (ours, theirs))
    dataset = packio.PackDataset(ours, fields=("image", "label", "key"))
    for _ in range(2):  # all that is compared is compared at first
        _READS[way](dataset)
    assert index.stat().st_size == other.stat().st_size
    _overwrite(index, other.read_bytes())
    with pytest.raises(IntegrityError, match=r"ours\.tar\.packio"):
        _READS[way](dataset)


@_READ
def test_an_index_that_was_only_touched_is_read_on(way: str, tmp_path: Path) -> None:
    index = _packed(tmp_path, "ours", "z").with_name("ours.tar.packio")
    dataset = packio.PackDataset(tmp_path / "ours.tar", fields=("image", "label", "key"))
    before = _READS[way](dataset)
    _overwrite(index, index.read_bytes())
    os.chmod(index, 0o444)
    index.rename(index.with_name("away"))
    assert repr(_READS[way](dataset)) == repr(before)


@pytest.mark.parametrize("crop", [None, packio.RandomCrop(4), packio.RandomResizedCrop(5)])
@pytest.mark.parametrize("way", ["one", "batch", "gather"])
@pytest.mark.parametrize("shards", [1, 6])
def test_raw_pixels_that_are_replaced_in_place_are_an_error(
    shards: int, way: str, crop: Any, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"encode": "raw", "shards": shards}
    ours = _packed(tmp_path, "ours", "z", **options)
    _packed(tmp_path, "them", "z", add=7, **options)
    dataset = packio.PackDataset(ours, fields=("image", "label"), crop=crop)
    for _ in range(2):
        _READS[way](dataset)
    for path in ours.iterdir() if ours.is_dir() else [ours]:
        if path.suffix == ".tar":
            _overwrite(path, Path(str(path).replace("ours", "them")).read_bytes())
    with pytest.raises(IntegrityError, match="CRC32C differs"):
        _READS[way](dataset)


def test_a_sample_of_raw_pixels_that_was_replaced_is_skipped(tmp_path: Path) -> None:
    ours = _packed(tmp_path, "ours", "z", encode="raw")
    dataset = packio.PackDataset(ours, fields=("image", "index"), on_error="skip")
    dataset.__getitems__(range(6))
    data = ours.read_bytes()
    at = data.index(bytes([60]) * 8 * 9 * 3)  # the fourth
    _overwrite(ours, data[:at] + bytes([61]) + data[at + 1 :])
    with pytest.warns(UserWarning, match=r"3\.png"):
        found = dataset.__getitems__(range(6))
    assert [index for _, index in found] == [0, 1, 2, 4, 4, 5]


def test_raw_pixels_that_change_while_a_batch_is_made_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from packio.packs.raw import RawRows

    ours = _packed(tmp_path, "ours", "z", encode="raw")
    dataset = packio.PackDataset(ours, fields=("image", "index"))
    dataset.gather(range(6))
    data, crop = ours.read_bytes(), RawRows.crop

    def late(self: Any, *given: Any, **more: Any) -> None:
        _overwrite(ours, data.replace(bytes([60]) * 9, bytes([61]) * 9))
        crop(self, *given, **more)

    monkeypatch.setattr(RawRows, "crop", late)
    with pytest.raises(IntegrityError, match=r"3\.png.*CRC32C differs"):
        dataset.gather(range(6))


def test_an_index_up_to_the_limit_is_read_and_never_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    index = _packed(tmp_path, "ours", "z").with_name("ours.tar.packio")
    dataset = packio.PackDataset(tmp_path / "ours.tar", fields=("image", "label", "key"))
    index.write_bytes(b"")
    assert [dataset[i][1] for i in range(6)] == [0, 0, 0, 1, 1, 1]
    assert torch.equal(dataset[5][0], torch.full((3, 8, 9), 100, dtype=torch.uint8))


# Files that are truncated

_READING = """
import os, sys, numpy as np, packio
from packio.errors import IntegrityError
from packio.index import layout
layout._MOST_PRIVATE = 0  # as if the index were large
pack, what, shrinks = sys.argv[1:]
ds = packio.PackDataset(pack, fields=("image", "label"))
ways = {
    "batch": lambda: ds.__getitems__(range(6)), "gather": lambda: ds.gather([5, 0, 3, 1]),
    "one": lambda: ds[5], "sample": lambda: ds.pack[5], "key": lambda: ds.pack.key(4),
    "labels": lambda: ds.pack.labels.sum(), "find": lambda: ds.pack.find("z/5.png"),
}
for _ in range(2 if what != "labels" else 1):
    ways[what]()
os.truncate(shrinks, 0)
try:
    ways[what]()
except IntegrityError as error:
    print(error)
"""
_WAYS = ["batch", "gather", "one", "sample", "key", "labels", "find"]


def _read_while_it_shrinks(pack: Path, way: str, file: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _READING, pack, way, file], capture_output=True, text=True,
        check=False, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, f"{done.returncode}: {done.stderr}"
    return done.stdout


@pytest.mark.long
@pytest.mark.parametrize("way", _WAYS)
def test_a_mapped_index_that_shrinks_while_it_is_open_is_an_error(way: str, tmp_path: Path) -> None:
    pack = _packed(tmp_path, "ours", "z")
    index = pack.with_name("ours.tar.packio")
    assert f"{index}: 0 bytes" in _read_while_it_shrinks(pack, way, index)


@pytest.mark.long
@pytest.mark.parametrize("way", ["batch", "gather", "one"])
@pytest.mark.parametrize(("suffix", "shards"), [(".lmdb", 1), (".h5", 1), (".pth", 1), (".h5", 6)])
def test_raw_pixels_that_shrink_while_they_are_open_are_an_error(
    way: str, suffix: str, shards: int, tmp_path: Path
) -> None:
    pack = _packed(tmp_path, "ours", "z", suffix=suffix, encode="raw", shards=shards)
    file = {".lmdb": pack / "data.mdb"}.get(suffix, pack) if shards == 1 else pack / "ours-00005.h5"
    assert f"{file}: 0 bytes" in _read_while_it_shrinks(pack, way, file)
