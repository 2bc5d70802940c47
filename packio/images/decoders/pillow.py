"""Pillow: every encoding, the reference that all other decoders are compared to; and raw pixels."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from packio.errors import DecodeError, Decoding, ModeError
from packio.images import encodings

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

    from packio.images.encodings import PixelInfo

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
_CHANNELS = {"RGB": 3, "GRAY": 1, "RGB_ALPHA": 4}
_STRIP = 1 << 20  # pixels that are converted at a time


def version() -> str:
    import PIL

    return PIL.__version__


def prepare() -> None:
    """Load the parsers of the usual encodings, as Pillow does itself with the first image."""
    from PIL import Image

    Image.preinit()


def decode(data: bytes, mode: str = "RGB", scale: int = 1) -> np.ndarray:
    """Decode an image with Pillow, a JPEG at 1/scale of its size; see `DecoderPlugin.decode`."""
    import numpy as np

    with Decoding("Pillow: "), encodings.open_image(data) as image:
        if scale > 1:
            image.draft(None, (image.width // scale, image.height // scale))
        pixels = pixels_of(image, _target(image, mode, data))
    if pixels.dtype == np.int32:  # Pillow's mode "I" holds what came from 16 bits
        if pixels.min() < 0 or pixels.max() > 0xFFFF:
            raise ModeError("pixels have more than 16 bits; packio reads up to 16")
        pixels = pixels.astype(np.uint16)
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


decode_fast = decode


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


def decode_raw(data: bytes, stored: PixelInfo, mode: str) -> np.ndarray:
    """Give raw bytes their shape; convert them as Pillow does if their channels are not the mode's.

    The result is (H, W, C), C-contiguous, of the dtype stored.
    """
    import numpy as np

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
    return decode(file.getvalue(), mode)
