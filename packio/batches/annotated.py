"""The samples of a batch: images with the masks and boxes that belong to them, by one plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from packio.batches import batches, boxes, device_batches, masks, plans
from packio.batches.plans import Draw, Plan, Recipe
from packio.packs.packs import Pack, Row
from packio.system.threads import Threads

if TYPE_CHECKING:
    import numpy as np

FIELDS = ("image", "mask", "boxes", "box_labels")  # what a recipe makes

Column = torch.Tensor | list[torch.Tensor]  # (N, …), or N values
Columns = dict[str, list[Column]]  # field → one a view


class Samples(NamedTuple):
    """What was made of a batch's samples.

    Attributes:
        columns: Field → one column a view: images (N, C, H, W) or N (C, H, W), masks (N, H, W) or N
            (H, W), boxes N (k, 4), their labels N (k,).
        errors: Slot → what is wrong with that sample; its values mean nothing.
    """

    columns: Columns
    errors: dict[int, Exception]


def make(
    pack: Pack, recipe: Recipe, positions: np.ndarray, draw: Draw, threads: Threads | None,
    out: torch.Tensor | None = None, device: torch.device | None = None,
) -> Samples:  # fmt: skip
    """Make a batch.

    Args:
        pack: Where the samples are read from.
        recipe: What to make of them.
        positions: (N,) samples, 0..len-1; one may be there several times.
        draw: Of the random numbers.
        threads: That decode; None: this one.
        out: Where the only view's images go.
        device: That decodes, as of `packio.batches.device_batches.make`; None: the processor does.

    Raises:
        OptionError: ``out`` does not fit.
    """
    columns: Columns = {}
    errors: dict[int, Exception] = {}
    images = "image" in recipe.fields
    at_once = batches.make_raw(pack, recipe, positions, draw, out) if images else None
    if at_once is not None:
        columns["image"], errors = at_once
        if recipe.fields == {"image"}:
            return Samples(columns, errors)
    plan = Plan(recipe, pack.rows(positions), draw)
    pack = pack.fetched(plan.rows, images=images, masks="mask" in recipe.fields)
    if images and at_once is None and device is not None:
        columns["image"], errors = device_batches.make(pack, recipe, plan, threads, device)
    elif images and at_once is None:
        columns["image"], errors = batches.make(pack, recipe, plan, threads, out)
    if "mask" in recipe.fields:
        columns["mask"], bad = masks.make(pack, recipe, plan, threads, errors)
        errors = {**errors, **bad}
    if recipe.fields & {"boxes", "box_labels"}:
        for view in range(len(recipe.views)):
            places = [plan[slot][view] for slot in range(len(plan.rows))]
            _add_boxes(columns, boxes.make(pack, plan.rows, places))
    return Samples(columns, errors)


def make_one(pack: Pack, recipe: Recipe, row: Row, draw: Draw) -> dict[str, list[torch.Tensor]]:
    """Make one sample, as `make` would in its first slot: field → one value a view.

    Raises:
        DecodeError, IntegrityError: the sample is bad.
    """
    places = plans.of_one(recipe, row, draw)
    values: dict[str, list[torch.Tensor]] = {}
    if "image" in recipe.fields:
        values["image"] = batches.make_one(pack, recipe, row, places)
    if "mask" in recipe.fields:
        values["mask"] = masks.make_one(pack, recipe, row, places)
    if recipe.fields & {"boxes", "box_labels"}:
        columns: dict[str, list[Any]] = {}
        for place in places:
            _add_boxes(columns, boxes.make(pack, [row], [place]))
        values |= {name: [view[0] for view in views] for name, views in columns.items()}
    return values


def _add_boxes(columns: dict[str, list[Any]], made: boxes.Boxes) -> None:
    """Add one view's boxes, and their labels."""
    columns.setdefault("boxes", []).append(made.boxes)
    if made.labels is not None:
        columns.setdefault("box_labels", []).append(made.labels)


def replace(samples: Samples) -> list[int]:
    """Put a good sample of the batch in the place of each bad one.

    Returns:
        For each slot the one that its sample is of now.
    """
    columns, errors = samples
    size = max(len(column) for views in columns.values() for column in views)
    source = list(range(size))
    for slot in sorted(errors):
        good = slot
        while good in errors:
            good = (good + 1) % size
        source[slot] = good
        for column in (c for views in columns.values() for c in views):
            column[slot] = column[good].clone() if isinstance(column, list) else column[good]
    return source
