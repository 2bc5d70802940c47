"""Levels made while images are packed: which ones an image gets, and their JPEGs.

A crop that becomes 224 x 224 pixels needs few of the 12 million pixels of a photograph. A level has
few: its sides are 1/2, 1/4, … of the image's. `packio.sample.levels` says how a level lies beside
its image.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from packio.errors import DecodeError, Decoding, OptionError
from packio.images import encodings
from packio.images.encodings import RAW, read_facts
from packio.images.frames import SPARE
from packio.images.geometry import RandomResizedCrop
from packio.packing.images import encoders
from packio.packing.images.encoders import Metadata
from packio.sample import levels
from packio.sample.recipe import Recipe
from packio.sample.record import Facts, Field, Record
from packio.sources import Listing
from packio.sources.pack import PackListing, Reading

if TYPE_CHECKING:
    from PIL import Image

AUTO = "auto"
_WORTH = 2.0  # times the share of the bytes of a level: the share of crops that take the level
_HALVINGS = [1 << k for k in range(levels.LARGEST.bit_length() - 1, 0, -1)]  # divisors
_GRID = 32  # boxes of each kind that are looked at, to tell which level they take


@dataclasses.dataclass(frozen=True)
class Levels:
    """Which levels images get."""

    count: int | str = AUTO  # of an image, at most, the smallest first; "auto": those that pay
    quality: int = 85  # of the JPEGs, 1 to 100
    crop: int = 224  # side of training crops, pixels; the smallest level's is 1.4 to 2.8 times it

    def __post_init__(self) -> None:
        most = len(_HALVINGS)
        if self.count != AUTO and (type(self.count) is not int or not 0 <= self.count <= most):
            raise OptionError(f"levels={self.count!r}: expected 'auto', or a number up to {most}")
        if type(self.quality) is not int or not 1 <= self.quality <= 100:
            raise OptionError(f"levels_quality={self.quality!r}: expected an int from 1 to 100")
        if type(self.crop) is not int or self.crop < 1:
            raise OptionError(f"levels_crop={self.crop!r}: expected pixels, at least 1")

    @classmethod
    def from_user(
        cls, count: int | str | None, quality: int | None = None, crop: int | None = None
    ) -> Levels | None:
        """The levels that a user asks for; None: nothing is said of levels."""
        if count is None:
            for name, value in (("levels_quality", quality), ("levels_crop", crop)):
                if value is not None:
                    raise OptionError(f"{name}={value}: needs levels='auto', or a number of levels")
            return None
        given = {"quality": quality, "crop": crop}
        return cls(count, **{name: value for name, value in given.items() if value is not None})

    @classmethod
    def from_options(cls, options: Mapping[str, Any] | None) -> Levels | None:
        """The levels that a recipe tells."""
        if options is None:
            return None
        names = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in options.items() if name in names})

    def as_options(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @property
    def shortest_side(self) -> int:
        """Pixels that the short side of an image needs, if it is to get a level."""
        return math.isqrt(2 * (2 * self.crop) ** 2 - 1) + 1

    def divisors(self, facts: Facts) -> list[int]:
        """Divisors of the levels that an image gets, the smallest images first.

        Images that are raw pixels, or have more than 8 bits, a palette or transparency, get none.
        """
        if facts.encoding in RAW or facts.dtype != "uint8" or facts.channels not in (1, 3):
            return []
        size = facts.height, facts.width
        found = [d for d in _HALVINGS if min(size) ** 2 >= 2 * (self.crop * d) ** 2]
        if self.count == AUTO:
            shares = _shares(*size, self.crop, tuple(found))
            return [d for d in found if shares[d] * d * d >= _WORTH]
        return found[: int(self.count)]

    def __call__(self, record: Record[Field]) -> Record[Field]:
        """The record with all levels of its image. A level of this image that it has stays."""
        facts = record.facts
        wanted = self.divisors(facts)
        there = {d: record.fields.get(levels.name_of(d)) for d in wanted}
        missing = [d for d, field in there.items() if field is None or not fits(field, facts, d)]
        made = _made(record.image.data, facts, missing, self.quality) if missing else {}
        kept = {levels.name_of(d): made.get(d) or field for d, field in there.items()}
        own = {name: field for name, field in kept.items() if field is not None}
        return levels.drop_levels(record).with_fields(**own)


def fits(field: Field, facts: Facts, divisor: int) -> bool:
    """Tell whether a field can be a level of an image of these facts."""
    own = field.facts or read_facts(field.data)
    size = levels.size_at(facts.height, facts.width, divisor)
    return own.encoding == "jpeg" and (own.height, own.width) == size


@functools.lru_cache(1 << 10)  # numbers: the same in every process
def _shares(height: int, width: int, crop: int, divisors: tuple[int, ...]) -> dict[int, float]:
    """Share of random resized crops that take each level, all of them being there."""
    taken = dict.fromkeys(divisors, 0)
    geometry = RandomResizedCrop(crop)
    numbers = [(i + 0.5) / _GRID for i in range(_GRID)]
    for area, ratio in itertools.product(numbers, numbers):
        frame = geometry.frame(height, width, [0.0, 0.0, *([area, ratio] * 10)])
        spare = min(frame.height, frame.width) / crop
        found = next((d for d in divisors if spare >= SPARE * d), None)
        if found is not None:
            taken[found] += 1
    return {divisor: count / _GRID**2 for divisor, count in taken.items()}


def _made(data: bytes, facts: Facts, divisors: list[int], quality: int) -> dict[int, Field]:
    """Levels of an image; none if its pixels are of a kind that has none."""
    with Decoding("levels: Pillow: "), encodings.open_image(data) as image:
        if image.mode not in ("L", "RGB") or image.has_transparency_data:
            return {}
        image.load()
        if image.size != (facts.width, facts.height):
            raise DecodeError(f"decodes to {image.width}x{image.height} pixels")
        return {d: _field(_halved(image, d), facts, quality) for d in divisors}


def _halved(image: Image.Image, divisor: int) -> Image.Image:
    """The pixels of a level: bicubic, antialiased; beyond its edge the image goes on as it ends.

    Bicubic is 0.3 to 1.3 dB nearer to exact crops than means of pixels are; Lanczos 0.3 dB nearer
    still at best, with 2 % more bytes. ``reducing_gap=3`` halves the time, and changes no decibel.
    """
    from PIL import Image

    height, width = levels.size_at(image.height, image.width, divisor)
    below, beyond = height * divisor - image.height, width * divisor - image.width
    if below or beyond:
        edges = ((0, below), (0, beyond), (0, 0))[: 2 if image.mode == "L" else 3]
        image = Image.fromarray(np.pad(np.asarray(image), edges, mode="edge"))
    return image.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=3.0)


def _field(image: Image.Image, facts: Facts, quality: int) -> Field:
    """A level as a JPEG that crops can be cut out of.

    Its chroma has all pixels, whatever the image's has: that of an exact crop has, too. At the same
    number of bytes, crops are 2.7 dB nearer to exact ones than with 4:2:0.
    """
    exif = Metadata(encoders.exif_of(facts.orientation))
    data = encoders.encode(image, "jpeg", exif, quality=quality, restart_rows=1)
    return Field("image", data, read_facts(data)._replace(orientation=facts.orientation))


def resolve_levels(
    listing: Listing, recipe: Recipe, wanted: Levels | None
) -> tuple[Listing, Recipe]:
    """The listing and the recipe of a run that is asked for some levels.

    Nothing asked: levels of packs stay. If their image changes, the levels are made anew as the
    recipe of the packs says; of packs with different recipes, they are left out.
    """
    if wanted is not None and wanted.count != 0 and recipe.encoding.get("encode") == "raw":
        raise OptionError(
            f"levels={wanted.count!r} with encode='raw': images of raw pixels get no levels, their "
            "crops need no decoding; leave out one of the options"
        )
    if wanted is not None:
        listing = drop_levels(listing)
        if wanted.count == 0 and not isinstance(listing, PackListing):
            return listing, recipe
        return listing, dataclasses.replace(recipe, levels=wanted.as_options())
    if isinstance(listing, PackListing):
        found = [Recipe.from_metadata(pack.metadata).levels for pack in listing.packs]
        if found[0] and all(each == found[0] for each in found):
            return listing, dataclasses.replace(recipe, levels=found[0])
    return listing, recipe


def drop_levels(listing: Listing) -> Listing:
    """The listing without the levels that its packs have: others are to be made."""
    has_some = isinstance(listing, PackListing) and any(pack.levels for pack in listing.packs)
    if listing.open is None or not has_some:
        return listing
    if isinstance(listing.open, Reading):  # damage in a level that goes is no matter
        return dataclasses.replace(
            listing, open=dataclasses.replace(listing.open, with_levels=False)
        )
    return listing.map_records(levels.drop_levels)
