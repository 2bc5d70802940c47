"""Resizing and turning images, and the masks and boxes that follow them.

A size is (width, height) in pixels of the stored image, as in Pillow.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from packio.errors import DecodeError, Decoding, LimitError, ModeError, OptionError
from packio.images import encodings
from packio.images.decoders import MAX_PIXELS
from packio.packing.images import colours, encoders

if TYPE_CHECKING:
    from PIL import Image

INTERPOLATIONS = ("bilinear", "bicubic", "lanczos", "hamming", "box", "nearest")

Size = tuple[int, int]
Box = tuple[float, float, float, float]

_RULE = re.compile(r"(short|long|max-pixels)=([1-9]\d{0,8})|(exact)=([1-9]\d{0,4})x([1-9]\d{0,4})")
_TURNS = {  # Exif orientation → Pillow's name of the operation that turns the image upright
    2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE", 6: "ROTATE_270",
    7: "TRANSVERSE", 8: "ROTATE_90",
}  # fmt: skip


class Rule(NamedTuple):
    name: str  # "short", "long", "max-pixels" or "exact"
    numbers: tuple[int, ...]


def parse(text: Any) -> Rule:
    """Parse "short=256", "long=512", "max-pixels=250000" or "exact=WIDTHxHEIGHT"."""
    match = _RULE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise OptionError(
            f"resize={text!r}: expected short=PIXELS, long=PIXELS, max-pixels=NUMBER or "
            f"exact=WIDTHxHEIGHT"
        )
    name, *numbers = (group for group in match.groups() if group)
    return Rule(name, tuple(map(int, numbers)))


def target(rule: Rule, size: Size, orientation: int, *, enlarge: bool) -> Size:
    """Size that a stored image is resized to.

    "exact" gives the width and height of the upright image. All other rules keep the aspect ratio;
    they truncate the other side, as torchvision does, and enlarge no image unless ``enlarge``.
    """
    to = _target(rule, size, enlarge=enlarge)
    if rule.name == "exact" and orientation >= 5:
        to = to[::-1]
    if to[0] * to[1] > MAX_PIXELS:
        raise LimitError(
            f"{size[0]}x{size[1]} pixels would become {to[0]}x{to[1]}; the limit is "
            f"{MAX_PIXELS:,} in all"
        )
    return to


def _target(rule: Rule, size: Size, *, enlarge: bool) -> Size:
    if rule.name == "exact":
        return rule.numbers[0], rule.numbers[1]
    width, height = size
    number = rule.numbers[0]
    has = {"short": min(size), "long": max(size), "max-pixels": width * height}[rule.name]
    if number == has or (number > has and not enlarge):
        return size
    if rule.name != "max-pixels":
        return max(1, number * width // has), max(1, number * height // has)
    # floor(sqrt(number * width / height)); the product of both sides is at most the number
    wide, high = math.isqrt(number * width // height), math.isqrt(number * height // width)
    return min(max(wide, 1), number), min(max(high, 1), number)


def decode_scaled(image: Image.Image, data: bytes, to: Size) -> Box:
    """Make Pillow decode a JPEG at 1/2, 1/4 or 1/8 of its size, at least 1.5 times the target.

    Call it before pixels are loaded, with the image's bytes. Other encodings, and lossless JPEGs,
    do not change. Measured on 40 photographs resized to short sides of 128 to 256, bilinear,
    against resizing all pixels: PSNR 50 dB (median of 88; at least 42), while JPEG of quality 90
    leaves 38 dB (at least 32). At least 1 times the target would give 46 dB (at least 35), 2 times
    53 dB (at least 47).

    Returns:
        Box of the decoded image that covers the whole image; its edge may lie within a pixel.
    """
    if not encodings.has_dct(data):
        return (0, 0, *image.size)
    drafted = image.draft(None, (math.ceil(1.5 * to[0]), math.ceil(1.5 * to[1])))
    return drafted[1] if drafted else (0, 0, *image.size)


def resized(image: Image.Image, to: Size, how: str, box: Box | None = None) -> Image.Image:
    """Resize a box of an image of mode L, LA, RGB, RGBA, I;16 or F with Pillow, antialiased.

    Transparent pixels have no weight.
    """
    from PIL import Image

    if image.size == to:
        return image
    resample = Image.Resampling[how.upper()]
    if image.mode != "I;16" or how == "nearest":
        return image.resize(to, resample, box)
    values = np.asarray(Image.fromarray(np.asarray(image, np.float32)).resize(to, resample, box))
    return Image.fromarray(np.rint(values).clip(0, 0xFFFF).astype(np.uint16))


def upright(image: Image.Image, orientation: int) -> Image.Image:
    """Turn a stored image upright; orientation 1 is upright. Source: Exif 2.32, table 4, 0112."""
    from PIL import Image

    if orientation == 1:
        return image
    return image.transpose(Image.Transpose[_TURNS[orientation]])


def moved_boxes(
    boxes: np.ndarray, size: tuple[float, float], to: Size, orientation: int
) -> np.ndarray:
    """Move (k, 4) boxes, XYXY in pixels, with their stored image: it is resized, then turned.

    Returns:
        (k, 4) float64.
    """
    factors = np.array([to[0] / size[0], to[1] / size[1]] * 2)
    x0, y0, x1, y1 = (np.asarray(boxes, np.float64) * factors).T
    width, height = to
    if orientation >= 5:
        x0, y0, x1, y1, width, height = y0, x0, y1, x1, height, width
    if orientation in (2, 3, 6, 7):
        x0, x1 = width - x1, width - x0
    if orientation in (3, 4, 7, 8):
        y0, y1 = height - y1, height - y0
    return np.stack([x0, y0, x1, y1], axis=1)


def moved_mask(data: bytes, size: Size, to: Size, orientation: int) -> bytes:
    """Resize and turn a mask as its image; encode it as PNG.

    The nearest pixel is taken, so palette, bit depth and class ids stay. An orientation in the
    mask's own file is ignored: a mask lies as its image is stored.
    """
    with Decoding("mask: Pillow: "), encodings.opened(data, "mask: ") as image:
        if image.size != size:
            raise DecodeError(
                f"mask: {image.width}x{image.height} pixels, its image has {size[0]}x{size[1]}"
            )
        return encoders.png(upright(resized(_ids(image), to, "nearest"), orientation))


def _ids(image: Image.Image) -> Image.Image:
    """Bring a mask into a mode that PNG has."""
    if colours.is_wide(image):
        if image.mode == "F":
            raise ModeError("mask: floating-point pixels are no class ids")
        return colours.sixteen_bits(image)
    return image if image.mode in ("1", "L", "P", "LA", "RGB", "RGBA") else image.convert("RGB")
