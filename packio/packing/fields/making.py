"""The values of some rows of a pack, made by a function or read from files, and kept in parts."""

from __future__ import annotations

import collections
import functools
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from packio.errors import BadImagesError, DecodeError, PackioError
from packio.images.encodings import check_class_ids
from packio.packing.fields import parts, values
from packio.packing.images.placing import placed_mask
from packio.packing.run.tally import Tally
from packio.packs import opening
from packio.sample import fields
from packio.sample.facts import UNKNOWN, check_mask
from packio.sample.record import IMAGE, Field, Frame
from packio.system.files import check_of_file

_MOST_BYTES, _MOST_SECONDS = 16 << 20, 5.0  # of values that a kill may lose


class Problem(NamedTuple):
    """A bad value: its row in the pack, the key of its sample, and why it is bad."""

    row: int
    key: str
    reason: str


class MakeTask(NamedTuple):
    """Rows whose values are to be made."""

    number: int  # of the task
    tally: Tally  # counts rows for the progress
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


class _Failed(NamedTuple):
    """In place of a value: what the user's function raised."""

    error: Exception


@functools.lru_cache(maxsize=1)
def _opened(path: Path, digest: str) -> opening.Pack:
    return opening.Pack(path, expect_digest=digest)


def close() -> None:
    """Let go of the pack whose samples this process has read."""
    _opened.cache_clear()


def make(task: MakeTask, stopped: Callable[[], bool] = bool) -> list[Problem]:
    """Make the values of some rows, write them as parts, and return the bad ones."""
    made, began = _Making(task), time.monotonic()
    try:
        for first in range(task.first, task.stop, task.batch_size or 1):
            too_many = task.max_errors is not None and len(made.problems) > task.max_errors
            if too_many or stopped():
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

    def add(self, rows: range) -> None:
        """Make the values of some rows."""
        for row, value in zip(rows, self._made(rows), strict=True):
            try:
                field = self._field(row, value)
            except MemoryError:
                raise
            except Exception as error:  # noqa: BLE001 (the value is the user's)
                self._add_problem(row, value, error)
            else:
                self._add(field)

    def _add(self, field: Field | None) -> None:
        if field is not None:
            self._kind = field.kind
            self.size += len(field.data)
            if field.kind == "array":
                header = fields.array_header(field.data)
                self._shapes[f"{header.shape} {header.dtype}"] += 1
        self._values.append(None if field is None else field.data)
        self._task.tally.add(self._task.number, 1, 0, 0)

    def _field(self, row: int, value: Any) -> Field | None:
        task = self._task
        if isinstance(value, _Failed):
            raise value.error
        field = values.field_of(value, task.kind)
        if field is not None and self._kind not in (None, field.kind):
            raise DecodeError(f"is of kind {field.kind}, the one before of kind {self._kind}")
        if field is not None and field.kind == "mask" and field.facts is not None:
            image = _opened(task.pack, task.digest).facts(IMAGE, row)
            field = placed_mask(field, image, Frame(is_upright=False))  # unless its size differs
            check_class_ids(field.data, field.facts)
            check_mask(task.name, field.facts or UNKNOWN, image.height, image.width)
        return field

    def _add_problem(self, row: int, value: Any, error: Exception) -> None:
        check_of_file(error, f"{self._task.name} of {self._key(row)!r}")
        reason = f"{_what(error)}{values.source_of(value)}"
        problem = Problem(row, self._key(row), reason)
        self.problems.append(problem)
        if self._task.skip:
            self._noted.append(problem)
            self._add(None)
        else:  # the next run makes this row, and no other
            self.flush()
            self._task.tally.add(self._task.number, 1, 0, 1)
            self._first = row + 1

    def _made(self, rows: range) -> list[Any]:
        """What is given or made for some rows: a value, None, or what the function raised."""
        task = self._task
        if task.function is None:
            return [task.inputs[row - task.first] for row in rows]
        try:
            samples = [_opened(task.pack, task.digest)[row] for row in rows]
            if task.batch_size is None:
                return [task.function(samples[0])]
            found = _listed(task.function(samples))
        except MemoryError:
            raise
        except (SystemExit, GeneratorExit) as error:  # the run would end as if all were made
            raise self._wrong(rows, f"the function ended the process: {error!r}; let it return a "
                                    "value, or raise an error") from error  # fmt: skip
        except Exception as error:  # noqa: BLE001 (the function is the user's)
            return [_Failed(error)] if len(rows) == 1 else self._one_by_one(rows, error)
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
        if not any(isinstance(value, _Failed) for value in found):
            raise self._wrong(
                rows, f"the function fails for {len(rows)} samples at once, and for none of them "
                f"alone: {_what(error)}; mend it, or say a smaller batch size"
            ) from error  # fmt: skip
        return found

    def _wrong(self, rows: range, what: str) -> BadImagesError:
        task = self._task
        return BadImagesError(f"{task.pack}: {task.name} of {self._key(rows[0])!r}: {what}")

    def _key(self, row: int) -> str:
        return _opened(self._task.pack, self._task.digest).key(row)

    def flush(self) -> None:
        """Write a part of what was made since the last one."""
        if not self._values:
            return
        stop = self._first + len(self._values)
        header = {"kind": self._kind, "problems": self._noted, "shapes": self._shapes}
        parts.write(self._task.folder, self._first, stop, header, self._values)
        self._first = stop
        self._clear()


def _listed(found: Any) -> Any:
    """The values of a batch as a list; what is no batch as it is."""
    is_one = isinstance(found, (str, bytes, Mapping)) or not hasattr(found, "__iter__")
    return found if is_one else list(found)


def _what(error: Exception) -> str:
    """What went wrong; of an error in the user's function also where it was raised."""
    if isinstance(error, PackioError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    place = f" (at {frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"
