"""Aspect-ratio buckets: a few sizes, the one that fits an image best, and the box for that size.

An image fits the size whose aspect ratio is nearest to its own, compared in logarithms: an image of
3:2 is as far from 1:1 as one of 2:3 is. The comparison is exact. The logarithm of the ratio of an
image lies halfway between those of two sizes if its square is the product of both; squares and
products are quotients of integers that NumPy rounds correctly, so that equal ones are equal.

Source: "NovelAI improvements on Stable Diffusion", section "Aspect ratio bucketing", 2022
(https://blog.novelai.net/novelai-improvements-on-stable-diffusion-e10d38db82ac), which compares the
ratios themselves.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any, cast

import numpy as np

from packio.errors import OptionError
from packio.images import arithmetic
from packio.images.arithmetic import Condition, Integer, rounded, where

MOST = 65_534  # sizes: their numbers, and one for "no size", are 16 bits
STEP, MAX_RATIO = 64, 4.0
_LONGEST = 1 << 24  # pixels of a side, so that products of sides are exact

Size = tuple[int, int]  # (height, width), pixels


def sizes_of_area(area: int, step: int = STEP, max_ratio: float = MAX_RATIO) -> list[Size]:
    """Sizes of nearly one area, from tall to wide, for models that take sides of some multiple.

    One is a square. Then each multiple of ``step`` is a side; the other side is the largest
    multiple that keeps to the area.

    Args:
        area: Most pixels of a size.
        step: Both sides are multiples of it, pixels.
        max_ratio: Most that the longer side may be of the shorter one.

    Returns:
        (height, width) of each.
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

    Args:
        sizes: (height, width) of each, pixels.

    Attributes:
        sizes: As given, a tuple.
    """

    def __init__(self, sizes: Iterable[Sequence[int]]) -> None:
        self.sizes: tuple[Size, ...] = tuple(map(checked, sizes))
        if not 0 < len(self.sizes) <= MOST or len(set(self.sizes)) < len(self.sizes):
            raise OptionError(
                f"sizes={_shown(self.sizes)}: expected 1 to {MOST} different (height, width)"
            )
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

    def assigned(self, height: np.ndarray, width: np.ndarray) -> np.ndarray:
        """Number of the size of each of some upright images.

        Args:
            height, width: (N,) int64, pixels, at least 1.

        Returns:
            (N,) int64.
        """
        group = np.searchsorted(self._edges, (width * width) / (height * height), "left")
        place, counts = self._firsts[group], self._counts[group]
        for _ in range(1, int(self._counts.max())):
            number = self._order[np.minimum(place + 1, len(self.sizes) - 1)]
            larger = (counts > 1) & (height >= self._height[number])
            larger &= width >= self._width[number]
            place, counts = place + larger, np.where(larger, counts - 1, 1)
        found: np.ndarray = self._order[place]
        return found

    def of(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Heights and widths of the sizes of some numbers."""
        return self._height[numbers], self._width[numbers]


def checked(size: Sequence[int]) -> Size:
    """Check a size."""
    try:
        height, width = map(operator.index, size)
    except (TypeError, ValueError):
        height, width = 0, 0
    if not (0 < height <= _LONGEST and 0 < width <= _LONGEST):
        raise OptionError(f"size {size!r}: expected (height, width), ints of at least 1 pixel")
    return height, width


def _shown(sizes: Sequence[Size]) -> str:
    more = f", … {len(sizes) - 4} more" if len(sizes) > 4 else ""
    return f"[{', '.join(map(str, sizes[:4]))}{more}]"


def chosen(
    sizes: Sequence[Size] | None,
    area: int | None = None,
    step: int | None = None,
    max_ratio: float | None = None,
) -> Buckets:
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
    return Buckets(
        sizes_of_area(
            area, STEP if step is None else step, MAX_RATIO if max_ratio is None else max_ratio
        )
    )


def parsed(text: str) -> Buckets:
    """The buckets that a command line asks for.

    Args:
        text: ``"1024x1024,896x1152"``, height and width of each, or ``"area=1048576"``, with
            ``step=`` and ``max_ratio=`` if wanted: ``"area=1048576,step=64,max_ratio=2"``.
    """
    parts = text.split(",")
    named = dict(part.partition("=")[::2] for part in parts if "=" in part)
    try:
        if not named:
            pairs = [tuple(map(int, part.split("x"))) for part in parts]
            return chosen(cast("Any", pairs))
        if len(named) < len(parts) or not named.keys() <= {"area", "step", "max_ratio"}:
            raise ValueError
        given: Any = {n: (float if n == "max_ratio" else int)(v) for n, v in named.items()}
    except ValueError as error:
        raise OptionError(
            f"buckets {text!r}: expected heights and widths, as 1024x1024,896x1152, or an area in "
            "pixels, as area=1048576,step=64,max_ratio=4"
        ) from error
    return chosen(None, **given)


def covered(
    height: Integer, width: Integer, high: Integer, broad: Integer
) -> tuple[Integer, Integer]:
    """Height and width of the largest box of an image that has the ratio of a size.

    Args:
        height, width: Of upright images, pixels; numbers or columns.
        high, broad: Height and width of the size, or of one for each image.
    """
    is_wide = width * high >= height * broad
    own_height = arithmetic.larger(1, arithmetic.smaller(height, rounded(width * high / broad)))
    own_width = arithmetic.larger(1, arithmetic.smaller(width, rounded(height * broad / high)))
    return where(is_wide, height, own_height), where(is_wide, own_width, width)


def is_small(height: Integer, width: Integer, high: Integer, broad: Integer) -> Condition:
    """Whether an image has to be enlarged to cover a size; see `covered` for the arguments."""
    return (height < high) | (width < broad)
