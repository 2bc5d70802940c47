"""Arrays cut into blocks, written without a library; see `packio.formats.chunks.layout`."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from packio.errors import CannotCreateError, OutputError
from packio.formats import Ranges, Written
from packio.formats.blobs import spool
from packio.formats.blobs.columns import VERSION, ShardColumns, prefix
from packio.formats.blobs.spool import Pixels
from packio.formats.chunks.layout import Array, ChunkLayout, block_header, cut, place, small_block
from packio.sample.record import IMAGE, Field, Record


class Writer(spool.Writer):
    """Write records into a new directory; the same records give the same bytes.

    `close` cuts the blocks, for it needs to know the largest value.
    """

    def __init__(self, layout: ChunkLayout, path: Path, classes: Sequence[str]) -> None:
        """Create the directory."""
        self._layout = layout
        self._files: list[str] = []
        self._sidecars: list[str] = []
        try:
            path.mkdir()
        except OSError as error:
            raise CannotCreateError(f"{path}: cannot be created: {error.strerror}") from error
        super().__init__(path, classes)

    def add(self, records: Sequence[Record[Field]]) -> None:
        """Append records."""
        most = self._layout.largest
        for record in records:
            if any(len(field.data) > most for field in record.fields.values()):
                raise OutputError(f"{self._path}: {record.key!r} has over {most} bytes")
        super().add(records)

    def _write(self) -> Written:
        columns, header = self._spool.finish()
        pixels = self._pixels()
        places, values = {}, dict(columns.values)
        for name, found in columns.values.items():
            ranges, offsets = self._cut(name, found.length, pixels if name == IMAGE else None)
            places[name] = found.without_absent(ranges)
            values[name] = found._replace(offsets=offsets)
        for name, array in ShardColumns(values, columns.others).arrays(lengths=True).items():
            if pixels is None or name not in ("offsets", "length"):
                self._write_array(name, array)
        attributes = {"packio": header.text(self._layout.container, self._classes)}
        self._write_json("", self._layout.describe_group(attributes))
        info = {"version": VERSION, **(pixels.info if pixels is not None else {})}
        return Written(tuple(self._files), places, tuple(sorted(self._sidecars)), info)

    def _pixels(self) -> Pixels | None:
        pixels = self._spool.pixels()
        if pixels is None:
            return None
        array = self._layout.array(pixels.shape, pixels.shape, pixels.dtype)
        return pixels if array.dtype == pixels.dtype else None  # big-endian: no raw pixels

    def _cut(
        self, field: str, length: np.ndarray, pixels: Pixels | None
    ) -> tuple[Ranges, np.ndarray]:
        """Write a blob; return where its values lie, and their offsets in the row of blocks."""
        name, blob = f"{prefix(field)}data", self._spool.blobs[field]
        size, cuts, offsets = cut(length, 1 if pixels is None else pixels.row_bytes)
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
            with _BlockFile(self._path / file_name, array, number) as file:
                blob.copy(
                    file.descriptor, array.header_bytes, int(starts[first]), int(starts[stop])
                )
                at = offsets[first:stop] - number * size + array.header_bytes
                blob.check(file.descriptor, at, first, self._path / file_name)
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
            with _BlockFile(self._path / file_name, array, number) as file:
                file.write(part.tobytes())

    def _write_json(self, folder: str, metadata: dict[str, Any]) -> None:
        (self._path / folder).mkdir(exist_ok=True)
        name = os.path.join(folder, self._layout.metadata)
        text = json.dumps(metadata, indent=2, sort_keys=True) + "\n"
        (self._path / name).write_text(text, encoding="ascii")
        self._sidecars.append(name)


class _BlockFile:
    """A new block, one of a row of blocks along the first axis, as long as it will be."""

    def __init__(self, path: Path, array: Array, number: int) -> None:
        rows = array.block[0]
        if array.headers:  # N5's last block ends where the array does
            rows = min(rows, array.shape[0] - number * rows)
        shape = (rows, *array.block[1:])
        path.parent.mkdir(parents=True, exist_ok=True)
        self._header = block_header(shape) if array.headers else b""
        self._file = path.open("x+b", buffering=0)
        self.descriptor = self._file.fileno()
        try:
            size = len(self._header) + math.prod(shape) * array.dtype.itemsize
            os.truncate(self.descriptor, size)  # what is not written is zeros
            self.write(self._header, at=0)
        except OSError:
            self._file.close()
            raise

    def __enter__(self) -> _BlockFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, data: bytes, at: int | None = None) -> None:
        """Write at a position, by default that of the values."""
        position = len(self._header) if at is None else at
        left = memoryview(data)
        while left:
            count = os.pwrite(self.descriptor, left, position)
            left, position = left[count:], position + count
