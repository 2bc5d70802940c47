"""The listing of a source whose new samples join a pack that has lost some of its fields."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Collection, Mapping
from typing import Any

from packio.index.indexfile import canonical_json
from packio.index.metadata import later_of
from packio.sample.record import Field, Record
from packio.sources import Listing


def of(
    listing: Listing, metadata: Mapping[str, Any], fields: Collection[str], asked: Collection[str]
) -> Listing:
    """The listing, whose samples lack what was dropped from a pack after it was packed.

    A field that came from a column of a table is not in the metadata of the samples, either.

    Args:
        listing: Of the source.
        metadata: Of the pack's index.
        fields: Of the pack.
        asked: Fields that the user asks for, whatever was dropped.
    """
    dropped = {
        name: column for name, column in later_of(metadata).items()
        if name not in fields and name not in asked
    }  # fmt: skip
    if not dropped:
        return listing
    columns = frozenset(filter(None, dropped.values()))
    return listing.changed(functools.partial(_lacking, frozenset(dropped), columns))


def _lacking(
    fields: frozenset[str], columns: frozenset[str], record: Record[Field]
) -> Record[Field]:
    kept = {name: field for name, field in record.fields.items() if name not in fields}
    return dataclasses.replace(record, fields=kept, meta=_without(record.meta, columns))


def _without(meta: bytes | None, columns: frozenset[str]) -> bytes | None:
    """Metadata without some columns; its bytes stay as they are if it has none of them."""
    if not meta or not columns:
        return meta
    values = json.loads(meta)
    if columns.isdisjoint(values):
        return meta
    kept = {name: value for name, value in values.items() if name not in columns}
    return canonical_json(kept).encode("utf-8", "surrogatepass")
