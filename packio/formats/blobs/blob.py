"""What the writers of hdf5, pth, n5 and zarr share: records spooled into blobs and columns.

`Spool` takes the records; its `finish` gives their columns, which
`packio.formats.blobs.blob_columns` describes. Then a writer copies the blobs to where they belong
(`Blob.copy`) and reads them back from there (`Blob.check`).
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import shutil
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packio.errors import CannotCreateError, OutputError
from packio.formats.blobs.blob_columns import (
    Columns,
    check_header,
    columns_of,
    entries,
    header,
    one_file,
    pixel_columns,
)
from packio.index.indexfile import crc32c
from packio.sample.record import Field, Record

__all__ = [
    "Blob",
    "Columns",
    "Pixels",
    "Spool",
    "check_header",
    "columns_of",
    "entries",
    "header",
    "one_file",
    "output_errors",
    "pixel_columns",
]

_CHUNK = 8 << 20  # bytes copied, or read back, at a time
_TO_COPY_BY_HAND = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM}


class Blob:
    """Values end to end in a nameless temporary file, with their lengths and checksums.

    The file has no name from the start, so nothing is left of it, whatever happens.
    """

    def __init__(self, path: Path) -> None:
        """Create the file in the folder of ``path``, a name that is free there."""
        self._where = path
        try:
            self._file = path.open("x+b", buffering=1 << 20)
            path.unlink()
        except OSError as error:
            raise CannotCreateError(f"{path}: cannot be created: {error.strerror}") from error
        self.length = array("q")  # bytes of each value
        self.crc32c = array("I")
        self.size = 0  # bytes of all

    def add(self, value: bytes) -> None:
        """Append a value."""
        self._file.write(value)
        self.length.append(len(value))
        self.crc32c.append(crc32c(value))
        self.size += len(value)

    @property
    def descriptor(self) -> int:
        """Of the file, all of it written."""
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

        Args:
            target: A descriptor of the file.
            offset: Where in it the values ``first``, ``first + 1``… lie; int64 bytes, ascending.
            first: Number of the first of them.
            where: The file's name, for the message.

        Raises:
            OutputError: a value differs.
        """
        length = np.frombuffer(self.length, np.int64)[first:] if self.length else np.zeros(0, "i8")
        ends = offset + length[: len(offset)]
        i = 0
        while i < len(offset):
            start = int(offset[i])  # at least one value at a time, else as many as fit a chunk
            stop = max(i + 1, int(np.searchsorted(ends, start + _CHUNK, "right")))
            chunk = memoryview(_read(target, start, int(ends[stop - 1]) - start))
            for k in range(i, stop):
                value = chunk[int(offset[k]) - start : int(ends[k]) - start]
                if crc32c(bytes(value)) != self.crc32c[first + k]:
                    raise OutputError(
                        f"{where}: record {first + k} reads back differently ({len(value)} bytes "
                        f"at {offset[k]}); the disk or its driver is at fault"
                    )
            i = stop

    def close(self) -> None:
        """Let go of the file; it is gone then."""
        with contextlib.suppress(OSError):  # flushes, and the disk may be full
            self._file.close()


class Pixels(NamedTuple):
    """An array of raw pixels."""

    shape: tuple[int, ...]  # (N, C, H, W)
    dtype: np.dtype  # little-endian

    @property
    def row_bytes(self) -> int:
        """Bytes of a sample."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def info(self) -> dict[str, Any]:
        """What `Written.info` says of it."""
        return {"raw": {"shape": list(self.shape[1:]), "dtype": self.dtype.name}}


class Spool:
    """Records on their way into a container whose size has to be known before it is written.

    ``data`` and ``masks`` are the `Blob` of the samples and of the masks; what is small is kept in
    memory. The disk holds the samples twice until `close`.
    """

    def __init__(self, path: Path) -> None:
        """Make temporary files in the folder of ``path``, the shard.

        Raises:
            CannotCreateError: they cannot be made.
        """
        self._path = path
        self._shapes: set[tuple[int, int, int, int]] = set()  # C, H, W, bytes of raw pixels
        self.data = Blob(path.with_name(path.name + ".data"))
        try:
            self.masks = Blob(path.with_name(path.name + ".mask"))
        except CannotCreateError:
            self.data.close()
            raise
        self._keys, self._key_lengths = bytearray(), array("q")
        self._metas, self._meta_lengths = bytearray(), array("q")
        self._labels, self._vectors = array("q"), bytearray()
        self._vector_length: int | None = None
        self._boxes, self._box_lengths = bytearray(), array("q")
        self._box_labels, self._box_label_lengths = bytearray(), array("q")

    def __len__(self) -> int:
        return len(self.data.length)

    def add(self, records: Sequence[Record[Field]]) -> None:
        """Append records.

        Raises:
            OutputError: they cannot be written, or have labels of different lengths.
        """
        with output_errors(self._path, len(self)):
            for record in records:
                self.data.add(record.image.data)
                self._add_shape(record)
                self._keys += record.key
                self._key_lengths.append(len(record.key))
                if record.mask is not None:
                    self.masks.add(record.mask.data)
                if record.meta is not None:
                    self._metas += record.meta
                    self._meta_lengths.append(len(record.meta))
                if record.label is not None:
                    self._add_label(record.label)
                if record.boxes is not None:
                    self._add_boxes(record.boxes, record.box_labels)

    def _add_shape(self, record: Record[Field]) -> None:
        shape = (record.facts.channels, record.facts.height, record.facts.width)
        if record.facts.encoding != "raw":
            shape = (0, 0, 0)
        if len(self._shapes) < 2:
            self._shapes.add((*shape, len(record.image.data)))

    def pixels(self) -> Pixels | None:
        """The samples as one array, where all of them are raw pixels of one shape and type."""
        if len(self._shapes) != 1:
            return None
        ((*shape, size),) = self._shapes
        count = math.prod(shape)
        types = {1: "u1", 2: "<u2", 4: "<f4"}
        if not count or size % count or size // count not in types:
            return None
        return Pixels((len(self), *shape), np.dtype(types[size // count]))

    def _add_label(self, label: int | np.ndarray) -> None:
        if not isinstance(label, np.ndarray):
            self._labels.append(label)
            return
        vector = np.asarray(label, "<f4").reshape(-1)
        if self._vector_length not in (None, len(vector)):
            raise OutputError(
                f"{self._path}: a label of {len(vector)} numbers after {self._vector_length}"
            )
        self._vector_length = len(vector)
        self._vectors += vector.tobytes()

    def _add_boxes(self, boxes: np.ndarray, labels: np.ndarray | None) -> None:
        self._boxes += np.asarray(boxes, "<f4").reshape(-1, 4).tobytes()
        self._box_lengths.append(len(boxes))
        if labels is not None:
            self._box_labels += np.asarray(labels, "<i8").reshape(-1).tobytes()
            self._box_label_lengths.append(len(labels))

    def finish(self) -> Columns:
        """Make the columns of all records added.

        Raises:
            OutputError: only some of the records have a label, a mask, a meta or boxes.
        """
        key_data, key_offsets = _ragged(self._keys, self._key_lengths)
        length = _int64(self.data.length)
        columns = Columns(_offsets(length), length, self._label(), key_data, key_offsets)
        if self._have("a mask", len(self.masks.length)):
            length = _int64(self.masks.length)
            columns = columns._replace(mask_offsets=_offsets(length), mask_length=length)
        if self._have("a meta", len(self._meta_lengths)):
            data, offsets = _ragged(self._metas, self._meta_lengths)
            columns = columns._replace(meta_data=data, meta_offsets=offsets)
        if self._have("boxes", len(self._box_lengths)):
            columns = columns._replace(
                boxes=np.frombuffer(bytes(self._boxes), "<f4").reshape(-1, 4),
                box_offsets=_offsets(_int64(self._box_lengths)),
            )
        if self._have("box labels", len(self._box_label_lengths)):
            if self._box_label_lengths != self._box_lengths:
                raise OutputError(f"{self._path}: not as many box labels as boxes")
            labels = np.frombuffer(bytes(self._box_labels), "<i8")
            columns = columns._replace(box_labels=labels)
        return columns

    def _label(self) -> np.ndarray | None:
        k = self._vector_length
        vectors = 0 if k is None else len(self._vectors) // max(4 * k, 1)
        if self._have("a label that is an int", len(self._labels)):
            return _int64(self._labels)
        if k is not None and self._have(f"a label of {k} numbers", vectors if k else len(self)):
            return np.frombuffer(bytes(self._vectors), "<f4").reshape(len(self), k)
        return None

    def _have(self, what: str, count: int) -> bool:
        if count not in (0, len(self)):
            raise OutputError(
                f"{self._path}: {count} of {len(self)} records have {what}; all or none must"
            )
        return count > 0

    def close(self) -> None:
        """Let go of the temporary files; may be called at any time, and again."""
        self.data.close()
        self.masks.close()


@contextlib.contextmanager
def output_errors(path: Path, count: int) -> Iterator[None]:
    """Raise an OutputError with the space left for an OSError while ``path`` is written."""
    try:
        yield
    except OutputError:
        raise
    except (OSError, ValueError) as error:  # ValueError: the file is closed
        try:
            free = shutil.disk_usage(path.parent).free
        except OSError:
            free = 0
        raise OutputError(
            f"{path}: cannot be written after {count} records: {error} ({free} bytes free); make "
            "room and run it again"
        ) from error


def _int64(values: array[int]) -> np.ndarray:
    return np.array(values, "<i8")


def _offsets(length: np.ndarray) -> np.ndarray:
    return np.concatenate((np.zeros(1, "<i8"), np.cumsum(length, dtype="<i8")))


def _ragged(data: bytearray, lengths: array[int]) -> tuple[np.ndarray, np.ndarray]:
    return np.frombuffer(bytes(data), np.uint8), _offsets(_int64(lengths))


def _read(descriptor: int, offset: int, length: int) -> bytes:
    """Read a range, in as many parts as it takes; short at the end of the file."""
    data = os.pread(descriptor, length, offset)
    while len(data) < length and (
        more := os.pread(descriptor, length - len(data), offset + len(data))
    ):
        data += more
    return data
