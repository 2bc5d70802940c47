"""torchvision's decoder as `packio.images.decoders.nvjpeg` calls it, on any device."""

from __future__ import annotations

from packio.images.decoders import nvjpeg, simplejpeg

PACKAGE = "torchvision"
EXTRA = "nvjpeg"
ENCODINGS = nvjpeg.ENCODINGS
MODES = nvjpeg.MODES
EXACT = False
decode_fast = None

decode, size, decode_batch = simplejpeg.decode, nvjpeg.size, nvjpeg._decoded


def version() -> str:
    """Version of torchvision."""
    return str(nvjpeg._library().__name__)
