"""`extract` writes a COCO file again: what was packed of one, upright, with the ids of the file."""

from __future__ import annotations

import io
import json
import pathlib
from typing import Any

import numpy as np
from PIL import Image

import packio
from packio.inspecting.extracting import extract


def _coco(folder: pathlib.Path) -> dict[str, Any]:
    """Two photographs, 30x40 upright, one stored turned; an image without boxes."""
    exif = Image.Exif()
    exif[0x0112] = 6
    folder.mkdir()
    Image.new("RGB", (30, 40)).save(folder / "a.jpg")
    Image.new("RGB", (40, 30)).save(folder / "b.jpg", exif=exif)
    Image.new("RGB", (40, 30)).save(folder / "c.jpg")
    sizes = {"width": 30, "height": 40}
    told = {
        "images": [
            {"id": 7, "file_name": "a.jpg", **sizes, "license": 2},
            {"id": 9, "file_name": "b.jpg", **sizes, "license": 1},
            {"id": 30, "file_name": "c.jpg", "width": 40, "height": 30, "license": 1},
        ],
        "annotations": [
            {"id": 100, "image_id": 7, "category_id": 8, "bbox": [1.1, 2.2, 6.3, 10.7],
             "area": 60.5, "iscrowd": 0, "segmentation": [[1, 2, 7, 2, 7, 12]]},
            {"id": 50, "image_id": 9, "category_id": 3, "bbox": [22, 1, 6, 10], "area": 60.0,
             "iscrowd": 1, "segmentation": [[22, 1, 28, 1, 28, 11]], "score": 0.5},
        ],
        "categories": [{"id": 3, "name": "tree"}, {"id": 8, "name": "bird"}],
    }  # fmt: skip
    (folder / "coco.json").write_text(json.dumps(told))
    return told


def _read(folder: pathlib.Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "packio.coco.json").read_text())
    return {name: sorted(entries, key=lambda entry: entry["id"])
            for name, entries in found.items()}  # fmt: skip


def test_the_coco_file_comes_back(tmp_path: pathlib.Path) -> None:
    told = _coco(tmp_path / "s")
    packio.pack(tmp_path / "s/coco.json", tmp_path / "x.lmdb")
    extract(tmp_path / "x.lmdb", tmp_path / "out")
    found = _read(tmp_path / "out")
    assert found["images"] == told["images"]
    assert found["annotations"] == [told["annotations"][1], told["annotations"][0]]
    assert found["categories"] == told["categories"]


def test_the_coco_file_packs_again_to_the_same_boxes(tmp_path: pathlib.Path) -> None:
    _coco(tmp_path / "s")
    packio.pack(tmp_path / "s/coco.json", tmp_path / "x.lmdb")
    extract(tmp_path / "x.lmdb", tmp_path / "out")
    packio.pack(tmp_path / "out/packio.coco.json", tmp_path / "y.lmdb")
    fields = ("key", "boxes", "box_labels", "category_id", "crowd", "area")
    first, again = (packio.LmdbDataset(tmp_path / f"{n}.lmdb", fields=fields) for n in "xy")
    for i in range(3):
        assert [str(value) for value in first[i]] == [str(value) for value in again[i]]


def test_boxes_of_resized_images_are_those_of_the_new_size(tmp_path: pathlib.Path) -> None:
    _coco(tmp_path / "s")
    packio.pack(tmp_path / "s/coco.json", tmp_path / "x.lmdb", resize="short=15")
    extract(tmp_path / "x.lmdb", tmp_path / "out")
    found = _read(tmp_path / "out")
    assert [(i["width"], i["height"]) for i in found["images"]] == [(15, 20), (15, 20), (20, 15)]
    assert found["annotations"][0]["bbox"] == [11, 0.5, 3, 5]
    assert found["annotations"][0]["segmentation"] == [[11, 0.5, 14, 0.5, 14, 5.5]]


def test_files_whose_ids_clash_are_numbered_anew(tmp_path: pathlib.Path) -> None:
    for name in ("one", "two"):
        _coco(tmp_path / name)
        packio.pack(tmp_path / name / "coco.json", tmp_path / f"{name}.lmdb")
    packio.merge(tmp_path / "x.lmdb", [tmp_path / "one.lmdb", tmp_path / "two.lmdb"], prefix=True)
    extract(tmp_path / "x.lmdb", tmp_path / "out")
    found = _read(tmp_path / "out")
    assert [image["id"] for image in found["images"]] == [1, 2, 3, 4, 5, 6]
    assert [a["id"] for a in found["annotations"]] == [1, 2, 3, 4]
    assert [a["image_id"] for a in found["annotations"]] == [1, 2, 4, 5]


def test_boxes_from_python_become_a_coco_file(tmp_path: pathlib.Path) -> None:
    file = io.BytesIO()
    Image.fromarray(np.zeros((20, 30, 3), np.uint8)).save(file, "PNG")

    class Data(list[Any]):
        classes = ("cat", "dog")

    item = {"image": file.getvalue(), "key": "a.png", "boxes": [[1, 2, 5, 9]], "box_labels": [1]}
    packio.pack(Data([item]), tmp_path / "x.lmdb")
    extract(tmp_path / "x.lmdb", tmp_path / "out")
    (annotation,) = _read(tmp_path / "out")["annotations"]
    assert annotation == {
        "id": 1, "image_id": 1, "category_id": 2, "bbox": [1, 2, 4, 7], "area": 28, "iscrowd": 0,
    }  # fmt: skip
