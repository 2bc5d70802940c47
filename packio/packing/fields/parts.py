"""Values of a field, made in parts that outlive a run: each part has those of some rows of a pack.

A part is a file ``part-FIRST-STOP.packio`` in the journal's folder. How its bytes lie: 8 bytes of
magic; u64 rows n; u64 bytes of a JSON header; the header, ``{"kind", "problems", "shapes"}``; n
bytes, 1 where the row has a value; n+1 i64 offsets; the values end to end; u32 CRC32C of all before
it. A part that is not whole is made anew.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packio.index.indexfile import crc32c
from packio.system import files

ROWS = 1024  # rows of a task, at most
_COUNT_SECONDS = 1.0  # between two looks at which parts are there
_MAGIC = b"PKFIELD2"
_HEAD = struct.Struct("<8sQQ")
_NAME = re.compile(r"part-(\d+)-(\d+)\.packio")


class Part(NamedTuple):
    """A part that was made.

    Attributes:
        kind: Of its values; None if it has none.
        problems: Row, key and reason of each value that is bad.
        shapes: Shape and dtype of arrays → how many there are.
        present: (n,) bool.
        offsets: (n+1,) int64 bytes.
        data: The values, end to end.
    """

    kind: str | None
    problems: list[tuple[int, str, str]]
    shapes: dict[str, int]
    present: np.ndarray
    offsets: np.ndarray
    data: memoryview

    def value(self, row: int) -> bytes | None:
        """The value of a row, counted from the first of the part; None if it has none."""
        if not self.present[row]:
            return None
        return bytes(self.data[self.offsets[row] : self.offsets[row + 1]])


def write(
    folder: Path, first: int, stop: int, described: dict[str, Any], found: Sequence[bytes | None]
) -> None:
    """Write a part."""
    header = json.dumps(described).encode()
    offsets = np.zeros(len(found) + 1, "<i8")
    np.cumsum([len(value or b"") for value in found], out=offsets[1:])
    present = np.array([value is not None for value in found], np.uint8)
    pieces = [_HEAD.pack(_MAGIC, len(found), len(header)), header, present.tobytes(),
              offsets.tobytes(), *(value for value in found if value)]  # fmt: skip
    data = b"".join(pieces)
    write_whole(folder / f"part-{first:012d}-{stop:012d}.packio", data + _crc(data))


def _crc(data: bytes) -> bytes:
    return crc32c(data).to_bytes(4, "little")


def write_whole(path: Path, content: bytes) -> None:
    """Write a file, or nothing."""
    with files.replacing(path) as file:
        file.write(content)


def read(path: Path) -> Part | None:
    """Read a part; None if it is not whole."""
    try:
        content = files.content(path)
        magic, count, size = _HEAD.unpack_from(content)
        if magic != _MAGIC or _crc(content[:-4]) != content[-4:]:
            return None
    except (OSError, struct.error):
        return None
    at = _HEAD.size + size
    header = json.loads(content[_HEAD.size : at])
    present = np.frombuffer(content, np.uint8, count, at) != 0
    offsets = np.frombuffer(content, "<i8", count + 1, at + count)
    data = memoryview(content)[at + count + offsets.nbytes : -4]
    problems = [(int(row), str(key), str(why)) for row, key, why in header["problems"]]
    return Part(header["kind"], problems, header["shapes"], present, offsets, data)


def there(folder: Path) -> list[tuple[int, int, Path]]:
    """First row, row behind the last, and path of each part, in their order."""
    matches = filter(None, map(_NAME.fullmatch, os.listdir(folder)))
    return sorted((int(match[1]), int(match[2]), folder / match[0]) for match in matches)


class Counter:
    """Counts the rows whose parts are there, at most once a second: tasks may take hours."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._rows, self._counted = folder, 0, -math.inf

    def __call__(self) -> int:
        """The number of rows, as of the last count."""
        if time.monotonic() - self._counted >= _COUNT_SECONDS:
            self._rows = sum(stop - first for first, stop, _ in there(self._folder))
            self._counted = time.monotonic()
        return self._rows


def lacking(
    found: Sequence[tuple[int, int, Path]], wanted: Sequence[tuple[int, int]], most: int = ROWS
) -> Iterator[tuple[int, int]]:
    """Ranges of wanted rows that no part has, in pieces of a task each, of at most so many rows."""
    for start, stop in wanted:
        within = [(a, b) for a, b, _ in found if a < stop and b > start]
        for (_, begin), (end, _) in itertools.pairwise([(start, start), *within, (stop, stop)]):
            for first in range(begin, end, most):
                yield first, min(first + most, end)
