"""What N5 and Zarr share: arrays cut into blocks, one file a block.

`packio.formats.blobs.columns` says which arrays there are, `packio.formats.chunks.writing` writes
them, `packio.formats.chunks.scanning` reads them.

A blob of values is cut so that no value lies in two blocks. Each block but the last takes as many
values as fit, in order; zeros fill the rest of the block. The offsets count these zeros, so
``data[offsets[i] : offsets[i] + length[i]]`` is image i for a library that reads the array as a
whole, and image i is one range of one file for packio. A block has 64 MiB, or the size of the
largest value if that is more, or of the blob if that is less. A block of pixels has as many whole
images as fit.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packio.errors import NotAPackError
from packio.formats import Ranges

Decode = Callable[[bytes, int], bytes]  # content of a block, bytes of its values → its values
Load = Callable[[int, int], np.ndarray]  # rows of an array, from one number up to another

_BLOCK_BYTES = 64 << 20


class Array(NamedTuple):
    """An array of a container, its axes in numpy's order."""

    shape: tuple[int, ...]
    block: tuple[int, ...]  # shape of a block
    dtype: np.dtype  # with the byte order on disk
    prefix: str  # of the names of blocks
    separator: str  # between a block's numbers
    headers: bool  # as in N5: blocks begin with their shape, and the axes on disk are reversed
    fill: float | None = None  # of the values of a block that is not there; None: it is missing

    def grid(self) -> tuple[int, ...]:
        """Number of blocks along each axis."""
        return tuple(-(-n // b) for n, b in zip(self.shape, self.block, strict=True))

    def block_name(self, *numbers: int) -> str:
        """Name of a block's file, relative to the array."""
        order = reversed(numbers) if self.headers else numbers
        return self.prefix + self.separator.join(map(str, order))

    @property
    def bytes(self) -> int:
        """Bytes of all values."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def block_bytes(self) -> int:
        """Bytes of the values of a whole block."""
        return math.prod(self.block) * self.dtype.itemsize

    @property
    def header_bytes(self) -> int:
        """Bytes before the values of a block."""
        return 4 + 4 * len(self.shape) if self.headers else 0


class ForeignArray(NamedTuple):
    """An array as others may write it, and what has been done to its values."""

    array: Array
    chunk: tuple[int, ...]  # shape of what is decoded at once: the block, or less
    otherwise: str = ""  # why the values are no byte ranges; empty: they lie in the blocks as such
    decode: Decode | None = None
    library: Callable[[Path], Load] | None = None  # opens the array at a path

    @property
    def is_plain(self) -> bool:
        """Whether the values lie in the blocks as they are."""
        return not self.otherwise

    def plain(self, where: str) -> Array:
        """The array, if it is plain."""
        if self.otherwise:
            raise NotAPackError(f"{where} {self.otherwise}")
        return self.array


class ChunkLayout:
    """What N5 and Zarr, 2 and 3, do differently.

    Attributes:
        metadata: Name of the file that describes a group or an array.
        largest: Bytes that a block may have.
    """

    container: str
    metadata: str
    largest: int = 2**62

    def array(self, shape: tuple[int, ...], block: tuple[int, ...], dtype: np.dtype) -> Array:
        """An array as packio writes it."""
        raise NotImplementedError

    def describe_group(self, attributes: dict[str, Any]) -> dict[str, Any]:
        """Metadata of a group with some attributes."""
        raise NotImplementedError

    def describe_array(self, array: Array) -> dict[str, Any]:
        """Metadata of an array."""
        raise NotImplementedError

    def attributes(self, metadata: dict[str, Any]) -> Any:
        """Attributes of a group with some metadata."""
        return metadata.get("attributes", {})

    def is_array(self, metadata: Mapping[str, Any]) -> bool:
        """Whether metadata are those of an array."""
        return True

    def stored(self, metadata: dict[str, Any], where: str) -> ForeignArray:
        """The array that metadata describe."""
        raise NotImplementedError

    def refuse(self, path: Path) -> None:
        """Raise NotAPackError if a directory is of another format."""


def block_header(shape: tuple[int, ...]) -> bytes:
    """Make the header of an N5 block in the default mode."""
    return struct.pack(f">HH{len(shape)}I", 0, len(shape), *reversed(shape))


def cut(length: np.ndarray, unit: int = 1) -> tuple[int, list[int], np.ndarray]:
    """Lay values out in blocks so that none lies in two.

    Args:
        length: Of each value; (N,) int64 bytes.
        unit: Bytes that a block has a multiple of; at most those of the largest value.

    Returns:
        Bytes of a block; the number of the first value of each block, and N; the position of each
        value, and the end of the last one, in the row of blocks, (N+1,) int64 bytes.
    """
    starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(length, dtype=np.int64)))
    total = int(starts[-1])
    size = max(min(_BLOCK_BYTES, total), int(length.max(initial=0)), 1)
    size -= size % unit
    cuts, offsets = [0], starts.copy()
    while True:
        first = cuts[-1]
        stop = int(np.searchsorted(starts, starts[first] + size, "right")) - 1
        base = (len(cuts) - 1) * size
        offsets[first : stop + 1] = starts[first : stop + 1] - starts[first] + base
        cuts.append(stop)
        if stop == len(length):
            return size, cuts, offsets


def small_block(values: np.ndarray) -> tuple[int, ...]:
    """Choose the block of an array that is no blob: as many whole rows as 64 MiB hold."""
    row_bytes = max(values.itemsize * math.prod(values.shape[1:]), 1)
    rows = max(min(_BLOCK_BYTES // row_bytes, len(values)), 1)
    return (rows, *(max(n, 1) for n in values.shape[1:]))


def place(array: Array, offsets: np.ndarray, length: np.ndarray) -> Ranges:
    """Tell the block, and the position in its file, of values of an array cut along its first axis.

    An empty value at the end of the last block stays in it.

    Args:
        array: Of bytes, or of pixels.
        offsets: Positions of the values in the row of blocks, in bytes.
        length: Lengths of the values, in bytes.
    """
    size, count = array.block_bytes, array.grid()[0]
    number = np.minimum(offsets // size, count - 1)
    position = offsets - number * size + array.header_bytes
    return Ranges(number.astype(np.uint32), position, length)


def blocks(array: Array) -> Iterator[tuple[int, ...]]:
    """All blocks of an array, by their numbers; none if it has no values."""
    return _numbers(array.grid() if math.prod(array.shape) else (0,))


def _numbers(grid: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    if not grid:
        yield ()
        return
    for first in _numbers(grid[:-1]):
        for last in range(grid[-1]):  # itertools.product and numpy.ndindex take no endless ranges
            yield (*first, last)
