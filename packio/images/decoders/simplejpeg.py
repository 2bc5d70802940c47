"""simplejpeg: libjpeg-turbo in wheels; the default for JPEG."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from packio import registry
from packio.errors import DecodeError
from packio.images import encodings

if TYPE_CHECKING:
    import numpy as np

PACKAGE = "simplejpeg"
EXTRA = None
ENCODINGS = frozenset({"jpeg"})
MODES = frozenset({"RGB", "GRAY"})
EXACT = True
decode_batch = size = None

_REFUSED = (ValueError, KeyError)  # KeyError: a kind of subsampling that it has no name for
_SOURCES = {"RGB": frozenset({"YCbCr", "RGB", "Gray"}), "GRAY": frozenset({"Gray"})}
# a module: the same in every process
_library = functools.cache(functools.partial(registry.require, PACKAGE))


def version() -> str:
    return str(_library().__version__)


def decode(data: bytes, mode: str = "RGB") -> np.ndarray:
    """Decode a JPEG with simplejpeg; see `DecoderPlugin.decode`.

    A warning of libjpeg-turbo is an error.
    """
    library = _library()
    try:
        _check(data, library.decode_jpeg_header(data)[2], mode)
        pixels: np.ndarray = library.decode_jpeg(data, mode)
    except _REFUSED as error:
        raise DecodeError(f"simplejpeg: {error}") from error
    return pixels


def decode_fast(data: bytes, mode: str, scale: int) -> np.ndarray:
    library = _library()
    try:
        height, width, colours, _ = library.decode_jpeg_header(data)
        _check(data, colours, mode)
        pixels: np.ndarray = library.decode_jpeg(
            data, mode, fastupsample=True, min_factor=scale,
            min_height=-(-height // scale), min_width=-(-width // scale),
        )  # fmt: skip
    except _REFUSED as error:
        raise DecodeError(f"simplejpeg: {error}") from error
    return pixels


def _check(data: bytes, colours: str, mode: str) -> None:
    """Refuse what Pillow refuses or converts otherwise: CMYK is 1 grey level off."""
    if colours not in _SOURCES[mode] or encodings.parse_jpeg(data) is None:
        raise ValueError(f"{colours} pixels for mode {mode}, or an unusual header")
