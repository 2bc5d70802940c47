"""How an index file lies on disk: a safetensors file, the columns it has to have, the metadata.

An index may be damaged or forged. Whoever reads the metadata relies on the types that are checked
here. Keys that are not listed are left alone: a newer packio may have written them.

Source: https://github.com/huggingface/safetensors, section "Format".
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from packio.errors import IntegrityError, NotAPackError, ReadError, VersionError
from packio.index.column import BLOCK, Column, Content, Far, Place, crc32c
from packio.index.columns import OF_FILES, RAGGED
from packio.sample.fields import KINDS
from packio.system import files
from packio.system.mapping import Length, Status, map_file, watch_path

MAX_HEADER = 100_000_000  # bytes, safetensors' own limit
_MOST_DIMENSIONS = 8  # of a column
_LONGEST = 1 << 40  # axis of a column
_SHORTEST = 8  # bytes of an index
_MOST_PRIVATE = 64 << 20  # bytes of an index that is read, not mapped
_DTYPES = {
    "U8": "u1", "U16": "<u2", "U32": "<u4", "U64": "<u8", "I8": "i1", "I16": "<i2", "I32": "<i4",
    "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8", "BOOL": "?",
}  # fmt: skip
_DTYPE_NAMES = {np.dtype(code): name for name, code in _DTYPES.items()}


def canonical_json(value: Any) -> str:
    """JSON with sorted keys, no spaces, ASCII only: one text for one value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def encode_header(layout: Sequence[tuple[str, Content]], metadata: Mapping[str, Any]) -> bytes:
    """The header of a file with these columns, in their order."""
    entries: dict[str, Any] = {"__metadata__": {"packio": canonical_json(metadata)}}
    position = 0
    for name, array in layout:
        entries[name] = {
            "dtype": _DTYPE_NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [position, position + array.nbytes],
        }
        position += array.nbytes
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=True).encode("ascii")
    text += b" " * (-(8 + len(text)) % 64)  # data begins at a multiple of 64 bytes
    return struct.pack("<Q", len(text)) + text


def content(path: Path, *, is_one_of_many: bool) -> tuple[bytes | memoryview, Length | None]:
    """The bytes of an index file: a copy if the file is small, else a map of the file.

    A copy does not change while it is read: reading 64 MB takes 20 ms. Processes share the map of a
    large index, which `Length` guards.
    """
    try:
        with files.open_file(path) as file:
            status = os.fstat(file.fileno())
            if (size := status.st_size) < _SHORTEST:
                raise NotAPackError(f"{path}: {size} bytes, too short for an index")
            if size <= _MOST_PRIVATE and not is_one_of_many:
                return file.read(size), None
            inode = status.st_dev, status.st_ino
            now = watch_path(path, inode) if is_one_of_many else Status(file.fileno())
            return map_file(file.fileno(), size).data, Length(path, size, now)
    except OSError as error:
        raise ReadError(f"{path}: {error.strerror}; an index file was expected") from error


def header_of(whole: bytes | memoryview, path: Path) -> tuple[dict[str, Any], int]:
    """The parsed header of an index file, and where its columns begin."""
    (size,) = struct.unpack_from("<Q", whole, 0)
    if size > min(MAX_HEADER, len(whole) - 8) or whole[8:9] != b"{":
        raise NotAPackError(f"{path}: no safetensors header; not an index, or cut off in it")
    try:
        header = json.loads(bytes(whole[8 : 8 + size]))
        header["__metadata__"]["packio"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise NotAPackError(
            f"{path}: the header is no index's of packio ({type(error).__name__})"
        ) from error
    return header, 8 + size


def entries_of(
    header: dict[str, Any], size: int, path: Path
) -> dict[str, tuple[np.dtype, tuple[int, ...], int]]:
    """Check that the columns fill the data without gap or overlap; return them in file order."""
    found: dict[str, tuple[np.dtype, tuple[int, ...], int]] = {}
    entries = {n: e for n, e in header.items() if n != "__metadata__"}
    position = 0
    try:
        for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
            begin, end = entry["data_offsets"]
            shape = tuple(entry["shape"])
            dtype = np.dtype(_DTYPES[entry["dtype"]])
            if {type(n) for n in (begin, end, *shape)} != {int} or len(shape) > _MOST_DIMENSIONS:
                raise ValueError(f"column {name} has the shape {shape}")
            if not shape or not all(0 <= n < _LONGEST for n in shape):
                raise ValueError(f"column {name} has the shape {shape}")
            if begin != position:
                raise ValueError(f"column {name} begins at {begin}, expected {position}")
            if end - begin != math.prod(shape) * dtype.itemsize:
                raise ValueError(f"column {name} has {end - begin} bytes for shape {shape}")
            found[name] = (dtype, shape, begin)
            position = end
    except (ValueError, KeyError, TypeError) as error:
        raise NotAPackError(f"{path}: the header does not add up ({error})") from error
    if position != size:
        raise IntegrityError(
            f"{path}: {size} bytes of columns, expected {position}; truncated or appended to"
        )
    return found


def checksums_of(
    entries: Mapping[str, tuple[np.dtype, tuple[int, ...], int]], path: Path
) -> tuple[int, int]:
    """Where the checksums begin behind the header, and how many bytes they have."""
    dtype, shape, begin = entries.get("checksums", (np.dtype(np.uint32), (0,), 0))
    sizes = (math.prod(s) * t.itemsize for n, (t, s, _) in entries.items() if n != "checksums")
    if shape != (1 + sum(-(-size // BLOCK) for size in sizes),) or dtype != np.uint32:
        raise NotAPackError(f"{path}: {shape[0]} checksums do not fit the columns")
    return begin, shape[0] * dtype.itemsize


def check_header(head: bytes, checksums: bytes, path: Path) -> None:
    """Compare the header of a file with its checksum, which is the first one."""
    if crc32c(head) != int.from_bytes(checksums[:4], "little"):
        raise IntegrityError(f"{path}: the header is damaged (CRC32C differs)")


def read_columns(
    whole: bytes | memoryview, path: Path, length: Length | None, far: Far | None = None
) -> tuple[dict[str, Any], dict[str, Column], str]:
    """The header of a file, which is checked; its columns, checked when touched; its digest."""
    header, start = header_of(whole, path)
    entries = entries_of(header, len(whole) - start, path)
    begin, size = checksums_of(entries, path)
    head, own = bytes(whole[:start]), bytes(whole[start + begin : start + begin + size])
    check_header(head, own, path)
    checksums, data = np.frombuffer(own, "<u4")[1:], np.frombuffer(whole, np.uint8)[start:]
    columns, block = {}, 0
    for name, (dtype, shape, first) in entries.items():
        if name == "checksums":
            continue
        part = data[first : first + math.prod(shape) * dtype.itemsize]
        array = part.view(dtype).reshape(shape) if len(part) else np.zeros(shape, dtype)
        crcs = checksums[block : block - (-len(part) // BLOCK)]
        place = None if far is None else Place(far, block, start + first)
        columns[name] = Column(array, crcs, f"{path}, column {name}", length, place)
        block += len(crcs)
    return header, columns, hashlib.sha256(head + own).hexdigest()


# Columns of a field of any kind, and what a field of kind image or mask has beside them.
OF_VALUES = {"file": "<u4", "offset": "<i8", "length": "<i8", "crc32c": "<u4", "flags": "u1"}
OF_PIXELS = {
    "height": "<u4", "width": "<u4", "encoding": "u1", "orientation": "u1", "channels": "u1",
    "dtype": "u1",
}  # fmt: skip
_OF_FIELDS = OF_VALUES | OF_PIXELS
PER_SAMPLE = {f"image/{name}": code for name, code in _OF_FIELDS.items()}
REQUIRED = {  # name → dtypes
    **{n: (code,) for n, code in PER_SAMPLE.items()},
    "key_data": ("u1",), "key_offsets": ("<i8",), "key_order": ("<u4", "<i8"), **OF_FILES,
}  # fmt: skip
_TYPES = REQUIRED | {
    "split": ("u1",), "meta_offsets": ("<i8",), "meta_data": ("u1",), "box_offsets": ("<i8",),
    "seek_offsets": ("<i8",), "seek_data": ("u1",), "boxes": ("<f4",),
}  # fmt: skip


def check_shapes(columns: dict[str, Column], path: Path) -> None:
    """Check the columns that an index has to have, and the types and shapes of all that it has."""
    if missing := [n for n in REQUIRED if n not in columns]:
        raise NotAPackError(f"{path}: columns missing: {', '.join(missing)}")
    samples, files = (math.prod(columns[n].shape) for n in ("image/offset", "file_bytes"))
    boxes = columns["boxes"].shape[0] if "boxes" in columns else 0
    shapes = dict.fromkeys(("key_order", "split"), (samples,)) | {
        **dict.fromkeys(RAGGED, (samples + 1,)), "boxes": (boxes, 4), "file_bytes": (files,),
        "file_digest": (files, 32), "file_path_offsets": (files + 1,),
    }  # fmt: skip
    shape: tuple[int, ...]
    codes: tuple[str, ...]
    for name, column in columns.items():
        field, slash, part = name.partition("/")
        if slash and field == "boxes":
            shape, codes = (boxes,), ("<i8",) if part == "labels" else ("<i8", "<f4")
        elif slash and part in _OF_FIELDS:
            shape, codes = (samples,), (_OF_FIELDS[part],)
        elif name in _TYPES:
            shape, codes = shapes.get(name, column.shape[:1]), _TYPES[name]
        else:
            continue
        if column.shape != shape or column.dtype not in codes:
            raise NotAPackError(
                f"{path}: column {name} is {column.dtype} {column.shape}, "
                f"expected {' or '.join(codes)} {shape}"
            )
    label = columns.get("label")
    if label is not None and not (
        label.shape[:1] == (samples,)
        and (label.dtype.str, len(label.shape)) in (("<i8", 1), ("<f4", 2), ("<i8", 2))
    ):
        raise NotAPackError(f"{path}: column label is {label.dtype} {label.shape}")
    for starts, data in RAGGED.items():
        if (data in columns) != (starts in columns):
            raise NotAPackError(f"{path}: only one of the columns {data} and {starts} is there")


VERSION = 2
ORIGINS = "origins"  # what became of the source's fields: see `packio.sample.origins`
_LARGEST = (1 << 63) - 1  # number

_Check = Callable[[Any], bool]


def parse_metadata(header: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The metadata in the header of an index, checked."""
    try:
        metadata = json.loads(header["__metadata__"]["packio"])
        version = metadata["version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise NotAPackError(f"{path}: the metadata does not parse ({error})") from error
    if type(version) is not int or version < VERSION:
        raise NotAPackError(f"{path}: index version {version!r}; expected {VERSION}; pack again")
    if version > VERSION:
        raise VersionError(
            f"{path}: index version {version}, this packio reads up to {VERSION}; "
            "update it: pip install -U packio"
        )
    for name, (is_right, expected) in _EXPECTED.items():
        if metadata.get(name) is None:
            metadata.pop(name, None)
        elif not is_right(metadata[name]):
            raise NotAPackError(
                f"{path}: metadata {name!r} is {metadata[name]!a:.60}, expected {expected}; "
                "restore the index, or make a new one: packio reindex"
            )
    return metadata  # type: ignore[no-any-return]  # parsed JSON


def origins_of(metadata: Mapping[str, Any]) -> dict[str, str | None]:
    """What became of the fields of the source that a pack was made of; `packio.sample.origins`."""
    return dict(metadata.get(ORIGINS) or {})


def _of(*kinds: type) -> _Check:
    return lambda value: isinstance(value, kinds)


_is_text, _is_flag, _is_object = _of(str), _of(bool), _of(dict)


def _is_int(value: Any) -> bool:
    return type(value) is int and abs(value) <= _LARGEST


def _is_count(value: Any) -> bool:
    return _is_int(value) and value >= 0


def _is_number(value: Any) -> bool:
    return _is_int(value) or isinstance(value, float)


def _is_file_name(value: Any) -> bool:
    return (
        isinstance(value, str) and value not in ("", "..") and not value.startswith("/")
        and "\0" not in value and ".." not in value.split("/")
    )  # fmt: skip


def _list_of(is_right: _Check) -> _Check:
    return lambda value: isinstance(value, list) and all(map(is_right, value))


def _object_of(is_right: _Check) -> _Check:
    return lambda value: isinstance(value, dict) and all(map(is_right, value.values()))


def _object(*needed: str, **checks: _Check) -> _Check:
    """An object that has the needed names; each value that has a check must pass it."""
    return lambda value: (
        isinstance(value, dict)
        and all(name in value for name in needed)
        and all(is_right(value[name]) for name, is_right in checks.items() if name in value)
    )


def _is_fields(value: Any) -> bool:
    kinds = _object_of(lambda kind: isinstance(kind, str) and kind in KINDS)
    return kinds(value) and all(n and "/" not in n for n in value)


def _is_rgb(value: Any) -> bool:
    return _list_of(_is_number)(value) and len(value) == 3


def _is_recipe(value: Any) -> bool:
    return _object(
        source=_is_text, reading=_is_object, choice=_is_object, writing=_is_object,
        encoding=_object("encode", encode=_is_text), check=_is_text,
        seek_points=_is_flag, is_mixed=_is_flag,
        stats=lambda count: count is None or _is_count(count),
        levels=lambda levels: levels is None or _is_object(levels),
    )(value)  # fmt: skip


# Name → check of the value, and what the value should be.
_EXPECTED: dict[str, tuple[_Check, str]] = {
    "format": (_is_text, "the name of a format"),
    "access": (_is_text, "'range' or the name of a format"),
    "fields": (_is_fields, f"names of fields, each with a kind of {', '.join(KINDS)}"),
    "classes": (_list_of(_is_text), "a list of class names"),
    "splits": (_list_of(_is_text), "a list of names of splits"),
    "counts": (_object_of(_is_count), "numbers of samples"),
    "source": (_object(kind=_is_text), "an object with the kind of the source"),
    "recipe": (_is_recipe, "a recipe"),
    "options": (_object_of(_is_text), "options"),
    "labels": (_object(min=_is_int, offset=_is_int), "the least label and an offset"),
    "statistics": (
        _object("images", "bad", "seed", "mean", "std", images=_is_count, bad=_is_count,
                seed=_is_int, mean=_is_rgb, std=_is_rgb),
        "mean and std of three channels, and of how many images"),
    "shards": (
        _list_of(_object("name", "samples", name=_is_file_name, samples=_is_count)),
        "a list of the shards, each with its name and its number of samples"),
    "versions": (_object_of(_is_text), "versions of libraries"),
    "plan": (_is_text, "a digest"),
    "merged": (_list_of(_is_text), "digests"),
    ORIGINS: (
        _object_of(lambda name: name is None or _is_text(name)),
        "names of the source's fields, each with its name in the pack or null"),
    "remarks": (_list_of(_is_text), "lines of text"),
    "told": (_list_of(_is_text), "lines of text"),  # by packing
    "left_out": (
        _list_of(lambda pair: _list_of(_is_text)(pair) and len(pair) == 2),
        "keys and reasons of records that are left out"),
    "selection": (
        _object("pack", "digest", "samples", pack=_is_text, digest=_is_text, samples=_is_count),
        "the pack that the samples were selected of, its digest and its number of samples"),
}  # fmt: skip
