"""Functions that change the values of pixels: brightness, hue, equalize and the like.

Each gives the pixels of Pillow 13, as torchvision 0.28 and timm 1.0 get them from an image of
Pillow: ``PIL.ImageEnhance``, ``PIL.ImageOps`` and ``Image.convert``. torchvision's own functions of
tensors round in other ways.
"""

from __future__ import annotations

import math
import numbers
from typing import TYPE_CHECKING, Any

from packio.errors import OptionError
from packio.ops.program import run_one

if TYPE_CHECKING:
    import torch

_LARGEST = 3.4e38  # a factor is a float32


def brightness(images: torch.Tensor, factor: float) -> torch.Tensor:
    """Change the brightness: 0 gives black, 1 the image, 2 twice the values.

    Args:
        images: (C, H, W) or (N, C, H, W) uint8 on the processor, C 1 or 3: gray, or RGB.
        factor: Any number; results are clipped to 0..255.

    Returns:
        A new tensor of the same shape. Source: ``ImageEnhance.Brightness`` of Pillow,
        ``adjust_brightness`` of torchvision.

    Raises:
        OptionError: these are no such images, or no such number.
        MissingPackageError: the native core was not compiled.
    """
    return run_one(images, "brightness", _factor("brightness", factor))


def contrast(images: torch.Tensor, factor: float) -> torch.Tensor:
    """Change the contrast: 0 gives the mean of an image's gray values, 1 the image.

    Args, Returns and Raises: see `brightness`. Source: ``ImageEnhance.Contrast`` of Pillow,
    ``adjust_contrast`` of torchvision.
    """
    return run_one(images, "contrast", _factor("contrast", factor))


def saturation(images: torch.Tensor, factor: float) -> torch.Tensor:
    """Change the saturation: 0 gives gray values, 1 the image. Gray images stay as they are.

    Args, Returns and Raises: see `brightness`. Source: ``ImageEnhance.Color`` of Pillow,
    ``adjust_saturation`` of torchvision.
    """
    return run_one(images, "saturation", _factor("saturation", factor))


def hue(images: torch.Tensor, factor: float) -> torch.Tensor:
    """Turn the hue by a part of the circle. Gray images stay as they are.

    Colours change a little even by 0, as hue and saturation are rounded to bytes.

    Args:
        images: See `brightness`.
        factor: -0.5 to 0.5. ``int(factor * 255)`` is added to H of HSV, a byte.

    Returns:
        A new tensor of the same shape. Source: ``Image.convert`` of Pillow, to "HSV" and back;
        ``adjust_hue`` of torchvision.

    Raises:
        OptionError: these are no such images, or no such number.
        MissingPackageError: the native core was not compiled.
    """
    if not -0.5 <= _number("hue", "factor", factor) <= 0.5:
        raise OptionError(f"packio.ops.hue: factor={factor!r}; expected -0.5 to 0.5")
    return run_one(images, "hue", int(factor * 255) % 256)


def grayscale(images: torch.Tensor) -> torch.Tensor:
    """Make all three channels gray: 0.299 R + 0.587 G + 0.114 B. Gray images stay as they are.

    Args, Returns and Raises: see `brightness`. Source: ``Image.convert("L")`` of Pillow,
    ``rgb_to_grayscale`` of torchvision with three output channels; weights of ITU-R BT.601.
    """
    return run_one(images, "grayscale")


def invert(images: torch.Tensor) -> torch.Tensor:
    """Invert the values: 255 minus each.

    Args, Returns and Raises: see `brightness`. Source: ``ImageOps.invert`` of Pillow.
    """
    return run_one(images, "invert")


def posterize(images: torch.Tensor, bits: int) -> torch.Tensor:
    """Keep the highest bits of each value; the others become 0.

    Args:
        images: See `brightness`.
        bits: 0 to 8. 0 gives black, as Pillow did before it refused 0.

    Returns:
        A new tensor of the same shape. Source: ``ImageOps.posterize`` of Pillow.

    Raises:
        OptionError: these are no such images, or no such number.
        MissingPackageError: the native core was not compiled.
    """
    return run_one(images, "posterize", _whole("posterize", "bits", bits, 0, 8))


def solarize(images: torch.Tensor, threshold: float) -> torch.Tensor:
    """Invert the values from a threshold on; 256 and more changes none.

    Args:
        images: See `brightness`.
        threshold: Any number. Values below it stay as they are.

    Returns:
        A new tensor of the same shape. Source: ``ImageOps.solarize`` of Pillow.

    Raises:
        OptionError: these are no such images, or no such number.
        MissingPackageError: the native core was not compiled.
    """
    return run_one(images, "solarize", _number("solarize", "threshold", threshold))


def solarize_add(images: torch.Tensor, addition: int, threshold: float = 128) -> torch.Tensor:
    """Add a number to the values below a threshold; results are clipped to 0..255.

    Args:
        images: See `brightness`.
        addition: -255 to 255.
        threshold: Any number. Values from it on stay as they are.

    Returns:
        A new tensor of the same shape. Source: ``solarize_add`` of timm.

    Raises:
        OptionError: these are no such images, or no such numbers.
        MissingPackageError: the native core was not compiled.
    """
    more = _whole("solarize_add", "addition", addition, -255, 255)
    below = _number("solarize_add", "threshold", threshold)
    return run_one(images, "solarize_add", more, below)


def equalize(images: torch.Tensor) -> torch.Tensor:
    """Spread the values of each channel of an image so that about as many pixels have each.

    Args, Returns and Raises: see `brightness`. Source: ``ImageOps.equalize`` of Pillow.
    """
    return run_one(images, "equalize")


def autocontrast(images: torch.Tensor) -> torch.Tensor:
    """Stretch the values of each channel of an image: its least becomes 0, its largest 255.

    Args, Returns and Raises: see `brightness`. Source: ``ImageOps.autocontrast`` of Pillow, without
    a cutoff.
    """
    return run_one(images, "autocontrast")


def sharpness(images: torch.Tensor, factor: float) -> torch.Tensor:
    """Change the sharpness: 0 gives the image smoothed, 1 the image, 2 a sharper one.

    The pixels along the border stay as they are.

    Args, Returns and Raises: see `brightness`. Source: ``ImageEnhance.Sharpness`` of Pillow,
    ``adjust_sharpness`` of torchvision.
    """
    return run_one(images, "sharpness", _factor("sharpness", factor))


def _number(function: str, name: str, value: Any) -> float:
    """Check that an argument is a number, and not NaN."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or math.isnan(value):
        raise OptionError(f"packio.ops.{function}: {name}={value!r}; expected a number")
    return float(value)


def _factor(function: str, factor: float) -> float:
    """Check a factor, which has to fit into a float32."""
    if abs(_number(function, "factor", factor)) > _LARGEST:
        raise OptionError(f"packio.ops.{function}: factor={factor!r}; expected a finite number")
    return float(factor)


def _whole(function: str, name: str, value: Any, least: int, most: int) -> int:
    """Check that an argument is a whole number of a range."""
    is_whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_whole or not least <= value <= most:
        raise OptionError(
            f"packio.ops.{function}: {name}={value!r}; expected a whole number, {least} to {most}"
        )
    return int(value)
