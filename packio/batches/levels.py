"""Levels: which outputs of a batch are made of smaller JPEGs of their images.

Under ``fidelity="fast"`` an output takes the smallest level of its image that has at least 1.1
pixels for one of the output's, along both sides. Frames, masks and boxes do not change: they are
those of the image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from packio.batches.framing import Draw, Framing, Settings
from packio.images import regions
from packio.images.regions import Need
from packio.packs.opening import Pack
from packio.packs.rows import Row, RowList
from packio.sample.levels import size_at
from packio.sample.record import IMAGE


class Level(NamedTuple):
    """A level that an output is made of."""

    name: str
    row: Row
    need: Need


Taken = Sequence[Level | None]  # one a view; None: the image itself


def are_used(pack: Pack, settings: Settings) -> bool:
    """Tell whether any image may be made of a level."""
    return settings.fast and bool(pack.levels) and IMAGE in settings.fields


def of_batch(pack: Pack, framing: Framing) -> list[Taken] | None:
    """The levels that each sample's views take; None if no level is used."""
    settings, rows = framing.settings, framing.rows
    if not are_used(pack, settings):
        return None
    positions = np.array([row.position for row in rows], np.int64)
    columns = {d: pack.rows(positions, name) for d, name in pack.levels.items()}
    each = zip(rows, framing.each_needs, *columns.values(), strict=True)
    return [
        _taken(pack, settings, image, needs, dict(zip(columns, found, strict=True)))
        for image, needs, *found in each
    ]


def of_one(pack: Pack, settings: Settings, image: Row, needs: Sequence[Need]) -> Taken | None:
    """As `of_batch`, of a single sample."""
    if not are_used(pack, settings):
        return None
    found = {d: pack.row(image.position, name) for d, name in pack.levels.items()}
    return _taken(pack, settings, image, needs, found)


def _taken(
    pack: Pack, settings: Settings, image: Row, needs: Sequence[Need], found: Mapping[int, Row]
) -> Taken:
    if image.height * image.width > settings.decoder.max_pixels:
        return [None] * len(needs)  # decoding the image will say so
    there = {d: row for d, row in found.items() if _is_level(row, image, d)}
    return [_smallest(pack, need, there) for need in needs]


def _is_level(row: Row, image: Row, divisor: int) -> bool:
    """Whether a value can be a level of an image."""
    size = size_at(image.height, image.width, divisor)
    return row.offset >= 0 and row.encoding == "jpeg" and (row.height, row.width) == size


def _smallest(pack: Pack, need: Need, there: Mapping[int, Row]) -> Level | None:
    divisor = regions.smallest(need, there)
    if divisor is None:
        return None
    return Level(pack.levels[divisor], there[divisor], need._replace(level=divisor))


def rows_read(rows: RowList, each: Sequence[Taken] | None) -> dict[str, RowList]:
    """Name of a field → rows of the values that are read to make images."""
    if each is None:
        return {IMAGE: rows}
    found: dict[str, RowList] = {
        IMAGE: RowList(row for row, taken in zip(rows, each, strict=True) if None in taken)
    }
    for taken in each:
        for level in {level.name: level for level in taken if level is not None}.values():
            found.setdefault(level.name, RowList([])).append(level.row)
    return found


def rows_expected(
    pack: Pack, settings: Settings, rows: RowList, draw: Draw | None
) -> dict[str, RowList]:
    """As `rows_read`, of samples that are not framed yet.

    Args:
        draw: Of the random numbers; None: unknown yet, and so is what will be read.
    """
    if not are_used(pack, settings):
        return {IMAGE: rows}
    if draw is None:
        return {}
    framed = Framing.drawn(settings.sized(draw.size), rows, draw)
    return rows_read(rows, of_batch(pack, framed))
