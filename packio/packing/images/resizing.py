"""Resizing and turning images, and the masks and boxes that follow them.

A size is (width, height) in pixels of the stored image, as in Pillow.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from packio.errors import DecodeError, Decoding, LimitError, ModeError, OptionError
from packio.images import encodings
from packio.images.decoders import MAX_PIXELS
from packio.packing.images import encoders
from packio.sample.record import Facts, Field, Frame, Record
from packio.sources.tables.columns import compact

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


def parse(text: Any) -> tuple[str, tuple[int, ...]]:
    """Parse "short=256", "long=512", "max-pixels=250000" or "exact=WIDTHxHEIGHT"."""
    match = _RULE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise OptionError(
            f"resize={text!r}: expected short=PIXELS, long=PIXELS, max-pixels=NUMBER or "
            f"exact=WIDTHxHEIGHT"
        )
    name, *numbers = (group for group in match.groups() if group)
    return name, tuple(map(int, numbers))


def target(text: str, size: Size, orientation: int, *, enlarge: bool) -> Size:
    """Size that a stored image is resized to.

    "exact" gives the width and height of the upright image. All other rules keep the aspect ratio;
    they truncate the other side, as torchvision does, and enlarge no image unless ``enlarge``.
    """
    name, numbers = parse(text)
    (width, height), number = size, numbers[0]
    has = {"short": min(size), "long": max(size), "max-pixels": width * height}.get(name, 0)
    if name == "exact":
        to = (number, numbers[1]) if orientation < 5 else (numbers[1], number)
    elif number == has or (number > has and not enlarge):
        to = size
    elif name != "max-pixels":
        to = max(1, number * width // has), max(1, number * height // has)
    else:
        # floor(sqrt(number * width / height)); the product of both sides is at most the number
        wide, high = math.isqrt(number * width // height), math.isqrt(number * height // width)
        to = min(max(wide, 1), number), min(max(high, 1), number)
    if to[0] * to[1] > MAX_PIXELS:
        raise LimitError(
            f"{width}x{height} pixels would become {to[0]}x{to[1]}; "
            f"the limit is {MAX_PIXELS:,} in all"
        )
    return to


def decode_scaled(image: Image.Image, data: bytes, to: Size) -> Box:
    """Make Pillow decode a JPEG at 1/2, 1/4 or 1/8 of its size, at least 1.5 times the target.

    Call it before pixels are loaded, with the image's bytes. Other encodings, and lossless JPEGs,
    do not change. Measured on 40 photographs resized to short sides of 128 to 256, bilinear,
    against resizing all pixels: PSNR 50 dB (median of 88; at least 42), while JPEG of quality 90
    leaves 38 dB (at least 32). At least 1 times the target would give 46 dB (at least 35), 2 times
    53 dB (at least 47). Returns the box of the decoded image that covers the whole image; its edge
    may lie within a pixel.
    """
    if not encodings.has_dct(data):
        return (0, 0, *image.size)
    drafted = image.draft(None, (math.ceil(1.5 * to[0]), math.ceil(1.5 * to[1])))
    return drafted[1] if drafted else (0, 0, *image.size)


def resize_image(image: Image.Image, to: Size, how: str, box: Box | None = None) -> Image.Image:
    """Resize a box of an image of mode L, LA, RGB, RGBA, I;16 or F, by alpha, antialiased."""
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


def move_boxes(
    boxes: np.ndarray, size: tuple[float, float], to: Size, orientation: int
) -> np.ndarray:
    """Move (k, 4) boxes, XYXY pixels, with their image, resized, then turned: (k, 4) float64."""
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


def move_mask(data: bytes, size: Size, to: Size, orientation: int) -> bytes:
    """Resize (to nearest pixels) and turn a mask as its image; encode it as PNG.

    An orientation in the mask's own file is ignored: a mask lies as its image is stored.
    """
    with Decoding("mask: Pillow: "), encodings.open_image(data, "mask: ") as image:
        if image.size != size:
            raise DecodeError(
                f"mask: {image.width}x{image.height} pixels, its image has {size[0]}x{size[1]}"
            )
        return encoders.encode(
            upright(resize_image(_ids(image), to, "nearest"), orientation), "png"
        )


def _ids(image: Image.Image) -> Image.Image:
    """Bring a mask into a mode that PNG has."""
    if encoders.is_wide(image):
        if image.mode == "F":
            raise ModeError("mask: floating-point pixels are no class ids")
        return encoders.sixteen_bits(image)
    return image if image.mode in ("1", "L", "P", "LA", "RGB", "RGBA") else image.convert("RGB")


_BACK = {6: 8, 8: 6}  # orientation → the one that undoes it; each other one undoes itself
_IN_PIXELS = (b'"bbox"', b'"segmentation"', b'"keypoints"', b'"bndbox"')  # members of metadata
_DIGITS = 3  # decimals of a coordinate
_SLACK = 0.01  # pixels by which a box may reach beyond the image, from rounding


def place_annotations(record: Record[Field]) -> tuple[Record[Field], Counter[str]]:
    """Move boxes and masks into the stored image; also return what is to be counted."""
    frame, facts, counts = record.frame, record.facts, Counter[str]()
    if frame is None:
        return record, counts
    stored, upright = image_sizes(facts)
    masks = {name: field for name, field in record.fields.items() if field.kind == "mask"}
    moved = {name: place_mask(field, facts, frame) for name, field in masks.items()}
    record = dataclasses.replace(record, frame=None, fields={**record.fields, **moved})
    is_upright = _is_upright(frame, stored, upright)
    if facts.orientation != 1 and frame.is_upright is None:
        of_boxes = record.boxes is not None and len(record.boxes) > 0 and is_upright is None
        counts["undecided"] = int(of_boxes or (stored == upright and bool(masks)))
    if record.boxes is not None and len(record.boxes) > 0:
        given = np.asarray(record.boxes)
        _refuse_senseless(given, fractions=frame.fractions)
        counts["flat"] = int((given[:, 2:] <= given[:, :2]).any(1).sum())
        record, boxes = _with_boxes(record, frame, facts, is_upright=is_upright is not False)
        beyond = (boxes < -_SLACK) | (boxes > np.array([*stored, *stored]) + _SLACK)
        counts["beyond"] = int(beyond.any(1).sum())
    return record, +counts


def has_pixels(meta: bytes | None) -> bool:
    """Whether metadata speaks of boxes or shapes in pixels, as COCO's and Pascal VOC's."""
    return meta is not None and any(mark in meta for mark in _IN_PIXELS)


def scale_meta(meta: bytes | None, sizes: Mapping[Any, Size]) -> bytes | None:
    """Scale COCO's entries in metadata with their image.

    `sizes` has the new size of an image for each size that ``width`` and ``height`` in the metadata
    may say. Other metadata stays, and so do masks of run lengths, which have a size of their own.
    """
    if meta is None or not has_pixels(meta):
        return meta
    found = json.loads(meta)
    size = found.get("width"), found.get("height")
    to = sizes.get(size) if all(isinstance(side, (int, float)) for side in size) else None
    if to is None or to == size:
        return meta
    x, y = to[0] / size[0], to[1] / size[1]
    for name, factors in (
        ("bbox", (x, y)), ("segmentation", (x, y)), ("keypoints", (x, y, 1)), ("area", (x * y,)),
    ):  # fmt: skip
        if name in found:
            found[name] = _scaled(found[name], factors)
    found["width"], found["height"] = to
    return compact(found)


def _scaled(values: Any, factors: Sequence[float]) -> Any:
    """Lists of lists of numbers, which are multiplied by the factors in turn."""
    if isinstance(values, list) and any(isinstance(value, list) for value in values):
        return [_scaled(value, factors) for value in values]
    if not isinstance(values, list):
        return values
    return [
        round(value * factor, _DIGITS) if isinstance(value, (int, float)) else value
        for value, factor in zip(values, itertools.cycle(factors))
    ]


def place_mask(mask: Field, facts: Facts, frame: Frame) -> Field:
    """A mask as its image is stored: one of the upright size becomes a PNG that is turned back."""
    stored, upright = image_sizes(facts)
    own = None if mask.facts is None else (mask.facts.width, mask.facts.height)
    if facts.orientation == 1 or own != upright or (own == stored and frame.is_upright is False):
        return mask
    back = _BACK.get(facts.orientation, facts.orientation)
    return Field("mask", move_mask(mask.data, upright, upright, back))


def _refuse_senseless(boxes: np.ndarray, *, fractions: bool) -> None:
    """Refuse boxes that end before they begin: each crop would drop them, and say nothing."""
    if not fractions and boxes.max() <= 1 and (boxes % 1).any():
        raise DecodeError(f"no box ends after pixel 1: {boxes[0].tolist()}; fractions, no pixels?")
    good = np.isfinite(boxes).all(1) & (boxes[:, 2:] >= boxes[:, :2]).all(1)
    if not good.all():
        at = int(good.argmin())
        raise DecodeError(
            f"box {at}: {boxes[at].tolist()} as left, top, right, bottom; expected numbers, and "
            "right and bottom not before left and top: are they x, y, width, height?"
        )


def image_sizes(facts: Facts) -> tuple[Size, Size]:
    """Width and height of the stored image, and of the upright one."""
    stored = facts.width, facts.height
    return stored, stored[::-1] if facts.orientation >= 5 else stored


def _is_upright(frame: Frame, stored: Size, upright: Size) -> bool | None:
    """Whether boxes lie in the upright image; None if nothing decides."""
    if frame.is_upright is not None or stored == upright or min(frame.width, frame.height) <= 0:
        return frame.is_upright
    fits = [(frame.width, frame.height) == size for size in (stored, upright)]
    if not any(fits) and frame.rescales:
        fits = [frame.width * height == frame.height * width for width, height in (stored, upright)]
    return None if fits[0] == fits[1] else fits[1]


def _with_boxes(
    record: Record[Field], frame: Frame, facts: Facts, *, is_upright: bool
) -> tuple[Record[Field], np.ndarray]:
    """The record with its boxes in the stored image; these boxes."""
    stored, upright = image_sizes(facts)
    size = upright if is_upright else stored
    given = (frame.width, frame.height) if min(frame.width, frame.height) > 0 else size
    if given in (stored, upright):
        given = size  # as the user says, if they differ
    elif not frame.rescales:
        raise DecodeError(
            f"its boxes are for {given[0]:g}x{given[1]:g} pixels, the image has "
            f"{upright[0]}x{upright[1]}; --rescale-boxes scales boxes to their images"
        )
    columns, meta, turn = dict(record.box_columns), record.meta, facts.orientation
    if given != size and "area" in columns:
        scale = size[0] * size[1] / (given[0] * given[1])
        columns["area"] = columns["area"] * np.float32(scale)
    if given != size:
        meta = scale_meta(meta, {given: size})
    boxes = move_boxes(
        np.asarray(record.boxes), (1, 1) if frame.fractions else given, size,
        _BACK.get(turn, turn) if is_upright else 1,
    ).astype(np.float32)  # fmt: skip
    return dataclasses.replace(record, boxes=boxes, box_columns=columns, meta=meta), boxes
