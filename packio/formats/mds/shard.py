"""One shard of MDS; see `packio.formats.mds`."""

from __future__ import annotations

import itertools
import json
import operator
import re
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from packio.errors import IntegrityError, NotAPackError, OptionError
from packio.formats.blobs.ranges import Input
from packio.images.encodings import is_image
from packio.sample.fields import RESERVED
from packio.sample.record import IMAGE, MASK, Place, Record

_SIZE = struct.Struct("<I")
_MOST_CONFIG = 1 << 24  # bytes

_IMAGES = ("image", "img", "jpeg", "jpg", "png", "x")
_MASKS = ("mask", "segmentation", "segmentation_mask")
_LABELS = ("label", "labels", "class", "y", "target")
_KEYS = ("key", "filename", "file_name", "path")
_METAS = ("meta", "metadata")

_INTEGERS = {
    "int": "<q", "uint8": "<B", "uint16": "<H", "uint32": "<I", "uint64": "<Q",
    "int8": "<b", "int16": "<h", "int32": "<i", "int64": "<q",
}  # fmt: skip
_FLOATS = {"float16": "<e", "float32": "<f", "float64": "<d"}
_ENCODED = ("jpeg", "png")
_KINDS = {  # of fields by the encoding of their column; of all others: bytes
    "jpeg": "image", "png": "image", "str": "text", "json": "text", "str_int": "text",
    "str_float": "text", "str_decimal": "text",
}  # fmt: skip


class MdsColumn(NamedTuple):
    """One column of a shard, as the config describes the column."""

    position: int
    name: str
    encoding: str
    size: int | None  # bytes; None: each value has a size of its own


class Shard:
    """An open shard: offsets and columns, checked.

    Args:
        label: Name of the column with the labels; "" takes none; None: the one of a usual name.
    """

    def __init__(self, file: Input, label: str | None = None) -> None:
        self._file, self._path = file, file.path
        self._offsets = self._read_offsets()
        self.count: int = len(self._offsets) - 1
        self._columns = self._read_columns()
        self._sizes = [column.size for column in self._columns]
        self._variable = [i for i, size in enumerate(self._sizes) if size is None]
        self._head = struct.Struct(f"<{len(self._variable)}I")
        self._mask = self._named(_MASKS, (*_ENCODED, "bytes"))
        self._image = self._find_image()
        self._label = self._find_label(label)
        self._key = self._named(_KEYS, ("str", "bytes"))
        self._meta = self._named(_METAS, ("json",))
        self._others = self._name_others()

    def _read_offsets(self) -> list[int]:
        path, size = self._path, self._file.size
        count = _SIZE.unpack(self._file.read(4, 0))[0] if size >= 8 else size
        table = 4 * (count + 2)
        if table > size:
            raise NotAPackError(
                f"{path}: {size} bytes cannot have {count} samples; no MDS shard, or cut off"
            )
        offsets: list[int] = np.frombuffer(self._file.read(table - 4, 4), "<u4").tolist()
        if offsets[0] < table or any(map(operator.gt, offsets, offsets[1:])):
            raise NotAPackError(f"{path}: the offsets are in disorder; no MDS shard")
        if offsets[-1] != size:
            raise IntegrityError(f"{path}: has {size} bytes, expected {offsets[-1]}; restore it")
        return offsets

    def _read_columns(self) -> list[MdsColumn]:
        path, start = self._path, 4 * (self.count + 2)
        length = self._offsets[0] - start
        try:
            config = json.loads(self._file.read(length, start)) if length <= _MOST_CONFIG else None
        except (ValueError, RecursionError) as error:
            raise NotAPackError(f"{path}: no config at {start}; no MDS shard") from error
        config = config if isinstance(config, dict) else {}
        if (config.get("version"), config.get("format")) != (2, "mds"):
            raise NotAPackError(f"{path}: the config at {start} is not of MDS, version 2")
        fields = [config.get(f"column_{field}") for field in ("names", "encodings", "sizes")]
        lists = [field for field in fields if isinstance(field, list)]
        if len(lists) == 3 and len({len(field) for field in lists}) == 1:
            found = list(zip(*lists, strict=True))
            if all(_is_plausible(*column) for column in found):
                return [MdsColumn(i, *column) for i, column in enumerate(found)]
        raise IntegrityError(f"{path}: the columns of the config make no sense; restore it")

    def record(self, number: int, name: bytes, file: str) -> Record[Place]:
        """Find where the values of a sample lie, and read the small values."""
        where = f"{self._path}: sample {number} at {self._offsets[number]}"
        ranges = self._ranges(number, where)

        def value(column: MdsColumn | None) -> bytes | None:
            if column is None:
                return None
            at, length = ranges[column.position]
            return self._file.read(length, at)

        fields = {IMAGE: Place("image", file, *ranges[self._image.position])}
        if self._mask is not None:
            fields[MASK] = Place("mask", file, *ranges[self._mask.position])
        for field, column in self._others.items():
            fields[field] = Place(
                _KINDS.get(column.encoding, "bytes"), file, *ranges[column.position]
            )
        key, label = value(self._key), _label(value(self._label), self._label, where)
        meta = _object(value(self._meta), where)
        return Record(name if key is None else key, fields, label, meta=meta)

    def _ranges(self, number: int, where: str) -> list[tuple[int, int]]:
        """Offset and length of each column's value."""
        start, stop = self._offsets[number : number + 2]
        at = start + self._head.size
        sizes: list[Any] = self._sizes.copy()
        if at <= stop:
            found = self._head.unpack(self._file.read(self._head.size, start))
            for i, size in zip(self._variable, found, strict=True):
                sizes[i] = size
        if at > stop or at + sum(sizes) != stop:
            raise IntegrityError(
                f"{where}: has {stop - start} bytes, which do not fit its columns; restore the file"
            )
        ends = [*itertools.accumulate(sizes, initial=at)]
        return list(zip(ends, sizes, strict=False))

    def _named(self, names: Sequence[str], encodings: Sequence[str]) -> MdsColumn | None:
        """The first column that has one of some names and one of some encodings."""
        columns = {column.name.lower(): column for column in self._columns}
        found = [columns[name] for name in names if name in columns]
        for column in found:
            if column.encoding == "pkl":
                raise NotAPackError(
                    f"{self._path}: the column {column.name!r} is pickled (pkl), and packio loads "
                    "no pickles; write the column again with another encoding"
                )
        return next((column for column in found if column.encoding in encodings), None)

    def _name_others(self) -> dict[str, MdsColumn]:
        """The columns that are further fields of a sample, by names that fields may have."""
        taken = (self._image, self._mask, self._label, self._key, self._meta)
        found: dict[str, MdsColumn] = {}
        for column in self._columns:
            if column not in taken:
                name = re.sub(r"[^A-Za-z0-9_-]", "_", column.name)
                if not re.match(r"[A-Za-z_]", name) or name in (IMAGE, MASK, *RESERVED):
                    name = f"_{name}"
                while name in found:
                    name = f"_{name}"
                found[name] = column
        return found

    def _find_label(self, wanted: str | None) -> MdsColumn | None:
        if wanted is None:
            return self._named(_LABELS, (*_INTEGERS, "str_int"))
        found = [c for c in self._columns if c.encoding in (*_INTEGERS, *_FLOATS, "str_int", "str")]
        if wanted and wanted not in [column.name for column in found]:
            shown = ", ".join(column.name for column in found)
            raise OptionError(f"{self._path}: label={wanted!r} is not in it; there are: {shown}")
        return next((column for column in found if column.name == wanted), None)

    def _find_image(self) -> MdsColumn:
        rest = [column for column in self._columns if column != self._mask]
        column = (
            self._named(_IMAGES, _ENCODED)
            or next((c for c in rest if c.encoding in _ENCODED), None)
            or next((c for c in rest if c.encoding == "bytes" and self._looks(c)), None)
        )
        if column is None:
            shown = ", ".join(f"{c.name} ({c.encoding})" for c in self._columns[:20])
            raise NotAPackError(
                f"{self._path}: no column of images: {shown or 'no columns'}; expected a column of "
                "jpeg or png, or of bytes that are an image's"
            )
        return column

    def _looks(self, column: MdsColumn) -> bool:
        """Whether the value of the first sample begins as an image does."""
        if self.count == 0:
            return True
        at, length = self._ranges(0, f"{self._path}: sample 0")[column.position]
        return is_image(self._file.read(min(length, 12), at))


def _is_plausible(name: Any, encoding: Any, size: Any) -> bool:
    if not isinstance(name, str) or not isinstance(encoding, str):
        return False
    if size is None:
        return encoding not in _INTEGERS
    if type(size) is not int or not 0 < size < 1 << 32:
        return False
    return encoding not in _INTEGERS or size == struct.calcsize(_INTEGERS[encoding])


def _label(value: bytes | None, column: MdsColumn | None, where: str) -> Any:
    if value is None or column is None:
        return None
    try:
        if column.encoding == "str_int":
            return int(value[:100])
        if column.encoding == "str":
            return value.decode()
        return struct.unpack((_INTEGERS | _FLOATS)[column.encoding], value)[0]
    except (ValueError, struct.error) as error:
        raise IntegrityError(f"{where}: {column.name!r} is no label: {value[:100]!r}") from error


def _object(value: bytes | None, where: str) -> bytes | None:
    """Return a JSON object as it is; None for other JSON, as metadata are an object."""
    if value is None:
        return None
    try:
        return value if isinstance(json.loads(value), dict) else None
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{where}: its metadata are no JSON: {error}") from error
