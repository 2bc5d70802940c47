"""A column of an index, the checksums that guard it, and columns that are written in pieces.

Source of CRC32C (Castagnoli): RFC 3720, section B.4.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import google_crc32c
import numpy as np
import numpy.ma  # np.unique imports it late: a child that is forked meanwhile would hang

from packio.errors import IntegrityError
from packio.system.mapping import Length

BLOCK = 1 << 20  # bytes that one checksum covers
_CHUNK = 1 << 20  # rows
_ROWS = 1 << 17  # of a piece that is computed


def crc32c(data: bytes | np.ndarray) -> int:
    """CRC32C of bytes, or of a contiguous read-only array's bytes (4 µs for 110 KB)."""
    return google_crc32c.value(data)  # type: ignore[no-any-return]  # untyped library


def crc32c_of(pieces: Iterable[bytes]) -> int:
    """CRC32C of pieces of bytes, one behind the other."""
    crc: int = functools.reduce(google_crc32c.extend, pieces, 0)
    return crc


class Span(NamedTuple):
    """A block of a column: its number among all blocks of the index file, and its bytes there."""

    number: int
    start: int
    stop: int


class Far(Protocol):
    """The bytes of an index that is far away: a block comes when a column first checks it.

    `content` is as long as the index, with holes; `length` guards the file behind it. Who fetches
    the blocks, and where the file lies, is the business of `packio.storage.blocks`.
    """

    content: memoryview
    length: Length

    def bring(self, spans: Sequence[Span], *, anew: bool = False) -> Sequence[Span]:
        """Fetch blocks that are not there yet, or whose bytes are wrong (``anew``), all at once.

        Returns those whose bytes are wrong at the service, too.
        """


class Place(NamedTuple):
    """Where the blocks of one column are: the number of its first block, its start in the file."""

    far: Far
    number: int
    start: int


class Column:
    """One column: an array whose bytes are checked when they are first touched."""

    __slots__ = (
        "_array", "_checked", "_crcs", "_length", "_place", "_row_bytes", "_where", "dtype",
        "shape",
    )  # fmt: skip

    def __init__(
        self, array: np.ndarray, crcs: np.ndarray, where: str, length: Length | None = None,
        place: Place | None = None,
    ) -> None:  # fmt: skip
        self._array, self._crcs, self._where, self._length = array, crcs, where, length
        self._place = place
        self.shape: tuple[int, ...] = array.shape  # samples first
        self.dtype: np.dtype = array.dtype
        self._row_bytes = array.strides[0] if array.ndim else array.itemsize
        # of each block 0 if it is not checked yet. Threads may check one twice
        self._checked = bytearray(len(crcs))
        if length is not None:
            length.marks.append(self._checked)

    def __len__(self) -> int:
        return len(self._array)

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Copy out some rows, checked. ``rows`` are within 0..len-1."""
        if self._length is not None:
            self._length.check()
        if 0 in self._checked and len(rows):
            self._check(self._touched(rows))
        taken: np.ndarray = self._array[rows]
        return taken

    def item(self, row: int) -> int:
        """One value of a column of integers, checked: 0.2 µs, `take` 1 µs. ``row`` is in range."""
        if self._length is not None:
            self._length.check()
        if not self._checked[row * self._row_bytes // BLOCK]:
            self._check((row * self._row_bytes // BLOCK,))
        value: int = self._array.item(row)
        return value

    def span(self, start: int, stop: int) -> np.ndarray:
        """View of the rows start..stop-1, checked."""
        if not 0 <= start <= stop <= len(self._array):
            raise IntegrityError(
                f"{self._where}: rows {start}..{stop} are asked for, there are {len(self._array)}; "
                "restore the index or pack again"
            )
        if self._length is not None:
            self._length.check()
        if 0 in self._checked and stop > start:
            first, last = start * self._row_bytes, stop * self._row_bytes - 1
            self._check(range(first // BLOCK, last // BLOCK + 1))
        return self._array[start:stop]

    def array(self) -> np.ndarray:
        """View of the whole column, checked, read-only."""
        if self._length is not None:
            self._length.check()
        self._check(range(len(self._crcs)))
        return self._array

    def chunks(self) -> Iterator[np.ndarray]:
        """The whole column in arrays of a million rows at most, checked, without holding it."""
        for start in range(0, len(self), _CHUNK):
            yield self.span(start, min(start + _CHUNK, len(self)))

    def total(self) -> int:
        """Sum of a column of integers."""
        return sum(int(chunk.sum(dtype=np.int64)) for chunk in self.chunks())

    def view_unchecked(self) -> memoryview:
        """The whole column, whose rows are correct once `span` has checked them."""
        return self._array.data

    def lacking(self, rows: np.ndarray | None = None) -> list[Span]:
        """Blocks of a column that is far away which were not looked at yet."""
        if self._place is None or 0 not in self._checked:
            return []
        blocks = range(len(self._crcs)) if rows is None else self._touched(rows)
        return [self._span(block) for block in blocks if not self._checked[block]]

    def _touched(self, rows: np.ndarray) -> list[int]:
        """Numbers of the blocks that rows lie in."""
        first = rows * self._row_bytes
        touched = np.concatenate((first, first + self._row_bytes - 1)) // BLOCK
        blocks: list[int] = np.unique(touched).tolist()
        return blocks

    def _span(self, block: int) -> Span:
        assert self._place is not None  # noqa: S101 (for the type checker)
        _, number, start = self._place
        stop = min((block + 1) * BLOCK, self._array.nbytes)
        return Span(number + block, start + block * BLOCK, start + stop)

    def _check(self, blocks: Iterable[int]) -> None:
        """Check those blocks that are not checked yet."""
        if not (blocks := [block for block in blocks if not self._checked[block]]):
            return
        wrong: Sequence[Span] = []
        if self._place is not None:
            wrong = self._place.far.bring([self._span(block) for block in blocks])
        for block in blocks:
            is_there = not wrong or self._span(block) not in wrong
            if not ((is_there and self._is_right(block)) or self._is_right_anew(block)):
                what = "damaged" if self._place is None else "damaged, or of a later version"
                raise IntegrityError(
                    f"{self._where}: bytes of rows {block * BLOCK // self._row_bytes} and "
                    f"following are {what} (CRC32C differs); restore the index or pack again "
                    "(if it is in packio's cache: packio cache --clear)"
                )
            self._checked[block] = 1

    def _is_right(self, block: int) -> bool:
        part = self._array.reshape(-1).view(np.uint8)[block * BLOCK : (block + 1) * BLOCK]
        return bool(crc32c(part) == self._crcs[block])

    def _is_right_anew(self, block: int) -> bool:
        """Whether a block is right once it has come again, as a machine may have lost power."""
        if self._place is None:
            return False
        wrong = self._place.far.bring([self._span(block)], anew=True)
        return not wrong and self._is_right(block)


def constant_column(value: int, rows: int) -> Column:
    """A column of a small number, which takes no memory and needs no check."""
    return Column(np.broadcast_to(np.uint8(value), rows), np.zeros(0, np.uint32), "")


class Pieces:
    """A column in pieces along the first axis, made anew each time: none is held whole."""

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


def to_pieces(column: Content) -> Pieces:
    """A column as pieces; an array is one."""
    if isinstance(column, Pieces):
        return column
    whole = np.ascontiguousarray(column)
    return Pieces(whole.dtype, whole.shape, lambda: (whole,))


def concatenate(parts: Sequence[np.ndarray], added: Sequence[int] | None = None) -> Pieces:
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


def concatenate_offsets(parts: Sequence[np.ndarray]) -> Pieces:
    """N+1 offsets of each of several columns as the offsets of the columns as one."""
    ends = itertools.accumulate((int(part[-1]) for part in parts), initial=0)
    rest = concatenate([part[1:] for part in parts], list(ends)[:-1])

    def made() -> Iterator[np.ndarray]:
        yield np.zeros(1, np.int64)
        yield from rest

    return Pieces(np.dtype(np.int64), (len(rest) + 1,), made)


def write_checked(
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
            crc = google_crc32c.extend(crc, part)
            filled, data = filled + len(part), data[len(part) :]
            if filled == BLOCK:
                yield crc
                crc = filled = 0
    if filled:
        yield crc
