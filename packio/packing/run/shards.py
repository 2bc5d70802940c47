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
    shard = _Shard(task)
    try:
        written = shard.write()
        finished = written is not None or (task.options.skip and not task.tally.stopped)
        if finished:
            shard.finish(written)
        else:
            files.remove(shard.folder)
    except BaseException:
        noted = task.journal.find(task.number)
        if noted is None or noted.metadata["attempt"] != shard.folder.name:  # else it is finished
            files.remove(shard.folder)
        raise
    return Outcome(task.number, tuple(shard.skipped), finished)


class _Shard:
    """A shard while it is written: its samples so far, in order, become columns of its index."""

    def __init__(self, task: Task) -> None:
        self._task, self.folder = task, task.journal.attempt(task.number)
        self._path = self.folder / task.name
        self._container: Format = registry.load("formats", task.format)
        # Where each field is a container of its own, the container's only field is its image.
        self._inner = IMAGE if self._container.caps.fields_apart else task.field
        self.skipped: list[Skip] = []
        self._counts: dict[str, tuple[int, str]] = {}  # name → number, key of the first sample
        self._source_bytes = self._copied = 0  # copied: into the quarantine
        self._builder = IndexBuilder()
        self._identities = sameness.fingerprints(task.listing)  # before anything is read
        self._packed = array("q")  # positions in the listing

    def write(self) -> Written | None:
        """Write the container; None if it has no samples, or bad samples that are not left out."""
        task, listing, tally = self._task, self._task.listing, self._task.tally
        self._path.parent.mkdir(parents=True, exist_ok=True)
        size = sum(size for size in listing.sizes if size > 0)
        writer = self._container.writer(
            self._path, count=len(listing.keys), size=size, classes=listing.classes,
            **task.writer_options,
        )  # fmt: skip
        try:
            for chunk in task.reads():
                good = self._sort_out(chunk)
                bad = len(chunk) - len(good)
                tally.add(task.number, len(chunk), sum(r.size for r in good), bad)
                if task.options.skip or not self.skipped:
                    writer.add([self._note(read) for read in good])
                limit = task.options.max_errors
                if limit is not None and tally.total().bad > limit:
                    tally.stop()
                if tally.stopped:
                    return None
            has_some = task.field in self._builder.fields if task.field else len(self._builder)
            if not has_some or (self.skipped and not task.options.skip):
                return None
            return writer.close()
        finally:
            writer.abort()

    def finish(self, written: Written | None) -> None:
        """Make the shard's files durable, and write the shard's index into the journal."""
        task, quarantine = self._task, self._task.options.quarantine
        columns = self._builder.columns(self._places(written))
        columns[sameness.COLUMN] = self._identities[self._packed]
        metadata: dict[str, Any] = {
            "version": indexfile.VERSION, "plan": task.journal.digest, "attempt": self.folder.name,
            "name": task.name, "samples": len(self._builder), "source_bytes": self._source_bytes,
            "fields": self._builder.fields, "noted": self._counts, "copied": self._copied,
            "quarantine": None if quarantine is None else str(quarantine),
            "skipped": [[os.fsdecode(s.key), s.reason] for s in self.skipped],
        }  # fmt: skip
        if written is None:
            files.remove(self.folder)
            listed = made.file_columns(self.folder, [])
        else:
            has_folder = self._container.caps.is_directory and task.name != "."
            inside = task.name if has_folder else os.path.dirname(task.name)
            names = [os.path.join(inside, name) for name in (*written.files, *written.sidecars)]
            metadata |= {"files": len(written.files), "info": written.info}
            if (identity := self._container.identity(self._path)) is not None:
                metadata["identity"] = identity
            with ThreadPool(1, "packio-sync") as pool:
                synced = pool.submit(files.sync_tree, self.folder)  # while the files are digested
                listed = made.file_columns(self.folder, names)
                synced.result()
        # The record comes last: whoever finds it may rely on the files that it lists.
        task.journal.finish(task.number, columns | listed, metadata)

    def _sort_out(self, chunk: list[ReadSample]) -> list[ReadSample]:
        """Note what is bad, and what is counted; return what is good."""
        task = self._task
        for read in chunk:
            if read.problem is not None:
                self.skipped.append(Skip(task.listing.keys[read.position], read.problem))
                if task.options.quarantine is not None:  # its bytes are in hand now
                    self._copied += keep_copy(task.listing, read, task.options.quarantine)
        good = [read for read in chunk if read.problem is None]
        for read in good:
            for name, more in read.counts.items():
                count, first = self._counts.get(name, (0, os.fsdecode(read.record.key)))
                self._counts[name] = count + more, first
        return good

    def _note(self, read: ReadSample) -> Record[Field]:
        """Note a sample; return the record that goes into the container."""
        self._builder.add(read.record)
        self._packed.append(read.position)
        self._source_bytes += read.size
        field = self._task.field
        if not field:
            return read.record
        value = read.record.fields.get(field)
        return Record(read.record.key, {} if value is None else {self._inner: value})

    def _places(self, written: Written | None) -> dict[str, Ranges]:
        """Where the values of all samples lie; or an error, if some lie nowhere."""
        count, field = len(self._builder), self._task.field
        nowhere = Ranges(np.zeros(count, np.uint32), np.full(count, -1), np.zeros(count, np.int64))
        if written is None:
            return {IMAGE: nowhere}
        places = written.places
        if field:
            places = {IMAGE: nowhere, field: _padded(places[self._inner], count)}
        if not all(len(ranges.offset) == count for ranges in places.values()):
            raise PackioError(f"{count} samples went into the container, others are in it")
        if missing := sorted(self._builder.fields.keys() - places.keys()):
            raise OptionError(f"{self._task.format} holds no named field: {', '.join(missing)}")
        return places


def _padded(places: Ranges, count: int) -> Ranges:
    """Places of all samples of a shard; the last ones may have no value."""
    more = count - len(places.offset)
    return Ranges(
        np.pad(places.file, (0, more)), np.pad(places.offset, (0, more), constant_values=-1),
        np.pad(places.length, (0, more)),
        None if places.split is None else np.pad(places.split, (0, more)),
    )  # fmt: skip
