"""A pack as a source, to convert it to another format or to other classes. Nothing is decoded.

A sample keeps everything: its named fields, split, boxes with their columns, metadata, and shape,
type and orientation of raw pixels. The argument ``fields`` of packing renames fields:
``fields={"caption": "txt"}`` calls the field ``txt`` ``caption``.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from packio.errors import OptionError, SourceError
from packio.images import encodings
from packio.packs import locating, opening
from packio.sample.facts import Facts
from packio.sample.labelling import labels_of_meta
from packio.sample.packed import Sample
from packio.sample.record import IMAGE, MASK, Field, Record
from packio.sample.relabelling import check_named
from packio.sources import (
    Context,
    FieldOrigins,
    Flag,
    L,
    Listing,
    Source,
    _packs,
    wanted_fields,
)
from packio.sources._rows import ListedRows, each
from packio.sources.tables import columns as tables

_READING = {
    "trust_plain_pickle": Flag("read LMDB values that are pickles; nothing in them is run"),
    "database": "name of the database within an LMDB",
}
_OPTIONS = {**_READING, "label_col": "member of the metadata that is the label"}


class PackSource(Source):
    priority = 0.5  # an archive of images is asked before, an image folder after
    takes_fields = True
    options = _OPTIONS

    def recognise(self, path: Path) -> bool:
        return locating.has_index(path) or locating.is_container(path)

    def accepts(self, obj: object) -> bool:
        if isinstance(obj, opening.Pack):
            return True
        return isinstance(obj, Sequence) and (not len(obj) or isinstance(obj[0], Sample))

    def listing(self, source: Any, context: Context) -> Listing:
        label_col, samples, hint = context.option("label_col"), source, None
        if isinstance(source, (str, os.PathLike)):
            reading = {name: context.options[name] for name in _READING if name in context.options}
            if label_col is not None and not locating.has_index(Path(source)):
                reading["label"], label_col = label_col, None
            samples = opening.open_silently(source, **reading)
            if not reading.get("label") and len(samples) and samples[0].label is None:
                foreign = {} if locating.has_index(Path(source)) else samples.meta(0) or {}
                hint = tables.guess(foreign, tables.LABEL_NAMES)
        if not len(samples):
            raise SourceError("no samples; expected at least one")
        classes = None if context.classes is None else list(context.classes)
        if isinstance(samples, opening.Pack):
            found: Listing = _packs.listing([samples], None if label_col is not None else classes)
            if hint is not None:
                found.warnings.append(f"no labels; the metadata has {hint!a}: --label-col {hint}")
            if label_col is not None:
                found = _relabelled(found, samples, label_col, classes)
        else:
            found = _of_samples(samples, classes or [])
        if len(set(found.keys)) != len(found.keys):
            raise OptionError("several samples have the same key; expected each key once")
        return renamed(found, [samples], context.fields)


SOURCE = PackSource()


def _relabelled(listing: L, pack: opening.Pack, label_col: str, classes: Sequence[str] | None) -> L:
    if pack.classes and "boxes/labels" in pack.index_file:
        raise OptionError(f"{pack.path}: label_col={label_col!r}: its boxes have classes already")

    def place(position: int | None) -> str:
        return f"{pack.path}" + ("" if position is None else f": {pack.key(position)!a}")

    metas = map(pack.meta, range(len(pack)))
    return listing.labelled(labels_of_meta(metas, label_col, place, classes))


def renamed(listing: L, each: Sequence[Sequence[Sample]], fields: Mapping[str, Any] | None) -> L:
    """The listing of packs, or of sequences of `Sample`, whose fields have other names."""
    asked = wanted_fields(fields)
    if asked:
        _check_fields(dict(pair for samples in each for pair in _kinds(samples)), asked)
    if not asked:
        return listing
    names = {origin: name for name, (origin, _) in asked.items()}
    return listing.changed(functools.partial(_renamed, names))


def _of_samples(samples: Sequence[Sample], classes: list[str]) -> Listing:
    names = sorted({sample.split for sample in samples if sample.split is not None})
    without = sum(sample.split is None for sample in samples)
    if names and without:
        raise OptionError(
            f"{without} of {len(samples)} samples have no split; expected all or none"
        )
    labels = _labels([sample.label for sample in samples])
    if labels is not None and classes:
        check_named(np.asarray(labels), classes, "samples")
    records = [_record(sample) for sample in samples]
    columns = {
        "fields": [dict(record.fields) for record in records],
        "meta": [record.meta for record in records],
        "boxes": [record.boxes for record in records],
        "box columns": [dict(record.box_columns) for record in records],
    }
    return Listing(
        "pack", None, [record.key for record in records], [len(s.data) for s in samples], labels,
        classes, splits=[names.index(str(s.split)) for s in samples] if names else None,
        split_names=names, rows=ListedRows(columns), open=functools.partial(each, _read),
    )  # fmt: skip


def _labels(found: list[Any]) -> list[int] | np.ndarray | None:
    missing = sum(label is None for label in found)
    if missing not in (0, len(found)):
        raise OptionError(f"{missing} of {len(found)} samples have no label; expected all or none")
    if missing:
        return None
    if all(isinstance(label, (int, np.integer)) for label in found):
        return [int(label) for label in found]
    return np.array(found).reshape(len(found), -1)


def _kinds(samples: Sequence[Sample]) -> Iterator[tuple[str, str]]:
    if isinstance(samples, opening.Pack):
        yield from (pair for pair in samples.fields.items() if pair[0] != IMAGE)
        return
    for sample in samples:
        yield from ((name, field.kind) for name, field in sample.fields.items())
        if sample.mask is not None:
            yield (MASK, "mask")


def _check_fields(kinds: Mapping[str, str], asked: FieldOrigins) -> None:
    for name, (origin, kind) in asked.items():
        if origin not in kinds or kind not in (None, kinds[origin]):
            there = ", ".join(f"{n} ({k})" for n, k in kinds.items()) or "no fields"
            raise OptionError(f"field {name!r} from {origin!r}: the pack has {there}")
    origins = [origin for origin, _ in asked.values()]
    for name, (origin, _) in asked.items():
        if name in kinds and name not in origins:
            raise OptionError(f"field {name!r} from {origin!r}: the pack has a field {name!r} too")
        if origins.count(origin) > 1:
            raise OptionError(f"field {origin!r} under two names; a field is renamed, not copied")


def _read(rows: ListedRows, position: int) -> Record[Field]:
    fields, meta, boxes, box_columns = (column[position] for column in rows.columns.values())
    return Record(b"", fields, boxes=boxes, box_columns=box_columns, meta=meta)


def _renamed(names: dict[str, str], record: Record[Field]) -> Record[Field]:
    fields = {names.get(name, name): field for name, field in record.fields.items()}
    return dataclasses.replace(record, fields=fields)


def _record(sample: Sample) -> Record[Field]:
    facts: Facts | None = None
    if sample.encoding in encodings.RAW:
        facts = encodings.raw_facts(
            sample.height, sample.width, sample.channels, sample.dtype, sample.encoding
        )
    elif sample.orientation != 1:  # a file such as a BMP has no orientation
        facts = encodings.read_facts(sample.data)
    if facts is not None:
        facts = facts._replace(orientation=sample.orientation)
    fields = {"image": Field("image", sample.data, facts), **sample.fields}
    if sample.mask is not None:
        fields["mask"] = Field("mask", sample.mask)
    labels = {} if sample.box_labels is None else {"labels": sample.box_labels}
    return Record(
        sample.key.encode("utf-8", "surrogateescape"), fields, boxes=sample.boxes,
        box_columns={**labels, **sample.box_columns},
        meta=None if sample.meta is None else tables.compact(sample.meta),
    )  # fmt: skip
