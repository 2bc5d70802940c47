"""One shard: samples go from the source into a container, and their facts into the shard's index.

Any process can run `write`. A `Task` has all that it needs. It leaves a folder of its own, and an
entry in the journal.
"""

from __future__ import annotations

import os
import threading
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packio import registry
from packio.errors import OptionError, PackioError
from packio.formats import Format, Written
from packio.index import columns as made
from packio.index import indexfile
from packio.index.building import IndexBuilder, Ranges
from packio.packing.report import Skip
from packio.packing.run import stat_cache
from packio.packing.run.journal import Journal
from packio.packing.run.reading import Read, Treatment, read_ahead
from packio.packing.run.tally import Tally
from packio.sample.record import Field, Record
from packio.sources import Listing
from packio.system import files
from packio.system.pools import ThreadPool


class Task(NamedTuple):
    """One shard to write.

    Attributes:
        number: Number of the shard.
        listing: The shard's samples.
        name: Name of the shard, relative to the pack; "." if the pack is the shard.
        format: Name of the container's format.
        writer_options: Options of the container's writer.
        treatment: What is done to each sample.
        threads: Number of threads that read and encode.
        memory: Bytes of source files in memory at a time; None takes the default of `read_ahead`.
        skip: Leave bad samples out; else a shard with a bad sample is not written.
        max_errors: Stop when more samples than this are bad, in all shards together.
        journal: Notes the shard when it is finished.
        tally: Counts samples and bytes for the progress.
    """

    number: int
    listing: Listing
    name: str
    format: str
    writer_options: dict[str, Any]
    treatment: Treatment
    threads: int
    memory: int | None
    skip: bool
    max_errors: int | None
    journal: Journal
    tally: Tally


class Outcome(NamedTuple):
    """The result of a task."""

    number: int  # of the shard
    skipped: tuple[Skip, ...]
    finished: bool  # whether the shard is in the journal


def write(task: Task) -> Outcome:
    """Write a shard in a new folder, and note the shard in the journal."""
    task.tally.restart(task.number)
    folder = task.journal.attempt(task.number)
    container = registry.load("formats", task.format)
    path = folder
    if task.name != ".":
        folder.mkdir()
        path = folder / task.name
    samples = Packed(task.listing)
    stopped = _latched(task.tally)
    try:
        written = _write(task, samples, container, path, stopped)
        finished = written is not None or (task.skip and not stopped())
        if finished:
            _finish(task, samples, written, container, path)
        else:
            files.remove(folder)
    except BaseException:
        noted = task.journal.find(task.number)
        if noted is None or noted.metadata["attempt"] != folder.name:  # else it is finished
            files.remove(folder)
        raise
    return Outcome(task.number, tuple(samples.skipped), finished)


def _latched(tally: Tally) -> Callable[[], bool]:
    """Tell whether the writers were ever asked to stop: another run sets the tally's flag back.

    A chunk that ended early for the flag must not pass for a whole chunk after that.
    """
    ever = threading.Event()

    def stopped() -> bool:
        if tally.stopped:
            ever.set()
        return ever.is_set()

    return stopped


def _write(
    task: Task, samples: Packed, container: Format, path: Path, stopped: Callable[[], bool]
) -> Written | None:
    """Write the container; None if it has no samples, or bad samples that are not left out."""
    listing, tally = task.listing, task.tally
    size = sum(size for size in listing.sizes if size > 0)
    writer = container.writer(
        path, count=len(listing.keys), size=size, classes=listing.classes, **task.writer_options
    )
    try:
        for chunk in read_ahead(
            listing, range(len(listing.keys)), threads=task.threads, treatment=task.treatment,
            memory=task.memory, skip=task.skip, stopped=stopped,
        ):  # fmt: skip
            good = _sort_out(chunk, samples)
            samples.count(good)
            bad = len(chunk) - len(good)
            tally.add(task.number, len(chunk), sum(r.size for r in good), bad)
            if task.skip or not samples.skipped:
                writer.add([samples.record(read) for read in good])
            if task.max_errors is not None and tally.total().bad > task.max_errors:
                tally.stop()
            if stopped():
                return None
        if not len(samples) or (samples.skipped and not task.skip):
            return None
        written: Written = writer.close()
    finally:
        writer.abort()
    if not all(len(ranges.offset) == len(samples) for ranges in written.places.values()):
        raise PackioError(f"{len(samples)} samples went into the container, others are in it")
    if missing := sorted(samples.builder.fields.keys() - written.places.keys()):
        raise OptionError(f"{task.format} holds no named field: {', '.join(missing)}")
    return written


def _sort_out(chunk: list[Read], samples: Packed) -> list[Read]:
    bad = [r for r in chunk if r.problem is not None]
    keys = samples.listing.keys
    samples.skipped += [Skip(keys[r.position], r.problem or "") for r in bad]
    return [r for r in chunk if r.problem is None]


def _finish(
    task: Task, samples: Packed, written: Written | None, container: Format, path: Path
) -> None:
    """Make the shard's files durable, and write the shard's index into the journal."""
    folder = path if task.name == "." else path.parent
    metadata: dict[str, Any] = {
        "version": indexfile.VERSION,
        "plan": task.journal.digest,
        "attempt": folder.name,
        "samples": len(samples),
        "source_bytes": samples.source_bytes,
        "fields": samples.builder.fields,
        "noted": samples.counts,
        "skipped": [[os.fsdecode(s.key), s.reason] for s in samples.skipped],
    }
    names: list[str] = []
    if written is None:
        files.remove(folder)
    else:
        inside = f"{task.name}/" if container.caps.is_directory and task.name != "." else ""
        names = [inside + name for name in (*written.files, *written.sidecars)]
        metadata |= {"files": len(written.files), "info": written.info}
        if container.identity(path) is not None:
            metadata["identity"] = container.identity(path)
    with ThreadPool(1, "packio-sync") as pool:  # while the files are digested
        synced = pool.submit(files.sync_tree, folder) if written is not None else None
        listed = made.of_files(folder, names)
        if synced is not None:
            synced.result()
    task.journal.finish(task.number, samples.columns(written) | listed, metadata)


class Packed:
    """The samples packed so far, in order: they become columns of the shard's index."""

    def __init__(self, listing: Listing) -> None:
        self.listing = listing
        self.skipped: list[Skip] = []
        self.counts: dict[str, tuple[int, str]] = {}  # name → number, key of the first sample
        self.source_bytes = 0
        self.builder: IndexBuilder = IndexBuilder()
        self._identities = stat_cache.fingerprints(listing)  # before anything is read
        self._packed = array("q")  # positions in the listing

    def __len__(self) -> int:
        return len(self.builder)

    def count(self, reads: list[Read]) -> None:
        for read in reads:
            for name, more in read.counts.items():
                count, first = self.counts.get(name, (0, os.fsdecode(read.record.key)))
                self.counts[name] = count + more, first

    def record(self, read: Read) -> Record[Field]:
        """Note a sample; return the record that goes into the container."""
        self.builder.add(read.record)
        self._packed.append(read.position)
        self.source_bytes += read.size
        return read.record

    def columns(self, written: Written | None) -> dict[str, np.ndarray]:
        """All columns of the index, without the table of files."""
        columns = self.builder.columns(_NOWHERE if written is None else written.places)
        return columns | {stat_cache.COLUMN: self._identities[self._packed]}


_NO_RANGES = Ranges(np.zeros(0, np.uint32), np.zeros(0, np.int64), np.zeros(0, np.int64))
_NOWHERE = {"image": _NO_RANGES}
