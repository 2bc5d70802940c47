"""Samples as datasets give them, taken apart: tuples, mappings or images alone.

`packio.sources._values` says what can be an image, a mask or another field. A value that is none of
image, label, mask, boxes, key and metadata becomes a named field if the value is bytes, a Pillow
image, or an array of one dimension or more, or if the user asks for the field. Any other value,
such as a number or text, becomes metadata.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

import numpy as np

from packio.errors import DecodeError
from packio.sample.record import MASK, Field, Record
from packio.sources import _values
from packio.sources.tables import tables

_BOX_NAMES = ("boxes", "bboxes", "bbox")
_BOX_LABEL_NAMES = ("box_labels", "box_label", "labels", "label")
_BOX_COLUMNS = {"area": "area", "iscrowd": "crowd", "crowd": "crowd"}  # name in a sample → column
_KEY_NAMES = ("key", "__key__", "file_name", "filename", "file_path", "path", "image_path")
_META_NAMES = ("meta", "metadata", "json")

Wanted = Mapping[str, tuple[str, "str | None"]]  # as `Context.fields`


class Taken(NamedTuple):
    """The parts of one sample of a dataset."""

    record: Record[Field]
    label: Hashable
    key: str | None
    path: str | None  # of the image's file, also if the image's bytes are in the sample


def taken(sample: Any, wanted: Wanted) -> Taken:
    """Take a sample apart.

    Args:
        sample: An image, (image, label, …), or a mapping.
        wanted: Fields that the user asks for, by the names of the sample's values.

    Raises:
        DecodeError: a part of the sample makes no sense.
        SourceError: JSON cannot hold a value of the metadata.
        OSError: a file cannot be read.
    """
    left = _members(sample)
    named = {name: left.pop(origin, None) for name, (origin, _) in wanted.items()}

    def take(names: tuple[str, ...], *kinds: type) -> Any:
        """Take out the value that has one of the names, if the value is of such a type."""
        name = tables.guess(left, names)
        if name is None or (kinds and not isinstance(left[name], kinds)):
            return None
        return left.pop(name)

    image = take(tables.IMAGE_NAMES)
    if image is None:
        raise DecodeError(f"no image among {', '.join(map(ascii, left))}; expected 'image'")
    boxes, columns = _boxes(take(_BOX_NAMES), left)
    name = tables.guess(left, tables.MASK_NAMES)
    mask = left.pop(name) if name is not None and _values.is_picture(left[name]) else None
    label = take(tables.LABEL_NAMES)
    if mask is None and _values.is_picture(label):
        mask, label = label, take(tables.LABEL_NAMES)
    key, meta = take(_KEY_NAMES, str), take(_META_NAMES, dict)
    if key is not None and (not key or "\0" in key):
        raise DecodeError(f"{key!a} as key; expected text")
    for origin in [n for n, value in left.items() if _values.is_field(value)]:
        if (name := _values.field_name(origin)) in named:
            raise DecodeError(
                f"{origin!a} and another value would both be the field {name!r}; name one of them "
                "otherwise, by fields="
            )
        named[name] = left.pop(origin)
    fields = {"image": _image(image)}
    if mask is not None:
        fields[MASK] = Field("mask", _values.mask_bytes(mask))
    fields |= _values.fields_of(named, wanted)
    rest = {n: value for n, value in left.items() if not n.startswith("__")} | (meta or {})
    meta_bytes = tables.meta(rest) if rest else None
    record = Record(b"", fields, boxes=boxes, box_columns=columns, meta=meta_bytes)
    return Taken(record, _label(label), key, _values.path_of(image))


def _members(sample: Any) -> dict[str, Any]:
    """Names and values of a sample, without those that are None."""
    if isinstance(sample, Mapping) and not _values.is_file(sample):
        found = dict(sample)
    elif not isinstance(sample, (tuple, list)):
        found = {"image": sample}
    elif not sample:
        raise DecodeError("an empty tuple; expected (image, label)")
    else:
        found = _of_tuple(sample)
    return {str(name): value for name, value in found.items() if value is not None}


def _of_tuple(sample: tuple[Any, ...] | list[Any]) -> dict[str, Any]:
    """Image, label and whatever follows; a mapping in the tuple gives its members."""
    found: dict[str, Any] = {"image": sample[0]}
    for i, value in enumerate(sample[1:], 1):
        if isinstance(value, Mapping) and not _values.is_file(value):
            found = {**value, **found}
        elif _values.is_picture(value) and "mask" not in found:
            found["mask"] = value
        else:
            found["label" if i == 1 else str(i)] = value
    return found


def _image(value: Any) -> Field:
    if _values.path_of(value) is not None or _values.is_encoded(value):
        return Field("image", _values.encoded(value))
    return Field("image", *_values.raw_planes(value))


def _boxes(boxes: Any, left: dict[str, Any]) -> tuple[np.ndarray | None, dict[str, np.ndarray]]:
    """Boxes (k, 4) float32 XYXY, and their columns, which are taken out of a sample."""
    if boxes is None:
        return None, {}
    layout = getattr(boxes, "format", None)  # of torchvision's BoundingBoxes
    if layout is not None and str(getattr(layout, "value", layout)) != "XYXY":
        raise DecodeError(f"boxes are {layout}; expected XYXY, in pixels")
    found = np.asarray(_values.array(boxes), np.float32)
    if found.size % 4 or (found.ndim == 2 and found.shape[1] != 4 and found.size):
        raise DecodeError(f"boxes have the shape {found.shape}; expected (k, 4), XYXY in pixels")
    found = found.reshape(-1, 4)
    columns: dict[str, np.ndarray] = {}
    name = tables.guess(left, _BOX_LABEL_NAMES)
    if name is not None and np.ndim(left[name]) == 1:
        ids = _values.array(left.pop(name))
        if ids.shape != (len(found),) or (ids.size and ids.dtype.kind not in "bui"):
            raise DecodeError(
                f"labels of boxes are {ids.dtype.name} {ids.shape}; expected {len(found)} integers"
            )
        columns["labels"] = ids.astype(np.int64)
    for name, column in _BOX_COLUMNS.items():
        if name in left and np.shape(left[name]) == (len(found),):
            values = _values.array(left.pop(name))
            columns[column] = values.astype(np.float32 if column == "area" else np.int64)
    return found, columns


def _label(value: Any) -> Hashable:
    """A label as plain Python has it; lists and vectors as tuples."""
    if isinstance(value, bytes) and value.strip().isdigit():
        return int(value)
    if isinstance(value, (np.ndarray, np.generic)) or _values.is_array(value):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        value = tuple(_label(part) for part in value)
    if value is None or isinstance(value, (bool, int, float, str, tuple)):
        return value
    raise DecodeError(f"a {type(value).__name__} as label; expected a number, a name, or a list")
