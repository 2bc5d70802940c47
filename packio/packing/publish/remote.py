"""Packing to a URL: the pack is built in the user's cache, then uploaded.

The pack stays in the cache until all of it is uploaded. So a run that was cut short goes on: it
neither packs finished shards again nor sends objects again that have arrived.
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
from packio.index.indexfile import INDEX_NAME
from packio.packing.plan import existing
from packio.packing.plan.planning import Plan
from packio.packing.publish import uploading
from packio.packing.report import PackReport, Skip
from packio.packs import opening
from packio.storage import remote, urls, workshop
from packio.storage.urls import Url
from packio.system import cache, files


def pack_to(
    url: Url, plan: Plan, began: float, make: Callable[[Path], PackReport], *, skip: bool,
    resume: bool, overwrite: bool,
) -> PackReport:  # fmt: skip
    """Pack to a URL, unless the pack that the plan makes is there already."""
    if overwrite:
        _check_replaceable(url)
    elif (done := _up_to_date(plan, url, began, skip=skip)) is not None:
        return done
    _try_out(url)
    report = _built_and_uploaded(url, make, resume=resume, overwrite=overwrite)
    return dataclasses.replace(report, seconds=time.monotonic() - began)


def _up_to_date(plan: Plan, url: Url, began: float, *, skip: bool) -> PackReport | None:
    """Report of the pack at a URL, if a plan makes it; None if there is no pack."""
    try:
        with opening.open(url) as pack:
            if existing.is_made_by(plan, pack, skip=skip):
                with urls.errors_as(ReadError, url):
                    if urls.is_file(remote.marker(url)):  # the last step of the upload is missing
                        uploading.remove(remote.marker(url))
                return existing.of_pack(plan, pack, began)
            other = existing.another(pack, plan)
    except UnfinishedPackError as error:
        with urls.errors_as(ReadError, url):
            if (uploading.mark(url) or plan.digest).startswith(plan.digest):
                return None
        raise OutputExistsError(
            f"{url}: another pack is being uploaded to it, or its upload was cut short; "
            "choose another name, or say --overwrite"
        ) from error
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
    raise other


def _check_replaceable(url: Url) -> None:
    """Refuse to replace a folder that is no pack."""
    with urls.errors_as(ReadError, url):
        ours = urls.is_file(url / INDEX_NAME) or urls.is_file(remote.marker(url))
        if not ours and urls.below(url):
            raise OutputExistsError(
                f"{url}: a folder that is no pack is not overwritten; remove it, or choose another "
                "name"
            )


def _try_out(url: Url) -> None:
    """Write an empty marker and remove it, so that a missing bucket is noticed before packing."""
    with urls.errors_as(CannotCreateError, f"{url}: cannot be written"):
        if not urls.is_file(remote.marker(url)):
            uploading.put(remote.marker(url), b"")
            uploading.remove(remote.marker(url))


def _built_and_uploaded(
    url: Url, make: Callable[[Path], PackReport], *, resume: bool, overwrite: bool
) -> PackReport:
    """Build a pack in the user's cache, or go on with one that an earlier run began; upload it."""
    place = cache.folder("uploads", hashlib.sha256(os.fsencode(url)).hexdigest())
    place.parent.mkdir(parents=True, exist_ok=True)
    staged = place / url.name
    with ExitStack() as stack:
        try:
            stack.enter_context(workshop.opened(place))
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
        listed = staged.with_name(staged.name + existing.SKIPPED_SUFFIX)
        skipped = _skips(listed)
        with urls.errors_as(OutputError, f"{url}: uploading stopped, run it again to go on"):
            uploading.Upload(url, staged).run(listed if skipped else None, overwrite=overwrite)
        files.remove(place)
    return dataclasses.replace(
        report, out=url, skipped=skipped, up_to_date=False,
        skipped_file=url.with_name(listed.name) if skipped else None,
    )  # fmt: skip


def _skips(listed: Path) -> tuple[Skip, ...]:
    if not listed.exists():
        return ()
    entries = map(json.loads, listed.read_text().splitlines())
    return tuple(Skip(os.fsencode(entry["key"]), entry["reason"]) for entry in entries)
