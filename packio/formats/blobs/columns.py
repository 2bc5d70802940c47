"""The arrays that hdf5, pth, n5 and zarr share: values end to end in blobs, and all beside them.

The names are the same in all of these containers, so ``h5py``, ``torch.load``, zarr-python and
others find the values by them. N is the number of samples. An array that a pack does not need is
not there::

    data        u8[bytes]           the encoded images, end to end
    offsets     i64[N+1]            image i begins at offsets[i] of data and ends at offsets[i+1];
                                    where `length` is there, it ends after length[i] bytes
    length      i64[N]              only where values are not end to end (n5, zarr)
    label       i64[N], i64[N,k] or f32[N,k]
    key_data    u8[bytes], key_offsets   i64[N+1]   the paths in the source
    meta_data   u8[bytes], meta_offsets  i64[N+1]   JSON objects, UTF-8
    boxes       f32[M,4], box_offsets    i64[N+1]   XYXY in pixels
    box_labels  i64[M]                   and box_<column> i64[M] or f32[M], as box_area

A named field lies as the images do, under its own name. A mask has the name ``mask``::

    <name>_data     u8[bytes]       its values, as depth_data: an encoded image or mask, a .npy
                                    file, text in UTF-8, or other bytes
    <name>_offsets  i64[N+1], <name>_length i64[N]    as offsets and length
    <name>_present  u8[N]           0: the sample has no value, and no bytes in the blob; the array
                                    is there only if a sample has none

Where all images are raw pixels of one shape, ``data`` is an array of them instead, u8, u16 or f32
[N,C,H,W], and there are neither ``offsets`` nor ``length``.

Beside the arrays there is a text named ``packio``: canonical JSON, see `Header`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from packio.errors import NotAPackError, VersionError
from packio.formats import Ranges, damage_error
from packio.images.encodings import DTYPES, raw_facts
from packio.sample.fields import KINDS
from packio.sample.record import IMAGE, MASK, Facts, Place, Record

VERSION = 1

_NAME = re.compile(r"[\w.-]+")  # of a field, and of a column of the boxes
_FIRST = ("label", "key_data", "key_offsets")  # the order in which old packs have the arrays
_LAST = ("meta_data", "meta_offsets", "boxes", "box_labels", "box_offsets")
_TYPES = {  # name → types, numbers of axes; all other arrays are (n,) int64
    "label": (("i8", "f4"), (1, 2)), "boxes": (("f4",), (2,)),
    "key_data": (("u1",), (1,)), "meta_data": (("u1",), (1,)),
}  # fmt: skip


def prefix(field: str) -> str:
    """What the names of the arrays of a field begin with."""
    return "" if field == IMAGE else f"{field}_"


class Header(NamedTuple):
    """What the text ``packio`` says, besides classes, format, samples and version.

    That is "fields" (name → kind) where there are fields besides image and mask, and "box_columns"
    where boxes have more than labels.
    """

    fields: Mapping[str, str] = MappingProxyType({})
    box_columns: Sequence[str] = ()
    samples: int | None = None

    @property
    def kinds(self) -> dict[str, str]:
        return {IMAGE: "image", MASK: "mask", **self.fields}

    @property
    def arrays(self) -> list[str]:
        """Names of the arrays that may be there, besides the blobs."""
        ends = ("offsets", "length", "present")
        of_fields = [prefix(name) + end for name in self.kinds for end in ends]
        return [*of_fields, *_FIRST, *_LAST, *(f"box_{name}" for name in self.box_columns)]

    @property
    def misfit(self) -> str | None:
        """The name of a field or a column of boxes that cannot name arrays, or None."""
        names = (*self.fields, *self.box_columns)
        arrays = Counter([*self.arrays, *(f"{prefix(name)}data" for name in self.kinds)])
        for name in names:
            if not _NAME.fullmatch(name) or name in (IMAGE, MASK):
                return name
            if max(arrays[f"{name}_offsets"], arrays[f"{name}_data"], arrays[f"box_{name}"]) > 1:
                return name
        return None

    def text(self, container: str, classes: Sequence[str]) -> str:
        value: dict[str, Any] = {
            "classes": list(classes), "format": container, "samples": self.samples,
            "version": VERSION,
        }  # fmt: skip
        if self.fields:
            value["fields"] = dict(self.fields)
        if self.box_columns:
            value["box_columns"] = list(self.box_columns)
        return json.dumps(value, sort_keys=True, separators=(",", ":"))


def read_header(text: Any, container: str, where: object) -> Header:
    try:
        value = json.loads(text)
        found, version = value["format"], value["version"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise NotAPackError(f"{where}: what is named packio is not its header") from error
    if found != container or type(version) is not int:
        raise NotAPackError(f"{where}: the header is of {found!r}, not {container!r}")
    if version > VERSION:
        raise VersionError(f"{where}: written by a newer packio (version {version}); update packio")
    fields, columns = value.get("fields", {}), value.get("box_columns", [])
    if not isinstance(fields, dict) or any(kind not in KINDS for kind in fields.values()):
        raise damage_error(where, f"the header has the fields {fields!r:.200}")
    if not isinstance(columns, list) or not all(isinstance(name, str) for name in columns):
        raise damage_error(where, f"the header has the columns of boxes {columns!r:.200}")
    header = Header(fields, columns, value.get("samples"))
    if header.misfit:
        raise damage_error(where, f"{header.misfit!r} names a field or a column of boxes")
    return header


class BlobValues(NamedTuple):
    kind: str
    offsets: np.ndarray  # (N+1,) int64 bytes, from the start of the blob
    length: np.ndarray  # (N,) int64 bytes
    present: np.ndarray | None = None  # (N,) uint8; None: all samples have a value
    facts: Facts | None = None  # of an array of raw pixels

    def ranges(self, begin: int) -> Ranges:
        """Where the values lie in a file, in which the blob begins at a position in bytes."""
        file = np.zeros(len(self.length), np.uint32)
        return self.mark_absent(Ranges(file, self.offsets[:-1] + begin, self.length))

    def mark_absent(self, ranges: Ranges) -> Ranges:
        """The ranges with an offset of -1 where a sample has no value."""
        if self.present is None:
            return ranges
        there = self.present != 0
        file = np.where(there, ranges.file, 0).astype(np.uint32)
        return ranges._replace(file=file, offset=np.where(there, ranges.offset, -1))


@dataclasses.dataclass(frozen=True)
class ShardColumns:
    values: Mapping[str, BlobValues]  # by field, the image first
    others: Mapping[str, np.ndarray]  # label, key_data, … by their names

    def __len__(self) -> int:
        return len(self.values[IMAGE].length)

    def arrays(self, *, lengths: bool) -> dict[str, np.ndarray]:
        """All arrays by their names, in the order in which they are written."""
        found: dict[str, np.ndarray] = {}
        for name, values in self.values.items():
            of = {"offsets": values.offsets, "length": values.length, "present": values.present}
            found |= {
                prefix(name) + end: array for end, array in of.items()
                if array is not None and (lengths or end != "length")
                and (values.facts is None or end == "present")
            }  # fmt: skip
            if name == IMAGE:
                found |= {n: a for n, a in self.others.items() if n in _FIRST}
        return found | {n: a for n, a in self.others.items() if n not in found}


def columns_of(
    arrays: Mapping[str, np.ndarray], sizes: Mapping[str, int], header: Header, where: object,
    pixels: tuple[Sequence[int], str] | None = None,
) -> ShardColumns:  # fmt: skip
    """Make columns of the arrays of a container, after checking them.

    Where a ``length`` is not there, values are end to end. `pixels` is shape and type of ``data``.
    """
    if pixels is not None:
        image = _pixels(*pixels, where)
    elif "offsets" in arrays:
        image = _values("image", "", arrays, sizes.get(IMAGE, 0), None, where)
    else:
        raise damage_error(where, "has no offsets")
    count, values = len(image.length), {IMAGE: image}
    for name, kind in list(header.kinds.items())[1:]:
        if f"{name}_offsets" in arrays or name in header.fields:
            size = sizes.get(name, 0)
            values[name] = _values(kind, f"{name}_", arrays, size, count, where)
    columns = ["box_labels", *(f"box_{name}" for name in header.box_columns)]
    names = [n for n in (*_FIRST, *_LAST[:3], *columns, "box_offsets") if n in arrays]
    others = {name: arrays[name] for name in dict.fromkeys(names)}
    _check_shapes(others, columns, count, where)
    for name, content in (("key", "key_data"), ("meta", "meta_data"), ("box", "boxes")):
        if (content in others) != (f"{name}_offsets" in others):
            raise damage_error(where, f"has only one of {content} and {name}_offsets")
        if content in others:
            _check_offsets(others, f"{name}_offsets", len(others[content]), count, where)
    if missing := set(columns[1:]) - others.keys():
        raise damage_error(where, f"has no {', '.join(sorted(missing))}")
    return ShardColumns(values, others)


def _values(
    kind: str, name: str, arrays: Mapping[str, np.ndarray], size: int, count: int | None,
    where: object,
) -> BlobValues:  # fmt: skip
    offsets = _check_offsets(arrays, f"{name}offsets", size, count, where)
    length = room = np.diff(offsets)
    if f"{name}length" in arrays:
        length = arrays[f"{name}length"]
        if length.shape != room.shape or (length < 0).any() or (length > room).any():
            raise damage_error(where, f"{name}length does not fit {name}offsets")
    present = arrays.get(f"{name}present") if name else None
    if present is not None and (present.shape != room.shape or present.dtype.kind not in "bui"):
        raise damage_error(where, f"{name}present is {present.dtype} {present.shape}")
    return BlobValues(kind, offsets, length, present)


def _check_offsets(
    arrays: Mapping[str, np.ndarray], name: str, size: int, count: int | None, where: object
) -> np.ndarray:
    if name not in arrays:
        raise damage_error(where, f"has no {name}")
    offsets = arrays[name]
    if offsets.dtype != np.int64 or offsets.ndim != 1:
        raise damage_error(where, f"{name} is {offsets.dtype} {offsets.shape}")
    if len(offsets) == 0 or (count is not None and len(offsets) != count + 1):
        raise damage_error(where, f"has {len(offsets)} {name}, of {count} samples")
    if offsets[0] < 0 or offsets[-1] > size or (offsets[1:] < offsets[:-1]).any():
        raise damage_error(where, f"{name} do not ascend within 0..{size}")
    return offsets


def _check_shapes(
    others: Mapping[str, np.ndarray], columns: Sequence[str], count: int, where: object
) -> None:
    for name, found in others.items():
        types, axes = _TYPES.get(name, (("i8", "f4") if name in columns[1:] else ("i8",), (1,)))
        if found.dtype not in map(np.dtype, types) or found.ndim not in axes:
            raise damage_error(where, f"{name} is {found.dtype} {found.shape}")
    label, boxes = others.get("label"), others.get("boxes")
    if label is not None and (len(label) != count or (label.ndim == 1 and label.dtype != "i8")):
        raise damage_error(where, f"label is {label.dtype} {label.shape}, of {count} samples")
    if boxes is not None and boxes.shape[1] != 4:
        raise damage_error(where, f"boxes is {boxes.dtype} {boxes.shape}")
    for name in columns:
        if name in others and (boxes is None or len(others[name]) != len(boxes)):
            raise damage_error(where, f"has not as many {name} as boxes")


def _pixels(shape: Sequence[int], dtype: str, where: object) -> BlobValues:
    """Describe where the rows of an array of pixels lie: (N, C, H, W), little-endian."""
    if dtype not in DTYPES or len(shape) != 4 or min(shape) < 1 or shape[1] > 255:
        raise damage_error(where, f"data is {dtype} {tuple(shape)}")
    count, channels, height, width = shape
    size = math.prod(shape[1:]) * np.dtype(dtype).itemsize
    offsets = np.arange(count + 1, dtype="i8") * size
    facts = raw_facts(height, width, channels, dtype)
    return BlobValues("image", offsets, np.diff(offsets), None, facts)


def records(
    columns: ShardColumns, files: Sequence[str], places: Mapping[str, Ranges]
) -> Iterator[Record[Place]]:
    """Yield the record of every sample; `files` of the shard are named as `Place` has them."""
    others = columns.others
    keys, metas = _texts(others, "key"), _texts(others, "meta")
    label = others.get("label")
    named = [(n, v.kind, v.facts, _rows(places[n])) for n, v in columns.values.items()]
    for i in range(len(columns)):
        fields = {}
        for name, kind, facts, rows in named:
            file, offset, length = next(rows)
            if offset >= 0 or name == IMAGE:
                fields[name] = Place(kind, files[file], offset, length, False, facts)
        key, meta = next(keys), next(metas)
        of = None if label is None else label.item(i) if label.ndim == 1 else label[i]
        boxes, box_columns = _boxes(others, i)
        key = b"%08d" % i if key is None else key
        yield Record(key, fields, of, None, boxes, box_columns, meta)


def find_in_file(
    path: Path, header: Header, get: Callable[[str], Any],
    array_of: Callable[[Any, str], np.ndarray], range_of: Callable[[Any, str], tuple[int, int]],
) -> tuple[ShardColumns, Iterator[Record[Place]]]:  # fmt: skip
    """Find the samples of a file that packio wrote.

    `get` returns an array of the file by its name, or None; `array_of` reads the array, and
    `range_of` tells where it lies: offset and size, in bytes.
    """
    blob_names = {name: f"{prefix(name)}data" for name in header.kinds}
    there = {n: a for n in (*header.arrays, *blob_names.values()) if (a := get(n)) is not None}
    blobs = {n: range_of(there[b], b) for n, b in blob_names.items() if b in there}
    arrays = {name: array_of(there[name], name) for name in header.arrays if name in there}
    data = there.get("data")
    pixels = None if data is None or data.ndim < 2 else (data.shape, str(np.dtype(data.dtype)))
    sizes = {name: size for name, (_, size) in blobs.items()}
    columns = columns_of(arrays, sizes, header, path, pixels)
    return columns, records(columns, (path.name,), {
        name: values.ranges(blobs.get(name, (0, 0))[0]) for name, values in columns.values.items()
    })  # fmt: skip


def _boxes(
    others: Mapping[str, np.ndarray], number: int
) -> tuple[np.ndarray | None, dict[str, np.ndarray]]:
    if "boxes" not in others:
        return None, {}
    span = slice(*others["box_offsets"][number : number + 2].tolist())
    columns = {
        name.removeprefix("box_"): values[span] for name, values in others.items()
        if name.startswith("box_") and name != "box_offsets"
    }  # fmt: skip
    return others["boxes"][span], columns


def _rows(ranges: Ranges) -> Iterator[tuple[int, int, int]]:
    for start in range(0, len(ranges.file), 4096):
        part = slice(start, start + 4096)
        lists = (ranges.file[part], ranges.offset[part], ranges.length[part])
        yield from zip(*(a.tolist() for a in lists), strict=True)


def _texts(others: Mapping[str, np.ndarray], name: str) -> Iterator[bytes | None]:
    while f"{name}_data" not in others:
        yield None
    data, offsets = others[f"{name}_data"], others[f"{name}_offsets"]
    for i in range(len(offsets) - 1):
        yield data[offsets.item(i) : offsets.item(i + 1)].tobytes()
