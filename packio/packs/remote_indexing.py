"""Indexing containers of others at URLs, in one pass over their objects, several at a time.

An object is either streamed, all of it, or skipped through: of each sample the headers, the label
and the head of the image are read, by a request for each sample. Requests of one object follow each
other, as each header tells where the next one is. Eight objects at a time over a line of 125 MB/s,
with round trips of 10 or 50 ms, took equally long both ways at 0.5 MB a sample; at 1.4 MB skipping
was 1.5 times as fast (``benchmarks/reindex_urls.py``). A faster line, or fewer objects,
speak for streaming, and streaming gives checksums. So packio streams samples of less than 1 MiB.
The mean size of the first samples decides, for all objects. If the service tells no version of an
object, all are streamed: only a checksum shows then that an image was replaced.

What is found of each object is written into the user's cache at once. A run that is cut short goes
on with the objects that are missing. An object that changes meanwhile is read anew.
"""

from __future__ import annotations

import functools
import itertools
import os
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packio import __version__, registry
from packio.errors import CannotCreateError, OptionError, ReadError
from packio.formats import Format, Reading
from packio.index import indexfile
from packio.index.indexfile import INDEX_SUFFIX
from packio.packs import bucket_parts, buckets, parts
from packio.packs.bucket_parts import Sight, Told, Work
from packio.packs.buckets import EMPTY, OBJECTS, Bucket
from packio.packs.collecting import LeftOut, remarks_of
from packio.packs.parts import Part
from packio.storage import objects, urls
from packio.storage.objects import EnoughError, SkippedObject
from packio.storage.urls import Url
from packio.system import cache, files, locks

SKIPPED_BYTES = 1 << 20  # mean bytes of a sample from which on objects are skipped through
_LOOKED_AT = 16  # samples that tell the mean
_LOOKS = 64  # requests that they may take: there may be thousands of other members before them
_REQUESTS = 16  # of all workers, ahead of what is read

if TYPE_CHECKING:
    import numpy as np

Started = Callable[[Sight], AbstractContextManager[Executor]]  # an engine that sees the same


def reindex(
    url: Url, index: Path | None, reading: Reading, *, seek_points: bool, headers_only: bool | None,
    num_workers: int, told: Told | None = None, started: Started | None = None,
) -> Path:  # fmt: skip
    """Index a container at a URL; see `packio.reindex`."""
    bucket = buckets.find(url)
    form: Format = registry.load("formats", bucket.format)
    if headers_only and not form.caps.skips:
        raise OptionError(f"{url}: {bucket.format} must be read whole; leave headers_only out")
    place = index if index is not None else buckets.index_place(url, bucket)
    _try_out(place, url)
    unknown = [name for name, facts in bucket.facts.items() if not facts.version]
    if headers_only is None:
        is_possible = not seek_points and not unknown and form.caps.skips
        headers_only = is_possible and _is_skipped(bucket, form, reading)
    elif headers_only and unknown:
        warnings.warn(
            f"{urls.child(bucket.root, unknown[0])}: the server tells no version; if it is "
            "replaced, wrong images will be read without an error. To have checksums, read it "
            "whole: packio reindex --whole (headers_only=False)",
            stacklevel=3,
        )
    work = Work(bucket, reading, seek_points, headers_only, _ahead(num_workers, bucket))
    folder = cache.folder("reindex", work.name())
    folder.mkdir(parents=True, exist_ok=True)
    with locks.file_lock(folder.with_suffix(".lock")):
        found = [folder / f"{i:06d}{INDEX_SUFFIX}" for i in range(len(bucket.facts))]
        missing = bucket_parts.missing(work, found)
        done = bucket_parts.Done(bucket, [name for _, name in missing], told)
        if started is None:
            bucket_parts.run(work, missing, min(num_workers, len(bucket.facts)), done)
        elif missing:
            with started(bucket_parts.sight(work)) as engine:
                bucket_parts.run_on(engine, work, missing, done)
        _publish(folder, found, work, place, url)
    files.remove(folder)
    return place


def _ahead(workers: int, bucket: Bucket) -> int:
    return max(1, _REQUESTS // min(workers, len(bucket.facts)))


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


def _is_skipped(bucket: Bucket, form: Format, reading: Reading) -> bool:
    """Whether the first samples are so large that it pays to skip through the objects."""
    name, facts = next(iter(bucket.facts.items()))
    if facts.size < SKIPPED_BYTES:
        return False
    found = SkippedObject(urls.child(bucket.root, name), facts.size, threading.Event(), _LOOKS)
    with objects.opened_once(found) as url:
        try:
            ends = [
                max(place.offset + place.length for place in record.fields.values())
                for record in itertools.islice(form.scan(url, reading), _LOOKED_AT)
                if record.fields
            ]
        except EnoughError:  # what a request has skipped on average decides then
            return found.reached / found.requests >= SKIPPED_BYTES
    return bool(ends) and max(ends) / len(ends) >= SKIPPED_BYTES


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
    metadata = {**_metadata(work, found, columns, fields, left_out), "classes": classes}
    if remarks := [*remarks, *_remarks(found)]:
        metadata["remarks"] = remarks
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


def _metadata(
    work: Work, found: list[Part], columns: dict[str, np.ndarray], fields: dict[str, str],
    left_out: LeftOut,
) -> dict[str, Any]:  # fmt: skip
    bucket, label = work.bucket, columns.get("label")
    metadata: dict[str, Any] = {
        "version": indexfile.VERSION,
        "format": bucket.format,
        "access": "range",
        "fields": fields,
        **left_out.metadata(sum(part.samples for part in found)),
        "source": {"kind": "reindex"},
        "options": work.reading.names(),
        "shards": [{"name": p.name, "samples": p.samples} for p in found if p.samples],
        "versions": {"packio": __version__},
        OBJECTS: {p.name: p.version for p in found if p.samples},
    }
    if empty := [p.name for p in found if not p.samples]:
        metadata[EMPTY] = empty
    least = [part.least_label for part in found if part.least_label is not None]
    if least and label is not None and label.ndim == 1:
        metadata["labels"] = {"min": min(least), "offset": work.reading.label_offset}
    return metadata


def _remarks(found: list[Part]) -> list[str]:
    """The remarks of all parts, each once, with the name of its first object."""
    first: dict[str, str] = {}
    for part in found:
        for remark in part.remarks:
            first.setdefault(remark, part.name)
    return [f"{name}: {remark}" for remark, name in list(first.items())[:20]]
