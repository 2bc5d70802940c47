"""The samples of a batch: the fields that are asked for, made by one plan.

Images, masks and boxes are cut and mirrored together. Arrays, text and bytes stay as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from packio.batches import boxes, columns, device, images, masks, plan, values
from packio.batches.columns import Column, Made
from packio.batches.plan import Draw, Plan, Recipe
from packio.packs.packs import Pack
from packio.packs.rows import Row, Rows
from packio.sample.fields import PIXELS
from packio.sample.record import IMAGE
from packio.system.threads import Threads

if TYPE_CHECKING:
    import numpy as np

BOXES = "boxes"  # the kind of the boxes and of their columns
SEEN = (*PIXELS, BOXES)  # kinds of which each view has a value of its own

Columns = dict[str, list[Column]]  # field → one a view; a single one of a kind that is not SEEN


class Samples(NamedTuple):
    """What was made of a batch's samples.

    Attributes:
        columns: Field → one column a view: images (N, C, H, W) or N (C, H, W), masks (N, H, W) or N
            (H, W), boxes N (k, 4), their labels N (k,). Of arrays, text and bytes a single column.
        errors: Slot → what is wrong with that sample; its values mean nothing.
    """

    columns: Columns
    errors: dict[int, Exception]

    def add(self, name: str, made: Made) -> None:
        """Add a field."""
        self.columns[name] = made.views
        self.errors.update(made.errors)


def make(
    pack: Pack, recipe: Recipe, positions: np.ndarray, draw: Draw, threads: Threads | None,
    out: torch.Tensor | None = None, on: torch.device | None = None,
) -> Samples:  # fmt: skip
    """Make a batch.

    Args:
        pack: Where the samples are read from.
        recipe: What to make of them.
        positions: (N,) samples, 0..len-1; one may be there several times.
        draw: Of the random numbers.
        threads: Threads that decode; None: this one.
        out: Where the only view's images go.
        on: Device that decodes the images of the field "image", as of
            `packio.batches.device.make`; None: the processor.

    Raises:
        OptionError: ``out`` does not fit.
    """
    made, kinds = Samples({}, {}), dict(recipe.fields)
    if IMAGE in kinds:
        at_once = images.make_raw(pack, recipe, positions, draw, out)
        if at_once is not None:
            made.add(IMAGE, at_once)
            del kinds[IMAGE]
    if not kinds:
        return made
    planned = Plan.drawn(recipe, pack.rows(positions), draw)
    rows = {
        name: planned.rows if name == IMAGE else pack.rows(positions, name)
        for name, kind in kinds.items() if kind != BOXES
    }  # fmt: skip
    pack = pack.fetched(rows)
    for name in sorted(rows, key=lambda name: name != IMAGE):
        if name == IMAGE and on is not None:
            made.add(name, device.make(pack, planned, threads, on))
        elif name == IMAGE:
            made.add(name, images.make(pack, planned, threads, out))
        else:
            but = set(made.errors)
            made.add(name, _further(pack, planned, rows[name], name, threads, but))
    if BOXES in kinds.values():
        for place in planned.places:
            _add_boxes(made.columns, kinds, boxes.make(pack, planned.rows, place))
    return made


def _further(
    pack: Pack, planned: Plan, rows: Rows, name: str, threads: Threads | None,
    but: Collection[int],
) -> Made:  # fmt: skip
    """Make a field other than the image.

    Args:
        pack: Where the values are read from.
        planned: The plan of the samples' images.
        rows: The samples' values.
        name: Of the field.
        threads: Threads that work; None: this one.
        but: Slots to leave out.
    """
    kind = planned.recipe.fields[name]
    if kind == "image":
        return images.make(pack, planned.of(rows), threads, None, name, but)
    if kind == "mask":
        return masks.make(pack, planned, rows, name, threads, but)
    as_packed = Plan(planned.recipe, rows, planned.places)
    return columns.make(
        as_packed, lambda slot: [values.make_one(pack, rows[slot], name)], threads, but
    )


def _add_boxes(
    into: Columns, kinds: Mapping[str, str], made: dict[str, list[torch.Tensor]]
) -> None:
    """Add one view's boxes and columns of theirs, as far as they are asked for."""
    for name, column in made.items():
        if kinds.get(name) == BOXES:
            into.setdefault(name, []).append(column)


def make_one(pack: Pack, recipe: Recipe, row: Row, key: int, lane: int = 0) -> dict[str, list[Any]]:
    """Make one sample, as `make` would with `Draw` (key, [lane]): field → one value a view.

    Raises:
        DecodeError, IntegrityError: the sample is bad.
    """
    places = plan.places_of_one(recipe, row, key, lane)
    made: dict[str, list[Any]] = {}
    moved: Columns = {}
    for name, kind in recipe.fields.items():
        own = row if name == IMAGE or kind == BOXES else pack.row(row.position, name)
        if kind == "mask":
            made[name] = masks.make_one(pack, recipe, row, own, name, places)
        elif kind == BOXES and not moved:
            for place in places:
                _add_boxes(moved, recipe.fields, boxes.make(pack, Rows([row]), place))
        elif kind == "image" and name != IMAGE and own.offset < 0:
            made[name] = [None] * len(places)
        elif kind == "image":
            there = places
            if name != IMAGE:
                there = plan.places_of_further(recipe, places, row, own)
            wanted = plan.wanted_of_one(recipe, own, there)
            made[name] = images.make_one(pack, recipe, own, wanted, name)
        elif kind != BOXES:
            made[name] = [values.make_one(pack, own, name)]
    return made | {name: [view[0] for view in views] for name, views in moved.items()}


def replace(samples: Samples) -> list[int]:
    """Put a good sample of the batch in the place of each bad one.

    Returns:
        For each slot, the slot whose sample is there now.
    """
    each = [column for views in samples.columns.values() for column in views]
    size = max(map(len, each))
    source = list(range(size))
    for slot in sorted(samples.errors):
        good = slot
        while good in samples.errors:
            good = (good + 1) % size
        source[slot] = good
        for column in each:
            value = column[good]
            own = isinstance(column, list) and isinstance(value, torch.Tensor)
            column[slot] = value.clone() if own else value
    return source
