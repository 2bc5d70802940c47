"""Frames: which box of an image is taken, the size that it gets, where it lies on the output.

Images, masks and boxes follow the same frame. The attributes of a `Frame`, a `Placement` and a box
are numbers, or columns of N numbers that describe N images; `each` splits such columns.

A formula that is written with these functions gives for a column the same bits as for its numbers
one by one. A single sample is planned with Python's numbers: an operation takes 0.1 µs on a number
and 1 µs on an array of one.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

Integer = Any  # an int, or an (N,) int64 array
Real = Any  # a float, or an (N,) float64 array
Condition = Any  # a bool, or an (N,) bool array
Box = tuple[int, int, int, int]  # top, left, height, width; pixels
# Pixels that scaled decoding or a level leaves along a side, for one of the output: for 35 dB on
# each of the crops of tests/images/test_fidelity.py.
SPARE = 1.1

T = TypeVar("T", bound="tuple[Any, ...]")


def round_half_even(value: Real) -> Integer:
    """The nearest integer; halves go to the even one."""
    return np.rint(value).astype(np.int64) if isinstance(value, np.ndarray) else round(value)


def truncate(value: Real) -> Integer:
    """The integer part."""
    return value.astype(np.int64) if isinstance(value, np.ndarray) else int(value)


def exp(value: Real) -> Real:
    """The exponential, by the C library: NumPy's differs in the last bit between processors."""
    if not isinstance(value, np.ndarray):
        return math.exp(value)
    return np.fromiter(map(math.exp, value.tolist()), np.float64, len(value))


def smaller(a: Real, b: Real) -> Real:
    return np.minimum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else min(a, b)


def larger(a: Real, b: Real) -> Real:
    return np.maximum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else max(a, b)


def where(condition: Condition, a: Any, b: Any) -> Any:
    """``a`` where the condition holds, else ``b``."""
    if isinstance(condition, np.ndarray):
        return np.where(condition, a, b)
    return a if condition else b


def everywhere(condition: Condition) -> bool:
    """Whether a condition holds for all numbers."""
    return bool(condition.all()) if isinstance(condition, np.ndarray) else bool(condition)


def nowhere(condition: Condition) -> bool:
    """Whether a condition holds for no number."""
    return not condition.any() if isinstance(condition, np.ndarray) else not condition


class Frame(NamedTuple):
    """What to take of one image; pixels, in upright coordinates.

    The box ``top, left, height, width`` of the image is resized to ``to_height, to_width``. Pixel
    (y, x) of the output is pixel ``(y + out_top, x + out_left)`` of the result, else black.

    The ratios are how many rows, and columns, of the box become one; 0: as the sizes say. A part of
    a resized frame has ratios, because its box has some more pixels at the end (`visible_part`).
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
    row_ratio: float = 0.0
    column_ratio: float = 0.0

    @property
    def resizes(self) -> bool:
        return self.row_ratio != 0 or self[2:4] != self[4:6]


class Placement(NamedTuple):
    """What one view takes of one picture; masks and boxes have the place of their image."""

    frame: Frame  # in the upright picture
    orientation: int = 1  # Exif's, 1..8, to turn the stored image by
    hflip: bool = False  # of the output
    vflip: bool = False
    how: Any = None  # the interpolation, if that is drawn; else it is the crop's


def each(columns: T, count: int) -> list[T]:
    """Split (N,) arrays, tuples of them, and values that all N have, into ``count`` tuples."""
    new = functools.partial(tuple.__new__, type(columns))
    return list(map(new, zip(*(_items(column, count) for column in columns), strict=True)))


def _items(column: Any, count: int) -> Sequence[Any] | Iterator[Any]:
    if isinstance(column, np.ndarray):
        items: list[Any] = column.tolist()
        return items
    return each(column, count) if isinstance(column, tuple) else itertools.repeat(column, count)


def whole(height: Integer, width: Integer) -> Frame:
    return Frame(0, 0, height, width, height, width, 0, 0, height, width)


def scale_frame(frame: Frame, size: tuple[Integer, Integer], to: tuple[Integer, Integer]) -> Frame:
    """The same part of a picture of another (height, width), ``to``; both sizes are upright."""
    top, height = _scaled_side(frame.top, frame.height, size[0], to[0])
    left, width = _scaled_side(frame.left, frame.width, size[1], to[1])
    return frame._replace(top=top, left=left, height=height, width=width)


def _scaled_side(start: Integer, length: Integer, of: Integer, to: Integer) -> Any:
    """First pixel and number of pixels of a side, which are at least one pixel of the side."""
    first = smaller(round_half_even(start * to / of), to - 1)
    return first, larger(round_half_even((start + length) * to / of) - first, 1)


def visible_part(frame: Frame, how: str = "nearest", *, fast: bool = False) -> Frame:
    """The part of a frame that the output shows: the same output from a smaller box, never empty.

    Resized "bilinear" and "bicubic" it begins where the frame begins, so that its values stay the
    same; if ``fast``, also where that moves the image by a few hundredths of a pixel only. Any
    other way of resizing needs the whole frame.
    """
    f = frame
    fills = (f.out_top == 0) & (f.out_left == 0)
    fills &= (f.to_height == f.out_height) & (f.to_width == f.out_width)
    if fills is True or everywhere(fills):
        return f
    resized = (f.height != f.to_height) | (f.width != f.to_width)
    if nowhere(resized):
        return _clipped(f)
    if how in _RADIUS:
        f = select_frame(fills, f, _shown_resized(f, _RADIUS[how], fast=fast))
    return f if everywhere(resized) else select_frame(resized, f, _clipped(frame))


def select_frame(condition: Condition, a: Frame, b: Frame) -> Frame:
    return Frame(*(where(condition, x, y) for x, y in zip(a, b, strict=True)))


def _clipped(f: Frame) -> Frame:
    """The part of a frame that is not resized."""
    top, left = larger(f.out_top, 0), larger(f.out_left, 0)
    bottom = smaller(f.height, f.out_top + f.out_height)
    right = smaller(f.width, f.out_left + f.out_width)
    seen = (top < bottom) & (left < right)  # else the output is all border
    top, left = where(seen, top, 0), where(seen, left, 0)
    height, width = where(seen, bottom, 1) - top, where(seen, right, 1) - left
    return Frame(
        f.top + top, f.left + left, height, width, height, width,
        f.out_top - top, f.out_left - left, f.out_height, f.out_width,
    )  # fmt: skip


_RADIUS = {"bilinear": 1, "bicubic": 2}  # of the filters, pixels of the larger of both images
_NEAR = 0.03  # rows of an image, by which a part may be moved


def _shown_resized(f: Frame, radius: int, *, fast: bool) -> Frame:
    sides = ((f.height, f.to_height, f.out_top, f.out_height),
             (f.width, f.to_width, f.out_left, f.out_width))  # fmt: skip
    (y, height, top, to_height), (x, width, left, to_width) = (
        _reached_of_each(side, radius, fast=fast) for side in sides
    )
    return Frame(
        f.top + y, f.left + x, height, width, to_height, to_width,
        f.out_top - top, f.out_left - left, f.out_height, f.out_width,
        f.height / f.to_height, f.width / f.to_width,
    )  # fmt: skip


def _reached_of_each(side: tuple[Integer, ...], radius: int, *, fast: bool) -> Any:
    """`_reached` of one side or of columns. Images have few different sides: results are kept."""
    if not any(isinstance(number, np.ndarray) for number in side):
        return _reached(*side, radius, fast)
    columns = [column.tolist() for column in np.broadcast_arrays(*side)]
    found = [_reached(*numbers, radius, fast) for numbers in zip(*columns, strict=True)]
    return np.array(found, np.int64).reshape(-1, 4).T


@functools.lru_cache(1 << 12)  # numbers: the same in every process
def _reached(
    length: int, to: int, out_start: int, out: int, radius: int, fast: bool
) -> tuple[int, int, int, int]:
    """First pixel and number of pixels that filters need of a side; the same of the result.

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


def to_stored_box(
    box: tuple[Integer, ...], orientation: Integer, height: Integer, width: Integer
) -> Box:
    """Where a box of the upright image lies in the stored one: undo `orient`, last step first."""
    top, left, high, broad = box
    swapped, across, upside_down = turns(orientation)
    height, width = where(swapped, width, height), where(swapped, height, width)  # upright
    left = where(across, width - left - broad, left)
    top = where(upside_down, height - top - high, top)
    return (
        where(swapped, left, top), where(swapped, top, left),
        where(swapped, broad, high), where(swapped, high, broad),
    )  # fmt: skip


def turns(orientation: Integer) -> tuple[Condition, Condition, Condition]:
    """The steps of an orientation: whether to swap the axes, then to mirror across and upside down.

    Source: Exif 2.32, table 4, tag 0112.
    """
    o = orientation
    return o >= 5, (o == 2) | (o == 3) | (o == 6) | (o == 7), (o == 3) | (o == 4) | (o >= 7)


def orient(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Turn stored pixels upright: (H, W, C), C-contiguous; the same array for orientation 1."""
    if orientation == 1:
        return pixels
    swapped, across, upside_down = turns(orientation)
    if swapped:
        pixels = pixels.transpose(1, 0, 2)
    # a copy in any case: `ascontiguousarray` keeps negative strides of sides of one pixel
    turned: np.ndarray = pixels[:: -1 if upside_down else 1, :: -1 if across else 1].copy()
    return turned
