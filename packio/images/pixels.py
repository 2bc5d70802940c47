"""Pixels of an image, (H, W, C) in memory, made into an output: turned, cut, resized, mirrored.

`packio.images.devices` does the same with tensors of a device.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import numpy as np
import torch

from packio.images import tensors
from packio.images.frames import Frame

Scales = tuple[float | None, float | None]  # result by source, rows and columns


def render(
    pixels: np.ndarray, frame: Frame, out: np.ndarray, *, hflip: bool, vflip: bool, how: str
) -> None:
    """Write one frame of an image: (height, width, C), upright, the box of the frame alone.

    ``out`` is (C, out_height, out_width) of the same dtype, contiguous; all of it is written. No
    tensor is made but those that resizing needs: each takes 2 µs and releases the GIL three times,
    which another thread may then hold for a while.
    """
    f = frame
    size = f[4:6]
    if f.row_ratio or f[2:4] != size:  # it resizes
        pixels = resize(pixels, size, how, scales_of(f))
    if f.out_top == f.out_left == 0 and size == f[8:10]:
        tensors.to_planes(pixels, out, hflip=hflip, vflip=vflip)
    else:
        _place(pixels, f, out, hflip=hflip, vflip=vflip)


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
    out = tensors.mirror(out, hflip=hflip, vflip=vflip)
    out[:, y : y + inner.shape[0], x : x + inner.shape[1]] = inner.transpose(2, 0, 1)


def resize(
    pixels: np.ndarray, size: tuple[int, int], how: str, scales: Scales = (None, None)
) -> np.ndarray:
    """Resize (h, w, C) pixels to ``size``, (H, W, C); values as torchvision v2's on tensors.

    The result is this thread's until its next call.

    PyTorch's kernel for uint8 is fastest from interleaved to interleaved pixels: 250 x 250 pixels
    to 224 x 224 take 180 µs; 420 µs where the kernel writes planes. Pillow takes 1,150 µs.
    """
    kernel = find_antialias_kernel(how)
    if kernel is not None and pixels.dtype == np.uint8:
        resized, planes = _RESIZED.get_buffers((*size, pixels.shape[2]))
        pixels = np.ascontiguousarray(pixels)  # or the kernel copies them
        batch = torch.from_numpy(pixels.transpose(2, 0, 1)[None])
        kernel(batch, size, False, *scales, out=planes)  # align_corners
        return resized
    batch = torch.from_numpy(pixels.transpose(2, 0, 1)[None])
    if how == "nearest" and batch.dtype != torch.uint16:
        made = torch.nn.functional.interpolate(batch, list(size), mode="nearest")
    else:
        made = resize_as_float(batch, list(size), how, scales)
    return made[0].permute(1, 2, 0).numpy()


class _Resized(threading.local):
    """Memory that a thread resizes into, kept: allocating it takes 40 µs an image.

    It is no tensor. Torch lets go of Python's lock where a tensor goes; in a thread that ends while
    Python ends, that aborts the process.
    """

    def __init__(self) -> None:
        self._pixels = np.empty((0, 0, 0), np.uint8)

    def get_buffers(self, shape: tuple[int, int, int]) -> tuple[np.ndarray, torch.Tensor]:
        """(H, W, C) bytes, and a (1, C, H, W) tensor of the same memory."""
        if self._pixels.shape != shape:
            self._pixels = np.empty(shape, np.uint8)
        return self._pixels, torch.from_numpy(self._pixels).permute(2, 0, 1).unsqueeze(0)


_RESIZED = _Resized()


def nearest(length: int, to: int) -> np.ndarray:
    """Pixels of a side that resizing to the nearest pixel takes: (to,) int64.

    Source: PyTorch's ``interpolate(mode="nearest")``, which torchvision v2 uses for masks: the
    floor of place times ratio, in single precision.
    """
    ratio = np.float32(length) / np.float32(to)
    places = (np.arange(to, dtype=np.float32) * ratio).astype(np.int64)
    taken: np.ndarray = np.minimum(places, length - 1)
    return taken


@functools.cache  # functions: the same in every process
def find_antialias_kernel(how: str) -> Any:
    """The kernel behind torch.nn.functional.interpolate(antialias=True), which takes no ``out``."""
    kernels = torch._C._nn  # noqa: SLF001 (the only way to write into given memory)
    name = {"bilinear": "_upsample_bilinear2d_aa", "bicubic": "_upsample_bicubic2d_aa"}.get(how)
    return getattr(kernels, name) if name else None


def scales_of(frame: Frame) -> Scales:
    return (1 / frame.row_ratio, 1 / frame.column_ratio) if frame.row_ratio else (None, None)


def resize_as_float(batch: torch.Tensor, size: list[int], how: str, scales: Scales) -> torch.Tensor:
    """Resize (1, C, h, w) planes of any dtype as float32; arguments as PyTorch's."""
    values, kernel = batch.to(torch.float32), find_antialias_kernel(how)
    if kernel is not None:
        values = kernel(values, size, False, *scales)  # align_corners
    else:
        values = torch.nn.functional.interpolate(values, size, mode=how)
    if batch.dtype == torch.float32:
        return values
    limit = 255 if batch.dtype == torch.uint8 else 65535
    return values.round_().clamp_(0, limit).to(torch.int32).to(batch.dtype)
