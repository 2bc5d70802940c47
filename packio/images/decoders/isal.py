"""ISA-L inflates plain PNGs of 8 bits, gray or RGB; packio's native core does the rest.

The default for PNG where both are there. Pillow decodes all other PNGs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from packio import registry
from packio.errors import DecodeError
from packio.images import native, png

if TYPE_CHECKING:
    import numpy as np

PACKAGE = "isal"
EXTRA = None
ENCODINGS = frozenset({"png"})
MODES = frozenset({"RGB", "GRAY", "UNCHANGED"})
EXACT = True
decode_fast = decode_batch = size = None

_GRAY = frozenset({png.GRAY})
_COLOURS = {"RGB": _GRAY | {png.RGB}, "GRAY": _GRAY, "UNCHANGED": _GRAY | {png.RGB}}  # by mode


def version() -> str:
    found = str(registry.require(PACKAGE).__version__)
    registry.require("isal.isal_zlib")
    native.require("isal")
    return found


def decode(data: bytes, mode: str = "RGB") -> np.ndarray:
    """Decode a plain PNG; see `DecoderPlugin.decode`."""
    import numpy as np

    pixels = png.decode(data, _COLOURS[mode])
    if pixels is None:
        raise DecodeError(f"isal: damaged, or not a plain PNG of 8 bits for mode={mode!r}")
    if mode == "RGB" and pixels.shape[2] == 1:
        pixels = np.broadcast_to(pixels, (*pixels.shape[:2], 3)).copy()
    return pixels
