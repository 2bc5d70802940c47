"""How an index file lies on disk: a safetensors file, and which columns it has to have.

Source: https://github.com/huggingface/safetensors, section "Format".
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from packio.errors import IntegrityError, NotAPackError, ReadError
from packio.index.column import BLOCK, Column, Content, Far, Place, crc32c
from packio.index.columns import OF_FILES, RAGGED
from packio.system import files
from packio.system.mapping import Length, Status, at_path, mapped

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


def content(
    path: Path, *, is_one_of_many: bool, stays_open: bool = True
) -> tuple[bytes | memoryview, Length | None]:
    """The bytes of an index file: a copy if the file is small, else a map of the file.

    A copy does not change while it is read: reading 64 MB takes 20 ms. Processes share the map of a
    large index, which `Length` guards.
    """
    try:
        with files.opened(path) as file:
            status = os.fstat(file.fileno())
            if (size := status.st_size) < _SHORTEST:
                raise NotAPackError(f"{path}: {size} bytes, too short for an index")
            if size <= _MOST_PRIVATE and not is_one_of_many:
                return file.read(size), None
            inode = status.st_dev, status.st_ino
            now = Status(file.fileno()) if stays_open else at_path(path, inode)
            return mapped(file.fileno(), size).data, Length(path, size, now)
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


def checked_columns(
    arrays: dict[str, np.ndarray],
    checksums: np.ndarray,
    header: bytes,
    path: Path,
    length: Length | None,
    far: tuple[Far, Mapping[str, int]] | None = None,
) -> dict[str, Column]:
    """The columns with their checksums; the header is compared with its own."""
    counts = {n: -(-a.nbytes // BLOCK) for n, a in arrays.items()}
    if checksums.shape != (1 + sum(counts.values()),) or checksums.dtype != np.uint32:
        raise NotAPackError(f"{path}: {len(checksums)} checksums do not fit the columns")
    if crc32c(header) != checksums[0]:
        raise IntegrityError(f"{path}: the header is damaged (CRC32C differs)")
    columns, position = {}, 1
    for name, array in arrays.items():
        crcs = checksums[position : position + counts[name]]
        place = None if far is None else Place(far[0], position - 1, far[1][name])
        columns[name] = Column(array, crcs, f"{path}, column {name}", length, place)
        position += counts[name]
    return columns


# Columns of a field of any kind, and what a field of kind image or mask has beside them.
OF_VALUES = {"file": "<u4", "offset": "<i8", "length": "<i8", "crc32c": "<u4", "flags": "u1"}
OF_PIXELS = {
    "height": "<u4", "width": "<u4", "encoding": "u1", "orientation": "u1", "channels": "u1",
    "dtype": "u1",
}  # fmt: skip
PER_SAMPLE = {f"image/{name}": code for name, code in (OF_VALUES | OF_PIXELS).items()}
_OF_KEYS = {"key_data": ("u1",), "key_offsets": ("<i8",), "key_order": ("<u4", "<i8")}
REQUIRED = {  # name → dtypes
    **{n: (code,) for n, code in PER_SAMPLE.items()}, **_OF_KEYS, **OF_FILES
}  # fmt: skip


def check_shapes(
    columns: dict[str, Column], path: Path, required: Mapping[str, tuple[str, ...]] = REQUIRED
) -> None:
    """Check the columns that an index has to have, and the lengths of all others."""
    missing = [n for n in required if n not in columns]
    if missing:
        raise NotAPackError(f"{path}: columns missing: {', '.join(missing)}")
    shapes = {name: columns[name].shape for name in required}
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    samples, files = sizes.get("image/offset", 0), sizes["file_bytes"]
    expected = dict.fromkeys((*PER_SAMPLE, "key_order"), (samples,)) | {
        "key_offsets": (samples + 1,), "key_data": (sizes.get("key_data", 0),),
        "file_bytes": (files,), "file_digest": (files, 32),
        "file_path_offsets": (files + 1,), "file_path_data": (sizes["file_path_data"],),
    }  # fmt: skip
    for name, codes in required.items():
        if shapes[name] != expected[name] or columns[name].dtype not in codes:
            raise NotAPackError(
                f"{path}: column {name} is {columns[name].dtype} {shapes[name]}, "
                f"expected {' or '.join(codes)} {expected[name]}"
            )
    label = columns.get("label")
    if label is not None and not (
        label.shape[:1] == (samples,)
        and (label.dtype.str, len(label.shape)) in (("<i8", 1), ("<f4", 2), ("<i8", 2))
    ):
        raise NotAPackError(f"{path}: column label is {label.dtype} {label.shape}")
    if "image/offset" in required:
        _check_optional(columns, samples, path)


def _check_optional(columns: dict[str, Column], samples: int, path: Path) -> None:
    """Check the columns of further fields, of boxes, metadata and splits."""
    boxes = columns["boxes"].shape[0] if "boxes" in columns else 0
    expected: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {
        "split": ((samples,), ("u1",)),
        "meta_offsets": ((samples + 1,), ("<i8",)),
        "meta_data": (columns["meta_data"].shape[:1] if "meta_data" in columns else (), ("u1",)),
        "box_offsets": ((samples + 1,), ("<i8",)),
        "seek_offsets": ((samples + 1,), ("<i8",)),
        "seek_data": (columns["seek_data"].shape[:1] if "seek_data" in columns else (), ("u1",)),
        "boxes": ((boxes, 4), ("<f4",)),
    }
    codes = OF_VALUES | OF_PIXELS
    for name, column in columns.items():
        field, slash, part = name.partition("/")
        if slash and field == "boxes":
            expected[name] = (boxes,), ("<i8",) if part == "labels" else ("<i8", "<f4")
        elif slash and part in codes:
            expected[name] = (samples,), (codes[part],)
        elif name not in expected:
            continue
        wanted, dtypes = expected[name]
        if column.shape != wanted or column.dtype not in dtypes:
            raise NotAPackError(
                f"{path}: column {name} is {column.dtype} {column.shape}, "
                f"expected {' or '.join(dtypes)} {wanted}"
            )
    for starts, data in RAGGED.items():  # of the keys both are required anyway
        if (data in columns) != (starts in columns):
            raise NotAPackError(f"{path}: only one of the columns {data} and {starts} is there")
