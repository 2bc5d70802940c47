"""Named fields of a pack, as samples and batches give them."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from types import ModuleType
from typing import Any

import named
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

import packio
from packio.errors import IntegrityError, OptionError

_COUNT, _SIZE = 12, (40, 60)
_ALL = ("image", "depth", "second", "seg", "vector", "caption", "blob", "label")


class Made:
    """A pack, and what is in it."""

    def __init__(self, path: Path, *, raw: bool = False, lacking: tuple[int, ...] = ()) -> None:
        draw = np.random.default_rng(0)
        high, broad = _SIZE
        self.images = draw.integers(0, 256, (_COUNT, high, broad, 3), np.uint8)
        self.depths = draw.integers(0, 1 << 16, (_COUNT, high, broad)).astype(np.uint16)
        self.seconds = draw.integers(0, 256, (_COUNT, high // 2, broad // 2, 3), np.uint8)
        self.segs = draw.integers(0, 9, (_COUNT, high, broad), np.uint8)
        self.vectors = draw.random((_COUNT, 2, 3), np.float32)
        self.captions = [f"Bild {i}, größer" for i in range(_COUNT)]
        self.blobs = [bytes(range(i)) for i in range(1, _COUNT + 1)]
        self.boxes = [np.array([[0, 0, 2, 2], [30, 20, 40, 30]], np.float32)] * _COUNT
        self.crowds = [np.array([100 + i, i]) for i in range(_COUNT)]
        rows = [
            {"image": named.encoded(image), "label": i % 3, "boxes": boxes, "box_labels": [7, 8],
             "caption": "metadata of the same name", "note": i}
            for i, (image, boxes) in enumerate(zip(self.images, self.boxes, strict=True))
        ]  # fmt: skip
        packio.pack(rows, path, encode="raw" if raw else "keep")

        def some(values: Any) -> list[Any]:
            return [None if i in lacking else value for i, value in enumerate(values)]

        self.path = named.add_fields(path, {
            "depth": ("image", some(map(named.encoded, self.depths))),
            "second": ("image", some(map(named.encoded, self.seconds))),
            "seg": ("mask", some(map(named.encoded, self.segs))),
            "vector": ("array", some(map(named.npy, self.vectors))),
            "caption": ("text", some(text.encode() for text in self.captions)),
            "blob": ("bytes", some(self.blobs)),
        }, {"crowd": self.crowds, "area": [np.float32(c / 2) for c in self.crowds]})  # fmt: skip


@pytest.fixture(scope="module", params=[".lmdb", ".tar", "raw"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    raw = request.param == "raw"
    name = "a.h5" if raw else f"a{request.param}"
    return Made(tmp_path_factory.mktemp("packs") / name, raw=raw)


@pytest.fixture(scope="module")
def lmdb(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("packs") / "b.lmdb")


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(_same, a, b))
    return type(a) is type(b) and bool(np.all(a == b))


def test_every_kind_is_what_it_was(made: Made) -> None:
    ds = packio.PackDataset(made.path, fields=_ALL)
    for i in (0, 5):
        image, depth, second, seg, vector, caption, blob, label = ds[i]
        np.testing.assert_array_equal(image.permute(1, 2, 0), made.images[i])
        assert depth.dtype == torch.uint16
        np.testing.assert_array_equal(depth[0].numpy(), made.depths[i])
        np.testing.assert_array_equal(second.permute(1, 2, 0), made.seconds[i])
        np.testing.assert_array_equal(seg, made.segs[i])
        np.testing.assert_array_equal(vector, made.vectors[i])
        assert vector.dtype == torch.float32
        assert (caption, blob, label) == (made.captions[i], made.blobs[i], i % 3)


def test_a_crop_takes_the_same_box_of_every_image_and_mask(made: Made) -> None:
    crop = packio.CenterCrop((20, 30))
    ds = packio.PackDataset(made.path, crop=crop, hflip=1.0, fields=("depth", "second", "seg"))
    depth, second, seg = ds[4]
    top, left = 10, 15
    expected = made.depths[4][top : top + 20, left : left + 30][:, ::-1]
    np.testing.assert_array_equal(depth[0].numpy(), expected)
    np.testing.assert_array_equal(seg, made.segs[4][top : top + 20, left : left + 30][:, ::-1])
    grown = Image.fromarray(made.seconds[4]).resize((60, 40), Image.Resampling.NEAREST)
    part = np.asarray(grown)[top : top + 20, left : left + 30][:, ::-1]
    np.testing.assert_array_equal(second.permute(1, 2, 0), part)


def test_a_smaller_image_is_cut_in_proportion_and_resized(lmdb: Made) -> None:
    ds = packio.PackDataset(lmdb.path, crop=packio.Resize((10, 20)), fields=("image", "second"))
    for i in (1, 2):
        second = ds.__getitems__([i])[0][1].permute(1, 2, 0).numpy().astype(int)
        small = Image.fromarray(lmdb.seconds[i]).resize((20, 10), Image.Resampling.BILINEAR)
        assert np.abs(second - np.asarray(small, int)).max() <= 1


@pytest.mark.parametrize(
    "crop", [packio.RandomResizedCrop(16), packio.RandomCrop(24, padding=4), None], ids=repr
)
def test_images_of_one_content_stay_alike(tmp_path: Path, crop: Any) -> None:
    """The second image is the first: whatever is drawn, both come out alike."""
    draw = np.random.default_rng(1)
    files = [named.encoded(draw.integers(0, 256, (30 + i, 50 - i, 3), np.uint8)) for i in range(9)]
    packio.pack([{"image": file} for file in files], tmp_path / "a.lmdb")
    path = named.add_fields(tmp_path / "a.lmdb", {"other": ("image", files)})
    ds = packio.PackDataset(
        path, crop=crop, hflip=0.5, vflip=0.5, seed=3, fields=("image", "other")
    )
    for image, other in [*ds.__getitems__(range(9)), *(ds[i] for i in range(9))]:
        assert torch.equal(image, other)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_orientation_turns_further_images(tmp_path: Path, orientation: int, own: bool) -> None:
    """A file with an orientation of its own is turned by it, another as its sample's image."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    pixels = np.random.default_rng(2).integers(0, 256, (24, 36, 3), np.uint8)
    turned = named.encoded(pixels, exif=exif)
    packio.pack([{"image": turned}], tmp_path / "a.lmdb")
    other = turned if own else named.encoded(pixels)
    path = named.add_fields(tmp_path / "a.lmdb", {"other": ("image", [other])})
    for upright in (True, False):
        ds = packio.PackDataset(
            path, fields=("image", "other"), exif_orientation=upright, crop=packio.CenterCrop(16)
        )
        for image, further in (ds[0], ds.__getitems__([0])[0]):
            assert torch.equal(image, further)


def test_batches_stack_what_is_alike(made: Made) -> None:
    ds = packio.PackDataset(made.path, crop=packio.CenterCrop(16), fields={n: n for n in _ALL})
    batch = packio.collate(ds.__getitems__([3, 1, 3]))
    shapes = {name: tuple(v.shape) for name, v in batch.items() if isinstance(v, torch.Tensor)}
    assert shapes == {
        "image": (3, 3, 16, 16), "depth": (3, 1, 16, 16), "second": (3, 3, 16, 16),
        "seg": (3, 16, 16), "vector": (3, 2, 3), "label": (3,),
    }  # fmt: skip
    assert batch["caption"] == [made.captions[i] for i in (3, 1, 3)]
    assert batch["blob"] == [made.blobs[i] for i in (3, 1, 3)]
    assert all(_same(batch[name], value) for name, value in ds.gather([3, 1, 3]).items())
    for slot, i in enumerate((3, 1, 3)):
        single = ds[i]
        assert all(_same(batch[name][slot], single[name]) for name in _ALL if name != "label")


def test_values_that_a_sample_lacks_are_none(tmp_path: Path) -> None:
    made = Made(tmp_path / "a.lmdb", lacking=(1, 4))
    names = ("depth", "second", "seg", "vector", "caption", "blob")
    ds = packio.PackDataset(
        made.path, crop=packio.CenterCrop(16), fields=names, dtype=torch.float16
    )
    for depth, second, seg, vector, caption, blob in (ds[1], ds.__getitems__([0, 1])[1]):
        assert (depth, second, vector, caption, blob) == (None,) * 5
        assert seg.unique().tolist() == [255]
    depths, seconds, segs, vectors, captions, _ = packio.collate(ds.__getitems__([0, 1, 2]))
    assert [type(v) for v in (depths, seconds, segs, vectors)] == [list, list, torch.Tensor, list]
    assert captions == [made.captions[0], None, made.captions[2]]
    assert depths[0].dtype == torch.float16
    assert packio.collate(ds.__getitems__([0, 2]))[0].shape == (2, 1, 16, 16)


def test_columns_of_boxes_follow_their_boxes(made: Made) -> None:
    names = ("boxes", "box_labels", "crowd", "area")
    ds = packio.PackDataset(made.path, crop=packio.CenterCrop(20), fields=names)
    for boxes, labels, crowd, area in (ds[5], ds.__getitems__([4, 5])[1]):
        assert boxes.tolist() == [[10.0, 10.0, 20.0, 20.0]]
        assert (labels.tolist(), crowd.tolist(), area.tolist()) == ([8], [5], [2.5])
    assert packio.PackDataset(made.path, fields="crowd")[5].tolist() == [105, 5]


def test_the_split_is_a_field(tmp_path: Path) -> None:
    rows = [{"image": named.encoded(np.zeros((4, 4, 3), np.uint8))} for _ in range(20)]
    packio.pack(rows, tmp_path / "a.lmdb", split={"train": 0.5, "val": 0.5})
    ds = packio.PackDataset(tmp_path / "a.lmdb", fields=("split", "index"))
    expected = {int(i): name for name in ("train", "val") for i in ds.pack.split(name)}
    assert {i: name for name, i in ds.__getitems__(range(20))} == expected
    assert ds[3][0] == expected[3]
    assert packio.collate(ds.__getitems__([0, 1]))[0] == [expected[0], expected[1]]


def test_a_field_hides_metadata_of_its_name(made: Made) -> None:
    ds = packio.PackDataset(made.path, fields=("caption", "note"))
    assert ds[2] == (made.captions[2], 2)
    with pytest.raises(OptionError, match=r"no 'dept'; it has image, .*crowd, .*depth, .*, note$"):
        packio.PackDataset(made.path, fields=("image", "dept"))


@pytest.mark.parametrize("output", ["numpy", "pil"])
def test_other_outputs(lmdb: Made, output: str) -> None:
    names = ("image", "depth", "seg", "vector", "caption", "crowd")
    ds = packio.PackDataset(lmdb.path, output=output, fields=names)
    for image, depth, seg, vector, caption, crowd in (ds[3], ds.__getitems__([3])[0]):
        wanted = Image.Image if output == "pil" else np.ndarray
        assert all(isinstance(value, wanted) for value in (image, depth, seg))
        np.testing.assert_array_equal(np.asarray(depth).reshape(_SIZE), lmdb.depths[3])
        np.testing.assert_array_equal(np.asarray(seg), lmdb.segs[3])
        np.testing.assert_array_equal(vector, lmdb.vectors[3])
        assert (type(vector), caption, crowd.tolist()) == (np.ndarray, lmdb.captions[3], [103, 3])


def test_views_are_of_what_crops_touch(lmdb: Made) -> None:
    views = [packio.CenterCrop(8), packio.CenterCrop(12)]
    ds = packio.PackDataset(lmdb.path, views=views, fields=("image", "depth", "seg", "vector"))
    image, depth, seg, vector = ds[0]
    assert [v.shape[-1] for v in (*image, *depth, *seg)] == [8, 12] * 3
    images, depths, segs, vectors = packio.collate(ds.__getitems__([0, 1]))
    assert [tuple(v.shape) for v in depths] == [(2, 1, 8, 8), (2, 1, 12, 12)]
    assert vectors.shape == (2, *vector.shape)
    assert len(images) == len(segs) == 2


def test_workers_and_the_loader_give_the_same(made: Made) -> None:
    ds = packio.PackDataset(made.path, crop=packio.RandomResizedCrop(12), hflip=0.5, seed=5,
                            fields=_ALL)  # fmt: skip
    expected = list(packio.Loader(ds, batch_size=5, sampler=packio.ShuffleSampler(ds, seed=1)))
    sampler = packio.ShuffleSampler(ds, seed=1)
    workers = DataLoader(ds, 5, sampler=sampler, num_workers=2, collate_fn=packio.collate)
    for found, wanted in zip(workers, expected, strict=True):
        assert all(_same(a, b) for a, b in zip(found, wanted, strict=True))
    again = pickle.loads(pickle.dumps(ds))
    assert all(_same(again.subset([2])[0][n], ds.subset([2])[0][n]) for n in (4, 5, 6, 7))


def test_joint_transforms_know_the_kinds(lmdb: Made, torchvision: ModuleType) -> None:
    tv, v2 = torchvision.tv_tensors, torchvision.transforms.v2
    seen: list[Any] = []
    flip = v2.RandomHorizontalFlip(1.0)

    def transforms(*values: Any) -> Any:
        seen.append([type(value) for value in values])
        return flip(*values)

    names = ("caption", "seg", "depth", "image", "crowd", "boxes", "label")
    ds = packio.PackDataset(lmdb.path, fields=names, transforms=transforms,
                            dtype=torch.float32)  # fmt: skip
    caption, seg, depth, image, crowd, *_ = ds[1]
    assert seen == [[tv.Image, tv.Mask, tv.Image, tv.BoundingBoxes, torch.Tensor, int]]
    np.testing.assert_allclose(depth[0], lmdb.depths[1][:, ::-1] / 65535, rtol=1e-6)
    np.testing.assert_array_equal(seg, lmdb.segs[1][:, ::-1])
    assert (caption, crowd.tolist(), type(image)) == (lmdb.captions[1], [101, 1], torch.Tensor)
    assert packio.collate(ds.__getitems__([1, 2]))[2].shape == (2, 1, *_SIZE)


@pytest.mark.parametrize("name", ["depth", "seg", "vector", "caption"])
def test_a_bad_further_field_makes_its_sample_bad(tmp_path: Path, name: str) -> None:
    made = Made(tmp_path / "a.lmdb")
    with packio.open(made.path) as pack:
        row, path = pack.row(2, name), tmp_path / "a.lmdb" / "a.lmdb.fields"
    data = bytearray(path.read_bytes())
    data[row.offset + row.length // 2] ^= 255
    path.write_bytes(data)
    ds = packio.PackDataset(made.path, fields=("key", name), crop=packio.CenterCrop(8))
    with pytest.raises(IntegrityError, match=f"{name} of record 2 "):
        ds[2]
    with pytest.raises(IntegrityError, match=f"{name} of record 2 "):
        ds.gather([1, 2])
    skipping = ds.with_options(on_error="skip")
    with pytest.warns(UserWarning, match=f"{name} of record 2 "):
        keys, values = skipping.gather([1, 2, 3])
    assert keys[1] == keys[2]
    assert _same(values[1], values[2])


def test_concat_packs_join_fields_of_the_same_kind(lmdb: Made, made: Made, tmp_path: Path) -> None:
    names = ("image", "depth", "seg", "vector", "caption", "blob")
    each = [packio.PackDataset(m.path, fields=names, crop=packio.CenterCrop(8), seed=1)
            for m in (lmdb, made)]  # fmt: skip
    both = packio.ConcatPacks(each)
    batch = both.gather([0, _COUNT + 1, 2])
    assert [type(v) for v in batch] == [torch.Tensor] * 4 + [list] * 2
    for slot, (owner, i) in enumerate([(0, 0), (1, 1), (0, 2)]):
        assert all(_same(v[slot], w) for v, w in zip(batch, each[owner][i], strict=True))
    files = [named.encoded(np.zeros((9, 9, 3), np.uint8))] * 2
    packio.pack([{"image": file} for file in files], tmp_path / "c.lmdb")
    with pytest.raises(OptionError, match=r"c\.lmdb has no 'depth'"):
        packio.PackDataset(tmp_path / "c.lmdb", fields="depth")
    path = named.add_fields(tmp_path / "c.lmdb", {"depth": ("bytes", [b"1", b"2"])})
    one = packio.PackDataset(lmdb.path, fields="depth")
    with pytest.raises(OptionError, match="kinds of fields differ"):
        packio.ConcatPacks([one, packio.PackDataset(path, fields="depth")])


def test_kept_in_memory_and_parts(lmdb: Made) -> None:
    ds = packio.PackDataset(lmdb.path, fields=_ALL, cache="ram", cache_bytes=1 << 22)
    expected = packio.PackDataset(lmdb.path, fields=_ALL)
    for _ in range(2):
        found = ds.where(label=1).gather([0, 2])
        assert all(map(_same, found, expected.where(label=1).gather([0, 2])))
    assert ds.ram is not None
    assert ds.ram.hits >= 14


def test_ranges_of_all_fields_are_fetched_at_once(lmdb: Made, monkeypatch: Any) -> None:
    asked: list[dict[str, int]] = []
    fetched = packio.Pack.prefetch

    def spy(pack: packio.Pack, rows: Any) -> packio.Pack:
        asked.append({name: len(each) for name, each in rows.items()})
        return fetched(pack, rows)

    monkeypatch.setattr(packio.Pack, "prefetch", spy)
    packio.PackDataset(lmdb.path, fields=("depth", "caption", "seg", "crowd")).gather([1, 2])
    assert asked == [{"depth": 2, "caption": 2, "seg": 2}]


def test_arrays_that_torch_has_no_type_for_stay_arrays(tmp_path: Path) -> None:
    arrays = [np.array(["a", "bc"]), np.array(["d"]), np.arange(3, dtype=">i4")]
    rows = [{"image": named.encoded(np.zeros((9, 9, 3), np.uint8))} for _ in arrays]
    packio.pack(rows, tmp_path / "a.lmdb")
    path = named.add_fields(
        tmp_path / "a.lmdb", {"names": ("array", [named.npy(a) for a in arrays])}
    )
    ds = packio.PackDataset(path, fields="names")
    assert ds[0].tolist() == ["a", "bc"]
    assert ds[2].dtype == torch.int32
    first, second, third = packio.collate(ds.__getitems__([0, 1, 2]))
    assert (first.tolist(), second.tolist(), third.tolist()) == (["a", "bc"], ["d"], [0, 1, 2])
    assert np.load(io.BytesIO(named.npy(arrays[2]))).tolist() == third.tolist()
