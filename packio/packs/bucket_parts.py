"""Parts of the index of a container at URLs, one an object: made here in threads, or elsewhere.

An engine makes them elsewhere, in processes or on a cluster. Each part comes back as bytes and is
kept here: a run that is cut short goes on with the objects that are missing, on any engine.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import NamedTuple

from packio import __version__, registry
from packio.errors import PackioError
from packio.formats import Format, Reading
from packio.images import native
from packio.index import columns as made
from packio.index.indexfile import INDEX_SUFFIX
from packio.packs import parts
from packio.packs.buckets import Bucket
from packio.packs.collecting import Collected
from packio.packs.parts import Part
from packio.storage import objects, urls
from packio.storage.objects import Facts, OpenUrl, StreamedObject
from packio.storage.urls import Url
from packio.system import files
from packio.system.tasks import run_tasks

_SENT = 1024  # objects that an engine has at a time

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


def missing(work: Work, paths: Sequence[Path]) -> list[tuple[Path, str]]:
    """The parts that are not there yet, and the names of their objects."""
    pairs = zip(paths, work.bucket.facts.items(), strict=True)
    return [(path, name) for path, (name, facts) in pairs if not _is_there(path, facts)]


def _is_there(path: Path, facts: Facts) -> bool:
    old = parts.read(path)
    return old is not None and bool(facts.version) and (old.size, old.version) == facts


class Done:
    """Tells the bytes of the objects that are done."""

    def __init__(self, bucket: Bucket, missing: Sequence[str], told: Told | None) -> None:
        self._facts, self._told = bucket.facts, told
        self._whole = sum(facts.size for facts in bucket.facts.values())
        self._bytes = self._whole - sum(bucket.facts[name].size for name in missing)

    def add(self, name: str) -> None:
        self._bytes += self._facts[name].size
        if self._told is not None:
            self._told(self._bytes, self._whole)


def run(
    engine: Executor, work: Work, wanted: Sequence[tuple[Path, str]], done: Done, *, here: bool
) -> None:
    """Have an engine make parts, or threads of this process (`here`), which write them."""
    paths, stopped = {name: path for path, name in wanted}, threading.Event()

    def keep(task: tuple[Work, str], future: Future[bytes | None]) -> None:
        if (data := future.result()) is not None:  # else it is written
            with files.replacing(paths[task[1]]) as file:
                file.write(data)
        done.add(task[1])

    def make(work: Work, name: str) -> None:
        _make(work, paths[name], name, stopped)

    run_tasks(
        engine, make if here else _part_of, ((work.alone(name), name) for _, name in wanted), keep,
        most=_SENT, stop=stopped.set,
    )  # fmt: skip


def _part_of(work: Work, name: str) -> bytes:
    """The part of one object, made in another process or on another machine."""
    with tempfile.TemporaryDirectory(prefix="packio-") as folder:
        path = Path(folder) / f"part{INDEX_SUFFIX}"
        _make(work, path, name, threading.Event())
        return path.read_bytes()


class Sight(NamedTuple):
    """What this process sees of a container, for a comparison with what a node sees. It pickles.

    Attributes:
        url: Of the first object.
        facts: What the service says of it.
        versions: Versions of all that decides what is in the index.
    """

    url: Url
    facts: Facts
    versions: dict[str, str]

    def trouble(self) -> str:
        """Tell what this process cannot see; "" if it sees the same."""
        mine = _versions(seek_points="the native core" in self.versions)
        for name, version in self.versions.items():
            if mine.get(name) != version:
                return f"{name} is {mine.get(name, 'missing')} there, {version} here"
        try:
            return "" if objects.facts(self.url) == self.facts else f"{self.url}: another object"
        except PackioError as error:
            return str(error)


def sight(work: Work) -> Sight:
    """Look at the container as this process sees it."""
    name, facts = next(iter(work.bucket.facts.items()))
    versions = _versions(seek_points=work.seek_points)
    return Sight(urls.child(work.bucket.root, name), facts, versions)


def _versions(*, seek_points: bool) -> dict[str, str]:
    told = {"packio": __version__}
    if seek_points:  # which only the core finds
        told["the native core"] = "missing" if native.why_not() else "compiled"
    return told


def _make(work: Work, path: Path, name: str, stopped: threading.Event) -> None:
    """Make the part of one object."""
    facts = work.bucket.facts[name]
    url = urls.child(work.bucket.root, name)
    for only_labelled in (False, True):
        found = StreamedObject(url, facts.size, work.ahead, stopped)
        with objects.opened_once(found) as opened:
            samples, count = _collected(work, opened, only_labelled=only_labelled)
            digest = opened.opened.digest()
        if not samples.lacks_labels:
            break
    objects.check_unchanged(url, facts)
    columns = samples.columns(made.of_objects([name], [facts.size], [digest]))
    part = Part(
        name, facts.size, facts.version, count, samples.left_out.count, samples.left_out.listed,
        samples.least_label, tuple(samples.remarks()), samples.names,
    )  # fmt: skip
    parts.write(path, part, samples.fields, columns)


def _collected(work: Work, url: OpenUrl, *, only_labelled: bool) -> tuple[Collected, int]:
    """Scan an object, and collect its samples; return how many they are."""
    form: Format = registry.load("formats", work.bucket.format)
    text = os.fspath(url).removeprefix(
        f"{os.fspath(work.bucket.root)}/"
    )  # as the format calls the file
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
