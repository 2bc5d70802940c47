"""Datasets: one sample, one batch, fields, modes, outputs, options, bad samples."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import made
import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

import packio
from packio.errors import DecodeError, IntegrityError, ModeError, OptionError
from packio.index import indexfile
from packio.index.indexfile import Index


@pytest.fixture(scope="module")
def pack(image_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("packs") / "photos.lmdb"
    packio.pack(image_folder, out)
    return out


@pytest.fixture(scope="module")
def truth(image_folder: Path, pack: Path) -> list[np.ndarray]:
    """Every image as Pillow has it, upright, (H, W, 3) RGB."""
    keys = packio.open(pack).keys()
    return [
        np.asarray(ImageOps.exif_transpose(Image.open(image_folder / key)).convert("RGB"))
        for key in keys
    ]


@pytest.fixture
def damaged(pack: Path, tmp_path: Path) -> tuple[Path, int]:
    """A copy of the pack with one bit of sample 5's data flipped."""
    copy = shutil.copytree(pack, tmp_path / "damaged.lmdb")
    made.damage(copy, 5)
    return copy, 5


def test_samples_equal_pillows(pack: Path, truth: list[np.ndarray]) -> None:
    ds = packio.LmdbDataset(pack)
    assert len(ds) == len(truth)
    for i, expected in enumerate(truth):
        image, label = ds[i]
        np.testing.assert_array_equal(image.numpy(), expected.transpose(2, 0, 1))
        assert image.is_contiguous()
        assert image.dtype == torch.uint8
        assert ds.classes[label] == ds.pack.key(i).split("/")[0]


def test_labels_and_classes_are_as_the_folders(pack: Path) -> None:
    ds = packio.LmdbDataset(pack)
    assert ds.classes == ["machines", "nature", "people"]
    assert ds.class_to_idx == {"machines": 0, "nature": 1, "people": 2}
    assert ds.targets is not None
    assert ds.targets.tolist() == [ds[i][1] for i in range(len(ds))]


def test_a_batch_equals_its_samples_in_the_order_asked_for(pack: Path) -> None:
    ds = packio.LmdbDataset(pack, crop=packio.Resize((40, 30)))
    indices = [7, 0, 3, 3, -1, 19]
    batch = packio.collate(ds.__getitems__(indices))
    assert [type(part) for part in batch] == [torch.Tensor, torch.Tensor]
    assert batch[0].shape == (6, 3, 40, 30)
    assert packio.is_contiguous_batch(batch)
    for row, i in enumerate(indices):
        image, label = ds[i]
        assert torch.equal(batch[0][row], image)
        assert batch[1][row] == label


def test_collate_notices_a_changed_list(pack: Path) -> None:
    ds = packio.LmdbDataset(pack, crop=packio.CenterCrop(32))
    samples = ds.__getitems__([1, 2, 3])
    samples.reverse()
    images, labels = packio.collate(samples)
    assert torch.equal(images[0], ds[3][0])
    assert labels.tolist() == [ds[i][1] for i in (3, 2, 1)]


def test_default_collate_gives_the_same(pack: Path) -> None:
    fields = ("image", "label", "key", "index")
    ds = packio.LmdbDataset(pack, crop=packio.CenterCrop(32), fields=fields)
    samples = ds.__getitems__([4, 2, 0])
    ours, theirs = packio.collate(samples), torch.utils.data.default_collate(list(samples))
    assert type(ours) is type(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert type(a) is type(b)
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
        assert not isinstance(a, torch.Tensor) or a.dtype == b.dtype


@pytest.mark.parametrize(
    ("fields", "kind"),
    [("image", torch.Tensor), (("image",), tuple), ({"pixel_values": "image", "y": "label"}, dict)],
)
def test_fields_have_the_shape_asked_for(pack: Path, fields: Any, kind: type) -> None:
    ds = packio.LmdbDataset(pack, crop=packio.CenterCrop(32), fields=fields)
    assert isinstance(ds[0], kind)
    samples = ds.__getitems__([0, 1])
    assert isinstance(samples[0], kind)
    batch = packio.collate(samples)
    theirs = torch.utils.data.default_collate(list(samples))
    assert type(batch) is type(theirs)
    if kind is dict:
        assert list(batch) == list(theirs) == ["pixel_values", "y"]


def test_fields_without_image_read_no_image(damaged: tuple[Path, int]) -> None:
    ds = packio.LmdbDataset(damaged[0], fields=("key", "label", "index"))
    assert ds[5][2] == 5
    assert packio.collate(ds.__getitems__([5, 6]))[0] == (ds.pack.key(5), ds.pack.key(6))


@pytest.mark.parametrize("mode", ["RGB", "GRAY", "RGB_ALPHA", "UNCHANGED"])
@pytest.mark.parametrize("output", ["tensor", "numpy", "pil"])
def test_modes_and_outputs_equal_pillows(
    pack: Path, image_folder: Path, mode: str, output: str
) -> None:
    ds = packio.LmdbDataset(pack, mode=mode, output=output)
    for i in range(len(ds)):
        image = ImageOps.exif_transpose(Image.open(image_folder / ds.pack.key(i)))
        target = {"RGB": "RGB", "GRAY": "L", "RGB_ALPHA": "RGBA"}.get(mode)
        if target is None:
            target = "L" if image.mode == "L" else "RGB"
        expected = np.asarray(image.convert(target))
        expected = expected[:, :, None] if expected.ndim == 2 else expected
        got = ds[i][0]
        if output == "tensor":
            np.testing.assert_array_equal(got.numpy(), expected.transpose(2, 0, 1))
        elif output == "numpy":
            np.testing.assert_array_equal(got, expected)
            assert got.flags.c_contiguous
        else:
            assert isinstance(got, Image.Image)
            assert got.mode == target
            np.testing.assert_array_equal(np.asarray(got).reshape(expected.shape), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_float_types_are_scaled_to_one(pack: Path, dtype: torch.dtype) -> None:
    plain = packio.LmdbDataset(pack, crop=packio.CenterCrop(32))
    ds = plain.with_options(dtype=dtype)
    expected = (plain[3][0].float() / 255).to(dtype)
    assert torch.equal(ds[3][0], expected)
    images, _ = packio.collate(ds.__getitems__([3, 4]))
    assert torch.equal(images[0], expected)
    assert packio.LmdbDataset(pack, dtype=dtype)[3][0].dtype == dtype  # whole frames too


def test_orientation_can_be_left_alone(pack: Path, image_folder: Path) -> None:
    ds = packio.LmdbDataset(pack, exif_orientation=False)
    i = ds.pack.find("people/rotated.jpg")
    stored = np.asarray(Image.open(image_folder / "people/rotated.jpg"))
    np.testing.assert_array_equal(ds[i][0].numpy(), stored.transpose(2, 0, 1))


def test_views_are_crops_of_one_read(pack: Path) -> None:
    crop = packio.RandomResizedCrop(24)
    ds = packio.LmdbDataset(pack, views=[crop, crop, packio.CenterCrop(16)])
    (a, b, c), _ = ds[9]
    assert a.shape == b.shape == (3, 24, 24)
    assert c.shape == (3, 16, 16)
    assert not torch.equal(a, b)
    batch = packio.collate(ds.__getitems__([9, 9]))
    assert [tuple(v.shape) for v in batch[0]] == [(2, 3, 24, 24), (2, 3, 24, 24), (2, 3, 16, 16)]
    theirs = torch.utils.data.default_collate(list(ds.__getitems__([9, 9])))
    assert [v.shape for v in theirs[0]] == [v.shape for v in batch[0]]


def test_with_options_keeps_the_rest(pack: Path) -> None:
    ds = packio.LmdbDataset(pack, crop=packio.RandomResizedCrop(24), hflip=0.5, seed=3)
    ds.transform = torch.neg
    other = ds.with_options(crop=packio.CenterCrop(20), hflip=0.0)
    assert other[0][0].shape == (3, 20, 20)
    assert other.seed == 3
    assert other.transform is torch.neg
    assert ds[0][0].shape == (3, 24, 24)
    with pytest.raises(OptionError, match="no such option: corp"):
        ds.with_options(corp=None)


def test_by_key_and_repr(pack: Path) -> None:
    ds = packio.LmdbDataset(pack, crop=packio.CenterCrop(24), decoder="pillow")
    key = ds.pack.key(11)
    assert torch.equal(ds.by_key(key)[0], ds[11][0])
    assert ds.by_key(key.encode())[1] == ds[11][1]
    assert "CenterCrop(size=24)" in repr(ds)
    assert "decoder='pillow'" in repr(ds)
    assert "output" not in repr(ds)
    with pytest.raises(KeyError, match="no sample has the key"):
        ds.by_key("nowhere.jpg")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "BGR"}, "RGB"),
        ({"output": "list"}, "tensor"),
        ({"dtype": torch.int64}, "float32"),
        ({"dtype": torch.float32, "output": "pil"}, "needs output"),
        ({"on_error": "ignore"}, "skip"),
        ({"decoder": "nothing"}, "pillow"),
        ({"fields": ("image", "labels")}, "label"),
        ({"fields": ()}, "label"),
        ({"hflip": 2}, "probability"),
        ({"threads": 0}, "at least 1"),
        ({"views": []}, "1 to 16"),
        ({"views": [None], "crop": packio.CenterCrop(3)}, "exclude"),
        ({"access": "hdf5"}, "lmdb"),
    ],
)
def test_senseless_options_are_refused(pack: Path, options: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        packio.LmdbDataset(pack, **options)


def test_damage_is_an_error_that_names_the_sample(damaged: tuple[Path, int]) -> None:
    ds = packio.LmdbDataset(damaged[0], crop=packio.CenterCrop(32))
    name = ds.pack.key(5)
    with pytest.raises(IntegrityError, match=name):
        ds[5]
    with pytest.raises(IntegrityError, match=name):
        ds.__getitems__([4, 5, 6])


@pytest.mark.parametrize("crop", [packio.CenterCrop(32), None])
def test_skip_replaces_within_the_batch_and_counts(damaged: tuple[Path, int], crop: Any) -> None:
    ds = packio.LmdbDataset(damaged[0], crop=crop, on_error="skip", fields=("image", "index"))
    with pytest.warns(UserWarning, match="record 5"):
        samples = ds.__getitems__([4, 5, 6])
    assert [index for _, index in samples] == [4, 6, 6]
    assert torch.equal(samples[1][0], samples[2][0])
    assert ds.replaced == 1
    with pytest.raises(IntegrityError):
        ds[5]
    with pytest.raises(IntegrityError):
        ds.__getitems__([5, 5])


def test_sixteen_bits_need_unchanged(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "class"
    folder.mkdir(parents=True)
    pixels = np.arange(600, dtype=np.uint16).reshape(20, 30) * 109
    Image.fromarray(pixels).save(folder / "deep.png")
    packio.pack(tmp_path / "deep", tmp_path / "deep.lmdb")
    with pytest.raises(ModeError, match="UNCHANGED"):
        packio.LmdbDataset(tmp_path / "deep.lmdb")[0]
    ds = packio.LmdbDataset(tmp_path / "deep.lmdb", mode="UNCHANGED")
    assert ds[0][0].dtype == torch.uint16
    np.testing.assert_array_equal(ds[0][0].numpy()[0], pixels)
    scaled = ds.with_options(dtype=torch.float32)[0][0]
    np.testing.assert_allclose(scaled.numpy()[0], pixels / 65535, atol=1e-6)


def test_too_many_pixels_are_refused_before_decoding(pack: Path) -> None:
    with pytest.raises(DecodeError, match="limit is 100"):
        packio.LmdbDataset(pack, max_pixels=100)[0]


def test_fallbacks_are_counted(pack: Path) -> None:
    ds = packio.LmdbDataset(pack, decoder="simplejpeg", threads=1)
    ds.__getitems__(range(len(ds)))
    kinds = {ds.pack.key(i) for i in range(len(ds)) if ds.pack[i].encoding != "jpeg"}
    assert ds.fallbacks >= len(kinds) + 1  # and the CMYK one
    again = packio.LmdbDataset(pack, decoder="pillow")
    again.__getitems__(range(len(again)))
    assert again.fallbacks == 0


def test_a_dataset_pickles_small_and_refuses_a_changed_pack(pack: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(pack, tmp_path / "copy.lmdb")
    ds = packio.LmdbDataset(copy, crop=packio.CenterCrop(24), hflip=0.5)
    ds[0]
    dumped = pickle.dumps(ds)
    assert len(dumped) < 16_500
    assert torch.equal(pickle.loads(dumped)[3][0].sort().values, ds[3][0].sort().values)
    index = Index(copy / "index.packio")
    columns = {name: index.column(name).array() for name in index.column_names}
    indexfile.write(copy / "index.packio", columns, {**index.metadata, "classes": []})
    with pytest.raises((IntegrityError, packio.PackioError)):
        pickle.loads(dumped)[0]


def test_an_empty_batch_is_empty(pack: Path) -> None:
    assert packio.LmdbDataset(pack, crop=packio.CenterCrop(8)).__getitems__([]) == []


def test_out_of_range_is_an_index_error(pack: Path) -> None:
    ds = packio.LmdbDataset(pack)
    for index in (len(ds), -len(ds) - 1):
        with pytest.raises(IndexError, match=f"has {len(ds)} samples"):
            ds[index]
    samples: Any = ds
    assert len(list(samples)) == len(ds)  # plain iteration ends


@pytest.mark.parametrize("wanted", [len, 1.5, [len], object()])
@pytest.mark.parametrize("name", ["key", "label"])
def test_conditions_of_other_types_are_refused(pack: Path, name: str, wanted: Any) -> None:
    ds: Any = packio.LmdbDataset(pack)
    with pytest.raises(OptionError, match=f"{name}=.*: expected .*one or a list of them"):
        ds.where(**{name: wanted})


def test_targets_can_be_given_to_torch(pack: Path) -> None:
    ds: Any = packio.LmdbDataset(pack)
    weights = 1 / np.bincount(ds.targets)[ds.targets]
    assert torch.from_numpy(ds.targets).tolist() == ds.pack.labels.tolist()  # no warning
    assert torch.utils.data.WeightedRandomSampler(weights, 5).num_samples == 5
    ds.targets[:] = 0
    assert ds.pack.labels.any()
    assert ds.subset([3, 1]).targets.tolist() == [ds.pack.label(3), ds.pack.label(1)]


def test_a_value_of_the_metadata_is_no_field(tmp_path: Path) -> None:
    pixels = Image.fromarray(np.zeros((8, 8, 3), np.uint8))
    said = [{"image": pixels, "meta": {"sky": "weather"}},
            {"image": pixels, "meta": {"wind": 3}}]  # fmt: skip
    packio.pack(said, tmp_path / "pack.lmdb", encode="png")
    assert packio.LmdbDataset(tmp_path / "pack.lmdb", fields="wind")[1] == 3
    with pytest.raises(OptionError, match="has no 'weather'"):
        packio.LmdbDataset(tmp_path / "pack.lmdb", fields="weather")
