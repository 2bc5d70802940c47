"""Where each view of each sample comes from: frames and flips, from the index and a key alone.

Nothing is read for a plan. It is computed for a whole batch at once, in columns, one number a
sample. All images, masks and boxes of a sample follow the same plan, whatever their names.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from packio.batches import draws
from packio.batches.draws import Lane
from packio.errors import DecodeError, IntegrityError
from packio.images import arithmetic, frames, regions
from packio.images.arithmetic import Integer
from packio.images.decoders import Decoder
from packio.images.frames import Place
from packio.images.geometry import Geometry, Numbers
from packio.images.regions import Wanted
from packio.index.indexfile import SEEKABLE
from packio.packs.rows import Row, Rows
from packio.sample.record import IMAGE
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
        fields: Name → kind of each field that is made. The kind is that of the pack's field, or
            "boxes" for the boxes and for each column of theirs.
        ignore_index: Class id of a mask's border.
    """

    views: tuple[Geometry | None, ...]
    hflip: float
    vflip: float
    decoder: Decoder
    exif_orientation: bool
    fast: bool = False
    fields: Mapping[str, str] = dataclasses.field(default_factory=lambda: {IMAGE: "image"})
    ignore_index: int = 255

    @property
    def is_random(self) -> bool:
        """Whether samples need random numbers."""
        return bool(self.hflip or self.vflip or any(v and v.draws for v in self.views))

    def decoder_of(self, name: str, row: Row) -> Decoder:
        """The decoder of an image.

        A further image with more than 8 bits is decoded unchanged, whatever the mode: RGB images
        may have depth images beside them.
        """
        return self.decoder if name == IMAGE or row.dtype == "uint8" else self._unchanged

    @functools.cached_property
    def _unchanged(self) -> Decoder:
        return Decoder(self.decoder.name, "UNCHANGED", max_pixels=self.decoder.max_pixels)

    @property
    def fallbacks(self) -> int:
        """Images that Pillow decoded because the chosen decoder could not."""
        return self.decoder.fallbacks + self._unchanged.fallbacks


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
    """What the views of a batch take of the images of its samples, or of a further field.

    Args:
        recipe: What to make of the samples.
        rows: The samples' values of the field; a sample may be there several times.
        places: For each view, a `Place` of (N,) columns.

    Attributes:
        recipe, rows, places: As given.
    """

    def __init__(self, recipe: Recipe, rows: Rows, places: Sequence[Place]) -> None:
        self.recipe, self.rows, self.places = recipe, rows, places

    @classmethod
    def drawn(cls, recipe: Recipe, rows: Rows, draw: Draw) -> Plan:
        """The plan of the images of a batch.

        Args:
            recipe: What to make of the samples.
            rows: The samples' images.
            draw: Of the random numbers.
        """
        orientation = rows.column("orientation") if recipe.exif_orientation else 1
        if not np.any(orientation != 1):
            orientation = 1
        columns = [numbers(recipe, view, draw).T for view in range(len(recipe.views))]
        drawn = [(u[:FLIPS], u[FLIPS:]) for u in columns]
        size = _upright(rows.column("height"), rows.column("width"), orientation)
        return cls(recipe, rows, _places(recipe, *size, orientation, drawn))

    def of(self, rows: Rows) -> Plan:
        """The plan of further images of the same samples; see `places_of_further`."""
        size, further = (
            tuple(each.column(n) for n in ("height", "width", "orientation"))
            for each in (self.rows, rows)
        )
        return Plan(self.recipe, rows, _places_of_further(self.recipe, self.places, size, further))

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
    orientation = row.orientation if recipe.exif_orientation else 1
    height, width = row.height or 1, row.width or 1
    if orientation >= 5:
        height, width = width, height
    views = range(len(recipe.views))
    drawn = [(Lane(key, lane, view), Lane(key, lane, view, FLIPS)) for view in views]
    return _places(recipe, height, width, orientation, drawn)


def places_of_further(
    recipe: Recipe, places: Sequence[Place], image: Row, further: Row
) -> list[Place]:
    """The places of a further image of a single sample, one a view.

    A further image shows the same scene as the image of its sample. A crop takes the same part of
    both, and makes outputs of the same size; without a crop, the further image is taken whole. An
    Exif orientation of the further image turns it. Where it has none, it is stored in the same
    position as the image, and turned with the image, as masks are.

    Args:
        recipe: What to make.
        places: Of the sample's image.
        image, further: What the index says of both.
    """
    size = image.height, image.width, image.orientation
    return _places_of_further(
        recipe, places, size, (further.height, further.width, further.orientation)
    )


def _places_of_further(
    recipe: Recipe, places: Sequence[Place], image: tuple[Integer, ...],
    further: tuple[Integer, ...],
) -> list[Place]:  # fmt: skip
    """`places_of_further` of numbers or columns: height and width as stored, and orientation."""
    where = arithmetic.where
    own: Integer = 1
    turned: Integer = 1
    if recipe.exif_orientation:
        turned = image[2]
        own = where(further[2] == 1, turned, further[2])
    size, to = _upright(image[0], image[1], turned), _upright(further[0], further[1], own)
    frames_of = [
        frames.scaled(place.frame, size, to) if crop else frames.whole(*to)
        for crop, place in zip(recipe.views, places, strict=True)
    ]
    return [
        place._replace(frame=frame, orientation=own)
        for place, frame in zip(places, frames_of, strict=True)
    ]


def _upright(height: Integer, width: Integer, orientation: Integer) -> tuple[Integer, Integer]:
    """Size of a stored image once it is turned; at least one pixel, where an index says 0."""
    swapped = orientation >= 5
    upright = arithmetic.where(swapped, width, height), arithmetic.where(swapped, height, width)
    return arithmetic.larger(upright[0], 1), arithmetic.larger(upright[1], 1)


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
