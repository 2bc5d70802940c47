"""How a source differs from a pack that it shall join: by keys, and by contents if asked."""

from __future__ import annotations

import dataclasses
import functools
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packio.errors import OptionError
from packio.index.layout import origins_of
from packio.packing import sourcing
from packio.packing.choosing import Choice
from packio.packing.images.levels import drop_levels
from packio.packing.run import sameness
from packio.packing.run.reading import Treatment
from packio.packs import opening
from packio.sample.recipe import Recipe
from packio.sample.record import Field, Record
from packio.sample.relabelling import Relabelling, all_classes
from packio.sources import FRAMES, Context, Listing, Source, list_samples, parse_fields
from packio.sources.pack import PackListing

_ROOTS = ("root", "folder")  # options of sources that say which folder keys are relative to
_PROBES = 8  # samples whose bytes are compared, to tell whether they have other keys now


class Growth(NamedTuple):
    new: Listing  # samples to add, with labels and splits as the pack will count them
    there: Listing  # samples of the source whose keys the pack has
    rows: list[int]  # of these samples in the pack
    gone: list[bytes]  # keys of the pack that the source does not have, sorted
    new_classes: list[str]
    split_names: list[str]  # of all splits that the pack will have
    recipe: Recipe  # of the pack: new samples are chosen and made by it


def find_growth(
    pack: opening.Pack, source: Any, source_kind: str | None, out: Path,
    options: Mapping[str, Any], fields: Mapping[str, Any] | None,
) -> Growth:  # fmt: skip
    """List a source as when the pack was made, and compare its keys with those of the pack."""
    reader, recipe = sourcing.find_source(source, source_kind), Recipe.from_metadata(pack.metadata)
    if recipe.is_mixed:
        raise OptionError(
            f"{pack.path}: merged of packs that were encoded or chosen in different ways, so it is "
            "unknown how new samples shall be made; pack them on their own, then merge"
        )
    listing = _list_again(reader, source, out, options, fields, pack, recipe)
    _check_labels(pack, listing)
    classes = all_classes([pack.classes, listing.classes])
    listing = _relabelled(listing, classes)
    row_of = {key: row for row, key in enumerate(pack.index_file.every_key())}
    there = [i for i, key in enumerate(listing.keys) if key in row_of]
    gone = sorted(row_of.keys() - set(listing.keys))
    if len(there) < len(listing.keys):
        roots = [name for name in _ROOTS if name in reader.options]
        _check_root(pack, listing, row_of, gone, recipe, roots)
    new, split_names = _with_splits_of(
        pack, Choice.from_options(recipe.choice).choose(listing, row_of)
    )
    return Growth(
        new, listing.take(there), [row_of[listing.keys[i]] for i in there], gone,
        classes[len(pack.classes) :], split_names, recipe,
    )  # fmt: skip


def find_changed_keys(pack: opening.Pack, growth: Growth) -> list[str]:
    """Keys of samples whose bytes or annotations are not those in the pack, sorted."""
    positions = sameness.find_differing(
        growth.there, growth.rows, pack.index_file, Treatment.from_recipe(growth.recipe)
    )
    return sorted(os.fsdecode(growth.there.keys[i]) for i in positions)


def _list_again(
    reader: Source, source: Any, out: Path, options: Mapping[str, Any],
    fields: Mapping[str, Any] | None, pack: opening.Pack, recipe: Recipe,
) -> Listing:  # fmt: skip
    """List the whole source, with the options that it had when the pack was made.

    A source of the pack's kind gives its fields under the names that the pack has for them now.
    Fields that the pack has lost are asked for, too, and left out: their files or columns would be
    taken for something else, as images of depth for samples.
    """
    sourcing.check_options(options, reader)
    is_alike = reader.name == recipe.source != "pack"  # a pack may have the names of now
    before = recipe.reading if reader.name == recipe.source else {}
    known = {*reader.options, *FRAMES}
    options = {**{n: v for n, v in before.items() if n in known}, **options}
    became = origins_of(pack.metadata) if is_alike else {}
    given = before.get("fields") or {}
    lost = {n: o for n, o in given.items() if not is_alike or became.get(n, n) is None}
    if fields is not None:
        asked, lost = fields, lost if is_alike else {}
    else:
        asked = {name: origin for name, origin in given.items() if name not in lost}

    def found(fields: Mapping[str, Any]) -> Listing:
        context = Context(
            allow_empty=True, scratch=out.parent, fields=parse_fields(fields), options=options,
        )  # fmt: skip
        return drop_levels(list_samples(reader, source, context))

    try:
        listing = found({**lost, **asked})
    except OptionError:
        if not lost:
            raise
        listing = found(asked)  # nothing is left of what the pack has lost
    told = tuple(f"have no file for {name!r}" for name in lost.keys() - asked.keys())
    listing.warnings[:] = [line for line in listing.warnings if not line.endswith(told)]
    if isinstance(listing, PackListing):  # of a container of others, as the pack was made of
        (one,) = (source.metadata for source in listing.packs)
        if "recipe" not in one and Recipe.from_metadata(one).source == recipe.source:
            became = origins_of(pack.metadata)
    return sameness.apply_field_names(listing, became, fields or ())


def _check_root(
    pack: opening.Pack, listing: Listing, row_of: Mapping[bytes, int], gone: Sequence[bytes],
    recipe: Recipe, roots: Sequence[str],
) -> None:  # fmt: skip
    """Refuse a source whose keys are relative to another folder: all would be added again.

    Many sources make keys relative to the folder that all their paths share. One path outside that
    folder renames all keys, as ``a.png`` to ``data/a.png``; without that path they go back.
    """
    new = {key: i for i, key in enumerate(listing.keys) if key not in row_of}
    lost = set(gone)
    moved = {i: end for key, i in new.items() for end in _ends(key) if end in lost}
    moved |= {new[end]: key for key in gone for end in _ends(key) if end in new}
    if len(moved) <= len(listing.keys) - len(new):  # some files were moved
        return
    some = list(moved)[:: max(1, len(moved) // _PROBES)][:_PROBES]
    other = sameness.find_differing(
        listing.take(some), [row_of[moved[i]] for i in some], pack.index_file,
        Treatment.from_recipe(recipe), labels=False,
    )  # fmt: skip
    if 2 * len(list(other)) > len(some):
        return
    now, then = (os.fsdecode(key) for key in (listing.keys[some[0]], moved[some[0]]))
    say = "".join(f"say which by --{name}, or " for name in roots)
    raise OptionError(
        f"{listing.root or 'the source'}: keys are relative to another folder than those of the "
        f"pack: {now!a} is {then!a} there, and would be added again; {say}append a source that has "
        "the new samples alone"
    )


def _ends(key: bytes) -> Iterable[bytes]:
    """The key without all its folders, and with more and more of them, but the first."""
    parts = key.split(b"/")
    return (b"/".join(parts[first:]) for first in range(len(parts) - 1, 0, -1))


def _relabelled(listing: Listing, classes: Sequence[str]) -> Listing:
    """Move the labels and the box labels of a listing to another list of classes, by name."""
    move = Relabelling(listing.classes, list(classes), str(listing.root or "the source"))
    if not move.changes:
        return listing
    labels = listing.labels
    if labels is not None:
        found = move.labels(np.asarray(labels))
        labels = found.tolist() if found.ndim == 1 else found
    moved = listing.map_records(functools.partial(_moved, move))
    return dataclasses.replace(moved, labels=labels, classes=list(classes))


def _moved(move: Relabelling, record: Record[Field]) -> Record[Field]:
    return move.record(dataclasses.replace(record, label=None))


def _name_kind(shape: tuple[int, ...] | None) -> str:
    """Name the labels of a sample, for messages."""
    if shape is None:
        return "none"
    return f"vectors of {shape[0]}" if shape else "one number each"


def _check_labels(pack: opening.Pack, listing: Listing) -> None:
    if not listing.keys:
        return
    old = pack.labels
    new = None if listing.labels is None else np.asarray(listing.labels)
    named = bool(pack.classes), bool(listing.classes)
    shapes = [None if x is None else x.shape[1:] for x in (old, new)]
    kinds = shapes
    if all(named):  # vectors go by class name, so their lengths may differ
        kinds = [None if shape is None else (len(shape),) for shape in shapes]
    if kinds[0] != kinds[1]:
        raise OptionError(
            f"{pack.path}: its labels are {_name_kind(shapes[0])}, the source's are "
            f"{_name_kind(shapes[1])}; expected the same"
            + ("; of an image folder, give the folder of the class folders" if named[0] else "")
        )
    if named == (False, True) and (old is not None or "boxes/labels" in pack.index_file):
        raise OptionError(
            f"{pack.path}: its labels are numbers without class names, the source's have names; "
            f"name them first: packio pack {shlex.quote(str(pack.path))} NEW{pack.path.suffix} "
            "--classes-from NAMES.txt"
        )


def _with_splits_of(pack: opening.Pack, listing: Listing) -> tuple[Listing, list[str]]:
    """Number the splits of new samples as the pack does; return them, and the names of all."""
    old = list(pack.metadata.get("splits") or [])
    if not listing.keys or (listing.splits is None and not old):
        return listing, old
    if listing.splits is None or not old:
        raise OptionError(
            f"{pack.path}: has {'splits' if old else 'no splits'}, the source has "
            f"{'none' if old else 'some'}; expected both or neither"
        )
    names = all_classes([old, listing.split_names])
    table = np.array([names.index(name) for name in listing.split_names], np.uint8)
    splits = table[np.asarray(listing.splits)]
    return dataclasses.replace(listing, splits=splits, split_names=names), names
