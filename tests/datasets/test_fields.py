"""Which fields there are, by default and by name; joint transforms over them."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import coordinates
import numpy as np
import pytest
import torch
from PIL import Image

import packio
from packio.errors import OptionError, TransformError


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("packs") / "a.lmdb"
    packio.pack(coordinates.samples(), out, boxes_frame="stored")
    return out


def _without(path: Path, *names: str) -> Path:
    rows = coordinates.samples(((33, 41),), (1, 1))
    packio.pack([{k: v for k, v in row.items() if k not in names} for row in rows], path)
    return path


@pytest.mark.parametrize(
    ("without", "expected"),
    [
        ((), ("image", "mask", "label")),
        (("label",), ("image", "mask")),
        (("mask",), ("image", "label")),
        (("mask", "label"), ("image",)),
    ],
)
def test_default_fields_are_those_that_there_are(
    tmp_path: Path, without: tuple[str, ...], expected: Any
) -> None:
    ds = packio.PackDataset(_without(tmp_path / "a.lmdb", *without))
    same = ds.with_options(fields=expected)
    for found, wanted in ((ds[1], same[1]), (ds.gather([0, 1]), same.gather([0, 1]))):
        assert type(found) is type(wanted)
        pairs = zip(found, wanted, strict=True)
        assert all(torch.as_tensor(a).equal(torch.as_tensor(b)) for a, b in pairs)


def test_all_fields_in_any_order(pack: Path) -> None:
    fields = {"who": "where", "at": "index", "seg": "mask", "k": "key", "b": "boxes",
              "l": "box_labels", "x": "image", "y": "label"}  # fmt: skip
    ds = packio.PackDataset(pack, fields=fields, crop=packio.CenterCrop(10))
    assert list(ds[3]) == list(fields)
    assert (ds[3]["who"], ds[3]["at"], ds[3]["k"], ds[3]["y"]) == ("place 3", 3, "03.png", 3)
    batch = packio.collate(ds.__getitems__([3, 2]))
    assert list(batch) == list(fields)
    assert (batch["who"], batch["k"]) == (["place 3", "place 2"], ["03.png", "02.png"])
    assert (batch["at"].tolist(), batch["y"].tolist()) == ([3, 2], [3, 2])
    assert (batch["seg"].shape, batch["x"].shape) == ((2, 10, 10), (2, 3, 10, 10))


def test_metadata_is_none_where_a_sample_has_none_of_that_name(tmp_path: Path) -> None:
    rows = coordinates.samples(((33, 41),), (1, 1, 1))
    rows[2] |= {"größe": {"m": [1, 2]}}
    packio.pack(rows, tmp_path / "a.lmdb")
    ds = packio.PackDataset(tmp_path / "a.lmdb", fields=("größe", "where"))
    assert ds[0] == (None, "place 0")
    assert ds.__getitems__([0, 2]) == [(None, "place 0"), ({"m": [1, 2]}, "place 2")]
    assert packio.collate(ds.__getitems__([2, 0]))[0] == [{"m": [1, 2]}, None]
    assert ds.with_options(fields="größe")[2] == {"m": [1, 2]}


@pytest.mark.parametrize(
    ("without", "fields", "message"),
    [
        ((), "wehre", r"no 'wehre'; it has image, mask, label, boxes, .*, index, where$"),
        ((), ("image", "place 1 "), "no 'place 1 '"),
        (("mask",), ("image", "mask"), "no 'mask'; it has image, label"),
        (("boxes", "box_labels"), {"b": "boxes"}, "no 'boxes'"),
        (("label",), "label", "no 'label'"),
        (("where",), "where", "no 'where'"),
        ((), (), "expected names"),
    ],
)
def test_fields_that_are_not_there_are_refused(
    tmp_path: Path, without: tuple[str, ...], fields: Any, message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        packio.PackDataset(_without(tmp_path / "a.lmdb", *without), fields=fields)


def test_joint_transforms_get_what_there_is_in_order(pack: Path) -> None:
    seen = []

    def swap(*values: Any) -> Any:
        seen.append([tuple(getattr(v, "shape", ())) for v in values])
        return (*values[:-1], values[-1] + 100)

    ds = packio.PackDataset(
        pack, fields=("key", "label", "boxes", "mask", "image", "box_labels"),
        crop=packio.CenterCrop(12), transforms=swap,
    )  # fmt: skip
    assert ds[2][1] == 102
    (shapes,) = seen
    assert shapes[:2] == [(3, 12, 12), (12, 12)]
    assert shapes[2] == (*shapes[3], 4)
    assert shapes[4] == ()
    batch = packio.collate(ds.__getitems__([2, 3]))
    assert batch[0] == ("02.png", "03.png")
    assert batch[1].tolist() == [102, 103]
    assert [type(v) for v in batch[2:]] == [list, torch.Tensor, torch.Tensor, list]
    assert all(torch.equal(a, b) for a, b in zip(ds.gather([2, 3])[2], batch[2], strict=True))


def test_torchvisions_transforms_know_what_is_what(pack: Path, torchvision: ModuleType) -> None:
    v2 = torchvision.transforms.v2
    flip = v2.Compose([v2.RandomHorizontalFlip(1.0), v2.ToDtype(torch.float32, scale=True)])
    fields = ("image", "mask", "boxes", "box_labels", "label")
    plain = packio.PackDataset(pack, fields=fields, hflip=1.0, crop=packio.Resize((30, 40)))
    ds = plain.with_options(hflip=0.0, transforms=flip)
    for ours, theirs in zip(plain.__getitems__(range(16)), ds.__getitems__(range(16)), strict=True):
        assert [type(v) for v in theirs] == [torch.Tensor] * 4 + [int]
        torch.testing.assert_close(theirs[0], ours[0].float() / 255)
        torch.testing.assert_close(theirs[2], ours[2])
        assert torch.equal(theirs[1], ours[1])
        assert torch.equal(theirs[3], ours[3])
        assert theirs[4] == ours[4]
    only = ds.with_options(fields="mask")
    assert torch.equal(only[5], plain[5][1])
    assert type(only[5]) is torch.Tensor


def test_albumentations_get_them_by_name(pack: Path) -> None:
    albumentations = pytest.importorskip("albumentations")
    transforms = albumentations.Compose(
        [albumentations.HorizontalFlip(p=1.0)],
        bbox_params=albumentations.BboxParams(format="pascal_voc", label_fields=["box_labels"]),
    )
    fields = ("image", "mask", "boxes", "box_labels")
    plain = packio.PackDataset(pack, fields=fields, hflip=1.0, output="numpy")
    ds = plain.with_options(hflip=0.0, transforms=transforms)
    for i in (0, 3, 9):
        for ours, theirs in zip(plain[i][:3], ds[i][:3], strict=True):
            np.testing.assert_allclose(np.reshape(theirs, ours.shape), ours, atol=1e-3)
        assert list(ds[i][3]) == plain[i][3].tolist()


def test_pillow_images_reach_joint_transforms_as_such(pack: Path) -> None:
    def rotate(image: Image.Image, mask: Image.Image) -> tuple[np.ndarray, np.ndarray]:
        turned = [np.asarray(i.transpose(Image.Transpose.ROTATE_90)) for i in (image, mask)]
        return turned[0], turned[1]

    plain = packio.PackDataset(pack, fields=("image", "mask"), output="numpy")
    ds = plain.with_options(output="pil", transforms=rotate)
    for ours, theirs in zip(plain[4], ds[4], strict=True):
        np.testing.assert_array_equal(theirs, np.rot90(ours))


@pytest.mark.parametrize(
    ("transforms", "message"),
    [
        (lambda *values: values[:2], "expected a tuple of image, mask, label"),
        (lambda *values: values[2], "returned int; expected"),
        (lambda *values: values[3], "failed on .* of shape .*IndexError"),
    ],
)
def test_joint_transforms_that_fail_are_named(pack: Path, transforms: Any, message: str) -> None:
    with pytest.raises(TransformError, match=message):
        packio.PackDataset(pack, transforms=transforms)[0]


@pytest.mark.parametrize(
    "other", [{"transform": abs}, {"target_transform": abs}, {"views": [None, None]}]
)
def test_joint_transforms_exclude_others(pack: Path, other: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="exclude each other"):
        packio.PackDataset(pack, transforms=abs, **other)


@pytest.mark.parametrize("spec", [{"image", "label"}, 3, iter(["image", "label"])])
def test_fields_without_an_order_of_their_own_are_refused(pack: Path, spec: Any) -> None:
    with pytest.raises(OptionError, match="expected a name, a tuple"):
        packio.PackDataset(pack, fields=spec)


@pytest.mark.parametrize("views", [None, [packio.Resize((8, 8))] * 2])
def test_batches_of_pillow_images_of_one_size_are_lists(pack: Path, views: Any) -> None:
    crop = None if views else packio.Resize((8, 8))
    ds = packio.PackDataset(pack, fields=("image", "mask"), output="pil", crop=crop, views=views)
    images, masks = next(iter(packio.Loader(ds, 3)))
    for column in (*images, *masks) if views else (images, masks):
        assert [image.size for image in column] == [(8, 8)] * 3


@pytest.mark.parametrize("name", ["transform", "transforms"])
def test_arrays_that_a_transform_mirrors_become_a_batch(pack: Path, name: str) -> None:
    plain = packio.PackDataset(pack, fields=("image",), output="numpy", crop=packio.Resize((8, 8)))
    mirrored = plain.with_options(**{name: lambda image: image[:, ::-1]})
    (ours,), (theirs,) = (next(iter(packio.Loader(ds, 3))) for ds in (plain, mirrored))
    assert torch.equal(theirs, ours.flip(2))


def test_the_image_is_where_it_is_beside_a_dict_of_fields(pack: Path) -> None:
    fields = ({"seg": "mask", "k": "key"}, "image")
    ds = packio.PackDataset(pack, fields=fields, crop=packio.CenterCrop(10))
    assert ds.image_places == (1,)
    target, image = next(iter(packio.Loader(ds, 2, device="cpu", dtype=torch.float32)))
    assert (image.dtype, target["k"]) == (torch.float32, ["00.png", "01.png"])
