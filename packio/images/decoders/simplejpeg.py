"""simplejpeg: libjpeg-turbo in wheels; the default for JPEG."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from packio import registry
from packio.errors import DecodeError

if TYPE_CHECKING:
    from types import ModuleType

    import numpy as np

PACKAGE = "simplejpeg"
EXTRA = None
ENCODINGS = frozenset({"jpeg"})
MODES = frozenset({"RGB", "GRAY"})
EXACT = True
decode_batch = size = None

_SOURCES = {"RGB": frozenset({"YCbCr", "RGB", "Gray"}), "GRAY": frozenset({"Gray"})}


@functools.cache  # a module: the same in every process
def _library() -> ModuleType:
    return registry.require(PACKAGE)


def version() -> str:
    """Version of simplejpeg."""
    return str(_library().__version__)


def decode(data: bytes, mode: str = "RGB") -> np.ndarray:
    """Decode a JPEG with simplejpeg; see `DecoderPlugin.decode`.

    A warning of libjpeg-turbo is an error.

    Raises:
        DecodeError: damaged, or of a kind that libjpeg-turbo's simple interface does not do.
    """
    return _decoded(data, mode)


def decode_fast(data: bytes, mode: str, scale: int) -> np.ndarray:
    """Decode a JPEG at 1/scale of its size, chroma upsampled by repeating it; else as `decode`."""
    return _decoded(data, mode, scale)


def _decoded(data: bytes, mode: str, scale: int | None = None) -> np.ndarray:
    library = _library()
    options: dict[str, Any] = {}
    try:
        height, width, colorspace, _ = library.decode_jpeg_header(data)
        if colorspace not in _SOURCES[mode]:  # CMYK would become RGB, 1 grey level off Pillow's
            raise DecodeError(f"simplejpeg: {colorspace} pixels for mode {mode}")
        if scale is not None:
            smallest = {"min_height": -(-height // scale), "min_width": -(-width // scale)}
            options = {"fastupsample": True, "min_factor": scale, **smallest}
        pixels: np.ndarray = library.decode_jpeg(data, mode, **options)
    except DecodeError:
        raise
    except ValueError as error:
        raise DecodeError(f"simplejpeg: {error}") from error
    return pixels
