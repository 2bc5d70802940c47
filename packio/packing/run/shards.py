"""One shard: samples go from the source into a container, and their facts into the shard's index.

Any process can run `write`. A `Task` has all that it needs. It leaves a folder of its own, and a
record in the journal. A shard holds whole samples, or one field that joins the samples of a shard
that is there (`packio.packing.fields`).
"""

from __future__ import annotations

import dataclasses
import mmap
import os
from array import array
from collections.abc import Iterable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packio import registry
from packio.errors import OptionError, PackioError
from packio.formats import Format, Written
from packio.index import columns as made
from packio.index import indexfile
from packio.index.building import IndexBuilder, Ranges
from packio.packing.planning import Skip
from packio.packing.run import sameness
from packio.packing.run.reading import ReadSample, Treatment, keep_copy, read_ahead
from packio.sample.record import IMAGE, Field, Record
from packio.sources import Listing
from packio.storage.journal import Journal
from packio.system import files
from packio.system.pools import ThreadPool
from packio.system.progress import ProgressCallback

_FIELDS = 3  # those of `Totals`


class Totals(NamedTuple):
    """Sums over all shards."""

    samples: int  # read, the bad ones included
    size: int  # source bytes of the good samples
    bad: int


class Tally:
    """Counters of a run's shards, and a flag that asks all writers of shards to stop."""

    def __init__(self, path: Path, shards: int) -> None:
        self._path, self._shards, self._stopped = path, shards, False
        size = (shards + 1) * _FIELDS * 8
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if os.fstat(descriptor).st_size < size:
                os.ftruncate(descriptor, size)
            self._map = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self._counts = np.frombuffer(self._map, np.int64).reshape(shards + 1, _FIELDS)

    def __reduce__(self) -> tuple[object, ...]:
        return Tally, (self._path, self._shards)

    def clear(self) -> None:
        self._counts[:], self._stopped = 0, False

    def restart(self, shard: int) -> None:
        """Set the counters of one shard to zero, as an attempt at it begins."""
        self._counts[shard] = 0

    def add(self, shard: int, samples: int, size: int, bad: int) -> None:
        self._counts[shard] += (samples, size, bad)

    def total(self) -> Totals:
        return Totals(*self._counts[: self._shards].sum(axis=0).tolist())

    def stop(self) -> None:
        """Ask all writers of shards to stop after their present sample."""
        self._counts[self._shards, 0] = 1

    @property
    def stopped(self) -> bool:
        """Whether the writers were ever asked to stop, though another run sets the flag back.

        A chunk that ended early for the flag must not pass for a whole chunk after that.
        """
        self._stopped = self._stopped or bool(self._counts[self._shards, 0])
        return self._stopped


class RunOptions(NamedTuple):
    """How a run is carried out. It does not change the bytes of the pack."""

    skip: bool = False  # leave bad samples out; else nothing is packed if there are some
    engine: str | Executor = "local"  # as `executors.start_engine` takes
    workers: int = 1  # processes of the engine "local"
    threads: int | None = None  # of each process; None: as many as keep it busy
    memory: int | None = None  # bytes of source files in memory, in all processes; approximate
    max_errors: int | None = None  # stop when more samples than this are bad
    part: tuple[int, int] | None = None  # (i, n): only every n-th shard, from the i-th on
    finish: bool = False  # write no shards; make a pack of those that earlier runs wrote
    quarantine: Path | None = None  # a folder for copies of bad samples, which all nodes see
    progress: ProgressCallback | None = None
    began: float = 0.0  # by `time.monotonic`


@dataclasses.dataclass(frozen=True)
class Task:
    number: int  # in the journal
    name: str  # of the container, relative to the pack; "." if the pack is the shard
    format: str
    writer_options: dict[str, Any]
    journal: Journal
    tally: Tally
    listing: Listing  # of the shard's samples
    treatment: Treatment
    options: RunOptions  # of this task: its own threads and memory
    field: str = ""  # the only field that goes into the container; "": all fields do

    def reads(self) -> Iterable[list[ReadSample]]:
        """The samples, chunk by chunk; fewer if the tally says to stop."""
        options, tally = self.options, self.tally
        return read_ahead(
            self.listing, range(len(self.listing.keys)), threads=options.threads or 1,
            treatment=self.treatment, memory=options.memory, skip=options.skip,
            stopped=lambda: tally.stopped,
        )  # fmt: skip


class Outcome(NamedTuple):
    number: int  # of the shard
    skipped: tuple[Skip, ...]
    finished: bool  # whether the shard is in the journal


def write(task: Task) -> Outcome:
    """Write a shard in a new folder, and note the shard in the journal.

    Ray may have a task tried again while a node that was taken for dead still writes: so no two
    attempts share a folder, and the journal takes the first that is whole.
    """
    task.tally.restart(task.number)
    folder = task.journal.attempt(task.number)
    container = registry.load("formats", task.format)
    path = folder
    if task.name != ".":
        path = folder / task.name
        path.parent.mkdir(parents=True)
    samples = PackedRows(task)
    try:
        written = _write(task, samples, container, path)
        finished = written is not None or (task.options.skip and not task.tally.stopped)
        if finished:
            _finish(task, samples, written, container, folder)
        else:
            files.remove(folder)
    except BaseException:
        noted = task.journal.find(task.number)
        if noted is None or noted.metadata["attempt"] != folder.name:  # else it is finished
            files.remove(folder)
        raise
    return Outcome(task.number, tuple(samples.skipped), finished)


def _write(task: Task, samples: PackedRows, container: Format, path: Path) -> Written | None:
    """Write the container; None if it has no samples, or bad samples that are not left out."""
    listing, tally = task.listing, task.tally
    size = sum(size for size in listing.sizes if size > 0)
    writer = container.writer(
        path, count=len(listing.keys), size=size, classes=listing.classes, **task.writer_options
    )
    try:
        for chunk in task.reads():
            good = samples.sort_out(chunk)
            bad = len(chunk) - len(good)
            tally.add(task.number, len(chunk), sum(r.size for r in good), bad)
            if task.options.skip or not samples.skipped:
                writer.add([samples.record(read) for read in good])
            if task.options.max_errors is not None and tally.total().bad > task.options.max_errors:
                tally.stop()
            if tally.stopped:
                return None
        if samples.is_empty or (samples.skipped and not task.options.skip):
            return None
        written: Written = writer.close()
    finally:
        writer.abort()
    return samples.check(written)


def _finish(
    task: Task, samples: PackedRows, written: Written | None, container: Format, folder: Path
) -> None:
    """Make the shard's files durable, and write the shard's index into the journal."""
    beside = os.path.dirname(task.name)
    quarantine = task.options.quarantine
    metadata: dict[str, Any] = {
        "version": indexfile.VERSION, "plan": task.journal.digest, "attempt": folder.name,
        "name": task.name, "samples": len(samples), "source_bytes": samples.source_bytes,
        "fields": samples.builder.fields, "noted": samples.counts, "copied": samples.copied,
        "quarantine": None if quarantine is None else str(quarantine),
        "skipped": [[os.fsdecode(s.key), s.reason] for s in samples.skipped],
    }  # fmt: skip
    names: list[str] = []
    if written is None:
        files.remove(folder)
    else:
        inside = task.name if container.caps.is_directory and task.name != "." else beside
        names = [os.path.join(inside, name) for name in (*written.files, *written.sidecars)]
        metadata |= {"files": len(written.files), "info": written.info}
        identity = container.identity(folder if task.name == "." else folder / task.name)
        if identity is not None:
            metadata["identity"] = identity
    with ThreadPool(1, "packio-sync") as pool:  # while the files are digested
        synced = pool.submit(files.sync_tree, folder) if written is not None else None
        listed = made.file_columns(folder, names)
        if synced is not None:
            synced.result()
    # The record comes last: whoever finds it may rely on the files that it lists.
    task.journal.finish(task.number, samples.columns(written) | listed, metadata)


class PackedRows:
    """The samples packed so far, in order: they become columns of the shard's index."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.skipped: list[Skip] = []
        self.counts: dict[str, tuple[int, str]] = {}  # name → number, key of the first sample
        self.source_bytes = self.copied = 0  # copied: into the quarantine
        self.builder: IndexBuilder = IndexBuilder()
        self._identities = sameness.fingerprints(task.listing)  # before anything is read
        self._packed = array("q")  # positions in the listing
        # Where each field is a container of its own, the container's only field is its image.
        apart = registry.load("formats", task.format).caps.fields_apart
        self._inner = IMAGE if apart else task.field

    def __len__(self) -> int:
        return len(self.builder)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is in the container: no sample, or no value of the only field."""
        field = self._task.field
        return field not in self.builder.fields if field else not len(self)

    def sort_out(self, chunk: list[ReadSample]) -> list[ReadSample]:
        """Note what is bad, and what is counted; return what is good."""
        task = self._task
        for read in chunk:
            if read.problem is not None:
                self.skipped.append(Skip(task.listing.keys[read.position], read.problem))
                if task.options.quarantine is not None:  # its bytes are in hand now
                    self.copied += keep_copy(task.listing, read, task.options.quarantine)
        good = [read for read in chunk if read.problem is None]
        for read in good:
            for name, more in read.counts.items():
                count, first = self.counts.get(name, (0, os.fsdecode(read.record.key)))
                self.counts[name] = count + more, first
        return good

    def record(self, read: ReadSample) -> Record[Field]:
        """Note a sample; return the record that goes into the container."""
        self.builder.add(read.record)
        self._packed.append(read.position)
        self.source_bytes += read.size
        field = self._task.field
        if not field:
            return read.record
        value = read.record.fields.get(field)
        return Record(read.record.key, {} if value is None else {self._inner: value})

    def check(self, written: Written) -> Written:
        """What was written, with places of all samples, or an error."""
        places, field = written.places, self._task.field
        if field:
            nowhere = np.full(len(self), -1)
            places = {
                IMAGE: Ranges(np.zeros(len(self), np.uint32), nowhere, nowhere + 1),
                field: _padded(places[self._inner], len(self)),
            }
        if not all(len(ranges.offset) == len(self) for ranges in places.values()):
            raise PackioError(f"{len(self)} samples went into the container, others are in it")
        if missing := sorted(self.builder.fields.keys() - places.keys()):
            raise OptionError(f"{self._task.format} holds no named field: {', '.join(missing)}")
        return written._replace(places=places)

    def columns(self, written: Written | None) -> dict[str, np.ndarray]:
        """All columns of the index, without the table of files."""
        if written is not None:
            columns = self.builder.columns(written.places)
        else:
            no_one, rows = np.zeros(len(self), np.int64), len(self)
            nowhere = Ranges(np.zeros(rows, np.uint32), no_one - 1, no_one)
            columns = self.builder.columns({IMAGE: nowhere})
        return columns | {sameness.COLUMN: self._identities[self._packed]}


def _padded(places: Ranges, count: int) -> Ranges:
    """Places of all samples of a shard; the last ones may have no value."""
    more = count - len(places.offset)
    return Ranges(
        np.pad(places.file, (0, more)), np.pad(places.offset, (0, more), constant_values=-1),
        np.pad(places.length, (0, more)),
        None if places.split is None else np.pad(places.split, (0, more)),
    )  # fmt: skip
