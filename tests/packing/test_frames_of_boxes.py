"""Boxes and masks lie where people see them, whatever Exif says, through every verb.

Each picture is drawn upright with Pillow: a red rectangle on gray. It is stored turned, with each
Exif orientation. What a dataset gives as box and mask must surround the red pixels of the image
that the dataset gives.
"""

from __future__ import annotations

import io
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import made
import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageOps

import packio
from packio.inspecting.extracting import extract

if TYPE_CHECKING:
    import torch

TO_STORED = {  # orientation → the operation of Pillow that makes the stored image
    2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM, 5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90, 7: Image.Transpose.TRANSVERSE, 8: Image.Transpose.ROTATE_270,
}  # fmt: skip
ALL = range(1, 9)
SIZE, BOX = (32, 48), (4, 6, 14, 12)  # of the upright picture: width, height; x0, y0, x1, y1


def upright(size: tuple[int, int] = SIZE) -> Image.Image:
    picture = Image.new("RGB", size, (90, 90, 90))
    ImageDraw.Draw(picture).rectangle((BOX[0], BOX[1], BOX[2] - 1, BOX[3] - 1), (255, 0, 0))
    return picture


def stored(picture: Image.Image, orientation: int) -> bytes:
    """A JPEG that Pillow's `exif_transpose` makes the picture of."""
    turned = picture.transpose(TO_STORED[orientation]) if orientation != 1 else picture
    exif, file = Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    turned.save(file, "JPEG", exif=exif, quality=95, subsampling=0)
    back = np.asarray(ImageOps.exif_transpose(Image.open(file)), int)
    assert abs(back - np.asarray(picture, int)).mean() < 5
    return file.getvalue()


def mask_of(picture: Image.Image) -> np.ndarray:
    return np.where(np.asarray(picture)[:, :, 0] > 200, 7, 0).astype(np.uint8)


def items(orientations: Sequence[int] = ALL) -> list[dict[str, Any]]:
    return [
        {"image": stored(upright(), o), "mask": mask_of(upright()), "boxes": [BOX],
         "box_labels": [0], "key": f"{o}.jpg"}
        for o in orientations
    ]  # fmt: skip


def coco(
    folder: pathlib.Path, orientations: Sequence[int] = ALL, *, said: Any = None,
    size: tuple[int, int] = SIZE, box: Sequence[float] = BOX,
) -> pathlib.Path:  # fmt: skip
    """A COCO file whose boxes are in the upright frame; `said` is the size in it, if another."""
    folder.mkdir(exist_ok=True)
    width, height = said or size
    x0, y0, x1, y1 = box
    images, annotations = [], []
    for o in orientations:
        (folder / f"{o}.jpg").write_bytes(stored(upright(size), o))
        images.append({"id": o, "file_name": f"{o}.jpg", "width": width, "height": height})
        annotations.append({
            "id": o, "image_id": o, "category_id": 3, "bbox": [x0, y0, x1 - x0, y1 - y0],
            "area": (x1 - x0) * (y1 - y0), "iscrowd": 0,
            "segmentation": [[x0, y0, x1, y0, x1, y1, x0, y1]],
        })  # fmt: skip
    told = {"images": images, "annotations": annotations, "categories": [{"id": 3, "name": "red"}]}
    (folder / "coco.json").write_text(json.dumps(told))
    return folder / "coco.json"


def red(image: torch.Tensor) -> tuple[int, int, int, int]:
    """The rectangle of red pixels in a (3, H, W) image: x0, y0, x1, y1."""
    pixels = image.numpy().astype(int)
    return around((pixels[0] > 170) & (pixels[1] < 80))


def around(there: np.ndarray) -> tuple[int, int, int, int]:
    y, x = np.nonzero(there)
    return int(x.min()), int(y.min()), int(x.max()) + 1, int(y.max()) + 1


ALL_FIELDS, NO_MASK = ("image", "mask", "boxes"), ("image", "boxes")


def check(
    path: pathlib.Path, fields: tuple[str, ...] = ALL_FIELDS, count: int = 8, within: float = 1.0,
    **options: Any,
) -> None:  # fmt: skip
    """Each sample's box, and its mask, surround the red pixels of its image."""
    dataset = packio.PackDataset(path, fields=fields, **options)
    assert len(dataset) == count
    for sample in (dataset[i] for i in range(count)):
        given = dict(zip(fields, sample, strict=True))
        expected = red(given["image"])
        assert given["boxes"].shape == (1, 4)
        assert np.abs(given["boxes"][0].numpy() - expected).max() <= within
        if given.get("mask") is not None:
            assert np.abs(np.subtract(around(given["mask"].numpy() == 7), expected)).max() <= within


WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "as stored": {"exif_orientation": False},
    "flipped": {"hflip": 1.0},
    "cropped": {"crop": packio.CenterCrop(40)},
    "resized": {"crop": packio.Resize(24)},
}


def check_pack(path: pathlib.Path, fields: tuple[str, ...] = ALL_FIELDS) -> None:
    for options in WAYS.values():
        check(path, fields, **options)


def _packed(folder: pathlib.Path, **options: Any) -> pathlib.Path:
    packio.pack(items(), folder / "one.tar", **options)
    return folder / "one.tar"


def _appended(folder: pathlib.Path) -> pathlib.Path:
    packio.pack(items(range(1, 4)), folder / "two", format="tar", shard_size=1 << 20)
    packio.append(folder / "two", items())
    return folder / "two"


def _merged(folder: pathlib.Path) -> pathlib.Path:
    for name, half in (("a", range(1, 5)), ("b", range(5, 9))):
        packio.pack(items(half), folder / f"{name}.tar")
    packio.merge(folder / "both.tar", [folder / "a.tar", folder / "b.tar"])
    return folder / "both.tar"


def _extracted(folder: pathlib.Path) -> pathlib.Path:
    extract(_packed(folder), folder / "files")
    packio.pack(folder / "files", folder / "again.lmdb")
    return folder / "again.lmdb"


def _converted(folder: pathlib.Path, **options: Any) -> pathlib.Path:
    packio.convert(_packed(folder), folder / "three.lmdb", **options)
    return folder / "three.lmdb"


VERBS: dict[str, Callable[[pathlib.Path], pathlib.Path]] = {
    "pack": _packed,
    "pack, bake": lambda folder: _packed(folder, orientation="bake"),
    "pack, smaller": lambda folder: _packed(folder, resize="short=24"),
    "append": _appended,
    "merge": _merged,
    "convert": _converted,
    "convert, bake": lambda folder: _converted(folder, orientation="bake"),
    "extract, pack": _extracted,
}


@pytest.mark.parametrize("verb", VERBS)
def test_boxes_and_masks_surround_what_they_mark_after_every_verb(
    verb: str, tmp_path: pathlib.Path
) -> None:
    check_pack(VERBS[verb](tmp_path))


@pytest.mark.parametrize("bakes", [False, True])
def test_a_coco_file_with_upright_sizes_has_upright_boxes(
    bakes: bool, tmp_path: pathlib.Path
) -> None:
    options: dict[str, Any] = {"orientation": "bake"} if bakes else {}
    report = packio.pack(coco(tmp_path / "s"), tmp_path / "x.lmdb", **options)
    check_pack(tmp_path / "x.lmdb", NO_MASK)
    (line,) = [line for line in report.warnings if "Exif" in line]
    assert line.startswith("3 images")  # those of the orientations 2 to 4


@pytest.mark.parametrize("orientation", [5, 6, 7, 8])
def test_a_coco_file_with_stored_sizes_has_stored_boxes(
    orientation: int, tmp_path: pathlib.Path
) -> None:
    turned = np.asarray(Image.open(io.BytesIO(stored(upright(), orientation))), int)
    box = around((turned[:, :, 0] > 170) & (turned[:, :, 1] < 80))
    path = coco(tmp_path / "s", [orientation], said=SIZE[::-1], box=box)
    assert packio.pack(path, tmp_path / "x.lmdb").warnings == ()
    check(tmp_path / "x.lmdb", NO_MASK, 1)
    packio.convert(tmp_path / "x.lmdb", tmp_path / "y.lmdb", orientation="bake")
    check(tmp_path / "y.lmdb", NO_MASK, 1)


def test_the_size_of_each_image_decides_for_it_alone(tmp_path: pathlib.Path) -> None:
    path = coco(tmp_path / "s", [6, 8])
    told = json.loads(path.read_text())
    told["images"][1] |= {"width": SIZE[1], "height": SIZE[0]}  # stored, turned left: y0 = x0 ...
    x0, y0, x1, y1 = BOX
    told["annotations"][1]["bbox"] = [SIZE[1] - y1, x0, y1 - y0, x1 - x0]
    path.write_text(json.dumps(told))
    packio.pack(path, tmp_path / "x.lmdb")
    dataset = packio.PackDataset(tmp_path / "x.lmdb", fields=("image", "boxes"))
    assert [boxes.tolist() for _, boxes in (dataset[0], dataset[1])] == [[[*BOX]], [[*BOX]]]


def test_images_that_no_size_decides_are_upright_and_counted_at_each_run(
    tmp_path: pathlib.Path,
) -> None:
    path = coco(tmp_path / "s", size=(40, 40))
    for _ in range(2):  # the second run finds the pack
        report = packio.pack(path, tmp_path / "x.lmdb")
        (line,) = [line for line in report.warnings if "Exif" in line]
        assert line.startswith("7 images")
        assert "--boxes-frame" in line
    check_pack(tmp_path / "x.lmdb", NO_MASK)


@pytest.mark.parametrize("orientation", range(2, 9))
def test_the_user_says_that_boxes_and_masks_are_as_stored(
    orientation: int, tmp_path: pathlib.Path
) -> None:
    square = upright((40, 40))
    data = stored(square, orientation)
    turned = np.asarray(Image.open(io.BytesIO(data)), int)
    there = (turned[:, :, 0] > 170) & (turned[:, :, 1] < 80)
    item = {"image": data, "boxes": [around(there)], "mask": there.astype(np.uint8) * 7}
    report = packio.pack([item], tmp_path / "x.tar", boxes_frame="stored")
    assert not [line for line in report.warnings if "Exif" in line]
    check(tmp_path / "x.tar", count=1)


def test_a_pack_with_boxes_turned_twice_is_mended_by_convert(tmp_path: pathlib.Path) -> None:
    given = [{name: item[name] for name in ("image", "boxes", "key")} for item in items()]
    packio.pack(given, tmp_path / "old.tar", boxes_frame="stored")  # they are upright
    packio.convert(tmp_path / "old.tar", tmp_path / "new.tar", boxes_frame="upright")
    check_pack(tmp_path / "new.tar", NO_MASK)


def test_another_word_for_the_frame_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="boxes_frame='up': expected 'upright' or 'stored'"):
        packio.pack(items([1]), tmp_path / "x.tar", boxes_frame="up")


def test_pairs_of_an_upright_mask_and_a_turned_image(tmp_path: pathlib.Path) -> None:
    for name in ("images", "masks"):
        (tmp_path / "s" / name).mkdir(parents=True)
    for o in ALL:
        (tmp_path / "s/images" / f"{o}.jpg").write_bytes(stored(upright(), o))
        Image.fromarray(mask_of(upright())).save(tmp_path / "s/masks" / f"{o}.png")
    report = packio.pack(tmp_path / "s", tmp_path / "x.lmdb")
    assert [line for line in report.warnings if line.startswith("3 images")]
    for options in WAYS.values():
        dataset = packio.PackDataset(tmp_path / "x.lmdb", **options)
        for image, mask in (dataset[i] for i in range(8)):
            found = around(mask.numpy() == 7)
            assert np.abs(np.subtract(found, red(image))).max() <= 1


def test_a_mask_as_large_as_the_stored_image_keeps_its_bytes(tmp_path: pathlib.Path) -> None:
    turned = stored(upright(), 6)
    file = io.BytesIO()
    mask_of(Image.open(io.BytesIO(turned)))
    Image.fromarray(mask_of(Image.open(io.BytesIO(turned)))).save(file, "PNG")
    item = {"image": turned, "mask": file.getvalue(), "boxes": [BOX]}
    packio.pack([item], tmp_path / "x.tar")
    assert packio.open(tmp_path / "x.tar")[0].mask == file.getvalue()
    check(tmp_path / "x.tar", count=1)


# Sizes that are not the image's (W2)


def test_boxes_for_another_size_are_refused_with_the_remedy(tmp_path: pathlib.Path) -> None:
    path = coco(tmp_path / "s", [1, 6], said=(320, 480))
    with pytest.raises(packio.PackioError) as error:
        packio.pack(path, tmp_path / "x.lmdb")
    assert "bad samples: 2" in str(error.value)
    assert "1.jpg: its boxes are for 320x480 pixels, the image has 32x48" in str(error.value)
    assert "--rescale-boxes" in str(error.value)
    assert not (tmp_path / "x.lmdb").exists()


@pytest.mark.parametrize("orientation", ALL)
def test_boxes_of_another_size_are_scaled_if_the_user_says_so(
    orientation: int, tmp_path: pathlib.Path
) -> None:
    big = [10 * side for side in BOX]
    path = coco(tmp_path / "s", [orientation], said=(320, 480), box=big)
    packio.pack(path, tmp_path / "x.lmdb", rescale_boxes=True)
    fields = ("image", "boxes", "area", "bbox", "width", "segmentation")
    dataset = packio.PackDataset(tmp_path / "x.lmdb", fields=fields)
    check(tmp_path / "x.lmdb", NO_MASK, 1)
    x0, y0, x1, y1 = BOX
    assert dataset[0][2].tolist() == [(x1 - x0) * (y1 - y0)]
    assert dataset[0][3:] == (
        [[x0, y0, x1 - x0, y1 - y0]], 32, [[[x0, y0, x1, y0, x1, y1, x0, y1]]],
    )  # fmt: skip


def test_boxes_that_reach_beyond_their_image_are_kept_and_counted(tmp_path: pathlib.Path) -> None:
    path = coco(tmp_path / "s", [1, 6], box=(20, 30, 36, 44))
    for _ in range(2):
        (line,) = packio.pack(path, tmp_path / "x.lmdb").warnings
        assert line.startswith("2 boxes reach beyond their image")
        assert "'1.jpg'" in line
    dataset = packio.LmdbDataset(tmp_path / "x.lmdb", fields=("boxes",))
    assert dataset[1][0].tolist() == [[20, 30, 32, 44]]


def test_sizes_in_files_of_captions_are_no_sizes_of_boxes(tmp_path: pathlib.Path) -> None:
    path = coco(tmp_path / "s", [1], said=(320, 480))
    told = json.loads(path.read_text())
    told["annotations"] = [{"id": 1, "image_id": 1, "caption": "red"}]
    path.write_text(json.dumps(told))
    packio.pack(path, tmp_path / "x.lmdb")


def test_an_upright_mask_that_is_added_to_a_pack_lies_as_its_image(tmp_path: pathlib.Path) -> None:
    turned = items(range(5, 9))
    given = [{name: item[name] for name in ("image", "key", "boxes")} for item in turned]
    packio.pack(given, tmp_path / "x.tar")
    masks = {item["key"]: made.saved(mask_of(upright())) for item in turned}
    packio.add_field(tmp_path / "x.tar", "mask", masks, kind="mask")
    check(tmp_path / "x.tar", count=4)
