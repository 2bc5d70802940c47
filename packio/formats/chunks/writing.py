"""Arrays cut into blocks, written without a library; see `packio.formats.chunks.layout`."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from packio.errors import CannotCreateError, OutputError
from packio.formats import Ranges, Written
from packio.formats.blobs.blob import Blob
from packio.formats.blobs.columns import VERSION, Columns, header
from packio.formats.blobs.spool import Pixels, Spool, output_errors
from packio.formats.chunks.layout import Array, Layout, block_header, cut, place, small_block
from packio.sample.record import Field, Record

_BLOBS = (("data", "offsets", "length"), ("mask_data", "mask_offsets", "mask_length"))


class Writer:
    """Write records into a new directory; the same records give the same bytes.

    They are spooled beside it until `close` knows the largest of them, and with it the blocks; so
    the disk holds them twice for a while.
    """

    layout: ClassVar[Layout]

    def __init__(self, path: Path, *, count: int, size: int, classes: Sequence[str] = ()) -> None:
        """Create the directory.

        Args:
            path: The directory; does not exist yet.
            count: Samples about to come.
            size: Bytes of all of them together.
            classes: Names of the labels.

        Raises:
            CannotCreateError: the directory, or the temporary files beside it, cannot be made.
        """
        self._path, self._classes = path, classes
        self._files: list[str] = []
        self._sidecars: list[str] = []
        self._closed = False
        try:
            path.mkdir()
        except OSError as error:
            raise CannotCreateError(f"{path}: cannot be created: {error.strerror}") from error
        self._spool = Spool(path)

    def add(self, records: Sequence[Record[Field]]) -> None:
        """Append records.

        Raises:
            OutputError: they cannot be written; the message tells the space left.
        """
        self._check_open()
        most = self.layout.largest
        for record in records:
            if max(len(record.image.data), len(record.mask.data if record.mask else b"")) > most:
                raise OutputError(f"{self._path}: {record.key!r} has over {most} bytes")
        self._spool.add(records)

    def _check_open(self) -> None:
        if self._closed:
            raise OutputError(f"{self._path}: closed already")

    def close(self) -> Written:
        """Cut the blocks, read every record back, and write the other arrays.

        Raises:
            OutputError: it cannot be written, or what can be read is not what was added.
        """
        self._check_open()
        self._closed = True
        try:
            with output_errors(self._path, len(self._spool)):
                return self._write_all()
        finally:
            self._spool.close()

    def _write_all(self) -> Written:
        count, columns = len(self._spool), self._spool.finish()
        pixels = self._pixels()
        data, columns = self._cut(0, self._spool.data, columns, pixels)
        places = {"image": data}
        if columns.mask_length is not None:
            places["mask"], columns = self._cut(1, self._spool.masks, columns)
        for name, values in columns._asdict().items():
            if values is not None and (pixels is None or name not in ("offsets", "length")):
                self._write_array(name, values)
        attributes = {"packio": header(self.layout.container, count, self._classes)}
        self._write_json("", self.layout.describe_group(attributes))
        return Written(
            files=tuple(self._files),
            places=places,
            sidecars=tuple(sorted(self._sidecars)),
            info={"version": VERSION, **(pixels.info if pixels is not None else {})},
        )

    def abort(self) -> None:
        """Let go of the temporary files; what is in the directory stays."""
        self._closed = True
        self._spool.close()

    def _pixels(self) -> Pixels | None:
        pixels = self._spool.pixels()
        if pixels is None:
            return None
        array = self.layout.array(pixels.shape, pixels.shape, pixels.dtype)
        return pixels if array.dtype == pixels.dtype else None  # big-endian: no raw pixels

    def _cut(
        self, which: int, blob: Blob, columns: Columns, pixels: Pixels | None = None
    ) -> tuple[Ranges, Columns]:
        """Write a blob; returns where its values lie, and the columns with their positions."""
        name, offsets_name, length_name = _BLOBS[which]
        length = getattr(columns, length_name)
        size, cuts, offsets = cut(length, 1 if pixels is None else pixels.row_bytes)
        if pixels is None:
            # An array of no bytes has no block, but every sample has a file, be it empty.
            array = self.layout.array((max(int(offsets[-1]), 1),), (size,), np.dtype("u1"))
        else:
            block = (size // pixels.row_bytes, *pixels.shape[1:])
            array = self.layout.array(pixels.shape, block, pixels.dtype)
        self._write_json(name, self.layout.describe_array(array))
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
        return ranges, columns._replace(**{offsets_name: offsets})

    def _write_array(self, name: str, values: np.ndarray) -> None:
        block = small_block(values)
        array, rows = self.layout.array(values.shape, block, values.dtype), block[0]
        self._write_json(name, self.layout.describe_array(array))
        for number in range(array.grid()[0] if values.size else 0):
            part = values[number * rows : (number + 1) * rows].astype(array.dtype)
            file_name = f"{name}/{array.block_name(number, *[0] * (values.ndim - 1))}"
            self._sidecars.append(file_name)
            with _BlockFile(self._path / file_name, array, number) as file:
                file.write(part.tobytes())

    def _write_json(self, folder: str, metadata: dict[str, Any]) -> None:
        (self._path / folder).mkdir(exist_ok=True)
        name = os.path.join(folder, self.layout.metadata)
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
