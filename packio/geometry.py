"""Crops, flips and resizing: boxes from sizes and random numbers, then pixels from boxes.

A geometry turns the size of an image, as the index has it, and some random numbers into a *frame*:
which box of the upright image to take, the size to resize it to, and where the result lies on the
output. No pixel is needed for that, so reading can be planned before decoding.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import threading
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from packio import tensors
from packio.errors import OptionError

INTERPOLATIONS = ("bilinear", "bicubic", "area", "nearest")

Size = int | tuple[int, int]


class Numbers(Protocol):
    """Random numbers in [0, 1): a list, or drawn when asked for."""

    def __getitem__(self, i: int, /) -> float:
        """The i-th."""
        ...


class Frame(NamedTuple):
    """What to take of one image; pixels, in upright coordinates.

    The box ``top, left, height, width`` of the image is resized to ``to_height, to_width``; pixel
    (y, x) of the output is pixel ``(y + out_top, x + out_left)`` of that, black outside of it.

    ``ratio`` is how many rows and columns of the box become one, where the sizes do not say it:
    in a part of a frame that is resized, which has some pixels more for its last ones (`shown`).
    """

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
    ratio: tuple[float, float] | None = None

    @property
    def resizes(self) -> bool:
        """Whether the box is resized at all."""
        return self.ratio is not None or self[2:4] != self[4:6]


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


def whole(height: int, width: int) -> Frame:
    """The frame that takes an image as it is."""
    return Frame(0, 0, height, width, height, width, 0, 0, height, width)


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

    Not one tensor more than resizing needs: each takes 2 µs and lets go of the GIL three times,
    which then may be another thread's for a while.

    Args:
        pixels: (H, W, C), upright.
        frame: What to take of it.
        out: (C, out_height, out_width) of the same dtype, contiguous; all of it is written.
        hflip, vflip: Mirror the result left-right, top-bottom.
        how: Interpolation.
    """
    f = frame
    box = pixels[f.top : f.top + f.height, f.left : f.left + f.width]
    if f.resizes:
        box = resize(box, (f.to_height, f.to_width), how, f.ratio)
    if f.out_top == f.out_left == 0 and f[4:6] == f[8:10]:
        tensors.to_planes(box, out, hflip=hflip, vflip=vflip)
    else:
        _place(box, f, out, hflip=hflip, vflip=vflip)


Box = tuple[int, int, int, int]  # top, left, height, width; pixels


def shown(frame: Frame, how: str = "nearest", *, fast: bool = False) -> Frame:
    """The part of a frame that its output shows: the same output of a smaller box, never empty.

    Args:
        frame: Of an upright image.
        how: Interpolation. Of what is resized by "bilinear" or "bicubic" a part is enough, which
            begins where the frame does, so that values stay the same.
        fast: Let it begin elsewhere, where the difference is that of moving the image by a few
            hundredths of a pixel.
    """
    f = frame
    if f.out_top == f.out_left == 0 and f[4:6] == f[8:10]:
        return f
    if f.resizes:
        return _shown_resized(f, _RADIUS[how], fast=fast) if how in _RADIUS else f
    top, left = max(f.out_top, 0), max(f.out_left, 0)
    bottom = min(f.height, f.out_top + f.out_height)
    right = min(f.width, f.out_left + f.out_width)
    if top >= bottom or left >= right:  # the output is all border
        top, left, bottom, right = 0, 0, 1, 1
    height, width = bottom - top, right - left
    return Frame(
        f.top + top, f.left + left, height, width, height, width,
        f.out_top - top, f.out_left - left, f.out_height, f.out_width,
    )  # fmt: skip


_RADIUS = {"bilinear": 1, "bicubic": 2}  # of the filters, pixels of the larger of both images
_NEAR = 0.03  # rows of an image, by which a part may be moved


def _shown_resized(f: Frame, radius: int, *, fast: bool) -> Frame:
    y, height, top, to_height = _reached(
        f.height, f.to_height, f.out_top, f.out_height, radius, fast=fast
    )
    x, width, left, to_width = _reached(
        f.width, f.to_width, f.out_left, f.out_width, radius, fast=fast
    )
    return Frame(
        f.top + y, f.left + x, height, width, to_height, to_width,
        f.out_top - top, f.out_left - left, f.out_height, f.out_width,
        (f.height / f.to_height, f.width / f.to_width),
    )  # fmt: skip


def _reached(
    length: int, to: int, out_start: int, out: int, radius: int, *, fast: bool
) -> tuple[int, int, int, int]:
    """What filters reach of a side that is resized, where only some of the result is shown.

    Returns:
        First pixel and number of pixels of the side; first pixel and number of the result's.

    Source: PyTorch 2.13, ``UpSampleKernel.cpp``, ``_compute_indices_min_size_weights_aa``: pixel i
    of the result is made of those within radius * max(ratio, 1) around (i + 0.5) * ratio.
    """
    first, stop = max(out_start, 0), min(out_start + out, to)
    if first >= stop:  # the output is all border
        return 0, length, 0, to
    if length == to:
        return first, stop - first, first, stop - first
    ratio = length / to
    reach = radius * max(ratio, 1.0)
    end = min(length, int(ratio * (stop - 0.5) + reach + 0.5) + 1)
    last = math.floor(first - reach / ratio) if fast else 0
    for skipped in range(last, 0, -1):
        start = round(skipped * ratio)
        if abs(skipped * ratio - start) < _NEAR and end - start != stop - skipped:
            return start, end - start, skipped, stop - skipped
    if end == stop:  # PyTorch does not resize a side that is as long as it should be
        end, stop = (end + 1, stop) if end < length else (end, stop + 1)
    return 0, end, 0, stop


def stored_box(box: Box, orientation: int, height: int, width: int) -> Box:
    """Where a box of the upright image lies in the stored one.

    Args:
        box: In the upright image.
        orientation: 1..8.
        height, width: Of the stored image.

    Source: as `oriented`, whose steps are undone from the last to the first.
    """
    if orientation == 1:
        return box
    top, left, high, broad = box
    if orientation >= 5:
        height, width = width, height  # of the upright image
    if orientation in (2, 3, 6, 7):
        left = width - left - broad
    if orientation in (3, 4, 7, 8):
        top = height - top - high
    return (left, top, broad, high) if orientation >= 5 else (top, left, high, broad)


def _place(pixels: np.ndarray, frame: Frame, out: np.ndarray, *, hflip: bool, vflip: bool) -> None:
    """Cut (H, W, C) pixels to the frame's output, or pad them with black."""
    f = frame
    top, left = max(f.out_top, 0), max(f.out_left, 0)
    bottom, right = max(f.out_top + f.out_height, 0), max(f.out_left + f.out_width, 0)
    inner = pixels[top:bottom, left:right]
    if inner.shape[:2] == (f.out_height, f.out_width):
        tensors.to_planes(inner, out, hflip=hflip, vflip=vflip)
        return
    y, x = top - f.out_top, left - f.out_left
    out[...] = 0
    out = tensors.mirrored(out, hflip=hflip, vflip=vflip)
    out[:, y : y + inner.shape[0], x : x + inner.shape[1]] = inner.transpose(2, 0, 1)


def resize(
    pixels: np.ndarray, size: tuple[int, int], how: str, ratio: tuple[float, float] | None = None
) -> np.ndarray:
    """Resize (h, w, C) pixels to ``size``, (H, W, C); values as torchvision v2's on tensors.

    The result is this thread's until its next call.

    Args:
        pixels: Interleaved.
        size: (H, W).
        how: Interpolation.
        ratio: Rows and columns that become one, as a `Frame` has it; None: as the sizes say.

    PyTorch's kernel for uint8 is fastest from interleaved pixels to such: 250 x 250 of them to
    224 x 224 take 180 µs, 420 where it writes planes itself. Pillow takes 1,150.
    """
    kernel, scales = _antialiased(how), _scales(ratio)
    if kernel is not None and pixels.dtype == np.uint8:
        resized, planes = _RESIZED.of((*size, pixels.shape[2]))
        pixels = np.ascontiguousarray(pixels)  # else the kernel would copy them, too
        batch = torch.from_numpy(pixels.transpose(2, 0, 1)[None])
        kernel(batch, size, False, *scales, out=planes)  # align_corners
        return resized
    batch = torch.from_numpy(pixels.transpose(2, 0, 1)[None])
    if how == "nearest" and batch.dtype != torch.uint16:
        made = torch.nn.functional.interpolate(batch, list(size), mode="nearest")
    else:
        made = _resize_as_float(batch, list(size), how, scales)
    return made[0].permute(1, 2, 0).numpy()


class _Resized(threading.local):
    """Where a thread resizes to, again and again: to allocate it would take 40 µs an image."""

    def __init__(self) -> None:
        self._pixels = np.empty((0, 0, 0), np.uint8)
        self._planes = torch.empty(0)

    def of(self, shape: tuple[int, int, int]) -> tuple[np.ndarray, torch.Tensor]:
        """(H, W, C) bytes, and the same as a batch of one, (1, C, H, W)."""
        if self._pixels.shape != shape:
            self._pixels = np.empty(shape, np.uint8)
            self._planes = torch.from_numpy(self._pixels).permute(2, 0, 1).unsqueeze(0)
        return self._pixels, self._planes


_RESIZED = _Resized()


def resize_planes(
    planes: torch.Tensor, out: torch.Tensor, how: str, ratio: tuple[float, float] | None = None
) -> None:
    """Resize (C, h, w) uint8 planes of any device into ``out`` (C, H, W) float32, not rounded.

    For ``how`` and ``ratio`` see `resize`.
    """
    batch = planes.unsqueeze(0).to(torch.float32, memory_format=torch.contiguous_format)
    size = [out.shape[1], out.shape[2]]
    kernel, (rows, columns) = _antialiased(how), _scales(ratio)
    if kernel is None:
        out.copy_(_resize_as_float(batch, size, how, (rows, columns))[0])
        return
    if how == "bicubic":  # its values leave 0..255; in bytes they cannot between the two passes
        batch = kernel(batch, [batch.shape[2], size[1]], False, None, columns).clamp_(0, 255)
        columns = None
    kernel(batch, size, False, rows, columns, out=out.unsqueeze(0))  # align_corners


def nearest(length: int, to: int) -> np.ndarray:
    """Pixels that are taken of a side when it is resized to the nearest: (to,) int64.

    Source: PyTorch's ``interpolate(mode="nearest")``, which torchvision v2 resizes masks by:
    the floor of place times ratio, in single precision.
    """
    ratio = np.float32(length) / np.float32(to)
    places = (np.arange(to, dtype=np.float32) * ratio).astype(np.int64)
    taken: np.ndarray = np.minimum(places, length - 1)
    return taken


@functools.cache  # functions: the same in every process
def _antialiased(how: str) -> Any:
    """What torch.nn.functional.interpolate calls for antialias=True, which takes no ``out``."""
    kernels = torch._C._nn  # noqa: SLF001 (the only way to write into the batch)
    name = {"bilinear": "_upsample_bilinear2d_aa", "bicubic": "_upsample_bicubic2d_aa"}.get(how)
    return getattr(kernels, name) if name else None


_Scales = tuple[float | None, float | None]  # result by source, rows and columns


def _scales(ratio: tuple[float, float] | None) -> _Scales:
    """What PyTorch's kernels are told of a ratio."""
    return (None, None) if ratio is None else (1 / ratio[0], 1 / ratio[1])


def _resize_as_float(
    batch: torch.Tensor, size: list[int], how: str,
    scales: _Scales,
) -> torch.Tensor:  # fmt: skip
    values, kernel = batch.to(torch.float32), _antialiased(how)
    if kernel is not None:
        values = kernel(values, size, False, *scales)  # align_corners
    else:
        values = torch.nn.functional.interpolate(values, size, mode=how)
    if batch.dtype == torch.float32:
        return values
    limit = 255 if batch.dtype == torch.uint8 else 65535
    return values.round_().clamp_(0, limit).to(torch.int32).to(batch.dtype)
