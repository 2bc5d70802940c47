"""One field that is added: its values are made in parts, written into containers, and published."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import hashlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from pathlib import Path
from typing import Any

from packio.errors import SourceError
from packio.formats import added_shard
from packio.index.columns import OF_FILES, is_of_shards
from packio.packing.fields import containers, parts, values
from packio.packing.publish import fields as publishing
from packio.packing.run import executors
from packio.packs import opening
from packio.storage.workshop import Workshop
from packio.system import interrupts, locks
from packio.system.files import remove
from packio.system.pools import ThreadPool
from packio.system.progress import PROGRESS_SECONDS, Progress, ProgressCallback

_PLAN = "plan"
_THREADS = 4  # that read files in this process
_TASKS = 4  # of each worker, at least: workers end at about the same time


@dataclasses.dataclass(frozen=True, slots=True)
class AddReport:
    """What adding a field did.

    Attributes:
        out: The pack.
        name: Of the field.
        kind: Of the field.
        samples: Samples that have a value.
        missing: Samples that have none.
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
    skipped: tuple[tuple[str, str], ...]
    unused: tuple[str, ...]
    bytes: int
    shapes: dict[str, int]
    remaining: int
    resumed: int
    digest: str
    seconds: float


class Job:
    """One field that is added.

    Args:
        shop: The workshop.
        pack: The pack, locked.
        name, kind: Of the field; None: by the values.
        skip: Leave bad values out.
        missing: Allow samples without a value.
        workers: Processes, 0 for this one.
        progress: Callback, or None.
        began: Time when the run began, by `time.monotonic`.
    """

    def __init__(
        self, shop: Workshop, pack: opening.Pack, name: str, kind: str | None, skip: bool,
        missing: bool, workers: int, progress: ProgressCallback | None, began: float,
    ) -> None:  # fmt: skip
        self.shop: Workshop = shop
        self.pack: opening.Pack = pack
        self.name: str = name
        self.kind: str | None = kind
        self._skip, self._missing, self._workers = skip, missing, workers
        self._progress, self._began, self._called = progress, began, -math.inf
        self._stopped = threading.Event()

    def run(self, given: Any, *, resume: bool) -> AddReport:
        """Make the values, write the containers, publish the index."""
        keys = [self.pack.key_bytes(row) for row in range(len(self.pack))]
        found = values.of(given, self.name, keys, self.kind)
        if found.function is None and keys and not found.known:
            self._refuse_all(keys, found.unused)
        if found.function is None and not self._missing:
            self._refuse([k for k in keys if found.known.get(k) is None], found.unused)
        self._begin(found, keys, resume=resume)
        resumed = self._make(found, keys)
        kind, absent, skipped, size, shapes = self._taken_stock(found, keys)
        digest, remaining = self._publish(kind, self._written(kind, keys))
        return AddReport(
            self.pack.path, self.name, kind, len(keys) - absent, absent, tuple(skipped),
            tuple(found.unused), size, shapes, remaining, resumed, digest,
            time.monotonic() - self._began,
        )  # fmt: skip

    def _begin(self, found: values.Values, keys: Sequence[bytes], *, resume: bool) -> None:
        """Keep the parts of the same values; remove others."""
        shards = containers.rows_of_shards(self.pack)
        digest = hashlib.sha256(f"{self.name} {self.kind} {found.digest} {shards}".encode())
        for key in keys:
            digest.update(b"%d %s" % (len(key), key))
        digest.update(self._samples())
        plan, folder = self.shop.shards / _PLAN, self.shop.shards
        now = digest.hexdigest()
        if not resume or not plan.exists() or plan.read_text() != now:
            remove(folder)
            remove(self.shop.built)
            folder.mkdir()
            self.shop.built.mkdir()
            parts.write_whole(plan, now.encode())

    def _samples(self) -> bytes:
        """Digest of all that a function may see of the samples, but for the field itself.

        Where values lie is left out: it changes when a field leaves the pack.
        """
        index, digest = self.pack.index_file, hashlib.sha256(str(self.pack.classes).encode())
        own = f"{self.name}/"
        for name in sorted(index.column_names):
            is_place = name.endswith(("/file", "/offset")) or name in OF_FILES
            if not is_place and not name.startswith(own) and not is_of_shards(name):
                digest.update(name.encode() + index.column(name).array().tobytes())
        return digest.digest()

    def _make(self, found: values.Values, keys: Sequence[bytes]) -> int:
        """Make the values that are not there yet; return how many samples need none."""
        folder = self.shop.shards
        for first, stop, path in parts.there(folder):
            part = parts.read(path)
            bad = part is None or (part.problems and not self._skip)
            lacks = part is not None and not part.present.all() and not self._missing
            if bad or lacks or stop > len(keys) or first >= stop:
                path.unlink()
                for note in folder.glob("container-*.packio"):
                    note.unlink()
        there = parts.there(folder)
        even = math.ceil(len(keys) / max(self._workers * _TASKS, 1))
        ranges = list(parts.lacking(there, len(keys), min(parts.ROWS, max(even, 1))))
        resumed = len(keys) - sum(stop - first for first, stop in ranges)
        if not ranges:
            return resumed
        tasks = [
            parts.Task(
                folder, self.pack.path.absolute(), self.pack.digest, first, stop, self.name,
                self.kind, found.function,
                [found.known.get(k) for k in keys[first:stop]] if found.function is None else (),
                self._skip,
            )
            for first, stop in ranges
        ]  # fmt: skip
        threads = 1 if found.function is not None else _THREADS
        workers = min(self._workers, len(tasks))
        with self._engine(workers, threads) as engine:
            make = parts.make
            if workers <= 1:  # a task in this process may be told to stop
                make = functools.partial(parts.make, stopped=self._stopped.is_set)
            made = parts.Counter(folder)
            self._carry_out(engine, make, tasks, resumed, len(keys), "reading", made)
        parts.close()
        return resumed

    @contextlib.contextmanager
    def _engine(self, workers: int, threads: int) -> Iterator[Executor]:
        if workers > 1:
            with executors.started("local", workers) as engine:
                yield engine
        else:
            with ThreadPool(threads, "packio-field") as pool:
                yield pool

    def _carry_out(
        self, engine: Executor, function: Callable[[Any], int], tasks: Sequence[Any], done: int,
        total: int, stage: str, made: Callable[[], int] = int,
    ) -> None:  # fmt: skip
        """Run tasks, and report the progress meanwhile. The first error ends all.

        Args:
            engine: Carries the tasks out.
            function: Carries one task out, and returns the number of its samples.
            tasks: What to do.
            done: Samples that are done before.
            total: Samples in all.
            stage: Name of the work, for the progress.
            made: Returns how many samples are done, those of unfinished tasks included.
        """
        waiting = list(reversed(tasks))
        running: set[Future[int]] = set()
        try:
            while waiting or running:
                while waiting and len(running) < 2 * max(self._workers, _THREADS):
                    running.add(engine.submit(function, waiting.pop()))
                with interrupts.deferred():
                    ended, running = wait(running, PROGRESS_SECONDS, FIRST_COMPLETED)
                done += sum(future.result() for future in ended)
                self._tell(max(done, made()), total, stage)
        except BaseException:
            self._stopped.set()
            for future in running:
                future.cancel()
            raise

    def _tell(self, done: int, total: int, stage: str) -> None:
        now = time.monotonic()
        if self._progress is None or (done < total and now - self._called < PROGRESS_SECONDS):
            return
        self._called = now
        self._progress(Progress(done, total, 0, 0, 0, now - self._began, stage))

    def _taken_stock(
        self, found: values.Values, keys: Sequence[bytes]
    ) -> tuple[str, int, list[tuple[str, str]], int, dict[str, int]]:
        """Kind of the field, samples without a value, bad values, bytes of all, and shapes."""
        kinds: dict[str, int] = {}
        skipped, size, shapes = list[tuple[str, str]](), 0, collections.Counter[str]()
        absent = list[bytes]()
        for first, _, path in parts.there(self.shop.shards):
            part = parts.read(path)
            if part is None:
                raise OSError(f"{path}: is damaged; run the command again")
            if part.kind is not None:
                kinds.setdefault(part.kind, first)
            bad = {row for row, _, _ in part.problems}
            skipped += [(key, why) for _, key, why in part.problems]
            size += len(part.data)
            shapes.update(part.shapes)
            rows = [first + i for i in (~part.present).nonzero()[0].tolist()]
            absent += [keys[row] for row in rows if row not in bad or not self._missing]
        if len(kinds) > 1:
            rows = [f"{kind} ({os.fsdecode(keys[row])!r})" for kind, row in kinds.items()]
            raise SourceError(
                f"{self.pack.path}: values of {self.name} are of several kinds: {', '.join(rows)}; "
                "say which: kind=…"
            )
        if not self._missing:
            self._refuse(absent, found.unused)
        if not kinds:
            raise SourceError(f"{self.pack.path}: no sample has a value of {self.name}")
        lacking = len(absent) + (len(skipped) if self._missing else 0)
        return next(iter(kinds)), lacking, skipped, size, dict(shapes.most_common())

    def _refuse_all(self, keys: Sequence[bytes], unused: Sequence[str]) -> None:
        """Refuse values of which none has the key of a sample."""
        given = f"values have {values.shown(unused)}" if unused else "there are no values"
        samples = values.shown([os.fsdecode(key) for key in keys])
        raise SourceError(
            f"{self.pack.path}: no value of {self.name} has the key of a sample: {given}; samples "
            f"have {samples}; name the values by these keys (packio ls {self.pack.path})"
        )

    def _refuse(self, absent: Sequence[bytes], unused: Sequence[str]) -> None:
        """Refuse samples without a value."""
        if not absent:
            return
        more = (
            f"; {len(unused):,} values are of no sample: {values.shown(unused)}" if unused else ""
        )
        raise SourceError(
            f"{self.pack.path}: {len(absent):,} of {len(self.pack):,} samples have no value of "
            f"{self.name}: {values.shown([os.fsdecode(key) for key in absent])}{more}; give them "
            "one, or allow it with --missing"
        )

    def _written(self, kind: str, keys: Sequence[bytes]) -> list[containers.Finished]:
        """Write the containers that are not written yet; return all of them."""
        folder, built = self.shop.shards, self.shop.built
        tasks = []
        for number, (shard, first, stop) in enumerate(containers.rows_of_shards(self.pack)):
            path = added_shard(self.pack.format, shard, self.name, kind)
            publishing.check_free(self.pack, self.name, [path])
            done = containers.finished(folder, number)
            if done is None or not containers.is_whole(done, built):
                tasks.append(
                    containers.Task(
                        number,
                        path,
                        self.pack.metadata["format"],
                        self.name,
                        kind,
                        first,
                        stop,
                        list(keys[first:stop]),
                        folder,
                        built,
                    )
                )
        total = sum(task.stop - task.first for task in tasks)
        with self._engine(self._workers, 1) as engine:
            self._carry_out(engine, containers.write, tasks, 0, total, "publishing")
        count = len(containers.rows_of_shards(self.pack))
        found = [containers.finished(folder, number) for number in range(count)]
        whole = [one for one in found if one is not None]
        if len(whole) < count:
            raise OSError(f"{folder}: a container is gone; run the command again")
        return whole

    def _publish(self, kind: str, found: Sequence[containers.Finished]) -> tuple[str, int]:
        """Put containers and the index in place; an old field of the name leaves the pack.

        Returns:
            The new digest, and the bytes of old values that stay in files with other fields.
        """
        moved = [name for one in found for name in one.moved]
        publishing.check_free(self.pack, self.name, moved)
        if self.name not in self.pack.fields:
            return publishing.add(self.pack, self.name, kind, found, self.shop), 0
        _, _, remaining = publishing.drop(self.pack, self.name, self.shop)
        with opening.open(self.pack.path) as pack, locks.changing(pack.index_file.path):
            self.pack = pack
            return publishing.add(pack, self.name, kind, found, self.shop), remaining
