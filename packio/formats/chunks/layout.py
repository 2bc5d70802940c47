"""What N5 and Zarr share: arrays cut into blocks, one file a block, raw.

Which arrays there are says `packio.formats.blobs.columns`; ``_chunks_writer`` writes them,
`packio.formats.chunks.scanning` reads them.

A blob of samples is cut so that no sample lies in two blocks: each block but the last takes as many
samples as fit, in order, and what is left of it is zeros. The position of a sample counts them, so
``data[offsets[i] : offsets[i] + length[i]]`` is sample i, for whoever reads the array as a whole,
and one range of one file for us. A block has 64 MiB, or the size of the largest sample if that is
more, or of the blob if that is less. A block of pixels has as many whole samples as that.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packio.formats import Ranges

_BLOCK_BYTES = 64 << 20


class Array(NamedTuple):
    """An array of a container, its axes in numpy's order."""

    shape: tuple[int, ...]
    block: tuple[int, ...]  # shape of a block
    dtype: np.dtype  # with the byte order on disk
    prefix: str  # of the names of blocks
    separator: str  # between a block's numbers
    headers: bool  # as in N5: blocks begin with their shape, and the axes on disk are reversed

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


class Layout(NamedTuple):
    """What N5 and Zarr do differently."""

    container: str
    metadata: str  # name of the file that describes a group or an array
    array: Callable[[tuple[int, ...], tuple[int, ...], np.dtype], Array]
    describe_group: Callable[[dict[str, Any]], dict[str, Any]]  # attributes → metadata
    describe_array: Callable[[Array], dict[str, Any]]
    parse_attributes: Callable[[dict[str, Any]], Any]  # metadata of a group → its attributes
    parse_array: Callable[[dict[str, Any], str], Array]  # metadata, what to call it → array
    refuse: Callable[[Path], None]  # raises if it is of another version
    largest: int  # bytes of a block


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
    """Choose the block of an array that is no blob: whole rows, all of them if they are few."""
    row_bytes = max(values.itemsize * math.prod(values.shape[1:]), 1)
    rows = max(min(_BLOCK_BYTES // row_bytes, len(values)), 1)
    return (rows, *(max(n, 1) for n in values.shape[1:]))


def place(array: Array, offsets: np.ndarray, length: np.ndarray) -> Ranges:
    """Tell the block, and the position in its file, of values of an array cut along its first axis.

    An empty value at the end of the last block stays in it.

    Args:
        array: Of bytes, or of pixels.
        offsets: Of the values in the row of blocks; bytes.
        length: Of the values; bytes.
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
        for last in range(grid[-1]):  # itertools.product would make a tuple of any range at once
            yield (*first, last)
