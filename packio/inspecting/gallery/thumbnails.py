"""Thumbnails: an image of a pack as a small JPEG."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np

from packio.images.decoders import Decoder
from packio.images.encodings import RAW
from packio.sample.facts import Facts

if TYPE_CHECKING:
    from PIL import Image

    from packio.packs.rows import Row

_QUALITY = 80  # of the JPEG


def make_thumbnail(data: bytes, edge: int, row: Row | Facts) -> bytes:
    """Decode a sample and make an upright JPEG of at most ``edge`` pixels a side."""
    from PIL import Image

    with _opened(data, row) as image:
        small: Image.Image = image
        if image.mode[0] in "IF":
            small = _eight_bits(image)
        elif image.format != "JPEG":  # a JPEG is decoded at a fraction of its size by thumbnail()
            small = image.convert("RGB")
        small.thumbnail((edge, edge))
        small = small.convert("RGB")
    for turn in _TURNS.get(row.orientation, ()):
        small = small.transpose(Image.Transpose[turn])
    file = io.BytesIO()
    small.save(file, "JPEG", quality=_QUALITY)
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


def _opened(data: bytes, row: Row | Facts) -> Image.Image:
    from PIL import Image

    if row.encoding not in RAW:
        return Image.open(io.BytesIO(data))
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
