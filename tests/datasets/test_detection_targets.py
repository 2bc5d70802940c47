"""Targets as detection models take them: of torchvision, DETR and ultralytics."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import vision
from PIL import Image

import packio
from packio.errors import OptionError

IDS = {3: "tree", 8: "bird", 90: "brush"}
BOXES = {0: [(3, [10, 10, 50, 40]), (8, [0, 0, 90, 60])], 1: [], 2: [(90, [20, 0, 10, 80])]}


@pytest.fixture
def coco(tmp_path: pathlib.Path) -> pathlib.Path:
    """A pack of three images of 160x120; the second has no boxes."""
    images, annotations = [], []
    for number, boxes in BOXES.items():
        Image.new("RGB", (160, 120)).save(tmp_path / f"{number}.jpg")
        images.append({"id": number, "file_name": f"{number}.jpg", "width": 160, "height": 120})
        annotations += [{"image_id": number, "category_id": id_, "bbox": box, "area": 7}
                        for id_, box in boxes]  # fmt: skip
    for number, annotation in enumerate(annotations):
        annotation["id"] = number
    categories = [{"id": id_, "name": name} for id_, name in IDS.items()]
    told = {"images": images, "annotations": annotations, "categories": categories}
    (tmp_path / "coco.json").write_text(json.dumps(told))
    packio.pack(tmp_path / "coco.json", tmp_path / "coco.lmdb")
    return tmp_path / "coco.lmdb"


TARGET = {"boxes": "boxes", "labels": "category_id", "image_id": "image_id"}


def test_a_dict_of_fields_in_a_tuple_is_a_target(coco: pathlib.Path) -> None:
    data = packio.LmdbDataset(coco, fields=("image", TARGET))
    image, target = data[0]
    assert image.shape == (3, 120, 160)
    assert list(target) == ["boxes", "labels", "image_id"]
    assert target["boxes"].tolist() == [[10, 10, 60, 50], [0, 0, 90, 60]]
    assert target["labels"].tolist() == [3, 8]
    assert target["labels"].dtype == torch.int64
    assert data[1][1]["boxes"].shape == (0, 4)


def test_ids_of_categories_follow_the_boxes_that_a_crop_drops(coco: pathlib.Path) -> None:
    crop = packio.CenterCrop((120, 20))  # x from 70 to 90
    data = packio.LmdbDataset(coco, crop=crop, fields=("image", TARGET))
    assert data[0][1]["labels"].tolist() == [8]


@pytest.mark.parametrize("transform", [None, lambda image: image + 0])
def test_batches_hold_the_same_targets(coco: pathlib.Path, transform: Any) -> None:
    data = packio.LmdbDataset(coco, fields=("image", TARGET, "key"), transform=transform)
    (batch,) = packio.Loader(data, 3)
    images, targets, keys = batch
    assert images.shape == (3, 3, 120, 160)
    assert keys == ("0.jpg", "1.jpg", "2.jpg")
    assert [labels.tolist() for labels in targets["labels"]] == [[3, 8], [], [90]]
    assert targets["image_id"] == [0, 1, 2]
    each = data.__getitems__([0, 2])
    assert each[1][1]["boxes"].tolist() == data[2][1]["boxes"].tolist() == [[20, 0, 30, 80]]


def test_a_target_that_was_edited_is_collated_as_it_is(coco: pathlib.Path) -> None:
    batch = packio.LmdbDataset(coco, fields=("image", {"id": "image_id"})).__getitems__([0, 1])
    batch[1][1]["id"] = 77
    assert packio.collate(batch)[1]["id"].tolist() == [0, 77]


@pytest.mark.parametrize("fields", [("image", 3), ({"picture": "image"}, "boxes")])
def test_fields_that_are_no_names_are_refused(coco: pathlib.Path, fields: Any) -> None:
    with pytest.raises(OptionError, match=r"expected names of fields, or dicts of them"):
        packio.LmdbDataset(coco, fields=fields)


def test_images_without_boxes_are_left_out_by_a_query(coco: pathlib.Path) -> None:
    pytest.importorskip("duckdb")
    data = packio.LmdbDataset(coco, fields=("key", "boxes")).where("len(boxes) > 0")
    assert [key for key, _ in (data[i] for i in range(len(data)))] == ["0.jpg", "2.jpg"]


def test_torchvision_takes_the_targets(coco: pathlib.Path) -> None:
    vision.import_torchvision()
    from torchvision.models.detection.transform import GeneralizedRCNNTransform

    data = packio.LmdbDataset(coco, fields=("image", TARGET))
    (batch,) = packio.Loader(data, 3)
    targets = [
        dict(zip(batch[1], row, strict=True)) for row in zip(*batch[1].values(), strict=True)
    ]
    resize = GeneralizedRCNNTransform(60, 80, [0.5] * 3, [0.5] * 3)  # half the size
    _, halved = resize([image / 255 for image in batch[0]], targets)
    assert halved[0]["boxes"].tolist() == [[5, 5, 30, 25], [0, 0, 45, 30]]
    assert min(int(t["labels"].min()) for t in targets if len(t["labels"])) >= 1  # 0: background


def _fractions(box: Sequence[float]) -> list[float]:
    """Centre, width and height of a box of COCO as fractions of 160x120."""
    x, y, width, height = box
    return [(x + width / 2) / 160, (y + height / 2) / 120, width / 160, height / 120]


def test_the_page_makes_targets_of_detr_and_ultralytics(coco: pathlib.Path) -> None:
    page = pathlib.Path(__file__).parents[2] / "docs/guides/boxes.md"
    code = page.read_text().split("```python\n")[4].split("```")[0]
    code = code.replace('"coco.lmdb"', repr(str(coco))).replace(
        "Loader(data, 2)", "Loader(data, 3)"
    )
    made: dict[str, Any] = {"packio": packio}
    exec(code, made)  # noqa: S102 (the page's own code)
    expected = [[_fractions(box) for _, box in boxes] for boxes in BOXES.values()]
    for target, boxes in zip(made["detr"], expected, strict=True):
        assert torch.allclose(target["boxes"], torch.tensor(boxes).reshape(-1, 4))
    assert [t["class_labels"].tolist() for t in made["detr"]] == [[0, 1], [], [2]]
    batch = made["ultralytics"]
    assert torch.allclose(batch["bboxes"], torch.tensor([b for each in expected for b in each]))
    assert batch["cls"].tolist() == [[0], [1], [2]]
    assert batch["batch_idx"].tolist() == [0, 0, 2]
