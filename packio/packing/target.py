"""What is at an output, on a disk or at a URL: nothing, the pack of a plan, or something else."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

from packio.errors import (
    NotAPackError,
    OutputExistsError,
    PackioError,
    ReadError,
    UnfinishedPackError,
)
from packio.index.indexfile import INDEX_NAME, INDEX_SUFFIX, Index
from packio.index.layout import origins_of
from packio.packing import uploading
from packio.packing.assembly import deep_pixels
from packio.packing.planning import Plan
from packio.packing.report import SKIPPED_SUFFIX, PackReport
from packio.packing.run import sameness
from packio.packing.run.shards import RunOptions
from packio.packs import opening
from packio.sample import levels
from packio.sample.origins import origin_of
from packio.sources.pack import PackListing
from packio.storage import remote, stores, urls, workshop


class Found(NamedTuple):
    """What is at an output that may be written."""

    report: PackReport | None = None  # of the pack that the plan makes, if it is there
    lost: tuple[str, ...] = ()  # names of added fields of a pack that will be replaced


def find(plan: Plan, out: Path, options: RunOptions, *, overwrite: bool) -> Found:
    """Look at an output, once, before anything is written; `overwrite` says to replace a pack.

    Raises:
        OutputExistsError: there is something else than the plan's pack; or, to be overwritten,
            something that is no pack.
    """
    if overwrite:
        _check_replaceable(out)
        return Found(lost=tuple(_lost_at(plan, out)))
    if (url := urls.of(out)) is None and not os.path.lexists(out):
        return Found()
    try:
        with opening.open(out) as pack:
            if sameness.is_made_by(plan, options.skip, pack):
                if url is not None:
                    uploading.finish(url)
                return Found(_report(plan, pack, options.began))
            added = ", ".join(_lost(pack.index_file, plan))
    except PackioError as error:
        return _unreadable(plan, out, error)
    raise OutputExistsError(
        f"{pack.path}: exists, packed from other files or with other options; choose another "
        "name, or say --overwrite"
        + (f", which loses what packio add made: {added}" if added else "")
    )


def _unreadable(plan: Plan, out: Path, error: PackioError) -> Found:
    """What there is, if it cannot be opened as a pack."""
    if (url := urls.of(out)) is not None:
        if isinstance(error, ReadError):
            raise error
        with urls.errors_as(ReadError, out):
            if isinstance(error, UnfinishedPackError):
                if (uploading.mark(url) or plan.digest).startswith(plan.digest):
                    return Found()  # an upload of this pack goes on
                raise OutputExistsError(
                    f"{out}: another pack is being uploaded to it, or its upload was cut short; "
                    "choose another name, or say --overwrite"
                ) from error
            if isinstance(error, NotAPackError):
                if not stores.is_file(url) and not stores.at(url).list():
                    return Found()
                raise OutputExistsError(f"{error}; remove it, or choose another name") from error
    elif isinstance(error, UnfinishedPackError):
        workshop.check_idle(out)
    raise OutputExistsError(
        f"{out}: exists and is no finished pack ({error}); remove it, or choose another name"
    ) from error


def _check_replaceable(out: Path) -> None:
    """Refuse to replace a folder that is no pack."""
    if (url := urls.of(out)) is not None:
        with urls.errors_as(ReadError, out):
            ours = stores.is_file(out / INDEX_NAME) or stores.is_file(remote.marker(url))
            is_other = not ours and bool(stores.at(url).list())
    elif not os.path.isdir(out) or os.path.exists(out / INDEX_NAME):
        return
    else:
        try:
            is_other = bool(os.listdir(out))
        except OSError as error:
            raise OutputExistsError(f"{out}: cannot be looked into: {error.strerror}") from error
    if is_other:
        raise OutputExistsError(
            f"{out}: a folder that is no pack is not overwritten; remove it, or choose another name"
        )


def _lost_at(plan: Plan, out: Path) -> list[str]:
    """Names of added fields of the pack at an output that a plan does not make anew."""
    try:
        if urls.of(out) is not None:
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
