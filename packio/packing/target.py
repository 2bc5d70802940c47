"""The output of a run, on a disk or at a URL: what is there, and building a pack for a URL.

A pack for a URL is built in the user's cache, and stays there until all of it is uploaded
(`packio.storage.uploading`). So a run that was cut short neither packs finished shards again nor
sends objects again that have arrived.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

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
from packio.storage.uploading import Upload, read_mark
from packio.storage.urls import Url
from packio.system import files
from packio.system.files import cache_folder


def find(plan: Plan, out: Path, options: RunOptions, *, overwrite: bool) -> PackReport | None:
    """Look at an output, once, before anything is written; `overwrite` says to replace a pack.

    Returns:
        The report of the pack that the plan makes, if it is there.

    Raises:
        OutputExistsError: there is something else than the plan's pack; or, to be overwritten,
            something that is no pack.
    """
    if overwrite:
        _check_replaceable(out)
        return None
    if (url := urls.parse(out)) is None and not os.path.lexists(out):
        return None
    try:
        with opening.open(out) as pack:
            if sameness.is_made_by(plan, options.skip, pack):
                if url is not None:  # perhaps the last step of an upload is missing
                    with urls.errors_as(ReadError, url):
                        if stores.is_file(remote.marker(url)):
                            stores.remove(remote.marker(url))
                return _report(plan, pack, options.began)
            added = ", ".join(_lost(pack.index_file, plan))
    except PackioError as error:
        _refuse_unreadable(plan, out, error)
        return None
    raise OutputExistsError(
        f"{pack.path}: exists, packed from other files or with other options; choose another "
        "name, or say --overwrite"
        + (f", which loses what packio add made: {added}" if added else "")
    )


def _refuse_unreadable(plan: Plan, out: Path, error: PackioError) -> None:
    """Refuse what cannot be opened as a pack, unless nothing is there or an upload goes on."""
    if (url := urls.parse(out)) is not None:
        if isinstance(error, ReadError):
            raise error
        with urls.errors_as(ReadError, out):
            if isinstance(error, UnfinishedPackError):
                if (read_mark(url) or plan.digest).startswith(plan.digest):
                    return  # an upload of this pack goes on
                raise OutputExistsError(
                    f"{out}: another pack is being uploaded to it, or its upload was cut short; "
                    "choose another name, or say --overwrite"
                ) from error
            if isinstance(error, NotAPackError):
                if not stores.is_file(url) and not stores.open_store(url).list():
                    return
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


def list_lost(plan: Plan, out: Path) -> list[str]:
    """Names of added fields of the pack at an output, which is replaced, that a plan lacks."""
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
            Upload(url, staged).run(listed if skipped else None, listed.name, overwrite=overwrite)
        files.remove(place)
    return dataclasses.replace(
        report, out=url, skipped=skipped, up_to_date=False,
        skipped_file=url.with_name(listed.name) if skipped else None,
    )  # fmt: skip
