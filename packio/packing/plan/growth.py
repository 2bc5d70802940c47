"""How a source differs from a pack that was made of it: new, changed and deleted samples."""

from __future__ import annotations

import dataclasses
import functools
import os
import shlex
from typing import NamedTuple

import numpy as np

from packio.errors import OptionError
from packio.packing.plan import contents, same_keys, seen
from packio.packing.plan.choosing import Choice
from packio.packing.plan.relabelled import relabelled
from packio.packing.run.reading import Treatment
from packio.packs import opening
from packio.sample.recipe import Recipe
from packio.sample.relabelling import all_classes
from packio.sources import Listing


class Growth(NamedTuple):
    """How a source differs from a pack.

    Attributes:
        new: Samples to add, with labels and splits as the pack will count them.
        known: Number of samples of the source that the pack has.
        changed: Keys of samples whose bytes or annotations differ from the pack's, sorted.
        deleted: Keys of samples that the source has no more, sorted.
        new_classes: Class names that the pack does not have yet.
        split_names: Names of the splits that the pack will have.
    """

    new: Listing
    known: int
    changed: list[str]
    deleted: list[str]
    new_classes: list[str]
    split_names: list[str]


def compared(pack: opening.Pack, listing: Listing, recipe: Recipe) -> Growth:
    """Compare a source with a pack: by keys, then by bytes and annotations of keys in both."""
    _check_labels(pack, listing)
    classes = all_classes([pack.classes, listing.classes])
    listing = relabelled(listing, classes, str(listing.root or "the source"))
    keys = {*pack.index_file.every_key()}
    changed_of = functools.partial(
        contents.changed, index=pack.index_file, known=seen.load(pack.digest, len(pack)),
        treatment=Treatment.of(recipe),
    )  # fmt: skip
    listing = same_keys.aligned(listing, keys, functools.partial(changed_of, labels=False))
    common = listing.take([i for i, key in enumerate(listing.keys) if key in keys])
    new, split_names = _with_splits_of(pack, Choice.made(recipe.choice).of_new(listing, keys))
    return Growth(
        new, len(common.keys), sorted(map(os.fsdecode, changed_of(common))),
        sorted(map(os.fsdecode, keys - set(listing.keys))), classes[len(pack.classes) :],
        split_names,
    )  # fmt: skip


def _check_labels(pack: opening.Pack, listing: Listing) -> None:
    """Refuse labels of another kind than those of the pack."""
    if not listing.keys:
        return
    old = pack.labels
    new = None if listing.labels is None else np.asarray(listing.labels)
    named = bool(pack.classes), bool(listing.classes)
    kinds = [None if x is None else x.shape[1:] for x in (old, new)]
    if all(named):  # vectors go by class name, so their lengths may differ
        kinds = [None if kind is None else (len(kind),) for kind in kinds]
    if kinds[0] != kinds[1]:
        raise OptionError(
            f"{pack.path}: labels of shape {kinds[0]}, the source's are {kinds[1]}; "
            "expected the same kind"
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
