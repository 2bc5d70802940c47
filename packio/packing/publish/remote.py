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

from packio.errors import CannotCreateError, LockedError, OutputError, OutputExistsError
from packio.packing.plan.planning import Plan
from packio.packing.publish import target, uploading
from packio.packing.report import SKIPPED_SUFFIX, PackReport, Skip
from packio.packs import opening
from packio.storage import remote, stores, urls, workshop
from packio.storage.urls import Url
from packio.system import files
from packio.system.files import cache_folder


def pack_to(
    url: Url, plan: Plan, is_made: Callable[[opening.Pack], bool], began: float,
    make: Callable[[Path], PackReport], *, resume: bool, overwrite: bool,
) -> PackReport:  # fmt: skip
    """Pack to a URL, unless the pack that the plan makes is there already."""
    found = target.find(plan, url, is_made, began, overwrite=overwrite)
    if found.report is not None:
        return found.report
    _try_out(url)
    report = _built_and_uploaded(url, make, resume=resume, overwrite=overwrite)
    return dataclasses.replace(report, seconds=time.monotonic() - began).with_lost(found.lost)


def _try_out(url: Url) -> None:
    """Write an empty marker and remove it, so that a missing bucket is noticed before packing."""
    with urls.errors_as(CannotCreateError, f"{url}: cannot be written"):
        if not stores.is_file(remote.marker(url)):
            stores.put(remote.marker(url), b"")
            stores.remove(remote.marker(url))


def _built_and_uploaded(
    url: Url, make: Callable[[Path], PackReport], *, resume: bool, overwrite: bool
) -> PackReport:
    """Build a pack in the user's cache, or go on with one that an earlier run began; upload it."""
    place = cache_folder("uploads", hashlib.sha256(os.fsencode(url)).hexdigest())
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
        listed = staged.with_name(staged.name + SKIPPED_SUFFIX)
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
