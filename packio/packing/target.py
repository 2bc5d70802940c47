"""The output of a run, on a disk or at a URL: what is there, and uploading a built pack to a URL.

Each object of an upload appears whole or not at all, and the index comes last. Meanwhile the object
``OUT.packio-tmp`` beside the pack holds the digests of the plan and of the pack. Without its index,
a pack cannot be opened. Object stores publish an object when its last byte has arrived; for other
services fsspec renames a temporary file.

Before a pack is replaced, it is removed, its index first. So all objects beside the marker belong
to this upload, and another run need not send them again. Two machines that upload to the same URL
notice each other: by the marker, and by objects that have changed.

The pack is built in the user's cache, and stays there until all of it is uploaded. So a run that
was cut short neither packs finished shards again nor sends objects again that have arrived.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from packio.errors import (
    CannotCreateError,
    IntegrityError,
    LockedError,
    NotAPackError,
    OutputError,
    OutputExistsError,
    PackioError,
    ReadError,
    UnfinishedPackError,
)
from packio.index.indexfile import INDEX_NAME, INDEX_SUFFIX, Index
from packio.index.layout import origins_of
from packio.packing.assembly import deep_pixels
from packio.packing.planning import SKIPPED_SUFFIX, PackReport, Plan, Skip
from packio.packing.run import sameness
from packio.packing.run.shards import RunOptions
from packio.packs import opening
from packio.sample import levels
from packio.sample.origins import origin_of
from packio.sources.pack import PackListing
from packio.storage import remote, stores, urls, workshop
from packio.storage.store import Facts
from packio.storage.urls import Url
from packio.system import files
from packio.system.files import cache_folder
from packio.system.pools import ThreadPool

_MOST_MARK = 1000  # bytes of a marker
_TAGS = ("ETag", "etag", "md5Hash")  # names of an object's version, by service
_UPLOADS = 4  # files at a time; a large file is also sent in several parts at a time

_Stamp = tuple[int, str]  # size of an object in bytes, and its version, or ""


class ExistingOutput(NamedTuple):
    report: PackReport | None = None  # of the pack that the plan makes, if it is there
    lost: tuple[str, ...] = ()  # names of added fields of a pack that will be replaced


def find(plan: Plan, out: Path, options: RunOptions, *, overwrite: bool) -> ExistingOutput:
    """Look at an output, once, before anything is written; `overwrite` says to replace a pack.

    Raises:
        OutputExistsError: there is something else than the plan's pack; or, to be overwritten,
            something that is no pack.
    """
    if overwrite:
        _check_replaceable(out)
        return ExistingOutput(lost=tuple(_lost_at(plan, out)))
    if (url := urls.parse(out)) is None and not os.path.lexists(out):
        return ExistingOutput()
    try:
        with opening.open(out) as pack:
            if sameness.is_made_by(plan, options.skip, pack):
                if url is not None:  # perhaps the last step of an upload is missing
                    with urls.errors_as(ReadError, url):
                        if stores.is_file(remote.marker(url)):
                            stores.remove(remote.marker(url))
                return ExistingOutput(_report(plan, pack, options.began))
            added = ", ".join(_lost(pack.index_file, plan))
    except PackioError as error:
        return _unreadable(plan, out, error)
    raise OutputExistsError(
        f"{pack.path}: exists, packed from other files or with other options; choose another "
        "name, or say --overwrite"
        + (f", which loses what packio add made: {added}" if added else "")
    )


def _unreadable(plan: Plan, out: Path, error: PackioError) -> ExistingOutput:
    """What there is, if it cannot be opened as a pack."""
    if (url := urls.parse(out)) is not None:
        if isinstance(error, ReadError):
            raise error
        with urls.errors_as(ReadError, out):
            if isinstance(error, UnfinishedPackError):
                if (mark(url) or plan.digest).startswith(plan.digest):
                    return ExistingOutput()  # an upload of this pack goes on
                raise OutputExistsError(
                    f"{out}: another pack is being uploaded to it, or its upload was cut short; "
                    "choose another name, or say --overwrite"
                ) from error
            if isinstance(error, NotAPackError):
                if not stores.is_file(url) and not stores.open_store(url).list():
                    return ExistingOutput()
                raise OutputExistsError(f"{error}; remove it, or choose another name") from error
    elif isinstance(error, UnfinishedPackError):
        workshop.check_idle(out)
    raise OutputExistsError(
        f"{out}: exists and is no finished pack ({error}); remove it, or choose another name"
    ) from error


def _check_replaceable(out: Path) -> None:
    """Refuse to replace a folder that is no pack."""
    if (url := urls.parse(out)) is not None:
        with urls.errors_as(ReadError, out):
            ours = stores.is_file(out / INDEX_NAME) or stores.is_file(remote.marker(url))
            is_other = not ours and bool(stores.open_store(url).list())
    else:
        try:
            has_index = os.path.exists(out / INDEX_NAME)
            is_other = os.path.isdir(out) and not has_index and bool(os.listdir(out))
        except OSError as error:
            raise OutputExistsError(f"{out}: cannot be looked into: {error.strerror}") from error
    if is_other:
        raise OutputExistsError(
            f"{out}: a folder that is no pack is not overwritten; remove it, or choose another name"
        )


def _lost_at(plan: Plan, out: Path) -> list[str]:
    """Names of added fields of the pack at an output that a plan does not make anew."""
    try:
        if urls.parse(out) is not None:
            with opening.open(out) as pack:
                return _lost(pack.index_file, plan)
        for path in (out / INDEX_NAME, out.with_name(out.name + INDEX_SUFFIX)):
            if path.is_file():  # also beside a run that was cut short
                return _lost(Index(path), plan)
    except PackioError:  # no pack that can be read
        pass
    return []


def _lost(index: Index, plan: Plan) -> list[str]:
    """Names of the fields that were added to a pack, and that a plan does not make anew."""
    became = origins_of(index.metadata)
    added = {n for n in levels.others(index.fields) if origin_of(n, became) is None}
    if isinstance(plan.listing, PackListing):
        names = plan.own.new_names
        added -= {names.get(n, n) for pack in plan.listing.packs for n in pack.fields}
    return sorted(added)


def _report(plan: Plan, pack: opening.Pack, began: float) -> PackReport:
    counts = pack.metadata["counts"]
    deep = deep_pixels([pack.index_file.column("image/dtype").array()])
    listed = pack.path.with_name(pack.path.name + SKIPPED_SUFFIX)
    return PackReport(
        out=pack.path, format=plan.format, found=counts["found"], packed=counts["packed"],
        skipped=(), classes=len(plan.listing.classes),
        source_bytes=pack.index_file.column("image/length").total(),
        out_bytes=sum(size for _, size, _ in pack.index_file.files()) + pack.index_file.nbytes,
        seconds=time.monotonic() - began, digest=pack.digest, up_to_date=True,
        warnings=(*plan.listing.warnings, *pack.metadata.get("told", ()), *deep),
        skipped_file=listed if counts["skipped"] and listed.exists() else None,
    )  # fmt: skip


def pack_to(
    url: Url, make: Callable[[Path], PackReport], *, resume: bool, overwrite: bool
) -> PackReport:
    """Build a pack in the user's cache, or go on with one that an earlier run began; upload it."""
    with urls.errors_as(CannotCreateError, f"{url}: cannot be written"):
        if not stores.is_file(remote.marker(url)):  # a missing bucket is noticed before packing
            stores.write_object(remote.marker(url), b"")
            stores.remove(remote.marker(url))
    place = cache_folder("uploads", hashlib.sha256(os.fsencode(url)).hexdigest())
    place.parent.mkdir(parents=True, exist_ok=True)
    staged = place / url.name
    with ExitStack() as stack:
        try:
            stack.enter_context(workshop.open_workshop(place))
        except LockedError as error:
            raise LockedError(f"{url}: another packio is packing to it; wait for it") from error
        if not resume:
            files.remove(place)
        place.mkdir(exist_ok=True)
        workshop.tidy(staged)
        try:
            report = make(staged)
        except OutputExistsError:  # what a run of another plan has built
            files.remove(place)
            place.mkdir()
            report = make(staged)
        listed = staged.with_name(staged.name + SKIPPED_SUFFIX)
        lines = listed.read_text().splitlines() if listed.exists() else ()
        skipped = tuple(Skip(os.fsencode(e["key"]), e["reason"]) for e in map(json.loads, lines))
        with urls.errors_as(OutputError, f"{url}: uploading stopped, run it again to go on"):
            _Upload(url, staged).run(listed if skipped else None, overwrite=overwrite)
        files.remove(place)
    return dataclasses.replace(
        report, out=url, skipped=skipped, up_to_date=False,
        skipped_file=url.with_name(listed.name) if skipped else None,
    )  # fmt: skip


class _Upload:
    def __init__(self, url: Url, staged: Path) -> None:
        self._url, self._marker = url, remote.marker(url)
        self._is_folder = staged.is_dir()
        self._here, self._there = (staged, url) if self._is_folder else (staged.parent, url.parent)
        self._index = INDEX_NAME if self._is_folder else staged.name + INDEX_SUFFIX
        index = Index(self._here / self._index)
        self._sizes = {name: size for name, size, _ in index.files()}
        plan = index.metadata["plan"]
        self._ours, self._clearing = f"{plan} {index.digest}", f"{plan} clearing"

    def run(self, listed: Path | None, *, overwrite: bool) -> None:
        """Upload the objects that are not there yet; the index last."""
        begun = mark(self._url)
        if begun != self._ours:
            self._begin(anew=overwrite or begun is not None)
        found = self._found()
        missing = [name for name, size in self._sizes.items() if found.get(name, ())[:1] != (size,)]
        at_once = _UPLOADS if stores.open_url(self._url).looks_ahead else 1
        with ThreadPool(at_once, "packio-upload") as pool:
            found |= zip(missing, pool.map(self._send, missing), strict=True)
        skipped = self._url.with_name(self._url.name + SKIPPED_SUFFIX)
        if listed is not None:
            stores.write_object(skipped, listed)
        else:
            stores.remove(skipped)
        self._check_mark()
        if self._found() != found:
            raise self._taken_over()
        stores.write_object(self._there / self._index, self._here / self._index)
        try:
            self._check_mark()
        except LockedError:  # the index does not fit the other upload's objects
            stores.remove(self._there / self._index)
            raise
        stores.remove(self._marker)
        index = self._there / self._index
        if (facts := stores.facts(index)) is not None:  # into the cache, where readers look for it
            kept = remote.cached_index(index, facts)
            kept.parent.mkdir(parents=True, exist_ok=True)
            (self._here / self._index).replace(kept)

    def _send(self, name: str) -> _Stamp:
        self._check_mark()
        return _stamp(stores.write_object(self._there / name, self._here / name))

    def _begin(self, *, anew: bool) -> None:
        """Remove the objects of another pack if need be, then write this upload's marker."""
        if anew:
            stores.write_object(self._marker, self._clearing.encode())
            self._clear()
        elif found := self._found():
            raise OutputExistsError(
                f"{self._url}: {', '.join(sorted(found)[:5])} exists and is of no pack there; "
                "remove it, or choose another name"
            )
        stores.write_object(self._marker, self._ours.encode())

    def _clear(self) -> None:
        """Remove the pack that is there, or the objects that are left of a pack."""
        old = [self._there / name for name in self._sizes]
        with suppress(PackioError):
            index, root = remote.resolve_remote(self._url)
            old += [root / name for name, _, _ in remote.open_index(index).files()]
        if self._is_folder or stores.is_file(self._url / INDEX_NAME):
            old += [self._url / name for name in stores.open_url(self._url).list()]
        if stores.is_file(self._url):
            old.append(self._url)
        for index, _ in remote.index_places(self._url):
            stores.remove(index)
        for url in dict.fromkeys(old):
            stores.remove(url)

    def _found(self) -> dict[str, _Stamp]:
        """Objects of the pack that are there: name → stamp."""
        if self._is_folder:
            there = stores.open_url(self._url).list()
        else:
            asked = {name: stores.facts(self._there / name) for name in self._sizes}
            there = {name: found for name, found in asked.items() if found is not None}
        return {name: _stamp(there[name]) for name in self._sizes if name in there}

    def _check_mark(self) -> None:
        """Check that no other process has begun to upload to the same URL."""
        if mark(self._url) != self._ours:
            raise self._taken_over()

    def _taken_over(self) -> LockedError:
        return LockedError(f"{self._url}: another packio is uploading to it; run it again later")


def mark(url: Url, attempts: int = 2) -> str | None:
    """Text of the marker beside a URL; None if there is no marker, or it is empty."""
    marker = remote.marker(url)
    found = stores.facts(marker)
    if found is None:
        return None
    try:
        data = stores.content(marker, found) if found.size <= _MOST_MARK else b"of another program"
    except (urls.LengthError, IntegrityError):  # another upload replaced it meanwhile
        if attempts == 1:
            raise
        return mark(url, attempts - 1)
    return data.decode("latin-1") or None


def _stamp(found: Facts) -> _Stamp:
    return found.size, found.version if found.version.startswith(_TAGS) else ""
