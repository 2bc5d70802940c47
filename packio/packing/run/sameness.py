"""Whether samples have the contents that were packed: bytes, labels, boxes and metadata.

Fields that were added to the pack later are not compared: the source has other values of them, or
none. Fields of the source that the pack has lost are not in the listing.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from packio.index.indexfile import Index, crc32c
from packio.index.layout import origins_of
from packio.packing.plan.planning import Plan
from packio.packing.run import stat_cache
from packio.packing.run.reading import Treatment, read_ahead
from packio.packs import opening
from packio.sample import levels, origins
from packio.sample.origins import Origins
from packio.sample.record import Field, Record
from packio.sources import Listing


def is_made_by(plan: Plan, skip: bool, pack: opening.Pack) -> bool:
    """Tell whether a pack was made by a plan, and the source has the same contents now."""
    complete = skip or pack.metadata["counts"]["skipped"] == plan.left_out
    if not complete or pack.metadata.get("plan") != plan.digest:
        return False
    known = stat_cache.load(pack.digest, len(pack))
    listing = as_in_pack(plan.listing, origins_of(pack.metadata))
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

    Args:
        listing: The samples, with the labels and the names of fields of the pack.
        rows: The row of each sample; None: the sample was left out as bad, and should be bad.
        index: Of the pack or shard.
        treatment: How the samples were made.
        known: Fingerprints of the rows (see `stat_cache`): files that still have them are not read.
        labels: Compare the labels.
    """
    became = origins_of(index.metadata)
    own = {n for n in index.fields | became if origins.origin_of(n, became) is None}
    own |= {name for name, given in became.items() if name == given}  # in part
    stored = index.column("label").array() if "label" in index else None
    now = None if known is None else stat_cache.fingerprints(listing).tolist()
    suspects = []
    for i, row in enumerate(rows):
        if labels and row is not None and not _same_label(listing.label(i), stored, row):
            yield i
        elif (
            now is None or known is None or row is None or now[i] == stat_cache.UNKNOWN
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


def as_in_pack(listing: Listing, became: Origins, asked: Collection[str] = ()) -> Listing:
    """The listing of a source, with the fields that a pack has, under the pack's names."""
    if not became:
        return listing
    return listing.changed(functools.partial(_with_names, became, frozenset(asked)))


def _with_names(became: Origins, asked: frozenset[str], record: Record[Field]) -> Record[Field]:
    return dataclasses.replace(record, fields=origins.taken(record.fields, became, asked))


def _same_label(label: Any, labels: np.ndarray | None, row: int) -> bool:
    if label is None or labels is None:
        return label is None and labels is None
    now, stored = np.atleast_1d(label), np.atleast_1d(labels[row])
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
    return (record.meta or b"") == _meta(index, row) and _same_boxes(record, row, index)


def _meta(index: Index, row: int) -> bytes:
    if "meta_data" not in index:
        return b""
    start, stop = index.column("meta_offsets").span(row, row + 2).tolist()
    return index.column("meta_data").span(start, stop).tobytes()


def _same_boxes(record: Record[Field], row: int, index: Index) -> bool:
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
