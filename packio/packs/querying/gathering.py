"""Columns of some rows of an index, gathered piece by piece: the rows ascend, and none is twice."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from packio.errors import IntegrityError
from packio.index.columns import RAGGED
from packio.index.indexfile import Index
from packio.index.pieces import Pieces

_MOST = 1 << 17  # rows of a piece
_SPAN = 1 << 18  # rows of the index that the rows of a piece are among


class Gathered:
    """Some rows of an index.

    Args:
        index: The index.
        positions: (n,) int64 rows, ascending.
    """

    def __init__(self, index: Index, positions: np.ndarray) -> None:
        self._index = index
        self.positions: np.ndarray = positions

    def column(self, name: str) -> Pieces:
        """A column with a row for each sample."""
        column = self._index.column(name)

        def made() -> Iterator[np.ndarray]:
            for rows in self._groups():
                first = int(rows[0])
                yield column.span(first, int(rows[-1]) + 1)[rows - first]

        return Pieces(column.dtype, (len(self.positions), *column.shape[1:]), made)

    def offsets(self, name: str) -> Pieces:
        """The n+1 offsets of values that `data` gathers."""

        def made() -> Iterator[np.ndarray]:
            end = 0
            yield np.zeros(1, np.int64)
            for _, lengths in self._lengths(name):
                ends = np.cumsum(lengths) + end
                end = int(ends[-1])
                yield ends

        return Pieces(np.dtype(np.int64), (len(self.positions) + 1,), made)

    def data(self, name: str) -> Pieces:
        """A column of values of different lengths, end to end, as ``key_data``.

        Args:
            name: Of the column, or of one beside it, as ``boxes/labels``.
        """
        offsets = next(
            key for key, value in RAGGED.items() if value == name.partition("/")[0]
        )  # fmt: skip
        column = self._index.column(name)

        def made() -> Iterator[np.ndarray]:
            for starts, lengths in self._lengths(offsets):
                if not (total := int(lengths.sum())):
                    continue
                first, last = int(starts[0]), int(starts[-1] + lengths[-1])
                ends = np.cumsum(lengths)
                places = np.repeat(starts - first - ends + lengths, lengths) + np.arange(total)
                yield column.span(first, last)[places]

        count = sum(int(lengths.sum()) for _, lengths in self._lengths(offsets))
        return Pieces(column.dtype, (count, *column.shape[1:]), made)

    def _groups(self) -> Iterator[np.ndarray]:
        """The rows, in groups that lie close together."""
        start, rows = 0, self.positions
        while start < len(rows):
            near = int(np.searchsorted(rows, rows[start] + _SPAN))
            stop = min(start + _MOST, near)
            yield rows[start:stop]
            start = stop

    def _lengths(self, name: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Where the values of each group of rows begin, and how long they are."""
        column = self._index.column(name)
        for rows in self._groups():
            first = int(rows[0])
            ends = column.span(first, int(rows[-1]) + 2)
            if (ends[1:] < ends[:-1]).any():
                raise IntegrityError(
                    f"{self._index.path}: column {name} does not ascend; restore the index or "
                    "pack again"
                )
            yield ends[rows - first], ends[rows - first + 1] - ends[rows - first]
