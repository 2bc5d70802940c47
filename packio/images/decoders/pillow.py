"""Pillow: every encoding, and the reference that all other decoders are compared to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packio.errors import Decoding, ModeError
from packio.images import encodings

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
_STRIP = 1 << 20  # pixels that are converted at a time


def version() -> str:
    import PIL

    return PIL.__version__


def prepare() -> None:
    """Load the parsers of the usual encodings, as Pillow does itself with the first image."""
    from PIL import Image

    Image.preinit()


def decode(data: bytes, mode: str = "RGB") -> np.ndarray:
    """Decode an image with Pillow; see `DecoderPlugin.decode`."""
    return _decoded(data, mode, 1)


def decode_fast(data: bytes, mode: str, scale: int) -> np.ndarray:
    """Decode a JPEG at 1/scale of its size; else as `decode`."""
    return _decoded(data, mode, scale)


def _decoded(data: bytes, mode: str, scale: int) -> np.ndarray:
    import numpy as np

    with Decoding("Pillow: "), encodings.opened(data) as image:
        if scale > 1:
            image.draft(None, (image.width // scale, image.height // scale))
        pixels = pixels_of(image, _target(image, mode, data))
    if pixels.dtype == np.int32:  # Pillow's mode "I" holds what came from 16 bits
        if pixels.min() < 0 or pixels.max() > 0xFFFF:
            raise ModeError("pixels have more than 16 bits; packio reads up to 16")
        pixels = pixels.astype(np.uint16)
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def pixels_of(image: Image.Image, target: str | None = None) -> np.ndarray:
    """Pixels of an image in a mode of Pillow, (H, W) or (H, W, C), in this machine's byte order.

    A large image is converted strip by strip: Pillow and NumPy hold what they convert up to four
    times, two gigabytes for a PNG of 25 kB.
    """
    import numpy as np

    image.load()  # turns a TIFF
    width, height = image.size
    rows = max(1, _STRIP // width)
    pixels = np.empty(0)
    for top in range(0, height, rows):
        strip = image if rows >= height else image.crop((0, top, width, min(top + rows, height)))
        if target is not None and strip.mode != target:
            strip = strip.convert(target)
        part = np.asarray(strip)
        if not top:
            pixels = np.empty((height, *part.shape[1:]), part.dtype.newbyteorder("="))
        pixels[top : top + rows] = part
    return pixels


def _target(image: Image.Image, mode: str, data: bytes) -> str | None:
    """Pillow's mode that an image is converted to; None: its own."""
    sixteen = image.mode[0] in "IF" or (image.format == "PNG" and data[24] == 16)
    if mode != "UNCHANGED":
        if sixteen:
            raise ModeError(
                f"pixels of more than 8 bits do not fit mode={mode!r}; use mode='UNCHANGED'"
            )
        return _CONVERT[mode]
    if sixteen and image.mode not in ("F", "I", "I;16", "I;16B", "I;16L", "I;16N"):
        raise ModeError(
            f"16-bit {image.mode} pixels: Pillow reads only 8 bits of them; "
            "use decoder='opencv' (pip install 'packio[opencv]')"
        )
    if image.mode == "P":
        return "RGBA" if "transparency" in image.info else "RGB"
    return _UNCHANGED.get(image.mode)
