"""Indexing containers of others at URLs, in one pass over their objects, several at a time.

What is found of each object is written into the user's cache at once. A run that is cut short goes
on with the objects that are missing. An object that changes meanwhile is read anew.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from pathlib import Path

from packio.errors import CannotCreateError, ReadError
from packio.formats import Reading
from packio.index import indexfile
from packio.index.indexfile import INDEX_SUFFIX
from packio.packs import bucket_parts, buckets, parts
from packio.packs.bucket_parts import Sight, Told, Work
from packio.packs.buckets import EMPTY, OBJECTS
from packio.packs.collecting import LeftOut, index_metadata, remarks_of
from packio.packs.parts import Part
from packio.storage import urls
from packio.storage.urls import Url
from packio.system import cache, files, locks
from packio.system.pools import ThreadPool

_REQUESTS = 16  # of all workers, ahead of what is read

Started = Callable[[Sight], AbstractContextManager[Executor]]  # an engine that sees the same


def reindex(
    url: Url, index: Path | None, reading: Reading, *, seek_points: bool,
    num_workers: int, told: Told | None = None, started: Started | None = None,
) -> Path:  # fmt: skip
    """Index a container at a URL; see `packio.reindex`."""
    bucket = buckets.find(url)
    place = index if index is not None else buckets.index_place(url, bucket)
    _try_out(place, url)
    ahead = max(1, _REQUESTS // min(num_workers, len(bucket.facts)))
    work = Work(bucket, reading, seek_points, ahead)
    folder = cache.folder("reindex", work.name())
    folder.mkdir(parents=True, exist_ok=True)
    with locks.file_lock(folder.with_suffix(".lock")):
        found = [folder / f"{i:06d}{INDEX_SUFFIX}" for i in range(len(bucket.facts))]
        missing = bucket_parts.missing(work, found)
        done = bucket_parts.Done(bucket, [name for _, name in missing], told)
        if missing:
            workers = min(num_workers, len(bucket.facts))
            here: AbstractContextManager[Executor] = ThreadPool(workers, "packio-reindex")
            with here if started is None else started(bucket_parts.sight(work)) as engine:
                bucket_parts.run(engine, work, missing, done, here=started is None)
        _publish(folder, found, work, place, url)
    files.remove(folder)
    return place


def _try_out(place: Path, url: Url) -> None:
    """Notice before the container is read that the index cannot be written."""
    advice = f"; put it elsewhere: packio reindex {url} --index FILE (index=)"
    if not isinstance(place, Url):
        folder = place.absolute().parent
        if not os.access(folder, os.W_OK):
            raise CannotCreateError(f"{place}: the folder is not there or not writable{advice}")
        return
    trial = place.with_name(f"{place.name}.packio-try")
    try:
        fs, path = urls.filesystem(trial)
        urls.retried(functools.partial(fs.pipe_file, path, b""))
        urls.retried(functools.partial(fs.rm_file, path))
    except Exception as error:  # each service has errors of its own
        reason = str(error) or type(error).__name__
        raise CannotCreateError(f"{place}: cannot be written: {reason}{advice}") from error


def _publish(folder: Path, paths: list[Path], work: Work, place: Path, url: Url) -> None:
    """Join the parts, and put the index in its place."""
    found = [part for path in paths if (part := parts.read(path)) is not None]
    if len(found) != len(paths):
        raise ReadError(f"{folder}: parts of the index of {url} are gone; run it again")
    found = parts.labelled(paths, found)
    full = [path for path, part in zip(paths, found, strict=True) if part.samples]
    left_out = LeftOut()
    for part in found:
        left_out.add(part.skipped, part.left_out, part.name if len(found) > 1 else "")
    if not full:
        raise left_out.no_images(url, work.bucket.format)
    columns, fields, remarks, classes = parts.joined(full, url)
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
    made_here = folder / f"index{INDEX_SUFFIX}"
    indexfile.write(made_here if isinstance(place, Url) else place, columns, metadata)
    if isinstance(place, Url):
        _send(made_here, place)
    for remark in remarks_of(metadata):
        warnings.warn(f"{url}: {remark}", stacklevel=4)


def _send(path: Path, place: Url) -> None:
    with urls.errors_as(CannotCreateError, place):
        fs, name = urls.filesystem(place)
        urls.retried(lambda: fs.put_file(os.fspath(path), name))
        found = urls.info(place)
        if found is None or found.get("size") not in (None, path.stat().st_size):
            raise CannotCreateError(f"{place}: has not arrived whole; run it again")


def _remarks(found: list[Part]) -> list[str]:
    """The remarks of all parts, each once, with the name of its first object."""
    first: dict[str, str] = {}
    for part in found:
        for remark in part.remarks:
            first.setdefault(remark, part.name)
    return [f"{name}: {remark}" for remark, name in list(first.items())[:20]]
