"""Pillow: every encoding, and the reference that all other decoders are compared to."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from packio.errors import DecodeError, ModeError

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

PACKAGE = "PIL"
EXTRA = None
ENCODINGS = frozenset(
    {"jpeg", "png", "webp", "bmp", "gif", "tiff", "pnm", "jp2", "avif", "unknown"}
)
MODES = frozenset({"RGB", "GRAY", "RGB_ALPHA", "UNCHANGED"})
EXACT = True
decode_batch = size = None

_CONVERT = {"RGB": "RGB", "GRAY": "L", "RGB_ALPHA": "RGBA"}
_UNCHANGED = {"1": "L", "La": "LA", "RGBa": "RGBA", "PA": "RGBA", "CMYK": "RGB", "YCbCr": "RGB",
              "LAB": "RGB", "HSV": "RGB", "RGBX": "RGB"}  # fmt: skip


def version() -> str:
    """Version of Pillow."""
    import PIL

    return PIL.__version__


def prepare() -> None:
    """Load the parsers of the usual encodings, as Pillow does itself with the first image."""
    from PIL import Image

    Image.preinit()


def decode(data: bytes, mode: str = "RGB") -> np.ndarray:
    """Decode an image with Pillow; see `DecoderPlugin.decode`.

    Raises:
        DecodeError: whatever Pillow says is wrong with it.
        ModeError: 16-bit or floating-point pixels under an 8-bit mode.
    """
    return _decoded(data, mode, 1)


def decode_fast(data: bytes, mode: str, scale: int) -> np.ndarray:
    """Decode a JPEG at 1/scale of its size; else as `decode`."""
    return _decoded(data, mode, scale)


def _decoded(data: bytes, mode: str, scale: int) -> np.ndarray:
    import numpy as np
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            if scale > 1:
                image.draft(None, (image.width // scale, image.height // scale))
            pixels = np.array(_converted(image, mode, data))
    except DecodeError:
        raise
    except Exception as error:  # Pillow's plugins raise whatever their parsers meet
        raise DecodeError(f"Pillow: {type(error).__name__}: {error}") from error
    if pixels.dtype == np.int32:  # Pillow's mode "I" holds what came from 16 bits
        if pixels.min() < 0 or pixels.max() > 0xFFFF:
            raise ModeError("pixels have more than 16 bits; packio reads up to 16")
        pixels = pixels.astype(np.uint16)
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def _converted(image: Image.Image, mode: str, data: bytes) -> Image.Image:
    sixteen = image.mode[0] in "IF" or (image.format == "PNG" and data[24] == 16)
    if mode != "UNCHANGED":
        if sixteen:
            raise ModeError(
                f"pixels of more than 8 bits do not fit mode={mode!r}; use mode='UNCHANGED'"
            )
        return image if image.mode == _CONVERT[mode] else image.convert(_CONVERT[mode])
    if sixteen and image.mode not in ("F", "I", "I;16", "I;16B", "I;16L", "I;16N"):
        return _sixteen_bit_colour(image)
    if image.mode == "P":
        return image.convert("RGBA" if "transparency" in image.info else "RGB")
    return image.convert(_UNCHANGED[image.mode]) if image.mode in _UNCHANGED else image


def _sixteen_bit_colour(image: Image.Image) -> Image.Image:
    raise ModeError(
        f"16-bit {image.mode} pixels: Pillow reads only 8 bits of them; "
        "use decoder='opencv' (pip install 'packio[opencv]')"
    )
