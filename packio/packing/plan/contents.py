"""Whether samples have the contents that were packed: bytes, labels, boxes and metadata.

Fields that were added to the pack later are not compared: the source has other values of them, or
none. Fields of the source that the pack has lost are not in the listing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from packio.index import indexfile
from packio.index.metadata import origins_of
from packio.packing.plan import seen
from packio.packing.run.reading import Treatment, read_ahead
from packio.sample import levels
from packio.sample.origins import origin_of
from packio.sample.record import Field, Record
from packio.sources import Listing


def unchanged(
    listing: Listing, index: indexfile.Index, known: np.ndarray, treatment: Treatment
) -> bool:
    """Tell whether samples have the contents that were packed; see `changed`.

    Samples that are not read from files are not compared: the plan has a digest of their contents.
    """
    if listing.root is None:
        return True
    return next(_differing(listing, index, known, treatment), None) is None


def changed(
    listing: Listing,
    index: indexfile.Index,
    known: np.ndarray,
    treatment: Treatment,
    *,
    labels: bool = True,
) -> list[bytes]:
    """Keys of samples whose bytes or annotations are not those that were packed."""
    return list(_differing(listing, index, known, treatment, compare_labels=labels))


def _differing(
    listing: Listing, index: indexfile.Index, known: np.ndarray, treatment: Treatment, *,
    compare_labels: bool = True,
) -> Iterator[bytes]:  # fmt: skip
    rows = {index.key(row): row for row in range(len(index))}
    became = origins_of(index.metadata)
    own = {name for name in index.fields | became if origin_of(name, became) is None}
    own |= {name for name, given in became.items() if name == given}  # in part
    labels = index.column("label").array() if "label" in index else None
    suspects = []
    for i, now in enumerate(seen.identities(listing).tolist()):
        row = rows.get(listing.keys[i])
        if compare_labels and row is not None and not _same_label(listing.label(i), labels, row):
            yield listing.keys[i]
        elif row is None or now == seen.UNKNOWN or now != known[row]:
            suspects.append(i)
    part = listing.take(suspects)  # levels are made of the image, and not compared
    treatment = dataclasses.replace(treatment, seek_points=False, levels=None)
    threads = treatment.threads
    for chunk in read_ahead(part, range(len(suspects)), threads=threads, treatment=treatment):
        for read in chunk:
            key = part.keys[read.position]
            row = rows.get(key)
            if (read.problem is None) != (row is not None) or (
                row is not None and not _as_packed(read.record, row, index, own)
            ):
                yield key


def _same_label(label: Any, labels: np.ndarray | None, row: int) -> bool:
    if label is None or labels is None:
        return label is None and labels is None
    now, stored = np.atleast_1d(label), np.atleast_1d(labels[row])
    more = max(len(now) - len(stored), 0)  # many-hot, of classes that are new
    return bool(np.array_equal(now, np.pad(stored, (0, more))))


def _as_packed(
    record: Record[Field], row: int, index: indexfile.Index, own: Collection[str]
) -> bool:
    """Tell whether a sample, treated as it was then, has the bytes and annotations of a row."""
    for name in set(levels.others(index.fields.keys() | record.fields.keys())).difference(own):
        field = record.fields.get(name)
        has = f"{name}/offset" in index and index.column(f"{name}/offset").item(row) >= 0
        if has != (field is not None):
            return False
        if field and indexfile.crc32c(field.data) != index.column(f"{name}/crc32c").item(row):
            return False
    return (record.meta or b"") == _meta(index, row) and _same_boxes(record, row, index)


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
