"""Where each view of each sample comes from: frames and flips, from the index and a key alone.

Nothing is read for a framing. It is computed for a whole batch at once, in columns, one number a
sample. All images, masks and boxes of a sample follow the same framing, whatever their names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from packio.batches import draws
from packio.batches.draws import Lane
from packio.images import frames, regions
from packio.images.bucketing import BucketCrop
from packio.images.decoders import Decoder
from packio.images.frames import Integer, Placement
from packio.images.geometry import Geometry, RandomResizedCrop, Uniforms
from packio.images.regions import Need
from packio.packs.table import FEW, Row, RowList
from packio.sample.record import IMAGE
from packio.system.locks import cached_property

FLIPS = 2  # random numbers for hflip and vflip; the geometry's own follow
_BY_POSITION = 0x706F73  # so that no batch of a foreign sampler draws the same


@dataclasses.dataclass(frozen=True)
class Settings:
    """How the samples of a batch are made."""

    views: tuple[Geometry | None, ...]  # of a sample; None takes the image as it is
    hflip: float
    vflip: float
    decoder: Decoder
    exif_orientation: bool
    fast: bool = False
    # name → kind: that of the pack's field; "boxes" of the boxes and of each column of theirs
    fields: Mapping[str, str] = dataclasses.field(default_factory=lambda: {IMAGE: "image"})
    ignore_index: int = 255
    # Images become floats afterwards: a worker makes them in memory of its own, which it does not
    # share.
    scratch: bool = False

    @property
    def is_random(self) -> bool:
        return bool(self.hflip or self.vflip or any(v and v.draws for v in self.views))

    def with_size(self, size: tuple[int, int] | None) -> Settings:
        """The same for a batch whose indices carry a size, which `BucketCrop` follows."""
        if not any(isinstance(view, BucketCrop) for view in self.views):
            return self
        views = [v.with_size(size) if isinstance(v, BucketCrop) else v for v in self.views]
        sized = dataclasses.replace(self, views=tuple(views))
        vars(sized)["further_decoder"] = self.further_decoder  # it counts
        return sized

    @cached_property
    def for_floats(self) -> Settings:
        """The same for images that become floats afterwards."""
        made = dataclasses.replace(self, scratch=True)
        vars(made)["further_decoder"] = self.further_decoder  # it counts
        return made

    @cached_property
    def further_decoder(self) -> Decoder:
        """The decoder of further images with more than 8 bits, as depth beside RGB images."""
        return Decoder(self.decoder.name, "UNCHANGED", max_pixels=self.decoder.max_pixels)

    @property
    def counts(self) -> tuple[int, ...]:
        """Images that Pillow decoded in place of the decoder, then those that the core declined.

        The latter by `packio.images.native.REASONS`.
        """
        return self.decoder.fallbacks + self.further_decoder.fallbacks, *self.decoder.declined


class Draw(NamedTuple):
    """Where the random numbers of a batch come from."""

    key: int
    lanes: np.ndarray  # (N,) of each slot
    size: tuple[int, int] | None = None


def draw_by_position(seed: int, epoch: int, positions: Sequence[int]) -> Draw:
    """What samples draw by their positions in the order of an epoch, in whatever batches."""
    return Draw(draws.mix(seed, epoch, _BY_POSITION), np.array(positions, np.int64))


class Framing:
    """What the views of a batch take of the images of its samples, or of a further field.

    For `FEW` or more samples it is computed in columns, a `Placement` of (N,) columns a view; for
    fewer sample by sample, one `Placement` a view: an operation takes NumPy 1 µs on a column of one
    number, Python 0.1 µs.
    """

    def __init__(
        self, settings: Settings, rows: RowList, columns: Sequence[Placement] = (),
        each_placement: Sequence[Sequence[Placement]] | None = None,
    ) -> None:  # fmt: skip
        self.settings: Settings = settings
        self.rows: RowList = rows
        self.columns: Sequence[Placement] = columns
        if each_placement is not None:
            self.each_placement = each_placement

    @classmethod
    def draw(cls, settings: Settings, rows: RowList, draw: Draw) -> Framing:
        if len(rows) < FEW:
            lanes = zip(rows, draw.lanes.tolist(), strict=True)
            each = [placements_of_one(settings, row, draw.key, lane) for row, lane in lanes]
            return cls(settings, rows, (), each)
        orientation = rows.column("orientation") if settings.exif_orientation else 1
        if not np.any(orientation != 1):
            orientation = 1
        columns = [numbers(settings, view, draw).T for view in range(len(settings.views))]
        pairs = [(u[:FLIPS], u[FLIPS:]) for u in columns]
        size = _upright(rows.column("height"), rows.column("width"), orientation)
        return cls(settings, rows, _placements(settings, *size, orientation, pairs))

    def frame_further(self, rows: RowList) -> Framing:
        """The framing of further images of the same samples; see `place_further`."""
        settings = self.settings
        if not self.columns:
            triples = zip(self.each_placement, self.rows, rows, strict=True)
            each = [place_further(settings, *triple) for triple in triples]
            return Framing(settings, rows, (), each)
        return Framing(settings, rows, place_further(settings, self.columns, self.rows, rows))

    @cached_property
    def each_placement(self) -> Sequence[Sequence[Placement]]:
        views = [frames.each(placement, len(self.rows)) for placement in self.columns]
        return list(zip(*views, strict=True))

    @cached_property
    def each_needs(self) -> Sequence[Sequence[Need]]:
        rows = self.rows
        if not self.columns:
            return [
                find_needs(self.settings, placements, row.height, row.width)
                for row, placements in zip(rows, self.each_placement, strict=True)
            ]
        return list(zip(*(frames.each(view, len(rows)) for view in self.needs), strict=True))

    @cached_property
    def needs(self) -> Sequence[Need]:
        """What the views need of the images, in columns; empty in a framing of few samples."""
        sizes = self.rows.column("height"), self.rows.column("width")
        return find_needs(self.settings, self.columns, *sizes)


def placements_of_one(settings: Settings, row: Row, key: int, lane: int = 0) -> list[Placement]:
    """The placements of a single sample, one a view, as a `Framing` has them."""
    orientation = row.orientation if settings.exif_orientation else 1
    height, width = row.height or 1, row.width or 1
    if orientation >= 5:
        height, width = width, height
    views = range(len(settings.views))
    drawn = [(Lane(key, lane, view), Lane(key, lane, view, FLIPS)) for view in views]
    return _placements(settings, height, width, orientation, drawn)


def place_further(
    settings: Settings, placements: Sequence[Placement], image: Row | RowList,
    further: Row | RowList,
) -> list[Placement]:  # fmt: skip
    """The placements of a further image of one sample, or of N, one a view.

    A further image shows the same scene as the image of its sample. A crop takes the same part of
    both, and makes outputs of the same size; without a crop, the further image is taken whole. An
    Exif orientation of the further image turns it. Where it has none, it is stored in the same
    position as the image, and turned with the image, as masks are.
    """
    height, width, turned = _stored_size(image)
    own_height, own_width, own = _stored_size(further)
    turned, own = (
        (turned, frames.where(own == 1, turned, own)) if settings.exif_orientation else (1, 1)
    )
    size, to = _upright(height, width, turned), _upright(own_height, own_width, own)
    return [
        placement._replace(
            frame=frames.scale_frame(placement.frame, size, to) if crop else frames.whole(*to),
            orientation=own,
        )
        for crop, placement in zip(settings.views, placements, strict=True)
    ]


def _stored_size(rows: Row | RowList) -> tuple[Integer, Integer, Integer]:
    """Height and width of one value or of N, as stored, and the orientation."""
    if isinstance(rows, Row):
        return rows.height, rows.width, rows.orientation
    return rows.column("height"), rows.column("width"), rows.column("orientation")


def _upright(height: Integer, width: Integer, orientation: Integer) -> tuple[Integer, Integer]:
    """Size of a stored image once it is turned; at least one pixel, where an index says 0."""
    swapped = orientation >= 5
    upright = frames.where(swapped, width, height), frames.where(swapped, height, width)
    return frames.larger(upright[0], 1), frames.larger(upright[1], 1)


def _placements(
    settings: Settings, height: Integer, width: Integer, orientation: Integer,
    drawn: Sequence[tuple[Uniforms, Uniforms]],
) -> list[Placement]:  # fmt: skip
    """The placements of one sample, or of N; ``drawn``: numbers of each view's flips and crop."""
    placements = []
    for crop, (flips, own) in zip(settings.views, drawn, strict=True):
        frame = crop.frame(height, width, own) if crop else frames.whole(height, width)
        hflip = settings.hflip > 0 and flips[0] < settings.hflip
        vflip = settings.vflip > 0 and flips[1] < settings.vflip
        how = crop.draw_interpolation(own) if isinstance(crop, RandomResizedCrop) else None
        placements.append(Placement(frame, orientation, hflip, vflip, how))
    return placements


def find_needs(
    settings: Settings, placements: Sequence[Placement], height: Integer, width: Integer
) -> list[Need]:
    hows = [crop.interpolation if crop else "nearest" for crop in settings.views]
    return [
        regions.compute_need(
            placement,
            height,
            width,
            how if placement.how is None else placement.how,
            fast=settings.fast,
        )
        for how, placement in zip(hows, placements, strict=True)
    ]


def numbers(settings: Settings, view: int, draw: Draw) -> np.ndarray:
    """Random numbers of a view, (N, count): two for the flips, then the geometry's own."""
    crop = settings.views[view]
    needed = FLIPS + (crop.draws if crop is not None else 0)
    if needed == FLIPS and not (settings.hflip or settings.vflip):
        return np.zeros((len(draw.lanes), FLIPS))
    return draws.uniforms(draw.key, draw.lanes, view, needed)
