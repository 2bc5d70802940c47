"""Records on their way into a container: hdf5, pth, n5 and zarr need all of them to begin.

`Spool` takes the records; its `finish` makes the columns that `packio.formats.blobs.columns`
describes. Then a writer copies the blobs into the container (`Blob.copy`) and compares what it
reads there with what was added (`Blob.check`).
"""

from __future__ import annotations

import contextlib
import math
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packio.errors import CannotCreateError, OutputError
from packio.formats.blobs.blob import Blob
from packio.formats.blobs.columns import Columns
from packio.sample.record import Field, Record
from packio.system.files import room_beside


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
    """Raise an OutputError that tells the space left for an OSError while ``path`` is written.

    Args:
        path: The shard.
        count: Number of records added so far, for the message.
    """
    try:
        yield
    except OutputError:
        raise
    except (OSError, ValueError) as error:  # ValueError: the file is closed
        raise OutputError(
            f"{path}: cannot be written after {count} records: {error} ({room_beside(path)}); "
            "make room and run it again"
        ) from error


def _int64(values: array[int]) -> np.ndarray:
    return np.array(values, "<i8")


def _offsets(length: np.ndarray) -> np.ndarray:
    return np.concatenate((np.zeros(1, "<i8"), np.cumsum(length, dtype="<i8")))


def _ragged(data: bytearray, lengths: array[int]) -> tuple[np.ndarray, np.ndarray]:
    return np.frombuffer(bytes(data), np.uint8), _offsets(_int64(lengths))
