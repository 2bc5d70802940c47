"""Raw pixels: given their shape, and converted to the mode if need be."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np

from packio.errors import DecodeError
from packio.images import encodings
from packio.images.decoders import pillow

if TYPE_CHECKING:
    from packio.images.decoders import Described

_CHANNELS = {"RGB": 3, "GRAY": 1, "RGB_ALPHA": 4}


def decode(data: bytes, stored: Described, mode: str) -> np.ndarray:
    """Give raw bytes their shape; convert them as Pillow does if their channels are not the mode's.

    The result is (H, W, C), C-contiguous, of the dtype stored.
    """
    facts = encodings.raw_facts(stored.height, stored.width, stored.channels, stored.dtype)
    encodings.check_raw(facts, len(data))
    planes, bgr = encodings.RAW[stored.encoding]
    height, width, channels = stored.height, stored.width, stored.channels
    pixels = np.frombuffer(data, np.dtype(stored.dtype).newbyteorder("<"))
    if planes:
        pixels = pixels.reshape(channels, height, width).transpose(1, 2, 0)
    else:
        pixels = pixels.reshape(height, width, channels)
    if bgr and channels >= 3:
        pixels = pixels[..., [2, 1, 0, *range(3, channels)]]
    pixels = np.require(pixels, requirements=["C", "W"])  # torch warns of what cannot be written
    return pixels if _CHANNELS.get(mode, channels) == channels else _converted(pixels, mode)


def _converted(pixels: np.ndarray, mode: str) -> np.ndarray:
    """Convert through an uncompressed image in memory, so that Pillow alone converts modes."""
    from PIL import Image

    if pixels.shape[2] > 4:
        raise DecodeError(f"{pixels.shape[2]} channels do not fit mode={mode!r}; use UNCHANGED")
    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    file = io.BytesIO()
    image.save(file, "tiff")
    return pillow.decode(file.getvalue(), mode)
