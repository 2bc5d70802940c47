"""Packs as a source: the samples of a pack, or of several packs in order.

Samples come as whole records, so nothing is lost: named fields, boxes with their columns, splits,
metadata, and the facts of pixels that the index has. Labels change so that all packs share one list
of classes: label 0 of a pack with the class "dog" becomes the position of "dog" in the list.
"""

from __future__ import annotations

import bisect
import dataclasses
import hashlib
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from packio.errors import DecodeError, IntegrityError, OptionError
from packio.packs.opening import Pack
from packio.sample.record import Field, Record
from packio.sample.relabelling import Relabelling, all_classes, check_named
from packio.sources import Listing, ReadRecord
from packio.sources._rows import ListedRows, each

_MOST_UNLISTED = 1 << 24  # an index may be forged


@dataclasses.dataclass(frozen=True)
class PackListing(Listing):
    packs: tuple[Pack, ...] = ()


def listing(packs: Sequence[Pack], classes: Sequence[str] | None = None) -> PackListing:
    check_alike(packs)
    names = list(all_classes(p.classes for p in packs) if classes is None else classes)
    moves = [_relabelling(p, names) for p in packs]
    edges = np.cumsum([0, *map(len, packs)]).tolist()
    splits, split_names = joined_splits(packs)
    digest = packs[0].digest
    if len(packs) > 1:
        digest = hashlib.sha256(" ".join(p.digest for p in packs).encode()).hexdigest()
    return PackListing(
        "pack", None,
        [key for p in packs for key in p.index_file.every_key()],
        [size for p in packs for size in p.index_file.column("image/length").array().tolist()],
        _labels(packs, moves), names,
        unlisted=[pair for p in packs for pair in _left_out(p)],
        warnings=[f"{p.path}: {line}" for p in packs for line in p.metadata.get("remarks", ())],
        splits=splits, split_names=split_names,
        rows=ListedRows({"position": np.arange(edges[-1])}, digest),
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


def prefixed(listing: PackListing, prefixes: Sequence[bytes]) -> PackListing:
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


def _labels(packs: Sequence[Pack], moves: Sequence[Relabelling]) -> list[int] | np.ndarray | None:
    each = [move.labels(p.labels) for p, move in zip(packs, moves, strict=True)
            if p.labels is not None]  # fmt: skip
    if not each:
        return None
    labels = np.concatenate(each)
    return labels.tolist() if labels.ndim == 1 else labels


def joined_splits(packs: Sequence[Pack]) -> tuple[np.ndarray | None, list[str]]:
    """The split of each sample, (N,) uint8, or None, and the names."""
    each = [_splits_of(p) for p in packs]
    names = all_classes(each)
    if not names:
        return None, []
    moved = [
        np.array([names.index(name) for name in own], np.uint8)[
            p.index_file.column("split").array()
        ]
        for p, own in zip(packs, each, strict=True)
    ]
    return np.concatenate(moved), names


def _splits_of(pack: Pack) -> list[str]:
    return list(pack.metadata.get("splits") or []) if "split" in pack.index_file else []


def check_alike(packs: Sequence[Pack]) -> None:
    first = packs[0]
    for other in packs[1:]:
        for what, of in (("labels", _label_kind), ("splits", _split_kind)):
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


def _split_kind(pack: Pack) -> str:
    return "names" if _splits_of(pack) else "none"


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

    def _read(self, rows: ListedRows, position: int) -> Record[Field]:
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
        return self.moves[number].record(without_unknown(record))


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


def without_unknown(record: Record[Field]) -> Record[Field]:
    """The record without facts that the index does not know. Packing reads such facts again."""
    unknown = {
        name: field._replace(facts=None)
        for name, field in record.fields.items()
        if field.facts is not None and (field.encoding == "unknown" or not field.facts.height)
    }
    return record.with_fields(**unknown) if unknown else record
