"""The index of a pack of shards: a small manifest, and one index file for each shard.

The manifest is an index file, too (`packio.index.indexfile`). Instead of columns with a row a
sample it has the table of all files, and columns with a row a shard:

* ``shard_samples`` int64: samples of the shard;
* ``shard_first_file`` int64: the number that the shard's file 0 has in the table of files;
* ``shard_digest`` (S, 32) uint8: the digest of the shard's index, `Index.digest`;
* ``shard_index_data`` uint8, ``shard_index_offsets`` int64: paths of the shards' indexes, relative
  to the manifest;
* ``shard_lengths`` (S, C) int64: lengths of the C columns that the metadata list as ``columns``,
  each as [name, dtype, further axes].

`joined` makes of them the columns of the whole pack. A shard's index is mapped when a row of it is
first touched, so that a pack of any size opens at once.
"""

from __future__ import annotations

import bisect
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from packio.errors import IntegrityError, NotAPackError
from packio.index import columns
from packio.index.column import Column
from packio.index.columns import RAGGED

if TYPE_CHECKING:
    from packio.index.indexfile import Index

MARK = "shard_samples"  # the column that tells a manifest from the index of one shard
_PER_SHARD = {
    MARK: "<i8", "shard_first_file": "<i8", "shard_digest": "u1", "shard_index_offsets": "<i8",
    "shard_index_data": "u1", "shard_lengths": "<i8",
}  # fmt: skip


class Shards:
    """The indexes of the shards of a pack, opened when they are needed.

    Args:
        table: The manifest's own columns.
        metadata: Of the manifest.
        where: What an error message names.
        opened: Opens the index of a shard by its path, relative to the manifest.

    Raises:
        NotAPackError: the manifest does not add up.
    """

    def __init__(
        self, table: Mapping[str, Column], metadata: Mapping[str, Any], where: str,
        opened: Callable[[str], Index],
    ) -> None:  # fmt: skip
        self.where, self._opened = where, opened
        _check(table, metadata, where)
        arrays = {name: table[name].array() for name in _PER_SHARD}
        data, starts = arrays["shard_index_data"].tobytes(), arrays["shard_index_offsets"].tolist()
        self.paths = [os.fsdecode(data[a:b]) for a, b in itertools.pairwise(starts)]
        for path in self.paths:
            if not path or path.startswith("/") or ".." in path.split("/") or "\0" in path:
                raise NotAPackError(f"{where}: names {path!r}, which is no index of a shard")
        self.samples = columns.offsets(arrays[MARK].tolist())
        self._starts = self.samples[:-1].tolist()
        self.first_files = arrays["shard_first_file"].tolist()
        self._digests = [bytes(row).hex() for row in arrays["shard_digest"]]
        self._kinds = {name: (np.dtype(code), tuple(tail)) for name, code, *tail in
                       metadata["columns"]}  # fmt: skip
        lengths = arrays["shard_lengths"]
        self._edges = {
            name: columns.offsets(lengths[:, i].tolist()) for i, name in enumerate(self._kinds)
        }
        self._indexes: list[Index | None] = [None] * len(self.paths)

    def __len__(self) -> int:
        return len(self.paths)

    def index(self, number: int) -> Index:
        """The index of a shard.

        Raises:
            IntegrityError: the file is not the one that the manifest was made with, or it was
                truncated while it was open.
        """
        found = self._indexes[number]
        if found is None:  # two threads may open the same one
            found = self._opened(self.paths[number])
            if found.digest != self._digests[number]:
                raise IntegrityError(
                    f"{found.path}: not the index that {self.where} was made with; restore it, "
                    "or pack again"
                )
            self._indexes[number] = found
        elif found.length is not None:
            found.length.check()
        return found

    def check_length(self, row: int) -> None:
        """Check that the index that has a row was not truncated while it was open."""
        found = self._indexes[bisect.bisect_right(self._starts, row) - 1]
        if found is not None and found.length is not None:
            found.length.check()

    def columns(self) -> dict[str, Column]:
        """The columns of the whole pack."""
        made: dict[str, Column] = {}
        for name, (dtype, tail) in self._kinds.items():
            edges = self._edges[name]
            bases: Sequence[int] | np.ndarray = [0] * len(self)
            if name.endswith("/file"):
                bases = self.first_files
            if name in RAGGED:
                bases, edges = self._edges[RAGGED[name]], self.samples
                made[name] = _Offsets(self, name, dtype, tail, edges, bases)
            elif name == "key_order":
                made[name] = _KeyOrder(self, name, np.dtype(np.int64), tail, edges, bases)
            else:
                made[name] = JoinedColumn(self, name, dtype, tail, edges, bases)
        return made

    def find(self, key: bytes) -> int | None:
        """Row of the sample with this key; None if there is none."""
        for number in range(len(self)):
            shard = self.index(number)
            rank = shard.rank(key)
            if rank < len(shard):
                row = shard.column("key_order").item(rank)
                if shard.key(row) == key:
                    return int(self.samples[number]) + row
        return None


class JoinedColumn(Column):
    """A column of a pack of shards: the shards' columns, one behind the other."""

    __slots__ = ("_bases", "_dtype", "_edges", "_name", "_shape", "_shards", "_whole")

    def __init__(
        self, shards: Shards, name: str, dtype: np.dtype, tail: tuple[int, ...],
        edges: np.ndarray, bases: Sequence[int] | np.ndarray,
    ) -> None:  # fmt: skip
        self._shards, self._name, self._dtype = shards, name, dtype
        self._edges, self._bases = edges, bases
        self._shape = (int(edges[-1]), *tail)
        self._whole: np.ndarray | None = None

    def __len__(self) -> int:
        return self._shape[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the column, samples first."""
        return self._shape

    @property
    def dtype(self) -> np.dtype:
        """Type of the column's items."""
        return self._dtype

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Copy out some rows, checked. ``rows`` are within 0..len-1."""
        shard = self._shard_of(rows)
        taken = np.empty((len(rows), *self._shape[1:]), self._dtype)
        for number in np.unique(shard).tolist():
            mine = shard == number
            local = rows[mine] - self._edges[number]
            if (column := self._local(number)) is None:
                taken[mine] = -1 if self._name.endswith("/offset") else 0
            else:
                taken[mine] = column.take(local) + self._base(number)
        return taken

    def item(self, row: int) -> int:
        """One value of a column of integers, checked. ``row`` is in range."""
        number = int(self._shard_of(np.array([row]))[0])
        return int(self._part(number, row, row + 1)[0])

    def span(self, start: int, stop: int) -> np.ndarray:
        """The rows start..stop-1, checked.

        Raises:
            IntegrityError: the bytes are damaged, or there are no such rows.
        """
        self._check_span(start, stop)
        if start == stop:
            return np.empty((0, *self._shape[1:]), self._dtype)
        first, last = self._shard_of(np.array([start, stop - 1])).tolist()
        parts = [self._part(number, start, stop) for number in range(first, last + 1)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _check_span(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= len(self):
            raise IntegrityError(
                f"{self._shards.where}, column {self._name}: rows {start}..{stop} are asked for, "
                f"there are {len(self)}; restore the index or pack again"
            )

    def array(self) -> np.ndarray:
        """The whole column, checked, read-only; kept once it was asked for."""
        if self._whole is None:
            whole = self.span(0, len(self))
            whole.flags.writeable = False
            self._whole = whole
        return self._whole

    def _part(self, number: int, start: int, stop: int) -> np.ndarray:
        edge, end = int(self._edges[number]), int(self._edges[number + 1])
        first, last = max(start - edge, 0), min(stop, end) - edge
        if (column := self._local(number)) is None:
            return columns.absent(self._name, self._dtype, self._shape[1:], last - first)
        part = column.span(first, last)
        base = self._base(number)
        return part + np.asarray(base, self._dtype) if base else part

    def _shard_of(self, rows: np.ndarray) -> np.ndarray:
        return np.searchsorted(self._edges, rows, "right") - 1

    def _local(self, number: int) -> Column | None:
        """The column of a shard; None if no sample of the shard has such a value."""
        index = self._shards.index(number)
        return index.column(self._name) if self._name in index else None

    def _base(self, number: int) -> int:
        return int(self._bases[number])


class _Offsets(JoinedColumn):
    """N+1 offsets into another column: the last of a shard is the first of the next."""

    __slots__ = ()

    def __init__(
        self, shards: Shards, name: str, dtype: np.dtype, tail: tuple[int, ...],
        edges: np.ndarray, bases: Sequence[int] | np.ndarray,
    ) -> None:  # fmt: skip
        super().__init__(shards, name, dtype, tail, edges, bases)
        self._shape = (int(edges[-1]) + 1, *tail)

    def _shard_of(self, rows: np.ndarray) -> np.ndarray:
        found = super()._shard_of(rows)
        last = int(np.flatnonzero(np.diff(self._edges))[-1]) if self._edges[-1] else 0
        shard: np.ndarray = np.minimum(found, last)  # the entry behind the last sample
        return shard

    def _part(self, number: int, start: int, stop: int) -> np.ndarray:
        edge, end = int(self._edges[number]), int(self._edges[number + 1])
        is_last = stop > end and end == int(self._edges[-1])
        first, last = max(start - edge, 0), min(stop, end + 1 if is_last else end) - edge
        if (column := self._local(number)) is None:
            part = np.zeros(last - first, self._dtype)
        else:
            part = column.span(first, last)
        shifted: np.ndarray = part + np.asarray(self._base(number), self._dtype)
        return shifted


class _KeyOrder(JoinedColumn):
    """Rows in the order of their keys, sorted when they are first asked for."""

    __slots__ = ()

    def array(self) -> np.ndarray:
        """All rows, in the order of their keys."""
        if self._whole is None:
            keys: list[bytes] = []
            for number in range(len(self._shards)):
                index = self._shards.index(number)
                data = index.column("key_data").array().tobytes()
                starts = index.column("key_offsets").array().tolist()
                keys += [data[a:b] for a, b in itertools.pairwise(starts)]
            order = sorted(range(len(keys)), key=keys.__getitem__)
            self._whole = np.array(order, np.int64)
        whole: np.ndarray = self._whole
        return whole

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Copy out some rows."""
        taken: np.ndarray = self.array()[rows]
        return taken

    def item(self, row: int) -> int:
        """One row."""
        return int(self.array()[row])

    def span(self, start: int, stop: int) -> np.ndarray:
        """The rows start..stop-1."""
        self._check_span(start, stop)
        rows: np.ndarray = self.array()[start:stop]
        return rows


def table(
    indexes: Sequence[Index], paths: Sequence[str], first_files: Sequence[int]
) -> tuple[dict[str, np.ndarray], list[list[Any]]]:
    """The manifest's columns of shards, and its metadata ``columns``.

    Args:
        indexes: Of the shards, all with the same columns.
        paths: Of the shards' indexes, relative to the manifest.
        first_files: The number of each shard's file 0 in the manifest's table of files.
    """
    kinds: dict[str, list[Any]] = {}
    for index in indexes:
        for name in index.column_names:
            if not name.startswith("file_"):
                column = index.column(name)
                kinds[name] = [name, column.dtype.str, *column.shape[1:]]
    names = sorted(kinds)
    data, starts = columns.ragged([os.fsencode(path) for path in paths])
    made: dict[str, np.ndarray] = {
        MARK: np.array([len(index) for index in indexes], np.int64),
        "shard_first_file": np.array(first_files, np.int64),
        "shard_digest": np.frombuffer(
            b"".join(bytes.fromhex(index.digest) for index in indexes), np.uint8
        ).reshape(-1, 32),
        "shard_index_data": data,
        "shard_index_offsets": starts,
        "shard_lengths": np.array(
            [[_length(index, name) for name in names] for index in indexes], np.int64
        ).reshape(len(indexes), len(names)),
    }
    return made, [kinds[name] for name in names]


def _length(index: Index, name: str) -> int:
    if name in index:
        return len(index.column(name))
    return len(columns.absent(name, np.dtype(np.int64), (), len(index)))


def _check(table: Mapping[str, Column], metadata: Mapping[str, Any], where: str) -> None:
    missing = [name for name in _PER_SHARD if name not in table]
    if missing:
        raise NotAPackError(f"{where}: columns missing: {', '.join(missing)}")
    count = len(table[MARK])
    listed = metadata.get("columns")
    if not isinstance(listed, list) or not all(
        isinstance(entry, list) and len(entry) >= 2 and isinstance(entry[0], str)
        and entry[1] in _KNOWN and all(type(n) is int and n >= 0 for n in entry[2:])
        for entry in listed
    ):  # fmt: skip
        raise NotAPackError(f"{where}: its list of columns does not parse")
    expected = {
        MARK: (count,), "shard_first_file": (count,), "shard_digest": (count, 32),
        "shard_index_offsets": (count + 1,), "shard_lengths": (count, len(listed)),
    }  # fmt: skip
    for name, shape in expected.items():
        if table[name].shape != shape or table[name].dtype.str.lstrip("|") != _PER_SHARD[name]:
            raise NotAPackError(f"{where}: column {name} is {table[name].dtype} "
                                f"{table[name].shape}, expected {shape}")  # fmt: skip
    for name in (MARK, "shard_lengths", "shard_first_file"):
        if count and int(table[name].array().min(initial=0)) < 0:
            raise NotAPackError(f"{where}: column {name} has a negative number")


_KNOWN = {"|u1", "<u2", "<u4", "<i8", "<f4"}
