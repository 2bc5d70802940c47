"""A decoder of binary PGM and PPM files by numpy alone."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from packio.errors import DecodeError

if TYPE_CHECKING:
    import numpy as np

PACKAGE = "numpy"
EXTRA = None
ENCODINGS = frozenset({"pnm"})
MODES = frozenset({"RGB"})
EXACT = True
decode_fast = decode_batch = size = None

_HEADER = re.compile(rb"P6\s(\d{1,9})\s(\d{1,9})\s255\s")


def version() -> str:
    """Version of numpy."""
    import numpy as np

    return str(np.__version__)


def decode(data: bytes, mode: str = "RGB") -> np.ndarray:
    """Decode a plain PPM: (H, W, 3) uint8 RGB.

    Raises:
        DecodeError: it is not plain, or truncated.
    """
    import numpy as np

    header = _HEADER.match(data) if mode == "RGB" else None
    width, height = map(int, header.groups()) if header else (0, 0)
    if header is None or len(data) < header.end() + 3 * width * height:
        raise DecodeError("example: no plain PPM, or truncated")
    pixels: np.ndarray = np.frombuffer(data, np.uint8, 3 * width * height, header.end())
    return np.array(pixels.reshape(height, width, 3))
