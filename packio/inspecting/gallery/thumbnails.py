"""Thumbnails: an image of a pack as a small JPEG, a mask as a small PNG with a colour a class."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np

from packio.images import jpeg_header
from packio.images.decoders import Decoder
from packio.images.encodings import RAW, opened
from packio.sample.facts import Facts

if TYPE_CHECKING:
    from PIL import Image

    from packio.packs.rows import Row

_QUALITY = 80  # of the JPEG
_BOX_COLOUR = (255, 64, 64)
SHOWN_BOXES = 1000  # of a sample


def make_thumbnail(
    data: bytes, edge: int, row: Row | Facts, boxes: np.ndarray | None = None
) -> bytes:
    """Decode an image and make an upright JPEG of at most ``edge`` pixels a side.

    Args:
        data: The encoded image.
        edge: Pixels.
        row: What the index says of the image.
        boxes: (k, 4) XYXY in pixels of the stored image, which are drawn; None: none.
    """
    from PIL import ImageDraw

    with _opened(data, row) as image:
        small: Image.Image = image
        width, height = image.size
        if image.mode[0] in "IF":
            small = _eight_bits(image)
        # thumbnail() decodes less of the other JPEGs
        elif image.format != "JPEG" or not jpeg_header.has_dct(data):
            small = image.convert("RGB")
        small.thumbnail((edge, edge))
        small = small.convert("RGB")
    if boxes is not None:
        scale = np.array([small.width / width, small.height / height] * 2)
        draw = ImageDraw.Draw(small)
        for box in near_boxes(boxes[:SHOWN_BOXES], width, height) * scale:
            if not np.isnan(box).any():
                draw.rectangle(tuple(box.tolist()), outline=_BOX_COLOUR, width=2)
    file = io.BytesIO()
    _upright(small, row.orientation).save(file, "JPEG", quality=_QUALITY)
    return file.getvalue()


def near_boxes(boxes: np.ndarray, width: int, height: int) -> np.ndarray:
    """Boxes for drawing: (k, 4) float64, left, top, right and bottom in pixels; NaN stays NaN.

    An edge that is far outside the image is moved to a place outside that is near: Pillow goes
    through all pixels of an edge, and JSON has no infinity.

    Args:
        boxes: (k, 4) XYXY, in any order of the corners.
        width: Of the image.
        height: Of the image.
    """
    corners = np.sort(np.asarray(boxes, np.float64).reshape(-1, 2, 2), axis=1).reshape(-1, 4)
    size = np.array([width, height] * 2, np.float64)
    near: np.ndarray = np.clip(corners, -size, 2 * size)
    return near


def make_pixels_thumbnail(pixels: np.ndarray, edge: int) -> bytes:
    """Make a JPEG of at most ``edge`` pixels a side.

    Args:
        pixels: (C, H, W), of 1, 3 or 4 channels and any type; more than 8 bits are stretched.
        edge: Pixels.
    """
    from PIL import Image

    shown = pixels if pixels.dtype == np.uint8 else _stretched(pixels)
    shown = np.ascontiguousarray(shown[:3].transpose(1, 2, 0))
    image = Image.fromarray(shown[..., 0] if shown.shape[2] < 3 else shown)
    image.thumbnail((edge, edge))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=_QUALITY)
    return file.getvalue()


def make_mask_thumbnail(data: bytes, edge: int, facts: Facts) -> bytes:
    """Decode a mask and make an upright PNG of at most ``edge`` pixels a side.

    Each class id has a colour of its own, as far as 8 bits allow; 0 is transparent.
    """
    from PIL import Image

    with _opened(data, facts) as image:
        ids = np.asarray(image)
    ids = ids[..., 0] if ids.ndim == 3 else ids
    step = -(-max(ids.shape) // edge)
    ids = ids[::step, ::step].astype(np.int64)
    shown = np.where(ids == 0, 0, 255)
    colours = np.stack([*(ids * prime % 256 for prime in (53, 151, 199)), shown], axis=-1)
    file = io.BytesIO()
    small = Image.fromarray(colours.astype(np.uint8))
    _upright(small, facts.orientation).save(file, "PNG")
    return file.getvalue()


# Orientation → the turns that make an image upright; Exif 2.32, section 4.6.4, tag 0x0112.
_TURNS = {
    2: ("FLIP_LEFT_RIGHT",),
    3: ("ROTATE_180",),
    4: ("FLIP_TOP_BOTTOM",),
    5: ("TRANSPOSE",),
    6: ("ROTATE_270",),
    7: ("TRANSVERSE",),
    8: ("ROTATE_90",),
}


def _upright(image: Image.Image, orientation: int) -> Image.Image:
    from PIL import Image

    for turn in _TURNS.get(orientation, ()):
        image = image.transpose(Image.Transpose[turn])
    return image


def _opened(data: bytes, row: Row | Facts) -> Image.Image:
    from PIL import Image

    if row.encoding not in RAW:
        return opened(data)
    pixels = Decoder(mode="UNCHANGED")(data, row)[..., : 3 if row.channels > 3 else None]
    if pixels.dtype != np.uint8:
        pixels = _stretched(pixels)
    return Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)


def _eight_bits(image: Image.Image) -> Image.Image:
    from PIL import Image

    return Image.fromarray(_stretched(np.asarray(image)))


def _stretched(pixels: np.ndarray) -> np.ndarray:
    """Bring pixels of more than 8 bits to 8: the least is black, the most is white."""
    values = np.nan_to_num(np.asarray(pixels, np.float64))
    low, high = float(values.min()), float(values.max())
    eight: np.ndarray = ((values - low) * (255 / ((high - low) or 1))).astype(np.uint8)
    return eight
