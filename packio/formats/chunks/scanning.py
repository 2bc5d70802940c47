"""Arrays cut into blocks, read without a library; see `packio.formats.chunks.layout`."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packio.errors import IntegrityError, NotAPackError, ReadError
from packio.formats import Ranges
from packio.formats.blobs.columns import (
    BlobValues,
    Header,
    columns_of,
    damaged,
    prefix,
    read_header,
    records,
)
from packio.formats.chunks.blocks import block_shape, opener, read_rows
from packio.formats.chunks.layout import Array, ChunkLayout, blocks, place
from packio.sample.record import IMAGE, Place, Record

_MOST_JSON = 64 << 20  # bytes; class names are in there
_MOST_AXES = 8
_LIMIT = 2**58  # values of an array; so that eight bytes each can be counted


class _Blob(NamedTuple):
    """An array of bytes, or of pixels, all its blocks there."""

    array: Array
    files: list[str]  # relative to the shard

    @property
    def pixels(self) -> tuple[Sequence[int], str] | None:
        """Shape and type of an array of pixels."""
        shape = self.array.shape
        return (shape, str(self.array.dtype)) if len(shape) > 1 else None


def scan(path: Path, layout: ChunkLayout) -> Iterator[Record[Place]]:
    """Yield the record of every sample that lies in a blob; see `packio.formats.chunks.arrays`."""
    layout.refuse(path)
    stated = _header(path, layout)
    header = stated or Header()
    found = {name: _blob(path, f"{prefix(name)}data", layout) for name in header.kinds}
    blobs = {name: blob for name, blob in found.items() if blob is not None}
    if IMAGE not in blobs:
        raise NotAPackError(f"{path}/: no {layout.container} array `data` in it; not a pack")
    arrays = {
        name: _comparable(name, _loaded(path, name, array))
        for name in header.arrays
        if (array := _array(path, name, layout)) is not None
    }
    pixels = blobs[IMAGE].pixels
    _check_is_whole(arrays, stated, path, are_pixels=pixels is not None)
    sizes = {name: blob.array.bytes for name, blob in blobs.items()}
    columns = columns_of(arrays, sizes, header, path, pixels)
    if stated and header.samples != len(columns):
        raise IntegrityError(
            f"{path}/: has {len(columns)} samples, its attribute packio says "
            f"{header.samples!r}; restore or repack it"
        )
    files: list[str] = []
    places = {}
    for name, values in columns.values.items():
        if name not in blobs:
            raise damaged(f"{path}/", f"has no {prefix(name)}data")
        ranges = _ranges(blobs[name], values, f"{path}/{prefix(name)}data")
        ranges = ranges._replace(file=ranges.file + np.uint32(len(files)))
        places[name] = values.without_absent(ranges)
        files += blobs[name].files
    yield from records(columns, files, places)


def is_blob(path: Path, layout: ChunkLayout) -> bool:
    """Tell whether a container is packio's own, or has samples end to end and their positions."""
    metadata = read_json(path / layout.metadata)
    attributes = layout.attributes(metadata) if metadata is not None else None
    if isinstance(attributes, dict) and "packio" in attributes:
        return True
    return all((path / name / layout.metadata).exists() for name in ("data", "offsets"))


def _header(path: Path, layout: ChunkLayout) -> Header | None:
    """What packio says of the container, checked; None if another program wrote it."""
    metadata = read_json(path / layout.metadata)
    if metadata is None:
        return None
    if "dimensions" in metadata or metadata.get("node_type") == "array":
        raise NotAPackError(
            f"{path}/: one array, not a group of them; packio reads encoded images, end to end in "
            "an array `data`, with their positions in an array `offsets`"
        )
    attributes = layout.attributes(metadata)
    if not isinstance(attributes, dict):
        raise NotAPackError(f"{path}/: its attributes are {attributes!r:.200}; expected an object")
    if "packio" not in attributes:
        return None
    return read_header(attributes["packio"], layout.container, path)


def read_json(path: Path) -> dict[str, Any] | None:
    """Read the file that describes a group or an array; None if there is no such file."""
    try:
        with open(path, "rb", opener=opener) as file:
            size = os.fstat(file.fileno()).st_size
            text = file.read(min(size, _MOST_JSON) + 1)  # which is allocated at once
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ReadError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        value = json.loads(text) if len(text) <= _MOST_JSON else None
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{path}: is no JSON ({error}); restore or repack it") from error
    if not isinstance(value, dict):
        raise NotAPackError(f"{path}: expected a JSON object of at most {_MOST_JSON} bytes")
    return value


def _array(path: Path, name: str, layout: ChunkLayout) -> Array | None:
    metadata = read_json(path / name / layout.metadata)
    if metadata is not None:
        where = f"{path}/{name}"
        if not layout.is_array(metadata):
            raise NotAPackError(f"{where} is a group; expected an array")
        return layout.stored(metadata, where).plain(where)
    if os.path.lexists(path / name):
        raise IntegrityError(
            f"{path}/{name}: has no {layout.metadata}, which tells what it is; restore or repack it"
        )
    return None


def known_type(name: Any, known: Sequence[str], where: str) -> np.dtype:
    """Return the type of an array's values, in native byte order."""
    if name not in known:
        raise NotAPackError(f"{where} has values of type {name!r}; expected one of {known}")
    dtype: np.dtype = np.dtype(name)
    return dtype


def shapes(shape: Any, block: Any, where: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Check the shapes of an array and of a block."""
    for values, least in ((shape, 0), (block, 1)):
        if (
            not isinstance(values, list)
            or not 1 <= len(values) <= _MOST_AXES
            or len(values) != len(shape)
            or any(type(n) is not int or not least <= n < _LIMIT for n in values)
            or math.prod(max(n, 1) for n in values) >= _LIMIT
        ):
            raise NotAPackError(f"{where} has the shape {shape!r:.200}, blocks {block!r:.200}")
    return tuple(shape), tuple(block)


def _blob(path: Path, name: str, layout: ChunkLayout) -> _Blob | None:
    array = _array(path, name, layout)
    if array is None:
        return None
    is_pixels = name == "data" and len(array.shape) == 4 and array.block[1:] == array.shape[1:]
    if not is_pixels and (array.dtype != np.uint8 or len(array.shape) != 1):
        raise NotAPackError(
            f"{path}/{name}: an array of {array.dtype} {array.shape}; packio reads encoded images, "
            "end to end in one row of uint8 (pixels: encode them, or pack the images they are from)"
        )
    files = []
    for numbers in blocks(array):
        block_shape(path / name, array, numbers)
        files.append(f"{name}/{array.block_name(*numbers)}")
    return _Blob(array, files)


def _loaded(path: Path, name: str, array: Array) -> np.ndarray:
    """Read an array. Nothing is allocated before all blocks are there."""
    for numbers in blocks(array):
        block_shape(path / name, array, numbers)
    return read_rows(path / name, array, 0, array.shape[0])


def _comparable(name: str, values: np.ndarray) -> np.ndarray:
    """Native byte order; whole numbers as int64, where others write them narrower."""
    if name not in ("key_data", "meta_data") and values.dtype.kind in "bui":
        if values.dtype == np.uint64 and values.size and values.max() >= _LIMIT:
            raise IntegrityError(f"{name} has values up to {values.max()}, which cannot be")
        return values.astype(np.int64)
    if values.dtype.kind == "f":
        return values.astype(np.float32)
    return values.astype(values.dtype.newbyteorder("="))


def _check_is_whole(
    arrays: Mapping[str, np.ndarray], header: Header | None, path: Path, *, are_pixels: bool
) -> None:
    """Check that the arrays of packio's own are there."""
    needed = [] if are_pixels else ["offsets"]
    if header is not None:
        needed += [*([] if are_pixels else ["length"]), "key_data", "key_offsets"]
        for name in list(header.kinds)[1:]:
            if f"{name}_offsets" in arrays or name in header.fields:
                needed += [f"{name}_offsets", f"{name}_length"]
    missing = [name for name in needed if name not in arrays]
    if missing and header is None:
        raise NotAPackError(
            f"{path}/: no array `offsets` beside `data`; expected the position of every sample"
        )
    if missing:
        raise IntegrityError(f"{path}/: has no {', '.join(missing)}; restore or repack it")


def _ranges(blob: _Blob, values: BlobValues, where: str) -> Ranges:
    size, begin = blob.array.block_bytes, values.offsets[:-1]
    across = (begin % size + values.length > size) & (values.length > 0)
    if across.any():
        raise NotAPackError(
            f"{where}: sample {int(across.argmax())} lies in two blocks of {size} bytes; packio "
            "reads one range of one file: write it in one block, or pack the images anew"
        )
    return place(blob.array, begin, values.length)
