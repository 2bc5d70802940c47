"""Only what is needed is decoded: the same pixels from a part of a JPEG, near them when fast."""

from __future__ import annotations

import io
import pathlib
import random
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import packio
from packio import registry
from packio.errors import DecodeError, OptionError
from packio.images import frames
from packio.images.decoders import Decoder
from packio.images.encodings import read_facts
from packio.images.frames import orient
from packio.images.geometry import Geometry
from packio.index import indexfile
from packio.index.indexfile import Index

CROPS: dict[str, Any] = {
    "rrc": packio.RandomResizedCrop(48),
    "rrc bicubic": packio.RandomResizedCrop((40, 56), interpolation="bicubic"),
    "small": packio.RandomResizedCrop(24, scale=(0.02, 0.2)),
    "random crop": packio.RandomCrop(60, padding=8),
    "center crop": packio.CenterCrop(64),
    "resize center crop": packio.ResizeCenterCrop(48),
    "resize": packio.Resize((50, 40)),
}


def _saved(jpeg: bytes, **options: Any) -> bytes:
    with Image.open(io.BytesIO(jpeg)) as image:
        if image.format != "JPEG" or image.mode not in ("L", "RGB"):
            return jpeg
        held = io.BytesIO()
        image.save(held, "JPEG", quality=90, exif=image.getexif(), **options)
    return held.getvalue()


def _as_a_former_option_made_it(jpeg: bytes) -> bytes:
    """The JPEG with restart markers, and their places in an APP9 marker."""
    data = _saved(jpeg, restart_marker_blocks=4)
    return data[:2] + b"\xff\xe9\0\x0cPACKIO\0\1\0\7" + data[2:] if data != jpeg else data


@pytest.fixture(scope="module")
def pair(
    tmp_path_factory: pytest.TempPathFactory, image_folder: pathlib.Path
) -> tuple[pathlib.Path, pathlib.Path]:
    """JPEGs without restart markers, and the same with some, in a pack of a former option."""
    root = tmp_path_factory.mktemp("regions")
    changed = 0
    for path in sorted(p for p in image_folder.rglob("*") if p.is_file()):
        plain, marked = (root / kind / path.relative_to(image_folder) for kind in "ab")
        for target in (plain, marked):
            target.parent.mkdir(parents=True, exist_ok=True)
        plain.write_bytes(_saved(path.read_bytes()))
        marked.write_bytes(_as_a_former_option_made_it(path.read_bytes()))
        changed += plain.read_bytes() != marked.read_bytes()
    assert changed >= 5
    packio.pack(root / "a", root / "plain.lmdb")
    packio.pack(root / "b", root / "marked.tar")
    index = Index(root / "marked.tar.packio")
    table = {name: index.column(name).array().copy() for name in index.column_names}
    table["image/flags"] |= 1
    index.metadata["recipe"]["seekable"] = True
    indexfile.write(index.path, table, index.metadata)
    return root / "plain.lmdb", root / "marked.tar"


def test_a_pack_of_a_former_option_is_a_pack(
    pair: tuple[pathlib.Path, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    plain, marked = map(packio.open, pair)
    assert marked.metadata["recipe"]["seekable"] is True
    for a, b in zip(plain, marked, strict=True):
        assert np.array_equal(a.decode(exif_orientation=False), b.decode(exif_orientation=False))
    assert packio.verify(pair[1], decode=True).ok
    packio.convert(pair[1], tmp_path / "x.lmdb")
    converted = packio.open(tmp_path / "x.lmdb")
    assert [sample.data for sample in converted] == [sample.data for sample in marked]
    assert not converted.index_file.column("image/flags").array().astype(bool)[:5].any()


@pytest.mark.parametrize("name", list(CROPS))
@pytest.mark.parametrize("exif_orientation", [True, False])
def test_restart_markers_change_no_pixel(
    pair: tuple[pathlib.Path, pathlib.Path], name: str, exif_orientation: bool
) -> None:
    datasets = [
        packio.PackDataset(
            path, crop=CROPS[name], hflip=0.5, vflip=0.5, seed=1, exif_orientation=exif_orientation
        )
        for path in pair
    ]
    indices = list(range(len(datasets[0]))) * 3
    plain, marked = (packio.collate(ds.__getitems__(indices))[0] for ds in datasets)
    assert torch.equal(plain, marked)


def test_several_views_are_cut_each_or_from_the_whole(
    pair: tuple[pathlib.Path, pathlib.Path],
) -> None:
    for views in ([CROPS["small"], CROPS["small"]], [CROPS["rrc"], None, CROPS["small"]]):
        datasets = [packio.PackDataset(path, views=views, hflip=0.5, seed=1) for path in pair]
        batches = [ds.__getitems__(list(range(25))) for ds in datasets]
        for (a, _), (b, _) in zip(*batches, strict=True):
            assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def _psnr(a: torch.Tensor, b: torch.Tensor) -> float:
    error = ((a.double() - b.double()) ** 2).mean().item()
    return 99.0 if error == 0 else 10 * np.log10(255**2 / error)


@pytest.mark.parametrize("name", ["rrc", "small", "resize center crop"])
def test_fast_is_near_exact(pair: tuple[pathlib.Path, pathlib.Path], name: str) -> None:
    for path in pair:
        exact = packio.PackDataset(path, crop=CROPS[name], hflip=0.5, seed=1)
        fast = exact.with_options(fidelity="fast")
        indices = list(range(25)) * 2
        images = [packio.collate(ds.__getitems__(indices))[0] for ds in (exact, fast)]
        values = [_psnr(a, b) for a, b in zip(*images, strict=True)]
        assert np.mean(values) >= 35
        assert min(values) >= 26
        assert images[1].is_contiguous()


@pytest.mark.parametrize(
    "crop", [packio.RandomResizedCrop(100, scale=(0.5, 1)), packio.ResizeCenterCrop(100)]
)
def test_fast_decodes_large_crops_small(
    crop: Geometry, photos: list[np.ndarray], tmp_path: pathlib.Path
) -> None:
    file = io.BytesIO()
    Image.fromarray(photos[0]).resize((1600, 1200)).save(file, "jpeg", quality=90)
    (tmp_path / "s" / "a").mkdir(parents=True)
    (tmp_path / "s" / "a" / "1.jpg").write_bytes(file.getvalue())
    packio.pack(tmp_path / "s", tmp_path / "x.lmdb")
    exact = packio.LmdbDataset(tmp_path / "x.lmdb", crop=crop, seed=2)
    fast = exact.with_options(fidelity="fast")
    for epoch in range(3):
        exact.set_epoch(epoch)
        fast.set_epoch(epoch)
        a, b = (ds.__getitems__([0] * 8) for ds in (exact, fast))
        assert min(_psnr(x, y) for (x, _), (y, _) in zip(a, b, strict=True)) >= 30


def test_unknown_fidelity_is_refused(pair: tuple[pathlib.Path, pathlib.Path]) -> None:
    with pytest.raises(OptionError, match="fidelity"):
        packio.PackDataset(pair[0], fidelity="faster")


@pytest.mark.parametrize("scale", [1, 2, 4, 8])
@pytest.mark.parametrize("name", ["pillow", "simplejpeg", "opencv", "turbojpeg"])
def test_decoders_decode_small(name: str, scale: int, image_folder: pathlib.Path) -> None:
    plugin = registry.load("decoders", name)
    tried = 0
    for path in sorted(image_folder.rglob("*.jpg")):
        data = path.read_bytes()
        facts = read_facts(data)
        if facts.channels != 3:
            continue
        try:
            small = plugin.decode_fast(data, "RGB", scale)
        except DecodeError:
            continue
        tried += 1
        assert small.shape == (-(-facts.height // scale), -(-facts.width // scale), 3)
        pixels = Decoder()(data, facts).astype(float)
        height, width = facts.height // scale * scale, facts.width // scale * scale
        blocks = pixels[:height, :width].reshape(height // scale, scale, width // scale, scale, 3)
        means = blocks.mean(axis=(1, 3))
        found = small[: height // scale, : width // scale].astype(float)
        assert np.abs(found - means).mean() < 8
    assert tried >= 5


def test_boxes_are_found_in_stored_images() -> None:
    draw = random.Random(0)
    pixels = np.arange(30 * 20 * 3, dtype=np.uint16).reshape(30, 20, 3)
    for orientation in range(1, 9):
        upright = orient(pixels, orientation)
        for _ in range(50):
            height, width = upright.shape[:2]
            top, left = draw.randrange(height), draw.randrange(width)
            box = (
                top,
                left,
                draw.randrange(1, height - top + 1),
                draw.randrange(1, width - left + 1),
            )
            t, le, h, w = frames.to_stored_box(box, orientation, 30, 20)
            found = orient(pixels[t : t + h, le : le + w], orientation)
            assert np.array_equal(found, upright[top : top + box[2], left : left + box[3]])


def test_a_dataset_of_a_split(image_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    packio.pack(image_folder, tmp_path / "x.lmdb", split={"train": 0.8, "val": 0.2})
    whole = packio.LmdbDataset(tmp_path / "x.lmdb", fields=("image", "label", "key"))
    parts = [whole.with_options(split=name) for name in ("train", "val")]
    keys = [[ds[i][2] for i in range(len(ds))] for ds in parts]
    assert sorted(keys[0] + keys[1]) == sorted(whole.pack.keys())
    for ds, found in zip(parts, keys, strict=True):
        batch = ds.__getitems__(range(len(ds)))
        assert [sample[2] for sample in batch] == found
        assert ds.targets is not None
        assert ds.targets.tolist() == [sample[1] for sample in batch]
        assert torch.equal(ds[-1][0], batch[-1][0])
        assert torch.equal(ds.by_key(found[0])[0], batch[0][0])
    with pytest.raises(OptionError, match="there are: train, val"):
        whole.with_options(split="test")
    with pytest.raises(IndexError):
        parts[1][len(parts[1])]
