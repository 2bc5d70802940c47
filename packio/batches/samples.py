"""The samples of a batch: the fields that are asked for, cut and mirrored by one framing.

Images, masks and boxes are cut and mirrored together. Arrays, text and bytes stay as they are.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from packio.batches import boxes, columns, device, framing, images, masks
from packio.batches.columns import BatchField, FieldColumn
from packio.batches.framing import Draw, Framing, Settings
from packio.packs.opening import Pack
from packio.packs.table import Row, RowList
from packio.sample.fields import PIXELS
from packio.sample.record import IMAGE
from packio.system.threads import Threads

if TYPE_CHECKING:
    import numpy as np

BOXES = "boxes"  # the kind of the boxes and of their columns
SEEN = (*PIXELS, BOXES)  # kinds of which each view has a value of its own

# Field → one column a view: images (N, C, H, W) or N (C, H, W), masks (N, H, W) or N (H, W), boxes
# N (k, 4), their labels N (k,). Of arrays, text and bytes a single column.
FieldColumns = dict[str, list[FieldColumn]]


class MadeSamples(NamedTuple):
    columns: FieldColumns
    errors: dict[int, Exception]  # slot → what is wrong with that sample; its values mean nothing

    def add(self, name: str, made: BatchField) -> None:
        self.columns[name] = made.views
        self.errors.update(made.errors)


def make(
    pack: Pack, settings: Settings, positions: np.ndarray, draw: Draw, threads: Threads | None,
    out: torch.Tensor | None = None, on: torch.device | None = None,
) -> MadeSamples:  # fmt: skip
    """Make a batch of (N,) positions; a device, if one is given, decodes the field "image"."""
    settings = settings.with_size(draw.size)
    made, kinds = MadeSamples({}, {}), dict(settings.fields)
    raw = images.make_raw(pack, settings, positions, draw, out) if IMAGE in kinds else None
    if raw is not None:
        made.add(IMAGE, raw)
        del kinds[IMAGE]
    if not kinds:
        return made
    framed = Framing.draw(settings, pack.rows(positions), draw)
    further = {
        name: pack.rows(positions, name)
        for name, kind in kinds.items()
        if kind != BOXES and name != IMAGE
    }
    levels = images.take_levels(pack, framed) if IMAGE in kinds and on is None else None
    read = images.rows_read(framed.rows, levels) if IMAGE in kinds else {}
    pack = pack.prefetch(read | further)
    if IMAGE in kinds and on is not None:
        made.add(IMAGE, device.make(pack, framed, threads, on))
    elif IMAGE in kinds:
        made.add(IMAGE, images.make(pack, framed, threads, out, levels=levels))
    for name, own in further.items():
        made.add(name, _make_further(pack, framed, own, name, threads, set(made.errors)))
    if BOXES in kinds.values():
        _add_boxes(pack, framed, made.columns)
    return made


def rows_expected(
    pack: Pack, settings: Settings, positions: np.ndarray, draw: Draw | None
) -> dict[str, RowList]:
    """Look up the rows of all values that will be read to make samples, as far as is known."""
    kinds = settings.fields
    rows = {name: pack.rows(positions, name) for name, kind in kinds.items() if kind != BOXES}
    if IMAGE in rows:
        rows = images.rows_expected(pack, settings, rows.pop(IMAGE), draw) | rows
    return rows


def _make_further(
    pack: Pack, framed: Framing, rows: RowList, name: str, threads: Threads | None,
    but: Collection[int],
) -> BatchField:  # fmt: skip
    """Make a field other than the image and the boxes."""
    kind = framed.settings.fields[name]
    if kind == "image":
        return images.make(pack, framed.frame_further(rows), threads, None, name, but)
    if kind == "mask":
        return masks.make(pack, framed, rows, name, threads, but)
    alike = columns.make_arrays(pack, rows, name, threads, but) if kind == "array" else None
    return alike or columns.make(
        rows, lambda slot: [columns.read_value(pack, rows[slot], name)], threads, but
    )


def _add_boxes(pack: Pack, framed: Framing, into: FieldColumns) -> None:
    for view in range(len(framed.settings.views)):
        for name, column in boxes.make(pack, framed, view).items():
            if framed.settings.fields.get(name) == BOXES:
                into.setdefault(name, []).append(column)


def make_one(
    pack: Pack, settings: Settings, row: Row, key: int, lane: int = 0,
    size: tuple[int, int] | None = None,
) -> dict[str, list[Any]]:  # fmt: skip
    """Make one sample, as `make` would with `Draw` (key, [lane], size): field → values of views.

    `make` for one sample would take twice as many calls of Python: tests/datasets/test_overhead.py.
    """
    settings = settings.with_size(size)
    placements = framing.placements_of_one(settings, row, key, lane)
    values: dict[str, list[Any]] = {}
    for name, kind in settings.fields.items():
        if kind == BOXES:
            if name not in values:  # all columns of the boxes at once
                moved: FieldColumns = {}
                _add_boxes(pack, Framing(settings, RowList([row]), (), [placements]), moved)
                values |= {column: [view[0] for view in views] for column, views in moved.items()}
            continue
        own = row if name == IMAGE else pack.row(row.position, name)
        if kind == "mask":
            values[name] = masks.make_one(pack, settings, row, own, name, placements)
        elif kind != "image":
            values[name] = [columns.read_value(pack, own, name)]
        elif own.offset < 0 and name != IMAGE:
            values[name] = [None] * len(placements)
        else:
            levels, placed = None, placements
            if name != IMAGE:
                placed = framing.place_further(settings, placements, row, own)
            elif images.uses_levels(pack, settings):
                framed = Framing(settings, RowList([row]), (), [placements])
                levels = images.take_levels(pack, framed)
            needs = framing.find_needs(settings, placed, own.height, own.width)
            taken = levels[0] if levels else None
            values[name] = images.make_one(pack, settings, own, needs, name, taken)
    return values


def replace(samples: MadeSamples) -> list[int]:
    """Put a good sample of the batch in the place of each bad one; returns where each is from."""
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
