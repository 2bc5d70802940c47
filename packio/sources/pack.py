"""Packs as a source: the samples of a pack, or of several packs in order. Nothing is decoded.

Samples come as whole records, so nothing is lost: named fields, boxes with their columns, splits,
metadata, and the facts of pixels that the index has. Labels change so that all packs share one list
of classes: label 0 of a pack with the class "dog" becomes the position of "dog" in the list. The
argument ``fields`` of packing renames fields: ``fields={"caption": "txt"}`` calls the field ``txt``
``caption``.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from packio import sources
from packio.errors import DecodeError, IntegrityError, OptionError, SourceError
from packio.images import encodings
from packio.packs import locating, opening
from packio.packs.opening import Pack
from packio.sample.labelling import labels_of_meta
from packio.sample.packed import Sample
from packio.sample.record import IMAGE, MASK, Facts, Field, Record
from packio.sample.relabelling import Relabelling, all_classes, check_named
from packio.sources import Context, FieldOrigins, Flag, L, Listing, ReadRecord, Rows, Source
from packio.sources._rows import each
from packio.sources.tables import columns as tables

_READING = {
    "trust_plain_pickle": Flag("read LMDB values that are pickles; nothing in them is run"),
    "database": "name of the database within an LMDB",
}
_OPTIONS = {**_READING, "label_col": "member of the metadata that is the label"}
_MOST_UNLISTED = 1 << 24  # an index may be forged


@dataclasses.dataclass(frozen=True)
class PackListing(Listing):
    packs: tuple[Pack, ...] = ()


def list_packs(packs: Sequence[Pack], classes: Sequence[str] | None = None) -> PackListing:
    check_alike(packs)
    names = list(all_classes(p.classes for p in packs) if classes is None else classes)
    moves = [_relabelling(p, names) for p in packs]
    edges = np.cumsum([0, *map(len, packs)]).tolist()
    splits, split_names = join_splits(packs)
    digest = packs[0].digest
    if len(packs) > 1:
        digest = hashlib.sha256(" ".join(p.digest for p in packs).encode()).hexdigest()
    return PackListing(
        "pack", None,
        [key for p in packs for key in p.index_file.every_key()],
        [size for p in packs for size in p.index_file.column("image/length").array().tolist()],
        _labels_of_packs(packs, moves), names,
        unlisted=[pair for p in packs for pair in _left_out(p)],
        warnings=[f"{p.path}: {line}" for p in packs for line in p.metadata.get("remarks", ())],
        splits=splits, split_names=split_names,
        rows=Rows({"position": np.arange(edges[-1])}, digest),
        open=Reading(tuple(packs), tuple(moves), edges),
        packs=tuple(packs),
    )  # fmt: skip


def _left_out(pack: Pack) -> list[tuple[bytes, str]]:
    listed = pack.metadata.get("left_out", [])
    if not listed:
        return []
    more: int = min(pack.metadata["counts"]["skipped"] - len(listed), _MOST_UNLISTED)
    found: list[tuple[bytes, str]] = [(os.fsencode(key), reason) for key, reason in listed]
    return found + more * [(b"", f"bad, too; the index of {pack.path} lists the first ones only")]


def prefix_keys(listing: PackListing, prefixes: Sequence[bytes]) -> PackListing:
    """The listing with something put before the keys of each pack; b"": nothing."""
    if not any(prefixes):
        return listing
    pairs = zip(listing.packs, prefixes, strict=True)
    before = [prefix for pack, prefix in pairs for _ in range(len(pack))]
    keys = [prefix + key for prefix, key in zip(before, listing.keys, strict=True)]
    return dataclasses.replace(listing, keys=keys)


def _relabelling(pack: Pack, names: list[str]) -> Relabelling:
    """The change of labels of a pack. In a pack without names, label 3 means the fourth name."""
    if pack.classes or not names:
        return Relabelling(pack.classes, names, str(pack.path))
    index = pack.index_file
    for column in ("label", "boxes/labels"):
        if column in index:
            check_named(index.column(column).array(), names, str(pack.path))
    return Relabelling(names, names, str(pack.path))


def _labels_of_packs(
    packs: Sequence[Pack], moves: Sequence[Relabelling]
) -> list[int] | np.ndarray | None:
    each = [move.labels(p.labels) for p, move in zip(packs, moves, strict=True)
            if p.labels is not None]  # fmt: skip
    if not each:
        return None
    labels = np.concatenate(each)
    return labels.tolist() if labels.ndim == 1 else labels


def join_splits(packs: Sequence[Pack]) -> tuple[np.ndarray | None, list[str]]:
    """The split of each sample, (N,) uint8, or None, and the names."""
    each = [_splits_of(p) for p in packs]
    names = all_classes(each)
    if not names:
        return None, []
    moved = []
    for p, own in zip(packs, each, strict=True):
        numbers = np.array([names.index(name) for name in own], np.uint8)
        moved.append(numbers[p.index_file.column("split").array()])
    return np.concatenate(moved), names


def _splits_of(pack: Pack) -> list[str]:
    return list(pack.metadata.get("splits") or []) if "split" in pack.index_file else []


def check_alike(packs: Sequence[Pack]) -> None:
    first = packs[0]
    for other in packs[1:]:
        for what, of in (
            ("labels", _label_kind),
            ("splits", lambda pack: "names" if _splits_of(pack) else "none"),
        ):
            if of(first) != of(other):
                raise OptionError(
                    f"the packs have {what} of different kinds: {of(first)} in {first.path}, "
                    f"{of(other)} in {other.path}; only those of one kind can be merged"
                )
        for name in first.fields.keys() & other.fields.keys():
            if first.fields[name] != other.fields[name]:
                raise OptionError(
                    f"field {name!r} is of kind {first.fields[name]} in {first.path} and of kind "
                    f"{other.fields[name]} in {other.path}; expected the same kind"
                )


def _label_kind(pack: Pack) -> str:
    labels = pack.labels
    named = "class names" if pack.classes else "numbers"
    if labels is None:
        return "boxes with class names" if pack.classes else "none"
    if labels.ndim == 1:
        return named
    return f"vectors of {named}" if pack.classes else f"vectors of {labels.shape[1]} numbers"


class DamagedLevel(Field):
    """A level that is not as it was packed: its data are the reason. Packing leaves it out."""


@dataclasses.dataclass(frozen=True)
class Reading:
    packs: tuple[Pack, ...]
    moves: tuple[Relabelling, ...]
    edges: list[int]
    with_levels: bool = True

    def __call__(self, rows: Any) -> AbstractContextManager[ReadRecord]:
        return each(self._read, rows)

    def _read(self, rows: Rows, position: int) -> Record[Field]:
        row = int(rows.columns["position"][position])
        number = bisect.bisect_right(self.edges, row) - 1
        pack, place = self.packs[number], row - self.edges[number]
        try:
            try:
                record = pack.record(place, with_levels=self.with_levels)
            except IntegrityError:
                if not (self.with_levels and pack.levels):
                    raise
                record = pack.record(place, with_levels=False)  # which raises the error of another
                record = record.with_fields(**_levels(pack, place))
        except IntegrityError as error:
            raise DecodeError(str(error)) from error
        return self.moves[number].record(drop_unknown(record))


def _levels(pack: Pack, place: int) -> dict[str, Field]:
    found = dict[str, Field]()
    for name in pack.levels.values():
        try:
            field = pack.field(name, place)
        except IntegrityError as error:
            field = DamagedLevel("image", str(error).encode("utf-8", "surrogateescape"))
        if field is not None:
            found[name] = field
    return found


def drop_unknown(record: Record[Field]) -> Record[Field]:
    """The record without facts that the index does not know. Packing reads such facts again."""
    unknown = {
        name: field._replace(facts=None)
        for name, field in record.fields.items()
        if field.facts is not None and (field.encoding == "unknown" or not field.facts.height)
    }
    return record.with_fields(**unknown) if unknown else record


class PackSource(Source):
    priority = 0.5  # an archive of images is asked before, an image folder after
    takes_fields = True
    options = _OPTIONS

    def recognise(self, path: Path) -> bool:
        return locating.has_index(path) or locating.is_container(path)

    def accepts(self, obj: object) -> bool:
        if isinstance(obj, Pack):
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
        if isinstance(samples, Pack):
            found: Listing = list_packs([samples], None if label_col is not None else classes)
            if hint is not None:
                found.warnings.append(f"no labels; the metadata has {hint!a}: --label-col {hint}")
            if label_col is not None:
                found = _relabelled(found, samples, label_col, classes)
        else:
            found = _of_samples(samples, classes or [])
        if len(set(found.keys)) != len(found.keys):
            raise OptionError("several samples have the same key; expected each key once")
        return rename_fields(found, [samples], context.fields)


SOURCE = PackSource()


def _relabelled(listing: L, pack: Pack, label_col: str, classes: Sequence[str] | None) -> L:
    if pack.classes and "boxes/labels" in pack.index_file:
        raise OptionError(f"{pack.path}: label_col={label_col!r}: its boxes have classes already")
    metas, path = map(pack.meta, range(len(pack))), str(pack.path)
    return listing.with_labels(labels_of_meta(
        metas, label_col, lambda i: path if i is None else f"{path}: {pack.key(i)!a}", classes
    ))  # fmt: skip


def rename_fields(
    listing: L, each: Sequence[Sequence[Sample]], fields: Mapping[str, Any] | None
) -> L:
    """The listing of packs, or of sequences of `Sample`, whose fields have other names."""
    if not (asked := sources.parse_fields(fields)):
        return listing
    _check_fields(dict(pair for samples in each for pair in _kinds(samples)), asked)
    names = {origin: name for name, (origin, _) in asked.items()}
    return listing.map_records(functools.partial(_renamed, names))


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
    return Listing(
        "pack", None, [record.key for record in records], [len(s.data) for s in samples], labels,
        classes, splits=[names.index(str(s.split)) for s in samples] if names else None,
        split_names=names, rows=Rows({"record": records}), open=functools.partial(each, _read),
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
    if isinstance(samples, Pack):
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


def _read(rows: Rows, position: int) -> Record[Field]:
    record: Record[Field] = rows.columns["record"][position]
    return record


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
