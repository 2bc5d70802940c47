"""Arrays cut into blocks, read without a library; see `packio.formats.chunks.layout`."""

from __future__ import annotations

import contextlib
import math
import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from packio.errors import IntegrityError, NotAPackError, PackioError, ReadError
from packio.formats import Ranges, damage_error
from packio.formats.blobs.columns import Header, columns_of, prefix, read_header, records
from packio.formats.chunks.layout import Array, ChunkLayout, Decode, blocks, place
from packio.formats.wire import load_json
from packio.sample.record import IMAGE, Place, Record

_MOST_JSON = 64 << 20  # bytes; class names are in there
_MOST_AXES = 8
_LIMIT = 2**58  # values of an array; so that eight bytes each can be counted


def scan(path: Path, layout: ChunkLayout) -> Iterator[Record[Place]]:
    """Yield the record of every sample that lies in a blob; see `packio.formats.chunks.arrays`."""
    stated = _header(path, layout)
    header = stated or Header()
    found = {name: _blob(path, f"{prefix(name)}data", layout) for name in header.kinds}
    blobs = {name: array for name, array in found.items() if array is not None}
    if IMAGE not in blobs:
        raise NotAPackError(f"{path}/: no {layout.container} array `data` in it; not a pack")
    arrays = {}
    for name in header.arrays:
        if (array := _array(path, name, layout)) is not None:
            for numbers in blocks(array):  # nothing is allocated before all blocks are there
                block_shape(path / name, array, numbers)
            arrays[name] = _comparable(name, read_rows(path / name, array, 0, array.shape[0]))
    shape = blobs[IMAGE].shape
    pixels = (shape, str(blobs[IMAGE].dtype)) if len(shape) > 1 else None
    needed = ["offsets"] if stated is None else ["key_data", "key_offsets"]
    for name in blobs if stated is not None else ():
        needed += [f"{prefix(name)}offsets", f"{prefix(name)}length"]
    of_pixels = () if pixels is None else ("offsets", "length")
    if missing := [name for name in needed if name not in arrays and name not in of_pixels]:
        kind = NotAPackError if stated is None else IntegrityError
        raise kind(f"{path}/: no array `{'`, `'.join(missing)}` in it")
    sizes = {name: array.bytes for name, array in blobs.items()}
    columns = columns_of(arrays, sizes, header, path, pixels)
    if stated and header.samples != len(columns):
        raise damage_error(f"{path}/", f"has {len(columns)} samples, not {header.samples!r}")
    files: list[str] = []
    places = {}
    for name, values in columns.values.items():
        if name not in blobs:
            raise damage_error(f"{path}/", f"has no {prefix(name)}data")
        array, folder = blobs[name], f"{prefix(name)}data"
        ranges = _ranges(array, values.offsets[:-1], values.length, f"{path}/{folder}")
        ranges = ranges._replace(file=ranges.file + np.uint32(len(files)))
        places[name] = values.mark_absent(ranges)
        files += [f"{folder}/{array.block_name(*numbers)}" for numbers in blocks(array)]
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
    value = load_json(text, path) if len(text) <= _MOST_JSON else None
    if not isinstance(value, dict):
        raise NotAPackError(f"{path}: expected a JSON object of at most {_MOST_JSON} bytes")
    return value


def _array(path: Path, name: str, layout: ChunkLayout) -> Array | None:
    metadata = read_json(path / name / layout.metadata)
    if metadata is not None:
        where = f"{path}/{name}"
        if not layout.is_array(metadata):
            raise NotAPackError(f"{where} is a group; expected an array")
        stored = layout.parse_array(metadata, where)
        if stored.otherwise:
            raise NotAPackError(f"{where} {stored.otherwise}")
        return stored.array
    if os.path.lexists(path / name):
        raise damage_error(f"{path}/{name}", f"has no {layout.metadata}")
    return None


def parse_dtype(name: Any, known: Sequence[str], where: str) -> np.dtype:
    if name not in known:
        raise NotAPackError(f"{where} has values of type {name!r}; expected one of {known}")
    dtype: np.dtype = np.dtype(name)
    return dtype


def shapes(shape: Any, block: Any, where: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
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


def _blob(path: Path, name: str, layout: ChunkLayout) -> Array | None:
    array = _array(path, name, layout)
    if array is None:
        return None
    is_pixels = name == "data" and len(array.shape) == 4 and array.block[1:] == array.shape[1:]
    if not is_pixels and (array.dtype != np.uint8 or len(array.shape) != 1):
        raise NotAPackError(
            f"{path}/{name}: an array of {array.dtype} {array.shape}; packio reads encoded images, "
            "end to end in one row of uint8 (pixels: encode them, or pack the images they are from)"
        )
    for numbers in blocks(array):
        block_shape(path / name, array, numbers)
    return array


def _comparable(name: str, values: np.ndarray) -> np.ndarray:
    """Native byte order; whole numbers as int64, where others write them narrower."""
    if name not in ("key_data", "meta_data") and values.dtype.kind in "bui":
        if values.dtype == np.uint64 and values.size and values.max() >= _LIMIT:
            raise IntegrityError(f"{name} has values up to {values.max()}, which cannot be")
        return values.astype(np.int64)
    if values.dtype.kind == "f":
        return values.astype(np.float32)
    return values.astype(values.dtype.newbyteorder("="))


def _ranges(array: Array, begin: np.ndarray, length: np.ndarray, where: str) -> Ranges:
    size = array.block_bytes
    across = (begin % size + length > size) & (length > 0)
    if across.any():
        raise NotAPackError(
            f"{where}: sample {int(across.argmax())} lies in two blocks of {size} bytes; packio "
            "reads one range of one file: write it in one block, or pack the images anew"
        )
    return place(array, begin, length)


def opener(path: str, flags: int) -> int:
    """Open a file; if a pipe is in its place, do not wait for a writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def block_shape(folder: Path, array: Array, numbers: tuple[int, ...]) -> tuple[int, ...]:
    """Check that a block is there and as long as it should be; returns its shape."""
    path = folder / array.block_name(*numbers)
    with open_block(path) as file:
        size, header = os.fstat(file.fileno()).st_size, file.read(array.header_bytes)
    shape = array.block
    if array.headers:
        shape = header_shape(header, path, array, numbers)
    expected = array.header_bytes + math.prod(shape) * array.dtype.itemsize
    if size != expected:
        raise damage_error(path, f"{size} bytes, expected {expected}")
    return shape


def is_left_out(path: Path, array: Array) -> bool:
    """Tell whether the writer has left out a block, as all its values are the fill value."""
    return array.fill is not None and not os.path.lexists(path)


@contextlib.contextmanager
def open_block(path: Path) -> Iterator[IO[bytes]]:
    try:
        with open(path, "rb", opener=opener) as file:
            yield file
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise IntegrityError(
            f"{path}: missing; restore it, or repack (a writer that leaves out blocks of zeros "
            "must be told to write them)"
        ) from error
    except OSError as error:
        raise ReadError(f"{path}: cannot be read: {error.strerror}") from error


def header_shape(
    header: bytes, path: Path, array: Array, numbers: tuple[int, ...]
) -> tuple[int, ...]:
    axes = len(array.shape)
    if len(header) == array.header_bytes:
        mode, found, *sizes = struct.unpack(f">HH{axes}I", header)
        if mode in (1, 2) and found <= 255:
            kind = ("values of variable length", "objects")[mode - 1]
            raise NotAPackError(
                f"{path}: a block of mode {mode}, {kind}, which packio does not read; write the "
                "array as numbers, in blocks of mode 0"
            )
        shape = tuple(sizes[::-1])
        needed = extent(array, numbers)
        fits = all(a <= b <= c for a, b, c in zip(needed, shape, array.block, strict=True))
        if mode == 0 and found == axes and fits:
            return shape
    found = f"begins {header.hex()}, not with the header of block {numbers} of {array.block}"
    raise damage_error(path, found)


def extent(array: Array, numbers: tuple[int, ...]) -> tuple[int, ...]:
    both = zip(numbers, array.shape, array.block, strict=True)
    return tuple(min(b, n - i * b) for i, n, b in both)


def read_rows(
    folder: Path, array: Array, first: int, stop: int, decode: Decode | None = None
) -> np.ndarray:
    """Read the rows ``first`` to ``stop`` of an array; ``stop`` may be beyond the last row."""
    stop = min(stop, array.shape[0])
    if not math.prod(array.shape) or first >= stop:  # an axis may be as long as it likes then
        return np.empty((max(stop - first, 0), *array.shape[1:]), array.dtype)
    rows = array.block[0]
    begin = first // rows
    numbers = range(begin, -(-stop // rows))
    parts = [_row_of_blocks(folder, array, number, decode) for number in numbers]
    values = np.concatenate(parts) if len(parts) != 1 else parts[0]
    return values[first - begin * rows : stop - begin * rows]


def _row_of_blocks(folder: Path, array: Array, number: int, decode: Decode | None) -> np.ndarray:
    rows = extent(array, (number, *[0] * (len(array.shape) - 1)))[0]
    values = np.empty((rows, *array.shape[1:]), array.dtype)
    one_row = array._replace(shape=values.shape, block=(rows, *array.block[1:]))
    for _, *rest in blocks(one_row):
        part = _block(folder, array, (number, *rest), decode)
        inner = extent(array, (number, *rest))
        starts = [0, *(i * b for i, b in zip(rest, array.block[1:], strict=True))]
        target = tuple(slice(s, s + n) for s, n in zip(starts, inner, strict=True))
        values[target] = part[tuple(map(slice, inner))]
    return values


def _block(
    folder: Path, array: Array, numbers: tuple[int, ...], decode: Decode | None
) -> np.ndarray:
    path = folder / array.block_name(*numbers)
    if is_left_out(path, array):
        assert array.fill is not None  # noqa: S101 (for mypy)
        return np.full(array.block, array.fill, array.dtype)
    with open_block(path) as file:
        header, content = file.read(array.header_bytes), file.read()
    shape = header_shape(header, path, array, numbers) if array.headers else array.block
    size = math.prod(shape) * array.dtype.itemsize
    if decode is not None:
        with library_errors(path):
            content = decode(content, size)
    if len(content) != size:
        raise damage_error(path, f"{len(content)} bytes, expected {size}")
    return np.frombuffer(content, array.dtype).reshape(shape)


@contextlib.contextmanager
def library_errors(where: Path) -> Iterator[None]:
    try:
        yield
    except PackioError:
        raise
    except Exception as error:  # libraries of compression have errors of their own, each
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        raise damage_error(where, f"cannot be decoded ({reason})") from error
