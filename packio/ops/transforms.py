"""Random changes of images, one each: colours, blurs, rotations, as torchvision names them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from packio.errors import OptionError, TransformError
from packio.images.geometry import as_numbers, check_probability, is_number
from packio.ops import program
from packio.ops.transform import (
    Fill,
    Transform,
    as_interpolation,
    check_center,
    colour_of,
)  # fmt: skip
from packio.ops.warps import affine_coefficients, perspective_coefficients, rotation_coefficients

Range = float | Sequence[float]


@dataclasses.dataclass(frozen=True)
class ColorJitter(Transform):
    """Change brightness, contrast, saturation and hue in a random order, as torchvision's.

    Args:
        brightness, contrast, saturation: A factor is drawn from 1 - x to 1 + x, or from (least,
            most): 0.4 means 0.6 to 1.4, 0 changes nothing.
        hue: A shift is drawn from -x to x, or from (least, most), within -0.5..0.5.

    Raises:
        OptionError: a range is none of these.
    """

    brightness: Range = 0.0
    contrast: Range = 0.0
    saturation: Range = 0.0
    hue: Range = 0.0
    draws = 8

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            object.__setattr__(self, name, _range(name, getattr(self, name), 1.0, 0.0, math.inf))
        object.__setattr__(self, "hue", _range("hue", self.hue, 0.0, -0.5, 0.5))

    def operations(self, u: Sequence[float], channels: int, height: int, width: int) -> list[bytes]:
        """Plan what is done to one image: see `Transform`."""
        made = []
        for i in sorted(range(4), key=u.__getitem__):
            name = ("brightness", "contrast", "saturation", "hue")[i]
            least, most = getattr(self, name)
            value = least + (most - least) * u[4 + i]
            if (least, most) == (name != "hue", name != "hue"):
                continue
            if name == "hue":
                made.append(program.pack("hue", int(value * 255) % 256))
            else:
                made.append(program.pack(name, value))
        return made


class _Sometimes(Transform):
    """A transform that is done with a probability, and draws nothing else."""

    p: float
    draws = 1
    _name = ""  # of the operation
    _value = ""  # the attribute that it takes

    def __post_init__(self) -> None:
        check_probability("p", self.p)
        value = getattr(self, self._value) if self._value else 0
        if not is_number(value):
            raise OptionError(f"{type(self).__name__}: {self._value}={value!r}; expected a number")

    def operations(self, u: Sequence[float], channels: int, height: int, width: int) -> list[bytes]:
        """Plan what is done to one image: see `Transform`."""
        values = [getattr(self, self._value)] if self._value else []
        return [program.pack(self._name, *values)] if u[0] < self.p else []


@dataclasses.dataclass(frozen=True)
class RandomHorizontalFlip(_Sometimes):
    """Mirror an image left-right with a probability, as torchvision's.

    Behind a crop a dataset's ``hflip=`` does the same, and masks and boxes follow it.
    """

    p: float = 0.5
    _name = "hflip"


@dataclasses.dataclass(frozen=True)
class RandomVerticalFlip(_Sometimes):
    """Mirror an image top-bottom with a probability, as torchvision's."""

    p: float = 0.5
    _name = "vflip"


@dataclasses.dataclass(frozen=True)
class RandomGrayscale(_Sometimes):
    """Make an image gray with a probability, as torchvision's: three planes stay."""

    p: float = 0.1
    _name = "grayscale"


@dataclasses.dataclass(frozen=True)
class RandomInvert(_Sometimes):
    """Invert an image with a probability, as torchvision's."""

    p: float = 0.5
    _name = "invert"


@dataclasses.dataclass(frozen=True)
class RandomEqualize(_Sometimes):
    """Equalize the histogram of each channel with a probability, as torchvision's."""

    p: float = 0.5
    _name = "equalize"


@dataclasses.dataclass(frozen=True)
class RandomAutocontrast(_Sometimes):
    """Stretch each channel to 0..255 with a probability, as torchvision's."""

    p: float = 0.5
    _name = "autocontrast"


@dataclasses.dataclass(frozen=True)
class RandomPosterize(_Sometimes):
    """Keep some bits of each value with a probability, as torchvision's.

    Args:
        bits: That are kept, 0 to 8.
        p: Probability.
    """

    bits: int = 4
    p: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bits not in range(9):
            raise OptionError(f"RandomPosterize: bits={self.bits!r}; expected 0 to 8")

    _name, _value = "posterize", "bits"


@dataclasses.dataclass(frozen=True)
class RandomSolarize(_Sometimes):
    """Invert values from a threshold on with a probability, as torchvision's.

    Args:
        threshold: Values below stay, 0 to 256.
        p: Probability.
    """

    threshold: float = 128.0
    p: float = 0.5
    _name, _value = "solarize", "threshold"


@dataclasses.dataclass(frozen=True)
class RandomAdjustSharpness(_Sometimes):
    """Sharpen or smooth an image with a probability, as torchvision's.

    Args:
        sharpness_factor: 0 smoothes, 1 changes nothing, 2 sharpens.
        p: Probability.
    """

    sharpness_factor: float = 2.0
    p: float = 0.5
    _name, _value = "sharpness", "sharpness_factor"


@dataclasses.dataclass(frozen=True)
class GaussianBlur(Transform):
    """Blur by a Gaussian of a random sigma: torchvision's kernel, or Pillow's boxes.

    Args:
        kernel_size: Side of torchvision's kernel in pixels, odd, or (width, height), as 23 for
            SimCLR's crops of 224. None: Pillow's ``ImageFilter.GaussianBlur(radius=sigma)``, three
            box blurs, as in DINO and timm.
        sigma: Drawn from (least, most), in pixels; or one number.

    Raises:
        OptionError: a value is none of these.
    """

    kernel_size: int | Sequence[int] | None = None
    sigma: Range = (0.1, 2.0)
    draws = 1

    def __post_init__(self) -> None:
        given = self.sigma if isinstance(self.sigma, (list, tuple)) else (self.sigma, self.sigma)
        sigmas = as_numbers(given, 2)
        if sigmas is None or not 0 < sigmas[0] <= sigmas[1]:
            raise OptionError(f"sigma={self.sigma!r}: expected (least, most), above 0")
        object.__setattr__(self, "sigma", sigmas)
        size = self.kernel_size
        if size is not None:
            pair = tuple(size) if isinstance(size, (list, tuple)) else (size, size)
            if len(pair) != 2 or not all(isinstance(n, int) and n > 0 and n % 2 for n in pair):
                raise OptionError(f"kernel_size={size!r}: expected odd numbers of pixels")
            object.__setattr__(self, "kernel_size", pair)

    def operations(self, u: Sequence[float], channels: int, height: int, width: int) -> list[bytes]:
        """Plan what is done to one image: see `Transform`."""
        sigma = _between(self.sigma, u[0])
        if self.kernel_size is None:
            return [program.pack("gaussian_blur", sigma)]
        across, down = self.kernel_size  # type: ignore[misc]  # the same
        if across // 2 >= width or down // 2 >= height:
            raise TransformError(
                f"{self}: an image of {width} x {height} pixels; the kernel's half must be smaller"
            )
        return [program.pack("kernel_blur", across, down, sigma, sigma)]


@dataclasses.dataclass(frozen=True)
class RandomRotation(Transform):
    """Rotate by a random angle, as torchvision's, into an image of the same size.

    Args:
        degrees: Drawn from -x to x, or from (least, most); counter-clockwise.
        interpolation, fill: See `packio.RandAugment`.
        center: (x, y) in pixels; None: the middle.

    Raises:
        OptionError: a value is none of these.
    """

    degrees: Range
    interpolation: str = "nearest"
    center: Sequence[float] | None = None
    fill: Fill = 0
    draws = 1

    def __post_init__(self) -> None:
        least = -math.inf
        object.__setattr__(self, "degrees", _range("degrees", self.degrees, 0.0, least, math.inf))
        object.__setattr__(self, "interpolation", as_interpolation(self.interpolation))
        check_center(self.center)
        colour_of(self.fill)

    def operations(self, u: Sequence[float], channels: int, height: int, width: int) -> list[bytes]:
        """Plan what is done to one image: see `Transform`."""
        angle = _between(self.degrees, u[0])
        matrix = rotation_coefficients(height, width, angle, self.center)
        return [_warp("affine", matrix, self)]


@dataclasses.dataclass(frozen=True)
class RandomAffine(Transform):
    """Rotate, move, scale and shear at random, as torchvision's.

    Args:
        degrees: As of `RandomRotation`.
        translate: The largest moves, as shares of width and height; None: none.
        scale: (least, most) factor; None: 1.
        shear: Degrees along x: from -x to x, or (least, most), or (x least, x most, y least, y
            most); None: none.
        interpolation, fill, center: See `RandomRotation`.

    Raises:
        OptionError: a value is none of these.
    """

    degrees: Range
    translate: Sequence[float] | None = None
    scale: Sequence[float] | None = None
    shear: Range | None = None
    interpolation: str = "nearest"
    fill: Fill = 0
    center: Sequence[float] | None = None
    draws = 6

    def __post_init__(self) -> None:
        every = -math.inf, math.inf
        object.__setattr__(self, "degrees", _range("degrees", self.degrees, 0.0, *every))
        object.__setattr__(self, "interpolation", as_interpolation(self.interpolation))
        shares = (0.0, 0.0) if self.translate is None else as_numbers(self.translate, 2)
        if shares is None or not all(0 <= share <= 1 for share in shares):
            raise OptionError(f"translate={self.translate!r}: expected two shares in 0..1")
        scales = (1.0, 1.0) if self.scale is None else as_numbers(self.scale, 2)
        if scales is None or not 0 < scales[0] <= scales[1] < math.inf:
            raise OptionError(f"scale={self.scale!r}: expected (least, most), above 0")
        check_center(self.center)
        four = as_numbers(self.shear, 4)
        if four is not None:
            object.__setattr__(self, "shear", four)
        elif self.shear is not None:
            pair = _range("shear", self.shear, 0.0, *every)
            object.__setattr__(self, "shear", (*pair, 0.0, 0.0))
        colour_of(self.fill)

    def operations(self, u: Sequence[float], channels: int, height: int, width: int) -> list[bytes]:
        """Plan what is done to one image: see `Transform`."""
        angle, move, scale, shear = _between(self.degrees, u[0]), (0, 0), 1.0, (0.0, 0.0)
        if self.translate is not None:
            most = self.translate[0] * width, self.translate[1] * height
            x, y = (_between((-m, m), number) for m, number in zip(most, u[1:3], strict=True))
            move = round(x), round(y)
        if self.scale is not None:
            scale = _between(self.scale, u[3])
        if self.shear is not None:
            x_least, x_most, y_least, y_most = self.shear  # type: ignore[misc]  # made so
            shear = _between((x_least, x_most), u[4]), _between((y_least, y_most), u[5])
        matrix = affine_coefficients(height, width, angle, move, scale, shear, self.center)
        return [_warp("affine", matrix, self)]


@dataclasses.dataclass(frozen=True)
class RandomPerspective(Transform):
    """Move the corners of an image at random with a probability, as torchvision's.

    Args:
        distortion_scale: How far, 0 to 1.
        p: Probability.
        interpolation, fill: See `packio.RandAugment`.

    Raises:
        OptionError: a value is none of these.
    """

    distortion_scale: float = 0.5
    p: float = 0.5
    interpolation: str = "bilinear"
    fill: Fill = 0
    draws = 9

    def __post_init__(self) -> None:
        check_probability("p", self.p)
        object.__setattr__(self, "interpolation", as_interpolation(self.interpolation))
        if not is_number(self.distortion_scale) or not 0 <= self.distortion_scale <= 1:
            raise OptionError(f"distortion_scale={self.distortion_scale!r}: expected 0 to 1")
        colour_of(self.fill)

    def operations(self, u: Sequence[float], channels: int, height: int, width: int) -> list[bytes]:
        """Plan what is done to one image: see `Transform`."""
        if u[0] >= self.p:
            return []
        across = int(self.distortion_scale * (width // 2)) + 1
        down = int(self.distortion_scale * (height // 2)) + 1
        right, bottom = width - 1, height - 1
        x = [int(number * across) for number in u[1:5]]
        y = [int(number * down) for number in u[5:9]]
        ends = [(x[0], y[0]), (right - x[1], y[1]), (right - x[2], bottom - y[2]),
                (x[3], bottom - y[3])]  # fmt: skip
        starts = [(0, 0), (right, 0), (right, bottom), (0, bottom)]
        return [_warp("perspective", perspective_coefficients(starts, ends), self)]


def _between(pair: Any, number: float) -> float:
    """The number of a range that one of 0..1 stands for."""
    return float(pair[0] + (pair[1] - pair[0]) * number)


def _warp(name: str, coefficients: Sequence[float], transform: Any) -> bytes:
    fill = colour_of(transform.fill)
    return program.pack(name, *coefficients, *fill, interpolation=transform.interpolation)


def _range(name: str, given: Any, centre: float, least: float, most: float) -> tuple[float, float]:
    """Take a range: x is from centre - x to centre + x, no less than ``least``; or two numbers."""
    pair = as_numbers(given, 2)
    if pair is not None:
        pass
    elif is_number(given) and given >= 0:
        pair = centre - float(given), centre + float(given)
        if name != "hue":
            pair = max(pair[0], least), pair[1]
    else:
        raise OptionError(f"{name}={given!r}: expected a number of 0 or more, or (least, most)")
    if not least <= pair[0] <= pair[1] <= most or any(map(math.isnan, pair)):
        raise OptionError(f"{name}={given!r}: expected (least, most) within {least} to {most}")
    return pair[0], pair[1]
