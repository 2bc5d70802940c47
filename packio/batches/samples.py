"""The samples of a batch: the fields that are asked for, cut and mirrored by one framing.

Images, masks and boxes are cut and mirrored together. Arrays, text and bytes stay as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from packio.batches import arrays, boxes, columns, device, framing, images, levels, masks, values
from packio.batches.columns import FieldColumn, Made
from packio.batches.framing import Draw, Framing, Settings
from packio.images.frames import Placement
from packio.packs.opening import Pack
from packio.packs.rows import Row, RowList
from packio.sample.fields import PIXELS
from packio.sample.record import IMAGE
from packio.system.threads import Threads

if TYPE_CHECKING:
    import numpy as np

BOXES = "boxes"  # the kind of the boxes and of their columns
SEEN = (*PIXELS, BOXES)  # kinds of which each view has a value of its own

FieldColumns = dict[
    str, list[FieldColumn]
]  # field → one a view; a single one of a kind that is not SEEN


class MadeSamples(NamedTuple):
    """What was made of a batch's samples.

    Attributes:
        columns: Field → one column a view: images (N, C, H, W) or N (C, H, W), masks (N, H, W) or N
            (H, W), boxes N (k, 4), their labels N (k,). Of arrays, text and bytes a single column.
        errors: Slot → what is wrong with that sample; its values mean nothing.
    """

    columns: FieldColumns
    errors: dict[int, Exception]

    def add(self, name: str, made: Made) -> None:
        """Add a field."""
        self.columns[name] = made.views
        self.errors.update(made.errors)


def make(
    pack: Pack, settings: Settings, positions: np.ndarray, draw: Draw, threads: Threads | None,
    out: torch.Tensor | None = None, on: torch.device | None = None,
) -> MadeSamples:  # fmt: skip
    """Make a batch.

    Args:
        positions: (N,) samples, 0..len-1; one may be there several times.
        threads: Threads that decode; None: this one.
        on: Device that decodes the images of the field "image", as of
            `packio.batches.device.make`; None: the processor.
    """
    settings = settings.sized(draw.size)
    made, kinds = MadeSamples({}, {}), dict(settings.fields)
    if IMAGE in kinds:
        at_once = images.make_raw(pack, settings, positions, draw, out)
        if at_once is not None:
            made.add(IMAGE, at_once)
            del kinds[IMAGE]
    if not kinds:
        return made
    framed = Framing.drawn(settings, pack.rows(positions), draw)
    rows = rows_of(pack, kinds, positions, framed.rows)
    taken = levels.of_batch(pack, framed) if IMAGE in rows and on is None else None
    read = levels.rows_read(framed.rows, taken) if IMAGE in rows else {}
    pack = pack.fetched(read | {name: some for name, some in rows.items() if name != IMAGE})
    for name in sorted(rows, key=lambda name: name != IMAGE):
        if name == IMAGE and on is not None:
            made.add(name, device.make(pack, framed, threads, on))
        elif name == IMAGE:
            made.add(name, images.make(pack, framed, threads, out, levels=taken))
        else:
            but = set(made.errors)
            made.add(name, _further(pack, framed, rows[name], name, threads, but))
    if BOXES in kinds.values():
        for view in range(len(settings.views)):
            _add_boxes(made.columns, kinds, boxes.make(pack, framed, view))
    return made


def rows_of(
    pack: Pack, kinds: Mapping[str, str], positions: np.ndarray, images: RowList | None = None
) -> dict[str, RowList]:
    """Look up the rows of all fields of samples that are read.

    Args:
        positions: (N,) samples, 0..len-1.
    """
    return {
        name: images if name == IMAGE and images is not None else pack.rows(positions, name)
        for name, kind in kinds.items() if kind != BOXES
    }  # fmt: skip


def rows_expected(
    pack: Pack, settings: Settings, positions: np.ndarray, draw: Draw | None
) -> dict[str, RowList]:
    """Look up the rows of all values that will be read to make samples, as far as is known.

    Args:
        positions: (N,) samples, 0..len-1.
        draw: Of the random numbers; None: unknown yet.
    """
    rows = rows_of(pack, settings.fields, positions)
    if IMAGE in rows:
        rows = levels.rows_expected(pack, settings, rows.pop(IMAGE), draw) | rows
    return rows


def _further(
    pack: Pack, framed: Framing, rows: RowList, name: str, threads: Threads | None,
    but: Collection[int],
) -> Made:  # fmt: skip
    """Make a field other than the image.

    Args:
        threads: Threads that work; None: this one.
    """
    kind = framed.settings.fields[name]
    if kind == "image":
        return images.make(pack, framed.of(rows), threads, None, name, but)
    if kind == "mask":
        return masks.make(pack, framed, rows, name, threads, but)
    alike = arrays.make(pack, rows, name, threads, but) if kind == "array" else None
    if alike is not None:
        return alike
    return columns.make(rows, lambda slot: [values.make_one(pack, rows[slot], name)], threads, but)


def _add_boxes(
    into: FieldColumns, kinds: Mapping[str, str], made: dict[str, list[torch.Tensor]]
) -> None:
    """Add one view's boxes and columns of theirs, as far as they are asked for."""
    for name, column in made.items():
        if kinds.get(name) == BOXES:
            into.setdefault(name, []).append(column)


def make_one(
    pack: Pack, settings: Settings, row: Row, key: int, lane: int = 0,
    size: tuple[int, int] | None = None,
) -> dict[str, list[Any]]:  # fmt: skip
    """Make one sample, as `make` would with `Draw` (key, [lane], size): field → values of views."""
    settings = settings.sized(size)
    placements = framing.placements_of_one(settings, row, key, lane)
    made: dict[str, list[Any]] = {}
    for name, kind in settings.fields.items():
        if name == IMAGE:
            needs = framing.needs_of_one(settings, row, placements)
            taken = levels.of_one(pack, settings, row, needs)
            made[name] = images.make_one(pack, settings, row, needs, name, taken)
        elif kind != BOXES:
            made[name] = _further_of_one(pack, settings, row, placements, name, kind)
        elif name not in made:  # all columns of the boxes at once
            moved: FieldColumns = {}
            framed = Framing(settings, RowList([row]), (), [placements])
            for view in range(len(placements)):
                _add_boxes(moved, settings.fields, boxes.make(pack, framed, view))
            made |= {column: [view[0] for view in views] for column, views in moved.items()}
    return made


def _further_of_one(
    pack: Pack,
    settings: Settings,
    image: Row,
    placements: Sequence[Placement],
    name: str,
    kind: str,
) -> list[Any]:
    """Make a field other than the image and the boxes of one sample: one value a view."""
    row = pack.row(image.position, name)
    if kind == "mask":
        return masks.make_one(pack, settings, image, row, name, placements)
    if kind != "image":
        return [values.make_one(pack, row, name)]
    if row.offset < 0:
        return [None] * len(placements)
    there = framing.placements_of_further(settings, placements, image, row)
    return images.make_one(pack, settings, row, framing.needs_of_one(settings, row, there), name)


def replace(samples: MadeSamples) -> list[int]:
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
