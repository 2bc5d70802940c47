"""Indexing containers of others at URLs, in one pass over their objects, several at a time.

What is found of each object is written into the user's cache at once. A run that is cut short goes
on with the objects that are missing. An object that changes meanwhile is read anew.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from pathlib import Path

from packio.errors import CannotCreateError, ReadError
from packio.formats import Reading
from packio.index import indexfile
from packio.index.indexfile import INDEX_SUFFIX
from packio.packs import bucket_parts, buckets
from packio.packs.bucket_parts import Part, Told, Work
from packio.packs.buckets import EMPTY, OBJECTS
from packio.packs.collecting import LeftOut, index_metadata, remarks_of
from packio.storage import stores, urls
from packio.storage.journal import Journal
from packio.storage.urls import Url
from packio.system import files, locks
from packio.system.files import cache_folder
from packio.system.pools import ThreadPool

_REQUESTS = 16  # of all workers, ahead of what is read

Started = Callable[[Work], AbstractContextManager[Executor]]  # an engine that sees the same


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
    folder = cache_folder("reindex", work.name())
    folder.mkdir(parents=True, exist_ok=True)
    with locks.file_lock(folder.with_suffix(".lock")):
        journal = Journal(folder)
        here: AbstractContextManager[Executor] = ThreadPool(workers, "packio-reindex")
        engine = here if started is None else started(work)
        bucket_parts.make(engine, work, journal, told, here=started is None)
        _publish(journal, work, place, url)
    files.remove(folder)
    return place


def _try_out(place: Path, url: Url) -> None:
    """Notice before the container is read that the index cannot be written."""
    store, trial = stores.at(place.parent), f"{place.name}.packio-try"
    try:
        store.put(trial, b"")
        store.remove(trial)
    except Exception as error:  # each service has errors of its own
        reason = str(error) or type(error).__name__
        raise CannotCreateError(
            f"{place}: cannot be written: {reason}; put it elsewhere: packio reindex {url} "
            "--index FILE (index=)"
        ) from error


def _publish(journal: Journal, work: Work, place: Path, url: Url) -> None:
    """Join the parts, and put the index in its place."""
    records = [journal.find(number) for number in range(len(work.bucket.facts))]
    each = [(part, r) for r in records if r is not None and (part := bucket_parts.read(r))]
    if len(each) != len(records):
        raise ReadError(f"{journal.folder}: parts of the index of {url} are gone; run it again")
    each = bucket_parts.labelled(each)
    found = [part for part, _ in each]
    left_out = LeftOut()
    for part in found:
        left_out.add(part.skipped, part.left_out, part.name if len(found) > 1 else "")
    full = [one for one in each if one[0].samples]
    if not full:
        raise left_out.no_images(url, work.bucket.format)
    columns, fields, remarks, classes = bucket_parts.joined(full, url)
    least = [part.least_label for part in found if part.least_label is not None]
    metadata = index_metadata(
        work.bucket.format, work.reading, [(p.name, p.samples) for p in found if p.samples],
        left_out, min(least, default=None), columns, access="range", fields=fields,
        classes=classes, remarks=[*remarks, *_remarks(found)] or None,
        **{
            OBJECTS: {p.name: p.version for p in found if p.samples},
            EMPTY: [p.name for p in found if not p.samples] or None,
        },
    )  # fmt: skip
    made_here = journal.folder / f"index{INDEX_SUFFIX}"
    indexfile.write(made_here, columns, metadata)
    with urls.errors_as(CannotCreateError, place):
        stores.at(place.parent).put(place.name, made_here)
    for remark in remarks_of(metadata):
        warnings.warn(f"{url}: {remark}", stacklevel=4)


def _remarks(found: list[Part]) -> list[str]:
    """The remarks of all parts, each once, with the name of its first object."""
    first: dict[str, str] = {}
    for part in found:
        for remark in part.remarks:
            first.setdefault(remark, part.name)
    return [f"{name}: {remark}" for remark, name in list(first.items())[:20]]
