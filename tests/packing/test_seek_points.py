"""Seek points are in the index of every pack of JPEGs, and the pixels with them are the same."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from skimage import data as photographs

import packio
from packio.errors import IntegrityError
from packio.images import native
from packio.index.indexfile import Index

pytestmark = pytest.mark.skipif(
    native.why_not() is not None, reason=f"no native core: {native.why_not()}"
)
_CROP = packio.RandomResizedCrop(48, scale=(0.05, 0.5))
_FORMATS = [".lmdb", ".h5", ".tfrecord", ".pth", ".rec", ".n5", ".zarr", ".tar"]


def _photo() -> Image.Image:
    return Image.fromarray(photographs.astronaut())  # type: ignore[no-untyped-call]  # skimage


def _write(folder: Path, first: int, count: int) -> Path:
    photo = _photo()
    for number in range(first, first + count):
        target = folder / "ab"[number % 2] / f"{number}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        options: dict[str, Any] = {"progressive": True} if number == 3 else {}
        photo.rotate(number * 7).crop((0, 0, 260 + number, 200)).save(
            target, quality=92, subsampling=number % 3, **options
        )
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return _write(tmp_path / "images", 0, 6)


def _has_points(path: Path) -> list[bool]:
    with packio.open(path) as pack:
        return [bool(pack.seek_points(i)) for i in range(len(pack))]


def _check_same_pixels(path: Path) -> None:
    by_core = packio.PackDataset(path, crop=_CROP, hflip=0.5, seed=2, decoder="native")
    without = packio.PackDataset(path, crop=_CROP, hflip=0.5, seed=2, decoder="simplejpeg")
    every = list(range(len(by_core)))
    for epoch in range(4):
        by_core.set_epoch(epoch)
        without.set_epoch(epoch)
        assert torch.equal(by_core.gather(every)[0], without.gather(every)[0])
    assert not by_core.declined


@pytest.mark.parametrize("suffix", _FORMATS)
def test_every_format(folder: Path, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"pack{suffix}"
    packio.pack(folder, path, check="decode")
    assert sorted(_has_points(path)) == [False, *[True] * 5]
    _check_same_pixels(path)


def test_they_are_few_bytes(tmp_path: Path) -> None:
    image = _photo().resize((1200, 900))
    image.save(tmp_path / "a.jpg", quality=95)
    data = (tmp_path / "a.jpg").read_bytes()
    assert 10 < len(native.seek_points(data)) < 0.004 * len(data)


def test_they_follow_their_samples(folder: Path, tmp_path: Path) -> None:
    """Through append, merge, convert and a choice of samples."""
    path = tmp_path / "pack.lmdb"
    packio.pack(folder, path, shards=2)
    _write(folder, 6, 4)
    packio.append(path, folder)
    _check_same_pixels(path)
    other = tmp_path / "other.lmdb"
    packio.pack(_write(tmp_path / "more", 20, 4), other, seek_points=False)
    assert not any(_has_points(other))
    merged = tmp_path / "merged.lmdb"
    packio.merge(merged, [path, other])
    assert sum(_has_points(merged)) == 9 + 4
    _check_same_pixels(merged)
    converted = tmp_path / "converted.tar"
    packio.convert(path, converted, shuffle=3)
    assert sum(_has_points(converted)) == 9
    _check_same_pixels(converted)
    plain = tmp_path / "plain.tar"
    packio.convert(path, plain, seek_points=False)
    assert not any(_has_points(plain))


def test_the_same_points_as_if_packed(folder: Path, tmp_path: Path) -> None:
    """What converting copies is what packing finds."""
    packed, converted = tmp_path / "a.tar", tmp_path / "b.tar"
    packio.pack(folder, packed)
    packio.convert(packed, converted)
    with packio.open(packed) as one, packio.open(converted) as other:
        for number in range(6):
            found = native.seek_points(one[number].data)
            assert one.seek_points(number) == other.seek_points(number) == found


def test_encoded_anew(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "pack.lmdb"
    packio.pack(folder, path, encode="jpeg", resize="short=150", quality=90)
    assert all(_has_points(path))
    _check_same_pixels(path)


def test_reindex_adds_them_and_takes_them_out(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "pack.tar"
    packio.pack(folder, path, seek_points=False)
    index = tmp_path / "pack.tar.packio"
    before = {n: Index(index).column(n).array() for n in Index(index).column_names}
    packio.reindex(path)
    assert sum(_has_points(path)) == 5
    _check_same_pixels(path)
    packio.reindex(path, seek_points=False)
    after = {n: Index(index).column(n).array() for n in Index(index).column_names}
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_containers_of_others(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "theirs.tar"
    with tarfile.open(path, "w") as archive:
        for number, file in enumerate(sorted(folder.rglob("*.jpg"))):
            archive.add(file, f"{number}.jpg")
            label = tarfile.TarInfo(f"{number}.cls")
            label.size = 1
            archive.addfile(label, io.BytesIO(b"1"))
    assert not any(_has_points(path))  # opening such a container takes no longer for them
    packio.reindex(path)
    assert sum(_has_points(path)) == 5
    _check_same_pixels(path)


def test_one_crop_of_several(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "pack.lmdb"
    packio.pack(folder, path)
    for scale in ((0.05, 0.2), (0.6, 1)):  # each is decoded alone; the whole image once
        views = [packio.RandomResizedCrop(40, scale=scale)] * 3
        by_core = packio.PackDataset(path, views=views, seed=1, decoder="native")
        without = packio.PackDataset(path, views=views, seed=1, decoder="simplejpeg")
        found, wanted = (d.gather([0, 1, 2, 4, 5])[0] for d in (by_core, without))
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_a_folder_that_is_not_packed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its listing, in the cache, has seek points; also of files that came later."""
    monkeypatch.setenv("PACKIO_CACHE_DIR", str(tmp_path / "cache"))
    for count in (6, 8):
        _write(folder, 0, count)
        for path in folder.rglob("*.jpg"):
            number = int(path.stem)
            os.utime(path, (number, number))  # so that the first ones are not read again
        crop = packio.RandomResizedCrop(40, scale=(0.05, 0.3))
        by_core = packio.FolderDataset(folder, crop=crop, seed=1, decoder="native")
        without = packio.FolderDataset(folder, crop=crop, seed=1, decoder="simplejpeg")
        assert [bool(by_core.pack.seek_points(i)) for i in range(count)].count(True) == count - 1
        every = list(range(count))
        assert torch.equal(by_core.gather(every)[0], without.gather(every)[0])


def test_those_of_a_batch_are_those_of_its_samples(folder: Path, tmp_path: Path) -> None:
    packio.pack(folder, tmp_path / "pack.lmdb")
    packio.pack(folder, tmp_path / "without.lmdb", seek_points=False)
    positions = np.array([5, 0, 3, 3, 1])
    with packio.open(tmp_path / "pack.lmdb") as pack:
        found = pack.seek_points_of(positions)
        assert found == [pack.seek_points(i) for i in positions.tolist()]
        assert any(found)
    with packio.open(tmp_path / "without.lmdb") as pack:
        assert pack.seek_points_of(positions) == [b""] * 5


def test_damaged_points_are_told_by_a_batch_and_by_a_sample(folder: Path, tmp_path: Path) -> None:
    """All of a batch's points are read at once; their damage is that of each sample."""
    path = tmp_path / "pack.tar"
    packio.pack(folder, path)
    with packio.open(path) as pack:
        points, index = pack.seek_points(0), Path(pack.index_file.path)
    data = index.read_bytes()
    assert data.count(points) == 1
    index.write_bytes(data.replace(points, points[:-1] + bytes([points[-1] ^ 1])))
    dataset = packio.PackDataset(path, crop=_CROP, seed=2)
    with pytest.raises(IntegrityError, match="index"):
        dataset.gather(list(range(6)))
    with pytest.raises(IntegrityError, match="index"):
        dataset[0]
