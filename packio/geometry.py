"""Crops, flips and resizing: boxes from sizes and random numbers, then pixels from boxes.

A geometry turns the sizes of some images, as the index has them, and some random numbers into
*frames*: which box of each upright image to take, the size to resize it to, and where the result
lies on the output. No pixel is needed for that, so reading can be planned before decoding.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple, Protocol

import numpy as np
import torch

from packio import tensors
from packio.errors import OptionError

INTERPOLATIONS = ("bilinear", "bicubic", "area", "nearest")


class Frames(NamedTuple):
    """One frame for each of N images; int64 arrays of pixels, in upright coordinates.

    The box ``top, left, height, width`` of the image is resized to ``to_height, to_width``; pixel
    (y, x) of the output is pixel ``(y + out_top, x + out_left)`` of that, black outside of it.
    """

    top: np.ndarray
    left: np.ndarray
    height: np.ndarray
    width: np.ndarray
    to_height: np.ndarray
    to_width: np.ndarray
    out_top: np.ndarray
    out_left: np.ndarray
    out_height: np.ndarray
    out_width: np.ndarray


class Frame(NamedTuple):
    """One row of `Frames`, as plain ints."""

    top: int
    left: int
    height: int
    width: int
    to_height: int
    to_width: int
    out_top: int
    out_left: int
    out_height: int
    out_width: int


class Geometry(Protocol):
    """What crops and resizes: `draws` numbers an image, its frames, and how to interpolate."""

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

    def frames(self, height: np.ndarray, width: np.ndarray, u: np.ndarray) -> Frames:
        """Frames of images of these sizes, for (N, draws) random numbers in [0, 1)."""
        ...


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
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

    size: int | tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    interpolation: str = "bilinear"

    draws = 22  # ten tries of area and ratio, then the position

    def __post_init__(self) -> None:
        _pair(self.size)
        _check_interpolation(self.interpolation)
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise OptionError(f"scale={self.scale!r}: expected 0 < low <= high <= 1")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise OptionError(f"ratio={self.ratio!r}: expected 0 < low <= high")

    @property
    def output_size(self) -> tuple[int, int]:
        """(height, width) of every output."""
        return _pair(self.size)

    def frames(self, height: np.ndarray, width: np.ndarray, u: np.ndarray) -> Frames:
        """Frames of images of these sizes, for (N, 22) random numbers."""
        low, high = self.scale
        log_low, log_high = math.log(self.ratio[0]), math.log(self.ratio[1])
        root = np.sqrt((u[:, :10] * (high - low) + low) * (height * width)[:, None])
        stretch = np.exp(u[:, 10:20] * ((log_high - log_low) / 2) + log_low / 2)
        box = np.rint(np.stack((root / stretch, root * stretch))).astype(np.int64)
        limits = np.stack((height, width))[:, :, None]
        fits = ((box > 0) & (box <= limits)).all(axis=0)
        first = fits.argmax(axis=1)
        rows = np.arange(len(first))
        chosen = box[:, rows, first]
        failed = ~fits[rows, first]
        if failed.any():
            chosen[:, failed] = self._central(height[failed], width[failed])
        spare = limits[:, :, 0] - chosen
        position = (u[:, 20:22].T * (spare + 1)).astype(np.int64)
        if failed.any():
            position[:, failed] = spare[:, failed] // 2
        return _resized(position[0], position[1], chosen[0], chosen[1], self.output_size)

    def _central(self, height: np.ndarray, width: np.ndarray) -> np.ndarray:
        narrow = width / height < self.ratio[0]
        wide = width / height > self.ratio[1]
        high = np.where(narrow, np.rint(width / self.ratio[0]), height)
        broad = np.where(wide, np.rint(height * self.ratio[1]), width)
        return np.stack((np.clip(high, 1, height), np.clip(broad, 1, width))).astype(np.int64)


@dataclasses.dataclass(frozen=True)
class CenterCrop:
    """The central box of a fixed size, not resized; smaller images get a black border.

    Args:
        size: Pixels: an int for a square, or (height, width).

    Source: torchvision 0.28, ``transforms.functional.center_crop`` (rounding of odd margins).
    """

    size: int | tuple[int, int]
    interpolation: str = dataclasses.field(default="nearest", init=False, repr=False)

    draws = 0

    def __post_init__(self) -> None:
        _pair(self.size)

    @property
    def output_size(self) -> tuple[int, int]:
        """(height, width) of every output."""
        return _pair(self.size)

    def frames(self, height: np.ndarray, width: np.ndarray, u: np.ndarray) -> Frames:
        """Frames of images of these sizes; no random numbers are used."""
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

    size: int | tuple[int, int]
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

    def frames(self, height: np.ndarray, width: np.ndarray, u: np.ndarray) -> Frames:
        """Frames of images of these sizes; no random numbers are used."""
        to_height, to_width = self._target(height, width)
        zero = np.zeros_like(height)
        return Frames(zero, zero, height, width, to_height, to_width, zero, zero, to_height, to_width)

    def _target(self, height: np.ndarray, width: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if not isinstance(self.size, int):
            return np.full_like(height, self.size[0]), np.full_like(width, self.size[1])
        short, long = np.minimum(height, width), np.maximum(height, width)
        to_short = np.full_like(short, self.size)
        to_long = self.size * long // short
        if self.max_size is not None:
            over = to_long > self.max_size
            to_short = np.where(over, np.maximum(1, self.max_size * to_short // to_long), to_short)
            to_long = np.where(over, self.max_size, to_long)
        tall = height >= width
        return np.where(tall, to_long, to_short), np.where(tall, to_short, to_long)


@dataclasses.dataclass(frozen=True)
class ResizeCenterCrop:
    """The usual evaluation: short side to size / crop_pct, then the central crop.

    Args:
        size: Of the output, pixels: an int for a square, or (height, width).
        crop_pct: Share of the resized short side that the crop keeps; 0.875 is 224 of 256.
        interpolation: "bilinear", "bicubic", "area" or "nearest"; antialiased.

    Source: timm 1.0, ``transforms_imagenet_eval`` (``scale_size = floor(img_size / crop_pct)``).
    """

    size: int | tuple[int, int]
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

    def frames(self, height: np.ndarray, width: np.ndarray, u: np.ndarray) -> Frames:
        """Frames of images of these sizes; no random numbers are used."""
        high, broad = self.output_size
        if high == broad:
            target = Resize(math.floor(high / self.crop_pct))
        else:
            target = Resize((math.floor(high / self.crop_pct), math.floor(broad / self.crop_pct)))
        to_height, to_width = target._target(height, width)  # noqa: SLF001 (same module)
        return _centred(height, width, to_height, to_width, self.output_size)


@dataclasses.dataclass(frozen=True)
class RandomCrop:
    """A box of a fixed size at a random place, not resized; black beyond the border.

    Args:
        size: Pixels: an int for a square, or (height, width).
        padding: Pixels of border added on all sides first; smaller images get as much as they need.
    """

    size: int | tuple[int, int]
    padding: int = 0
    interpolation: str = dataclasses.field(default="nearest", init=False, repr=False)

    draws = 2

    def __post_init__(self) -> None:
        _pair(self.size)
        if self.padding < 0:
            raise OptionError(f"padding={self.padding}: expected 0 or more pixels")

    @property
    def output_size(self) -> tuple[int, int]:
        """(height, width) of every output."""
        return _pair(self.size)

    def frames(self, height: np.ndarray, width: np.ndarray, u: np.ndarray) -> Frames:
        """Frames of images of these sizes, for (N, 2) random numbers."""
        high, broad = self.output_size
        border_y = self.padding + np.maximum(0, high - height - 2 * self.padding)
        border_x = self.padding + np.maximum(0, broad - width - 2 * self.padding)
        y = (u[:, 0] * (height + 2 * border_y - high + 1)).astype(np.int64) - border_y
        x = (u[:, 1] * (width + 2 * border_x - broad + 1)).astype(np.int64) - border_x
        return _cut(height, width, height, width, y, x, self.output_size)


def _resized(
    top: np.ndarray, left: np.ndarray, height: np.ndarray, width: np.ndarray, size: tuple[int, int]
) -> Frames:
    zero = np.zeros_like(top)
    high, broad = zero + size[0], zero + size[1]
    return Frames(top, left, height, width, high, broad, zero, zero, high, broad)


def _centred(
    height: np.ndarray,
    width: np.ndarray,
    to_height: np.ndarray,
    to_width: np.ndarray,
    size: tuple[int, int],
) -> Frames:
    """The central ``size`` of each image resized to ``to_height, to_width``."""
    y, x = _margin(to_height, size[0]), _margin(to_width, size[1])
    return _cut(height, width, to_height, to_width, y, x, size)


def _margin(length: np.ndarray, size: int) -> np.ndarray:
    """Rows before the central ``size``; negative: rows of border. Halves go to even, as Python's."""
    padding = -(np.maximum(size - length, 0) // 2)
    return np.where(length < size, padding, np.rint((length - size) / 2).astype(np.int64))


def _cut(
    height: np.ndarray,
    width: np.ndarray,
    to_height: np.ndarray,
    to_width: np.ndarray,
    y: np.ndarray,
    x: np.ndarray,
    size: tuple[int, int],
) -> Frames:
    zero = np.zeros_like(height)
    high, broad = zero + size[0], zero + size[1]
    return Frames(zero, zero, height, width, to_height, to_width, y, x, high, broad)


def whole(height: np.ndarray, width: np.ndarray) -> Frames:
    """Frames that take each image as it is."""
    zero = np.zeros_like(height)
    return Frames(zero, zero, height, width, height, width, zero, zero, height, width)


def upright_sizes(
    height: np.ndarray, width: np.ndarray, orientation: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Sizes after orientation: 5..8 exchange height and width."""
    turned = orientation >= 5
    return np.where(turned, width, height), np.where(turned, height, width)


def oriented(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Turn stored pixels upright.

    Args:
        pixels: (H, W, C), as stored.
        orientation: 1..8.

    Returns:
        (H, W, C), C-contiguous; the same array for orientation 1.

    Source: Exif 2.32, table 4, tag 0112.
    """
    if orientation == 1:
        return pixels
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


def render(
    pixels: np.ndarray, frame: Frame, out: np.ndarray, *, hflip: bool, vflip: bool, how: str
) -> None:
    """Write one frame of an image.

    Args:
        pixels: (H, W, C), upright.
        frame: What to take of it.
        out: (C, out_height, out_width) of the same dtype, contiguous; all of it is written.
        hflip, vflip: Mirror the result left-right, top-bottom.
        how: Interpolation.
    """
    f = frame
    box = pixels[f.top : f.top + f.height, f.left : f.left + f.width]
    fills = (f.out_top, f.out_left, f.out_height, f.out_width) == (0, 0, f.to_height, f.to_width)
    if (f.height, f.width) != (f.to_height, f.to_width):
        target = out if fills else np.empty((out.shape[0], f.to_height, f.to_width), out.dtype)
        resize(torch.from_numpy(box).permute(2, 0, 1), torch.from_numpy(target), how)
        box = target.transpose(1, 2, 0)
    elif fills:
        tensors.to_planes(box, out)
    if not fills:
        _place(box, f, out)
    if hflip or vflip:
        planes = torch.from_numpy(out)
        planes.copy_(planes.flip([d for d, on in ((1, vflip), (2, hflip)) if on]))


def _place(pixels: np.ndarray, frame: Frame, out: np.ndarray) -> None:
    """Cut (H, W, C) pixels to the frame's output, or pad them with black."""
    f = frame
    top, left = max(f.out_top, 0), max(f.out_left, 0)
    inner = pixels[top : f.out_top + f.out_height, left : f.out_left + f.out_width]
    if inner.shape[:2] == (f.out_height, f.out_width):
        tensors.to_planes(inner, out)
        return
    y, x = top - f.out_top, left - f.out_left
    out[...] = 0
    out[:, y : y + inner.shape[0], x : x + inner.shape[1]] = inner.transpose(2, 0, 1)


def resize(source: torch.Tensor, out: torch.Tensor, how: str) -> torch.Tensor:
    """Resize (C, h, w) into ``out`` (C, H, W) and return it; values as torchvision v2 on tensors.

    The kernel of uint8 reads interleaved pixels and writes planes, so no transpose is needed:
    250 µs for 375 x 500 to 224 x 224, against 260 with a copy after it and 970 with Pillow.
    """
    if source.shape == out.shape:
        return out.copy_(source)
    size = list(out.shape[1:])
    batch, target = source.unsqueeze(0), out.unsqueeze(0)
    antialiased = {
        "bilinear": torch.ops.aten._upsample_bilinear2d_aa.out,  # noqa: SLF001 (interpolate's own)
        "bicubic": torch.ops.aten._upsample_bicubic2d_aa.out,  # noqa: SLF001
    }
    if how in antialiased and source.dtype in (torch.uint8, torch.float32):
        antialiased[how](batch, size, False, None, None, out=target)  # noqa: FBT003 (align_corners)
        return out
    if how == "nearest" and source.dtype != torch.uint16:
        out.copy_(torch.nn.functional.interpolate(batch, size, mode="nearest")[0])
        return out
    return out.copy_(_resize_as_float(batch, size, how)[0])


def _resize_as_float(batch: torch.Tensor, size: list[int], how: str) -> torch.Tensor:
    values = batch.to(torch.float32)
    antialias = how in ("bilinear", "bicubic")
    values = torch.nn.functional.interpolate(values, size, mode=how, antialias=antialias)
    if batch.dtype == torch.float32:
        return values
    limit = 255 if batch.dtype == torch.uint8 else 65535
    return values.round_().clamp_(0, limit).to(torch.int32).to(batch.dtype)
