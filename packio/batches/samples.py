"""The samples of a batch: the fields that are asked for, cut and mirrored by one framing.

Images, masks and boxes are cut and mirrored together. Arrays, text and bytes stay as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from packio.batches import boxes, columns, device, framing, images, masks
from packio.batches.columns import FieldColumn, Made
from packio.batches.framing import Draw, Framing, Settings
from packio.images.frames import Placement
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
    """What was made of a batch's samples."""

    columns: FieldColumns
    errors: dict[int, Exception]  # slot → what is wrong with that sample; its values mean nothing

    def add(self, name: str, made: Made) -> None:
        """Add a field."""
        self.columns[name] = made.views
        self.errors.update(made.errors)


def make(
    pack: Pack, settings: Settings, positions: np.ndarray, draw: Draw, threads: Threads | None,
    out: torch.Tensor | None = None, on: torch.device | None = None,
) -> MadeSamples:  # fmt: skip
    """Make a batch of (N,) positions; a device, if one is given, decodes the field "image"."""
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
    rows = _find_rows(pack, kinds, positions, framed.rows)
    levels = images.take_levels(pack, framed) if IMAGE in rows and on is None else None
    read = images.rows_read(framed.rows, levels) if IMAGE in rows else {}
    pack = pack.fetched(read | {name: some for name, some in rows.items() if name != IMAGE})
    for name in sorted(rows, key=lambda name: name != IMAGE):
        if name == IMAGE and on is not None:
            made.add(name, device.make(pack, framed, threads, on))
        elif name == IMAGE:
            made.add(name, images.make(pack, framed, threads, out, levels=levels))
        else:
            but = set(made.errors)
            made.add(name, _make_further(pack, framed, rows[name], name, threads, but))
    if BOXES in kinds.values():
        _add_boxes(pack, framed, made.columns)
    return made


def _find_rows(
    pack: Pack, kinds: Mapping[str, str], positions: np.ndarray, of_images: RowList | None = None
) -> dict[str, RowList]:
    """Look up the rows of all fields of samples that are read."""
    return {
        name: of_images if name == IMAGE and of_images is not None else pack.rows(positions, name)
        for name, kind in kinds.items() if kind != BOXES
    }  # fmt: skip


def rows_expected(
    pack: Pack, settings: Settings, positions: np.ndarray, draw: Draw | None
) -> dict[str, RowList]:
    """Look up the rows of all values that will be read to make samples, as far as is known."""
    rows = _find_rows(pack, settings.fields, positions)
    if IMAGE in rows:
        rows = images.rows_expected(pack, settings, rows.pop(IMAGE), draw) | rows
    return rows


def _make_further(
    pack: Pack, framed: Framing, rows: RowList, name: str, threads: Threads | None,
    but: Collection[int],
) -> Made:  # fmt: skip
    """Make a field other than the image and the boxes."""
    kind = framed.settings.fields[name]
    if kind == "image":
        return images.make(pack, framed.of(rows), threads, None, name, but)
    if kind == "mask":
        return masks.make(pack, framed, rows, name, threads, but)
    alike = columns.make_arrays(pack, rows, name, threads, but) if kind == "array" else None
    if alike is not None:
        return alike
    return columns.make(
        rows, lambda slot: [columns.read_value(pack, rows[slot], name)], threads, but
    )


def _add_boxes(pack: Pack, framed: Framing, into: FieldColumns) -> None:
    """Add the boxes and columns of theirs, as far as they are asked for."""
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
    settings = settings.sized(size)
    placements = framing.placements_of_one(settings, row, key, lane)
    made: dict[str, list[Any]] = {}
    for name, kind in settings.fields.items():
        if kind == BOXES:
            if name not in made:  # all columns of the boxes at once
                moved: FieldColumns = {}
                _add_boxes(pack, Framing(settings, RowList([row]), (), [placements]), moved)
                made |= {column: [view[0] for view in views] for column, views in moved.items()}
            continue
        own = row if name == IMAGE else pack.row(row.position, name)
        if kind == "mask":
            made[name] = masks.make_one(pack, settings, row, own, name, placements)
        elif kind != "image":
            made[name] = [columns.read_value(pack, own, name)]
        elif own.offset < 0 and name != IMAGE:
            made[name] = [None] * len(placements)
        else:
            taken: images.Taken | None = None
            there: Sequence[Placement] = placements
            if name != IMAGE:
                sizes = framing.size_of(row), framing.size_of(own)
                there = framing.place_further(settings, placements, *sizes)
            elif images.uses_levels(pack, settings):
                framed = Framing(settings, RowList([row]), (), [placements])
                levels = images.take_levels(pack, framed)
                taken = levels[0] if levels else None
            needs = framing.find_needs(settings, there, own.height, own.width)
            made[name] = images.make_one(pack, settings, own, needs, name, taken)
    return made


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
