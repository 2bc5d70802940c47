"""Values of a field, made in parts that outlive a run: each part has those of some rows of a pack.

A part is a file ``part-FIRST-STOP.packio`` in the journal's folder: a NumPy archive of a JSON
header, ``{"kind", "problems", "shapes"}``, of which rows have a value, and of the values end to
end. It is synced before it gets its name. A part that is not whole is made anew.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packio.images.encodings import read_facts
from packio.index import columns
from packio.packing.run import shards
from packio.packing.run.reading import Read
from packio.sample.facts import UNKNOWN
from packio.sample.fields import PIXELS
from packio.sample.record import IMAGE, Field, Record
from packio.storage.journal import PART
from packio.system import files

ROWS = 1024  # rows of a task, at most
_NAME = re.compile(rf"{PART}(\d+)-(\d+)\.packio")
_BATCH = 16 << 20  # bytes that are handed to the writer at once
_NO_IMAGE = Field(IMAGE, b"", UNKNOWN)


class Part(NamedTuple):
    """A part that was made."""

    kind: str | None  # of its values; None: it has none
    problems: list[tuple[int, str, str]]  # row, key and reason of each bad value
    shapes: dict[str, int]  # shape and dtype of arrays → how many there are
    present: np.ndarray  # (n,) bool
    offsets: np.ndarray  # (n+1,) int64 bytes
    data: np.ndarray  # uint8, the values end to end

    def value(self, row: int) -> bytes | None:
        """The value of a row, counted from the first of the part."""
        if not self.present[row]:
            return None
        return self.data[self.offsets[row] : self.offsets[row + 1]].tobytes()


def write(
    folder: Path, first: int, stop: int, described: dict[str, Any], found: Sequence[bytes | None]
) -> None:
    data, offsets = columns.ragged([value or b"" for value in found])
    header = np.frombuffer(json.dumps(described).encode(), np.uint8)
    present = np.array([value is not None for value in found])
    with files.replacing(folder / f"{PART}{first:012d}-{stop:012d}.packio") as file:
        np.savez(file, header=header, present=present, offsets=offsets, data=data)


def read(path: Path) -> Part | None:
    """Read a part, whose checksums NumPy compares; None if it is not whole."""
    try:
        with np.load(path, allow_pickle=False) as found:
            table = {name: found[name] for name in ("header", "present", "offsets", "data")}
        header = json.loads(table.pop("header").tobytes())
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile):
        return None
    problems = [(int(row), str(key), str(why)) for row, key, why in header["problems"]]
    return Part(header["kind"], problems, header["shapes"], **table)


def there(folder: Path) -> list[tuple[int, int, Path]]:
    """First row, row behind the last, and path of each part, in their order."""
    matches = filter(None, map(_NAME.fullmatch, os.listdir(folder)))
    return sorted((int(match[1]), int(match[2]), folder / match[0]) for match in matches)


def whole(folder: Path) -> Iterator[tuple[int, Part]]:
    """First row and contents of each part."""
    for first, _, path in there(folder):
        part = read(path)
        if part is None:
            raise OSError(f"{path}: is damaged; run the command again")
        yield first, part


def lacking(
    found: Sequence[tuple[int, int, Path]], wanted: Sequence[tuple[int, int]], most: int = ROWS
) -> Iterator[tuple[int, int]]:
    """Ranges of wanted rows that no part has, in pieces of a task each, of at most so many rows."""
    for start, stop in wanted:
        within = [(a, b) for a, b, _ in found if a < stop and b > start]
        for (_, begin), (end, _) in itertools.pairwise([(start, start), *within, (stop, stop)]):
            for first in range(begin, end, most):
                yield first, min(first + most, end)


@dataclasses.dataclass(frozen=True)
class FieldTask(shards.Task):
    """A shard to write that holds one field of the samples of a shard that is there."""

    first: int  # row of the pack
    only: str  # name of the field
    kind: str

    @property
    def field(self) -> str:
        return self.only

    def reads(self, stopped: Callable[[], bool]) -> Iterable[list[Read]]:
        """The values of the shard's rows, from the parts in the journal."""
        batch, size, keys = list[Read](), 0, self.listing.keys
        for first, stop, path in there(self.journal.folder):
            if first >= self.first + len(keys) or stop <= self.first:
                continue
            part = read(path)
            if part is None:
                raise OSError(f"{path}: is damaged; run the command again")
            for row in range(max(first, self.first), min(stop, self.first + len(keys))):
                value, fields = part.value(row - first), {IMAGE: _NO_IMAGE}
                if value is not None:
                    facts = read_facts(value) if self.kind in PIXELS else None
                    fields[self.only] = Field(self.kind, value, facts)
                at = row - self.first
                batch.append(Read(at, Record(keys[at], fields), None, len(value or b"")))
                size += batch[-1].size
                if size >= _BATCH or stopped():
                    yield batch
                    batch, size = [], 0
        if batch:
            yield batch
