"""Crops: which box of an image is taken, how large it becomes: from its size and random numbers.

A geometry turns the size of an image, as the index has it, and some random numbers into a *frame*
(`packio.images.frames`). No pixel is needed for that, so reading can be planned before decoding.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Protocol

from packio.errors import OptionError
from packio.images.frames import Frame

INTERPOLATIONS = ("bilinear", "bicubic", "area", "nearest")

Size = int | tuple[int, int]


class Numbers(Protocol):
    """Random numbers in [0, 1): a list, or drawn when asked for."""

    def __getitem__(self, i: int, /) -> float:
        """The i-th."""
        ...


class Geometry(Protocol):
    """What crops and resizes."""

    @property
    def interpolation(self) -> str:
        """One of INTERPOLATIONS."""
        ...

    @property
    def draws(self) -> int:
        """Random numbers it needs for one image."""
        ...

    @property
    def output_size(self) -> tuple[int, int] | None:
        """(height, width) of every output, or None where it depends on the image."""
        ...

    def frame(self, height: int, width: int, u: Numbers) -> Frame:
        """Frame of an upright image of this size, for `draws` random numbers in [0, 1).

        Masks and boxes follow it, too: whatever has a frame carries all fields.
        """
        ...


def _pair(size: Size) -> tuple[int, int]:
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or min(pair) < 1:
        raise OptionError(f"size={size!r}: expected a positive int, or (height, width)")
    return int(pair[0]), int(pair[1])


def _check_interpolation(name: str) -> None:
    if name not in INTERPOLATIONS:
        raise OptionError(f"interpolation={name!r}: expected one of {', '.join(INTERPOLATIONS)}")


@dataclasses.dataclass(frozen=True)
class RandomResizedCrop:
    """A box of random area and aspect ratio, resized; distributed as torchvision's.

    Args:
        size: Of the output, pixels: an int for a square, or (height, width).
        scale: Range of the box's share of the image's area.
        ratio: Range of the box's width / height, drawn log-uniformly.
        interpolation: "bilinear", "bicubic", "area" or "nearest"; antialiased.

    Source: torchvision 0.28, ``RandomResizedCrop.get_params``: up to ten tries, then the central
    box of the nearest allowed ratio.
    """

    size: Size
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    interpolation: str = "bilinear"

    draws = 22  # the place, then ten tries of area and ratio

    def __post_init__(self) -> None:
        _pair(self.size)
        _check_interpolation(self.interpolation)
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise OptionError(f"scale={self.scale!r}: expected 0 < low <= high <= 1")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise OptionError(f"ratio={self.ratio!r}: expected 0 < low <= high")

    @functools.cached_property
    def output_size(self) -> tuple[int, int]:
        """(height, width) of every output."""
        return _pair(self.size)

    @functools.cached_property
    def _log_ratio(self) -> tuple[float, float]:
        return math.log(self.ratio[0]), math.log(self.ratio[1])

    def frame(self, height: int, width: int, u: Numbers) -> Frame:
        """Frame of an upright image of this size, for 22 random numbers."""
        low, high = self.scale[0] * height * width, self.scale[1] * height * width
        log_low, log_high = self._log_ratio
        for k in range(2, self.draws, 2):
            area = low + u[k] * (high - low)
            ratio = math.exp(log_low + u[k + 1] * (log_high - log_low))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                top, left = int(u[0] * (height - h + 1)), int(u[1] * (width - w + 1))
                return self._resized(top, left, h, w)
        return self._central(height, width)

    def _central(self, height: int, width: int) -> Frame:
        h, w = height, width
        if width / height < self.ratio[0]:
            h = max(1, min(height, round(width / self.ratio[0])))
        elif width / height > self.ratio[1]:
            w = max(1, min(width, round(height * self.ratio[1])))
        return self._resized((height - h) // 2, (width - w) // 2, h, w)

    def _resized(self, top: int, left: int, height: int, width: int) -> Frame:
        high, broad = self.output_size
        return Frame(top, left, height, width, high, broad, 0, 0, high, broad)


@dataclasses.dataclass(frozen=True)
class CenterCrop:
    """The central box of a fixed size, not resized; smaller images get a black border.

    Args:
        size: Pixels: an int for a square, or (height, width).
    """

    size: Size

    draws = 0
    interpolation = "nearest"  # nothing is resized

    def __post_init__(self) -> None:
        _pair(self.size)

    @property
    def output_size(self) -> tuple[int, int]:
        """(height, width) of every output."""
        return _pair(self.size)

    def frame(self, height: int, width: int, u: Numbers) -> Frame:
        """Frame of an upright image of this size."""
        return _centred(height, width, height, width, self.output_size)


@dataclasses.dataclass(frozen=True)
class Resize:
    """The whole image, resized.

    Args:
        size: An int: the short side, aspect ratio kept. (height, width): exactly that.
        max_size: The long side is made no longer than this; only with an int.
        interpolation: "bilinear", "bicubic", "area" or "nearest"; antialiased.

    Source: torchvision 0.28, ``_compute_resized_output_size`` (the long side is truncated).
    """

    size: Size
    max_size: int | None = None
    interpolation: str = "bilinear"

    draws = 0

    def __post_init__(self) -> None:
        _check_interpolation(self.interpolation)
        _pair(self.size)
        if self.max_size is not None and (
            not isinstance(self.size, int) or self.max_size <= self.size
        ):
            raise OptionError(f"max_size={self.max_size}: needs an int size smaller than it")

    @property
    def output_size(self) -> tuple[int, int] | None:
        """(height, width) of every output, or None where the aspect ratio is kept."""
        return None if isinstance(self.size, int) else _pair(self.size)

    def frame(self, height: int, width: int, u: Numbers) -> Frame:
        """Frame of an upright image of this size."""
        size = self.resized(height, width)
        return Frame(0, 0, height, width, *size, 0, 0, *size)

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) that an image of this size is resized to."""
        if not isinstance(self.size, int):
            return _pair(self.size)
        short, long = self.size, self.size * max(height, width) // min(height, width)
        if self.max_size is not None and long > self.max_size:
            short, long = max(1, self.max_size * short // long), self.max_size
        return (long, short) if height > width else (short, long)


@dataclasses.dataclass(frozen=True)
class ResizeCenterCrop:
    """The usual evaluation: resized to cover size / crop_pct, aspect ratio kept, central crop.

    Args:
        size: Of the output, pixels: an int for a square, or (height, width).
        crop_pct: Share of the resized short side that the crop keeps; 0.875 is 224 of 256.
        interpolation: "bilinear", "bicubic", "area" or "nearest"; antialiased.

    Source: timm 1.0, ``transforms_imagenet_eval`` (``scale_size = floor(img_size / crop_pct)``;
    ``ResizeKeepRatio`` for sizes that are not square).
    """

    size: Size
    crop_pct: float = 0.875
    interpolation: str = "bilinear"

    draws = 0

    def __post_init__(self) -> None:
        _pair(self.size)
        _check_interpolation(self.interpolation)
        if not 0 < self.crop_pct <= 1:
            raise OptionError(f"crop_pct={self.crop_pct}: expected 0 < crop_pct <= 1")

    @property
    def output_size(self) -> tuple[int, int]:
        """(height, width) of every output."""
        return _pair(self.size)

    def frame(self, height: int, width: int, u: Numbers) -> Frame:
        """Frame of an upright image of this size."""
        high, broad = (math.floor(side / self.crop_pct) for side in self.output_size)
        if high == broad:
            size = Resize(high).resized(height, width)
        else:  # the smallest that covers both sides
            ratio = min(height / high, width / broad)
            size = round(height / ratio), round(width / ratio)
        return _centred(height, width, *size, self.output_size)


@dataclasses.dataclass(frozen=True)
class RandomCrop:
    """A box of a fixed size at a random place, not resized; black beyond the border.

    Args:
        size: Pixels: an int for a square, or (height, width).
        padding: Pixels of border added on all sides first; smaller images get as much as they need.
    """

    size: Size
    padding: int = 0

    draws = 2
    interpolation = "nearest"  # nothing is resized

    def __post_init__(self) -> None:
        _pair(self.size)
        if self.padding < 0:
            raise OptionError(f"padding={self.padding}: expected 0 or more pixels")

    @property
    def output_size(self) -> tuple[int, int]:
        """(height, width) of every output."""
        return _pair(self.size)

    def frame(self, height: int, width: int, u: Numbers) -> Frame:
        """Frame of an upright image of this size, for 2 random numbers."""
        high, broad = self.output_size
        top = self._place(height, high, u[0])
        left = self._place(width, broad, u[1])
        return Frame(0, 0, height, width, height, width, top, left, high, broad)

    def _place(self, length: int, size: int, u: float) -> int:
        border = max(self.padding, size - length)
        return int(u * (length + 2 * border - size + 1)) - border


def _centred(
    height: int, width: int, to_height: int, to_width: int, size: tuple[int, int]
) -> Frame:
    """The central ``size`` of an image resized to ``to_height, to_width``."""
    top, left = _margin(to_height, size[0]), _margin(to_width, size[1])
    return Frame(0, 0, height, width, to_height, to_width, top, left, *size)


def _margin(length: int, size: int) -> int:
    """Rows before the central ``size`` rows; negative: rows of border before them.

    Source: torchvision 0.28, ``center_crop`` (odd margins: half to even; odd borders: less before).
    """
    return -((size - length) // 2) if length < size else round((length - size) / 2)
