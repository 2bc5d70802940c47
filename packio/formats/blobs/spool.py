"""Records on their way into a container: hdf5, pth, n5 and zarr need all of them to begin.

`BlobSpool` takes the records; its `finish` makes the columns that `packio.formats.blobs.columns`
describes. Then a `Writer` copies the blobs into the container (`Blob.copy`) and compares what it
reads there with what was added (`Blob.check`).
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import tempfile
from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from packio.errors import CannotCreateError, OutputError
from packio.formats import Written
from packio.formats.blobs.append_only import output_errors
from packio.formats.blobs.columns import BlobValues, Header, ShardColumns, prefix
from packio.index.building import SampleColumns
from packio.index.columns import offsets
from packio.index.indexfile import crc32c
from packio.sample.record import IMAGE, MASK, Field, Record
from packio.system.files import read_at

_CHUNK = 8 << 20  # bytes copied, or read back, at a time
_TO_COPY_BY_HAND = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM}


class Pixels(NamedTuple):
    shape: tuple[int, ...]  # (N, C, H, W)
    dtype: np.dtype  # little-endian

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def info(self) -> dict[str, Any]:
        return {"raw": {"shape": list(self.shape[1:]), "dtype": self.dtype.name}}


class Writer:
    """Write records into a new container; until `close`, values are in temporary files."""

    def __init__(self, path: Path, classes: Sequence[str]) -> None:
        self._path, self._classes = path, classes
        self._spool = BlobSpool(path)

    def add(self, records: Sequence[Record[Field]]) -> None:
        self._spool.add(records)

    def close(self) -> Written:
        """Write the container, and compare what can be read with what was added."""
        try:
            with output_errors(self._path):
                return self._write()
        finally:
            self.abort()

    def abort(self) -> None:
        """Let go of the temporary files; what has been written of the container stays."""
        self._spool.close()

    def _write(self) -> Written:
        raise NotImplementedError


class FileContents(NamedTuple):
    """What a file holds; blobs have the names of their arrays: ``data``, and ``<name>_data``."""

    blobs: Mapping[str, Blob]
    arrays: Mapping[str, np.ndarray]
    pixels: Pixels | None  # of the blob ``data``
    text: str  # of the header


class FileWriter(Writer):
    """Write records into one new file, with the values of each field in one blob.

    `fill` writes the file; it returns where each of the blobs begins in it, in bytes.
    """

    def __init__(
        self, path: Path, classes: Sequence[str], container: str,
        fill: Callable[[IO[bytes], FileContents], Mapping[str, int]],
    ) -> None:  # fmt: skip
        if path.exists():
            raise CannotCreateError(f"{path}: cannot be created: it exists")
        super().__init__(path, classes)
        self._container, self._fill = container, fill

    def _write(self) -> Written:
        path, pixels = self._path, self._spool.pixels()
        columns, header = self._spool.finish()
        arrays = columns.arrays(lengths=False)
        if pixels is not None:
            del arrays["offsets"]
        blobs = {name: self._spool.blobs[name] for name in columns.values}
        text = header.text(self._container, self._classes)
        with path.open("xb+", 1 << 20) as file:
            named = {f"{prefix(name)}data": blob for name, blob in blobs.items()}
            begins = self._fill(file, FileContents(named, arrays, pixels, text))
            file.flush()
            begin = {name: begins[f"{prefix(name)}data"] for name in blobs}
            for name, blob in blobs.items():
                offsets = columns.values[name].offsets[:-1] + begin[name]
                blob.check(file.fileno(), offsets, where=path)
        places = {name: values.ranges(begin[name]) for name, values in columns.values.items()}
        return Written((path.name,), places, (), pixels.info if pixels is not None else {})


class BlobSpool:
    """Records before their container is written: values in `blobs`, the rest in memory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._shapes: set[tuple[int, int, int, int]] = set()  # C, H, W, bytes of raw pixels
        self.blobs: dict[str, Blob] = {}  # of each field
        self._samples = SampleColumns()

    def __len__(self) -> int:
        return len(self._samples)

    def add(self, records: Sequence[Record[Field]]) -> None:
        with output_errors(self._path):
            for record in records:
                for name in record.fields.keys() - self.blobs.keys():
                    self._begin(name, record.fields[name].kind)
                for name, blob in self.blobs.items():
                    blob.add(record.fields[name].data if name in record.fields else None)
                if IMAGE in record.fields and len(self._shapes) < 2:
                    facts = record.facts
                    shape = (facts.channels, facts.height, facts.width)
                    shape = shape if facts.encoding == "raw" else (0, 0, 0)
                    self._shapes.add((*shape, len(record.image.data)))
                had_boxes = self._samples.box_columns is not None
                self._samples.add(record)
                if record.boxes is not None and not had_boxes:
                    self._header()  # checks the names

    def _begin(self, name: str, kind: str) -> None:
        self.blobs[name] = Blob(self._path, kind)
        self._header()  # checks the name
        for _ in range(len(self)):
            self.blobs[name].add(None)

    def pixels(self) -> Pixels | None:
        """The images as one array, where all of them are raw pixels of one shape and type."""
        if len(self._shapes) != 1:
            return None
        ((*shape, size),) = self._shapes
        count = math.prod(shape)
        types = {1: "u1", 2: "<u2", 4: "<f4"}
        if not count or size % count or size // count not in types:
            return None
        return Pixels((len(self), *shape), np.dtype(types[size // count]))

    def _header(self) -> Header:
        """The header of the container; an OutputError if an array cannot have a name."""
        names = (name for name in self._order() if name not in (IMAGE, MASK))
        fields = {name: self.blobs[name].kind for name in names}
        columns = {*(self._samples.box_columns or ())} - {"labels"}
        header = Header(fields, sorted(columns), len(self))
        if header.misfit:
            raise OutputError(
                f"{self._path}: {header.misfit!r} cannot name a field or a column of boxes in this "
                "format: expected letters, digits, _, - or ., and no name that another array has"
            )
        return header

    def finish(self) -> tuple[ShardColumns, Header]:
        """Make the columns of all records added, and the header of the container."""
        if not self.blobs:
            self._begin(IMAGE, "image")
        if remark := self._samples.labels.remark():
            raise OutputError(f"{self._path}: labels are {remark}; all or none must be alike")
        found = self._samples.columns()
        names = ["label", *(f"{n}_{of}" for n in ("key", "meta") for of in ("data", "offsets"))]
        boxes = [n for n in found if n.startswith("boxes")]
        boxes.sort(key=lambda name: (name not in ("boxes", "boxes/labels"), name))
        names += [*boxes, "box_offsets"]
        others = {n.replace("boxes/", "box_"): found[n] for n in names if n in found}
        values = {name: self._values(name) for name in self._order()}
        return ShardColumns(values, others), self._header()

    def _order(self) -> list[str]:
        """The image, the mask, and the other fields."""
        return sorted(self.blobs, key=lambda name: (name != IMAGE, name != MASK, name))

    def _values(self, name: str) -> BlobValues:
        blob = self.blobs[name]
        length, present = np.array(blob.length, "<i8"), np.array(blob.present, np.uint8)
        return BlobValues(
            blob.kind, offsets(blob.length), length, None if present.all() else present
        )

    def close(self) -> None:
        """Let go of the temporary files; may be called at any time, and again."""
        for blob in self.blobs.values():
            blob.close()


class Blob:
    """Values end to end in a file without a name, of which a crash leaves nothing."""

    def __init__(self, path: Path, kind: str) -> None:
        """Create the file in the folder of the container, whose path is this."""
        self.kind, folder = kind, path.parent  # of the field
        try:
            self._file = tempfile.TemporaryFile("w+b", 1 << 20, dir=folder)  # noqa: SIM115 (kept)
        except OSError as error:
            raise CannotCreateError(f"{path}: cannot be created: {error.strerror}") from error
        self.length: array[int] = array("q")  # bytes of each value
        self.crc32c: array[int] = array("I")
        self.present: array[int] = array("B")  # 0: a sample that has no value
        self.size = 0  # bytes of all

    def add(self, value: bytes | None) -> None:
        """Append a value; None: the sample has none."""
        self.present.append(value is not None)
        value = value or b""
        self._file.write(value)
        self.length.append(len(value))
        self.crc32c.append(crc32c(value))
        self.size += len(value)

    @property
    def descriptor(self) -> int:
        """The descriptor of the file, after everything is written."""
        self._file.flush()
        return self._file.fileno()

    def copy(self, target: int, position: int, start: int = 0, stop: int | None = None) -> None:
        """Copy bytes ``start``..``stop`` to a position of a file; OSError as it comes."""
        source, stop = self.descriptor, self.size if stop is None else stop
        shift, by_hand = position - start, False
        while start < stop:
            count = 0
            if not by_hand:
                try:  # within the kernel; some file systems even share the blocks
                    count = os.copy_file_range(source, target, stop - start, start, start + shift)
                except OSError as error:
                    if error.errno not in _TO_COPY_BY_HAND:
                        raise
            if count == 0:
                by_hand = True
                chunk = os.pread(source, min(_CHUNK, stop - start), start)
                if not chunk:
                    raise OSError(errno.EIO, "the temporary file is shorter than what was written")
                count = os.pwrite(target, chunk, start + shift)
            start += count

    def check(self, target: int, offset: np.ndarray, first: int = 0, where: object = "") -> None:
        """Read values back from a file, and compare their checksums with those of what was added.

        The values ``first``, ``first + 1``… lie at the offsets, int64 bytes, ascending.
        """
        length = np.frombuffer(self.length, np.int64)[first:] if self.length else np.zeros(0, "i8")
        ends = offset + length[: len(offset)]
        i = 0
        while i < len(offset):
            start = int(offset[i])  # at least one value at a time, else as many as fit a chunk
            stop = max(i + 1, int(np.searchsorted(ends, start + _CHUNK, "right")))
            chunk = memoryview(read_at(target, int(ends[stop - 1]) - start, start))
            for k in range(i, stop):
                value = chunk[int(offset[k]) - start : int(ends[k]) - start]
                if crc32c(bytes(value)) != self.crc32c[first + k]:
                    raise OutputError(
                        f"{where}: record {first + k} reads back differently ({len(value)} bytes "
                        f"at {offset[k]}); the disk or its driver is at fault"
                    )
            i = stop

    def close(self) -> None:
        with contextlib.suppress(OSError):  # flushes, and the disk may be full
            self._file.close()
