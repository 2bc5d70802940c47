"""Crops: which box of an image is taken, and how large it becomes.

A geometry turns the size of an image, as the index has it, and some random numbers into a *frame*
(`packio.images.frames`). The sizes may be columns of N numbers: the frame then has N boxes.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Callable
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np

from packio.errors import OptionError
from packio.images import frames
from packio.images.frames import Frame, Integer, Real, round_half_even, truncate, where
from packio.system.locks import cached_property

INTERPOLATIONS = ("bilinear", "bicubic", "area", "nearest")

Size = int | tuple[int, int]

_FEW = 16  # images for which columns take longer than numbers


class Uniforms(Protocol):
    """Random numbers in [0, 1): a list, numbers drawn when asked for, or (draws, N) columns."""

    def __getitem__(self, i: int, /) -> Any: ...


@runtime_checkable
class Geometry(Protocol):
    """What crops and resizes."""

    @property
    def interpolation(self) -> str:
        """One of INTERPOLATIONS."""

    @property
    def draws(self) -> int:
        """Random numbers it needs for one image."""

    @property
    def output_size(self) -> tuple[int, int] | None:
        """(height, width) of every output, or None where it depends on the image."""

    def frame(self, height: Integer, width: Integer, u: Uniforms) -> Frame:
        """Frame of an upright image, or of N upright images.

        Masks and boxes follow the same frame: whatever has a frame carries all fields.

        Args:
            height, width: Pixels: an int, or (N,) int64 columns.
            u: `draws` random numbers in [0, 1), or a (draws, N) array of them.
        """


def is_number(value: object) -> bool:
    """Whether an argument is a number, NumPy's too; True and False are none."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def is_whole(value: object) -> bool:
    """Whether an argument is a whole number."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def as_numbers(given: object, count: int) -> tuple[float, ...] | None:
    """Take a list or a tuple of so many numbers; None: it is none."""
    if not isinstance(given, (list, tuple)) or len(given) != count:
        return None
    return tuple(map(float, given)) if all(map(is_number, given)) else None


def _check_size(size: Any) -> Any:
    """Check a size; a whole number of NumPy becomes an int."""
    pair = (size, size) if is_whole(size) else size
    is_pair = isinstance(pair, (list, tuple)) and len(pair) == 2 and all(map(is_whole, pair))
    if not is_pair or min(pair) < 1:
        raise OptionError(f"size={size!r}: expected a positive int, or (height, width)")
    return int(size) if is_whole(size) else size


def _pair(size: Size) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))


def check_probability(name: str, share: object) -> None:
    if not is_number(share) or not 0 <= float(cast("float", share)) <= 1:
        raise OptionError(
            f"{name}={share!r}: expected a probability, 0..1; {name}=0.5 is half of the images"
        )


def check_interpolation(name: str) -> None:
    if name not in INTERPOLATIONS:
        raise OptionError(f"interpolation={name!r}: expected one of {', '.join(INTERPOLATIONS)}")


@dataclasses.dataclass(frozen=True)
class _Sized:
    """A crop whose outputs all have one size."""

    size: Size

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _check_size(self.size))

    @property
    def output_size(self) -> tuple[int, int]:  # a property, as the protocol has it: for pyright
        """(height, width) of every output."""
        return _pair(self.size)


_TRIED = 22  # numbers of the place and of ten tries


@dataclasses.dataclass(frozen=True)
class RandomResizedCrop(_Sized):
    """A box of random area and aspect ratio, resized; distributed as torchvision's.

    Args:
        size: Of the output, pixels: an int for a square, or (height, width).
        scale: Range of the box's share of the image's area.
        ratio: Range of the box's width / height, drawn log-uniformly.
        interpolation: "bilinear", "bicubic", "area" or "nearest"; antialiased. "random": bilinear
            or bicubic, drawn for each image, as timm does.

    Source: torchvision 0.28, ``RandomResizedCrop.get_params``: up to ten tries, then the central
    box of the nearest allowed ratio.
    """

    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    interpolation: str = "bilinear"

    draws = 23  # the place, then ten tries of area and ratio; the interpolation

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.interpolation != "random":
            check_interpolation(self.interpolation)
        scale, ratio = as_numbers(self.scale, 2), as_numbers(self.ratio, 2)
        if scale is None or not 0 < scale[0] <= scale[1] <= 1:
            raise OptionError(f"scale={self.scale!r}: expected (low, high), 0 < low <= high <= 1")
        if ratio is None or not 0 < ratio[0] <= ratio[1] < math.inf:
            raise OptionError(
                f"ratio={self.ratio!r}: expected (low, high), 0 < low <= high, both finite"
            )

    @cached_property
    def _log_ratio(self) -> tuple[float, float]:
        return math.log(self.ratio[0]), math.log(self.ratio[1])

    def draw_interpolation(self, u: Uniforms) -> Any:
        """The interpolation of an image, or of N, if that is drawn; else None."""
        if self.interpolation != "random":
            return None
        return where(u[_TRIED] < 0.5, "bilinear", "bicubic")

    def frame(self, height: Integer, width: Integer, u: Uniforms) -> Frame:
        """Frame of an upright image of this size, for `draws` random numbers."""
        if isinstance(height, np.ndarray):
            return self._frames(height, width, u)
        for k in range(2, _TRIED, 2):
            h, w = self._tried(height, width, u[k], u[k + 1], math.exp, math.sqrt, round)
            if 0 < w <= width and 0 < h <= height:
                top, left = int(u[0] * (height - h + 1)), int(u[1] * (width - w + 1))
                return self._resized(top, left, h, w)
        return self._central(height, width)

    def _frames(self, height: Integer, width: Integer, u: Any) -> Frame:
        """Frames of N images: each try for all that need it (13 % need two), the last alone."""
        h, w = np.empty_like(height), np.empty_like(width)
        rest = np.arange(len(height))
        for k in range(2, _TRIED, 2):
            high, broad = height[rest], width[rest]
            numbers = u[k, rest], u[k + 1, rest]
            found = self._tried(high, broad, *numbers, frames.exp, np.sqrt, round_half_even)
            h[rest], w[rest] = found
            fits = (found[0] > 0) & (found[0] <= high) & (found[1] > 0) & (found[1] <= broad)
            rest = rest[~fits]
            if len(rest) < _FEW:
                break
        top, left = truncate(u[0] * (height - h + 1)), truncate(u[1] * (width - w + 1))
        for i in rest.tolist():
            one = self.frame(height.item(i), width.item(i), u[:, i].tolist())
            top[i], left[i], h[i], w[i] = one[:4]
        return self._resized(top, left, h, w)

    def _tried(
        self, height: Integer, width: Integer, area: Real, ratio: Real,
        exp: Callable[[Real], Real], sqrt: Callable[[Real], Real],
        rounded: Callable[[Real], Integer],
    ) -> tuple[Integer, Integer]:  # fmt: skip
        """Height and width of a box, for two random numbers; perhaps larger than the image."""
        low, high = self.scale[0] * height * width, self.scale[1] * height * width
        log_low, log_high = self._log_ratio
        area = low + area * (high - low)
        ratio = exp(log_low + ratio * (log_high - log_low))
        return rounded(sqrt(area / ratio)), rounded(sqrt(area * ratio))

    def _central(self, height: int, width: int) -> Frame:
        h, w = height, width
        if width / height < self.ratio[0]:
            h = max(1, min(height, round(width / self.ratio[0])))
        elif width / height > self.ratio[1]:
            w = max(1, min(width, round(height * self.ratio[1])))
        return self._resized((height - h) // 2, (width - w) // 2, h, w)

    def _resized(self, top: Integer, left: Integer, height: Integer, width: Integer) -> Frame:
        high, broad = self.output_size
        return Frame(top, left, height, width, high, broad, 0, 0, high, broad)


@dataclasses.dataclass(frozen=True)
class CenterCrop(_Sized):
    """The central box of a fixed size, not resized; smaller images get a black border.

    Args:
        size: Pixels: an int for a square, or (height, width).
    """

    draws = 0
    interpolation = "nearest"  # nothing is resized

    def frame(self, height: Integer, width: Integer, u: Uniforms) -> Frame:
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
        check_interpolation(self.interpolation)
        object.__setattr__(self, "size", _check_size(self.size))
        if self.max_size is not None and (
            not isinstance(self.size, int) or not is_whole(self.max_size)
            or self.max_size <= self.size
        ):  # fmt: skip
            raise OptionError(f"max_size={self.max_size}: needs an int size smaller than it")

    @property
    def output_size(self) -> tuple[int, int] | None:
        """(height, width) of every output, or None where the aspect ratio is kept."""
        return None if isinstance(self.size, int) else _pair(self.size)

    def frame(self, height: Integer, width: Integer, u: Uniforms) -> Frame:
        """Frame of an upright image of this size."""
        size = self.compute_size(height, width)
        return Frame(0, 0, height, width, *size, 0, 0, *size)

    def compute_size(self, height: Integer, width: Integer) -> tuple[Integer, Integer]:
        """(height, width) that an image of this size is resized to."""
        if not isinstance(self.size, int):
            return _pair(self.size)
        long_side, short_side = frames.larger(height, width), frames.smaller(height, width)
        short, long = self.size, self.size * long_side // short_side
        if self.max_size is not None:
            shrunk = frames.larger(1, self.max_size * short // long)
            short = where(long > self.max_size, shrunk, short)
            long = frames.smaller(long, self.max_size)
        return where(height > width, long, short), where(height > width, short, long)


@dataclasses.dataclass(frozen=True)
class ResizeCenterCrop(_Sized):
    """The usual evaluation: resized to cover size / crop_pct, aspect ratio kept, central crop.

    Args:
        size: Of the output, pixels: an int for a square, or (height, width).
        crop_pct: Share of the resized short side that the crop keeps; 0.875 is 224 of 256.
        interpolation: "bilinear", "bicubic", "area" or "nearest"; antialiased.

    Source: timm 1.0, ``transforms_imagenet_eval`` (``scale_size = floor(img_size / crop_pct)``;
    ``ResizeKeepRatio`` for sizes that are not square).
    """

    crop_pct: float = 0.875
    interpolation: str = "bilinear"

    draws = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_interpolation(self.interpolation)
        if not is_number(self.crop_pct) or not 0 < self.crop_pct <= 1:
            raise OptionError(f"crop_pct={self.crop_pct}: expected 0 < crop_pct <= 1")

    def frame(self, height: Integer, width: Integer, u: Uniforms) -> Frame:
        """Frame of an upright image of this size."""
        high, broad = (math.floor(side / self.crop_pct) for side in self.output_size)
        if high == broad:
            size = Resize(high).compute_size(height, width)
        else:  # the smallest that covers both sides
            ratio = frames.smaller(height / high, width / broad)
            size = round_half_even(height / ratio), round_half_even(width / ratio)
        return _centred(height, width, *size, self.output_size)


@dataclasses.dataclass(frozen=True)
class RandomCrop(_Sized):
    """A box of a fixed size at a random place, not resized; black beyond the border.

    Args:
        size: Pixels: an int for a square, or (height, width).
        padding: Pixels of border added on all sides first. If the image is then n columns too
            narrow, n more are added on the left and n on the right; rows alike, as with
            torchvision's ``pad_if_needed``.
    """

    padding: int = 0

    draws = 2
    interpolation = "nearest"  # nothing is resized

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_whole(self.padding) or self.padding < 0:
            raise OptionError(f"padding={self.padding!r}: expected 0 or more pixels")

    def frame(self, height: Integer, width: Integer, u: Uniforms) -> Frame:
        """Frame of an upright image of this size, for 2 random numbers."""
        high, broad = self.output_size
        top = self._place(height, high, u[0])
        left = self._place(width, broad, u[1])
        return Frame(0, 0, height, width, height, width, top, left, high, broad)

    def _place(self, length: Integer, size: int, u: Real) -> Integer:
        border = self.border(length, size)
        return truncate(u * (length + 2 * border - size + 1)) - border

    def border(self, length: Integer, size: int) -> Any:
        """Pixels of border before and behind a side of an image."""
        return self.padding + frames.larger(0, size - length - 2 * self.padding)


def _centred(
    height: Integer, width: Integer, to_height: Integer, to_width: Integer, size: tuple[int, int]
) -> Frame:
    """The central ``size`` of an image resized to ``to_height, to_width``."""
    top, left = _margin(to_height, size[0]), _margin(to_width, size[1])
    return Frame(0, 0, height, width, to_height, to_width, top, left, *size)


def _margin(length: Integer, size: int) -> Integer:
    """Rows before the central ``size`` rows; negative: rows of border before them.

    Source: torchvision 0.28, ``center_crop`` (odd margins: half to even; odd borders: less before).
    """
    return where(length < size, -((size - length) // 2), round_half_even((length - size) / 2))


def accept_crop(crop: Any) -> Geometry | None:
    """A crop as a geometry: packio's own as it is, torchvision's as the same crop of packio's."""
    if crop is None or (isinstance(crop, Geometry) and not isinstance(crop, type)):
        return crop
    name = type(crop).__name__
    if type(crop).__module__.startswith("torchvision.transforms") and name in _TORCHVISIONS:
        if getattr(crop, "antialias", None) is False:
            raise OptionError(f"crop={crop!r}: packio resizes with antialias=True")
        return _TORCHVISIONS[name](crop)
    given = crop.__name__ if isinstance(crop, type) else repr(crop)
    raise OptionError(
        f"crop={given}: expected an object such as packio.RandomResizedCrop(224), or torchvision's "
        f"{', '.join(_TORCHVISIONS)}"
    )


def _how(crop: Any) -> str:
    how = crop.interpolation
    return how if isinstance(how, str) else str(how.value)


def _random_crop(crop: Any) -> RandomCrop:
    padding = crop.padding or 0
    sides = {padding} if isinstance(padding, int) else set(padding)
    if len(sides) > 1 or crop.fill != 0 or crop.padding_mode != "constant":
        raise OptionError(f"crop={crop!r}: packio pads all sides alike, with black")
    return RandomCrop(tuple(crop.size), sides.pop())


def _resize(crop: Any) -> Resize:
    size = crop.size if isinstance(crop.size, (list, tuple)) else [crop.size]
    return Resize(size[0] if len(size) == 1 else (size[0], size[1]), crop.max_size, _how(crop))


_TORCHVISIONS: dict[str, Callable[[Any], Geometry]] = {
    "RandomResizedCrop": lambda c: RandomResizedCrop(
        tuple(c.size), tuple(c.scale), tuple(c.ratio), _how(c)
    ),
    "CenterCrop": lambda c: CenterCrop(tuple(c.size)),
    "RandomCrop": _random_crop,
    "Resize": _resize,
}
