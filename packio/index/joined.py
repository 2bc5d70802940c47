"""Columns of a pack of shards, each of them the columns of its shards, one behind the other."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from packio.errors import IntegrityError
from packio.index import columns
from packio.index.column import Column
from packio.index.sorting import key_order

if TYPE_CHECKING:
    from packio.index.far import Span
    from packio.index.shards import Shards


class JoinedColumn(Column):
    """A column of a pack of shards: the shards' columns, one behind the other."""

    __slots__ = ("_bases", "_dtype", "_edges", "_name", "_shape", "_shards", "_whole")

    def __init__(
        self, shards: Shards, name: str, dtype: np.dtype, tail: tuple[int, ...],
        edges: np.ndarray, bases: np.ndarray | None,
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

    def lacking(self, rows: np.ndarray | None = None) -> list[Span]:
        """Nothing: the index of each shard asks for its own blocks."""
        return []

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Copy out some rows, checked. ``rows`` are within 0..len-1."""
        shard = self._shard_of(rows)
        order = np.argsort(shard, kind="stable")  # the rows of each shard together
        edges = np.flatnonzero(np.diff(shard[order], prepend=-1, append=-1))
        taken = np.empty((len(rows), *self._shape[1:]), self._dtype)
        for begin, end in itertools.pairwise(edges.tolist()):
            mine = order[begin:end]
            number = int(shard[mine[0]])
            if (column := self.local(number)) is None:
                taken[mine] = self.absent(number)
            else:
                taken[mine] = column.take(rows[mine] - self._edges[number])
                if base := self.base(number):
                    taken[mine] += np.asarray(base, self._dtype)
        return taken

    def item(self, row: int) -> int:
        """One value of a column of integers, checked. ``row`` is in range."""
        number = int(np.searchsorted(self._edges, row, "right")) - 1
        if (column := self.local(number)) is None:
            return self.absent(number)
        return column.item(row - int(self._edges[number])) + self.base(number)

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

    def check(self) -> None:
        """Check all bytes, shard by shard.

        Raises:
            IntegrityError: some are damaged.
        """
        for number in range(len(self._shards)):
            if (column := self.local(number)) is not None:
                column.check()

    def _part(self, number: int, start: int, stop: int) -> np.ndarray:
        edge, end = int(self._edges[number]), int(self._edges[number + 1])
        first, last = max(start - edge, 0), min(stop, end) - edge
        if (column := self.local(number)) is None:
            return columns.absent(self._name, self._dtype, self._shape[1:], last - first)
        part = column.span(first, last)
        base = self.base(number)
        return part + np.asarray(base, self._dtype) if base else part

    def _shard_of(self, rows: np.ndarray) -> np.ndarray:
        return np.searchsorted(self._edges, rows, "right") - 1

    def absent(self, number: int) -> int:
        """The value of each sample of a shard that has no such column."""
        return -1 if self._name.endswith("/offset") else 0

    def local(self, number: int) -> Column | None:
        """The column of a shard; None if no sample of the shard has such a value."""
        index = self._shards.index(number)
        return index.column(self._name) if self._name in index else None

    def base(self, number: int) -> int:
        """What is to be added to the values of a shard."""
        return 0 if self._bases is None else int(self._bases[number])


class JoinedOffsets(JoinedColumn):
    """N+1 offsets into another column: the last of a shard is the first of the next."""

    __slots__ = ()

    def __init__(
        self, shards: Shards, name: str, dtype: np.dtype, tail: tuple[int, ...],
        edges: np.ndarray, bases: np.ndarray | None,
    ) -> None:  # fmt: skip
        super().__init__(shards, name, dtype, tail, edges, bases)
        self._shape = (int(edges[-1]) + 1, *tail)

    def absent(self, number: int) -> int:
        """The value of each sample of a shard that has no such column."""
        return self.base(number)

    def item(self, row: int) -> int:
        """One value, checked. ``row`` is in range."""
        return int(self.span(row, row + 1)[0])

    def _shard_of(self, rows: np.ndarray) -> np.ndarray:
        found = super()._shard_of(rows)
        last = int(np.flatnonzero(np.diff(self._edges))[-1]) if self._edges[-1] else 0
        shard: np.ndarray = np.minimum(found, last)  # the entry behind the last sample
        return shard

    def _part(self, number: int, start: int, stop: int) -> np.ndarray:
        edge, end = int(self._edges[number]), int(self._edges[number + 1])
        is_last = stop > end and end == int(self._edges[-1])
        first, last = max(start - edge, 0), min(stop, end + 1 if is_last else end) - edge
        if (column := self.local(number)) is None:
            part = np.zeros(last - first, self._dtype)
        else:
            part = column.span(first, last)
        shifted: np.ndarray = part + np.asarray(self.base(number), self._dtype)
        return shifted


class JoinedKeyOrder(JoinedColumn):
    """Rows in the order of their keys, sorted when they are first asked for."""

    __slots__ = ()

    def array(self) -> np.ndarray:
        """All rows, in the order of their keys."""
        if self._whole is None:
            parts = [self._shards.index(number) for number in range(len(self._shards))]
            data = np.concatenate([part.column("key_data").array() for part in parts])
            lengths = [np.diff(part.column("key_offsets").array()) for part in parts]
            starts = np.zeros(len(self) + 1, np.int64)
            np.cumsum(np.concatenate(lengths), out=starts[1:])
            self._whole, _ = key_order(data, starts)
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
