"""Batches of aspect-ratio buckets, as datasets make them: pixels, masks, boxes, other fields."""

from __future__ import annotations

import io
import math
import pathlib
from typing import Any

import coordinates
import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch.utils.data import ConcatDataset, DataLoader, Subset

import packio
from packio.errors import OptionError
from packio.images.geometry import Geometry

SIZES = [(48, 24), (32, 32), (24, 48)]
_FIELDS = ("image", "mask", "boxes", "label", "caption")


def plain_bucketing(
    images: list[tuple[int, int]], sizes: list[tuple[int, int]]
) -> tuple[list[int], list[float]]:
    """Bucket of each image, and the share of its pixels that is cropped away.

    As scripts that train text-to-image models do it: the nearest ratio; the image is scaled so that
    it covers the bucket, and what juts out is cut off.
    """
    numbers, lost = [], []
    for height, width in images:
        differences = [abs(math.log(width / height) - math.log(w / h)) for h, w in sizes]
        number = differences.index(min(differences))
        high, broad = sizes[number]
        scale = max(high / height, broad / width)
        numbers.append(number)
        lost.append(1 - high * broad / (height * scale * width * scale))
    return numbers, lost


@pytest.fixture(scope="module")
def images() -> list[dict[str, Any]]:
    """Stored images of coordinates, turned in all ways, with masks, boxes and captions."""
    r = np.random.default_rng(0)
    samples = []
    for number in range(64):
        size = tuple(r.integers(8, 63, 2).tolist())
        samples.append({
            "image": coordinates.png(coordinates.image_of(*size), number % 8 + 1),
            "mask": coordinates.png(coordinates.mask_of(*size, wide=False)),
            "boxes": coordinates.BOXES[: number % 4],
            "label": number,
            "caption": f"caption {number}",
        })  # fmt: skip
    return samples


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory, images: list[Any]) -> pathlib.Path:
    out = tmp_path_factory.mktemp("buckets") / "a.tar"
    return packio.pack(images, out, boxes_frame="stored").out


def _upright(images: list[dict[str, Any]]) -> list[tuple[int, int]]:
    opened = [ImageOps.exif_transpose(Image.open(io.BytesIO(s["image"]))) for s in images]
    return [(image.height, image.width) for image in opened]


def _number(batch: list[Any]) -> int:
    return SIZES.index(batch[0].size)


def _batches(dataset: Any, **options: Any) -> list[Any]:
    sampler = packio.BucketSampler(dataset, SIZES, batch_size=5, leftovers="short", **options)
    return list(packio.Loader(dataset, batch_sampler=sampler))


def test_images_go_where_a_plain_script_puts_them_and_lose_as_much(
    pack: pathlib.Path, images: list[Any]
) -> None:
    numbers, lost = plain_bucketing(_upright(images), SIZES)
    ds = packio.TarDataset(pack, crop=packio.BucketCrop())
    sampler = packio.BucketSampler(ds, SIZES, batch_size=5, leftovers="short")
    found = {int(i): _number(batch) for batch in sampler for i in batch}
    assert [found[i] for i in range(64)] == numbers
    for number, bucket in enumerate(sampler.buckets):
        mine = [share for own, share in zip(numbers, lost, strict=True) if own == number]
        assert bucket.size == SIZES[number]
        assert bucket.images == len(mine) > 5
        # a side is a whole number of pixels: half a pixel of 8 at most
        assert bucket.lost_mean == pytest.approx(np.mean(mine), abs=0.01)
        assert bucket.lost_worst == pytest.approx(max(mine), abs=0.07)
        sides = [size for own, size in zip(numbers, _upright(images), strict=True) if own == number]
        small = [h < bucket.size[0] or w < bucket.size[1] for h, w in sides]
        assert bucket.enlarged == sum(small)


@pytest.mark.parametrize("small", ["enlarge", "pad"])
@pytest.mark.parametrize("position", ["random", "center"])
def test_masks_and_other_fields_follow_the_size_of_their_batch(
    pack: pathlib.Path, images: list[Any], small: str, position: str
) -> None:
    crop = packio.BucketCrop(position=position, small=small, interpolation="nearest")
    ds = packio.TarDataset(pack, crop=crop, hflip=0.5, vflip=0.5, fields=_FIELDS, seed=3)
    upright, seen = _upright(images), []
    for pixels, masks, boxes, labels, captions in _batches(ds):
        size = tuple(pixels.shape[2:])
        assert pixels.is_contiguous()
        assert masks.shape == (len(pixels), *size)
        for image, mask, own, label, caption in zip(
            pixels, masks, boxes, labels.tolist(), captions, strict=True
        ):
            seen.append(label)
            number = plain_bucketing([upright[label]], SIZES)[0][0]
            assert size == SIZES[number]
            assert caption == f"caption {label}"
            x, y, inside = coordinates.stored_places(image)
            expected = np.where(inside, coordinates.id_at(x, y, wide=False), 255)
            np.testing.assert_array_equal(mask.numpy(), expected)
            is_small = upright[label][0] < size[0] or upright[label][1] < size[1]
            assert inside.all() or (small == "pad" and is_small)
            if small == "pad" and is_small:  # each pixel at most once
                places = np.stack([x[inside], y[inside]])
                assert np.unique(places, axis=1).shape == places.shape
                sides = [min(pair) for pair in zip(upright[label], size, strict=True)]
                assert inside.sum() == math.prod(sides)
            _assert_boxes(own, image, label)
    assert sorted(seen) == list(range(64))


def _assert_boxes(boxes: torch.Tensor, image: torch.Tensor, label: int) -> None:
    """The pixels within each box are those that were in one of its sample's boxes."""
    x, y, inside = coordinates.stored_places(image)
    stored = coordinates.BOXES[: label % 4]
    assert len(boxes) <= len(stored)
    for left, top, right, bottom in boxes.round().int().tolist():
        part = np.s_[top + 1 : bottom - 1, left + 1 : right - 1]
        if not inside[part].size:
            continue
        middle = x[part][inside[part]], y[part][inside[part]]
        held = [
            ((middle[0] >= a - 2) & (middle[0] <= c + 1) & (middle[1] >= b - 2)
             & (middle[1] <= d + 1)).all()
            for a, b, c, d in stored
        ]  # fmt: skip
        assert any(held)


def test_the_middle_is_what_pillow_crops_and_resizes(
    tmp_path: pathlib.Path, photos: list[np.ndarray]
) -> None:
    """A dozen photographs: the box in plain numbers, Pillow's antialiased resizing."""
    packio.pack([{"image": photo, "label": i} for i, photo in enumerate(photos)], tmp_path / "a.h5")
    ds = packio.Hdf5Dataset(tmp_path / "a.h5", crop=packio.BucketCrop(position="center"))
    sizes = [(96, 64), (80, 80), (64, 96)]
    sampler = packio.BucketSampler(ds, sizes, batch_size=3, leftovers="short")
    numbers = plain_bucketing([p.shape[:2] for p in photos], sizes)[0]
    seen = []
    for images, labels in packio.Loader(ds, batch_sampler=sampler):
        for image, label in zip(images, labels.tolist(), strict=True):
            (high, broad), photo = sizes[numbers[label]], Image.fromarray(photos[label])
            width = min(photo.width, round(photo.height * broad / high))
            height = min(photo.height, round(photo.width * high / broad))
            left, top = (photo.width - width) // 2, (photo.height - height) // 2
            box = (left, top, left + width, top + height)
            small = photo.crop(box).resize((broad, high), Image.Resampling.BILINEAR)
            plain = np.array(small, int)
            assert np.abs(image.numpy().transpose(1, 2, 0) - plain).max() <= 2
            seen.append(label)
    assert sorted(seen) == list(range(12))


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_change_nothing(pack: pathlib.Path, persistent: bool) -> None:
    def made() -> Any:
        ds = packio.TarDataset(
            pack, crop=packio.BucketCrop(), hflip=0.5, fields=_FIELDS[:2], seed=3, threads=2
        )
        return ds, packio.BucketSampler(ds, SIZES, batch_size=5, seed=1)

    ds, sampler = made()
    plain = DataLoader(ds, batch_sampler=sampler, collate_fn=packio.collate)
    expected = [batch for _ in range(2) for batch in plain]
    assert len({tuple(images.shape[2:]) for images, _ in expected}) == 3
    for loader in (packio.Loader, DataLoader):
        for workers in (0, 2):
            ds, sampler = made()
            options: dict[str, Any] = {"batch_sampler": sampler, "num_workers": workers}
            if workers:
                options["persistent_workers"] = persistent
            if loader is DataLoader:
                options["collate_fn"] = packio.collate
            given = loader(ds, **options)
            found = [batch for _ in range(2) for batch in given]
            for one, other in zip(found, expected, strict=True):
                assert all(map(torch.equal, one, other))


def test_one_sample_of_a_batch_is_the_same_by_itself(pack: pathlib.Path) -> None:
    for position in ("random", "center"):
        ds = packio.TarDataset(
            pack, crop=packio.BucketCrop(position=position), fields=_FIELDS[:2], seed=3
        )
        for batch in packio.BucketSampler(ds, SIZES, batch_size=5, leftovers="short"):
            for one, other in zip(ds.__getitems__(batch), map(ds.__getitem__, batch), strict=True):
                assert all(map(torch.equal, one, other))


def test_parts_and_several_packs_have_buckets(pack: pathlib.Path, images: list[Any]) -> None:
    ds = packio.TarDataset(pack, crop=packio.BucketCrop(), fields=("image", "label"), seed=3)
    numbers, _ = plain_bucketing(_upright(images), SIZES)
    part = ds.subset(range(63, 3, -2))
    mixed = packio.ConcatPacks([ds, part]).subset([70, 3, 64, 20, 5, 80, 81, 82])
    parts: list[Any] = [
        part, packio.ConcatPacks([part, ds]), mixed, ConcatDataset([part, ds]),
        Subset(ds, [9, 60, 3, 17]),
    ]  # fmt: skip
    for data in parts:
        sampler = packio.BucketSampler(data, SIZES, batch_size=4, leftovers="short")
        loader = packio.Loader(data, batch_sampler=sampler)
        if isinstance(data, ConcatDataset):  # it calls its datasets with plain ints
            with pytest.raises(OptionError, match="carry no size"):
                next(iter(loader))
            continue
        seen = 0
        for pixels, labels in loader:
            assert {SIZES[numbers[label]] for label in labels.tolist()} == {tuple(pixels.shape[2:])}
            seen += len(labels)
        assert seen == len(data)


def test_images_that_are_not_turned_upright_are_assigned_as_they_are_stored(
    pack: pathlib.Path, images: list[Any]
) -> None:
    ds = packio.TarDataset(pack, crop=packio.BucketCrop(), exif_orientation=False)
    stored = [Image.open(io.BytesIO(s["image"])) for s in images]
    numbers, _ = plain_bucketing([(image.height, image.width) for image in stored], SIZES)
    assert numbers != plain_bucketing(_upright(images), SIZES)[0]
    sampler = packio.BucketSampler(ds, SIZES, batch_size=1)
    assert {int(b[0]): _number(b) for b in sampler} == dict(enumerate(numbers))


def test_a_batch_that_is_no_batch_of_a_bucket_says_what_to_do(pack: pathlib.Path) -> None:
    ds = packio.TarDataset(pack, crop=packio.BucketCrop(), seed=3)
    sampler = packio.BucketSampler(ds, SIZES, batch_size=4)
    for wrong in (lambda: ds[0], lambda: ds.__getitems__([0, 1]), lambda: ds.gather([3])):
        with pytest.raises(OptionError, match="batch_sampler="):
            wrong()
    with pytest.raises(OptionError, match="batch_sampler="):
        next(iter(DataLoader(ds, 2, sampler=sampler, collate_fn=packio.collate)))
    several = {b[0].size: b for b in sampler}
    with pytest.raises(OptionError, match="one size"):
        ds.__getitems__([i for batch in several.values() for i in batch])
    sized = ds.with_options(crop=packio.BucketCrop((16, 24)), fields="image")
    assert sized[0].shape == (3, 16, 24)
    assert packio.collate(sized.__getitems__([0, 1])).shape == (2, 3, 16, 24)
    batch: Any = next(iter(sampler))
    assert sized.gather(batch).shape == (4, 3, *batch[0].size)


def test_several_views_of_a_batch(pack: pathlib.Path) -> None:
    views: list[Geometry | None] = [
        packio.BucketCrop(),
        packio.RandomResizedCrop(16),
        packio.BucketCrop(position="center"),
    ]
    ds = packio.TarDataset(pack, views=views, fields="image", seed=3)
    for batch in _batches(ds):
        first, second, third = (tuple(view.shape[2:]) for view in batch)
        assert first == third
        assert first in SIZES
        assert second == (16, 16)


def test_memory_that_is_given_has_to_fit(pack: pathlib.Path) -> None:
    ds = packio.TarDataset(pack, crop=packio.BucketCrop(), fields="image", seed=3)
    batch: Any = next(iter(packio.BucketSampler(ds, SIZES, batch_size=4)))
    out = torch.empty((4, 3, *batch[0].size), dtype=torch.uint8)
    assert ds.gather(batch, out=out).data_ptr() == out.data_ptr()
    with pytest.raises(OptionError, match="out="):
        ds.gather(batch, out=torch.empty((4, 3, 7, 7), dtype=torch.uint8))
