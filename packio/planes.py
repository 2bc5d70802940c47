"""The geometry of images that are tensors already, (C, H, W) on any device: as `packio.geometry`.

Values are computed as float32, as torchvision v2 does on tensors of a GPU, which has no kernels for
uint8; they are within 1 grey level of those that `packio.geometry` computes.
"""

from __future__ import annotations

import torch

from packio import geometry
from packio.geometry import Frame

MOST = 32  # times smaller; CUDA's antialiasing has memory for about 45 (bicubic), 90 (bilinear)


def oriented(planes: torch.Tensor, orientation: int) -> torch.Tensor:
    """Turn stored pixels upright.

    Args:
        planes: (C, H, W), as stored.
        orientation: 1..8.

    Returns:
        (C, H, W); perhaps a view of them.

    Source: Exif 2.32, table 4, tag 0112.
    """
    if orientation >= 5:
        planes = planes.transpose(1, 2)
    turned = ((1, (3, 4, 7, 8)), (2, (2, 3, 6, 7)))
    axes = [axis for axis, orientations in turned if orientation in orientations]
    return planes.flip(axes) if axes else planes


def is_for_device(frame: Frame) -> bool:
    """Tell whether a GPU has the memory to make an image that much smaller with antialiasing."""
    return frame.height <= MOST * frame.to_height and frame.width <= MOST * frame.to_width


def render(
    planes: torch.Tensor, frame: Frame, out: torch.Tensor, *, hflip: bool, vflip: bool, how: str
) -> None:
    """Write one frame of an image.

    Args:
        planes: (C, height, width) uint8, upright: the box of the frame, and nothing else.
        frame: Where it goes; of top and left 0.
        out: (C, out_height, out_width) float32 of the same device, contiguous, zeros; values of
            0..255, which `rounded` makes uint8 of.
        hflip, vflip: Mirror the result left-right, top-bottom.
        how: Interpolation.
    """
    f = frame
    fills = f.out_top == f.out_left == 0 and f[4:6] == f[8:10]
    if not f.resizes:
        _place(planes, f, out)
    elif fills:
        geometry.resize_planes(planes, out, how, f.ratio)
    else:
        small = out.new_empty((out.shape[0], f.to_height, f.to_width))
        geometry.resize_planes(planes, small, how, f.ratio)
        _place(small, f, out)
    if hflip or vflip:
        out.copy_(out.flip([d for d, on in ((1, vflip), (2, hflip)) if on]))


def rounded(values: torch.Tensor) -> torch.Tensor:
    """Float values as uint8; they are changed."""
    return values.round_().clamp_(0, 255).to(torch.uint8)


def _place(planes: torch.Tensor, frame: Frame, out: torch.Tensor) -> None:
    """Put pixels where the frame has them; what is left is black already."""
    f = frame
    top, left = max(f.out_top, 0), max(f.out_left, 0)
    bottom, right = max(f.out_top + f.out_height, 0), max(f.out_left + f.out_width, 0)
    inner = planes[:, top:bottom, left:right]
    y, x = top - f.out_top, left - f.out_left
    out[:, y : y + inner.shape[1], x : x + inner.shape[2]].copy_(inner)
