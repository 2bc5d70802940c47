"""Packing to a URL: the pack is built here, as any other, and uploaded file by file, index last.

It is built in the user's cache, and stays there until all of it is uploaded, so that a run that is
cut short goes on: its shards are not packed again, what has arrived is not sent again. While it is
uploaded, ``OUT.packio-tmp`` is beside it, an object with the pack's digest; without an index, what
is there is no pack. Each object appears with its last byte: object stores publish what was sent
whole, and for other services fsspec renames a temporary file. Before a pack is replaced, all of it
is removed, first its index: no object that another run has left is taken for this one's.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from packio import cache, packs
from packio.errors import (
    CannotCreateError,
    LockedError,
    NotAPackError,
    OutputError,
    OutputExistsError,
    PackioError,
    ReadError,
    UnfinishedPackError,
)
from packio.indexfile import INDEX_NAME, INDEX_SUFFIX, Index
from packio.packing import existing, publish
from packio.packing.plan import Plan
from packio.packing.reading import Treatment
from packio.packing.report import PackReport, Skip
from packio.storage import remote, urls
from packio.storage.urls import Url

_CLEARING = b"clearing"  # what the marker says while an old pack is removed
_BLOCK = 4 << 20  # bytes copied at a time
_UPLOADS = 4  # files at a time; large ones are sent in several parts at a time besides


def pack_to(
    url: Url, plan: Plan, treatment: Treatment, began: float, make: Callable[[Path], PackReport], *,
    skip: bool, resume: bool, overwrite: bool,
) -> PackReport:  # fmt: skip
    """Pack to a URL, unless what the plan makes is there.

    Args:
        url: Where to.
        plan: What is packed.
        treatment: What is done to each sample.
        began: When the run began, by `time.monotonic`.
        make: Builds the pack at a path, unless it is there.
        skip: Whether bad images may be missing from it.
        resume: Go on from what an earlier run has built.
        overwrite: Replace what is at the URL.

    Raises:
        OutputExistsError: something else is there.
        LockedError: another process packs to the same URL.
        CannotCreateError: nothing can be written there.
        OutputError: uploading fails; what is built stays for another run.
        ReadError: the service does not answer.
        PackioError: as `make` says.
    """
    if overwrite:
        _check_replaceable(url)
    elif (done := _up_to_date(plan, url, began, treatment, skip=skip)) is not None:
        return done
    _try_out(url)
    report = _built_and_uploaded(url, make, resume=resume, overwrite=overwrite)
    return dataclasses.replace(report, seconds=time.monotonic() - began)


def _up_to_date(
    plan: Plan, url: Url, began: float, treatment: Treatment, *, skip: bool
) -> PackReport | None:
    """A report if the pack at a URL is what a plan makes; None if none is there."""
    try:
        with packs.open(url) as pack:
            complete = skip or pack.metadata["counts"]["skipped"] == len(plan.listing.dropped)
            same = complete and pack.metadata.get("plan") == plan.digest
            clock = pack.index_file.path.stat().st_mtime_ns
            if same and existing.unchanged(plan.listing, pack.index_file, clock, treatment):
                with urls.errors_as(ReadError, url):
                    if urls.is_file(remote.marker(url)):  # all but this was done
                        _remove(remote.marker(url))
                return existing._report(plan, pack, began)  # noqa: SLF001 (the same report)
    except UnfinishedPackError:
        return None
    except ReadError:
        raise
    except NotAPackError as error:
        with urls.errors_as(ReadError, url):
            if not urls.is_file(url) and not urls.below(url):
                return None
        raise OutputExistsError(f"{error}; remove it, or choose another name") from error
    except PackioError as error:
        raise OutputExistsError(
            f"{url}: exists and is no finished pack ({error}); remove it, or choose another name"
        ) from error
    raise OutputExistsError(
        f"{url}: exists, packed from other files or with other options; "
        "choose another name, or say --overwrite"
    )


def _check_replaceable(url: Url) -> None:
    """Refuse to replace a folder that holds anything but a pack."""
    with urls.errors_as(ReadError, url):
        ours = urls.is_file(url / INDEX_NAME) or urls.is_file(remote.marker(url))
        if not ours and urls.below(url):
            raise OutputExistsError(
                f"{url}: a folder that is no pack is not overwritten; remove it, or choose another "
                "name"
            )


def _try_out(url: Url) -> None:
    """Put the marker, empty, and remove it: before all is built for a bucket that is not there."""
    with urls.errors_as(CannotCreateError, f"{url}: cannot be written"):
        if not urls.is_file(remote.marker(url)):
            _put(remote.marker(url), b"")
            _remove(remote.marker(url))


def _built_and_uploaded(
    url: Url, make: Callable[[Path], PackReport], *, resume: bool, overwrite: bool
) -> PackReport:
    """Build a pack in the user's cache, or go on from what an earlier run has built; upload it."""
    place = cache.folder("uploads", hashlib.sha256(os.fsencode(url)).hexdigest())
    place.parent.mkdir(parents=True, exist_ok=True)
    staged = place / url.name
    with ExitStack() as stack:
        try:
            stack.enter_context(publish.workshop(place))
        except LockedError as error:
            raise LockedError(f"{url}: another packio is packing to it; wait for it") from error
        if not resume:
            publish.remove(place)
        place.mkdir(exist_ok=True)
        publish.tidy(staged)
        try:
            report = make(staged)
        except OutputExistsError:  # what a run of another plan has built
            publish.remove(place)
            place.mkdir()
            report = make(staged)
        listed = staged.with_name(staged.name + existing.SKIPPED_SUFFIX)
        skipped = _skips(listed)
        with urls.errors_as(OutputError, f"{url}: uploading stopped, run it again to go on"):
            _Upload(url, staged).run(listed if skipped else None, overwrite=overwrite)
        publish.remove(place)
    return dataclasses.replace(
        report, out=url, skipped=skipped, up_to_date=False,
        skipped_file=url.with_name(listed.name) if skipped else None,
    )  # fmt: skip


def _skips(listed: Path) -> tuple[Skip, ...]:
    if not listed.exists():
        return ()
    entries = map(json.loads, listed.read_text().splitlines())
    return tuple(Skip(os.fsencode(entry["key"]), entry["reason"]) for entry in entries)


class _Upload:
    """One pack on its way.

    Args:
        url: Where to.
        staged: The pack.
    """

    def __init__(self, url: Url, staged: Path) -> None:
        self._url, self._marker = url, remote.marker(url)
        self._is_folder = staged.is_dir()
        self._here, self._there = (staged, url) if self._is_folder else (staged.parent, url.parent)
        self._index = INDEX_NAME if self._is_folder else staged.name + INDEX_SUFFIX
        index = Index(self._here / self._index)
        self._sizes = {name: size for name, size, _ in index.files()}
        self._digest = index.digest.encode()

    def run(self, listed: Path | None, *, overwrite: bool) -> None:
        """Upload what is not there yet; the index last.

        Args:
            listed: What was skipped; it goes beside the pack.
            overwrite: Replace what is there.
        """
        begun = self._mark()
        if begun != self._digest:
            self._begin(anew=overwrite or begun is not None)
        found = self._found()
        missing = [name for name, size in self._sizes.items() if found.get(name) != size]
        parallel = urls.filesystem(self._url)[0].async_impl
        with ThreadPoolExecutor(_UPLOADS if parallel else 1, "packio-upload") as pool:
            list(pool.map(lambda n: _send(self._here / n, self._there / n), missing))
        skipped = self._url.with_name(self._url.name + existing.SKIPPED_SUFFIX)
        if listed is not None:
            _send(listed, skipped)
        else:
            _remove(skipped)
        self._check_mark()
        _send(self._here / self._index, self._there / self._index)
        try:
            self._check_mark()
        except LockedError:  # what the other one has put there is not what this index says
            _remove(self._there / self._index)
            raise
        _remove(self._marker)
        self._keep_index()

    def _begin(self, *, anew: bool) -> None:
        """Mark the place as this upload's, where nothing of another's is left."""
        if anew:
            _put(self._marker, _CLEARING)
            self._clear()
        elif found := self._found():
            raise OutputExistsError(
                f"{self._url}: {', '.join(sorted(found)[:5])} exists and is of no pack there; "
                "remove it, or choose another name"
            )
        _put(self._marker, self._digest)

    def _clear(self) -> None:
        """Remove the pack that is there, or what is left of one."""
        old = [self._there / name for name in self._sizes]
        with suppress(PackioError):
            index, root = remote.located(self._url)
            old += [root / name for name, _, _ in Index(index).files()]
        if self._is_folder or urls.is_file(self._url / INDEX_NAME):
            old += [self._url / name for name in urls.below(self._url)]
        for index, _ in remote.index_places(self._url):
            _remove(index)
        for url in dict.fromkeys(old):
            _remove(url)

    def _found(self) -> dict[str, int]:
        """Sizes of those objects of the pack that are there."""
        if self._is_folder:
            there = urls.below(self._url)
        else:
            asked = {name: urls.info(self._there / name) for name in self._sizes}
            there = {name: found for name, found in asked.items() if found is not None}
        return {name: there[name]["size"] for name in self._sizes if name in there}

    def _mark(self) -> bytes | None:
        """What the marker says; None if there is none, or it is but tried out."""
        found = urls.info(self._marker)
        if found is None:
            return None
        size = min(found["size"], 2 * len(self._digest))
        return urls.read(*urls.filesystem(self._marker), 0, size) or None

    def _check_mark(self) -> None:
        """Check that nobody else has begun to upload to the same place."""
        if self._mark() != self._digest:
            raise LockedError(f"{self._url}: another packio is uploading to it; run it again later")

    def _keep_index(self) -> None:
        """Put the index into the cache, with the time when the source was looked at."""
        index = self._there / self._index
        found = urls.info(index)
        if found is not None:
            kept = remote.cached_index(index, found)
            kept.parent.mkdir(parents=True, exist_ok=True)
            (self._here / self._index).replace(kept)


def _send(source: Path, url: Url) -> None:
    """Upload a file: whole, or not at all."""
    size = source.stat().st_size

    def send() -> None:
        fs, path = urls.filesystem(url)
        try:
            _copy(fs, source, path)
        except FileNotFoundError as error:  # an upload in parts that has ended, if unheard: again
            raise OSError(str(error)) from error
        fs.invalidate_cache(path)
        arrived = fs.info(path)["size"]
        if arrived != size:
            fs.rm_file(path)
            raise OSError(f"{url}: {arrived} of {size} bytes have arrived")

    urls.retried(send)


def _copy(fs: Any, source: Path, path: str) -> None:
    if fs.async_impl:
        fs.put_file(os.fspath(source), path)
        return
    _make_folder(fs, path)
    with fs.transaction, fs.open(path, "wb") as file, source.open("rb") as data:
        shutil.copyfileobj(data, file, _BLOCK)


def _make_folder(fs: Any, path: str) -> None:
    """Make the folder that an object will be in; object stores have none."""
    fs.makedirs(path.rpartition("/")[0] or "/", exist_ok=True)


def _put(url: Url, data: bytes) -> None:
    def put() -> None:
        fs, path = urls.filesystem(url)
        if not fs.async_impl:
            _make_folder(fs, path)
        fs.pipe_file(path, data)

    urls.retried(put)


def _remove(url: Url) -> None:
    """Remove an object, if it is there."""

    def remove() -> None:
        fs, path = urls.filesystem(url)
        with suppress(FileNotFoundError):
            fs.rm_file(path)

    urls.retried(remove)
