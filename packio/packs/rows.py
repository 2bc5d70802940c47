"""Rows: what the index says of one value of one named field, and of the values of a batch."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from packio.errors import IntegrityError
from packio.images import encodings
from packio.index.indexfile import Index, NumberColumns
from packio.sample.fields import PIXELS


class Row(NamedTuple):
    """What the index says of one value: the image of a sample, or another named field of it."""

    position: int  # of the sample in the pack
    file: int
    offset: int  # bytes; -1: the sample has no such field
    length: int  # bytes
    crc32c: int
    height: int  # pixels, as stored; 0 where the value is no picture
    width: int  # pixels, as stored
    channels: int
    orientation: int  # 1..8
    flags: int  # bits of packio.index.indexfile
    encoding: str
    dtype: str


FEW = 4  # rows: fewer are looked up one by one, which takes less time than columns
_NAMES = Row._fields[1:]
_NEEDED = ("file", "offset", "length", "crc32c")
_ABSENT = [1 if name == "orientation" else 0 for name in _NAMES]  # where there is no column
_new_row = functools.partial(tuple.__new__, Row)  # of an iterable: a third of the time of _make


class RowList(list[Row]):
    """What the index says of some values: a row for each, and the numbers of all in columns.

    Columns, (N,) integers by name, are given as far as they are at hand.
    """

    def __init__(
        self, rows: Iterable[Row], columns: Mapping[str, np.ndarray] | None = None
    ) -> None:
        super().__init__(rows)
        self._columns = columns or {}

    def column(self, name: str) -> np.ndarray:
        """One number of each row, (N,) int64."""
        if name in self._columns:
            return self._columns[name].astype(np.int64)
        at = Row._fields.index(name)
        return np.array([row[at] for row in self], np.int64)

    def file_order(self) -> list[int]:
        """Positions in the list by file and offset: the order to read the values in."""
        if len(self) < FEW:
            return sorted(range(len(self)), key=lambda i: self[i][1:3])  # file, offset
        order: list[int] = np.lexsort((self.column("offset"), self.column("file"))).tolist()
        return order


class RowTable:
    """The rows of one named field, looked up by the positions of their samples."""

    def __init__(self, index: Index, name: str) -> None:
        self._where = f"{index.path}, field {name}"
        found = {n: index.column(f"{name}/{n}") for n in _NAMES if f"{name}/{n}" in index}
        needed = (*_NEEDED, "encoding") if index.fields[name] in PIXELS else _NEEDED
        if not found.keys() >= set(needed) or {len(c) for c in found.values()} != {len(index)}:
            raise IntegrityError(f"{self._where}: columns are missing, or of another length")
        self._columns, self._index = found, index
        self.numbers: NumberColumns = NumberColumns(list(found.values()), index)
        self._at = None if len(found) == len(_NAMES) else [_NAMES.index(n) for n in found]

    def row(self, position: int) -> Row:
        """The row of one sample, which is in range."""
        *numbers, encoding, dtype = self._all(position)
        return _new_row((position, *numbers, *self.names(encoding, dtype)))

    def _all(self, position: int) -> Iterable[int]:
        """The numbers of a row, in the order of the names."""
        numbers = self.numbers(position)
        if self._at is None:
            return numbers
        every = _ABSENT.copy()
        for at, number in zip(self._at, numbers, strict=True):
            every[at] = number
        return every

    def rows(self, positions: np.ndarray) -> RowList:
        """The rows of some samples, which are in range."""
        if len(positions) < FEW:
            return RowList(map(self.row, positions.tolist()))
        self._index.check_length()
        self._index.bring(self._columns.values(), positions)
        columns = [
            self._columns[name].take(positions) if name in self._columns
            else np.full(len(positions), absent)
            for name, absent in zip(_NAMES, _ABSENT, strict=True)
        ]  # fmt: skip
        *numbers, encoding, dtype = (column.tolist() for column in columns)
        known = {pair: self.names(*pair) for pair in {*zip(encoding, dtype, strict=True)}}
        names = [known[pair] for pair in zip(encoding, dtype, strict=True)]
        each = zip(positions.tolist(), *numbers, *zip(*names, strict=True), strict=True)
        return RowList(map(_new_row, each), dict(zip(_NAMES[:-2], columns, strict=False)))

    def names(self, encoding: int, dtype: int) -> tuple[str, str]:
        """Names of the codes of an encoding and of a dtype."""
        if dtype >= len(encodings.DTYPES):  # an IndexError would end a for loop
            raise IntegrityError(f"{self._where}: column dtype has the unknown code {dtype}")
        return encodings.NAMES.get(encoding, "unknown"), encodings.DTYPES[dtype]
