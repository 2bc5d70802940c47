"""Parquet files: their footers, and rows read forwards with little memory.

Source: Apache Parquet format, "File format": a file ends in its footer, the length of that (uint32,
little-endian) and ``PAR1``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packio import registry
from packio.errors import DecodeError, SourceError

_BUFFER = 1 << 20  # bytes, of each column; without one, pyarrow reads row groups whole
_BATCH_BYTES, _BATCH_ROWS = 4 << 20, 32  # about what is packed at a time
_KEPT = 24  # batches, for threads that are behind others
_AHEAD = 1024  # rows that are rather read than jumped over
_OPEN = 4  # files


def _open(path: Path) -> Any:
    pq = registry.require("pyarrow.parquet", "parquet")
    try:
        return pq.ParquetFile(
            path, buffer_size=_BUFFER, pre_buffer=False, page_checksum_verification=True
        )
    except Exception as error:  # pyarrow raises whatever its parsers meet
        raise SourceError(f"{path}: no Parquet file that pyarrow can read: {error}") from error


def _stamp(path: Path) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns


@dataclasses.dataclass(frozen=True)
class ParquetFile:
    """A file as found when it was listed.

    Attributes:
        path: Absolute.
        stamp: Size in bytes and time of the last change.
        starts: (row groups + 1,) first row of each row group, then the number of rows.
    """

    path: Path
    stamp: tuple[int, int]
    starts: np.ndarray

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.starts[-1])

    def open(self) -> Any:
        """Open the file with pyarrow.

        Raises:
            SourceError: the file is damaged, or has changed.
        """
        if _stamp(self.path) != self.stamp:
            raise SourceError(f"{self.path}: changed after it was listed; run again")
        return _open(self.path)

    def values(self, column: str) -> Iterator[Any]:
        """All values of a column, or of a struct with one of its members: ``image.path``.

        Raises:
            SourceError: the values cannot be read.
        """
        count = 0
        with self.open() as opened:
            try:
                for batch in opened.iter_batches(columns=[column], use_threads=False):
                    count += batch.num_rows
                    yield from batch.column(0).to_pylist()
            except Exception as error:  # pyarrow raises whatever its parsers meet
                raise SourceError(f"{self.path}: column {column!r}: {error}") from error
        if count != self.rows:
            raise SourceError(f"{self.path}: {count} values in {column!r}; expected {self.rows}")


class Footer(NamedTuple):
    """The footer of a file."""

    file: ParquetFile
    schema: Any  # pyarrow's
    features: dict[str, Any]  # of `datasets`: column → description
    sizes: np.ndarray  # (row groups,) bytes, not compressed
    digest: bytes  # of the footer and the file's size


def footer(path: Path) -> Footer:
    """Read the footer of a file.

    Raises:
        SourceError: the footer is damaged.
        MissingPackageError: pyarrow is not installed.
    """
    stamp = _stamp(path)
    with _open(path) as opened:
        try:
            schema, metadata = opened.schema_arrow, opened.metadata
            groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
            rows = [group.num_rows for group in groups]
            # not of the columns: on a damaged footer pyarrow 26 ends the process there
            sizes = [min(max(group.total_byte_size, 0), 1 << 62) for group in groups]
            features = _features(schema)
        except Exception as error:  # pyarrow raises whatever its parsers meet
            raise SourceError(f"{path}: the footer is damaged: {error}") from error
    if len(set(schema.names)) != len(schema.names):
        raise SourceError(f"{path}: two columns have the same name; rename one")
    if min(rows, default=0) < 0 or sum(rows) > stamp[0]:  # an image takes a byte at least
        raise SourceError(f"{path}: {sum(rows)} rows in {stamp[0]} bytes; the footer is damaged")
    file = ParquetFile(path.absolute(), stamp, np.cumsum([0, *rows]))
    return Footer(file, schema, features, np.array(sizes, np.int64), _digest(path))


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 8))
        length = int.from_bytes(file.read(4), "little")
        file.seek(max(0, size - 8 - length))
        return hashlib.sha256(b"%d" % size + file.read(min(size, length + 8))).digest()


def _features(schema: Any) -> dict[str, Any]:
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return {}
    return features if isinstance(features, dict) else {}


class Reader:
    """Reads rows of several files forwards. Safe in threads; pickles without its batches.

    A batch has about 4 MiB, whatever the size of the row groups. The last 24 batches are kept, as
    threads do not ask in order.

    Args:
        files: The files.
        columns: Names of the columns to read.
        sizes: Average bytes of a row of these columns, for each file.
    """

    def __init__(
        self, files: Sequence[ParquetFile], columns: Sequence[str], sizes: Sequence[float]
    ) -> None:
        self.files, self._columns, self._sizes = list(files), list(columns), list(sizes)
        self._lock = threading.Lock()
        self._recent: deque[tuple[int, int, Any]] = deque(maxlen=_KEPT)  # file, first row, batch
        self._cursors: OrderedDict[int, _Cursor] = OrderedDict()
        self._broken: dict[tuple[int, int], tuple[int, str]] = {}  # file, group → row, reason

    def __reduce__(self) -> tuple[object, ...]:
        return Reader, (self.files, self._columns, self._sizes)

    def row(self, file: int, row: int) -> dict[str, Any]:
        """Values of a row, as pyarrow's scalars.

        Raises:
            DecodeError: the row cannot be read.
            SourceError: the file has changed.
        """
        with self._lock:
            start, batch = self._batch(file, row)
        return {name: batch.column(name)[row - start] for name in self._columns}

    def _batch(self, file: int, row: int) -> tuple[int, Any]:
        """The batch that has a row, and its first row."""
        for found, start, batch in self._recent:
            if found == file and start <= row < start + batch.num_rows:
                return start, batch
        starts = self.files[file].starts
        group = int(np.searchsorted(starts, row, "right")) - 1
        while True:
            broken, reason = self._broken.get((file, group), (row + 1, ""))
            if broken <= row:
                raise DecodeError(f"{self.files[file].path}: row group {group}: {reason}")
            cursor = self._cursor(file, group, row)
            start = cursor.next
            try:
                batch = cursor.read()
            except Exception as error:  # noqa: BLE001 (pyarrow raises whatever its parsers meet)
                del self._cursors[file]
                self._broken[file, cursor.group] = (start, str(error))
                continue
            self._recent.append((file, start, batch))
            if row < start + batch.num_rows:
                return start, batch

    def _cursor(self, file: int, group: int, row: int) -> _Cursor:
        """A cursor that will come to a row."""
        cursor = self._cursors.pop(file, None)
        first = int(self.files[file].starts[group])
        if cursor is None or not first - _AHEAD <= cursor.next <= row:
            rows = max(1, min(_BATCH_ROWS, int(_BATCH_BYTES / max(self._sizes[file], 1))))
            cursor = _Cursor(self.files[file], self._columns, rows, group)
        self._cursors[file] = cursor
        if len(self._cursors) > _OPEN:
            self._cursors.popitem(last=False)
        return cursor


class _Cursor:
    """Batches of a file, one after the other; none reaches over the end of a row group."""

    def __init__(self, file: ParquetFile, columns: list[str], rows: int, group: int) -> None:
        self._file, self._columns, self._rows = file, columns, rows
        self._opened = file.open()
        self._begin(group)

    def _begin(self, group: int) -> None:
        self.group, self.next = group, int(self._file.starts[group])
        self._batches = self._opened.iter_batches(
            self._rows, row_groups=[group], columns=self._columns, use_threads=False
        )

    def read(self) -> Any:
        """Read the next batch."""
        while (batch := next(self._batches, None)) is None or not batch.num_rows:
            if batch is None and self.next != self._file.starts[self.group + 1]:
                raise ValueError(f"ends with row {self.next} of the file; the footer says more")
            if batch is None:
                self._begin(self.group + 1)
        self.next += batch.num_rows
        return batch
