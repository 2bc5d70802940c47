"""Where each view of each sample comes from: frames and flips, from the index and a key alone.

Nothing is read for that; images, masks and boxes all follow the same plan.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from packio.batches import draws
from packio.batches.draws import Lane
from packio.images import frames
from packio.images.decoders import Decoder
from packio.images.frames import Frame
from packio.images.geometry import Geometry, Numbers
from packio.packs.packs import Row

FLIPS = 2  # random numbers for hflip and vflip; the geometry's own follow
_BY_POSITION = 0x706F73  # so that no batch of a foreign sampler draws the same


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How the samples of a batch are made.

    Attributes:
        views: A geometry for each view of a sample; None takes the image as it is.
        hflip, vflip: Probabilities.
        decoder: Encoded bytes → pixels.
        exif_orientation: Whether to turn images upright.
        fast: Whether fidelity is "fast".
        fields: Which of image, mask, boxes and box_labels are made.
        ignore_index: Class id of a mask's border.
    """

    views: tuple[Geometry | None, ...]
    hflip: float
    vflip: float
    decoder: Decoder
    exif_orientation: bool
    fast: bool = False
    fields: frozenset[str] = frozenset({"image"})
    ignore_index: int = 255


class Draw(NamedTuple):
    """Where the random numbers of a batch come from.

    Attributes:
        key: Of all.
        lanes: (N,) of each slot.
    """

    key: int
    lanes: np.ndarray


def by_position(seed: int, epoch: int, positions: Sequence[int]) -> Draw:
    """What samples draw by their positions in the order of an epoch, whatever batches they are in.

    Args:
        seed: Of the dataset.
        epoch: Which one.
        positions: Of the samples, counted over all ranks.
    """
    return Draw(draws.mix(seed, epoch, _BY_POSITION), np.array(positions, np.int64))


class Place(NamedTuple):
    """What one view takes of one sample: of its image, mask and boxes alike."""

    frame: Frame  # in the upright image
    orientation: int  # to turn what is stored by, 1..8
    hflip: bool  # of the result
    vflip: bool


class Plan:
    """The places of some samples' views, found when they are first asked for; safe in threads.

    Args:
        recipe: What to make of the samples.
        rows: Which samples; one may be there several times.
        draw: Of the random numbers.

    Attributes:
        rows: As given.
    """

    def __init__(self, recipe: Recipe, rows: Sequence[Row], draw: Draw) -> None:
        self.rows = rows
        self._recipe = recipe
        self._numbers = [
            numbers(recipe, view, draw).tolist() for view in range(len(recipe.views))
        ]  # as lists, of which an item is had ten times as fast
        self._places: list[list[Place] | None] = [None] * len(rows)

    def __getitem__(self, slot: int) -> list[Place]:
        """The places of one sample, one a view."""
        places = self._places[slot]
        if places is None:
            drawn = [(view[slot], view[slot][FLIPS:]) for view in self._numbers]
            places = self._places[slot] = _places(self._recipe, self.rows[slot], drawn)
        return places


def of_one(recipe: Recipe, row: Row, draw: Draw) -> list[Place]:
    """The places of a single sample, one a view, as the first of a `Plan`; draws what is used."""
    lane, views = draw.lanes.item(0), range(len(recipe.views))
    drawn = [(Lane(draw.key, lane, v), Lane(draw.key, lane, v, FLIPS)) for v in views]
    return _places(recipe, row, drawn)


def _places(recipe: Recipe, row: Row, drawn: Sequence[tuple[Numbers, Numbers]]) -> list[Place]:
    """The places of a sample, of each view's numbers for the flips and for the geometry."""
    orientation = row.orientation if recipe.exif_orientation else 1
    height, width = (row.width, row.height) if orientation >= 5 else (row.height, row.width)
    hflip, vflip, places = recipe.hflip, recipe.vflip, []
    for crop, (flips, own) in zip(recipe.views, drawn, strict=True):
        frame = crop.frame(height, width, own) if crop else frames.whole(height, width)
        places.append(Place(frame, orientation, flips[0] < hflip, flips[1] < vflip))
    return places


def numbers(recipe: Recipe, view: int, draw: Draw) -> np.ndarray:
    """Random numbers of a view: two for the flips, then the geometry's own, for each sample."""
    crop = recipe.views[view]
    needed = FLIPS + (crop.draws if crop is not None else 0)
    if needed == FLIPS and not (recipe.hflip or recipe.vflip):
        return np.zeros((len(draw.lanes), FLIPS))
    return draws.uniforms(draw.key, draw.lanes, view, needed)
