"""Aspect-ratio buckets: a few sizes, the one that fits an image best, and the crop to that size.

An image fits the size whose aspect ratio is nearest to its own, compared in logarithms: an image of
3:2 is as far from 1:1 as one of 2:3 is. The comparison is exact: halfway between two ratios, the
square of the image's is their product, and NumPy rounds these quotients of integers correctly.

Source: "NovelAI improvements on Stable Diffusion", section "Aspect ratio bucketing", 2022, which
compares the ratios themselves
(https://blog.novelai.net/novelai-improvements-on-stable-diffusion-e10d38db82ac).
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any, cast

import numpy as np

from packio.errors import OptionError
from packio.images import frames
from packio.images.frames import Condition, Frame, Integer, round_half_even, where
from packio.images.geometry import Uniforms, check_interpolation

MOST = 65_534  # sizes: their numbers, and one for "no size", are 16 bits
STEP, MAX_RATIO = 64, 4.0
_LONGEST = 1 << 24  # pixels of a side, so that products of sides are exact

Size = tuple[int, int]  # (height, width), pixels


def sizes_of_area(area: int, step: int = STEP, max_ratio: float = MAX_RATIO) -> list[Size]:
    """Sizes of nearly one area, from tall to wide: a square, and one or two for each multiple.

    The other side is the largest multiple of ``step`` that keeps to area and ratio.
    """
    is_ratio = type(max_ratio) in (int, float) and 1 <= max_ratio < math.inf
    if type(area) is not int or type(step) is not int or step < 1 or not is_ratio:
        raise OptionError(
            f"area={area!r}, step={step!r}, max_ratio={max_ratio!r}: expected ints of at least 1 "
            "pixel, and a ratio of at least 1"
        )
    longest = math.isqrt(int(max(area, 0) * max_ratio))  # of a side that keeps area and ratio
    if longest // step > MOST:
        raise OptionError(f"area={area}, step={step}: more than {MOST} sizes; give a larger step")
    square = math.isqrt(max(area, 0)) // step * step
    found = {(square, square)} if square else set()
    for side in range(step, longest + 1, step):
        other = area // side // step * step
        if other and max(side, other) <= max_ratio * min(side, other):
            found |= {(side, other), (other, side)}
    if not found:
        raise OptionError(
            f"area={area}, step={step}, max_ratio={max_ratio}: no size fits; the smallest is "
            f"{step}x{step}, of {step * step} pixels"
        )
    return sorted(found, key=lambda size: (Fraction(size[1], size[0]), size))


class Buckets:
    """Sizes, and the number of the size that fits an image best.

    Of two ratios that are equally far, the taller size is taken. Of sizes of the same ratio, an
    image gets the largest that it covers, or the smallest if it covers none.
    """

    def __init__(self, sizes: Iterable[Sequence[int]]) -> None:
        self.sizes: tuple[Size, ...] = tuple(map(check_size, sizes))
        if not 0 < len(self.sizes) <= MOST or len(set(self.sizes)) < len(self.sizes):
            more = [f"… {len(self.sizes) - 4} more"] if len(self.sizes) > 4 else []
            shown = ", ".join([*map(str, self.sizes[:4]), *more])
            raise OptionError(f"sizes=[{shown}]: expected 1 to {MOST} different (height, width)")
        sides = np.array(self.sizes, np.int64)
        self._height, self._width = sides[:, 0], sides[:, 1]
        ratios = [Fraction(width, height) for height, width in self.sizes]
        order = sorted(range(len(ratios)), key=lambda i: (ratios[i], self.sizes[i]))
        self._order = np.array(order)
        is_new = [n == 0 or ratios[order[n - 1]] != ratios[i] for n, i in enumerate(order)]
        self._firsts = np.flatnonzero(is_new)  # of the sizes of each ratio
        self._counts = np.diff(np.append(self._firsts, len(order)))
        smallest = self._order[self._firsts]
        high, broad = self._height[smallest], self._width[smallest]
        self._edges = (broad[1:] * broad[:-1]) / (high[1:] * high[:-1])

    def __len__(self) -> int:
        return len(self.sizes)

    def assign(self, height: np.ndarray, width: np.ndarray) -> np.ndarray:
        """Number of the size of each of N upright images, of (N,) int64 pixels, at least 1."""
        group = np.searchsorted(self._edges, (width * width) / (height * height), "left")
        place, counts = self._firsts[group], self._counts[group]
        for _ in range(1, int(self._counts.max())):
            number = self._order[np.minimum(place + 1, len(self.sizes) - 1)]
            larger = (counts > 1) & (height >= self._height[number])
            larger &= width >= self._width[number]
            place, counts = place + larger, np.where(larger, counts - 1, 1)
        found: np.ndarray = self._order[place]
        return found

    def look_up_sizes(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Heights and widths of the sizes of some numbers."""
        return self._height[numbers], self._width[numbers]


def check_size(size: Sequence[int]) -> Size:
    try:
        height, width = map(operator.index, size)
    except (TypeError, ValueError):
        height, width = 0, 0
    if not (0 < height <= _LONGEST and 0 < width <= _LONGEST):
        raise OptionError(f"size {size!r}: expected (height, width), ints of at least 1 pixel")
    return height, width


def choose_buckets(
    sizes: Sequence[Size] | None, area: int | None = None, step: int | None = None,
    max_ratio: float | None = None,
) -> Buckets:  # fmt: skip
    """The buckets that users ask for: sizes, or all sizes of an area."""
    if (sizes is None) == (area is None):
        raise OptionError(
            "expected sizes= or area=, and not both: sizes=[(1024, 1024), (896, 1152)], height "
            "and width, or area=1024 * 1024"
        )
    if area is None:
        if step is not None or max_ratio is not None:
            raise OptionError("step= and max_ratio= need area=; sizes= has both sides of each")
        return Buckets(sizes or ())
    ratio = MAX_RATIO if max_ratio is None else max_ratio
    return Buckets(sizes_of_area(area, STEP if step is None else step, ratio))


def parse_buckets(text: str) -> Buckets:
    """Parse "1024x1024,896x1152" (height, width), or "area=1048576,step=64,max_ratio=2"."""
    parts = text.split(",")
    named = dict(part.partition("=")[::2] for part in parts if "=" in part)
    try:
        if not named:
            pairs = [tuple(map(int, part.split("x"))) for part in parts]
            return choose_buckets(cast("Any", pairs))
        if len(named) < len(parts) or not named.keys() <= {"area", "step", "max_ratio"}:
            raise ValueError
        given: Any = {n: (float if n == "max_ratio" else int)(v) for n, v in named.items()}
    except ValueError as error:
        raise OptionError(
            f"buckets {text!r}: expected heights and widths, as 1024x1024,896x1152, or an area in "
            "pixels, as area=1048576,step=64,max_ratio=4"
        ) from error
    return choose_buckets(None, **given)


def largest_box(
    height: Integer, width: Integer, high: Integer, broad: Integer
) -> tuple[Integer, Integer]:
    """Height and width of the largest box of an upright image that has the ratio of a size."""
    is_wide = width * high >= height * broad
    own_height = frames.larger(1, frames.smaller(height, round_half_even(width * high / broad)))
    own_width = frames.larger(1, frames.smaller(width, round_half_even(height * broad / high)))
    return where(is_wide, height, own_height), where(is_wide, own_width, width)


def is_small(height: Integer, width: Integer, high: Integer, broad: Integer) -> Condition:
    """Whether an image has to be enlarged to cover a size."""
    return (height < high) | (width < broad)


@dataclasses.dataclass(frozen=True)
class BucketCrop:
    """The largest box of the ratio of the batch's size, resized to that size.

    Each batch of a `packio.BucketSampler` has a size of its own, which its indices carry.

    Args:
        size: (height, width) for indices that carry none, as in ``ds[0]`` or with another sampler.
            None: those are refused.
        position: "random": the box lies anywhere in the image; "center": in the middle.
        small: What becomes of images that are smaller than the size on a side: "enlarge", or
            "pad": they keep their pixels, and get a border, black in images and `ignore_index` in
            masks. (``BucketSampler(drop_small=True)`` leaves them out.)
        interpolation: "bilinear", "bicubic", "area" or "nearest"; antialiased.

    Raises:
        OptionError: a value is not allowed.
    """

    size: Size | None = None
    position: str = "random"
    small: str = "enlarge"
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        if self.size is not None:
            object.__setattr__(self, "size", check_size(self.size))
        allowed = {"position": ("random", "center"), "small": ("enlarge", "pad")}
        for name, values in allowed.items():
            if (given := getattr(self, name)) not in values:
                raise OptionError(f"{name}={given!r}: expected one of {', '.join(values)}")
        check_interpolation(self.interpolation)

    @property
    def draws(self) -> int:
        """Random numbers for one image."""
        return 2 if self.position == "random" else 0

    @property
    def output_size(self) -> Size | None:
        """(height, width) of every output; None: each batch has its own."""
        return self.size

    def with_size(self, size: Size | None) -> BucketCrop:
        """The same crop to a size that indices carry; None: they carry none."""
        return self if size is None else dataclasses.replace(self, size=size)

    def frame(self, height: Integer, width: Integer, u: Uniforms) -> Frame:
        """Frame of an upright image of this size, for 2 random numbers or none.

        Raises:
            OptionError: no size is known.
        """
        if self.size is None:
            raise OptionError(
                "crop=BucketCrop(): these indices carry no size; take a DataLoader or a "
                "packio.Loader with batch_sampler=packio.BucketSampler(…), packio.ConcatPacks and "
                "subset() in place of torch's ConcatDataset and Subset, which drop the size; or "
                "give a size for such indices, as BucketCrop((1024, 1024))"
            )
        high, broad = self.size
        h, w = largest_box(height, width, high, broad)
        top, left = self._start(height, h, u, 0), self._start(width, w, u, 1)
        frame = Frame(top, left, h, w, high, broad, 0, 0, high, broad)
        if self.small == "enlarge":
            return frame
        top, left = self._start(height, high, u, 0), self._start(width, broad, u, 1)
        kept = Frame(0, 0, height, width, height, width, top, left, high, broad)
        return frames.select_frame(is_small(height, width, high, broad), kept, frame)

    def _start(self, length: Integer, size: Integer, u: Uniforms, axis: int) -> Integer:
        """First pixel of a box along a side; negative: so many pixels of border before the side."""
        if self.position == "center":
            return where(length < size, -((size - length) // 2), (length - size) // 2)
        inside = frames.truncate(u[axis] * (abs(length - size) + 1))
        return where(length < size, -inside, inside)
