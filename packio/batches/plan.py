"""Where each view of each sample comes from: frames and flips, from the index and a key alone.

Nothing is read for a plan. It is computed for a whole batch at once, in columns, one number a
sample. All images, masks and boxes of a sample follow the same plan.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import numpy as np

from packio.batches import draws
from packio.batches.draws import Lane
from packio.errors import DecodeError, IntegrityError
from packio.images import frames, regions
from packio.images.arithmetic import Integer
from packio.images.decoders import Decoder
from packio.images.frames import Place
from packio.images.geometry import Geometry, Numbers
from packio.images.regions import Wanted
from packio.index.indexfile import SEEKABLE
from packio.packs.rows import Row, Rows
from packio.system.threads import Threads, each

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

    @property
    def is_random(self) -> bool:
        """Whether samples need random numbers."""
        return bool(self.hflip or self.vflip or any(v and v.draws for v in self.views))


class Draw(NamedTuple):
    """Where the random numbers of a batch come from.

    Attributes:
        key: Of the batch, or of the epoch.
        lanes: (N,) of each slot.
    """

    key: int
    lanes: np.ndarray


def by_position(seed: int, epoch: int, positions: Sequence[int]) -> Draw:
    """What samples draw by their positions in the order of an epoch, whatever batches they are in.

    Args:
        seed: Of the dataset.
        epoch: Number of the epoch.
        positions: Of the samples, counted over all ranks.
    """
    return Draw(draws.mix(seed, epoch, _BY_POSITION), np.array(positions, np.int64))


class Plan:
    """What the views of a batch take of its samples.

    Args:
        recipe: What to make of the samples.
        rows: The samples; one may be there several times.
        draw: Of the random numbers.

    Attributes:
        recipe, rows: As given.
        places: For each view, a `Place` of (N,) columns.
    """

    def __init__(self, recipe: Recipe, rows: Rows, draw: Draw) -> None:
        self.recipe, self.rows = recipe, rows
        height, width = rows.column("height"), rows.column("width")
        orientation = rows.column("orientation") if recipe.exif_orientation else 1
        if np.any(orientation != 1):
            swapped = orientation >= 5
            height, width = np.where(swapped, width, height), np.where(swapped, height, width)
        else:
            orientation = 1
        columns = [numbers(recipe, view, draw).T for view in range(len(recipe.views))]
        drawn = [(u[:FLIPS], u[FLIPS:]) for u in columns]
        least = np.maximum(height, 1), np.maximum(width, 1)  # of an index that says 0
        self.places = _places(recipe, *least, orientation, drawn)

    @functools.cached_property
    def each_place(self) -> list[tuple[Place, ...]]:
        """The places of each sample, one a view."""
        views = [frames.each(place, len(self.rows)) for place in self.places]
        return list(zip(*views, strict=True))

    @functools.cached_property
    def each_wanted(self) -> list[tuple[Wanted, ...]]:
        """What is wanted of each sample's images, one a view."""
        rows = self.rows
        size, flags = (rows.column("height"), rows.column("width")), rows.column("flags")
        wanted = _wanted(self.recipe, self.places, *size, (flags & SEEKABLE) != 0)
        return list(zip(*(frames.each(view, len(rows)) for view in wanted), strict=True))

    def make_each(
        self, work: Callable[[int], None], threads: Threads | None, but: Collection[int] = ()
    ) -> dict[int, Exception]:
        """Call ``work`` with each slot, in the order in which the samples lie in the files.

        Args:
            work: Makes something of the sample in a slot.
            threads: Threads that work; None: this one.
            but: Slots to leave out.

        Returns:
            Slot → the DecodeError or IntegrityError that ``work`` raised.
        """
        errors: dict[int, Exception] = {}

        def guarded(slot: int) -> None:
            try:
                work(slot)
            except (DecodeError, IntegrityError) as error:
                errors[slot] = error

        order = self.rows.file_order()
        each(guarded, [slot for slot in order if slot not in but] if but else order, threads)
        return errors


def places_of_one(recipe: Recipe, row: Row, key: int, lane: int = 0) -> list[Place]:
    """The places of a single sample, one a view, as a `Plan` has them; draws only what is used."""
    height, width, orientation = row.height or 1, row.width or 1, 1
    if recipe.exif_orientation and row.orientation != 1:
        orientation = row.orientation
        height, width = (width, height) if orientation >= 5 else (height, width)
    views = range(len(recipe.views))
    drawn = [(Lane(key, lane, view), Lane(key, lane, view, FLIPS)) for view in views]
    return _places(recipe, height, width, orientation, drawn)


def wanted_of_one(recipe: Recipe, row: Row, places: Sequence[Place]) -> list[Wanted]:
    """What is wanted of a single sample's images, one a view."""
    return _wanted(recipe, places, row.height, row.width, bool(row.flags & SEEKABLE))


def _places(
    recipe: Recipe, height: Integer, width: Integer, orientation: Integer,
    drawn: Sequence[tuple[Numbers, Numbers]],
) -> list[Place]:  # fmt: skip
    """The places of one sample, or of N, one a view.

    Args:
        recipe: What to make.
        height, width: Of the upright images, pixels.
        orientation: To turn the stored images by.
        drawn: For each view, the numbers of the flips and those of the geometry.
    """
    places = []
    for crop, (flips, own) in zip(recipe.views, drawn, strict=True):
        frame = crop.frame(height, width, own) if crop else frames.whole(height, width)
        hflip = recipe.hflip > 0 and flips[0] < recipe.hflip
        vflip = recipe.vflip > 0 and flips[1] < recipe.vflip
        places.append(Place(frame, orientation, hflip, vflip))
    return places


def _wanted(
    recipe: Recipe, places: Sequence[Place], height: Integer, width: Integer, cuttable: Integer
) -> list[Wanted]:
    """What is wanted of the images of one sample, or of N, one a view."""
    wanted = []
    for crop, place in zip(recipe.views, places, strict=True):
        how = crop.interpolation if crop else "nearest"
        one = regions.want(place, height, width, how, cuttable=cuttable, fast=recipe.fast)
        wanted.append(one)
    return wanted


def numbers(recipe: Recipe, view: int, draw: Draw) -> np.ndarray:
    """Random numbers of a view, (N, count): two for the flips, then the geometry's own."""
    crop = recipe.views[view]
    needed = FLIPS + (crop.draws if crop is not None else 0)
    if needed == FLIPS and not (recipe.hflip or recipe.vflip):
        return np.zeros((len(draw.lanes), FLIPS))
    return draws.uniforms(draw.key, draw.lanes, view, needed)
