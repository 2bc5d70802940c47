"""What N5 and Zarr share: arrays cut into blocks, one file a block.

`packio.formats.blobs.columns` says which arrays there are, `Writer` writes them, and
`packio.formats.chunks.scanning` reads them.

A blob of values is cut so that no value lies in two blocks. Each block but the last takes as many
values as fit, in order; zeros fill the rest of the block. The offsets count these zeros, so
``data[offsets[i] : offsets[i] + length[i]]`` is image i for a library that reads the array as a
whole, and image i is one range of one file for packio. A block has 64 MiB, or the size of the
largest value if that is more, or of the blob if that is less. A block of pixels has as many whole
images as fit.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

import numpy as np

from packio.errors import CannotCreateError, OutputError
from packio.formats import Ranges, Written
from packio.formats.blobs import spool
from packio.formats.blobs.columns import VERSION, ShardColumns, prefix
from packio.formats.blobs.spool import Pixels
from packio.sample.record import IMAGE, Field, Record

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
        return tuple(-(-n // b) for n, b in zip(self.shape, self.block, strict=True))

    def block_name(self, *numbers: int) -> str:
        """Name of a block's file, relative to the array."""
        order = reversed(numbers) if self.headers else numbers
        return self.prefix + self.separator.join(map(str, order))

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def block_bytes(self) -> int:
        return math.prod(self.block) * self.dtype.itemsize

    @property
    def header_bytes(self) -> int:
        return 4 + 4 * len(self.shape) if self.headers else 0


class ForeignArray(NamedTuple):
    """An array as others may write it, and what has been done to its values."""

    array: Array
    chunk: tuple[int, ...]  # shape of what is decoded at once: the block, or less
    otherwise: str = ""  # why the values are no byte ranges; "": they lie in the blocks as they are
    decode: Decode | None = None
    library: Callable[[Path], Load] | None = None  # opens the array at a path


class ChunkLayout(Protocol):
    """What N5 and Zarr, 2 and 3, do differently."""

    container: str
    metadata: str  # name of the file that describes a group or an array
    largest: int = 2**62  # bytes that a block may have

    def array(self, shape: tuple[int, ...], block: tuple[int, ...], dtype: np.dtype) -> Array:
        """An array as packio writes it."""

    def describe_group(self, attributes: dict[str, Any]) -> dict[str, Any]:
        """Metadata of a group with some attributes."""

    def describe_array(self, array: Array) -> dict[str, Any]:
        """Metadata of an array."""

    def attributes(self, metadata: dict[str, Any]) -> Any:
        """Attributes of a group with some metadata."""
        return metadata.get("attributes", {})

    def is_array(self, metadata: Mapping[str, Any]) -> bool:
        """Whether metadata are those of an array."""
        return True

    def parse_array(self, metadata: dict[str, Any], where: str) -> ForeignArray:
        """The array that metadata describe."""


def lay_out_blocks(length: np.ndarray, unit: int = 1) -> tuple[int, list[int], np.ndarray]:
    """Lay values of some lengths out in blocks so that none lies in two.

    A block has a multiple of ``unit`` bytes, which are at most those of the largest value. Returns
    bytes of a block; the number of the first value of each block, and N; the position of each
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

    An empty value at the end of the last block stays in it. Offsets count in the row of blocks.
    """
    size, count = array.block_bytes, array.grid()[0]
    number = np.minimum(offsets // size, count - 1)
    position = offsets - number * size + array.header_bytes
    return Ranges(number.astype(np.uint32), position, length)


def blocks(array: Array) -> Iterator[tuple[int, ...]]:
    """All blocks of an array, by their numbers; none if it has no values."""
    grid = array.grid()  # which may be endless: numpy.ndindex and itertools.product take no such
    for i in range(math.prod(grid) if math.prod(array.shape) else 0):
        yield tuple(map(int, np.unravel_index(i, grid)))


class Writer(spool.Writer):
    """Write records into a new directory. `close` cuts the blocks: it knows the largest value."""

    def __init__(self, layout: ChunkLayout, path: Path, classes: Sequence[str]) -> None:
        self._layout = layout
        self._files: list[str] = []
        self._sidecars: list[str] = []
        try:
            path.mkdir()
        except OSError as error:
            raise CannotCreateError(f"{path}: cannot be created: {error.strerror}") from error
        super().__init__(path, classes)

    def add(self, records: Sequence[Record[Field]]) -> None:
        most = self._layout.largest
        for record in records:
            if any(len(field.data) > most for field in record.fields.values()):
                raise OutputError(f"{self._path}: {record.key!r} has over {most} bytes")
        super().add(records)

    def _write(self) -> Written:
        columns, header = self._spool.finish()
        pixels = self._spool.pixels()
        if pixels is not None:  # the bytes of raw pixels are little-endian, those of N5 are not
            array = self._layout.array(pixels.shape, pixels.shape, pixels.dtype)
            pixels = pixels if array.dtype == pixels.dtype else None
        places, values = {}, dict(columns.values)
        for name, found in columns.values.items():
            ranges, offsets = self._cut(name, found.length, pixels if name == IMAGE else None)
            places[name] = found.mark_absent(ranges)
            values[name] = found._replace(offsets=offsets)
        for name, column in ShardColumns(values, columns.others).arrays(lengths=True).items():
            if pixels is None or name not in ("offsets", "length"):
                self._write_array(name, column)
        attributes = {"packio": header.text(self._layout.container, self._classes)}
        self._write_json("", self._layout.describe_group(attributes))
        info = {"version": VERSION, **(pixels.info if pixels is not None else {})}
        return Written(tuple(self._files), places, tuple(sorted(self._sidecars)), info)

    def _cut(
        self, field: str, length: np.ndarray, pixels: Pixels | None
    ) -> tuple[Ranges, np.ndarray]:
        """Write a blob; return where its values lie, and their offsets in the row of blocks."""
        name, blob = f"{prefix(field)}data", self._spool.blobs[field]
        size, cuts, offsets = lay_out_blocks(length, 1 if pixels is None else pixels.row_bytes)
        if pixels is None:
            # An array of no bytes has no block, but every sample has a file, be it empty.
            array = self._layout.array((max(int(offsets[-1]), 1),), (size,), np.dtype("u1"))
        else:
            block = (size // pixels.row_bytes, *pixels.shape[1:])
            array = self._layout.array(pixels.shape, block, pixels.dtype)
        self._write_json(name, self._layout.describe_array(array))
        starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(length)))
        first_file = len(self._files)
        for number, (first, stop) in enumerate(itertools.pairwise(cuts)):
            file_name = f"{name}/{array.block_name(number, *[0] * (len(array.shape) - 1))}"
            self._files.append(file_name)
            with _new_block(self._path / file_name, array, number) as file:
                blob.copy(file.fileno(), array.header_bytes, int(starts[first]), int(starts[stop]))
                at = offsets[first:stop] - number * size + array.header_bytes
                blob.check(file.fileno(), at, first, self._path / file_name)
        ranges = place(array, offsets[:-1], length)
        ranges = ranges._replace(file=ranges.file + np.uint32(first_file))
        return ranges, offsets

    def _write_array(self, name: str, values: np.ndarray) -> None:
        block = small_block(values)
        array, rows = self._layout.array(values.shape, block, values.dtype), block[0]
        self._write_json(name, self._layout.describe_array(array))
        for number in range(array.grid()[0] if values.size else 0):
            part = values[number * rows : (number + 1) * rows].astype(array.dtype)
            file_name = f"{name}/{array.block_name(number, *[0] * (values.ndim - 1))}"
            self._sidecars.append(file_name)
            with _new_block(self._path / file_name, array, number) as file:
                file.write(part.tobytes())

    def _write_json(self, folder: str, metadata: dict[str, Any]) -> None:
        (self._path / folder).mkdir(exist_ok=True)
        name = os.path.join(folder, self._layout.metadata)
        text = json.dumps(metadata, indent=2, sort_keys=True) + "\n"
        (self._path / name).write_text(text, encoding="ascii")
        self._sidecars.append(name)


@contextlib.contextmanager
def _new_block(path: Path, array: Array, number: int) -> Iterator[IO[bytes]]:
    """Create a block, one of a row along the first axis, as long as it will be; write its header.

    What is not written after that is zeros.
    """
    rows = array.block[0]
    if array.headers:  # N5's last block ends where the array does
        rows = min(rows, array.shape[0] - number * rows)
    shape = (rows, *array.block[1:])
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("x+b") as file:
        if array.headers:  # of a block in the default mode
            file.write(struct.pack(f">HH{len(shape)}I", 0, len(shape), *reversed(shape)))
        file.truncate(array.header_bytes + math.prod(shape) * array.dtype.itemsize)
        yield file
