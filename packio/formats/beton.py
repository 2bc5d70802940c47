"""FFCV .beton files, version 2; packio reads them and does not write them.

How the bytes lie on disk, numbers little-endian ::

    u16 2   u16 fields   u32 page size   u64 samples   u64 end
    descriptions of the fields   rows   zeros up to a page   pages   (end:) allocations

A description has 1041 bytes: u8 type, 16 bytes of name (ASCII, NUL), 1024 bytes of arguments. A row
has a cell for each field of a sample. Cells are aligned as a C compiler aligns them: an f64, an i64
and a ``ptr`` alone to 8 bytes, a struct with a ``ptr`` to 1 byte. Each ``ptr`` counts from the
beginning of the file.

=====  =============  ==============================================================================
type   field          cell, and what lies at ``ptr``
=====  =============  ==============================================================================
0      FloatField     f64
1      IntField       i64
2      RGBImageField  u8 mode, u16 width, u16 height, u64 ptr; mode 0: a JPEG, 1: (H, W, 3) uint8
3      BytesField     u64 ptr, u64 size
4, 6   NDArrayField,  u64 ptr; the arguments are u64 shape[32] (zeros at its end), u64 length, and
       TorchTensor    so many bytes of JSON: NumPy's ``dtype.descr``
5      JSONField      u64 ptr, u64 size; JSON and a NUL
=====  =============  ==============================================================================

An allocation is u64 sample, u64 ptr, u64 size. There is one allocation for each ``ptr`` of each
sample, in any order. Only the allocation tells the length of a JPEG. Fields of another type (255: a
type of the user's own) make rows that packio cannot read.

The image is the image field of a usual name, else the first one; others are ignored. The label is
the int or float field of a usual name, else the first int field, else the first float field. All
other fields are metadata: bytes as text (surrogate-escaped if not UTF-8), arrays as lists. A field
with a value of more than 64 KiB, and arrays that hold no numbers, are ignored.

Source: https://github.com/libffcv/ffcv, ffcv/types.py, ffcv/fields, ffcv/memory_allocator.py,
checked against files that FFCV 1.0.2 wrote.
"""

from __future__ import annotations

import enum
import json
import math
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packio.errors import IntegrityError, NotAPackError
from packio.formats import Caps, Format, Reading, check_reading, damage_error, unknown_error
from packio.formats.blobs.ranges import Input, open_input
from packio.formats.wire import load_json
from packio.images import encodings
from packio.sample.record import IMAGE, Place, Record

_MOST_META = 1 << 16  # bytes of a value that is metadata
_IMAGES = ("image", "img", "x")
_LABELS = ("label", "labels", "class", "y", "target")


class Type(enum.IntEnum):
    FLOAT = 0
    INT = 1
    IMAGE = 2
    BYTES = 3
    ARRAY = 4
    JSON = 5
    TENSOR = 6


ARRAYS = (Type.ARRAY, Type.TENSOR)
RAW = 1  # mode of an image; 0 is JPEG

_HEADER = struct.Struct("<HHIQQ")
_FIELD = np.dtype([("type", "u1"), ("name", "S16"), ("arguments", "V1024")])
_SPAN = np.dtype([("ptr", "<u8"), ("size", "<u8")])
_PICTURE = np.dtype([("mode", "u1"), ("width", "<u2"), ("height", "<u2"), ("ptr", "<u8")])
_CELLS = {
    Type.FLOAT: np.dtype("<f8"), Type.INT: np.dtype("<i8"), Type.IMAGE: _PICTURE,
    Type.BYTES: _SPAN, Type.ARRAY: np.dtype("<u8"), Type.JSON: _SPAN, Type.TENSOR: np.dtype("<u8"),
}  # fmt: skip
_ALLOCATION = np.dtype([("sample", "<u8"), ("ptr", "<u8"), ("size", "<u8")])
_ARRAY = struct.Struct("<32QQ")
_NUMBERS = re.compile(r"[<>|]?[biuf]\d")  # types of arrays that JSON can hold


class BetonField(NamedTuple):
    position: int
    name: str
    type: Type
    dtype: np.dtype | None = None  # of an array; None: of no numbers
    shape: tuple[int, ...] = ()  # of an array


class Dataset:
    """The fields of a dataset, a row of cells for each sample, and where values lie; all checked.

    `rows` are (N,) with the fields ``f0``, ``f1``…, as in the file.
    """

    def __init__(self, file: Input) -> None:
        self._file, self._path = file, file.path
        if file.size < _HEADER.size:
            raise NotAPackError(f"{file.path}: {file.size} bytes; no FFCV dataset")
        version, fields, page, samples, self._end = _HEADER.unpack(file.read(_HEADER.size, 0))
        if version != 2 or not fields or not page or page & (page - 1):
            raise NotAPackError(f"{file.path}: no FFCV dataset of version 2")
        if not self._end:
            raise IntegrityError(f"{file.path}: writing it was not finished; write it again")
        at = _HEADER.size
        descriptions = self._table(_FIELD, at, fields, "descriptions of fields")
        self.fields = [self._field(i, d) for i, d in enumerate(descriptions)]
        at += descriptions.nbytes
        row = np.dtype([(f"f{f.position}", _CELLS[f.type]) for f in self.fields], align=True)
        self._begin = at + samples * row.itemsize
        count = samples * sum(f.type not in (Type.FLOAT, Type.INT) for f in self.fields)
        expected = self._end + count * _ALLOCATION.itemsize
        if self._begin > self._end or expected != file.size:
            claim = f"has {file.size} bytes, expected {expected} for {samples} samples"
            raise damage_error(file.path, claim)
        self.rows = self._table(row, at, samples, "samples")
        found = self._table(_ALLOCATION, self._end, count, "allocations")
        self._allocations = found[np.lexsort((found["size"], found["ptr"]))]

    def _table(self, dtype: np.dtype, at: int, count: int, what: str) -> np.ndarray:
        if count > (self._file.size - at) // dtype.itemsize:
            found = f"{self._file.size} bytes have no room for {count} {what} at {at}"
            raise damage_error(self._path, found)
        return np.frombuffer(self._file.read(count * dtype.itemsize, at), dtype)

    def _field(self, position: int, description: np.void) -> BetonField:
        name = description["name"].partition(b"\0")[0].decode("ascii", "backslashreplace")
        number = int(description["type"])
        if number not in list(Type):
            raise NotAPackError(
                f"{self._path}: the field {name!r} is of type {number}, which the file does not "
                "explain; write the dataset without fields of your own"
            )
        if number not in ARRAYS:
            return BetonField(position, name, Type(number))
        try:
            about = _array(description["arguments"].tobytes())
            return BetonField(position, name, Type(number), *about)
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            what = f"the description of the field {name!r} makes no sense: {error}"
            raise damage_error(self._path, what) from error

    def places(self, field: BetonField) -> tuple[np.ndarray, np.ndarray]:
        """Offset and length of each sample's value: (N,) int64, bytes, within the file."""
        cells = self.rows[f"f{field.position}"]
        if field.type in ARRAYS:
            assert field.dtype is not None  # noqa: S101 (others are passed over)
            size = math.prod(field.shape) * field.dtype.itemsize
            offset = cells
            length = np.full(len(cells), min(size, self._file.size + 1), np.uint64)
        else:
            offset = cells["ptr"]
            is_image = field.type is Type.IMAGE
            length = self._image_sizes(field, cells) if is_image else cells["size"]
        end = np.uint64(self._end)
        outside = (offset < self._begin) | (offset > end) | (length > end - np.minimum(offset, end))
        self._refuse(outside, field, "lies outside of the data")
        return offset.astype(np.int64), length.astype(np.int64)

    def _image_sizes(self, field: BetonField, cells: np.ndarray) -> np.ndarray:
        """The size of each image. Only the allocations tell it."""
        table = self._allocations
        found = np.searchsorted(table["ptr"], cells["ptr"], "right") - 1  # the largest that begins
        mine = table[np.maximum(found, 0)]  # there: an empty value begins where the next one does
        strange = (mine["ptr"] != cells["ptr"]) | (
            mine["sample"] != np.arange(len(cells), dtype=np.uint64)
        )
        self._refuse(strange, field, "is nowhere allocated")
        self._refuse(cells["mode"] > RAW, field, "is neither JPEG nor raw")
        pixels = cells["height"].astype(np.uint64) * cells["width"] * np.uint64(3)
        wrong = (cells["mode"] == RAW) & (mine["size"] != pixels)
        self._refuse(wrong, field, "has another size than its pixels")
        sizes: np.ndarray = mine["size"]
        return sizes

    def _refuse(self, wrong: np.ndarray, field: BetonField, problem: str) -> None:
        if wrong.any():
            where = f"{self._path}: sample {int(wrong.argmax())}"
            raise damage_error(where, f"the value of {field.name!r} {problem}")


def _array(arguments: bytes) -> tuple[np.dtype | None, tuple[int, ...]]:
    """Type and shape of an array, from the arguments of its field."""
    *shape, length = _ARRAY.unpack_from(arguments)
    while shape and shape[-1] == 0:
        shape.pop()
    if 0 in shape:
        raise ValueError(f"the shape {tuple(shape)}")
    described: Any = json.loads(arguments[_ARRAY.size : _ARRAY.size + min(length, 1024)])
    if len(described) != 1 or not isinstance(described[0][1], str):
        return None, ()
    known = _NUMBERS.fullmatch(described[0][1])
    return (np.dtype(described[0][1]) if known else None), tuple(shape)


class Beton(Format):
    caps: Caps = Caps((".beton",), writes=False, keeps=frozenset(("label", "meta")))

    def scan(self, path: Path, reading: Reading) -> Iterator[Record[Place]]:
        check_reading(path, reading, "label")
        with open_input(path) as file:
            yield from _records(file, reading.label)


def _records(file: Input, wanted: str | None) -> Iterator[Record[Place]]:
    data = Dataset(file)
    image = _chosen(data.fields, _IMAGES, Type.IMAGE)
    if image is None:
        shown = ", ".join(field.name for field in data.fields)
        raise NotAPackError(f"{file.path}: no field of images: {shown}; expected an RGBImageField")
    label = _label_field(data, wanted, file)
    others = {
        field.name: values
        for field in data.fields
        if field not in (image, label) and (values := _values(data, field, file)) is not None
    }
    label_of = None if label is None else _values(data, label, file)
    pictures = data.rows[f"f{image.position}"]
    modes, widths, heights = (pictures[n].tolist() for n in ("mode", "width", "height"))
    places = zip(*(array.tolist() for array in data.places(image)), strict=True)
    for i, (offset, length) in enumerate(places):
        raw = encodings.raw_facts(heights[i], widths[i], 3, "uint8", "raw_hwc")
        facts = raw if modes[i] == RAW else None
        place = Place("image", file.path.name, offset, length, facts=facts)
        meta = json.dumps({n: value(i) for n, value in others.items()}).encode()
        label_i = None if label_of is None else label_of(i)
        yield Record(b"%d" % i, {IMAGE: place}, label_i, meta=meta if others else None)


def _chosen(fields: Sequence[BetonField], names: Sequence[str], *types: Type) -> BetonField | None:
    """The field of some types that has one of some names; else the first field of these types."""
    fitting = [field for kind in types for field in fields if field.type == kind]
    named = [f for name in names for f in fitting if f.name.lower() == name]
    return next(iter((*named, *fitting)), None)


def _label_field(data: Dataset, wanted: str | None, file: Input) -> BetonField | None:
    if wanted is None:
        return _chosen(data.fields, _LABELS, Type.INT, Type.FLOAT)
    found = next((field for field in data.fields if field.name == wanted), None)
    if wanted and (found is None or found.type is Type.IMAGE):
        names = (field.name for field in data.fields if field.type is not Type.IMAGE)
        raise unknown_error("label", wanted, names, file.path)
    return found


def _values(data: Dataset, field: BetonField, file: Input) -> Callable[[int], Any] | None:
    """Make a function that reads a sample's value of a field; None if the field is no metadata."""
    if field.type in (Type.INT, Type.FLOAT):
        found: list[Any] = data.rows[f"f{field.position}"].tolist()
        return found.__getitem__
    if field.type is Type.IMAGE or (field.type in ARRAYS and field.dtype is None):
        return None
    offsets, lengths = data.places(field)
    if lengths.max(initial=0) > _MOST_META:
        return None

    def value(i: int) -> Any:
        raw = file.read(int(lengths[i]), int(offsets[i]))
        if field.type is Type.BYTES:
            return raw.decode("utf-8", "surrogateescape")
        if field.type is not Type.JSON:
            return np.frombuffer(raw, field.dtype).reshape(field.shape).tolist()
        where = f"{file.path}: sample {i}: {field.name!r} at {offsets[i]}"
        return load_json(raw.partition(b"\0")[0], where)

    return value


FORMAT = Beton()
