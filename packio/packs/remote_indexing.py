"""Indexing containers of others at URLs, in one pass over their objects, several at a time.

What is found of each object is a part of the index, made in threads or by an engine. Each part is
at once a record of a journal in the user's cache (`packio.storage.journal`), where the metadata
has, under ``part``, what else is known of its object. A run that is cut short goes on with the
objects that are missing, on any engine. An object that changes meanwhile is read anew.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import numpy as np

from packio import __version__, registry
from packio.errors import CannotCreateError, IntegrityError, OptionError, PackioError, ReadError
from packio.formats import Reading
from packio.index import columns as made
from packio.index import indexfile
from packio.index.building import RAW_CRCS
from packio.index.column import to_pieces
from packio.index.indexfile import INDEX_SUFFIX, Index
from packio.packs import buckets, collecting
from packio.packs.buckets import EMPTY, OBJECTS, Bucket
from packio.sample.relabelling import Relabelling
from packio.storage import stores, urls
from packio.storage.journal import Journal
from packio.storage.stores import OpenUrl, StreamedObject
from packio.storage.urls import Url
from packio.system import files, locks
from packio.system.files import cache_folder
from packio.system.pools import ThreadPool, run_tasks

_REQUESTS = 16  # of all workers, ahead of what is read
_SENT = 1024  # objects that an engine has at a time
_REMARKS = 20  # that an index has at most

Table = dict[str, np.ndarray]
Told = Callable[[int, int], object]  # bytes of objects that are done, bytes of all


@dataclasses.dataclass(frozen=True)
class Work:
    """What is asked of every object."""

    bucket: Bucket
    reading: Reading
    seek_points: bool
    ahead: int  # requests of one object

    def alone(self, name: str) -> Work:
        """The same for one object alone, as it is sent to another machine."""
        facts = {name: self.bucket.facts[name]}
        return dataclasses.replace(self, bucket=dataclasses.replace(self.bucket, facts=facts))

    def digest(self) -> str:
        asked = (__version__, self.bucket.format, self.reading, self.seek_points)
        names = "\0".join([os.fspath(self.bucket.root), *self.bucket.facts])
        text = f"{asked}\0{names}".encode("utf-8", "surrogateescape")
        return hashlib.sha256(text).hexdigest()


Started = Callable[[Work], AbstractContextManager[Executor]]  # an engine that sees the same


@dataclasses.dataclass(frozen=True)
class Part:
    """What one object brings to an index, beside columns."""

    name: str  # relative to the root
    size: int
    version: str
    samples: int
    skipped: int  # records that are no good sample
    left_out: list[list[str]]  # key and reason of the first of them
    least_label: int | None  # as found; None: no label is an int
    remarks: list[str]  # what is not in the index, one sentence each
    names: list[str]  # of the classes, if labels are texts


def reindex(
    url: Url, index: Path | None, reading: Reading, *, seek_points: bool,
    num_workers: int, told: Told | None = None, started: Started | None = None,
) -> Path:  # fmt: skip
    """Index a container at a URL; see `packio.reindex`."""
    bucket = buckets.find(url)
    place = index if index is not None else buckets.index_place(url, bucket)
    _try_out(place, url)
    workers = min(num_workers, len(bucket.facts))
    work = Work(bucket, reading, seek_points, max(1, _REQUESTS // workers))
    folder = cache_folder("reindex", work.digest())
    folder.mkdir(parents=True, exist_ok=True)
    with locks.file_lock(folder.with_suffix(".lock")):
        journal = Journal(folder)
        here: AbstractContextManager[Executor] = ThreadPool(workers, "packio-reindex")
        engine = here if started is None else started(work)
        _make_parts(engine, work, journal, told, here=started is None)
        _publish(journal, work, place, url)
    files.remove(folder)
    return place


def _try_out(place: Path, url: Url) -> None:
    """Notice before the container is read that the index cannot be written."""
    store, trial = stores.open_store(place.parent), f"{place.name}.packio-try"
    try:
        store.put(trial, b"")
        store.remove(trial)
    except Exception as error:  # each service has errors of its own
        reason = str(error) or type(error).__name__
        raise CannotCreateError(
            f"{place}: cannot be written: {reason}; put it elsewhere: packio reindex {url} "
            "--index FILE (index=)"
        ) from error


def _read_part(record: Index | None) -> Part | None:
    """What a record says of its object; None if there is no record, or it is damaged."""
    try:
        if record is None:
            return None
        record.check()
        return Part(**record.metadata["part"])
    except (PackioError, KeyError, TypeError):
        return None


def _make_parts(
    engine: AbstractContextManager[Executor], work: Work, journal: Journal, told: Told | None, *,
    here: bool,
) -> None:  # fmt: skip
    """Make the parts that are not there yet, by an engine or by threads of this process."""
    facts, missing, done = work.bucket.facts, dict[str, int](), 0
    for number, (name, now) in enumerate(facts.items()):
        old = _read_part(journal.find(number))
        if old is not None and now.version and (old.size, old.version) == now[:2]:
            done += now.size
        else:
            journal.forget(number)  # of an object that has changed since
            missing[name] = number
    if not missing:
        return
    total, stopped = sum(one.size for one in facts.values()), threading.Event()

    def took(task: tuple[Work, str], future: Future[tuple[Table, dict[str, Any]]]) -> None:
        nonlocal done
        journal.finish(missing[task[1]], *future.result())
        done += facts[task[1]].size
        if told is not None:
            told(done, total)

    function = functools.partial(_make_part, stopped=stopped) if here else _make_part
    tasks = ((work.alone(name), name) for name in missing)
    with engine as running:
        run_tasks(running, function, tasks, took, most=_SENT, stop=stopped.set)


def _make_part(
    work: Work, name: str, stopped: threading.Event | None = None
) -> tuple[Table, dict[str, Any]]:
    bucket, stopped = work.bucket, stopped or threading.Event()
    facts, url = bucket.facts[name], urls.child(bucket.root, name)
    form = registry.load("formats", bucket.format)
    file = os.fspath(url).removeprefix(f"{os.fspath(bucket.root)}/")  # as the format calls it
    for only_labelled in (False, True):
        found, opened = StreamedObject(url, facts, work.ahead, stopped), OpenUrl(url)
        opened.opened = found

        def read(_: int, offset: int, length: int, found: StreamedObject = found) -> bytes:
            return found.read(length, offset)

        with closing(found):
            samples = collecting.SampleCollector(
                bucket.root, [file], form, work.reading.label_offset, seek_points=work.seek_points,
                read=read, only_labelled=only_labelled,
            )  # fmt: skip
            count = samples.add_shard(file, form.scan(opened, work.reading), None)
            digest = found.digest()
        if not samples.lacks_labels:
            break
    if stores.file_facts(url)[:2] != facts[:2]:
        raise IntegrityError(f"{url}: was replaced while it was read; run the same command again")
    part = Part(
        name, facts.size, facts.version, count, samples.left_out.count, samples.left_out.listed,
        samples.least_label, samples.remarks(), samples.names,
    )  # fmt: skip
    return samples.columns(made.object_columns([name], [facts.size], [digest])), {
        "version": indexfile.VERSION, "fields": samples.fields, "part": dataclasses.asdict(part)
    }  # fmt: skip


def _publish(journal: Journal, work: Work, place: Path, url: Url) -> None:
    """Join the parts, and put the index in its place."""
    records = [journal.find(number) for number in range(len(work.bucket.facts))]
    each = [(part, r) for r in records if r is not None and (part := _read_part(r))]
    if len(each) != len(records):
        raise ReadError(f"{journal.folder}: parts of the index of {url} are gone; run it again")
    if len({"label" in index for part, index in each if part.samples}) > 1:  # some have no labels
        each = [(_leave_out_unlabelled(*one), one[1]) for one in each]
    found = [part for part, _ in each]
    left_out, remarks = collecting.LeftOut(), dict[str, str]()  # each remark with its first object
    for part in found:
        left_out.add(part.skipped, part.left_out, part.name if len(found) > 1 else "")
        for remark in part.remarks:
            remarks.setdefault(remark, part.name)
    full = [one for one in each if one[0].samples]
    if not full:
        raise left_out.no_images(url, work.bucket.format)
    columns, fields, more, classes = _join(full, url)
    more += [f"{name}: {remark}" for remark, name in list(remarks.items())[:_REMARKS]]
    least = [part.least_label for part in found if part.least_label is not None]
    metadata = collecting.index_metadata(
        work.bucket.format, work.reading, [(p.name, p.samples) for p in found if p.samples],
        left_out, min(least, default=None), columns, access="range", fields=fields,
        classes=classes, remarks=more or None,
        **{
            OBJECTS: {p.name: p.version for p in found if p.samples},
            EMPTY: [p.name for p in found if not p.samples] or None,
        },
    )  # fmt: skip
    made_here = journal.folder / f"index{INDEX_SUFFIX}"
    indexfile.write(made_here, columns, metadata)
    with urls.errors_as(CannotCreateError, place):
        stores.open_store(place.parent).put(place.name, made_here)
    for remark in collecting.remarks_of(metadata):
        warnings.warn(f"{url}: {remark}", stacklevel=4)


def _leave_out_unlabelled(part: Part, index: Index) -> Part:
    """The part; without its samples if these have no labels, as others have."""
    if not part.samples or "label" in index:
        return part
    left_out = collecting.LeftOut()
    left_out.add(part.skipped, part.left_out)
    for key in index.every_key():
        left_out.add(1, [(os.fsdecode(key), collecting.NO_LABEL)])
    return dataclasses.replace(part, samples=0, skipped=left_out.count, left_out=left_out.listed)


def _join(
    parts: Sequence[tuple[Part, Index]], where: object
) -> tuple[Table, dict[str, str], list[str], list[str]]:
    """Columns of an index, kinds of its fields, remarks, and classes, of parts with samples."""
    tables: list[Table] = []
    every = sorted({name for part, _ in parts for name in part.names})
    if every and not all(part.names for part, _ in parts):
        raise OptionError(f"{where}: labels are texts in some shards, and numbers in others")
    for part, index in parts:
        names = [n for n in index.column_names if n != RAW_CRCS]
        table = {name: index.column(name).array() for name in names}
        if part.names:
            table["label"] = Relabelling(part.names, every, str(where)).labels(table["label"])
        tables.append(table)
    remarks = []
    if len({t["label"].shape[1:] if "label" in t else None for t in tables}) > 1:
        remarks = ["labels are left out, as they are not alike in all shards"]
        for table in tables:
            table.pop("label", None)
    joint = made.join_tables(made.alike(tables, set().union(*tables), where), [1] * len(tables))
    columns = {name: to_pieces(column).array() for name, column in joint.items()}
    every = every or collecting.name_by_folders(columns)
    keys = columns["key_data"], columns["key_offsets"]
    if not made.joined_key_columns(*keys)[1]:  # the position makes them so
        columns |= made.numbered_key_columns(*keys)
    return columns, collecting.join_fields(index.fields for _, index in parts), remarks, every
