"""The part of an image that outputs need: decoded, cut out, resized; as little beyond it as can be.

"exact" decodes the box at full quality, so that its pixels are those of the whole image's decode,
and resizes it with antialiasing. "fast" decodes a box that is much larger than the output at 1/2,
1/4 or 1/8 of its size. Of another box the native core makes the exact pixels, which takes it less
time than a library's less exact ones; without the core, "fast" upsamples chroma by repeating it.
``packio bench-decode --parity`` tells how much the libraries' pixels differ.

Views of one place are decoded once. Places that lie apart are decoded one by one, if less lies in
all of them than in the box that holds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from packio.errors import DecodeError
from packio.images import frames, native
from packio.images.decoders import Decoder
from packio.images.encodings import JPEGS, PixelInfo
from packio.images.frames import SPARE, Box, Condition, Frame, Integer, Placement, Real
from packio.images.pixels import render as draw

FIDELITIES = ("exact", "fast")
_SMOOTH = ("bilinear", "bicubic")  # ways that a smaller image can be resized by, too
# What a decode takes by itself, in pixels of a box: 0.018 ms beside 1.5 ms for 10^6 pixels. Blocks
# are decoded whole: about one more along each side. With four crops of 96 of photographs of 500 x
# 400 a choice by these numbers took 1 % more time than the better one for each image, a choice by
# pixels alone 10 %; of SimCLR's and DINO's crops both chose alike. benchmarks/views.py compares.
_A_CALL, _BLOCK = 12_000, 16


class Need(NamedTuple):
    """What is needed of one image; numbers, or columns as `packio.images.frames.each` splits."""

    frame: (
        Frame  # in the upright image, and no more of it than is `packio.images.frames.visible_part`
    )
    box: Box  # of the frame, in the stored image
    orientation: int  # to turn the image by, 1..8
    hflip: bool  # of the output, left-right
    vflip: bool  # top-bottom
    fast: bool  # whether fidelity is "fast"
    how: Any  # interpolation, a name; in columns an array of names where each image has its own
    # Divisor of the level of the image that the output is made from; 1: the image itself. Frame and
    # box are those of the image all the same.
    level: int = 1


def compute_need(
    placement: Placement, height: Integer, width: Integer, how: str, *, fast: bool
) -> Need:
    """What is needed of a stored image, or N; an image that EXIF turns is resized whole, turned."""
    frame, orientation = placement.frame, placement.orientation
    upright = orientation == 1
    if upright is True or frames.everywhere(upright):
        part = frames.visible_part(frame, how, fast=fast)
        box = part[:4]
    else:
        part = frames.visible_part(frame)
        if not frames.nowhere(upright):
            part = frames.select_frame(upright, frames.visible_part(frame, how, fast=fast), part)
        box = frames.to_stored_box(part[:4], orientation, height, width)
    return Need(part, box, orientation, placement.hflip, placement.vflip, fast, how)


def make(
    decoder: Decoder, data: bytes, stored: PixelInfo, needs: Sequence[Need],
    outs: Sequence[np.ndarray | None], points: bytes = b"",
) -> list[np.ndarray]:  # fmt: skip
    """Make outputs of an image: by the native core, or else by `decode` and `render`.

    ``stored`` says what the index does of the image, or of the level of which all ``needs`` are.
    Under "fast" an image that the core declines may get other pixels than an output made alone.
    """
    made: list[Any] = list(outs)
    left: Sequence[int] = range(len(needs))
    if decoder.core_takes(stored):
        left = _make_by_core(decoder, data, stored, needs, points, made)
    elif decoder.has_core and stored.encoding in JPEGS:
        decoder.count_declined(native.KIND)
    if left:
        part = decode(decoder, data, stored, [needs[view] for view in left])
        for view in left:
            made[view] = render(part, needs[view], outs[view])
    return made


def _make_by_core(
    decoder: Decoder, data: bytes, stored: PixelInfo, needs: Sequence[Need], points: bytes,
    made: list[Any],
) -> list[int]:  # fmt: skip
    """Put the outputs that the native core makes into ``made``; return those that it declines."""
    level = needs[0].level
    requests: list[bytes] = []
    height, width = stored.height * level, stored.width * level  # or a few pixels more
    for view, need in enumerate(needs):
        frame, box, orientation, hflip, vflip, _, how, _ = need
        if made[view] is None:
            channels = stored.channels if decoder.mode == "GRAY" else 3
            made[view] = np.empty((channels, *frame[8:10]), np.uint8)
        scale = scale_of(need) if stored.encoding in JPEGS else 1
        requests += [native.request(
            height, width, box, frame, made[view], orientation, hflip, vflip, how, scale, level
        )]  # fmt: skip
    layout = native.LAYOUTS[stored.encoding]
    if len(requests) == 1:
        if status := native.make(data, requests[0], 1, points, layout):
            decoder.count_declined(status)
            return [0]
        return []
    left = []
    # a level has restart markers: a part of it can be decoded as one behind a seek point can
    groups = _grouped(needs, is_cuttable=bool(points) or level > 1 or stored.encoding == "dct")
    while groups:
        views = groups.pop()
        joined = b"".join(map(requests.__getitem__, views))
        status = native.make(data, joined, len(views), points, layout)
        if status == native.OUTPUT and len(views) > 1:
            groups += [[view] for view in views]  # it makes all but one of them, perhaps
        elif status:
            decoder.count_declined(status)
            left += views
    return left


def _grouped(needs: Sequence[Need], *, is_cuttable: bool) -> list[list[int]]:
    """Which views are decoded together, so that least is decoded in all."""
    by_scale: dict[int, list[int]] = {}
    for view, need in enumerate(needs):
        by_scale.setdefault(scale_of(need), []).append(view)
    groups: list[list[int]] = []
    for views in by_scale.values():
        at_once = not is_cuttable or is_less_at_once([needs[view] for view in views])
        groups += [views] if at_once else [[view] for view in views]
    return groups


def is_less_at_once(needs: Sequence[Need]) -> Condition:
    """Whether it takes less to decode the box that holds all boxes; columns: of each image."""
    boxes = [need.box for need in needs]
    top, left = (reduce(frames.smaller, (b[i] for b in boxes)) for i in (0, 1))
    bottom, right = (reduce(frames.larger, (b[i] + b[i + 2] for b in boxes)) for i in (0, 1))
    return _cost(bottom - top, right - left) < sum(_cost(b[2], b[3]) for b in boxes)


def _cost(height: Integer, width: Integer) -> Integer:
    """What it takes to decode a box, in pixels; see `_A_CALL`."""
    return (height + _BLOCK) * (width + _BLOCK) + _A_CALL


class DecodedImage(NamedTuple):
    """An image that was decoded, perhaps smaller."""

    pixels: np.ndarray  # (H, W, C), as stored
    scale: int  # pixels of the stored image for one of these, along a side


def decode(decoder: Decoder, data: bytes, stored: PixelInfo, needs: Sequence[Need]) -> DecodedImage:
    """Decode an image once for some outputs by a library; smaller for a lone output only."""
    scale, (need, *others) = 1, needs
    if need.fast:
        scale = scale_of(need) if stored.encoding in JPEGS and not others else 1
        pixels, scale = decoder.fast(data, stored, scale)
    else:
        pixels = decoder(data, stored)
    check_whole(pixels.shape[:2], stored, scale)
    return DecodedImage(pixels, need.level * scale)


def scale_of(need: Need) -> Integer:
    """Divisor to decode a JPEG at under "fast", 1, 2, 4 or 8: some more pixels are left."""
    if not need.fast:
        return 1
    scale, ratio = 1, spare(need) / need.level
    for divisor in (2, 4, 8):
        scale = frames.where(ratio >= SPARE * divisor, divisor, scale)
    return scale


def spare(need: Need) -> Real:
    """Pixels of the box for one of the output, along the side with fewer; 0: do not shrink it."""
    f = need.frame
    if isinstance(need.how, str) and need.how not in _SMOOTH:  # drawn ones are smooth
        return 0.0
    own = frames.smaller(f.height / f.to_height, f.width / f.to_width)
    return frames.where(f.row_ratio != 0, frames.smaller(f.row_ratio, f.column_ratio), own)


def smallest(need: Need, divisors: Iterable[int]) -> int | None:
    """Divisor of the smallest level with pixels enough, of those given smallest first; or None."""
    pixels = spare(need)
    return next((divisor for divisor in divisors if pixels >= SPARE * divisor), None)


def check_whole(size: tuple[int, ...], stored: PixelInfo, scale: int = 1) -> None:
    """Check the (height, width) of an image that was decoded at 1/scale of its size."""
    whole = stored.height, stored.width
    if size != (whole if scale == 1 else tuple(-(-side // scale) for side in whole)):
        raise DecodeError(
            f"decodes to {size[1]}x{size[0]} pixels, not to {stored.width}x{stored.height}"
            + (f" at 1/{scale}" if scale > 1 else "")
        )


def render(part: DecodedImage, need: Need, out: np.ndarray | None) -> np.ndarray:
    """Make an output of what was decoded: in ``out``, (C, out_height, out_width), or anew."""
    frame, _, orientation, hflip, vflip, fast, how, _ = need
    if fast and part.scale > 1 and frame.resizes:
        pixels = _resize_scaled(part, need)
        frame = Frame(0, 0, *frame[4:6], *frame[4:10])  # it is left to turn and to cut the image
    else:
        pixels = cut_box(part.pixels, need)
    if orientation != 1:
        pixels = frames.orient(pixels, orientation)
    if out is None:
        out = np.empty((pixels.shape[2], *frame[8:10]), pixels.dtype)
    draw(pixels, frame, out, hflip=hflip, vflip=vflip, how=how)
    return out


def cut_box(pixels: np.ndarray, need: Need) -> np.ndarray:
    """The pixels of the box of an image, (height, width, C), as stored; a view."""
    top, left, height, width = need.box
    return pixels[top : top + height, left : left + width]


def _resize_scaled(part: DecodedImage, need: Need) -> np.ndarray:
    """Resize the box, as stored, of an image that was decoded smaller: its edges lie anywhere."""
    from PIL import Image

    frame, scale, pixels = need.frame, part.scale, part.pixels
    size = frame.to_height, frame.to_width
    if need.orientation >= 5:
        size = size[1], size[0]
    top, left, height, width = need.box
    span: tuple[float, float] = height, width
    if frame.row_ratio:
        span = frame.row_ratio * size[0], frame.column_ratio * size[1]
    y, x, high, broad = (n / scale for n in (top, left, *span))
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    method = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}[need.how]
    edges = x, y, min(x + broad, image.width), min(y + high, image.height)
    small = np.asarray(image.resize((size[1], size[0]), method, edges))
    return small if small.ndim == 3 else small[:, :, None]
