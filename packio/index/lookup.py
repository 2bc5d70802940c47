"""Single rows of an index, looked up in a microsecond: numbers and keys, checked part by part.

A part is as many rows as have their int64s in one block of the index, so that looking up a row
checks no block that `packio.index.indexfile.Column` would not. Memory views give Python's ints four
times as fast as arrays do. Nothing is copied.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator, Sequence

import numpy as np

from packio.errors import IntegrityError
from packio.index.indexfile import BLOCK, Column, Index

_PART = BLOCK // 8  # rows
_ENCODING, _ERRORS = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()


class _Lookup:
    """Columns of an index that are looked up together."""

    def __init__(self, columns: Sequence[Column], index: Index) -> None:
        self._columns, self._index = list(columns), index
        self._check = index.check_length if index.is_mapped else None
        self._views = [column.unchecked() for column in columns]
        self._is_checked = bytearray(len(index) // _PART + 1)  # 1 for each part that was checked
        if index.length is not None:
            index.length.marks.append(self._is_checked)

    def _check_row(self, row: int) -> None:
        if self._check is not None:
            self._check()
        if not self._is_checked[row // _PART]:
            self._check_part(row // _PART)
            self._is_checked[row // _PART] = 1

    def _check_part(self, part: int) -> None:
        raise NotImplementedError


class NumberColumns(_Lookup):
    """Columns of integers, looked up together: 1.2 µs for eleven, 2.4 µs by `Column.item`."""

    def __call__(self, row: int) -> Iterator[int]:
        """All columns' values of a row, which is in range."""
        self._check_row(row)
        return map(operator.itemgetter(row), self._views)

    def _check_part(self, part: int) -> None:
        self._index.bring(self._columns, np.array([part * _PART]))
        for column in self._columns:
            column.span(part * _PART, min((part + 1) * _PART, len(column)))


class KeyBytes(_Lookup):
    """The keys of an index: 0.5 µs each, 1.2 µs by `Index.key`."""

    def __init__(self, index: Index) -> None:
        super().__init__([index.column("key_offsets"), index.column("key_data")], index)
        self._path = index.path

    def __call__(self, row: int) -> memoryview:
        """The key of a row, which is in range."""
        self._check_row(row)
        starts, data = self._views
        key: memoryview = data[starts[row] : starts[row + 1]]
        return key

    def text(self, row: int) -> str:
        """The same as `os.fsdecode` has it."""
        return str(self(row), _ENCODING, _ERRORS)

    def _check_part(self, part: int) -> None:
        all_starts, data = self._columns
        start = part * _PART
        starts = all_starts.span(start, min(start + _PART + 1, len(all_starts)))
        data.span(int(starts[0]), int(starts[-1]))
        if np.any(np.diff(starts) < 0):
            raise IntegrityError(f"{self._path}: its keys overlap; restore the index or pack again")
