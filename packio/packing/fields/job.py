"""One field that is added: its values are made in parts, written into shards, and published.

The journal ``PACK.packio-add/shards`` holds a part for some rows whose values are made, and a
record for each shard of the pack whose container of values is written. The plan is a digest of all
that the values depend on: another run goes on with them if its own is the same.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from packio.errors import BadImagesError, DecodeError, OptionError, OutputExistsError, SourceError
from packio.formats import name_added_shard
from packio.index.columns import OF_FILES
from packio.index.indexfile import Index
from packio.packing.fields import parts, publishing, values
from packio.packing.fields.parts import FieldTask, Problem
from packio.packing.run import executors, shards
from packio.packing.run.reading import KEEP
from packio.packing.run.shards import RunOptions, Tally
from packio.packs import opening
from packio.sources import Listing
from packio.storage.journal import Journal
from packio.storage.workshop import Workshop
from packio.system import locks
from packio.system.files import remove
from packio.system.pools import run_tasks
from packio.system.progress import Progress

SUFFIX = ".packio-add"  # of the workshop: it does not bar readers
_TASKS = 4  # of each worker, at least: workers end at about the same time
_THREADS = 4  # that read files in this process
_SHOWN = 100  # bad values in a message


@dataclasses.dataclass(frozen=True, slots=True)
class AddReport:
    """What adding a field did."""

    out: Path  # the pack
    name: str  # of the field
    kind: str
    samples: int  # that got a value
    missing: int  # samples that were to get a value, and have none
    kept: int  # samples that had a value before; with ``only_new``
    unfilled: int  # samples without a value that lie among those of `kept`, and stay without
    skipped: tuple[tuple[str, str], ...]  # key and reason of each bad value that was left out
    unused: tuple[str, ...]  # files or keys of the source that no sample has
    bytes: int  # of the values
    shapes: dict[str, int]  # of arrays → their number, as {"(4, 64, 64) float16": 2000}
    remaining: int  # bytes of replaced values that stay in files with other fields
    resumed: int  # samples whose values an earlier run had made
    digest: str  # hexadecimal SHA-256 of the new index
    seconds: float  # of the whole run


class _Summary(NamedTuple):
    kind: str | None  # of the values; None: there are none
    absent: Sequence[int] = ()  # rows that have no value, those of bad values left out
    problems: Sequence[Problem] = ()
    lengths: np.ndarray = np.zeros(0, np.int64)  # (rows of the pack,), bytes of each value
    shapes: Mapping[str, int] = MappingProxyType({})


class Job:
    def __init__(
        self, shop: Workshop, pack: opening.Pack, name: str, kind: str | None, options: RunOptions,
        *, missing: bool, only_new: bool, batch_size: int | None,
    ) -> None:  # fmt: skip
        """Begin with a field of a kind, None: by the values.

        `options.workers` may be 0, for this process. `missing` allows samples without a value,
        `only_new` leaves shards alone in which a sample has one. A function takes `batch_size`
        samples at once; None: one.
        """
        self._shop, self._pack, self._name, self._kind = shop, pack, name, kind
        self._options, self._missing, self._batch_size = options, missing, batch_size
        self._keys = [*pack.index_file.every_key()]
        self._shards = publishing.rows_of_shards(pack)
        self._numbers = [*range(len(self._shards))]  # of the shards that get values
        self._kept = self._unfilled = 0
        self._problems: list[Problem] = []
        if only_new and name in pack.fields:
            self._leave_old()

    def run(self, given: Any, *, resume: bool) -> AddReport:
        """Make the values, write the containers, publish the index."""
        pack, name, keys, rows = self._pack, self._name, self._keys, self._rows()
        found = values.find(given, name, keys, self._kind)
        if self._batch_size is not None and found.function is None:
            raise OptionError(f"batch_size: {found.origin} is no function, which takes batches")
        if self._kept and not rows:  # every shard has values: nothing is new
            return self._report(found, pack.digest)
        if found.function is None:
            wanted = [row for first, stop in rows for row in range(first, stop)]
            if wanted and not any(keys[row] in found.known for row in wanted):
                raise _none_fits(pack.path, name, [keys[row] for row in wanted], found)
            self._refuse([row for row in wanted if found.known.get(keys[row]) is None], found)
        journal = self._journal(found)
        self._begin(journal, found, resume=resume)
        resumed = self._make(journal, found)
        made = self._summary()
        self._refuse(made.absent, found)
        if made.kind is None:
            raise SourceError(f"{pack.path}: no sample has a value of {name}")
        placed = self._write(journal, made.kind, made.lengths)
        digest, remaining = self._publish(made.kind, placed)
        return self._report(found, digest, made, resumed, remaining)

    def report_if_unchanged(self, given: Any) -> AddReport | None:
        """The report if the pack has these values already, as a run left it that was killed late.

        A function is not called: it is known by the journal of that run, as where a run goes on.
        """
        pack, name = self._pack, self._name
        found = values.find(given, name, self._keys, self._kind)
        if found.function is not None:
            journal = self._journal(found)
            same = not self._shop.keep and journal.read_plan()[0] == journal.digest  # it has joined
        else:
            same = self._kind in (None, pack.fields[name]) and all(
                self._data(found.known.get(key)) == pack.read_field(name, row)
                for row, key in enumerate(self._keys)
            )
        if not same:
            return None
        self._kept = int((pack.index_file.column(f"{name}/offset").array() >= 0).sum())
        self._numbers = []
        return self._report(found, pack.digest)

    def _data(self, value: Any) -> bytes | None:
        try:
            field = values.field_of(value, self._kind)
        except DecodeError:  # left out, or refused: then the pack has no value of it
            return None
        return None if field is None else field.data

    def _report(
        self, found: values.Values, digest: str, made: _Summary | None = None, resumed: int = 0,
        remaining: int = 0,
    ) -> AddReport:  # fmt: skip
        made = made or _Summary(self._pack.fields[self._name])  # nothing was new
        absent = len(made.absent) + len(made.problems)
        return AddReport(
            self._pack.path, self._name, str(made.kind), self._count() - absent, absent, self._kept,
            self._unfilled, tuple((one.key, one.reason) for one in sorted(made.problems)),
            tuple(found.unused), int(made.lengths.sum()), dict(made.shapes), remaining, resumed,
            digest, time.monotonic() - self._options.began,
        )  # fmt: skip

    def _leave_old(self) -> None:
        """Leave out the shards in which samples have a value of the field."""
        name, pack = self._name, self._pack
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
        self._unfilled = len(pack) - self._kept - self._count()

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

    def _count(self) -> int:
        return sum(stop - first for first, stop in self._rows())

    def _refuse(self, absent: Sequence[int], found: values.Values) -> None:
        """Refuse samples without a value, unless they are allowed."""
        if absent and not self._missing:
            unused = found.unused
            more = (
                f"; {len(unused):,} of the values belong to no sample: {values.first_names(unused)}"
            )
            lacking = values.first_names([os.fsdecode(self._keys[row]) for row in absent])
            raise SourceError(
                f"{self._pack.path}: {len(absent):,} of {self._count():,} samples have no value of "
                f"{self._name}: {lacking}{more if unused else ''}; give them one, or allow it with "
                "--missing"
            )

    def _journal(self, found: values.Values) -> Journal:
        """The journal, with the digest of all that the values depend on."""
        told = f"{self._name} {self._kind} {found.digest} {self._shards} {self._numbers}"
        digest = hashlib.sha256(told.encode())
        for key in self._keys:
            digest.update(b"%d %s" % (len(key), key))
        # A function may see all of the samples but the field itself. Where values lie is left out:
        # it changes when a field leaves the pack.
        index, of_samples = self._pack.index_file, hashlib.sha256(str(self._pack.classes).encode())
        for name in sorted(index.column_names):
            is_place = name.endswith(("/file", "/offset")) or name in OF_FILES
            if not is_place and not name.startswith(f"{self._name}/"):
                of_samples.update(name.encode() + index.column(name).array().tobytes())
        digest.update(of_samples.digest())
        return Journal(self._shop.shards, digest.hexdigest(), len(self._shards))

    def _begin(self, journal: Journal, found: values.Values, *, resume: bool) -> None:
        """Keep what an earlier run with the same plan has made; remove that of another plan."""
        digest, before = journal.read_plan()
        if resume and digest == journal.digest:
            journal.sweep()
            return
        rows = _rows_made(journal.folder)
        if resume and rows and before:
            why = "end that one first, as this command would discard them"
            if (before["name"], before["origin"]) == (self._name, found.origin):
                why = "its kind, or samples or other fields of the pack have changed since"
            if before["is_function"] or before["name"] != self._name:
                raise OutputExistsError(
                    f"{self._shop.out}: {_left(before, rows)}; {why}; to discard them: --no-resume"
                )
        journal.discard()
        remove(self._shop.built)
        self._shop.built.mkdir()
        is_function = found.function is not None
        journal.begin({"name": self._name, "origin": found.origin, "is_function": is_function})

    def _run_tasks(
        self, function: Callable[[Any], Any], tasks: Sequence[Any], tally: Tally,
        took: Callable[[Any, Future[Any]], None], before: int, total: int, stage: str,
        threads: int = 1,
    ) -> None:  # fmt: skip
        options, workers = self._options, min(self._options.workers, len(tasks))

        def step() -> None:
            if options.progress is not None:
                done, seconds = before + tally.total().samples, time.monotonic() - options.began
                options.progress(Progress(done, total, 0, 0, 0, seconds, stage))

        with executors.start_engine("local", workers, threads) as engine:
            # A function of the user's that kills its process would do so again: one attempt.
            run_tasks(
                engine, function, ((task,) for task in tasks), took, attempts=1, step=step,
                most=2 * max(workers, _THREADS), stop=tally.stop,
            )  # fmt: skip

    def _make(self, journal: Journal, found: values.Values) -> int:
        """Make the values that are not there yet; return how many samples need none."""
        folder, options, keys = journal.folder, self._options, self._keys
        self._drop_unfit(journal)
        there, count = parts.list_parts(folder), self._count()
        even = math.ceil(count / max(options.workers * _TASKS, 1))
        most, size = min(parts.ROWS, max(even, 1)), self._batch_size or 1
        ranges = list(parts.lacking(there, self._rows(), math.ceil(most / size) * size))
        resumed = count - sum(stop - first for first, stop in ranges)
        tally = Tally(folder / "tally-values", len(ranges))
        tally.clear()
        limit = options.max_errors
        tasks = [
            parts.MakeTask(
                number, tally, folder, self._pack.path.absolute(), self._pack.digest, first, stop,
                self._name, self._kind, found.function, self._batch_size,
                [found.known.get(k) for k in keys[first:stop]] if found.function is None else (),
                options.skip, limit,
            )
            for number, (first, stop) in enumerate(ranges)
        ]  # fmt: skip

        def took(_: tuple[parts.MakeTask], future: Future[list[Problem]]) -> None:
            self._problems += future.result()
            if limit is not None and len(self._problems) > limit:
                raise self._bad_values(limit)

        if tasks:
            threads = 1 if found.function is not None else _THREADS
            self._run_tasks(parts.make, tasks, tally, took, resumed, count, "reading", threads)
            parts.open_pack.cache_clear()
        if self._problems and not options.skip:
            raise self._bad_values(None)
        return resumed

    def _drop_unfit(self, journal: Journal) -> None:
        """Remove parts of an earlier run that allowed what this run does not, and damaged ones."""
        for _, _, path in parts.list_parts(journal.folder):
            part = parts.read_part(path)
            bad = part is None or (part.problems and not self._options.skip)
            lacks = part is not None and not self._missing and (
                int((~part.present).sum()) > len(part.problems)
            )  # fmt: skip
            if bad or lacks:
                for number in self._numbers:  # a container of these values is no more of use
                    journal.forget(number)
                path.unlink()

    def _bad_values(self, limit: int | None) -> BadImagesError:
        listed = sorted(self._problems)
        lines = "".join(f"\n  {ascii(one.key)[1:-1]}: {one.reason}" for one in listed[:_SHOWN])
        more = f"\n  and {len(listed) - _SHOWN:,} more" if len(listed) > _SHOWN else ""
        advice = "mend them, or leave them out with --on-error skip"
        if limit is not None:
            advice = f"stopped, as more than {limit:,} are bad (--max-errors); {advice}"
        error = BadImagesError(
            f"{self._pack.path}: {self._name} is not added; bad values: {len(listed):,}; "
            f"{advice}:{lines}{more}"
        )
        error.skipped = tuple((one.key, one.reason) for one in listed)
        return error

    def _summary(self) -> _Summary:
        kinds: dict[str, int] = {}
        problems, absent = list[Problem](), list[int]()
        lengths, shapes = np.zeros(len(self._keys), np.int64), collections.Counter[str]()
        for first, part in parts.whole(self._shop.shards):
            if part.kind is not None:
                kinds.setdefault(part.kind, first)
            bad = {problem.row for problem in part.problems}
            problems += part.problems
            lengths[first : first + len(part.present)] = np.diff(part.offsets)
            shapes.update(part.shapes)
            rows = (first + i for i in (~part.present).nonzero()[0].tolist())
            absent += [row for row in rows if row not in bad]
        if len(kinds) > 1:
            shown = [f"{kind} ({os.fsdecode(self._keys[row])!r})" for kind, row in kinds.items()]
            raise SourceError(
                f"{self._pack.path}: {self._name}: values are of several kinds: "
                f"{', '.join(shown)}; say which: kind=…"
            )
        kind = next(iter(kinds), None)
        return _Summary(kind, absent, problems, lengths, dict(shapes.most_common()))

    def _write(self, journal: Journal, kind: str, lengths: np.ndarray) -> dict[int, Index]:
        """Write the containers that are not written yet; return the record of each shard's."""
        built, name, keys = self._shop.built, self._name, self._keys
        tally = Tally(journal.folder / "tally", journal.tasks)
        tally.clear()
        tasks = []
        for number in self._numbers:
            shard, first, stop = self._shards[number]
            path = name_added_shard(self._pack.format, shard, name, kind)
            publishing.check_free(self._pack, name, [path])
            done = journal.find(number)
            if done is None or not journal.settle(done, built):
                journal.forget(number)
                listing = Listing(
                    "pack", None, list(keys[first:stop]), lengths[first:stop].tolist(), None, []
                )
                tasks.append(
                    FieldTask(
                        number, path, self._pack.metadata["format"], {}, journal, tally, listing,
                        KEEP, RunOptions(skip=True), name, first, kind,
                    )
                )  # fmt: skip

        total = sum(len(task.listing.keys) for task in tasks)
        self._run_tasks(
            shards.write, tasks, tally, lambda _, future: future.result(), 0, total, "publishing"
        )
        records = {number: journal.find(number) for number in self._numbers}
        placed = {n: r for n, r in records.items() if r is not None and journal.settle(r, built)}
        if len(placed) < len(records):
            raise OSError(f"{journal.folder}: a container is gone; run the command again")
        return placed

    def _publish(self, kind: str, placed: Mapping[int, Index]) -> tuple[str, int]:
        """Put all in place; return the digest, and bytes of old values that stay in other files."""
        name, pack = self._name, self._pack
        moved = [path for record in placed.values() for path in publishing.list_moves(record)]
        publishing.check_free(pack, name, moved)
        if name not in pack.fields or self._kept:
            return publishing.add(pack, name, kind, placed, self._shop), 0
        _, _, remaining = publishing.drop(pack, name, self._shop)
        with opening.open(pack.path) as now, locks.changing(now.index_file.path):
            return publishing.add(now, name, kind, placed, self._shop), remaining


def check_none_left(out: Path, what: str) -> None:
    """Refuse to change a pack if values that a function made would fit it no more."""
    shop = Workshop.locate(out, SUFFIX)
    _, before = Journal(shop.shards).read_plan()
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
    return (
        sum(stop - first for first, stop, _ in parts.list_parts(folder)) if folder.is_dir() else 0
    )


def _none_fits(
    path: Path, name: str, lacking: Sequence[bytes], found: values.Values
) -> SourceError:
    """The error for values of which none has the key of a sample that lacks one."""
    given = [*map(os.fsdecode, found.known), *found.unused]
    told = f"values have {values.first_names(given)}" if given else "there are no values"
    samples = values.first_names([os.fsdecode(key) for key in lacking])
    return SourceError(
        f"{path}: no value of {name} has the key of a sample that needs one: {told}; samples have "
        f"{samples}; name the values by these keys (packio ls {path})"
    )
