"""Columns of tables: their usual names, paths as keys, cells as metadata, and objects with boxes.

A column of objects is as Hugging Face has it, ``objects {bbox, category}``: a mapping of
lists, ``{"bbox": [[x, y, w, h], …], "category": [3, …]}``, or a list of mappings. Boxes are COCO's,
x, y, width and height in pixels, unless the user says ``box_format``. Categories are positions in
the names of a ClassLabel, or names, or numbers. Members that are no columns of boxes are metadata.

Source: https://huggingface.co/docs/datasets/object_detection and /image_dataset.
"""

from __future__ import annotations

import datetime as dt
import decimal
import functools
import json
import math
import os
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from packio.errors import DecodeError, OptionError, SourceError
from packio.images import encodings
from packio.sample.labelling import Labels, class_names
from packio.sample.record import Field, Frame
from packio.sources import check_choice

IMAGE_NAMES = ("image", "img", "pixel_values", "jpg", "jpeg", "png", "webp", "image_bytes", "bytes")
LABEL_NAMES = (
    "label", "labels", "class", "cls", "classes", "class_name", "class_label", "category", "target",
    "targets", "class_id", "class_idx", "label_id", "fine_label", "y",
)  # fmt: skip
MASK_NAMES = (
    "mask", "segmentation_mask", "seg_mask", "segmentation", "seg_map", "semantic_mask",
    "annotation", "seg",
)  # fmt: skip

OBJECT_OPTIONS = {
    "box_format": "bbox in a column of objects is xywh (default) or xyxy; none: metadata"
}
OBJECT_NAMES = ("objects", "object", "annotations", "faces")
_BOX, _CATEGORY = ("bbox", "bboxes", "boxes"), ("category", "categories", "category_id", "label")
_COLUMNS = {"area": "area", "iscrowd": "crowd"}  # member → column of the boxes
_SLACK = 1  # pixels by which a box may reach beyond its image

_is_odd = re.compile(r"//|/\.\.?(/|$)|/$").search  # of an absolute path
_TIMES = (dt.date, dt.time, dt.timedelta, decimal.Decimal, uuid.UUID)


def guess(columns: Iterable[str], usual: Sequence[str]) -> str | None:
    """Find the column whose name comes first in a list of usual names, in any case; or None."""
    plain: dict[str, str] = {}
    for column in columns:
        plain.setdefault(re.sub(r"[\s-]+", "_", column.strip()).lower(), column)
    return next((plain[name] for name in usual if name in plain), None)


def relative(paths: Sequence[str], root: str | os.PathLike[str]) -> tuple[str, list[bytes]]:
    """Make keys of paths; return the folder above them, which is the root or one above the root.

    Paths are compared as text: links are not followed.
    """
    root, text = os.fspath(root), "\n".join(("", *paths, ""))
    if any(odd in text for odd in ("\n/", "\n.", "/.", "//", "/\n")):  # a tenth of a regex's time
        root = os.path.abspath(root)
        full = [path if path[:1] == "/" else os.path.join(root, path) for path in paths]
        full = [os.path.normpath(path) if _is_odd(path) else path for path in full]
        if not all(path.startswith(os.path.join(root, "")) for path in full):
            root = os.path.commonpath({root, *(path.rpartition("/")[0] or "/" for path in full)})
        skipped = len(os.path.join(root, ""))
        paths = [path[skipped:] for path in full]
    return root, [path.encode("utf-8", "surrogateescape") for path in paths]


def keys_of(paths: Sequence[Any]) -> list[bytes] | None:
    """Keys of the paths of images; None if a path is missing, twice, or leads out of its folder."""
    if not all(isinstance(path, str) and path and "\0" not in path for path in paths):
        return None
    is_absolute = all(path.startswith("/") for path in paths)
    shared = os.path.commonpath({os.path.dirname(p) for p in paths}) if is_absolute else "/-"
    root, keys = relative(paths, shared)
    return keys if root == shared and len(set(keys)) == len(keys) else None


def choice(
    table: str, role: str, column: str, label_columns: Sequence[str], found: Labels,
    fields: Mapping[str, tuple[str, str | None]], meta: Sequence[str],
) -> str:  # fmt: skip
    """Say which columns of a table were taken; `role`, "path" or "image", is that of `column`."""
    label = f"{', '.join(map(repr, label_columns))} as label"
    if not label_columns or found.values is None:
        label = "none as label" + "".join(f" ({name!r} is blank)" for name in label_columns[:1])
    elif found.classes:
        label += f" ({len(found.classes):,} classes)"
    more = "".join(f", {origin!r} as {name}" for name, (origin, _) in fields.items())
    more += f", {', '.join(map(repr, meta))} as meta" if meta else ""
    return (
        f"{table}: took column {column!r} as {role}, {label}{more}; "
        f"--{role}-col and --label-col say otherwise"
    )


def meta(values: dict[str, Any]) -> bytes:
    """Encode metadata as JSON: dates and decimals as text, NaN as null."""
    return compact(_plain(values))


def compact(values: Any) -> bytes:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, _TIMES):
        return str(value)
    if callable(getattr(value, "tolist", None)):  # numpy's and torch's
        return _plain(value.tolist())
    raise SourceError(f"{type(value).__name__} {ascii(value)[:60]}; JSON cannot hold it")


class ObjectColumn(NamedTuple):
    """A column of objects; without `labels`, categories are labels."""

    name: str
    format: str | None = None
    labels: Mapping[Any, int] | None = None

    def pop_from(
        self, cells: dict[str, Any], image: Field
    ) -> tuple[np.ndarray | None, dict[str, np.ndarray], Frame]:
        """Boxes (k, 4) XYXY or None, their columns and frame; other members stay in the cells."""
        members, found = _members(cells.pop(self.name, None)), dict[str, np.ndarray]()
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
        if rest := {name: value for name, value in members.items() if value}:
            cells[self.name] = rest
        width, height = cells.get("width"), cells.get("height")  # of the image
        frame = Frame(width, height) if type(width) is type(height) is int else Frame()
        return self._corners(boxes, image) if len(boxes) else None, found, frame

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


def find_objects(cells: Mapping[Any, Any], said: str | None) -> ObjectColumn | None:
    """The column of objects among columns and their values, or types in Arrow."""
    check_choice("box_format", said, "xywh", "xyxy", "none")
    found: str | None = None if said == "none" else guess(cells, OBJECT_NAMES)
    if found is not None and has_boxes(cells[found]):
        return ObjectColumn(found, said)
    alone = guess(cells, _BOX)
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


def number_labels(
    column: ObjectColumn, found: Iterable[Any], names: Sequence[str] | None,
    classes: Sequence[str] | None, labels: Labels, where: str,
) -> tuple[ObjectColumn, Labels]:  # fmt: skip
    """The column and the labels of the samples, which share one list of classes."""
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
