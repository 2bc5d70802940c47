"""COCO annotations in the metadata follow an image that packing resizes."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import made
import numpy as np
import pytest

import packio
from packio.packing.images import resizing


def _coco(folder: pathlib.Path) -> pathlib.Path:
    (folder / "images").mkdir(parents=True)
    (folder / "images" / "a.png").write_bytes(made.png(40, 20))
    mask = np.zeros((20, 40), np.uint8)
    mask[4:8, 10:30] = 1
    path = folder / "instances.json"
    path.write_text(json.dumps({
        "images": [{"id": 1, "file_name": "a.png", "width": 40, "height": 20}],
        "categories": [{"id": 1, "name": "cat"}],
        "annotations": [
            {"id": 1, "image_id": 1, "category_id": 1, "bbox": [10, 4, 20, 4], "area": 80,
             "iscrowd": 0, "segmentation": [[10, 4, 30, 4, 30, 8]],
             "keypoints": [10, 4, 2, 0, 0, 0]},
            {"id": 2, "image_id": 1, "category_id": 1, "bbox": [10, 4, 20, 4], "area": 80,
             "iscrowd": 1, "segmentation": {"size": [20, 40], "counts": _counts(mask)}},
        ],
    }))  # fmt: skip
    return path


def _counts(mask: np.ndarray) -> list[int]:
    """Run lengths, column by column, counted one pixel at a time."""
    counts, last = [0], 0
    for value in mask.T.ravel().tolist():
        if value != last:
            counts.append(0)
            last = value
        counts[-1] += 1
    return counts


@pytest.mark.parametrize("verb", ["pack", "convert", "append"])
def test_coco_annotations_follow_a_resize(verb: str, tmp_path: pathlib.Path) -> None:
    source, out = _coco(tmp_path / "s"), tmp_path / "x.tar"
    if verb == "convert":
        packio.pack(source, tmp_path / "w.tar", root=str(tmp_path / "s/images"))
        packio.convert(tmp_path / "w.tar", out, resize="short=10")
    else:
        packio.pack(source, out, shards=1, shard_size=1 << 20, resize="short=10",
                    root=str(tmp_path / "s/images"))  # fmt: skip
    sample = packio.open(out)[0]
    if verb == "append":
        data = json.loads(source.read_text())
        data["images"].append({**data["images"][0], "id": 2, "file_name": "b.png"})
        data["annotations"] += [{**a, "id": a["id"] + 2, "image_id": 2}
                                for a in data["annotations"]]  # fmt: skip
        source.write_text(json.dumps(data))
        (source.parent / "images" / "b.png").write_bytes(made.png(40, 20))
        root = str(tmp_path / "s/images")
        assert packio.append(out, source, root=root, compare=True).changed == ()
        assert packio.append(out, source, root=root).added == 1
        sample = packio.open(out)[1]
    meta: Any = sample.meta
    assert (sample.width, sample.height) == (meta["width"], meta["height"]) == (20, 10)
    assert meta["bbox"] == [[5, 2, 10, 2]] * 2
    assert meta["area"] == [20, 20] == sample.box_columns["area"].tolist()
    assert meta["segmentation"][0] == [[5, 2, 15, 2, 15, 4]]
    assert meta["keypoints"] == [[5, 2, 2, 0, 0, 0], None]
    assert meta["segmentation"][1]["size"] == [20, 40]  # run lengths have a size of their own


@pytest.mark.parametrize("resize", ["short=10", "exact=20x40"])  # the latter: as many pixels
def test_metadata_without_the_size_of_its_image_is_told(
    tmp_path: pathlib.Path, resize: str
) -> None:
    source = _coco(tmp_path / "s")
    data = json.loads(source.read_text())
    del data["images"][0]["width"]
    source.write_text(json.dumps(data))
    root = str(tmp_path / "s/images")
    assert packio.pack(source, tmp_path / "x.lmdb", root=root).warnings == ()
    report = packio.pack(source, tmp_path / "y.lmdb", root=root, resize=resize)
    (line,) = report.warnings
    assert line.startswith("1 samples keep boxes or shapes in their metadata")
    meta: Any = packio.open(tmp_path / "y.lmdb")[0].meta
    assert meta["bbox"] == [[10, 4, 20, 4]] * 2


@pytest.mark.parametrize("orientation", range(1, 9))
def test_no_boxes_may_be_moved(orientation: int) -> None:
    assert resizing.move_boxes(np.zeros((0, 4)), (4, 4), (2, 2), orientation).shape == (0, 4)


def test_nonsense_and_other_metadata_stay_as_they_are() -> None:
    for meta in (
        b'{"bbox": 1}', b'{"width": 9, "height": 9, "bbox": [[1, 2, 3, 4]]}', b'{"a": 1}',
        b'{"width": [4], "height": 4, "bbox": []}', None,
    ):  # fmt: skip
        assert resizing.scale_meta(meta, {(4, 4): (2, 2)}) == meta
    odd = (
        b'{"area":[null,"?"],"bbox":[null,[2,2],"?"],"height":4,"segmentation":[{"a":1}],"width":4}'
    )
    told: Any = json.loads(resizing.scale_meta(odd, {(4, 4): (2, 2)}) or b"")
    assert told == {
        "area": [None, "?"], "bbox": [None, [1, 1], "?"], "segmentation": [{"a": 1}],
        "width": 2, "height": 2,
    }  # fmt: skip
