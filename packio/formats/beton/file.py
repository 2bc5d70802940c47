"""The tables of a .beton file; see `packio.formats.beton`."""

from __future__ import annotations

import enum
import json
import math
import re
import struct
from typing import Any, NamedTuple

import numpy as np

from packio.errors import IntegrityError, NotAPackError
from packio.formats.blobs.ranges import Input


class Type(enum.IntEnum):
    """Types of fields."""

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
    Type.FLOAT: np.dtype("<f8"),
    Type.INT: np.dtype("<i8"),
    Type.IMAGE: _PICTURE,
    Type.BYTES: _SPAN,
    Type.ARRAY: np.dtype("<u8"),
    Type.JSON: _SPAN,
    Type.TENSOR: np.dtype("<u8"),
}
_ALLOCATION = np.dtype([("sample", "<u8"), ("ptr", "<u8"), ("size", "<u8")])
_ARRAY = struct.Struct("<32QQ")
_NUMBERS = re.compile(r"[<>|]?[biuf]\d")  # types of arrays that JSON can hold


class BetonField(NamedTuple):
    """One field of a dataset."""

    position: int
    name: str
    type: Type
    dtype: np.dtype | None = None  # of an array; None: of no numbers
    shape: tuple[int, ...] = ()  # of an array


class Dataset:
    """The fields of a dataset, a row of cells for each sample, and where values lie; all checked.

    Attributes:
        rows: (N,) with the fields ``f0``, ``f1``…, as in the file.
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
            raise IntegrityError(
                f"{file.path}: has {file.size} bytes, expected {expected} for {samples} samples; "
                "restore the file"
            )
        self.rows = self._table(row, at, samples, "samples")
        found = self._table(_ALLOCATION, self._end, count, "allocations")
        self._allocations = found[np.lexsort((found["size"], found["ptr"]))]

    def _table(self, dtype: np.dtype, at: int, count: int, what: str) -> np.ndarray:
        """Read an array, which ends within the file."""
        if count > (self._file.size - at) // dtype.itemsize:
            raise IntegrityError(
                f"{self._path}: {self._file.size} bytes have no room for {count} {what} at {at}; "
                "restore the file"
            )
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
            raise IntegrityError(
                f"{self._path}: the description of the field {name!r} makes no sense: {error}; "
                "restore the file"
            ) from error

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
            raise IntegrityError(
                f"{self._path}: sample {int(wrong.argmax())}: the value of {field.name!r} "
                f"{problem}; restore the file"
            )


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
