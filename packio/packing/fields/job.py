"""One field that is added: its values are made in parts, written into containers, and published."""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from packio.errors import DecodeError, OptionError, SourceError
from packio.formats import added_shard
from packio.index.columns import OF_FILES
from packio.packing.fields import carrying, containers, journal, making, parts, stock, values
from packio.packing.fields.asking import AddReport, Asked
from packio.packing.fields.making import Problem
from packio.packing.fields.stock import Stock
from packio.packing.publish import fields as publishing
from packio.packs import opening
from packio.storage.workshop import Workshop
from packio.system import locks

_TASKS = 4  # of each worker, at least: workers end at about the same time


class Job:
    """One field that is added."""

    def __init__(self, shop: Workshop, pack: opening.Pack, asked: Asked) -> None:
        self._shop, self._pack, self._asked = shop, pack, asked
        self._kind = asked.kind
        self._carrier = carrying.Carrier(asked.workers, asked.progress, asked.began)
        self._shards = containers.rows_of_shards(pack)
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
            return self._report(found, Stock(self._kind, [], [], 0, {}), 0, pack.digest, 0)
        if found.function is None:
            asked = [key for first, stop in rows for key in keys[first:stop]]
            if asked and not any(key in found.known for key in asked):
                given = [*map(os.fsdecode, found.known), *found.unused]
                raise stock.none_fits(pack.path, name, asked, given)
            lacking = [row for row in self._each_row() if found.known.get(keys[row]) is None]
            self._refuse(lacking, keys, found)
        journal.begin(self._shop, self._plan(found, keys), resume=resume)
        resumed = self._make(found, keys)
        made = stock.taken(self._shop.shards, f"{pack.path}: {name}", keys)
        self._refuse(made.absent, keys, found)
        if made.kind is None:
            raise SourceError(f"{pack.path}: no sample has a value of {name}")
        digest, remaining = self._publish(made.kind, self._written(made.kind, keys))
        return self._report(found, made, resumed, digest, remaining)

    def unchanged(self, given: Any) -> AddReport | None:
        """The report if the pack has these values already, as a run left it that was killed late.

        A function is not called: it is known by the journal of that run, as where a run goes on.
        """
        pack, name, kind = self._pack, self._asked.name, self._pack.fields[self._asked.name]
        keys = [*pack.index_file.every_key()]
        found = values.of(given, name, keys, self._kind)
        if found.function is not None:
            same = journal.read(self._shop.shards) == self._plan(found, keys)
        else:
            same = self._kind in (None, kind) and all(
                self._data(found.known.get(key)) == pack.read_field(name, row)
                for row, key in enumerate(keys)
            )
        if not same:
            return None
        self._kept, self._numbers = (
            int((pack.index_file.column(f"{name}/offset").array() >= 0).sum()),
            [],
        )
        return self._report(found, Stock(kind, [], [], 0, {}), 0, pack.digest, 0)

    def _data(self, value: Any) -> bytes | None:
        try:
            field = values.field_of(value, self._kind)
        except DecodeError:  # left out, or refused: then the pack has no value of it
            return None
        return None if field is None else field.data

    def _report(
        self, found: values.Values, made: Stock, resumed: int, digest: str, remaining: int
    ) -> AddReport:
        absent = len(made.absent) + len(made.problems)
        return AddReport(
            self._pack.path, self._asked.name, str(made.kind),
            sum(stop - first for first, stop in self._rows()) - absent, absent, self._kept,
            self._unfilled, tuple((one.key, one.reason) for one in sorted(made.problems)),
            tuple(found.unused), made.bytes, made.shapes, remaining, resumed, digest,
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
        old = [bool(there[first:stop].any()) for _, first, stop in self._shards]
        self._numbers = [
            number for number, (_, first, stop) in enumerate(self._shards)
            if not old[number] and stop > first
        ]  # fmt: skip
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
            raise stock.lacking(
                self._pack.path, self._asked.name, [keys[row] for row in absent],
                sum(stop - first for first, stop in self._rows()), found.unused,
            )  # fmt: skip

    def _plan(self, found: values.Values, keys: Sequence[bytes]) -> journal.Plan:
        name = self._asked.name
        told = f"{name} {self._kind} {found.digest} {self._shards} {self._numbers}"
        digest = hashlib.sha256(told.encode())
        for key in keys:
            digest.update(b"%d %s" % (len(key), key))
        digest.update(self._samples())
        is_function = found.function is not None
        return journal.Plan(digest.hexdigest(), name, found.origin, is_function)

    def _samples(self) -> bytes:
        """Digest of all that a function may see of the samples, but for the field itself.

        Where values lie is left out: it changes when a field leaves the pack.
        """
        index, digest = self._pack.index_file, hashlib.sha256(str(self._pack.classes).encode())
        own = f"{self._asked.name}/"
        for name in sorted(index.column_names):
            is_place = name.endswith(("/file", "/offset")) or name in OF_FILES
            if not is_place and not name.startswith(own):
                digest.update(name.encode() + index.column(name).array().tobytes())
        return digest.digest()

    def _make(self, found: values.Values, keys: Sequence[bytes]) -> int:
        """Make the values that are not there yet; return how many samples need none."""
        folder, asked, wanted = self._shop.shards, self._asked, self._rows()
        self._drop_unfit()
        there, count = parts.there(folder), sum(stop - first for first, stop in wanted)
        even = math.ceil(count / max(asked.workers * _TASKS, 1))
        most, size = min(parts.ROWS, max(even, 1)), asked.batch_size or 1
        ranges = list(parts.lacking(there, wanted, math.ceil(most / size) * size))
        resumed = count - sum(stop - first for first, stop in ranges)
        tasks = [
            making.Task(
                folder, self._pack.path.absolute(), self._pack.digest, first, stop, asked.name,
                self._kind, found.function, asked.batch_size,
                [found.known.get(k) for k in keys[first:stop]] if found.function is None else (),
                asked.skip, asked.limit,
            )
            for first, stop in ranges
        ]  # fmt: skip
        if tasks:
            make: Callable[[making.Task], making.Made] = making.make
            if min(asked.workers, len(tasks)) <= 1:  # a task in this process may be told to stop
                make = functools.partial(making.make, stopped=lambda: self._carrier.stopped)
            self._carrier.run(
                make, tasks, resumed, count, "reading", self._took, parts.Counter(folder),
                threads=1 if found.function is not None else carrying.THREADS,
            )  # fmt: skip
            making.close()
        if self._problems and not asked.skip:
            raise stock.bad(self._pack.path, asked.name, self._problems, None)
        return resumed

    def _drop_unfit(self) -> None:
        """Remove parts of an earlier run that allowed what this run does not, and damaged ones."""
        folder = self._shop.shards
        for _, _, path in parts.there(folder):
            part = parts.read(path)
            bad = part is None or (part.problems and not self._asked.skip)
            lacks = part is not None and not self._asked.missing and (
                int((~part.present).sum()) > len(part.problems)
            )  # fmt: skip
            if bad or lacks:
                path.unlink()
                for note in folder.glob("container-*.packio"):
                    note.unlink()

    def _took(self, made: making.Made) -> int:
        """Note the bad values of a task; return the number of its rows."""
        self._problems += made.problems
        limit = self._asked.limit
        if limit is not None and len(self._problems) > limit:
            raise stock.bad(self._pack.path, self._asked.name, self._problems, limit)
        return made.rows

    def _written(self, kind: str, keys: Sequence[bytes]) -> list[containers.Placed]:
        """Write the containers that are not written yet; return all of them."""
        folder, built, name = self._shop.shards, self._shop.built, self._asked.name
        tasks = []
        for number in self._numbers:
            shard, first, stop = self._shards[number]
            path = added_shard(self._pack.format, shard, name, kind)
            publishing.check_free(self._pack, name, [path])
            done = containers.finished(folder, number)
            if done is None or not containers.is_whole(done, built):
                tasks.append(
                    containers.Task(
                        number, path, self._pack.metadata["format"], name, kind, first, stop,
                        list(keys[first:stop]), folder, built,
                    )
                )  # fmt: skip
        total = sum(task.stop - task.first for task in tasks)
        self._carrier.run(containers.write, tasks, 0, total, "publishing", int)
        found = []
        for number in self._numbers:
            one = containers.finished(folder, number)
            if one is None:
                raise OSError(f"{folder}: a container is gone; run the command again")
            _, first, stop = self._shards[number]
            found.append(containers.Placed(first, stop, one))
        return found

    def _publish(self, kind: str, found: Sequence[containers.Placed]) -> tuple[str, int]:
        """Put containers and the index in place; an old field of the name leaves the pack.

        Returns:
            The new digest, and the bytes of old values that stay in files with other fields.
        """
        name, pack = self._asked.name, self._pack
        publishing.check_free(pack, name, [path for one in found for path in one.finished.moved])
        if name not in pack.fields or self._kept:
            return publishing.add(pack, name, kind, found, self._shop), 0
        _, _, remaining = publishing.drop(pack, name, self._shop)
        with opening.open(pack.path) as now, locks.changing(now.index_file.path):
            return publishing.add(now, name, kind, found, self._shop), remaining
