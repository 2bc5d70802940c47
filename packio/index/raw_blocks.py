"""Checksums of raw pixels by blocks of rows: the index's column ``raw_crc32c``.

Where all samples of a pack are raw pixels of one shape, order and dtype, a sample is a row, and the
column has the CRC32C of each block of `rows_per_block` rows (about 1 MiB): of their bytes end to
end, wherever they lie. Blocks begin anew with each shard, whose last one may be shorter.
"""

from __future__ import annotations

import mmap
from array import array
from collections.abc import Callable, Sequence

import google_crc32c
import numpy as np

from packio.images.encodings import RAW
from packio.index import columns
from packio.index.indexfile import Index
from packio.sample.record import Facts

COLUMN = "raw_crc32c"
_BLOCK_BYTES = 1 << 20
_LARGE = 1 << 16  # bytes of a row; to check such a one, its neighbours need not be read


def rows_per_block(row_bytes: int) -> int:
    """How many rows of so many bytes a block has."""
    return max(1, _BLOCK_BYTES // row_bytes)


class RawBlocks:
    """The column while samples come in, one by one; there is none where they are not alike."""

    def __init__(self) -> None:
        self._facts: Facts | None = None
        self._alike = True
        self._crcs = array("I")
        self._crc = self._rows = 0  # of the block that is being filled

    def add(self, facts: Facts, data: bytes) -> None:
        """Take the next sample."""
        if self._facts is None:
            self._facts = facts
        self._alike = self._alike and facts == self._facts and facts.encoding in RAW
        if self._alike:
            self._crc = google_crc32c.extend(self._crc, data)
            self._rows += 1
            if self._rows == rows_per_block(len(data)):
                self.end_shard()

    def end_shard(self) -> None:
        """Have the next sample begin a block."""
        if self._rows:
            self._crcs.append(self._crc)
        self._crc = self._rows = 0

    def columns(self) -> dict[str, np.ndarray]:
        """The column by its name; nothing where there is none."""
        self.end_shard()
        if not self._alike or self._facts is None:
            return {}
        return {COLUMN: np.array(self._crcs, np.uint32)}


class Checks:
    """Which rows have been compared with their checksums, in this or in a forked process.

    Large rows, and those of an index without the column, are blocks of their own.
    """

    def __init__(self, index: Index, counts: Sequence[int], row_bytes: int) -> None:
        self._rows = rows_per_block(row_bytes)
        self._first_rows = columns.offsets(counts)
        self._first_blocks = columns.offsets(-(-n // self._rows) for n in counts)
        name, blocks = COLUMN, (int(self._first_blocks[-1]),)
        if row_bytes >= _LARGE or name not in index or index.column(name).shape != blocks:
            name, self._rows, self._first_blocks = "image/crc32c", 1, self._first_rows
        self._crc = index.column(name)
        shared = mmap.mmap(-1, len(index))  # by forks
        self.marks: memoryview = memoryview(shared)  # 1 for each row that was compared
        self._seen = np.frombuffer(shared, np.uint8)

    def suspects(self, positions: np.ndarray, crc_of: Callable[[np.ndarray], int]) -> list[int]:
        """Check the blocks that some samples are in, those that have not been checked before."""
        slots = np.flatnonzero(self._seen[positions] == 0)
        if not len(slots):
            return []
        new = positions[slots]
        shard = np.searchsorted(self._first_rows, new, "right") - 1
        numbers = (new - self._first_rows[shard]) // self._rows
        for s, number in sorted(set(zip(shard.tolist(), numbers.tolist(), strict=True))):
            start = int(self._first_rows[s]) + number * self._rows
            stop = min(start + self._rows, int(self._first_rows[s + 1]))
            crc = self._crc.item(int(self._first_blocks[s]) + number)
            if crc_of(np.arange(start, stop)) == crc:
                self._seen[start:stop] = 1
        left: list[int] = slots[self._seen[new] == 0].tolist()
        return left
