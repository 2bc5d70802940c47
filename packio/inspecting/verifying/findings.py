"""What `verify` knows about a pack: its damages so far, the report, and how far the check is."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from packio.errors import IntegrityError
from packio.formats import Format, Reading
from packio.index.indexfile import SPLIT_RECORD, Index
from packio.system.progress import Meter


@dataclasses.dataclass(frozen=True, slots=True)
class Damage:
    """One damage."""

    file: str  # relative to the folder of the index
    position: int | None  # of the sample in the pack; None if the damage is not in one sample
    key: str | None  # of the sample; bytes that are not UTF-8 are surrogate-escaped
    offset: int | None  # of the bytes in the file; None if they are not known
    length: int | None
    problem: str  # one line
    unreadable: bool = False  # the file is there, but the operating system cannot read it


@dataclasses.dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a verification found."""

    path: Path  # of the pack
    format: str  # of the container; empty if the index cannot be read
    samples: int  # number of samples in the pack
    files: int  # number of files read, without the index
    bytes: int  # in these files
    damages: tuple[Damage, ...]  # all damages: of the index first, then by file and offset
    # Lines about what is no damage, but differs from the pack as it was written
    warnings: tuple[str, ...]
    seconds: float  # duration of the run

    @property
    def ok(self) -> bool:
        """Whether nothing is damaged."""
        return not self.damages


def strip_path(error: Exception, path: Path) -> str:
    """The message of an error in one line, without the path that it begins with."""
    lines = (str(error) or type(error).__name__).splitlines()
    return lines[0].removeprefix(str(path)).lstrip(":, ")


class FieldColumns(NamedTuple):
    """All values of one field: the columns that say where they lie, and their order there."""

    file: np.ndarray  # (N,)
    offset: np.ndarray  # (N,) bytes
    length: np.ndarray  # (N,) bytes
    crc: np.ndarray  # (N,) uint32
    order: np.ndarray  # (N,) positions by file and offset
    name: str  # of the field


class Findings:
    """A pack whose index opens, and its damages. Several threads may add damages at once."""

    def __init__(self, index: Index, path: Path, meter: Meter, root: Path | None = None) -> None:
        self.index, self.path, self.meter = index, path, meter  # the path is absolute
        self.root = index.path.parent if root is None else root  # of the names of files
        self.table: list[tuple[str, int, bytes]] = []  # name, bytes and SHA-256 of each file
        self.shards: list[tuple[str, range]] = []  # name, and the positions of its samples
        self.format: Format | None = None  # known once the metadata have been checked
        self.reading = _reading_of(index)  # the options with which the container was indexed
        # Images are no ranges of bytes: the format's Reader returns them by number
        self.by_record = index.metadata.get("access", "range") != "range"
        self.kinds: list[FieldColumns] = []  # the image first; known once the index is good
        self.damages: list[Damage] = []
        self.warnings: list[str] = []
        self.intact: set[int] = set()  # numbers of the files whose size and SHA-256 are right
        self.bad: set[int] = set()  # positions of the samples whose bytes are damaged
        self.stopped = False  # an interrupt came, or the callback failed

    def tell_of_index(self, problem: str) -> None:
        self.tell_of_file(self.index.path.name, problem)

    def tell_of_file(self, name: str, problem: str, *, unreadable: bool = False) -> None:
        self.damages.append(Damage(name, None, None, None, None, problem, unreadable))

    def tell_of_sample(self, position: int, place: tuple[str, int, int], problem: str) -> None:
        """Note a damage of a sample; ``place`` is file, offset and length in bytes."""
        key = None
        with contextlib.suppress(IntegrityError):
            key = os.fsdecode(self.index.key(position))
        self.damages.append(Damage(place[0], position, key, *place[1:], problem))

    def place(self, position: int, kind: int) -> tuple[str, int, int]:
        """File, offset (if read by record, its number) and length of a value; kind 0: the image."""
        k = self.kinds[kind]
        number, offset, length = (int(a[position]) for a in (k.file, k.offset, k.length))
        return self.table[number][0], offset, length

    def unsplit(self, position: int, kind: int, data: bytes | np.ndarray) -> bytes | np.ndarray:
        """Join the bytes of a value, which may lie in several parts."""
        flags = f"{self.kinds[kind].name}/flags"
        if flags not in self.index or not self.index.column(flags).item(position) & SPLIT_RECORD:
            return data
        assert self.format is not None  # noqa: S101 (the metadata were found good)
        return self.format.unsplit(bytes(data))

    def files_of(self, shard: str, positions: range) -> set[int]:
        """Numbers of the files that a shard consists of."""
        these = slice(positions.start, positions.stop)
        used = [np.unique(k.file[these][k.offset[these] >= 0]) for k in self.kinds]
        names = enumerate(name for name, _, _ in self.table)
        within = {i for i, n in names if shard in (".", n) or n.startswith(f"{shard}/")}
        return within.union(*(numbers.tolist() for numbers in used))

    def sorted_damages(self) -> list[Damage]:
        numbers = {name: i for i, (name, _, _) in enumerate(self.table)}
        return sorted(
            set(self.damages),
            key=lambda d: (numbers.get(d.file, -1), d.offset or 0, d.position or 0, d.problem),
        )


def _reading_of(index: Index) -> Reading:
    offset = index.metadata.get("labels", {}).get("offset", 0)
    if index.metadata.get("source", {}).get("kind") != "reindex":
        return Reading(offset)
    said = index.metadata.get("options", {})
    names = {n: said[n] for n in ("image", "label", "layout", "database") if n in said}
    return Reading(offset, trust_plain_pickle=True, **names)  # as whoever indexed it did
