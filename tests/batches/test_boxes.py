"""Boxes hold the pixels that they held before, whatever is cropped, turned and mirrored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import coordinates
import numpy as np
import pytest
import torch

import packio
from packio.errors import OptionError
from packio.images.geometry import Geometry
from packio.index import indexfile

_CUTTING: list[Geometry | None] = [
    None, packio.RandomCrop(16), packio.RandomCrop((50, 20), padding=3), packio.CenterCrop(24),
    packio.CenterCrop((60, 21)),
]  # fmt: skip
_RESIZING: list[Geometry] = [
    packio.Resize((20, 27), interpolation="nearest"), packio.Resize(45, interpolation="nearest"),
    packio.ResizeCenterCrop(20, 0.8, interpolation="nearest"),
    packio.ResizeCenterCrop((70, 30), 0.9, interpolation="nearest"),
    packio.RandomResizedCrop(24, interpolation="nearest"),
    packio.RandomResizedCrop((60, 40), scale=(0.01, 0.5), interpolation="nearest"),
    packio.BucketCrop((30, 20), interpolation="nearest"),
    packio.BucketCrop((16, 48), small="pad", interpolation="nearest"),
    packio.BucketCrop((64, 36), "center", "pad", "nearest"),
]  # fmt: skip
_FIELDS = ("image", "boxes", "box_labels", "index")


@pytest.fixture(scope="module", params=[".lmdb", ".tfrecord", ".zarr"])
def pack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return coordinates.packed(tmp_path_factory.mktemp("packs"), request.param)


@pytest.fixture(scope="module")
def lmdb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return coordinates.packed(tmp_path_factory.mktemp("packs"), ".lmdb")


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("packs") / "raw.h5"
    packio.pack(coordinates.samples(((33, 41),), (1,) * 16), out, encode="raw")
    return out


def _packed(path: Path, boxes: Any, labels: Any = None) -> Path:
    sample = {"image": coordinates.png(coordinates.image_of(33, 41)), "boxes": boxes}
    packio.pack([sample if labels is None else {**sample, "box_labels": labels}], path)
    return path


def assert_covers(sample: Any, count: int, off_by: float) -> None:
    """Compare boxes with the pixels that were in them in the stored image.

    Args:
        sample: Of _FIELDS.
        count: Boxes that were packed.
        off_by: Pixels of the output that a side may differ by: what lies within a pixel is not seen
            where pixels are taken.
    """
    image, boxes, labels, _ = sample
    assert (boxes.dtype, labels.dtype) == (torch.float32, torch.int64)
    assert boxes.shape == (len(labels), 4)
    left = dict(zip(labels.tolist(), boxes.tolist(), strict=True))
    assert list(left) == sorted(left)
    assert set(left) <= set(coordinates.LABELS[:count].tolist())
    x, y, inside = coordinates.stored_places(image)
    for label, (x0, y0, x1, y1) in zip(coordinates.LABELS, coordinates.BOXES[:count], strict=False):
        held = inside & (x >= x0) & (x < x1) & (y >= y0) & (y < y1)
        if not held.any():
            box = left.get(int(label), (0, 0, 0, 0))
            assert min(box[2] - box[0], box[3] - box[1]) <= off_by
            continue
        rows, columns = np.flatnonzero(held.any(1)), np.flatnonzero(held.any(0))
        seen = columns[0], rows[0], columns[-1] + 1, rows[-1] + 1
        np.testing.assert_allclose(left[int(label)], seen, rtol=0, atol=off_by)


@pytest.mark.parametrize("crop", _CUTTING, ids=repr)
@pytest.mark.parametrize(("hflip", "vflip"), [(0, 0), (1, 0), (0, 1), (0.5, 0.5)])
def test_boxes_lie_on_their_pixels(
    pack: Path, crop: Geometry | None, hflip: float, vflip: float
) -> None:
    ds = packio.PackDataset(pack, crop=crop, hflip=hflip, vflip=vflip, fields=_FIELDS, seed=1)
    for sample in [*ds.__getitems__(range(16)), *(ds[i] for i in range(16))]:
        assert_covers(sample, sample[3] % 5, off_by=0)


@pytest.mark.parametrize("crop", _RESIZING, ids=repr)
@pytest.mark.parametrize(("hflip", "vflip"), [(0, 0), (1, 0), (0, 1), (0.5, 0.5)])
def test_resized_boxes_lie_on_their_pixels(
    lmdb: Path, crop: Geometry, hflip: float, vflip: float
) -> None:
    ds = packio.PackDataset(lmdb, crop=crop, hflip=hflip, vflip=vflip, fields=_FIELDS, seed=2)
    for sample in [*ds.__getitems__(range(16)), *(ds[i] for i in range(16))]:
        assert_covers(sample, sample[3] % 5, off_by=1.001)


@pytest.mark.parametrize("crop", [*_CUTTING, *_RESIZING], ids=repr)
def test_boxes_of_raw_pixels_follow_their_windows(raw: Path, crop: Geometry | None) -> None:
    ds = packio.PackDataset(raw, crop=crop, hflip=0.5, vflip=0.5, fields=_FIELDS, seed=3)
    assert ds.pack.raw_rows is not None
    for sample in [*ds.__getitems__(range(16)), *(ds[i] for i in range(16))]:
        assert_covers(sample, sample[3] % 5, off_by=0 if crop in _CUTTING else 1.001)


def test_stored_images_keep_their_boxes(lmdb: Path) -> None:
    ds = packio.PackDataset(lmdb, fields=("boxes", "box_labels"), exif_orientation=False)
    for i, (boxes, labels) in enumerate(ds.__getitems__(range(16))):
        sample = ds.pack[i]
        assert sample.boxes is not None
        size = np.array([sample.width, sample.height] * 2, np.float32)
        np.testing.assert_array_equal(boxes.numpy(), np.minimum(sample.boxes, size))
        np.testing.assert_array_equal(labels.numpy(), sample.box_labels)


def test_sides_are_exact_between_pixels(tmp_path: Path) -> None:
    """Against the arithmetic written out: made three times as wide, then mirrored."""
    boxes = np.array([[2.5, 3.25, 20.125, 30.5], [0.1, 0, 40.9, 33]], np.float32)
    ds = packio.PackDataset(_packed(tmp_path / "a.lmdb", boxes), fields="boxes")
    resized = ds.with_options(crop=packio.Resize((33, 123)))
    np.testing.assert_allclose(resized[0].numpy(), boxes * [3, 1, 3, 1], rtol=1e-6)
    mirrored = resized.with_options(hflip=1.0, vflip=1.0)[0].numpy()
    expected = np.array([123, 33, 123, 33]) - (boxes * [3, 1, 3, 1])[:, [2, 3, 0, 1]]
    np.testing.assert_allclose(mirrored, expected, rtol=1e-5, atol=1e-4)


def test_what_is_not_seen_is_dropped_with_its_label(tmp_path: Path) -> None:
    """Outside the crop, touching it, without width, inside out, not finite."""
    inf, nan = float("inf"), float("nan")
    boxes = [
        [0, 0, 5, 5], [10, 10, 12, 12], [5, 5, 12, 20], [15, 11, 15, 30], [20, 20, 14, 14],
        [nan, 10, 20, 20], [10, 10, inf, 20], [30.5, 10, 40, 30], [12, 12, 41, 33],
    ]  # fmt: skip
    out = _packed(tmp_path / "a.lmdb", np.zeros((9, 4), np.float32), np.arange(9))
    index = indexfile.Index(out / "index.packio")  # packing refuses such boxes
    table = {name: index.column(name).array() for name in index.column_names}
    table["boxes"] = np.array(boxes, np.float32)
    indexfile.write(out / "index.packio", table, index.metadata)
    crop = packio.CenterCrop((13, 21))  # from (10, 10): 41 x 33
    ds = packio.PackDataset(out, fields=("boxes", "box_labels"), crop=crop)
    found, labels = ds[0]
    assert labels.tolist() == [1, 2, 7, 8]
    assert found.tolist() == [[0, 0, 2, 2], [0, 0, 2, 10], [20.5, 0, 21, 13], [2, 2, 21, 13]]
    assert ds.with_options(crop=None)[0][1].tolist() == [0, 1, 2, 7, 8]


def test_no_boxes_are_empty_tensors(lmdb: Path) -> None:
    ds = packio.PackDataset(lmdb, fields=("boxes", "box_labels"), crop=packio.CenterCrop(8))
    for boxes, labels in (ds[0], *ds.__getitems__([0, 5])):
        assert (tuple(boxes.shape), tuple(labels.shape)) == ((0, 4), (0,))
        assert (boxes.dtype, labels.dtype) == (torch.float32, torch.int64)
    assert ds.__getitems__([]) == []


def test_collate_gives_lists(lmdb: Path) -> None:
    crop = packio.Resize((40, 40))
    ds = packio.PackDataset(lmdb, fields=("image", "boxes", "box_labels"), crop=crop)
    for samples in (ds.__getitems__([4, 1, -3]), ds.with_options(transform=torch.neg)):
        batch = samples if isinstance(samples, list) else samples.__getitems__([4, 1, -3])
        images, boxes, labels = packio.collate(batch)
        assert images.shape == (3, 3, 40, 40)
        assert [type(boxes), type(labels)] == [list, list]
        assert [len(b) for b in boxes] == [len(i) for i in labels] == [4, 1, 3]
        assert torch.equal(boxes[1], ds[1][1])
    assert all(torch.equal(a, b) for a, b in zip(ds.gather([4, 1, -3])[1], boxes, strict=True))
    alike = packio.collate(ds.__getitems__([4, 4]))[1]
    assert isinstance(alike, list)


def test_views_each_have_their_boxes(lmdb: Path) -> None:
    ds = packio.PackDataset(
        lmdb,
        views=[packio.RandomCrop(18), packio.CenterCrop(30)],
        hflip=0.5,
        fields=_FIELDS,
        seed=7,
    )
    for images, boxes, labels, index in [*ds.__getitems__(range(16)), ds[9]]:
        for view in zip(images, boxes, labels, strict=True):
            assert_covers((*view, index), index % 5, off_by=0)
    batch = packio.collate(ds.__getitems__([3, 4]))
    assert [len(view) for view in batch[1]] == [2, 2]
    assert [type(view) for view in batch[1]] == [list, list]


@pytest.mark.parametrize("output", ["numpy", "pil"])
def test_boxes_are_arrays_where_images_are_no_tensors(lmdb: Path, output: str) -> None:
    ds = packio.PackDataset(lmdb, output=output, fields=("boxes", "box_labels"))
    for boxes, labels in (ds[4], *ds.__getitems__([4])):
        assert isinstance(boxes, np.ndarray)
        assert boxes.shape == (4, 4)
        assert labels.tolist() == coordinates.LABELS.tolist()


def test_a_replaced_sample_brings_its_boxes(tmp_path: Path) -> None:
    rows = coordinates.samples(((33, 41),), (1,) * 4)
    rows[2]["image"] = rows[2]["image"][:-40]
    packio.pack(rows, tmp_path / "a.lmdb")
    ds = packio.PackDataset(
        tmp_path / "a.lmdb", crop=packio.RandomCrop(20), seed=0, on_error="skip", fields=_FIELDS
    )
    with pytest.warns(UserWarning, match="sample 2"):
        samples = ds.__getitems__([0, 1, 2, 3])
    assert [index for *_, index in samples] == [0, 1, 3, 3]
    for sample in samples:
        assert_covers(sample, sample[3], off_by=0)


def test_boxes_without_labels(tmp_path: Path) -> None:
    out = _packed(tmp_path / "a.lmdb", coordinates.BOXES)
    assert packio.PackDataset(out, fields=("boxes", "image"))[0][0].shape == (4, 4)
    with pytest.raises(OptionError, match="has no 'box_labels'"):
        packio.PackDataset(out, fields=("boxes", "box_labels"))
