"""The index file: one row a sample, in columns, memory-mapped and checked as it is read.

An index is a safetensors file (https://github.com/huggingface/safetensors, "Format"): a uint64
header size, a JSON header that names the columns with their dtype, shape and byte range, then the
columns, little-endian, without gaps. Widest items come first, so that every column is aligned.
Any safetensors reader opens it. The header's ``__metadata__`` has one key, ``packio``: canonical
JSON (sorted keys, no spaces, ASCII).

The column ``checksums`` (uint32) holds CRC32C values: of the header (its size field included), then
of each 1 MiB of every other column, the columns in file order. `Index` checks the header when it
opens and each block when it is first touched. A SHA-256 over header and checksums identifies the
index (``Index.digest``).
"""

from __future__ import annotations

import hashlib
import itertools
import operator
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np

from packio.errors import IntegrityError, KeyNotFoundError, PackioError
from packio.index import layout
from packio.index.column import (
    BLOCK,
    Column,
    Content,
    Far,
    crc32c,
    crc32c_of,
    to_pieces,
    write_checked,
)
from packio.index.columns import OF_FILES, RAGGED, split_values
from packio.index.layout import OF_PIXELS, OF_VALUES, VERSION, canonical_json, check_shapes
from packio.system import files
from packio.system.locks import cached_property
from packio.system.mapping import Length

__all__ = [
    "BLOCK", "OF_PIXELS", "OF_VALUES", "VERSION", "Column", "Index", "Keys", "canonical_json",
    "crc32c", "crc32c_of", "write",
]  # fmt: skip

INDEX_NAME = "index.packio"  # within a directory pack
INDEX_SUFFIX = ".packio"  # of a file pack's index
APPENDING_SUFFIX = ".packio-append"  # of what is beside a pack while it grows; readers go on
UNFINISHED_SUFFIX = ".packio-tmp"  # of what is beside a pack while it is built or uploaded

_KEYS = 1 << 16  # that are read at a time where all are read

SPLIT_RECORD, PROGRESSIVE = 2, 4  # bits of the column "flags"; 1 is free


class Index:
    """An index file, opened; ``copy``, a copy of it on a disk of this machine, is read instead."""

    def __init__(
        self, path: str | os.PathLike[str], copy: Path | None = None,
        *, is_one_of_many: bool = False, far: Far | None = None,
    ) -> None:  # fmt: skip
        self.path: Path = path if isinstance(path, Path) else Path(path)
        self._far = far
        self.length: Length | None  # of what is mapped, and could be truncated while it is read
        self._map, self.length = (far.content, far.length) if far is not None else layout.content(
            copy or self.path, is_one_of_many=is_one_of_many
        )  # fmt: skip
        header, self._columns, digest = layout.read_columns(self._map, self.path, self.length, far)
        self.digest: str = digest
        self.metadata: dict[str, Any] = layout.parse_metadata(header, self.path)
        check_shapes(self._columns, self.path)

    def bring(self, columns: Iterable[Column], rows: np.ndarray | None = None) -> None:
        """Have what columns say of some rows, None: all, come from afar at once, if it is far."""
        if self._far is not None and (rows is None or len(rows)):
            self._far.bring([span for column in columns for span in column.lacking(rows)])

    def bring_ragged(self, name: str, rows: np.ndarray) -> None:
        """Do as `bring` for values of different lengths."""
        if self._far is None or not len(rows) or name not in self._columns:
            return
        starts = self._columns[name]
        first, last = starts.take(np.concatenate((rows, rows + 1))).reshape(2, -1)
        there = last > first
        ends = np.concatenate((first[there], last[there] - 1))
        data = RAGGED[name]
        self.bring([c for n, c in self._columns.items() if n.split("/")[0] == data], ends)

    @property
    def nbytes(self) -> int:
        """Bytes of this file."""
        return len(self._map)

    @property
    def is_far(self) -> bool:
        """Whether blocks of the index come from afar when they are needed."""
        return self._far is not None

    def copy_to(self, path: Path) -> None:
        """Write all bytes to another file, checked."""
        self.check()
        path.write_bytes(self._map)

    def check_length(self) -> None:
        """Check that the file that is mapped has not been truncated: 1.5 µs."""
        if self.length is not None:
            self.length.check()

    def check(self) -> None:
        """Check every byte."""
        for column in self._columns.values():
            column.array()

    def __len__(self) -> int:
        return len(self._columns["image/offset"])

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def column(self, name: str) -> Column:
        """A column by name."""
        return self._columns[name]

    @cached_property
    def fields(self) -> dict[str, str]:
        """Kind of each named field, ``"image"`` first."""
        return {"image": "image", **self.metadata.get("fields", {})}

    @cached_property
    def box_columns(self) -> tuple[str, ...]:
        """Names of what each box has beside its edges, as ``"labels"``."""
        return tuple(n.partition("/")[2] for n in self._columns if n.startswith("boxes/"))

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of all columns, in file order."""
        return tuple(self._columns)

    def key(self, row: int) -> bytes:
        """A sample's key; rows are 0..len-1."""
        start, stop = self._columns["key_offsets"].span(row, row + 2).tolist()
        return self._columns["key_data"].span(start, stop).tobytes()

    def every_key(self) -> Iterator[bytes]:
        """All keys in the order of the rows."""
        for start in range(0, len(self), _KEYS):
            stop = min(start + _KEYS, len(self))
            starts = self.offsets("key_offsets", start, stop)
            data = self._columns["key_data"].span(int(starts[0]), int(starts[-1]))
            yield from split_values(data, starts - starts[0])

    def offsets(self, name: str, start: int, stop: int) -> np.ndarray:
        """Where the values of rows start..stop-1 begin, and where the last ends; they ascend."""
        ends = self._columns[name].span(start, stop + 1)
        if (ends[1:] < ends[:-1]).any():
            raise IntegrityError(
                f"{self.path}: column {name} does not ascend; restore the index or pack again"
            )
        return ends

    def find(self, key: bytes) -> int:
        """Row of the sample with this key, by bisection (20 probes among a million)."""
        self.check_length()
        if (rank := self.rank(key)) < len(self):
            row = self._columns["key_order"].item(rank)
            if self.key(row) == key:
                return row
        raise KeyNotFoundError(f"{self.path}: no sample has the key {os.fsdecode(key)!r}")

    def rank(self, key: bytes) -> int:
        """How many keys come before this one in bytewise order: its position in ``key_order``."""
        order = self._columns["key_order"]
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self.key(order.item(middle)) < key:
                low = middle + 1
            else:
                high = middle
        return low

    def rows_from(self, key: bytes) -> Iterator[int]:
        """The rows whose keys are this one or come after it, in the order of their keys."""
        order = self._columns["key_order"]
        for rank in range(self.rank(key), len(self)):
            yield order.item(rank)

    def files(self) -> list[tuple[str, int, bytes]]:
        """All files of the pack: path relative to the index, size in bytes, SHA-256."""
        self.bring(self._columns[name] for name in OF_FILES)
        offsets = self._columns["file_path_offsets"].array().tolist()
        names = self._columns["file_path_data"]
        paths = [names.span(*pair).tobytes() for pair in itertools.pairwise(offsets)]
        for path in paths:
            if path[:1] in (b"", b"/") or b".." in path.split(b"/") or b"\0" in path:
                raise IntegrityError(f"{self.path}: names {path!r}, which is no file of a pack")
        sizes = self._columns["file_bytes"].array().tolist()
        digests = map(bytes, self._columns["file_digest"].array())
        return list(zip(map(os.fsdecode, paths), sizes, digests, strict=True))


class Keys(Sequence[str]):
    """The keys of an index in the order of its rows, decoded one by one as they are asked for."""

    def __init__(self, index: Index) -> None:
        self._index = index

    def __len__(self) -> int:
        return len(self._index)

    def __iter__(self) -> Iterator[str]:
        return map(os.fsdecode, self._index.every_key())

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        if isinstance(row, slice):
            return [self[i] for i in range(*row.indices(len(self)))]
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)} keys")
        return os.fsdecode(self._index.key(row % len(self)))


_CHECKED = 64 << 20  # bytes of an index that are checked in about 10 ms


def is_whole(path: Path) -> bool:
    """Whether a file is an index, and as far as a short look tells, undamaged."""
    try:
        index = Index(path)
        if index.nbytes <= _CHECKED:
            index.check()
    except (PackioError, OSError):
        return False
    return True


def write(
    path: str | os.PathLike[str], columns: Mapping[str, Content], metadata: Mapping[str, Any]
) -> str:
    """Write an index file in one step, and return its digest."""
    named = {name: to_pieces(column) for name, column in columns.items()}
    order = sorted(named, key=lambda n: (-named[n].dtype.itemsize, n))
    blocks = sum(-(-named[n].nbytes // BLOCK) for n in order)
    checksums = np.zeros(1 + blocks, "<u4")
    wide = sum(named[n].dtype.itemsize >= 4 for n in order)  # checksums follow the last such column
    listed: list[tuple[str, Content]] = [(name, named[name]) for name in order]
    listed.insert(wide, ("checksums", checksums))
    header = layout.encode_header(listed, metadata)
    crcs = [crc32c(header)]
    with files.replacing(Path(path)) as file:
        file.write(header)
        for name in order[:wide]:
            crcs += write_checked(named[name], file.write)
        place = file.tell()
        file.write(checksums.tobytes())  # known when all columns are written
        for name in order[wide:]:
            crcs += write_checked(named[name], file.write)
        checksums[:] = crcs
        file.seek(place)
        file.write(checksums.tobytes())
    return hashlib.sha256(header + checksums.tobytes()).hexdigest()


# Single rows of an index, looked up in a microsecond, are checked part by part. A part is as many
# rows as have their int64s in one block, so that looking up a row checks no block that `Column`
# would not. Memory views give Python's ints four times as fast as arrays do.
_PART = BLOCK // 8  # rows


class NumberColumns:
    """Columns of integers, looked up together: 1.2 µs for eleven, 2.4 µs by `Column.item`."""

    def __init__(self, columns: Sequence[Column], index: Index) -> None:
        self._columns, self._index = list(columns), index
        self._check = index.check_length if index.length is not None else None
        self._views = [column.view_unchecked() for column in columns]
        self._is_checked = bytearray(len(index) // _PART + 1)  # 1 for each part that was checked
        if index.length is not None:
            index.length.marks.append(self._is_checked)

    def __call__(self, row: int) -> Iterator[int]:
        """All columns' values of a row, which is in range."""
        if self._check is not None:
            self._check()
        if not self._is_checked[row // _PART]:
            self._check_part(row // _PART)
        return map(operator.itemgetter(row), self._views)

    def _check_part(self, part: int) -> None:
        self._index.bring(self._columns, np.array([part * _PART]))
        for column in self._columns:
            column.span(part * _PART, min((part + 1) * _PART, len(column)))
        self._is_checked[part] = 1
