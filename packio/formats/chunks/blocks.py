"""Blocks of an array, read without a library; see `packio.formats.chunks.layout`."""

from __future__ import annotations

import contextlib
import math
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from packio.errors import IntegrityError, NotAPackError, PackioError, ReadError
from packio.formats.chunks.layout import Array, Decode, blocks


def opener(path: str, flags: int) -> int:
    """Open a file; if a pipe is in its place, do not wait for a writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def block_shape(folder: Path, array: Array, numbers: tuple[int, ...]) -> tuple[int, ...]:
    """Check that a block is there and as long as it should be; returns its shape."""
    path = folder / array.block_name(*numbers)
    try:
        with open(path, "rb", opener=opener) as file:
            size = os.fstat(file.fileno()).st_size
            header = file.read(array.header_bytes)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise missing(path) from error
    except OSError as error:
        raise ReadError(f"{path}: cannot be read: {error.strerror}") from error
    shape = array.block
    if array.headers:
        shape = header_shape(header, path, array, numbers)
    expected = array.header_bytes + math.prod(shape) * array.dtype.itemsize
    if size != expected:
        raise IntegrityError(f"{path}: {size} bytes, expected {expected}; restore or repack it")
    return shape


def is_left_out(path: Path, array: Array) -> bool:
    """Tell whether the writer has left out a block, as all its values are the fill value."""
    return array.fill is not None and not os.path.lexists(path)


def missing(path: Path) -> IntegrityError:
    """An error for a block that is not there."""
    return IntegrityError(
        f"{path}: missing; restore it, or repack (a writer that leaves out blocks of zeros must be "
        "told to write them)"
    )


def header_shape(
    header: bytes, path: Path, array: Array, numbers: tuple[int, ...]
) -> tuple[int, ...]:
    """Read the header of an N5 block; returns its shape."""
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
    raise IntegrityError(
        f"{path}: begins {header.hex()}, not with the header of block {numbers} of {array.block}; "
        "restore or repack it"
    )


def extent(array: Array, numbers: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of the part of a block that lies within the array."""
    both = zip(numbers, array.shape, array.block, strict=True)
    return tuple(min(b, n - i * b) for i, n, b in both)


def read_rows(
    folder: Path, array: Array, first: int, stop: int, decode: Decode | None = None
) -> np.ndarray:
    """Read the rows ``first`` to ``stop`` of an array; ``stop`` may be beyond the last row.

    Args:
        decode: Decompresses a block; None if the values lie in it as they are.
    """
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
    try:
        with open(path, "rb", opener=opener) as file:
            header, content = file.read(array.header_bytes), file.read()
    except OSError as error:
        raise ReadError(f"{path}: cannot be read: {error.strerror}") from error
    shape = header_shape(header, path, array, numbers) if array.headers else array.block
    size = math.prod(shape) * array.dtype.itemsize
    if decode is not None:
        with library_errors(path):
            content = decode(content, size)
    if len(content) != size:
        raise IntegrityError(f"{path}: {len(content)} bytes, expected {size}; restore or repack it")
    return np.frombuffer(content, array.dtype).reshape(shape)


@contextlib.contextmanager
def library_errors(where: Path) -> Iterator[None]:
    """Turn every error of a library of compression into an IntegrityError."""
    try:
        yield
    except PackioError:
        raise
    except Exception as error:  # libraries of compression have errors of their own, each
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        raise IntegrityError(
            f"{where}: cannot be decoded ({reason}); restore or repack it"
        ) from error
