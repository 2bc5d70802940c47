"""The part of an image that an output needs: cut out, decoded, resized; nothing beyond it.

"exact" decodes the box at full quality, so that its pixels are those of the whole image's decode,
and resizes it with antialiasing. "fast" decodes a box that is much larger than the output at 1/2,
1/4 or 1/8 of its size. Of another box the native core makes the exact pixels, which takes it less
time than a library's less exact ones; without the core, "fast" upsamples chroma by repeating it,
and resizes with the fastest library that is installed. ``packio bench-decode --parity`` tells how
much the libraries' differ.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from packio import registry
from packio.errors import DecodeError, MissingPackageError
from packio.images import frames, native
from packio.images.arithmetic import Condition, Integer, everywhere, nowhere
from packio.images.decoders import Decoder, Described
from packio.images.frames import SPARE, Box, Frame, Placement, oriented
from packio.images.jpeg.window import window
from packio.images.pixels import render as draw

FIDELITIES = ("exact", "fast")
WORTH_CUTTING = 0.9  # of the image: a larger box is cut out of the decoded image
# Pixels for one of the output, for which bilinear interpolation needs no antialiasing: for 35 dB on
# each of the crops of tests/images/test_fidelity.py, as `packio.images.frames.SPARE`.
_SMOOTH_ENOUGH = 1.25
_SMOOTH = ("bilinear", "bicubic")  # ways that a smaller image can be resized by, too


class Need(NamedTuple):
    """What is needed of one image; numbers, or columns as `packio.images.frames.each` splits.

    Attributes:
        frame: In the upright image, and no more of it than is `packio.images.frames.shown`.
        box: The box of the frame, in the stored image.
        orientation: To turn the image by, 1..8.
        hflip, vflip: Whether to mirror the output left-right, top-bottom.
        cuttable: Whether its JPEG has restart markers.
        fast: Whether fidelity is "fast".
        how: Interpolation.
        level: Divisor of the level of the image that the output is made from; 1: the image itself.
            Frame and box are those of the image all the same.
    """

    frame: Frame
    box: Box
    orientation: int
    hflip: bool
    vflip: bool
    cuttable: bool
    fast: bool
    how: str
    level: int = 1


def needed(
    placement: Placement,
    height: Integer,
    width: Integer,
    how: str,
    *,
    cuttable: Condition,
    fast: bool,
) -> Need:
    """What is needed of an image for a placement, or of N images for a placement of columns.

    An image that EXIF turns is resized whole, then turned.

    Args:
        placement: What to take.
        height, width: Of the stored image, pixels.
        how, cuttable, fast: As the attributes of `Need`.
    """
    frame, orientation = placement.frame, placement.orientation
    upright = orientation == 1
    if upright is True or everywhere(upright):
        part = frames.shown(frame, how, fast=fast)
        box = part[:4]
    else:
        part = frames.shown(frame)
        if not nowhere(upright):
            part = frames.merged(upright, frames.shown(frame, how, fast=fast), part)
        box = frames.stored_box(part[:4], orientation, height, width)
    return Need(part, box, orientation, placement.hflip, placement.vflip, cuttable, fast, how)


def make(
    decoder: Decoder, data: bytes, stored: Described, need: Need, out: np.ndarray | None,
    points: bytes = b"",
) -> np.ndarray:  # fmt: skip
    """Make an output of an image: by the native core, or else by `decode` and `render`.

    Args:
        decoder, data, stored, need: As of `decode`.
        out: As of `render`.
        points: As of `packio.images.native.make`.
    """
    if decoder.core_takes(stored):
        made = _made_by_core(decoder, data, stored, need, out, points)
        if made is not None:
            return made
    elif decoder.has_core and stored.encoding == "jpeg":
        decoder.count_declined(native.KIND)
    return render(decode(decoder, data, stored, need), need, out)


def _made_by_core(
    decoder: Decoder, data: bytes, stored: Described, need: Need, out: np.ndarray | None,
    points: bytes,
) -> np.ndarray | None:  # fmt: skip
    """What the native core makes of an image; None if it declines."""
    frame, box, orientation, hflip, vflip, _, _, how, level = need
    if out is None:
        channels = stored.channels if decoder.mode == "GRAY" else 3
        out = np.empty((channels, *frame[8:10]), np.uint8)
    size = stored.height * level, stored.width * level  # of the image, or a few pixels more
    status = native.make(
        data, size, box, frame, out, orientation=orientation, hflip=hflip, vflip=vflip, how=how,
        points=points, scale=scale_of(need), level=level,
    )  # fmt: skip
    if status:
        decoder.count_declined(status)
    return None if status else out


def core_output(
    decoder: Decoder, stored: Described, need: Need, out: np.ndarray | None
) -> native.Output:
    """An output as the native core takes it."""
    frame, box, orientation, hflip, vflip, _, _, how, _ = need
    if out is None:
        channels = stored.channels if decoder.mode == "GRAY" else 3
        out = np.empty((channels, *frame[8:10]), np.uint8)
    return native.Output(box, frame, out, orientation, hflip, vflip, how)


def core_declines(
    data: bytes, stored: Described, need: Need, outputs: Sequence[native.Output], points: bytes
) -> int:
    """Make outputs by the native core. Returns 0, or why it declines: see `native.REASONS`.

    Args:
        data, stored, points: As of `make`.
        need: Of one of the outputs; its level and its scale are those of all.
        outputs: To make.
    """
    level = need.level
    size = stored.height * level, stored.width * level  # of the image, or a few pixels more
    scale = scale_of(need)
    return native.make_all(data, size, outputs, points=points, scale=scale, level=level)


class Cut(NamedTuple):
    """The bytes that are needed of an image."""

    data: bytes  # or a bytearray, where they are cut out
    top: int  # of the bytes' pixels, in the stored image
    left: int


class Decoded(NamedTuple):
    """What was decoded of one image."""

    pixels: np.ndarray  # (H, W, C), as stored
    top: int  # of the pixels, in the stored image
    left: int
    scale: int  # pixels of the stored image for one of these, along a side


def decode(decoder: Decoder, data: bytes, stored: Described, need: Need) -> Decoded:
    """Decode what is needed of an image, and as little else as can be.

    Args:
        decoder: Of the mode that the output has.
        data: The encoded bytes, checked.
        stored: What the index says of the whole image, or of the level.
        need: What an output needs of the image.
    """
    piece, top, left = cut(data, stored, need) if need.cuttable else (data, 0, 0)
    scale = 1
    if need.fast:
        scale = _scale(need) if stored.encoding == "jpeg" else 1
        pixels, scale = decoder.fast(piece, stored, scale)
    else:
        pixels = decoder(piece, stored)
    if piece is data and (scale != 1 or pixels.shape[:2] != (stored.height, stored.width)):
        check_whole(pixels.shape[:2], stored, scale)
    level = need.level
    part = Decoded(pixels, level * top, level * left, level * scale)
    if piece is not data:
        _check_holds(part, stored, need.box)
    return part


def of_pixels(pixels: np.ndarray) -> Decoded:
    """The part of an image whose pixels are all there."""
    return Decoded(pixels, 0, 0, 1)


def cut(data: bytes, stored: Described, need: Need) -> Cut:
    """Cut out the bytes that are needed, where that can be done and saves time; else all bytes."""
    box = _box_at(need)
    if need.cuttable and box[2] * box[3] < WORTH_CUTTING * stored.height * stored.width:
        piece, top, left = window(data, box, (stored.height, stored.width))
        return Cut(cast("bytes", piece), top, left)  # a buffer, as good to decoders
    return Cut(data, 0, 0)


def _box_at(need: Need) -> Box:
    """The pixels of the level, or of the image, that show the box."""
    if need.level == 1:
        return need.box
    top, left, height, width = need.box
    first = top // need.level, left // need.level
    high, broad = -(-(top + height) // need.level), -(-(left + width) // need.level)
    return *first, high - first[0], broad - first[1]


def scale_of(need: Need) -> int:
    """At which part of its size a JPEG is decoded for an output: 1, 2, 4 or 8.

    Under "fast" it is the largest that leaves some more pixels than are needed.
    """
    return _scale(need) if need.fast else 1


def scales(need: Need) -> Integer:
    """`scale_of` for a need of columns: a number, or (N,) of them."""
    f = need.frame
    if not need.fast or need.how not in _SMOOTH:
        return 1
    own = np.minimum(np.divide(f.height, f.to_height), np.divide(f.width, f.to_width))
    ratios = ratios_of(f)
    pixels = own if ratios is None else np.where(ratios.all(1), ratios.min(1), own)
    found = np.ones(np.shape(pixels), np.int64)
    for scale in (2, 4, 8):
        found = np.where(pixels >= SPARE * scale, scale, found)
    return found


def ratios_of(frame: Frame) -> np.ndarray | None:
    """The ratios of a frame of columns, (N or 1, 2) with zeros where there are none; or None."""
    ratio: Any = frame.ratio  # of columns: an array of pairs
    if ratio is None:
        return None
    pairs = ratio.tolist() if isinstance(ratio, np.ndarray) else [ratio]
    return np.array([pair or (0.0, 0.0) for pair in pairs])


def _scale(need: Need) -> int:
    ratio = spare(need) / need.level
    return next((s for s in (8, 4, 2) if ratio >= SPARE * s), 1)


def spare(need: Need) -> float:
    """Pixels of the box for one pixel of the output, along the side that has fewer.

    0 if the output can only be made of the image as it is.
    """
    f = need.frame
    if need.how not in _SMOOTH:
        return 0.0
    return min(f.ratio or (f.height / f.to_height, f.width / f.to_width))


def smallest(need: Need, divisors: Iterable[int]) -> int | None:
    """Divisor of the smallest level that has enough pixels for an output; None: none has.

    Args:
        need: What the output needs of the image.
        divisors: Of the levels that there are, the smallest levels first.
    """
    pixels = spare(need)
    return next((divisor for divisor in divisors if pixels >= SPARE * divisor), None)


def check_whole(size: tuple[int, ...], stored: Described, scale: int = 1) -> None:
    """Check the size of a whole image that was decoded, or is to be.

    Args:
        size: (height, width), pixels.
        stored: What the index says.
        scale: The image is decoded at 1/scale of its size.
    """
    whole = stored.height, stored.width
    if size != (whole if scale == 1 else tuple(-(-side // scale) for side in whole)):
        raise _wrong_size(size, stored, scale)


def _check_holds(part: Decoded, stored: Described, box: Box) -> None:
    """Check that a part of an image holds a box."""
    height, width = part.pixels.shape[:2]
    bottom, right = part.top + height * part.scale, part.left + width * part.scale
    if box[0] + box[2] > bottom or box[1] + box[3] > right:
        raise _wrong_size((height, width), stored, part.scale)


def _wrong_size(size: tuple[int, ...], stored: Described, scale: int) -> DecodeError:
    return DecodeError(
        f"decodes to {size[1]}x{size[0]} pixels, not to {stored.width}x{stored.height}"
        + (f" at 1/{scale}" if scale > 1 else "")
    )


def render(part: Decoded, need: Need, out: np.ndarray | None) -> np.ndarray:
    """Make the output of what was decoded.

    Args:
        part: As `decode` gave it.
        need: As `decode` got it.
        out: (C, out_height, out_width), contiguous; all of it is written. None makes one.

    Returns:
        The output.
    """
    frame, _, orientation, hflip, vflip, _, fast, how, _ = need
    small = _resized_fast(part, need) if fast else None
    pixels = boxed(part, need) if small is None else small
    if small is not None:  # it is left to turn and to cut the image
        frame = Frame(0, 0, *frame[4:6], *frame[4:10])
    if orientation != 1:
        pixels = oriented(pixels, orientation)
    if out is None:
        out = np.empty((pixels.shape[2], *frame[8:10]), pixels.dtype)
    draw(pixels, frame, out, hflip=hflip, vflip=vflip, how=how)
    return out


def boxed(part: Decoded, need: Need) -> np.ndarray:
    """The pixels of the box, (height, width, C), as stored; a view."""
    (pixels, above, before, _), (top, left, height, width) = part, need.box
    top, left = top - above, left - before
    return pixels[top : top + height, left : left + width]


def _resized_fast(part: Decoded, need: Need) -> np.ndarray | None:
    """Resize the box, as stored; None where antialiasing in torch is as good and no slower."""
    frame, scale = need.frame, part.scale
    if not frame.resizes:
        return None
    size = frame.to_height, frame.to_width
    if need.orientation >= 5:
        size = size[1], size[0]
    top, left, height, width = need.box
    span = (height, width) if frame.ratio is None else map(operator.mul, frame.ratio, size)
    y, x, high, broad = (n / scale for n in (top - part.top, left - part.left, *span))
    if scale > 1:
        return _by_pillow(part.pixels, (x, y, x + broad, y + high), size, need.how)
    cv2 = _opencv()
    ratio = max(height / size[0], width / size[1])
    if need.how != "bilinear" or ratio > _SMOOTH_ENOUGH or not cv2 or frame.ratio is not None:
        return None
    if part.pixels.dtype != np.uint8:
        return None
    box = part.pixels[int(y) : int(y) + height, int(x) : int(x) + width]
    small: np.ndarray = cv2.resize(box, (size[1], size[0]), interpolation=cv2.INTER_LINEAR)
    return small if small.ndim == 3 else small[:, :, None]


def _by_pillow(
    pixels: np.ndarray, box: tuple[float, float, float, float], size: tuple[int, int], how: str
) -> np.ndarray:
    """Resize a box whose edges may lie between pixels, with antialiasing."""
    from PIL import Image

    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    method = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}[how]
    x0, y0, x1, y1 = box
    edges = x0, y0, min(x1, image.width), min(y1, image.height)
    small = np.asarray(image.resize((size[1], size[0]), method, edges))
    return small if small.ndim == 3 else small[:, :, None]


@functools.cache  # a module or nothing: the same in every process
def _opencv() -> Any:
    try:
        return registry.require("cv2", "opencv")
    except MissingPackageError:
        return None
