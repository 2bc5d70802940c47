"""Objects in a column, as Hugging Face's datasets have them: ``objects {bbox, category}``.

A value is a mapping of lists, ``{"bbox": [[x, y, w, h], …], "category": [3, …]}``, or a list of
mappings. Boxes are COCO's, x, y, width and height in pixels, unless the user says ``box_format``.
Categories are positions in the names of a ClassLabel, or names, or numbers. ``area`` and
``iscrowd`` become columns of the boxes; other members stay metadata.

Source: https://huggingface.co/docs/datasets/object_detection and /image_dataset.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from packio.errors import DecodeError, OptionError
from packio.images import encodings
from packio.sample.labelling import Labels, class_names
from packio.sample.record import Field, Frame
from packio.sources.tables import columns

OPTIONS = {"box_format": "bbox in a column of objects is xywh (default) or xyxy; none: metadata"}
NAMES = ("objects", "object", "annotations", "faces")
_BOX, _CATEGORY = ("bbox", "bboxes", "boxes"), ("category", "categories", "category_id", "label")
_COLUMNS = {"area": "area", "iscrowd": "crowd"}  # member → column of the boxes
_SLACK = 1  # pixels by which a box may reach beyond its image


class ObjectColumn(NamedTuple):
    """A column of objects.

    Attributes:
        name: Of the column.
        format: "xywh" or "xyxy", as the user says; None: xywh, if it can be that.
        labels: Category → label; None: categories are labels.
    """

    name: str
    format: str | None = None
    labels: Mapping[Any, int] | None = None

    def taken(
        self, value: Any, image: Field
    ) -> tuple[np.ndarray | None, dict[str, np.ndarray], dict[str, Any]]:
        """Boxes (k, 4) XYXY or None, their columns, and the other members of a value."""
        members, found = _members(value), dict[str, np.ndarray]()
        try:
            boxes = np.array(_pop(members, _BOX) or [], np.float64).reshape(-1, 4)
            if (categories := _pop(members, _CATEGORY)) is not None:
                known = self.labels
                labels = [c if known is None else known[c] for c in categories]
                if not all(type(label) is int for label in labels):
                    raise ValueError(f"categories {labels[:3]}; expected numbers, of a ClassLabel")
                found["labels"] = np.array(labels, np.int64)
            for member, column in _COLUMNS.items():
                if member in members:
                    kind = np.float32 if column == "area" else np.int64
                    found[column] = np.array(members.pop(member), kind)
        except (TypeError, ValueError, KeyError) as error:
            what = "no class" if isinstance(error, KeyError) else type(error).__name__
            raise DecodeError(f"{self.name}: {what}: {error}") from error
        if not np.isfinite(boxes).all() or any(len(c) != len(boxes) for c in found.values()):
            raise DecodeError(f"{self.name}: expected four numbers and one class for each box")
        rest = {name: value for name, value in members.items() if value}
        return (self._corners(boxes, image), found, rest) if len(boxes) else (None, {}, rest)

    def _corners(self, boxes: np.ndarray, image: Field) -> np.ndarray:
        corners = np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1)
        if self.format is None:
            facts = image.facts or encodings.read_facts(image.data)
            size = (facts.height, facts.width) if facts.orientation >= 5 else (
                facts.width, facts.height)  # fmt: skip
            most = np.array([*size, *size]) + _SLACK
            is_xyxy = (boxes <= most).all() and (boxes[:, 2:] >= boxes[:, :2]).all()
            if (is_xyxy and (corners > most).any()) or boxes.max() <= 1:
                raise DecodeError(
                    f"{self.name}: {boxes.tolist()[0]} in an image of {size[0]}x{size[1]}: no x, "
                    "y, width, height in pixels? Say --box-format xywh, xyxy or none"
                )
        return boxes if self.format == "xyxy" else corners


def column_of(cells: Mapping[Any, Any], said: str | None) -> ObjectColumn | None:
    """The column of objects among columns and their values, or types in Arrow; None: there is none.

    `said` is the option ``box_format``.
    """
    if said not in (None, "xywh", "xyxy", "none"):
        raise OptionError(f"box_format={said!r}: expected 'xywh', 'xyxy' or 'none'")
    found: str | None = None if said == "none" else columns.guess(cells, NAMES)
    if found is not None and has_boxes(cells[found]):
        return ObjectColumn(found, said)
    alone = columns.guess(cells, _BOX)
    kind = str(cells.get(alone, ""))  # a list of lists, or the type of one in Arrow
    if said is None and (kind.startswith("[[") or kind.count("list<") > 1):
        raise OptionError(
            f"column {alone!r} has boxes outside a column of objects; expected objects {{bbox, "
            "category}; to keep it as metadata, say --box-format none"
        )
    return None


def has_boxes(value: Any) -> bool:
    """Tell whether a value, or the type of a column in Arrow, is of objects with boxes."""
    if isinstance(value, (dict, list)):
        return any(name in _members(value) for name in _BOX)
    while getattr(value, "num_fields", 0) == 1 and not str(value).startswith("struct"):
        value = value.field(0).type  # of a list
    fields = range(value.num_fields) if str(value).startswith("struct") else ()
    return any(value.field(i).name in _BOX for i in fields)


def _members(value: Any) -> dict[str, Any]:
    """Members as lists, of a mapping of lists or of a list of mappings."""
    if isinstance(value, list):
        names = dict.fromkeys(name for entry in value for name in entry)
        return {name: [entry.get(name) for entry in value] for name in names}
    return dict(value or {})


def frame_of(cells: Mapping[str, Any]) -> Frame:
    """The size of the image that is said beside its objects."""
    width, height = cells.get("width"), cells.get("height")
    return Frame(width, height) if type(width) is type(height) is int else Frame()


def categories(value: Any) -> Sequence[Any]:
    return _pop(_members(value), _CATEGORY) or ()


def category_names(feature: Any) -> list[str] | None:
    """Names of categories in the feature of a column, of `datasets` or of its JSON."""
    if isinstance(feature, (list, tuple)):
        feature = feature[0] if feature else None
    get: Any = feature.get if isinstance(feature, Mapping) else functools.partial(getattr, feature)
    names, *inner = (get(name, None) for name in ("names", *_CATEGORY, "feature"))
    if isinstance(names, (list, tuple)) and names and all(isinstance(name, str) for name in names):
        return [*names]
    return next((category_names(part) for part in inner if part is not None), None)


def numbered(
    column: ObjectColumn, found: Iterable[Any], names: Sequence[str] | None,
    classes: Sequence[str] | None, labels: Labels, where: str,
) -> tuple[ObjectColumn, Labels]:  # fmt: skip
    """The column with its labels, and the labels of the samples with the names of its classes.

    `found` are all categories of the column, `names` those of the categories 0, 1, … if there are
    any, `classes` what the user says.
    """
    texts = {category for category in found if isinstance(category, str)}
    seen = texts or names or classes or ()
    known = class_names(where, seen, classes) if texts or classes else [*seen]
    if labels.classes and known and known != [*labels.classes]:
        raise OptionError(
            f"{where}: {column.name!r} and the labels have different classes; say --label-col '' "
            "to pack without labels, or --box-format none to pack without boxes"
        )
    numbers = {name: known.index(name) for name in seen}
    order = numbers if texts else dict(enumerate(numbers.values()))
    return column._replace(labels=order or None), labels._replace(classes=known or labels.classes)


def _pop(members: dict[str, Any], names: Sequence[str]) -> Any:
    return next((members.pop(name) for name in names if name in members), None)
