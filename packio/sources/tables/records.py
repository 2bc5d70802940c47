"""Records made of rows: `record_of` is the only way from values to a record.

`Roles` says for a whole table which columns are fields and which are metadata; `item_of` finds it
out for each item of a Python dataset; `attach_records` makes the records of a listing of files.

Boxes stay as the source has them, and ``frame`` says where they lie: ``Frame(width, height)`` with
the size that the annotations give for the image, ``Frame(fractions=True)`` for YOLO's fractions,
``Frame()`` if they say nothing. `packio.packing.images.resizing` does the rest: it decides between
upright and stored, refuses or rescales other sizes, and counts what it could not decide.

An item may have further values beside image, label, mask, boxes, key and metadata. Such a value
becomes a named field if the user asks for the field, or if the value is bytes, a Pillow image, or
an array of one dimension or more. A number or a text becomes metadata.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import struct
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packio.errors import DecodeError
from packio.sample.record import IMAGE, MASK, Facts, Field, Frame, Record
from packio.sources import FieldOrigins, L, Rows
from packio.sources._rows import each
from packio.sources.tables import columns as tables
from packio.sources.tables import field_values

_BOX_NAMES = ("boxes", "bboxes", "bbox")
_BOX_LABEL_NAMES = (
    "box_labels", "box_label", "labels", "label", "category", "categories", "category_id",
)  # fmt: skip
_BOX_COLUMNS = {"area": "area", "iscrowd": "crowd", "crowd": "crowd"}  # name in an item → column
_KEY_NAMES = ("key", "__key__", "file_name", "filename", "file_path", "path", "image_path")
_META_NAMES = ("meta", "metadata", "json")
_ANNOTATIONS = ".annotations"  # column of rows, beside those of fields, which have no dot
_SIZE = struct.Struct("<I")


class Annotations(NamedTuple):
    """What a source says of one image; boxes are (k, 4) XYXY, as `frame` says."""

    meta: bytes | None = None
    boxes: np.ndarray | None = None
    box_columns: Mapping[str, np.ndarray] = {}
    frame: Frame | None = Frame()
    facts: Mapping[str, Facts] = {}  # of fields, where these are known


def attach_records(
    listing: L, root: str | os.PathLike[str], origins: FieldOrigins,
    cells: Mapping[str, Sequence[Any]], annotations: Sequence[Annotations] | None = None,
) -> L:  # fmt: skip
    """The listing of images with records made of cells and annotations.

    Cells are values of the fields; bytes are the path of a file, b"" is none. Other cells are of no
    field: they are there to be compared.
    """
    root, origins = os.path.abspath(root), {IMAGE: (IMAGE, IMAGE), **origins}
    columns = {IMAGE: listing.keys, **cells}
    files = field_values.files_of(columns, origins, root) if len(origins) > 1 else None
    if annotations is not None:
        columns[_ANNOTATIONS] = annotations
    opened = functools.partial(each, _read, root, origins)
    return dataclasses.replace(listing, files=files, rows=Rows(columns), open=opened)


def _read(root: str, origins: FieldOrigins, rows: Rows, position: int) -> Record[Field]:
    values = {name: rows.columns[name][position] for name in origins}
    for name, value in values.items():
        if isinstance(value, bytes):
            values[name] = Path(os.fsdecode(value)) if value else None
    own = rows.columns[_ANNOTATIONS][position] if _ANNOTATIONS in rows.columns else Annotations()
    return record_of(values, origins, root, own)


class Roles(NamedTuple):
    """The roles of a table's columns; `others`, as the label, are neither field nor metadata."""

    fields: FieldOrigins
    others: frozenset[str]
    has_meta: bool  # each row then has some, perhaps empty
    root: str  # of paths in cells
    objects: tables.ObjectColumn | None = None

    def record(self, cells: Mapping[str, Any]) -> Record[Field]:
        values = {name: cells.get(column) for name, (column, _) in self.fields.items()}
        taken = {column for column, _ in self.fields.values()} | self.others
        meta = {name: cell for name, cell in cells.items() if name not in taken}
        record = record_of(values, self.fields, self.root)
        if self.objects is not None:
            boxes, further, frame = self.objects.pop_from(meta, record.image)
            record = dataclasses.replace(record, boxes=boxes, box_columns=further, frame=frame)
        return dataclasses.replace(record, meta=tables.meta(meta)) if self.has_meta else record


def record_of(
    values: Mapping[str, Any], fields: FieldOrigins, root: str = "",
    annotations: Annotations = Annotations(),  # noqa: B008 (a constant)
) -> Record[Field]:  # fmt: skip
    """Make a record without key and label; paths among the values are relative to the root."""
    made = field_values.fields_of(values, fields, root)
    if IMAGE not in made:
        raise DecodeError(f"column {fields[IMAGE][0]!r} is empty; expected an image")
    for name in made.keys() & annotations.facts.keys():
        made[name] = made[name]._replace(facts=annotations.facts[name])
    return Record(
        b"", made, boxes=annotations.boxes, box_columns=annotations.box_columns,
        meta=annotations.meta, frame=annotations.frame,
    )  # fmt: skip


def resolve_kinds(fields: FieldOrigins, cells: Mapping[str, Iterable[Any]]) -> FieldOrigins:
    """Give each field of text a kind, as the column's first text says: ``a.png`` is a file."""
    found = dict(fields)
    for name, (column, kind) in fields.items():
        if kind is not None:
            continue
        first = next((c for c in cells.get(name, ()) if c is not None and str(c).strip()), None)
        if isinstance(first, str):
            found[name] = (column, field_values.kind_of_text(first))
    return found


def resolve_kinds_by(fields: FieldOrigins, item: Any) -> FieldOrigins:
    if all(kind is not None for _, kind in fields.values()):
        return fields
    members = {str(name): value for name, value in _members(item).items()}
    return resolve_kinds(fields, {n: [members.get(column)] for n, (column, _) in fields.items()})


class Item(NamedTuple):
    record: Record[Field]
    label: Hashable
    key: str | None
    path: str | None  # of the image's file, also if the image's bytes are in the item


def item_of(
    item: Any, asked: FieldOrigins, label_col: str | None = None, box_format: str | None = None
) -> Item:
    left = {str(name): value for name, value in _members(item).items() if value is not None}
    values = {name: left.get(column) for name, (column, _) in asked.items()}
    for column, _ in asked.values():
        left.pop(column, None)

    def take(names: tuple[str, ...], *kinds: type) -> Any:
        name = tables.guess(left, names)
        if name is None or (kinds and not isinstance(left[name], kinds)):
            return None
        return left.pop(name)

    label = None if label_col is None else left.pop(label_col, None)
    image = take(tables.IMAGE_NAMES)
    if image is None:
        raise DecodeError(f"no image among {', '.join(map(ascii, left))}; expected 'image'")
    pixels = _image(image)
    boxes, box_columns, frame = _pop_boxes(left, pixels, box_format)
    mask_name = tables.guess(left, tables.MASK_NAMES)
    mask = left.pop(mask_name) if mask_name and field_values.is_picture(left[mask_name]) else None
    usual = () if label_col is not None else tables.LABEL_NAMES
    label = take(usual) if label is None else label
    if mask is None and field_values.is_picture(label):
        mask, label = label, take(usual)
    key, meta = _key(take(_KEY_NAMES, str, bytes)), take(_META_NAMES, dict) or {}
    if label is None and label_col:
        label = meta.get(label_col)
    fields: dict[str, tuple[str, str | None]] = {IMAGE: ("image", "image"), **asked}
    for column in [name for name, value in left.items() if field_values.is_field(value)]:
        if (name := field_values.field_name(column)) in fields:
            raise DecodeError(
                f"{column!a} and another value would both be the field {name!r}; name one of them "
                "otherwise, by fields="
            )
        fields[name], values[name] = (column, None), left.pop(column)
    if mask is not None:
        fields[MASK], values[MASK] = ("mask", "mask"), mask
    rest = {n: value for n, value in left.items() if not n.startswith("__")} | meta
    own = Annotations(tables.meta(rest) if rest else None, boxes, box_columns, frame)
    record = record_of({IMAGE: pixels, **values}, fields, "", own)
    return Item(record, _label(label), key, field_values.path_of(image))


def _key(value: str | bytes | None) -> str | None:
    key = value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
    if key is not None and (not key or "\0" in key):
        raise DecodeError(f"{key!a} as key; expected text")
    return key


def _members(item: Any) -> dict[Any, Any]:
    """Image, label and whatever follows; a mapping in a tuple gives its members."""
    if isinstance(item, Mapping) and not field_values.is_file(item):
        return dict(item)
    if not isinstance(item, (tuple, list)):
        return {"image": item}
    if not item:
        raise DecodeError("an empty tuple; expected (image, label)")
    found: dict[str, Any] = {"image": item[0]}
    for i, value in enumerate(item[1:], 1):
        if isinstance(value, Mapping) and not field_values.is_file(value):
            found = {**value, **found}
        elif field_values.is_picture(value) and "mask" not in found:
            found["mask"] = value
        else:
            found["label" if i == 1 else str(i)] = value
    return found


def _image(value: Any) -> Field:
    """The image of an item. Pixels stay raw: if all images have one shape, the pack is raw."""
    if field_values.path_of(value) is not None or field_values.is_encoded(value):
        return Field("image", field_values.encode(value))
    return Field("image", *field_values.raw_planes(value))


def _pop_boxes(
    left: dict[str, Any], image: Field, box_format: str | None
) -> tuple[np.ndarray | None, dict[str, np.ndarray], Frame]:
    name = tables.guess(left, _BOX_NAMES) if box_format != "none" else None
    if name is None:
        objects = tables.find_objects(left, box_format)
        return (None, {}, Frame()) if objects is None else objects.pop_from(left, image)
    boxes = left.pop(name)
    found = _corners(boxes, name, box_format)
    height, width = getattr(boxes, "canvas_size", (0, 0))  # of torchvision's BoundingBoxes
    columns = {}
    name = tables.guess(left, _BOX_LABEL_NAMES)
    if name is not None and np.ndim(left[name]) == 1:
        ids = field_values.array(left.pop(name))
        if ids.shape != (len(found),) or (ids.size and ids.dtype.kind not in "bui"):
            what = "names" if ids.dtype.kind in "USO" else f"{ids.dtype.name} {ids.shape}"
            raise DecodeError(
                f"{name!a}, the labels of boxes, are {what}; expected {len(found)} integers: "
                "positions in the `classes` of the dataset, a sorted list of names"
            )
        columns["labels"] = ids.astype(np.int64)
    for name, column in _BOX_COLUMNS.items():
        if name in left and np.shape(left[name]) == (len(found),):
            values = field_values.array(left.pop(name))
            columns[column] = values.astype(np.float32 if column == "area" else np.int64)
    return found, columns, Frame(width, height)


def _corners(boxes: Any, name: str, box_format: str | None) -> np.ndarray:
    layout = getattr(boxes, "format", None)  # of torchvision's BoundingBoxes
    if layout is not None and str(getattr(layout, "value", layout)) != "XYXY":
        raise DecodeError(f"boxes are {layout}; expected XYXY, in pixels")
    found = np.asarray(field_values.array(boxes), np.float32)
    if found.size % 4 or (found.ndim == 2 and found.shape[1] != 4 and found.size):
        raise DecodeError(f"boxes have the shape {found.shape}; expected (k, 4), XYXY in pixels")
    found = found.reshape(-1, 4)
    if layout is None and box_format is None and not name.lower().startswith("boxes"):
        raise DecodeError(
            f"{name!a} has x, y, width, height in some datasets, and corners in others: say "
            "--box-format xywh, xyxy or none, or call corners 'boxes'"
        )
    if layout is None and box_format == "xywh":
        found = np.concatenate([found[:, :2], found[:, :2] + found[:, 2:]], axis=1)
    return found


def _label(value: Any) -> Hashable:
    """A label as plain Python has it; lists and vectors as tuples."""
    if isinstance(value, bytes) and value.strip().isdigit():
        return int(value)
    if isinstance(value, (np.ndarray, np.generic)) or field_values.is_array(value):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        value = tuple(_label(part) for part in value)
    if value is None or isinstance(value, (bool, int, float, str, tuple)):
        return value
    raise DecodeError(f"a {type(value).__name__} as label; expected a number, a name, or a list")


def to_bytes(record: Record[Field]) -> bytes:
    """A record for a scratch file: length of the header (uint32), the header (JSON), the data."""
    boxes = {} if record.boxes is None else {"": record.boxes, **record.box_columns}
    header = json.dumps([
        [[name, f.kind, len(f.data), f.facts] for name, f in record.fields.items()],
        None if record.meta is None else record.meta.decode("utf-8", "surrogatepass"),
        [[name, array.dtype.str, array.tolist()] for name, array in boxes.items()],
        record.frame,
    ]).encode()  # fmt: skip
    return b"".join((_SIZE.pack(len(header)), header, *(f.data for f in record.fields.values())))


def from_bytes(data: bytes) -> Record[Field]:
    end = _SIZE.size + _SIZE.unpack_from(data)[0]
    described, meta, boxes, frame = json.loads(data[_SIZE.size : end])
    fields = {}
    for name, kind, length, facts in described:
        value = data[end : end + length]
        fields[name] = Field(kind, value, None if facts is None else Facts(*facts))
        end += length
    arrays = {name: np.array(values, dtype) for name, dtype, values in boxes}
    own = arrays.pop("", None)
    return Record(
        b"", fields, boxes=None if own is None else own.reshape(-1, 4), box_columns=arrays,
        meta=None if meta is None else meta.encode("utf-8", "surrogatepass"),
        frame=None if frame is None else Frame(*frame),
    )  # fmt: skip
