"""One shard of MDS; see `packio.formats.mds`."""

from __future__ import annotations

import json
import operator
import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packio.errors import IntegrityError, NotAPackError, ReadError
from packio.images.encodings import is_image
from packio.sample.record import IMAGE, MASK, Place, Record
from packio.system.files import read_at

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
_ENCODED = ("jpeg", "png")


class Column(NamedTuple):
    """One column of a shard."""

    position: int
    name: str
    encoding: str
    size: int | None  # bytes, None: each sample has its own


class Shard:
    """An open shard: its offsets and its config, checked.

    Raises:
        NotAPackError: no MDS shard.
        IntegrityError: it is damaged.
        ReadError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise ReadError(f"{path}: cannot be opened: {error.strerror}") from error
        try:
            self.size = os.fstat(self._descriptor).st_size
            self.offsets = self._read_offsets()
            self.count = len(self.offsets) - 1
            self.columns = self._read_columns()
        except BaseException:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> Shard:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def read(self, at: int, length: int) -> bytes:
        """Read a range, which is within the file."""
        try:
            found = read_at(self._descriptor, length, at)
        except OSError as error:
            raise ReadError(f"{self.path}: cannot be read at {at}: {error.strerror}") from error
        if len(found) < length:
            raise IntegrityError(f"{self.path}: ends at {at + len(found)}; the file shrinks")
        return found

    def _read_offsets(self) -> list[int]:
        count = _SIZE.unpack(self.read(0, 4))[0] if self.size >= 8 else self.size
        table = 4 * (count + 2)
        if table > self.size:
            raise NotAPackError(
                f"{self.path}: {self.size} bytes cannot have {count} samples; no MDS shard, or cut "
                "off"
            )
        offsets: list[int] = np.frombuffer(self.read(4, table - 4), "<u4").tolist()
        if offsets[0] < table or any(map(operator.gt, offsets, offsets[1:])):
            raise NotAPackError(f"{self.path}: the offsets are in disorder; no MDS shard")
        if offsets[-1] != self.size:
            raise IntegrityError(
                f"{self.path}: has {self.size} bytes, expected {offsets[-1]}; restore the file"
            )
        return offsets

    def _read_columns(self) -> list[Column]:
        start = 4 * (self.count + 2)
        length = self.offsets[0] - start
        try:
            config = json.loads(self.read(start, length)) if length <= _MOST_CONFIG else None
        except (ValueError, RecursionError) as error:
            raise NotAPackError(f"{self.path}: no config at {start}; no MDS shard") from error
        found = config if isinstance(config, dict) else {}
        if (found.get("version"), found.get("format")) != (2, "mds"):
            raise NotAPackError(f"{self.path}: the config at {start} is not of MDS, version 2")
        return self._columns(found)

    def _columns(self, config: dict[str, Any]) -> list[Column]:
        fields = [config.get(f"column_{field}") for field in ("names", "encodings", "sizes")]
        lists = [field for field in fields if isinstance(field, list)]
        if len(lists) == 3 and len({len(field) for field in lists}) == 1:
            found = list(zip(*lists, strict=True))
            if all(_is_plausible(*column) for column in found):
                return [Column(i, *column) for i, column in enumerate(found)]
        raise IntegrityError(f"{self.path}: the columns of the config make no sense; restore it")


def _is_plausible(name: Any, encoding: Any, size: Any) -> bool:
    if not isinstance(name, str) or not isinstance(encoding, str):
        return False
    if size is None:
        return encoding not in _INTEGERS
    if type(size) is not int or not 0 < size < 1 << 32:
        return False
    return encoding not in _INTEGERS or size == struct.calcsize(_INTEGERS[encoding])


class Columns:
    """The columns of a shard that packio reads.

    Raises:
        NotAPackError: none of them has images, or one that is wanted is pickled.
    """

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._sizes = [column.size for column in shard.columns]
        self._variable = [i for i, size in enumerate(self._sizes) if size is None]
        self._head = struct.Struct(f"<{len(self._variable)}I")
        self._mask = self._named(_MASKS, (*_ENCODED, "bytes"))
        self._image = self._find_image()
        self._label = self._named(_LABELS, (*_INTEGERS, "str_int"))
        self._key = self._named(_KEYS, ("str", "bytes"))
        self._meta = self._named(_METAS, ("json",))

    def record(self, number: int, name: bytes, file: str) -> Record[Place]:
        """Find out where a sample's values lie, and read the small ones.

        Args:
            number: Of the sample in the shard.
            name: Key of the sample if the shard has no keys.
            file: Name of the shard.
        """
        where = f"{self._shard.path}: sample {number} at {self._shard.offsets[number]}"
        ranges = self._ranges(number, where)

        def value(column: Column | None) -> bytes | None:
            return None if column is None else self._shard.read(*ranges[column.position])

        fields = {IMAGE: Place("image", file, *ranges[self._image.position])}
        if self._mask is not None:
            fields[MASK] = Place("mask", file, *ranges[self._mask.position])
        key = value(self._key)
        return Record(
            name if key is None else key,
            fields,
            _integer(value(self._label), self._label, where),
            meta=_object(value(self._meta), where),
        )

    def _ranges(self, number: int, where: str) -> list[tuple[int, int]]:
        """Offset and length of each column's value."""
        start, stop = self._shard.offsets[number], self._shard.offsets[number + 1]
        at = start + self._head.size
        if at > stop:
            raise IntegrityError(f"{where}: has {stop - start} bytes, too few; restore the file")
        sizes: list[Any] = self._sizes.copy()
        read = self._head.unpack(self._shard.read(start, self._head.size))
        for i, size in zip(self._variable, read, strict=True):
            sizes[i] = size
        if at + sum(sizes) != stop:
            raise IntegrityError(
                f"{where}: has {stop - start} bytes, its columns {at - start + sum(sizes)}; "
                "restore the file"
            )
        ranges = []
        for size in sizes:
            ranges.append((at, size))
            at += size
        return ranges

    def _named(self, names: Sequence[str], encodings: Sequence[str]) -> Column | None:
        """The first column that has one of some names and of some encodings."""
        columns = {column.name.lower(): column for column in self._shard.columns}
        found = [columns[name] for name in names if name in columns]
        for column in found:
            if column.encoding == "pkl":
                raise NotAPackError(
                    f"{self._shard.path}: the column {column.name!r} is pickled (pkl), and packio "
                    "loads no pickles; write it again with another encoding"
                )
        return next((column for column in found if column.encoding in encodings), None)

    def _find_image(self) -> Column:
        rest = [column for column in self._shard.columns if column != self._mask]
        candidates: list[Callable[[], Column | None]] = [
            lambda: self._named(_IMAGES, _ENCODED),
            lambda: next((c for c in rest if c.encoding in _ENCODED), None),
            lambda: next((c for c in rest if c.encoding == "bytes" and self._looks(c)), None),
        ]
        for candidate in candidates:
            column = candidate()
            if column is not None:
                return column
        shown = ", ".join(f"{c.name} ({c.encoding})" for c in self._shard.columns[:20])
        raise NotAPackError(
            f"{self._shard.path}: no column of images: {shown or 'no columns'}; expected one of "
            "jpeg or png, or of bytes that are an image's"
        )

    def _looks(self, column: Column) -> bool:
        """Whether the first sample's value begins as an image does."""
        if self._shard.count == 0:
            return True
        where = f"{self._shard.path}: sample 0 at {self._shard.offsets[0]}"
        at, length = self._ranges(0, where)[column.position]
        return is_image(self._shard.read(at, min(length, 12)))


def _integer(value: bytes | None, column: Column | None, where: str) -> int | None:
    if value is None or column is None:
        return None
    try:
        if column.encoding == "str_int":
            return int(value[:100])
        number: int = struct.unpack(_INTEGERS[column.encoding], value)[0]
    except (ValueError, struct.error) as error:
        raise IntegrityError(f"{where}: {column.name!r} is no integer: {value[:100]!r}") from error
    return number


def _object(value: bytes | None, where: str) -> bytes | None:
    """Pass on a JSON object, and no other JSON: None, as packio's meta is an object."""
    if value is None:
        return None
    try:
        return value if isinstance(json.loads(value), dict) else None
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{where}: its metadata are no JSON: {error}") from error
