"""What is at OUT already: what this plan would make, something to replace, or in the way."""

from __future__ import annotations

import os
import time
from pathlib import Path

from packio import indexfile, packs
from packio.errors import OutputExistsError, PackioError
from packio.packing.plan import Plan
from packio.packing.reading import read_one
from packio.packing.report import PackReport
from packio.sources import ReadItem

SKIPPED_SUFFIX = ".skipped.jsonl"
_CLOCK_SKEW = 2_000_000_000  # ns, by which a file system's clock may lag behind


def report(plan: Plan, out: Path, began: float, *, skip: bool) -> PackReport | None:
    """A report if ``out`` is what this plan makes; None if nothing is there.

    Args:
        plan: What would be packed.
        out: The output.
        began: When the run began, by `time.monotonic`.
        skip: Whether bad images may be missing from it.

    Raises:
        OutputExistsError: something else is there.
    """
    if not os.path.lexists(out):
        return None
    try:
        with packs.open(out) as pack:
            complete = skip or not pack.metadata["counts"]["skipped"]
            if complete and pack.metadata.get("plan") == plan.digest and _unchanged(plan, pack):
                return _report(plan, pack, began)
    except PackioError as error:
        raise OutputExistsError(
            f"{out}: exists and is no finished pack ({error}); remove it, or choose another name"
        ) from error
    raise OutputExistsError(
        f"{out}: exists, packed from other files or with other options; "
        "choose another name, or say --overwrite"
    )


def check_replaceable(out: Path) -> None:
    """Refuse to replace a folder that holds anything but a pack.

    Raises:
        OutputExistsError: it does.
    """
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


def stamp(index: Path, clock: int) -> None:
    """Date the index of a new pack to when its source was looked at.

    Files that have changed since, also those that did while the pack was made, are then newer.

    Args:
        index: The index file.
        clock: Nanoseconds since the epoch.
    """
    os.utime(index, ns=(clock, clock))


def _unchanged(plan: Plan, pack: packs.Pack) -> bool:
    """Look again at the files that have changed since the pack was begun, in any way."""
    since = pack.index_file.path.stat().st_mtime_ns - _CLOCK_SKEW
    root = plan.listing.root
    if root is None:
        return True  # the plan has the version of the contents
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        changed = [i for i, key in enumerate(plan.listing.keys) if _changed(folder, key, since)]
    finally:
        os.close(folder)
    with plan.listing.opened() as read:
        return all(_as_packed(read, i, plan, pack) for i in changed)


def _changed(folder: int, key: bytes, since: int) -> bool:
    try:
        return os.stat(key, dir_fd=folder).st_ctime_ns > since  # mtime can be set back
    except OSError:
        return True


def _as_packed(read: ReadItem, position: int, plan: Plan, pack: packs.Pack) -> bool:
    """Tell whether a file can be packed if it was then, with the same bytes."""
    now = read_one(read, position)
    try:
        row = pack.row(pack.find(plan.listing.keys[position]))
    except KeyError:
        return now.problem is not None
    return now.problem is None and indexfile.crc32c(now.item.data) == row.crc32c


def _report(plan: Plan, pack: packs.Pack, began: float) -> PackReport:
    counts = pack.metadata["counts"]
    listed = pack.path.with_name(pack.path.name + SKIPPED_SUFFIX)
    return PackReport(
        out=pack.path,
        format=plan.format,
        found=counts["found"],
        packed=counts["packed"],
        skipped=(),
        classes=len(plan.listing.classes),
        source_bytes=int(pack.index_file.column("length").array().sum()),
        out_bytes=pack_bytes(pack),
        seconds=time.monotonic() - began,
        digest=pack.digest,
        up_to_date=True,
        warnings=tuple(plan.listing.warnings),
        skipped_file=listed if counts["skipped"] and listed.exists() else None,
    )


def pack_bytes(pack: packs.Pack) -> int:
    """Bytes of all files of a pack, the index included."""
    return sum(size for _, size, _ in pack.index_file.files()) + pack.index_file.path.stat().st_size
