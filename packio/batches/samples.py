"""The samples of a batch: all fields that are cut and mirrored together, by one plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from packio.batches import boxes, device, images, masks, plan
from packio.batches.images import Column
from packio.batches.plan import Draw, Plan, Recipe
from packio.packs.packs import Pack
from packio.packs.rows import Row, Rows
from packio.system.threads import Threads

if TYPE_CHECKING:
    import numpy as np
    import torch

FIELDS = ("image", "mask", "boxes", "box_labels")  # what a recipe makes

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
        on: Device that decodes, as of `packio.batches.device.make`; None: the processor.

    Raises:
        OptionError: ``out`` does not fit.
    """
    made = Samples({}, {})
    fields = set(recipe.fields)
    if "image" in fields:
        at_once = images.make_raw(pack, recipe, positions, draw, out)
        if at_once is not None:
            _add(made, "image", at_once)
            fields.remove("image")
    if not fields:
        return made
    planned = Plan(recipe, pack.rows(positions), draw)
    pack = pack.fetched(
        {n: pack.rows(positions, n) for n in ("image", "mask") if n in fields & pack.fields.keys()}
    )
    if "image" in fields and on is not None:
        _add(made, "image", device.make(pack, planned, threads, on))
    elif "image" in fields:
        _add(made, "image", images.make(pack, planned, threads, out))
    if "mask" in fields:
        _add(made, "mask", masks.make(pack, planned, threads, made.errors))
    if fields & {"boxes", "box_labels"}:
        for place in planned.places:
            _add_boxes(made.columns, boxes.make(pack, planned.rows, place))
    return made


def _add(made: Samples, field: str, found: images.Made) -> None:
    made.columns[field] = found.views
    made.errors.update(found.errors)


def _add_boxes(columns: Columns, made: boxes.Boxes) -> None:
    """Add one view's boxes, and their labels."""
    columns.setdefault("boxes", []).append(made.boxes)
    if made.labels is not None:
        columns.setdefault("box_labels", []).append(made.labels)


def make_one(
    pack: Pack, recipe: Recipe, row: Row, key: int, lane: int = 0
) -> dict[str, list[torch.Tensor]]:
    """Make one sample, as `make` would with `Draw` (key, [lane]): field → one value a view.

    Raises:
        DecodeError, IntegrityError: the sample is bad.
    """
    places = plan.places_of_one(recipe, row, key, lane)
    values: dict[str, list[torch.Tensor]] = {}
    if "image" in recipe.fields:
        wanted = plan.wanted_of_one(recipe, row, places)
        values["image"] = images.make_one(pack, recipe, row, wanted)
    if "mask" in recipe.fields:
        values["mask"] = masks.make_one(pack, recipe, row, places)
    if recipe.fields & {"boxes", "box_labels"}:
        columns: Columns = {}
        for place in places:
            _add_boxes(columns, boxes.make(pack, Rows([row]), place))
        values |= {name: [view[0] for view in views] for name, views in columns.items()}
    return values


def replace(samples: Samples) -> list[int]:
    """Put a good sample of the batch in the place of each bad one.

    Returns:
        For each slot, the slot whose sample is there now.
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
