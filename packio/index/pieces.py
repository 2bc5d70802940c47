"""Columns that are made piece by piece while they are written, so that none is held whole."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import google_crc32c
import numpy as np

from packio.index.column import BLOCK

_ROWS = 1 << 17  # of a piece that is computed


class Pieces:
    """A column in pieces along the first axis, made anew each time they are gone through."""

    def __init__(
        self, dtype: np.dtype, shape: tuple[int, ...], made: Callable[[], Iterable[np.ndarray]]
    ) -> None:
        self.dtype: np.dtype = dtype
        self.shape: tuple[int, ...] = shape
        self._made = made

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole column."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __iter__(self) -> Iterator[np.ndarray]:
        for piece in self._made():
            yield np.ascontiguousarray(piece, self.dtype)

    def array(self) -> np.ndarray:
        """The whole column."""
        whole = np.empty(self.shape, self.dtype)
        first = 0
        for piece in self:
            whole[first : first + len(piece)] = piece
            first += len(piece)
        return whole


Content = np.ndarray | Pieces  # of a column that is written


def of(column: Content) -> Pieces:
    """A column as pieces; an array is one."""
    if isinstance(column, Pieces):
        return column
    whole = np.ascontiguousarray(column)
    return Pieces(whole.dtype, whole.shape, lambda: (whole,))


def one_behind_the_other(parts: Sequence[np.ndarray], added: Sequence[int] | None = None) -> Pieces:
    """Arrays as one column; ``added`` to the items of each."""
    shape = (sum(map(len, parts)), *parts[0].shape[1:])
    bases = added or [0] * len(parts)

    def made() -> Iterator[np.ndarray]:
        for part, base in zip(parts, bases, strict=True):
            if not base:
                yield part
                continue
            for first in range(0, len(part), _ROWS):
                yield part[first : first + _ROWS] + part.dtype.type(base)

    return Pieces(np.result_type(*parts), shape, made)


def offsets(parts: Sequence[np.ndarray]) -> Pieces:
    """N+1 offsets of each of several columns as the offsets of the columns as one."""
    ends = itertools.accumulate((int(part[-1]) for part in parts), initial=0)
    rest = one_behind_the_other([part[1:] for part in parts], list(ends)[:-1])

    def made() -> Iterator[np.ndarray]:
        yield np.zeros(1, np.int64)
        yield from rest

    return Pieces(np.dtype(np.int64), (len(rest) + 1,), made)


def checked_bytes(
    pieces: Iterable[np.ndarray], write: Callable[[memoryview], object]
) -> Iterator[int]:
    """Write pieces; yield the CRC32C of each 1 MiB of their bytes."""
    crc = filled = 0
    for piece in pieces:
        data = piece.reshape(-1).view(np.uint8)
        if data.size:
            write(data.data)
        while data.size:
            part = data[: BLOCK - filled]
            crc, filled, data = (
                google_crc32c.extend(crc, part),
                filled + len(part),
                data[len(part) :],
            )
            if filled == BLOCK:
                yield crc
                crc = filled = 0
    if filled:
        yield crc
