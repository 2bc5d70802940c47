"""Raw pixels, as they are or in another mode."""

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
    """Give raw bytes their shape; convert them as Pillow does where they do not have the mode's.

    Returns:
        (H, W, C), C-contiguous, of the dtype stored.

    Raises:
        DecodeError: the bytes are not as many as the description says.
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
    """Through an uncompressed image in memory: one way of converting modes, Pillow's."""
    from PIL import Image

    if pixels.shape[2] > 4:
        raise DecodeError(f"{pixels.shape[2]} channels do not fit mode={mode!r}; use UNCHANGED")
    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    file = io.BytesIO()
    image.save(file, "tiff")
    return pillow.decode(file.getvalue(), mode)
