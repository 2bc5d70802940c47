"""`draw_of` tells the box and the flips of what a dataset gives at a position of an epoch."""

from __future__ import annotations

import io
import itertools
import pathlib
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

import packio
from packio.batches.draws import PositionedIndex
from packio.errors import OptionError

COUNT = 12


def picture(number: int) -> bytes:
    """A PNG of noise; every third one has to be turned by its Exif orientation."""
    r = np.random.default_rng(number)
    pixels = r.integers(0, 256, (20 + 3 * number, 40 - number, 3), np.uint8)
    exif = Image.Exif()
    if number % 3 == 0:
        exif[0x112] = 6
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", exif=exif)
    return file.getvalue()


def upright(number: int) -> np.ndarray:
    """What Pillow makes of it, (H, W, 3)."""
    return np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(picture(number)))))


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    samples = [{"image": picture(i), "label": i, "key": str(i)} for i in range(COUNT)]
    return packio.pack(samples, tmp_path_factory.mktemp("draws") / "x.lmdb").out


def taken(placement: Any, pixels: np.ndarray) -> np.ndarray:
    """What a placement takes of an upright image without resizing, (C, H, W)."""
    f = placement.frame
    assert (f.height, f.width) == (f.to_height, f.to_width)
    box = pixels[f.top : f.top + f.height, f.left : f.left + f.width]
    out = np.zeros((f.out_height, f.out_width, 3), np.uint8)
    for y, x in itertools.product(range(f.out_height), range(f.out_width)):
        if 0 <= y + f.out_top < len(box) and 0 <= x + f.out_left < box.shape[1]:
            out[y, x] = box[y + f.out_top, x + f.out_left]
    out = out[:, ::-1] if placement.hflip else out
    out = out[::-1] if placement.vflip else out
    return np.ascontiguousarray(out.transpose(2, 0, 1))


def made(pack: pathlib.Path, **options: Any) -> packio.PackDataset:
    how: dict[str, Any] = {"crop": packio.RandomCrop(16, 4), "hflip": 0.5, "vflip": 0.5, "seed": 3}
    return packio.PackDataset(pack, **{**how, **options})


def test_the_pixels_of_a_batch_are_those_of_its_draws(pack: pathlib.Path) -> None:
    ds, sampler = made(pack), packio.ShuffleSampler(COUNT, 8)
    flips = set()
    for _ in range(3):
        drawn: list[Any] = list(sampler)
        images, labels = ds.gather(drawn)
        for index, image, label in zip(drawn, images, labels.tolist(), strict=True):
            placement: Any = ds.draw_of(index)
            flips.add((placement.hflip, placement.vflip))
            np.testing.assert_array_equal(taken(placement, upright(label)), image.numpy())
            again = ds.draw_of(index.position, index.epoch, index=int(index))
            assert again == placement
            assert torch.equal(ds[index][0], image)
    assert len(flips) == 4


def test_without_an_index_the_sample_is_that_of_an_epoch_in_order(pack: pathlib.Path) -> None:
    ds = made(pack)
    for position in range(COUNT):
        expected = ds.draw_of(PositionedIndex(position, 5, position))
        assert ds.draw_of(position, 5) == expected


def test_each_view_has_a_draw_of_its_own(pack: pathlib.Path) -> None:
    ds = made(pack, crop=None, views=[packio.RandomCrop(12), packio.RandomCrop(9, 2)])
    drawn = list(packio.ShuffleSampler(COUNT, 8))
    views, labels = ds.gather(drawn)
    for slot, index in enumerate(drawn):
        placements: Any = ds.draw_of(index)
        assert len(placements) == 2
        for view, placement in zip(views, placements, strict=True):
            pixels = upright(int(labels[slot]))
            np.testing.assert_array_equal(taken(placement, pixels), view[slot].numpy())


def test_several_packs_and_parts_draw_as_one(pack: pathlib.Path) -> None:
    part = made(pack).subset([7, 2, 5, 1])
    ds = packio.ConcatPacks([part, made(pack, hflip=0)], seed=11).subset([14, 0, 3, 8, 2])
    drawn = [PositionedIndex(i, 2, 40 - i) for i in (3, 0, 4, 1, 2)]
    images, labels = ds.gather(drawn)
    for index, image, label in zip(drawn, images, labels.tolist(), strict=True):
        placement = ds.draw_of(index)
        np.testing.assert_array_equal(taken(placement, upright(label)), image.numpy())


def test_nothing_random_needs_no_draw(pack: pathlib.Path) -> None:
    ds = made(pack, crop=None, hflip=0, vflip=0)
    placement: Any = ds.draw_of(4, 0)
    assert placement.frame[:4] == (0, 0, *upright(4).shape[:2])
    assert (placement.hflip, placement.vflip) == (False, False)


def test_what_is_no_sample_of_an_epoch_is_refused(pack: pathlib.Path) -> None:
    ds = made(pack)
    with pytest.raises(OptionError, match="epoch=None"):
        ds.draw_of(3)
    with pytest.raises(IndexError, match="12 samples"):
        ds.draw_of(12, 0)
    assert ds.draw_of(12, 0, index=0) != ds.draw_of(13, 0, index=0)
