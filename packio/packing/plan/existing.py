"""What is at the output already: the pack that a plan makes, or something else."""

from __future__ import annotations

import os
import time
from pathlib import Path

from packio.errors import OutputExistsError, PackioError, UnfinishedPackError
from packio.index import indexfile
from packio.index.indexfile import Index
from packio.index.metadata import origins_of
from packio.packing.plan import contents, renamed, seen
from packio.packing.plan.planning import Plan
from packio.packing.publish.assembly import deep_pixels
from packio.packing.report import PackReport
from packio.packing.run.reading import Treatment
from packio.packs import opening
from packio.sample import levels
from packio.sample.origins import origin_of
from packio.sample.recipe import new_names
from packio.sources._packs import PackListing
from packio.storage import workshop
from packio.storage.urls import Url

SKIPPED_SUFFIX = ".skipped.jsonl"


def report(plan: Plan, out: Path, began: float, *, skip: bool) -> PackReport | None:
    """Report of the pack at ``out``, if a plan makes this pack; None if there is nothing."""
    if not os.path.lexists(out):
        return None
    try:
        with opening.open(out) as pack:
            if is_made_by(plan, pack, skip=skip):
                return of_pack(plan, pack, began)
            other = another(pack, plan)
    except PackioError as error:
        if isinstance(error, UnfinishedPackError):
            workshop.check_idle(out)
        raise OutputExistsError(
            f"{out}: exists and is no finished pack ({error}); remove it, or choose another name"
        ) from error
    raise other


def another(pack: opening.Pack, plan: Plan) -> OutputExistsError:
    """The error of a pack at the output that the plan has not made."""
    added = ", ".join(_lost(pack.index_file, plan))
    return OutputExistsError(
        f"{pack.path}: exists, packed from other files or with other options; choose another "
        "name, or say --overwrite"
        + (f", which loses what packio add made: {added}" if added else "")
    )


def lost_fields(plan: Plan, out: Path | Url) -> list[str]:
    """Names of added fields of the pack at an output that a plan does not make anew."""
    try:
        if isinstance(out, Url):
            with opening.open(out) as pack:
                return _lost(pack.index_file, plan)
        for path in (out / indexfile.INDEX_NAME, out.with_name(out.name + indexfile.INDEX_SUFFIX)):
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
        names = new_names(plan.own)
        added -= {names.get(n, n) for pack in plan.listing.packs for n in pack.fields}
    return sorted(added)


def is_made_by(plan: Plan, pack: opening.Pack, *, skip: bool) -> bool:
    """Tell whether a pack was made by a plan, and the source has the same contents now."""
    left_out = len(plan.listing.dropped) + plan.carried.skipped
    complete = skip or pack.metadata["counts"]["skipped"] == left_out
    if not complete or pack.metadata.get("plan") != plan.digest:
        return False
    known = seen.load(pack.digest, len(pack))
    listing = renamed.as_in_pack(plan.listing, origins_of(pack.metadata))
    return contents.unchanged(listing, pack.index_file, known, Treatment.of(plan.own))


def check_replaceable(out: Path) -> None:
    """Refuse to replace a folder that is no pack."""
    if not os.path.isdir(out) or os.path.exists(out / indexfile.INDEX_NAME):
        return
    try:
        empty = not os.listdir(out)
    except OSError as error:
        raise OutputExistsError(f"{out}: cannot be looked into: {error.strerror}") from error
    if not empty:
        raise OutputExistsError(
            f"{out}: a folder that is no pack is not overwritten; remove it, or choose another name"
        )


def of_pack(plan: Plan, pack: opening.Pack, began: float) -> PackReport:
    """Report of a pack that is there already."""
    counts = pack.metadata["counts"]
    deep = deep_pixels([pack.index_file.column("image/dtype").array()])
    listed = pack.path.with_name(pack.path.name + SKIPPED_SUFFIX)
    return PackReport(
        out=pack.path,
        format=plan.format,
        found=counts["found"],
        packed=counts["packed"],
        skipped=(),
        classes=len(plan.listing.classes),
        source_bytes=pack.index_file.column("image/length").total(),
        out_bytes=pack_bytes(pack),
        seconds=time.monotonic() - began,
        digest=pack.digest,
        up_to_date=True,
        warnings=(*plan.listing.warnings, *pack.metadata.get("told", ()), *deep),
        skipped_file=listed if counts["skipped"] and listed.exists() else None,
    )


def pack_bytes(pack: opening.Pack) -> int:
    """Bytes of all files of a pack, the index included."""
    return sum(size for _, size, _ in pack.index_file.files()) + pack.index_file.nbytes
