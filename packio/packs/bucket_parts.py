"""Parts of the index of a container at URLs, one an object, made in threads or by an engine.

Each part is a record of a journal in the user's cache (`packio.storage.journal`), where the
metadata has, under ``part``, what else is known of its object. A run that is cut short goes on with
the objects that are missing, on any engine.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from packio import __version__, registry
from packio.errors import OptionError, PackioError
from packio.formats import Format, Reading
from packio.index import columns as made
from packio.index import indexfile, raw_blocks
from packio.index.column import in_pieces
from packio.index.indexfile import Index
from packio.packs.buckets import Bucket
from packio.packs.collecting import NO_LABEL, Collected, LeftOut, folders_of, unique_keys
from packio.sample.relabelling import Relabelling
from packio.storage import stores, urls
from packio.storage.journal import Journal
from packio.storage.stores import OpenUrl, StreamedObject
from packio.system.pools import run_tasks

_SENT = 1024  # objects that an engine has at a time

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

    def name(self) -> str:
        """Name of the folder of the parts."""
        asked = (__version__, self.bucket.format, self.reading, self.seek_points)
        names = "\0".join([os.fspath(self.bucket.root), *self.bucket.facts])
        text = f"{asked}\0{names}".encode("utf-8", "surrogateescape")
        return hashlib.sha256(text).hexdigest()


@dataclasses.dataclass(frozen=True)
class Part:
    """What one object brings to an index."""

    name: str  # relative to the root
    size: int
    version: str
    samples: int
    skipped: int  # records that are no good sample
    left_out: list[list[str]]  # key and reason of the first of them
    least_label: int | None  # as found; None: no label is an int
    remarks: tuple[str, ...]  # what is not in the index, one sentence each
    names: list[str]  # of the classes, if labels are texts


def read(record: Index | None) -> Part | None:
    """What a record says of its object; None if there is no record, or it is damaged."""
    try:
        if record is None:
            return None
        record.check()
        said = record.metadata["part"]
        return Part(**{**said, "remarks": tuple(said["remarks"])})
    except (PackioError, KeyError, TypeError):
        return None


def make(
    engine: AbstractContextManager[Executor], work: Work, journal: Journal, told: Told | None, *,
    here: bool,
) -> None:  # fmt: skip
    """Make the parts that are not there yet, by an engine or by threads of this process."""
    facts, missing, done = work.bucket.facts, dict[str, int](), 0
    for number, (name, now) in enumerate(facts.items()):
        old = read(journal.find(number))
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

    function = functools.partial(_make, stopped=stopped) if here else _make
    tasks = ((work.alone(name), name) for name in missing)
    with engine as running:
        run_tasks(running, function, tasks, took, most=_SENT, stop=stopped.set)


def _make(
    work: Work, name: str, stopped: threading.Event | None = None
) -> tuple[Table, dict[str, Any]]:
    """Columns and metadata of the part of one object."""
    facts, stopped = work.bucket.facts[name], stopped or threading.Event()
    url = urls.child(work.bucket.root, name)
    for only_labelled in (False, True):
        found = StreamedObject(url, facts, work.ahead, stopped)
        with stores.opened_once(found) as opened:
            samples, count = _collected(work, opened, only_labelled=only_labelled)
            digest = opened.opened.digest()
        if not samples.lacks_labels:
            break
    stores.check_unchanged(url, facts)
    columns = samples.columns(made.of_objects([name], [facts.size], [digest]))
    part = Part(
        name, facts.size, facts.version, count, samples.left_out.count, samples.left_out.listed,
        samples.least_label, tuple(samples.remarks()), samples.names,
    )  # fmt: skip
    return columns, {
        "version": indexfile.VERSION, "fields": samples.fields, "part": dataclasses.asdict(part)
    }  # fmt: skip


def _collected(work: Work, url: OpenUrl, *, only_labelled: bool) -> tuple[Collected, int]:
    """Scan an object, and collect its samples; return how many they are."""
    form: Format = registry.load("formats", work.bucket.format)
    # as the format calls the file
    text = os.fspath(url).removeprefix(f"{os.fspath(work.bucket.root)}/")
    samples = Collected(
        work.bucket.root, [text], form, work.reading.label_offset, seek_points=work.seek_points,
        storage=_OneObject(url.opened), only_labelled=only_labelled,
    )  # fmt: skip
    return samples, samples.add_shard(text, form.scan(url, work.reading), None)


class _OneObject:
    """The storage of one object that is open."""

    def __init__(self, opened: StreamedObject) -> None:
        self._opened = opened

    def read(self, file: int, offset: int, length: int) -> bytes:
        """Read a range; the format has checked that it is within the object."""
        return self._opened.read(length, offset)


def labelled(parts: Iterable[tuple[Part, Index]]) -> list[tuple[Part, Index]]:
    """The parts; if some have labels, the samples of those without labels are left out."""
    found = list(parts)
    if len({"label" in index for part, index in found if part.samples}) < 2:
        return found
    return [
        (_without_samples(part, index) if part.samples and "label" not in index else part, index)
        for part, index in found
    ]


def _without_samples(part: Part, index: Index) -> Part:
    left_out = LeftOut()
    left_out.add(part.skipped, part.left_out)
    for key in index.every_key():
        left_out.add(1, [(os.fsdecode(key), NO_LABEL)])
    return dataclasses.replace(part, samples=0, skipped=left_out.count, left_out=left_out.listed)


def joined(
    parts: Sequence[tuple[Part, Index]], where: object
) -> tuple[Table, dict[str, str], list[str], list[str]]:
    """Columns of an index, kinds of its fields, remarks, and classes, of parts with samples."""
    tables: list[Table] = []
    fields: dict[str, str] = {}
    every = sorted({name for part, _ in parts for name in part.names})
    if every and not all(part.names for part, _ in parts):
        raise OptionError(f"{where}: labels are texts in some shards, and numbers in others")
    for part, index in parts:
        for name, kind in index.fields.items():
            if fields.setdefault(name, kind) != kind:
                raise OptionError(f"{where}: field {name!r} is of kind {fields[name]} and {kind}")
        names = [n for n in index.column_names if n != raw_blocks.COLUMN]
        table = {name: index.column(name).array() for name in names}
        if part.names:
            table["label"] = Relabelling(part.names, every, str(where)).labels(table["label"])
        tables.append(table)
    remarks = _alike_labels(tables)
    joint = made.joined(made.alike(tables, set().union(*tables), where), [1] * len(tables))
    columns = {name: in_pieces(column).array() for name, column in joint.items()}
    columns |= unique_keys(_keys(columns))
    label = columns.get("label")
    if not every and label is not None and label.ndim == 1:  # as far as the folders tell them
        every = folders_of(label.tolist(), _keys(columns))
    return columns, fields, remarks, every


def _keys(table: Mapping[str, np.ndarray]) -> list[bytes]:
    data, starts = table["key_data"].tobytes(), table["key_offsets"].tolist()
    return [data[a:b] for a, b in itertools.pairwise(starts)]


def _alike_labels(tables: Sequence[Table]) -> list[str]:
    """Make the labels of all tables of one kind, or leave them out; say so."""
    kinds = {t["label"].shape[1:] if "label" in t else None for t in tables}
    if len(kinds) < 2:
        return []
    for table in tables:
        table.pop("label", None)
    return ["labels are left out, as they are not alike in all shards"]
