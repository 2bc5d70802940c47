"""Values of a field, made in parts that outlive a run: each part has those of some rows of a pack.

A part is a file ``part-FIRST-STOP.packio`` in the journal's folder. How its bytes lie: 8 bytes of
magic; u64 rows n; u64 bytes of a JSON header; the header, ``{"kind", "problems", "shapes"}``; n
bytes, 1 where the row has a value; n+1 i64 offsets; the values end to end; u32 CRC32C of all before
it. A part that is not whole is made anew.
"""

from __future__ import annotations

import collections
import functools
import itertools
import json
import math
import os
import re
import secrets
import struct
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packio.errors import BadImagesError, DecodeError, PackioError
from packio.index.indexfile import crc32c
from packio.packing.fields import values
from packio.packs import opening
from packio.sample import fields
from packio.sample.facts import check_mask
from packio.sample.record import Field
from packio.system import files

ROWS = 1024  # rows of a task, at most
_MOST_BYTES, _MOST_SECONDS = 16 << 20, 5.0  # of values that a kill may lose
_COUNT_SECONDS = 1.0  # between two looks at which parts are there
_MAGIC = b"PKFIELD2"
_HEAD = struct.Struct("<8sQQ")
_NAME = re.compile(r"part-(\d+)-(\d+)\.packio")


class Task(NamedTuple):
    """Rows whose values are to be made.

    Attributes:
        folder: Of the journal.
        pack: Path of the pack.
        digest: Of the pack.
        first: The first row.
        stop: The row behind the last one.
        name: Of the field.
        kind: Of the field, or None.
        function: Makes a value of a sample, or None.
        inputs: One of each row, if there is no function.
        skip: Note what is wrong with a value, and go on; else raise it.
    """

    folder: Path
    pack: Path
    digest: str
    first: int
    stop: int
    name: str
    kind: str | None
    function: Callable[[Any], Any] | None
    inputs: Sequence[Any]
    skip: bool


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


@functools.lru_cache(maxsize=1)
def _opened(path: Path, digest: str) -> opening.Pack:
    return opening.Pack(path, expect_digest=digest)


def close() -> None:
    """Let go of the pack whose samples this process has read."""
    _opened.cache_clear()


def make(task: Task, stopped: Callable[[], bool] = bool) -> int:
    """Make the values of some rows, and write them as parts; return the number of rows.

    Args:
        task: Says which rows.
        stopped: Asked before each row whether to leave the rest, as after a Ctrl-C.

    Raises:
        BadImagesError: a value is bad, or the function fails; what was made before is kept.
    """
    made, began = _Making(task), time.monotonic()
    try:
        for row in range(task.first, task.stop):
            if stopped():
                break
            made.add(row)
            if made.size >= _MOST_BYTES or time.monotonic() - began > _MOST_SECONDS:
                made.flush()
                began = time.monotonic()
    finally:
        made.flush()
    return task.stop - task.first


class _Making:
    """The values made since the last part."""

    def __init__(self, task: Task) -> None:
        self._task, self._first = task, task.first
        self._kind: str | None = None
        self._clear()

    def _clear(self) -> None:
        self._values: list[bytes | None] = []
        self._problems: list[tuple[int, str, str]] = []
        self._shapes = collections.Counter[str]()
        self.size = 0

    def add(self, row: int) -> None:
        task, problem = self._task, ""
        field: Field | None = None
        value = None
        try:
            value = self._input(row)
            field = values.field_of(value, task.kind)
            if field is not None and self._kind not in (None, field.kind):
                raise DecodeError(f"is of kind {field.kind}, the one before of kind {self._kind}")
            if field is not None and field.kind == "mask" and field.facts is not None:
                check_mask(task.name, field.facts, *self._size(row))
        except MemoryError:
            raise
        except (SystemExit, GeneratorExit) as error:  # the run would end as if all were made
            raise BadImagesError(
                f"{task.pack}: {task.name} of {self._key(row)!r}: the function ended the process: "
                f"{error!r}; let it return a value, or raise an error"
            ) from error
        except Exception as error:  # the function is the user's
            key, problem = self._key(row), f"{_what(error)}{values.source_of(value)}"
            if not task.skip:
                raise BadImagesError(
                    f"{task.pack}: the value of {task.name} of {key!r}: {problem}; mend it, or "
                    "leave such values out with --on-error skip --missing"
                ) from error
            self._problems.append((row, key, problem))
            field = None
        if field is not None:
            self._kind = field.kind
            self.size += len(field.data)
            if field.kind == "array":
                header = fields.array_header(field.data)
                self._shapes[f"{header.shape} {header.dtype}"] += 1
        self._values.append(None if field is None else field.data)

    def _input(self, row: int) -> Any:
        task = self._task
        if task.function is None:
            return task.inputs[row - task.first]
        return task.function(_opened(task.pack, task.digest)[row])

    def _size(self, row: int) -> tuple[int, int]:
        """Height and width of the image of a sample."""
        image = _opened(self._task.pack, self._task.digest).row(row)
        return image.height, image.width

    def _key(self, row: int) -> str:
        return _opened(self._task.pack, self._task.digest).key(row)

    def flush(self) -> None:
        if not self._values:
            return
        stop = self._first + len(self._values)
        header = {"kind": self._kind, "problems": self._problems, "shapes": self._shapes}
        _write(self._task.folder, self._first, stop, header, self._values)
        self._first = stop
        self._clear()


def _what(error: Exception) -> str:
    """What went wrong; of an error in the user's function also where it was raised."""
    if isinstance(error, PackioError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    place = f" (at {frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


def _write(
    folder: Path, first: int, stop: int, described: dict[str, Any], found: Sequence[bytes | None]
) -> None:
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
    """Write a file, or nothing: a temporary file is synced, then renamed."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        temporary.write_bytes(content)
        files.sync(temporary)
        temporary.replace(path)
    except BaseException:  # a full disk has no room for it
        temporary.unlink(missing_ok=True)
        raise


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
    """Counts the rows whose parts are there, at most once a second: tasks may take hours.

    Args:
        folder: Of the journal.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._rows, self._counted = folder, 0, -math.inf

    def __call__(self) -> int:
        """The number of rows, as of the last count."""
        if time.monotonic() - self._counted >= _COUNT_SECONDS:
            self._rows = sum(stop - first for first, stop, _ in there(self._folder))
            self._counted = time.monotonic()
        return self._rows


def lacking(
    found: Sequence[tuple[int, int, Path]], count: int, most: int = ROWS
) -> Iterator[tuple[int, int]]:
    """Ranges of rows that no part has, in pieces of a task each, of at most so many rows."""
    edges = [(0, 0), *((first, stop) for first, stop, _ in found), (count, count)]
    for (_, begin), (end, _) in itertools.pairwise(edges):
        for first in range(begin, end, most):
            yield first, min(first + most, end)
