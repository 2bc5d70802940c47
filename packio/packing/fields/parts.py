"""Values of a field, made in parts that outlive a run: each part has those of some rows of a pack.

A part is a file ``part-FIRST-STOP.packio`` in the journal's folder: a NumPy archive of a JSON
header, ``{"kind", "problems", "shapes"}``, of which rows have a value, and of the values end to
end. It is synced before it gets its name. A part that is not whole is made anew.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import json
import os
import re
import sys
import time
import traceback
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packio.errors import BadImagesError, DecodeError, PackioError
from packio.images.encodings import check_class_ids, read_facts
from packio.index import columns
from packio.packing.fields import values
from packio.packing.images.resizing import place_mask
from packio.packing.run.reading import ReadSample
from packio.packing.run.shards import Tally, Task
from packio.packs import opening
from packio.sample import fields
from packio.sample.fields import PIXELS
from packio.sample.record import IMAGE, UNKNOWN, Field, Frame, Record, check_mask
from packio.storage.journal import PART
from packio.system import files
from packio.system.files import check_of_file

ROWS = 1024  # rows of a task, at most
_NAME = re.compile(rf"{PART}(\d+)-(\d+)\.packio")
_BATCH = 16 << 20  # bytes that are handed to the writer at once
_NO_IMAGE = Field(IMAGE, b"", UNKNOWN)


class Problem(NamedTuple):
    """A bad value: its row in the pack, the key of its sample, and why it is bad."""

    row: int
    key: str
    reason: str


class Part(NamedTuple):
    """A part that was made."""

    kind: str | None  # of its values; None: it has none
    problems: list[Problem]
    shapes: dict[str, int]  # shape and dtype of arrays → how many there are
    present: np.ndarray  # (n,) bool
    offsets: np.ndarray  # (n+1,) int64 bytes
    data: np.ndarray  # uint8, the values end to end

    def value(self, row: int) -> bytes | None:
        """The value of a row, counted from the first of the part."""
        if not self.present[row]:
            return None
        return self.data[self.offsets[row] : self.offsets[row + 1]].tobytes()


def read_part(path: Path) -> Part | None:
    """Read a part, whose checksums NumPy compares; None if it is not whole."""
    try:
        with np.load(path, allow_pickle=False) as found:
            table = {name: found[name] for name in ("header", "present", "offsets", "data")}
        header = json.loads(table.pop("header").tobytes())
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile):
        return None
    problems = [Problem(*problem) for problem in header["problems"]]
    return Part(header["kind"], problems, header["shapes"], **table)


def list_parts(folder: Path) -> list[tuple[int, int, Path]]:
    """First row, row behind the last, and path of each part, in their order."""
    matches = filter(None, map(_NAME.fullmatch, os.listdir(folder)))
    return sorted((int(match[1]), int(match[2]), folder / match[0]) for match in matches)


def whole(folder: Path, start: int = 0, stop: int = sys.maxsize) -> Iterator[tuple[int, Part]]:
    """First row and contents of each part that has some of the rows start..stop-1."""
    for first, end, path in list_parts(folder):
        if first >= stop or end <= start:
            continue
        part = read_part(path)
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
class FieldTask(Task):
    """A shard to write that holds one field of the samples of a shard that is there."""

    first: int = 0  # row of the pack
    kind: str = ""  # of the field

    def reads(self) -> Iterable[list[ReadSample]]:
        """The values of the shard's rows, from the parts in the journal."""
        batch, size, keys = list[ReadSample](), 0, self.listing.keys
        end = self.first + len(keys)
        for first, part in whole(self.journal.folder, self.first, end):
            for row in range(max(first, self.first), min(first + len(part.present), end)):
                value, fields = part.value(row - first), {IMAGE: _NO_IMAGE}
                if value is not None:
                    facts = read_facts(value) if self.kind in PIXELS else None
                    fields[self.field] = Field(self.kind, value, facts)
                at = row - self.first
                batch.append(ReadSample(at, Record(keys[at], fields), None, len(value or b"")))
                size += batch[-1].size
                if size >= _BATCH or self.tally.stopped:
                    yield batch
                    batch, size = [], 0
        if batch:
            yield batch


_MOST_BYTES, _MOST_SECONDS = 16 << 20, 5.0  # of values that a kill may lose


class MakeTask(NamedTuple):
    number: int  # of the task
    tally: Tally  # counts rows, and tells when to stop
    folder: Path  # of the journal
    pack: Path
    digest: str  # of the pack
    first: int
    stop: int
    name: str  # of the field
    kind: str | None
    function: Callable[[Any], Any] | None  # makes the value of a sample, or of a list of samples
    batch_size: int | None  # samples that the function takes at once; None: one, which is no list
    inputs: Sequence[Any]  # one of each row, if there is no function
    skip: bool  # note in the part what is wrong with a value; else the part has no such row
    max_errors: int | None  # leave the rest if more values than this are bad; None: never


@functools.lru_cache(maxsize=1)
def open_pack(path: Path, digest: str) -> opening.Pack:
    return opening.Pack(path, expect_digest=digest)


def make(task: MakeTask) -> list[Problem]:
    """Make the values of some rows, write them as parts, and return the bad ones."""
    made, began = _Making(task), time.monotonic()
    try:
        for first in range(task.first, task.stop, task.batch_size or 1):
            too_many = task.max_errors is not None and len(made.problems) > task.max_errors
            if too_many or task.tally.stopped:
                break
            made.add(range(first, min(first + (task.batch_size or 1), task.stop)))
            if made.size >= _MOST_BYTES or time.monotonic() - began > _MOST_SECONDS:
                made.flush()
                began = time.monotonic()
    finally:
        made.flush()
    return made.problems


class _Making:
    """The values made since the last part, and all problems."""

    def __init__(self, task: MakeTask) -> None:
        self._task, self._first = task, task.first
        self._kind: str | None = None
        self.problems: list[Problem] = []
        self._clear()

    def _clear(self) -> None:
        self._values: list[bytes | None] = []
        self._noted: list[Problem] = []
        self._shapes = collections.Counter[str]()
        self.size = 0

    @property
    def _pack(self) -> opening.Pack:
        return open_pack(self._task.pack, self._task.digest)

    def add(self, rows: range) -> None:
        """Make the values of some rows."""
        task = self._task
        for row, value in zip(rows, self._made(rows), strict=True):
            field: Field | None = None
            bad = 0
            try:
                field = self._field(row, value)
            except MemoryError:
                raise
            except Exception as error:  # noqa: BLE001 (the value is the user's)
                key, bad = self._pack.key(row), int(not task.skip)
                check_of_file(error, f"{task.name} of {key!r}")
                self.problems.append(Problem(row, key, f"{_what(error)}{values.source_of(value)}"))
                if task.skip:
                    self._noted.append(self.problems[-1])
            task.tally.add(task.number, 1, 0, bad)
            if bad:  # the next run makes this row, and no other
                self.flush()
                self._first = row + 1
                continue
            if field is not None:
                self._kind = field.kind
                self.size += len(field.data)
                if field.kind == "array":
                    header = fields.array_header(field.data)
                    self._shapes[f"{header.shape} {header.dtype}"] += 1
            self._values.append(None if field is None else field.data)

    def _field(self, row: int, value: Any) -> Field | None:
        task = self._task
        if isinstance(value, Exception):  # which the user's function raised
            raise value
        field = values.field_of(value, task.kind)
        if field is not None and self._kind not in (None, field.kind):
            raise DecodeError(f"is of kind {field.kind}, the one before of kind {self._kind}")
        if field is not None and field.kind == "mask" and field.facts is not None:
            image = self._pack.facts(IMAGE, row)
            field = place_mask(field, image, Frame(is_upright=False))  # unless its size differs
            check_class_ids(field.data, field.facts)
            check_mask(task.name, field.facts or UNKNOWN, image.height, image.width)
        return field

    def _made(self, rows: range) -> list[Any]:
        """What is given or made for some rows: a value, None, or what the function raised."""
        task = self._task
        if task.function is None:
            return [task.inputs[row - task.first] for row in rows]
        try:
            samples = [self._pack[row] for row in rows]
            if task.batch_size is None:
                return [task.function(samples[0])]
            found = task.function(samples)
            if not isinstance(found, (str, bytes, Mapping)) and hasattr(found, "__iter__"):
                found = list(found)
        except MemoryError:
            raise
        except (SystemExit, GeneratorExit) as error:  # the run would end as if all were made
            raise self._wrong(rows, f"the function ended the process: {error!r}; let it return a "
                                    "value, or raise an error") from error  # fmt: skip
        except Exception as error:  # noqa: BLE001 (the function is the user's)
            return [error] if len(rows) == 1 else self._one_by_one(rows, error)
        if isinstance(found, list) and len(found) == len(rows):
            return found
        got = f"{len(found)} values" if isinstance(found, list) else f"one {type(found).__name__}"
        raise self._wrong(
            rows, f"the function takes {len(rows)} samples and returns {got}; let it return a list "
            "or an array of one value a sample"
        )  # fmt: skip

    def _one_by_one(self, rows: range, error: Exception) -> list[Any]:
        """The values of a batch that failed, so that a bad sample costs only its own."""
        found = [value for row in rows for value in self._made(range(row, row + 1))]
        if not any(isinstance(value, Exception) for value in found):
            raise self._wrong(
                rows, f"the function fails for {len(rows)} samples at once, and for none of them "
                f"alone: {_what(error)}; mend it, or say a smaller batch size"
            ) from error  # fmt: skip
        return found

    def _wrong(self, rows: range, what: str) -> BadImagesError:
        task = self._task
        return BadImagesError(f"{task.pack}: {task.name} of {self._pack.key(rows[0])!r}: {what}")

    def flush(self) -> None:
        if not self._values:
            return
        described = {"kind": self._kind, "problems": self._noted, "shapes": self._shapes}
        header = np.frombuffer(json.dumps(described).encode(), np.uint8)
        present = np.array([value is not None for value in self._values])
        data, offsets = columns.join_values([value or b"" for value in self._values])
        first, stop = self._first, self._first + len(self._values)
        path = self._task.folder / f"{PART}{first:012d}-{stop:012d}.packio"
        with files.replacing(path) as file:
            np.savez(file, header=header, present=present, offsets=offsets, data=data)
        self._first = stop
        self._clear()


def _what(error: Exception) -> str:
    """What went wrong; of an error in the user's function also where it was raised."""
    if isinstance(error, PackioError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    place = f" (at {frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"
