"""What is at OUT already: what this plan would make, something to replace, or in the way."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from packio.errors import LockedError, OutputExistsError, PackioError
from packio.index import indexfile
from packio.packing.plan import seen
from packio.packing.plan.plan import Plan
from packio.packing.report import PackReport
from packio.packing.run.reading import Treatment, read_ahead
from packio.packs import packs
from packio.sample.record import Field, Record
from packio.sources import Listing

SKIPPED_SUFFIX = ".skipped.jsonl"


@contextlib.contextmanager
def locked(index: Path) -> Iterator[None]:
    """Lock the index of a folder pack: appending and overwriting both do, and exclude each other.

    Readers take no lock. Nothing is locked if there is no such index.

    Raises:
        LockedError: another process changes the pack.
    """
    try:
        descriptor = os.open(index, os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # no pack, or a pack that may only be read: its folder decides
        yield
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.stat(index).st_ino != os.fstat(descriptor).st_ino:
                raise BlockingIOError  # it was replaced just now
        except BlockingIOError as error:
            raise LockedError(
                f"{index.parent}: another packio is changing it; wait for it to end"
            ) from error
        yield
    finally:
        os.close(descriptor)


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
            if is_made_by(plan, pack, skip=skip):
                return of_pack(plan, pack, began)
    except PackioError as error:
        raise OutputExistsError(
            f"{out}: exists and is no finished pack ({error}); remove it, or choose another name"
        ) from error
    raise OutputExistsError(
        f"{out}: exists, packed from other files or with other options; "
        "choose another name, or say --overwrite"
    )


def is_made_by(plan: Plan, pack: packs.Pack, *, skip: bool) -> bool:
    """Tell whether a pack is what a plan makes, of a source that has not changed since."""
    left_out = len(plan.listing.dropped) + plan.carried.skipped
    complete = skip or pack.metadata["counts"]["skipped"] == left_out
    known = seen.load(pack.digest, len(pack))
    return (
        complete
        and pack.metadata.get("plan") == plan.digest
        and unchanged(plan.listing, pack.index_file, known, Treatment.of(plan.own))
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


def unchanged(
    listing: Listing, index: indexfile.Index, known: np.ndarray, treatment: Treatment
) -> bool:
    """Tell whether samples are what they were when they were packed; see `changed`.

    What is not read from files is taken to be unchanged: the plan has a digest of its contents.
    """
    if listing.root is None:
        return True
    return next(_differing(listing, index, known, treatment), None) is None


def changed(
    listing: Listing, index: indexfile.Index, known: np.ndarray, treatment: Treatment
) -> list[bytes]:
    """Keys of samples whose bytes or annotations are not those that were packed.

    Args:
        listing: The samples, with labels as the index counts them.
        index: Of the pack, or of a shard, that was made of them.
        known: Identities of the rows of the index: samples that have theirs are not read.
        treatment: What was done to them.
    """
    return list(_differing(listing, index, known, treatment))


def _differing(
    listing: Listing, index: indexfile.Index, known: np.ndarray, treatment: Treatment
) -> Iterator[bytes]:
    rows = {index.key(row): row for row in range(len(index))}
    labels = index.column("label").array() if "label" in index else None
    suspects = []
    for i, now in enumerate(seen.identities(listing).tolist()):
        row = rows.get(listing.keys[i])
        if row is not None and not _same_label(listing.label(i), labels, row):
            yield listing.keys[i]
        elif row is None or now == seen.UNKNOWN or now != known[row]:
            suspects.append(i)
    part = listing.take(suspects)
    threads = treatment.threads
    for chunk in read_ahead(part, range(len(suspects)), threads=threads, treatment=treatment):
        for read in chunk:
            key = part.keys[read.position]
            row = rows.get(key)
            if (read.problem is None) != (row is not None) or (
                row is not None and not _as_packed(read.record, row, index)
            ):
                yield key


def _same_label(label: Any, labels: np.ndarray | None, row: int) -> bool:
    if label is None or labels is None:
        return label is None and labels is None
    now, stored = np.atleast_1d(label), np.atleast_1d(labels[row])
    more = max(len(now) - len(stored), 0)  # many-hot, of classes that are new
    return bool(np.array_equal(now, np.pad(stored, (0, more))))


def _as_packed(record: Record[Field], row: int, index: indexfile.Index) -> bool:
    """Tell whether a sample, made as it was then, has the bytes and annotations of a row."""
    for name in index.fields.keys() | record.fields.keys():
        field = record.fields.get(name)
        has = f"{name}/offset" in index and index.column(f"{name}/offset").item(row) >= 0
        if has != (field is not None):
            return False
        if field and indexfile.crc32c(field.data) != index.column(f"{name}/crc32c").item(row):
            return False
    return _meta(index, row) == (record.meta or b"") and _same_boxes(record, row, index)


def _meta(index: indexfile.Index, row: int) -> bytes:
    if "meta_data" not in index:
        return b""
    start, stop = index.column("meta_offsets").span(row, row + 2).tolist()
    return index.column("meta_data").span(start, stop).tobytes()


def _same_boxes(record: Record[Field], row: int, index: indexfile.Index) -> bool:
    start = stop = 0
    if "boxes" in index:
        start, stop = index.column("box_offsets").span(row, row + 2).tolist()
    if record.boxes is None or not len(record.boxes):
        return start == stop
    if start == stop or set(record.box_columns) != set(index.box_columns):
        return False
    columns = {"boxes": np.asarray(record.boxes, np.float32).reshape(-1, 4)}
    columns |= {f"boxes/{name}": values for name, values in record.box_columns.items()}
    return all(
        np.array_equal(np.asarray(values).astype(index.column(name).dtype),
                       index.column(name).span(start, stop))
        for name, values in columns.items()
    )  # fmt: skip


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
        source_bytes=int(pack.index_file.column("image/length").array().sum()),
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
