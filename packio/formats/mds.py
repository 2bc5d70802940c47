"""MDS, version 2: shards of MosaicML's streaming; packio reads them and does not write them.

How the bytes lie on disk, numbers little-endian. A shard, ``shard.00000.mds`` ::

    u32 n   u32 offsets[n + 1]   config (JSON)   samples

The offsets count from the beginning of the file. Sample i begins at ``offsets[i]`` and ends at
``offsets[i + 1]``; the last offset is the size of the file. The config lies between the offsets and
the first sample. The config has ``version`` 2, ``format`` "mds", and three lists of the same
length: ``column_names``, ``column_encodings`` and ``column_sizes`` (bytes; null if samples differ).
A sample is a u32 size for each column of size null, then the values of all columns, in the order of
the config. Encodings: ``jpeg``, ``png`` and ``bytes`` are the value itself, ``str`` is UTF-8,
``int`` an int64, ``uint8`` … ``int64`` such integers, ``str_int`` digits, ``json`` JSON;
``ndarray:DTYPE:SHAPE`` is the numbers of an array, one after the other.

The folder has an ``index.json`` that lists the shards: ``raw_data`` has ``basename`` and ``bytes``
of the file, ``zip_data`` has both of the compressed file, or is null.

The image is in a column of ``jpeg`` or ``png``, else in a column of ``bytes`` that begin as an
image does. If several columns fit, packio takes the column with a usual name, as ``image``. Label
(integers), key (``str``), mask and metadata (``json``) are in columns of usual names, which
the constants below list. Every other column is a field of its name: an image (``jpeg``,
``png``), text (``str``, ``json``, ``str_…``), else the bytes as they lie there. Pickles stay bytes.

Source: https://github.com/mosaicml/streaming, streaming/base/format/mds/writer.py and encodings.py,
checked against shards that mosaicml-streaming 0.13.0 wrote.
"""

from __future__ import annotations

import itertools
import operator
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from packio.errors import IntegrityError, NotAPackError, ReadError
from packio.formats import Caps, Format, Reading, check_reading, damage_error, unknown_error
from packio.formats.blobs.ranges import Input, open_input, refuse_compressed
from packio.formats.wire import load_json
from packio.images.encodings import is_image
from packio.sample.fields import RESERVED
from packio.sample.record import IMAGE, MASK, Place, Record
from packio.system import files

INDEX_NAME = "index.json"

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


class Mds(Format):
    """Shards of MosaicML's streaming, and folders of shards with ``index.json``."""

    caps: Caps = Caps(
        (".mds",), writes=False, keeps=frozenset(("key", "label", "meta")), at_urls=True
    )

    def shards(self, names: Sequence[str], content: Callable[[str], bytes | None]) -> Sequence[str]:
        """The shards that ``index.json`` lists; without it, all that are there."""
        index = content(INDEX_NAME)
        if index is None:
            return names
        listed = [
            _facts(one, f"{INDEX_NAME}: shard {i}")[0]
            for i, one in enumerate(_shards_of(index, INDEX_NAME))
        ]
        if missing := sorted({*listed} - {*names}):
            raise IntegrityError(f"{missing[0]}: is not there, but {INDEX_NAME} lists it")
        return listed

    def scan(self, path: Path, reading: Reading) -> Iterator[Record[Place]]:
        """Yield every sample of a shard, or of all shards of a folder with ``index.json``."""
        check_reading(path, reading, "label")
        if not path.is_dir():
            refuse_compressed(path)
            yield from _records(path, path.name, 0, None, reading.label)
            return
        first = 0
        for number, listed in enumerate(_listed(path)):
            where = f"{path / INDEX_NAME}: shard {number}"
            name, size, count = _facts(listed, where)
            shard = path / name
            if not shard.exists():
                _refuse_zipped(path, listed, shard)
            yield from _records(shard, name, first, (size, count), reading.label)
            first += count


def _records(
    path: Path, name: str, first: int, expected: tuple[int, int] | None, label: str | None
) -> Iterator[Record[Place]]:
    with open_input(path) as file:
        shard = Shard(file, label)
        found = file.size, shard.count
        if expected is not None and found != expected:
            said = f"{INDEX_NAME} says {expected[0]} and {expected[1]}"
            raise damage_error(path, f"has {found[0]} bytes and {found[1]} samples, {said}")
        for i in range(shard.count):
            yield shard.record(i, b"%d" % (first + i), name)


def _listed(folder: Path) -> list[Any]:
    path = folder / INDEX_NAME
    try:
        content = files.content(path)
    except FileNotFoundError:
        raise NotAPackError(f"{folder}/: no {INDEX_NAME} in it; not a folder of MDS") from None
    except OSError as error:
        raise ReadError(f"{path}: cannot be read: {error.strerror}") from error
    return _shards_of(content, path)


def _shards_of(content: bytes, path: object) -> list[Any]:
    index = load_json(content, path)
    if not isinstance(index, dict) or not isinstance(index.get("shards"), list):
        raise NotAPackError(f"{path}: lists no shards; not the index of a folder of MDS")
    return list(index["shards"])


def _facts(listed: Any, where: str) -> tuple[str, int, int]:
    if not isinstance(listed, dict) or (listed.get("version"), listed.get("format")) != (2, "mds"):
        raise NotAPackError(f"{where} is not of format mds, version 2")
    raw = listed.get("raw_data")
    raw = raw if isinstance(raw, dict) else {}
    name, size, count = raw.get("basename"), raw.get("bytes"), listed.get("samples")
    if not isinstance(name, str) or type(size) is not int or type(count) is not int:
        raise IntegrityError(f"{where} has no basename, bytes and samples; restore it")
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\0" in name:
        raise IntegrityError(f"{where} is {name!r}, which is not within the folder")
    return name, size, count


def _refuse_zipped(folder: Path, listed: Any, shard: Path) -> None:
    zipped = listed.get("zip_data")
    name = zipped.get("basename") if isinstance(zipped, dict) else None
    if isinstance(name, str):
        refuse_compressed(folder / name)
    raise ReadError(f"{shard}: is not there, but {INDEX_NAME} lists it")


class MdsColumn(NamedTuple):
    position: int
    name: str
    encoding: str
    size: int | None  # bytes; None: each value has a size of its own


class Shard:
    """An open shard: offsets and columns, checked.

    `label` names the column with the labels; "": none; None: the one of a usual name.
    """

    def __init__(self, file: Input, label: str | None = None) -> None:
        self._file, self._path = file, file.path
        self._offsets = self._read_offsets()
        self.count: int = len(self._offsets) - 1
        self._columns = self._read_columns()
        self._sizes = [column.size for column in self._columns]
        self._variable = [i for i, size in enumerate(self._sizes) if size is None]
        self._head = struct.Struct(f"<{len(self._variable)}I")
        mask = self._named(_MASKS, (*_ENCODED, "bytes"))
        self._fields = {IMAGE: ("image", self._find_image(mask))}  # name → kind and column
        if mask is not None:
            self._fields[MASK] = "mask", mask
        self._label = self._find_label(label)
        self._key = self._named(_KEYS, ("str", "bytes"))
        self._meta = self._named(_METAS, ("json",))
        self._name_others()

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
        text = self._file.read(length, start) if length <= _MOST_CONFIG else b"{}"
        found = load_json(text, f"{path}: no config at {start}", NotAPackError)
        config: dict[str, Any] = found if isinstance(found, dict) else {}
        if (config.get("version"), config.get("format")) != (2, "mds"):
            raise NotAPackError(f"{path}: the config at {start} is not of MDS, version 2")
        fields = [config.get(f"column_{field}") for field in ("names", "encodings", "sizes")]
        lists = [field for field in fields if isinstance(field, list)]
        if len(lists) == 3 and len({len(field) for field in lists}) == 1:
            columns = list(zip(*lists, strict=True))
            if all(_is_plausible(*column) for column in columns):
                return [MdsColumn(i, *column) for i, column in enumerate(columns)]
        raise IntegrityError(f"{path}: the columns of the config make no sense; restore it")

    def record(self, number: int, name: bytes, file: str) -> Record[Place]:
        """Find where the values of a sample lie, and read the small values."""
        where = f"{self._path}: sample {number} at {self._offsets[number]}"
        ranges = self._ranges(number, where)

        def value(column: MdsColumn | None) -> bytes | None:
            return None if column is None else self._file.read(*ranges[column.position][::-1])

        fields = {
            field: Place(kind, file, *ranges[column.position])
            for field, (kind, column) in self._fields.items()
        }
        key, label = value(self._key), _label(value(self._label), self._label, where)
        meta = value(self._meta)
        if meta is not None and not isinstance(load_json(meta, f"{where}: its metadata"), dict):
            meta = None  # metadata are an object
        return Record(name if key is None else key, fields, label, meta=meta)

    def _ranges(self, number: int, where: str) -> list[tuple[int, int]]:
        start, stop = self._offsets[number : number + 2]
        at = start + self._head.size
        sizes: list[Any] = self._sizes.copy()
        if at <= stop:
            found = self._head.unpack(self._file.read(self._head.size, start))
            for i, size in zip(self._variable, found, strict=True):
                sizes[i] = size
        if at > stop or at + sum(sizes) != stop:
            raise damage_error(where, f"has {stop - start} bytes, which do not fit its columns")
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

    def _name_others(self) -> None:
        """Make fields of the other columns, by names that fields may have."""
        taken = {self._label, self._key, self._meta, *(c for _, c in self._fields.values())}
        for column in self._columns:
            if column not in taken:
                name = re.sub(r"[^A-Za-z0-9_-]", "_", column.name)
                if not re.match(r"[A-Za-z_]", name) or name in (IMAGE, MASK, *RESERVED):
                    name = f"_{name}"
                while name in self._fields:
                    name = f"_{name}"
                self._fields[name] = _KINDS.get(column.encoding, "bytes"), column

    def _find_label(self, wanted: str | None) -> MdsColumn | None:
        if wanted is None:
            return self._named(_LABELS, (*_INTEGERS, "str_int"))
        found = [c for c in self._columns if c.encoding in (*_INTEGERS, *_FLOATS, "str_int", "str")]
        if wanted and wanted not in [column.name for column in found]:
            raise unknown_error("label", wanted, (column.name for column in found), self._path)
        return next((column for column in found if column.name == wanted), None)

    def _find_image(self, mask: MdsColumn | None) -> MdsColumn:
        rest = [column for column in self._columns if column != mask]
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


FORMAT = Mds()
