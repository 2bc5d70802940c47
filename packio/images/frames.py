"""Frames: the box that is taken of an image, its size once resized, where it lies on the output.

Images, masks and boxes follow the same frame. It is numbers alone: nothing is read or decoded.
"""

from __future__ import annotations

import math
from typing import NamedTuple

Box = tuple[int, int, int, int]  # top, left, height, width; pixels


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


def whole(height: int, width: int) -> Frame:
    """The frame that takes an image as it is."""
    return Frame(0, 0, height, width, height, width, 0, 0, height, width)


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
