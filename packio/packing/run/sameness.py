"""Whether samples have the contents that were packed: bytes, labels, boxes and metadata.

Reading all samples is slow, so packing notes a fingerprint of each: the device, inode, size, mtime
and ctime of its files, and the row of a table that describes it. If it is that noted, the sample is
not read again. Times alone prove nothing: `mv` and `cp -p` give other files the old times. The
notes lie in the user's cache, under the pack's digest. Without them everything is read.

Fields that were added to the pack later are not compared: the source has other values of them, or
none. Fields of the source that the pack has lost are not in the listing.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import pickle
import struct
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from packio.index.indexfile import Index, crc32c
from packio.index.layout import origins_of
from packio.packing.planning import Plan
from packio.packing.run.reading import Treatment, read_ahead
from packio.packs.opening import Pack
from packio.sample import levels, origins
from packio.sample.origins import Origins
from packio.sample.record import Field, Record
from packio.sources import Listing
from packio.system import files
from packio.system.files import cache_folder


def is_made_by(plan: Plan, skip: bool, pack: Pack) -> bool:
    """Tell whether a pack was made by a plan, and the source has the same contents now."""
    complete = skip or pack.metadata["counts"]["skipped"] == plan.left_out
    if not complete or pack.metadata.get("plan") != plan.digest:
        return False
    known = load(pack.digest, len(pack))
    listing = apply_field_names(plan.listing, origins_of(pack.metadata))
    return is_same(listing, pack.index_file, known, plan.treatment)


def is_same(listing: Listing, index: Index, known: np.ndarray, treatment: Treatment) -> bool:
    """Tell whether all samples have the contents that were packed.

    Samples that are not read from files are not compared: the plan has a digest of their contents.
    """
    if listing.root is None:
        return True
    row_of = {key: row for row, key in enumerate(index.every_key())}
    rows = [row_of.get(key) for key in listing.keys]
    return next(find_differing(listing, rows, index, treatment, known=known), None) is None


def find_differing(
    listing: Listing, rows: Sequence[int | None], index: Index, treatment: Treatment, *,
    known: np.ndarray | None = None, labels: bool = True,
) -> Iterator[int]:  # fmt: skip
    """Positions of samples that do not have the contents of their rows in an index.

    The listing has the pack's labels and names of fields. A row is None where the sample was left
    out as bad, and should be bad. Files that still have the known fingerprints are not read.
    """
    became = origins_of(index.metadata)
    own = {n for n in index.fields | became if origins.origin_of(n, became) is None}
    own |= {name for name, given in became.items() if name == given}  # in part
    stored = index.column("label").array() if "label" in index else None
    now = None if known is None else fingerprints(listing).tolist()
    suspects = []
    for i, row in enumerate(rows):
        if labels and row is not None and not _same_label(listing.labels, i, stored, row):
            yield i
        elif (
            now is None or known is None or row is None or now[i] == UNKNOWN
            or now[i] != known[row]
        ):  # fmt: skip
            suspects.append(i)
    part = listing.take(suspects)  # levels are made of the image, and not compared
    treatment = dataclasses.replace(treatment, seek_points=False, levels=None)
    for chunk in read_ahead(
        part, range(len(suspects)), threads=treatment.threads, treatment=treatment
    ):
        for read in chunk:
            row = rows[suspects[read.position]]
            if (read.problem is None) != (row is not None) or (
                row is not None and not _as_packed(read.record, row, index, own)
            ):
                yield suspects[read.position]


def apply_field_names(listing: Listing, became: Origins, asked: Collection[str] = ()) -> Listing:
    """The listing of a source, with the fields that a pack has, under the pack's names."""
    if not became:
        return listing
    return listing.map_records(functools.partial(_with_names, became, frozenset(asked)))


def _with_names(became: Origins, asked: frozenset[str], record: Record[Field]) -> Record[Field]:
    return dataclasses.replace(record, fields=origins.take_fields(record.fields, became, asked))


def _same_label(labels: Any, position: int, packed: np.ndarray | None, row: int) -> bool:
    if labels is None or packed is None:
        return labels is packed
    now, stored = np.atleast_1d(labels[position]), np.atleast_1d(packed[row])
    more = max(len(now) - len(stored), 0)  # many-hot, of classes that are new
    return bool(np.array_equal(now, np.pad(stored, (0, more))))


def _as_packed(record: Record[Field], row: int, index: Index, own: Collection[str]) -> bool:
    """Tell whether a sample, treated as it was then, has the bytes and annotations of a row."""
    for name in set(levels.others(index.fields.keys() | record.fields.keys())).difference(own):
        field = record.fields.get(name)
        has = f"{name}/offset" in index and index.column(f"{name}/offset").item(row) >= 0
        if has != (field is not None):
            return False
        if field and crc32c(field.data) != index.column(f"{name}/crc32c").item(row):
            return False
    meta = _values(index, "meta_data", "meta_offsets", row).tobytes()
    return (record.meta or b"") == meta and _same_boxes(record, row, index)


def _values(index: Index, name: str, offsets: str, row: int) -> np.ndarray:
    """The values of a row in a column of lists; none if there is no such column."""
    if name not in index:
        return np.zeros(0, np.uint8)
    return index.column(name).span(*index.column(offsets).span(row, row + 2).tolist())


def _same_boxes(record: Record[Field], row: int, index: Index) -> bool:
    given = () if record.boxes is None else record.boxes
    stored = _values(index, "boxes", "box_offsets", row)
    if not len(given) or not len(stored):
        return len(given) == len(stored)
    columns = {f"boxes/{name}": values for name, values in record.box_columns.items()}
    return set(record.box_columns) == set(index.box_columns) and all(
        np.array_equal(np.asarray(values).astype(index.column(name).dtype),
                       _values(index, name, "box_offsets", row))
        for name, values in {"boxes": np.reshape(given, (-1, 4)), **columns}.items()
    )  # fmt: skip


COLUMN = "seen"  # of the index of a shard, while its pack is built
UNKNOWN = 0  # the fingerprint of a sample that has to be read
_SETTLED = 2_000_000_000  # ns; a file that changed later than this may change within one clock tick


def fingerprints(listing: Listing) -> np.ndarray:
    """Fingerprint of each sample, (n,) int64, taken before the samples are read."""
    found = np.full(len(listing.keys), UNKNOWN, np.int64)
    if listing.root is None:
        return found
    files = listing.files if listing.files is not None else [(key,) for key in listing.keys]
    newest = time.time_ns() - _SETTLED
    folder = os.open(listing.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for i, paths in enumerate(files):
            with suppress(OSError, pickle.PicklingError, TypeError, AttributeError):
                row = b"" if listing.rows is None else pickle.dumps(listing.rows[i : i + 1])
                found[i] = _fingerprint(folder, paths, row, newest)
    finally:
        os.close(folder)
    return found


def _fingerprint(folder: int, paths: Sequence[bytes], row: bytes, newest: int) -> int:
    digest = hashlib.blake2b(row, digest_size=8)
    for path in paths:
        s = os.stat(path, dir_fd=folder)
        if s.st_ctime_ns > newest:
            return UNKNOWN
        digest.update(struct.pack("<5Q", s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns % (1 << 64),
                                  s.st_ctime_ns))  # fmt: skip
    return int.from_bytes(digest.digest(), "little", signed=True)


def save(digest: str, found: np.ndarray | None) -> None:
    """Note the fingerprints of the samples of a pack, in the order of its rows."""
    if found is None or not found.any():
        return
    path = cache_folder("seen", f"{digest}.npy")
    with suppress(OSError):  # a cache that cannot be written costs a later run time, no more
        path.parent.mkdir(parents=True, exist_ok=True)
        with files.replacing(path) as file:
            np.save(file, found)


def load(digest: str, samples: int) -> np.ndarray:
    """Fingerprints of the samples of a pack, (samples,) int64, as far as they are noted."""
    with suppress(OSError, ValueError, EOFError):
        found = np.load(cache_folder("seen", f"{digest}.npy"), allow_pickle=False)
        if isinstance(found, np.ndarray) and found.shape == (samples,) and found.dtype == np.int64:
            return found
    return np.full(samples, UNKNOWN, np.int64)
