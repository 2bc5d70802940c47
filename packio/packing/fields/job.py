"""One field that is added: its values are made in parts, written into shards, and published.

The journal ``PACK.packio-add/shards`` holds a part for some rows whose values are made, and a
record for each shard of the pack whose container of values is written. The plan is a digest of all
that the values depend on: another run goes on with them if its own is the same.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packio.errors import (
    BadImagesError,
    DecodeError,
    OptionError,
    OutputExistsError,
    SourceError,
)
from packio.formats import added_shard
from packio.index.columns import OF_FILES
from packio.packing.fields import making, parts, values
from packio.packing.fields.making import Problem
from packio.packing.fields.parts import FieldTask
from packio.packing.publish import fields as publishing
from packio.packing.publish.fields import Placed
from packio.packing.run import executors, shards
from packio.packing.run.reading import KEEP
from packio.packing.run.tally import Tally
from packio.packs import opening
from packio.sources import Listing
from packio.storage.journal import Journal
from packio.storage.workshop import Workshop
from packio.system import locks
from packio.system.files import remove
from packio.system.pools import ThreadPool, run_tasks
from packio.system.progress import PROGRESS_SECONDS, Progress, ProgressCallback

SUFFIX = ".packio-add"  # of the workshop: it does not bar readers
_TASKS = 4  # of each worker, at least: workers end at about the same time
_THREADS = 4  # that read files in this process
_MOST_ERRORS = 100  # a function that fails that often fails for all
_SHOWN = 100  # bad values in a message


@dataclasses.dataclass(frozen=True, slots=True)
class AddReport:
    """What adding a field did.

    Attributes:
        out: The pack.
        name: Of the field.
        kind: Of the field.
        samples: Samples that got a value.
        missing: Samples that were to get one, and have none.
        kept: Samples that had a value before; with ``only_new``.
        unfilled: Samples without a value that lie among those of ``kept``, and stay without.
        skipped: Key and reason of each bad value that was left out.
        unused: Files or keys of the source that no sample has.
        bytes: Bytes of the values.
        shapes: Shape and dtype of arrays → how many there are, as {"(4, 64, 64) float16": 2000}.
        remaining: Bytes of replaced values that lie in files with other fields, and stay there.
        resumed: Samples whose values an earlier run had made.
        digest: Hexadecimal SHA-256 of the new index.
        seconds: Duration of the whole run.
    """

    out: Path
    name: str
    kind: str
    samples: int
    missing: int
    kept: int
    unfilled: int
    skipped: tuple[tuple[str, str], ...]
    unused: tuple[str, ...]
    bytes: int
    shapes: dict[str, int]
    remaining: int
    resumed: int
    digest: str
    seconds: float


class AddOptions(NamedTuple):
    """What is asked for, beside the values."""

    name: str
    kind: str | None  # None: by the values
    skip: bool  # leave bad values out
    missing: bool  # allow samples without a value
    only_new: bool  # leave shards alone in which a sample has a value
    workers: int  # processes, 0 for this one
    batch_size: int | None  # samples that the function takes at once; None: one
    max_errors: int | None
    progress: ProgressCallback | None
    began: float  # by `time.monotonic`

    @property
    def limit(self) -> int | None:
        """How many values may be bad before the run stops."""
        return _MOST_ERRORS if self.max_errors is None and not self.skip else self.max_errors


class _Summary(NamedTuple):
    """What the parts of a field hold."""

    kind: str | None  # of the values; None: there are none
    absent: list[int]  # rows that have no value, those of bad values left out
    problems: list[Problem]
    lengths: np.ndarray  # (rows of the pack,) int64, bytes of each value
    shapes: dict[str, int]


class Job:
    """One field that is added."""

    def __init__(self, shop: Workshop, pack: opening.Pack, asked: AddOptions) -> None:
        self._shop, self._pack, self._asked = shop, pack, asked
        self._kind = asked.kind
        self._called, self._stopped = -math.inf, threading.Event()
        self._shards = publishing.rows_of_shards(pack)
        self._numbers = [*range(len(self._shards))]  # of the shards that get values
        self._kept = self._unfilled = 0
        self._problems: list[Problem] = []
        if asked.only_new and asked.name in pack.fields:
            self._leave_old()

    def run(self, given: Any, *, resume: bool) -> AddReport:
        """Make the values, write the containers, publish the index."""
        pack, name = self._pack, self._asked.name
        keys = [*pack.index_file.every_key()]
        rows = self._rows()
        found = values.of(given, name, keys, self._kind)
        if self._asked.batch_size is not None and found.function is None:
            raise OptionError(f"batch_size: {found.origin} is no function, which takes batches")
        if self._kept and not rows:  # every shard has values: nothing is new
            return self._report(found, None, 0, pack.digest, 0)
        if found.function is None:
            asked = [key for first, stop in rows for key in keys[first:stop]]
            if asked and not any(key in found.known for key in asked):
                given = [*map(os.fsdecode, found.known), *found.unused]
                raise _none_fits(pack.path, name, asked, given)
            lacking = [row for row in self._each_row() if found.known.get(keys[row]) is None]
            self._refuse(lacking, keys, found)
        journal = self._journal(found, keys)
        self._begin(journal, found, resume=resume)
        resumed = self._make(journal, found, keys)
        made = self._summary(keys)
        self._refuse(made.absent, keys, found)
        if made.kind is None:
            raise SourceError(f"{pack.path}: no sample has a value of {name}")
        placed = self._written(journal, made.kind, made.lengths, keys)
        digest, remaining = self._publish(made.kind, placed)
        return self._report(found, made, resumed, digest, remaining)

    def unchanged(self, given: Any) -> AddReport | None:
        """The report if the pack has these values already, as a run left it that was killed late.

        A function is not called: it is known by the journal of that run, as where a run goes on.
        """
        pack, name, kind = self._pack, self._asked.name, self._pack.fields[self._asked.name]
        keys = [*pack.index_file.every_key()]
        found = values.of(given, name, keys, self._kind)
        if found.function is not None:
            journal = self._journal(found, keys)
            same = journal.noted()[0] == journal.digest
        else:
            same = self._kind in (None, kind) and all(
                self._data(found.known.get(key)) == pack.read_field(name, row)
                for row, key in enumerate(keys)
            )
        if not same:
            return None
        there = pack.index_file.column(f"{name}/offset").array() >= 0
        self._kept, self._numbers = int(there.sum()), []
        return self._report(found, None, 0, pack.digest, 0)

    def _data(self, value: Any) -> bytes | None:
        try:
            field = values.field_of(value, self._kind)
        except DecodeError:  # left out, or refused: then the pack has no value of it
            return None
        return None if field is None else field.data

    def _report(
        self, found: values.Values, made: _Summary | None, resumed: int, digest: str, remaining: int
    ) -> AddReport:
        name = self._asked.name
        if made is None:  # nothing was new
            made = _Summary(self._pack.fields[name], [], [], np.zeros(0, np.int64), {})
        absent = len(made.absent) + len(made.problems)
        return AddReport(
            self._pack.path, name, str(made.kind),
            sum(stop - first for first, stop in self._rows()) - absent, absent, self._kept,
            self._unfilled, tuple((one.key, one.reason) for one in sorted(made.problems)),
            tuple(found.unused), int(made.lengths.sum()), made.shapes, remaining, resumed, digest,
            time.monotonic() - self._asked.began,
        )  # fmt: skip

    def _leave_old(self) -> None:
        """Leave out the shards in which samples have a value of the field."""
        name, pack = self._asked.name, self._pack
        kind = pack.fields[name]
        if self._kind not in (None, kind):
            raise OptionError(f"{pack.path}: {name} is of kind {kind} there, not {self._kind}")
        self._kind = kind
        there = pack.index_file.column(f"{name}/offset").array() >= 0
        self._numbers = [
            number
            for number, (_, first, stop) in enumerate(self._shards)
            if stop > first and not there[first:stop].any()
        ]
        self._kept = int(there.sum())
        new = sum(stop - first for first, stop in self._rows())
        self._unfilled = len(pack) - self._kept - new

    def _rows(self) -> list[tuple[int, int]]:
        """Ranges of rows that get values; those of shards side by side are one."""
        found = list[tuple[int, int]]()
        for number in self._numbers:
            _, first, stop = self._shards[number]
            if found and found[-1][1] == first:
                found[-1] = found[-1][0], stop
            else:
                found.append((first, stop))
        return [(first, stop) for first, stop in found if stop > first]

    def _each_row(self) -> Iterator[int]:
        return itertools.chain.from_iterable(range(*rows) for rows in self._rows())

    def _refuse(self, absent: Sequence[int], keys: Sequence[bytes], found: values.Values) -> None:
        """Refuse samples without a value, unless they are allowed."""
        if absent and not self._asked.missing:
            unused = found.unused
            more = f"; {len(unused):,} of the values belong to no sample: {values.shown(unused)}"
            count = sum(stop - first for first, stop in self._rows())
            raise SourceError(
                f"{self._pack.path}: {len(absent):,} of {count:,} samples have no value of "
                f"{self._asked.name}: {values.shown([os.fsdecode(keys[row]) for row in absent])}"
                f"{more if unused else ''}; give them one, or allow it with --missing"
            )

    def _journal(self, found: values.Values, keys: Sequence[bytes]) -> Journal:
        """The journal, with the digest of all that the values depend on."""
        told = f"{self._asked.name} {self._kind} {found.digest} {self._shards} {self._numbers}"
        digest = hashlib.sha256(told.encode())
        for key in keys:
            digest.update(b"%d %s" % (len(key), key))
        # A function may see all of the samples but the field itself. Where values lie is left out:
        # it changes when a field leaves the pack.
        index, of_samples = self._pack.index_file, hashlib.sha256(str(self._pack.classes).encode())
        for name in sorted(index.column_names):
            is_place = name.endswith(("/file", "/offset")) or name in OF_FILES
            if not is_place and not name.startswith(f"{self._asked.name}/"):
                of_samples.update(name.encode() + index.column(name).array().tobytes())
        digest.update(of_samples.digest())
        return Journal(self._shop.shards, digest.hexdigest(), len(self._shards))

    def _begin(self, journal: Journal, found: values.Values, *, resume: bool) -> None:
        """Keep what an earlier run with the same plan has made; remove that of another plan."""
        digest, before = journal.noted()
        if resume and digest == journal.digest:
            journal.sweep()
            return
        rows = _rows_made(journal.folder)
        if resume and rows and before:
            why = "end that one first, as this command would discard them"
            if (before["name"], before["origin"]) == (self._asked.name, found.origin):
                why = "its kind, or samples or other fields of the pack have changed since"
            if before["is_function"] or before["name"] != self._asked.name:
                raise OutputExistsError(
                    f"{self._shop.out}: {_left(before, rows)}; {why}; to discard them: --no-resume"
                )
        journal.discard()
        remove(self._shop.built)
        self._shop.built.mkdir()
        is_function = found.function is not None
        journal.begin(
            {"name": self._asked.name, "origin": found.origin, "is_function": is_function}
        )

    def _run_tasks(
        self, function: Callable[[Any], Any], tasks: Sequence[Any],
        took: Callable[[Any, Future[Any]], None], done: Callable[[], int], total: int, stage: str,
        threads: int = 1,
    ) -> None:  # fmt: skip
        workers = min(self._asked.workers, len(tasks))

        def tell() -> None:
            now, count, progress = time.monotonic(), done(), self._asked.progress
            if progress is not None and (count >= total or now - self._called >= PROGRESS_SECONDS):
                self._called = now
                progress(Progress(count, total, 0, 0, 0, now - self._asked.began, stage))

        here: contextlib.AbstractContextManager[Executor] = ThreadPool(threads, "packio-field")
        with here if workers <= 1 else executors.started("local", workers) as engine:
            # A function of the user's that kills its process would do so again: one attempt.
            run_tasks(
                engine, function, ((task,) for task in tasks), took, attempts=1, step=tell,
                most=2 * max(workers, _THREADS), stop=self._stopped.set,
            )  # fmt: skip

    def _make(self, journal: Journal, found: values.Values, keys: Sequence[bytes]) -> int:
        """Make the values that are not there yet; return how many samples need none."""
        folder, asked, wanted = journal.folder, self._asked, self._rows()
        self._drop_unfit(journal)
        there, count = parts.there(folder), sum(stop - first for first, stop in wanted)
        even = math.ceil(count / max(asked.workers * _TASKS, 1))
        most, size = min(parts.ROWS, max(even, 1)), asked.batch_size or 1
        ranges = list(parts.lacking(there, wanted, math.ceil(most / size) * size))
        resumed = count - sum(stop - first for first, stop in ranges)
        tally = Tally(folder / "tally-values", len(ranges))
        tally.clear()
        tasks = [
            making.MakeTask(
                number, tally, folder, self._pack.path.absolute(), self._pack.digest, first, stop,
                asked.name, self._kind, found.function, asked.batch_size,
                [found.known.get(k) for k in keys[first:stop]] if found.function is None else (),
                asked.skip, asked.limit,
            )
            for number, (first, stop) in enumerate(ranges)
        ]  # fmt: skip

        def took(_: tuple[making.MakeTask], future: Future[list[Problem]]) -> None:
            self._problems += future.result()
            if asked.limit is not None and len(self._problems) > asked.limit:
                raise self._bad_values(asked.limit)

        if tasks:
            make: Callable[[making.MakeTask], list[Problem]] = making.make
            if min(asked.workers, len(tasks)) <= 1:  # a task in this process may be told to stop
                make = functools.partial(making.make, stopped=self._stopped.is_set)
            self._run_tasks(
                make, tasks, took, lambda: resumed + tally.total().samples, count, "reading",
                1 if found.function is not None else _THREADS,
            )  # fmt: skip
            making.close()
        if self._problems and not asked.skip:
            raise self._bad_values(None)
        return resumed

    def _drop_unfit(self, journal: Journal) -> None:
        """Remove parts of an earlier run that allowed what this run does not, and damaged ones."""
        for _, _, path in parts.there(journal.folder):
            part = parts.read(path)
            bad = part is None or (part.problems and not self._asked.skip)
            lacks = part is not None and not self._asked.missing and (
                int((~part.present).sum()) > len(part.problems)
            )  # fmt: skip
            if bad or lacks:
                for number in self._numbers:  # a container of these values is no more of use
                    journal.forget(number)
                path.unlink()

    def _bad_values(self, limit: int | None) -> BadImagesError:
        """The error for bad values, with all of them."""
        listed = sorted(self._problems)
        lines = "".join(f"\n  {ascii(one.key)[1:-1]}: {one.reason}" for one in listed[:_SHOWN])
        more = f"\n  and {len(listed) - _SHOWN:,} more" if len(listed) > _SHOWN else ""
        advice = "mend them, or leave them out with --on-error skip"
        if limit is not None:
            advice = f"stopped, as more than {limit:,} are bad (--max-errors); {advice}"
        error = BadImagesError(
            f"{self._pack.path}: {self._asked.name} is not added; bad values: {len(listed):,}; "
            f"{advice}:{lines}{more}"
        )
        error.skipped = tuple((one.key, one.reason) for one in listed)
        return error

    def _summary(self, keys: Sequence[bytes]) -> _Summary:
        """Look through the parts."""
        kinds: dict[str, int] = {}
        problems, absent = list[Problem](), list[int]()
        lengths, shapes = np.zeros(len(keys), np.int64), collections.Counter[str]()
        for first, part in parts.whole(self._shop.shards):
            if part.kind is not None:
                kinds.setdefault(part.kind, first)
            bad = {row for row, _, _ in part.problems}
            problems += [Problem(*problem) for problem in part.problems]
            lengths[first : first + len(part.present)] = np.diff(part.offsets)
            shapes.update(part.shapes)
            rows = (first + i for i in (~part.present).nonzero()[0].tolist())
            absent += [row for row in rows if row not in bad]
        if len(kinds) > 1:
            shown = [f"{kind} ({os.fsdecode(keys[row])!r})" for kind, row in kinds.items()]
            raise SourceError(
                f"{self._pack.path}: {self._asked.name}: values are of several kinds: "
                f"{', '.join(shown)}; say which: kind=…"
            )
        kind = next(iter(kinds), None)
        return _Summary(kind, absent, problems, lengths, dict(shapes.most_common()))

    def _written(
        self, journal: Journal, kind: str, lengths: np.ndarray, keys: Sequence[bytes]
    ) -> list[Placed]:
        """Write the containers that are not written yet; return all of them."""
        built, name = self._shop.built, self._asked.name
        tally = Tally(journal.folder / "tally", journal.tasks)
        tally.clear()
        tasks = []
        for number in self._numbers:
            shard, first, stop = self._shards[number]
            path = added_shard(self._pack.format, shard, name, kind)
            publishing.check_free(self._pack, name, [path])
            done = journal.find(number)
            if done is None or not journal.settle(done, built):
                journal.forget(number)
                listing = Listing(
                    "pack", None, list(keys[first:stop]), lengths[first:stop].tolist(), None, []
                )
                tasks.append(
                    FieldTask(
                        number, path, self._pack.metadata["format"], {}, journal, tally, True, None,
                        None, listing, KEEP, 1, None, first, name, kind,
                    )
                )  # fmt: skip

        def took(_: tuple[FieldTask], future: Future[shards.Outcome]) -> None:
            future.result()

        total = sum(len(task.listing.keys) for task in tasks)
        self._run_tasks(
            shards.write, tasks, took, lambda: tally.total().samples, total, "publishing"
        )
        placed = []
        for number in self._numbers:
            record = journal.find(number)
            if record is None or not journal.settle(record, built):
                raise OSError(f"{journal.folder}: a container is gone; run the command again")
            _, first, stop = self._shards[number]
            placed.append(Placed(first, stop, record))
        return placed

    def _publish(self, kind: str, placed: Sequence[Placed]) -> tuple[str, int]:
        """Put containers and the index in place; an old field of the name leaves the pack.

        Returns the new digest, and the bytes of old values that stay in files with other fields.
        """
        name, pack = self._asked.name, self._pack
        publishing.check_free(pack, name, [path for one in placed for path in one.moved])
        if name not in pack.fields or self._kept:
            return publishing.add(pack, name, kind, placed, self._shop), 0
        _, _, remaining = publishing.drop(pack, name, self._shop)
        with opening.open(pack.path) as now, locks.changing(now.index_file.path):
            return publishing.add(now, name, kind, placed, self._shop), remaining


def check_none_left(out: Path, what: str) -> None:
    """Refuse to change a pack if values that a function made would fit it no more."""
    shop = Workshop.of(out, SUFFIX)
    _, before = Journal(shop.shards).noted()
    if before.get("is_function") and (rows := _rows_made(shop.shards)):
        raise OutputExistsError(
            f"{out}: {_left(before, rows)}; {what} would make them useless: end that command "
            f"first, or discard the values: remove {shop.folder}"
        )


def _left(before: dict[str, Any], rows: int) -> str:
    return (
        f"packio add of {before['name']!r} from {before['origin']} was cut short, "
        f"with {rows:,} values made"
    )


def _rows_made(folder: Path) -> int:
    return sum(stop - first for first, stop, _ in parts.there(folder)) if folder.is_dir() else 0


def _none_fits(
    path: Path, name: str, lacking: Sequence[bytes], given: Sequence[str]
) -> SourceError:
    """The error for values of which none has the key of a sample that lacks one."""
    told = f"values have {values.shown(given)}" if given else "there are no values"
    samples = values.shown([os.fsdecode(key) for key in lacking])
    return SourceError(
        f"{path}: no value of {name} has the key of a sample that needs one: {told}; samples have "
        f"{samples}; name the values by these keys (packio ls {path})"
    )
