"""What is at OUT already: what this plan would make, something to replace, or in the way."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from packio.errors import OutputExistsError, PackioError
from packio.index import indexfile
from packio.packing.plan.plan import Plan
from packio.packing.report import PackReport
from packio.packing.run.reading import Treatment, read_one
from packio.packs import packs
from packio.sources import Listing, ReadRecord

SKIPPED_SUFFIX = ".skipped.jsonl"
_CLOCK_SKEW = 2_000_000_000  # ns, by which a file system's clock may lag behind


def report(
    plan: Plan, out: Path, began: float, treatment: Treatment, *, skip: bool
) -> PackReport | None:
    """A report if ``out`` is what this plan makes; None if nothing is there.

    Args:
        plan: What would be packed.
        out: The output.
        began: When the run began, by `time.monotonic`.
        treatment: What is done to each sample.
        skip: Whether bad images may be missing from it.

    Raises:
        OutputExistsError: something else is there.
    """
    if not os.path.lexists(out):
        return None
    try:
        with packs.open(out) as pack:
            complete = skip or pack.metadata["counts"]["skipped"] == len(plan.listing.dropped)
            same = complete and pack.metadata.get("plan") == plan.digest
            clock = pack.index_file.path.stat().st_mtime_ns
            if same and unchanged(plan.listing, pack.index_file, clock, treatment):
                return of_pack(plan, pack, began)
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


def unchanged(listing: Listing, index: indexfile.Index, clock: int, treatment: Treatment) -> bool:
    """Tell whether samples are what they were when they were packed; see `changed`."""
    return next(_differing(listing, index, clock, treatment), None) is None


def changed(
    listing: Listing, index: indexfile.Index, clock: int, treatment: Treatment
) -> list[bytes]:
    """Keys of samples that are not what they were when they were packed; changed files are read.

    Args:
        listing: The samples.
        index: Of what was made of them.
        clock: When they were looked at, nanoseconds since the epoch.
        treatment: What was done to them.
    """
    return list(_differing(listing, index, clock, treatment))


def _differing(
    listing: Listing, index: indexfile.Index, clock: int, treatment: Treatment
) -> Iterator[bytes]:
    since, root = clock - _CLOCK_SKEW, listing.root
    if root is None:
        return  # the plan has the version of the contents
    files = listing.files if listing.files is not None else [(key,) for key in listing.keys]
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        suspects = [
            i for i, paths in enumerate(files) if any(_changed(folder, p, since) for p in paths)
        ]
    finally:
        os.close(folder)
    with listing.opened() as read:
        for i in suspects:
            if not _as_packed(read, i, listing, index, treatment):
                yield listing.keys[i]


def _changed(folder: int, key: bytes, since: int) -> bool:
    try:
        return os.stat(key, dir_fd=folder).st_ctime_ns > since  # mtime can be set back
    except OSError:
        return True


def _as_packed(
    read: ReadRecord, position: int, listing: Listing, index: indexfile.Index, treatment: Treatment
) -> bool:
    """Tell whether a file can be packed if it was then, with the same bytes."""
    now = read_one(listing, read, position, treatment)
    try:
        row = index.find(listing.keys[position])
    except KeyError:
        return now.problem is not None
    return now.problem is None and all(
        f"{name}/crc32c" in index
        and indexfile.crc32c(field.data) == index.column(f"{name}/crc32c").item(row)
        for name, field in now.record.fields.items()
    )


def of_pack(plan: Plan, pack: packs.Pack, began: float) -> PackReport:
    """A report of a pack that is there already."""
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
