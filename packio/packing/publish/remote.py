"""Packing to a URL: the pack is built here, as any other, and then uploaded.

It is built in the user's cache, and stays there until all of it is uploaded, so that a run that is
cut short goes on: its shards are not packed again, what has arrived is not sent again.
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
from packio.packing.plan.plan import Plan
from packio.packing.publish import uploading
from packio.packing.report import PackReport, Skip
from packio.packs import packs
from packio.storage import remote, urls, workshop
from packio.storage.urls import Url
from packio.system import cache, files


def pack_to(
    url: Url, plan: Plan, began: float, make: Callable[[Path], PackReport], *, skip: bool,
    resume: bool, overwrite: bool,
) -> PackReport:  # fmt: skip
    """Pack to a URL, unless what the plan makes is there.

    Args:
        url: Where to.
        plan: What is packed.
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
    elif (done := _up_to_date(plan, url, began, skip=skip)) is not None:
        return done
    _try_out(url)
    report = _built_and_uploaded(url, make, resume=resume, overwrite=overwrite)
    return dataclasses.replace(report, seconds=time.monotonic() - began)


def _up_to_date(plan: Plan, url: Url, began: float, *, skip: bool) -> PackReport | None:
    """A report if the pack at a URL is what a plan makes; None if none is there."""
    try:
        with packs.open(url) as pack:
            if existing.is_made_by(plan, pack, skip=skip):
                with urls.errors_as(ReadError, url):
                    if urls.is_file(remote.marker(url)):  # all but this was done
                        uploading.remove(remote.marker(url))
                return existing.of_pack(plan, pack, began)
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
            uploading.put(remote.marker(url), b"")
            uploading.remove(remote.marker(url))


def _built_and_uploaded(
    url: Url, make: Callable[[Path], PackReport], *, resume: bool, overwrite: bool
) -> PackReport:
    """Build a pack in the user's cache, or go on from what an earlier run has built; upload it."""
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
