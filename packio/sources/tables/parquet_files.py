"""Parquet files: their footers, and rows read forwards with little memory.

Source: Apache Parquet format, "File format": a file ends in its footer, the length of that (uint32,
little-endian) and ``PAR1``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packio import registry
from packio.errors import DecodeError, ReadError, SourceError
from packio.sources._rows import ListedFile
from packio.storage import stores
from packio.storage.urls import Url
from packio.system.files import check_of_file

_ARROW = ".arrow"
_BUFFER = 1 << 20  # bytes, of each column; without a buffer pyarrow reads whole row groups
_BUFFER_AT_URL = 4 << 20  # bytes of a request
_BATCH_BYTES, _BATCH_ROWS = 4 << 20, 32  # about as much as packing holds at a time
_KEPT = 24  # batches, for threads that are behind others
_OPEN = 4  # files


def _open(listed: ListedFile) -> Any:
    """Open a Parquet file with pyarrow, or an Arrow file with the same methods."""
    pq, path, url = registry.require("pyarrow.parquet", "parquet"), listed.path, listed.url
    try:
        if path.lower().endswith(_ARROW):
            return _ArrowFile(path)
        return pq.ParquetFile(
            path if url is None else _UrlFile(url, listed.size),
            buffer_size=_BUFFER if url is None else _BUFFER_AT_URL, pre_buffer=False,
            page_checksum_verification=True,
        )  # fmt: skip
    except Exception as error:  # pyarrow raises whatever its parsers meet
        check_of_file(error, path)
        raise SourceError(f"{path}: no such file that pyarrow can read: {error}") from error


class _ArrowFile:
    """An Arrow stream as `datasets` writes it; each batch of it counts as a row group."""

    def __init__(self, path: str) -> None:
        pa = registry.require("pyarrow", "parquet")
        with pa.ipc.open_stream(pa.memory_map(path)) as stream:
            self.schema_arrow, self._batches = stream.schema, list(stream)

    def __enter__(self) -> _ArrowFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._batches = []

    def groups(self) -> list[tuple[int, int]]:
        return [(batch.num_rows, batch.nbytes) for batch in self._batches]

    def iter_batches(
        self, rows: int = 1024, *, row_groups: Sequence[int] | None = None, columns: Sequence[str],
        use_threads: bool,
    ) -> Iterator[Any]:  # fmt: skip
        """As pyarrow's ParquetFile; a column of a struct may be ``image.path``."""
        del use_threads
        groups = range(len(self._batches)) if row_groups is None else row_groups
        for batch in (self._batches[group] for group in groups):
            batch.validate()
            names = [name.partition(".")[0] for name in columns]
            chosen = batch.select(names)
            for start in range(0, batch.num_rows, rows):
                yield chosen.slice(start, rows)


def _groups(opened: Any) -> list[tuple[int, int]]:
    if isinstance(opened, _ArrowFile):
        return opened.groups()
    # not of the columns: on a damaged footer pyarrow 26 ends the process there
    groups = [opened.metadata.row_group(i) for i in range(opened.metadata.num_row_groups)]
    return [(g.num_rows, min(max(g.total_byte_size, 0), 1 << 62)) for g in groups]


@dataclasses.dataclass(frozen=True)
class ParquetFile:
    listed: ListedFile
    starts: np.ndarray  # first row of each row group, then the number of rows
    row_bytes: np.ndarray  # of each row group, bytes of a row on average, not compressed

    @property
    def path(self) -> str:
        return self.listed.path

    @property
    def rows(self) -> int:
        return int(self.starts[-1])

    def open(self) -> Any:
        self.listed.check()
        return _open(self.listed)

    def values(self, column: str) -> Iterator[Any]:
        """All values of a column; of the member ``image.path`` dicts with ``path``."""
        count = 0
        with self.open() as opened:
            try:
                for batch in opened.iter_batches(columns=[column], use_threads=False):
                    count += batch.num_rows
                    yield from batch.column(0).to_pylist()
            except Exception as error:  # pyarrow raises whatever its parsers meet
                check_of_file(error, self.path)
                raise SourceError(f"{self.path}: column {column!r}: {error}") from error
        if count != self.rows:
            raise SourceError(f"{self.path}: {count} values in {column!r}; expected {self.rows}")


class Footer(NamedTuple):
    file: ParquetFile
    schema: Any  # pyarrow's
    features: dict[str, Any]  # of `datasets`: column → description
    digest: bytes  # of the footer and the file's size


def footer(path: Path) -> Footer:
    listed = ListedFile.stat(path)
    with _open(listed) as opened:
        try:
            schema, groups = opened.schema_arrow, _groups(opened)
            features = _features(schema)
        except Exception as error:  # pyarrow raises whatever its parsers meet
            check_of_file(error, path)
            raise SourceError(f"{path}: the footer is damaged: {error}") from error
    rows = [number for number, _ in groups]
    if len(set(schema.names)) != len(schema.names):
        raise SourceError(f"{path}: two columns have the same name; rename one")
    if min(rows, default=0) < 0 or sum(rows) > listed.size:  # an image takes a byte at least
        raise SourceError(f"{path}: {sum(rows)} rows in {listed.size} bytes; the footer is damaged")
    row_bytes = np.array([size // max(number, 1) for number, size in groups], np.int64)
    file = ParquetFile(listed, np.cumsum([0, *rows]), row_bytes)
    return Footer(file, schema, features, _digest(listed, groups))


def _digest(listed: ListedFile, groups: list[tuple[int, int]]) -> bytes:
    """Compute what tells two versions of a file apart: its size, row groups, and Parquet footer."""
    digest = hashlib.sha256(f"{listed.size} {groups}".encode())
    if not listed.path.lower().endswith(_ARROW):
        url = listed.url
        with open(listed.path, "rb") if url is None else _UrlFile(url, listed.size) as file:
            file.seek(max(0, listed.size - 8))
            length = int.from_bytes(file.read(4), "little")
            file.seek(max(0, listed.size - 8 - length))
            digest.update(file.read(min(listed.size, length + 8)))
    return digest.digest()


def _features(schema: Any) -> dict[str, Any]:
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return {}
    return features if isinstance(features, dict) else {}


class _Cursor:
    def __init__(
        self, file: ParquetFile, group: int, columns: list[str], rows: int, opened: Any
    ) -> None:
        self.group, self.next, self.opened = group, int(file.starts[group]), opened
        self._batches = opened.iter_batches(
            rows, row_groups=[group], columns=columns, use_threads=False
        )

    def read(self) -> tuple[int, Any]:
        batch = next(self._batches, None)
        if batch is None:
            raise ValueError(f"ends with row {self.next} of the file; the footer says more")
        start, self.next = self.next, self.next + batch.num_rows
        return start, batch


class ParquetRows:
    """Reads rows forwards, by batches of 4 MiB; keeps 24, as threads do not ask in order."""

    def __init__(self, files: Sequence[ParquetFile], columns: Sequence[str]) -> None:
        self.files, self._columns = list(files), list(columns)
        self._lock = threading.Lock()
        self._recent: deque[tuple[int, int, Any]] = deque(maxlen=_KEPT)  # file, first row, batch
        self._cursors: OrderedDict[int, _Cursor] = OrderedDict()
        self._broken: dict[tuple[int, int], tuple[int, str]] = {}  # file, group → row, reason

    def __reduce__(self) -> tuple[object, ...]:
        return ParquetRows, (self.files, self._columns)

    def row(self, file: int, row: int) -> dict[str, Any]:
        with self._lock:
            start, batch = self._batch(file, row)
        return {name: batch.column(name)[row - start] for name in self._columns}

    def _batch(self, file: int, row: int) -> tuple[int, Any]:
        for found, start, batch in self._recent:
            if found == file and start <= row < start + batch.num_rows:
                return start, batch
        group = int(np.searchsorted(self.files[file].starts, row, "right")) - 1
        where = f"{self.files[file].path}: row group {group}"
        broken, reason = self._broken.get((file, group), (row + 1, ""))
        if broken <= row:
            raise DecodeError(f"{where}: {reason}")
        cursor = self._cursor(file, group, row)
        while True:
            try:
                start, batch = cursor.read()
            except Exception as error:  # pyarrow raises whatever its parsers meet
                del self._cursors[file]
                check_of_file(error, where)
                self._broken[file, group] = (cursor.next, str(error))
                raise DecodeError(f"{where}: {error}") from error
            self._recent.append((file, start, batch))
            if row < start + batch.num_rows:
                return start, batch

    def _cursor(self, file: int, group: int, row: int) -> _Cursor:
        """A cursor of a row group that has not passed a row."""
        cursor = self._cursors.pop(file, None)
        if cursor is None or cursor.group != group or cursor.next > row:
            row_bytes = int(self.files[file].row_bytes[group])
            rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(row_bytes, 1)))
            opened = self.files[file].open() if cursor is None else cursor.opened
            cursor = _Cursor(self.files[file], group, self._columns, rows, opened)
        self._cursors[file] = cursor
        if len(self._cursors) > _OPEN:
            self._cursors.popitem(last=False)
        return cursor


class _UrlFile(io.RawIOBase):
    """An object at a URL; each read is a request, tried several times."""

    def __init__(self, url: Url, size: int) -> None:
        self._store, self._size, self._at = stores.open_url(url, [""], [size]), size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._size - self._at)
        length = left if size is None or size < 0 else min(size, left)
        try:
            data = self._store.read(0, self._at, length)
        except ReadError as error:
            raise ReadError(f"{error}; run it again to go on") from error
        self._at += length
        return data
