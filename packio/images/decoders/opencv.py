"""OpenCV: JPEG and PNG; the one that reads 16-bit colour.

Any flavour of the cv2 module serves; packio's extra installs ``opencv-python-headless``.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from packio import registry
from packio.errors import DecodeError
from packio.images.decoders._plain import check_gray, check_scans, plain_jpeg, plain_png

if TYPE_CHECKING:
    import numpy as np

PACKAGE = "cv2"
EXTRA = "opencv"
ENCODINGS = frozenset({"jpeg", "png"})
MODES = frozenset({"RGB", "GRAY", "UNCHANGED"})
EXACT = True
decode_batch = size = None

_COLOURS = {1: "GRAY", 3: "RGB"}
_PNG_COLOURS = {0: "GRAY", 2: "RGB", 4: "GRAY_ALPHA", 6: "RGB_ALPHA"}
# a module: the same in every process
_library = functools.cache(functools.partial(registry.require, PACKAGE, EXTRA))


def version() -> str:
    return str(_library().__version__)


def decode_fast(data: bytes, mode: str, scale: int) -> np.ndarray:
    if mode == "UNCHANGED":
        raise DecodeError("opencv: nothing is scaled under mode='UNCHANGED'")
    return decode(data, mode, scale)


def decode(data: bytes, mode: str = "RGB", scale: int = 1) -> np.ndarray:
    """Decode a plain image with OpenCV; see `DecoderPlugin.decode`."""
    colours = _colours(data, mode)
    check_gray(mode, is_gray=colours.startswith("GRAY"))
    pixels = _read(data, mode, colours, scale)
    if mode == "GRAY":
        return pixels[:, :, None]
    return pixels if mode == "RGB" else _unchanged(pixels, colours)


def _colours(data: bytes, mode: str) -> str:
    """Say which channels are stored, of images that OpenCV and Pillow read alike."""
    if data[:2] == b"\xff\xd8":
        check_scans(data)
        return _COLOURS[plain_jpeg(data, mode).components]
    depth, colour = plain_png(data)
    if depth not in (8, 16) or colour not in _PNG_COLOURS:
        raise DecodeError(f"opencv: PNG of colour type {colour} with {depth} bits")
    if depth == 16 and mode != "UNCHANGED":
        raise DecodeError(f"opencv: 16 bits do not fit mode={mode!r}")
    return _PNG_COLOURS[colour]


def _read(data: bytes, mode: str, colours: str, scale: int) -> np.ndarray:
    import numpy as np

    cv2 = _library()
    flag = {
        "RGB": cv2.IMREAD_COLOR,
        "GRAY": cv2.IMREAD_GRAYSCALE,
        "UNCHANGED": cv2.IMREAD_UNCHANGED,  # means IGNORE_ORIENTATION too
    }[mode]
    if scale > 1:
        flag = getattr(cv2, f"IMREAD_REDUCED_{'GRAYSCALE' if mode == 'GRAY' else 'COLOR'}_{scale}")
    if mode != "UNCHANGED":
        flag |= cv2.IMREAD_IGNORE_ORIENTATION
    try:
        pixels: np.ndarray | None = cv2.imdecode(np.frombuffer(data, np.uint8), flag)
    except cv2.error as error:
        raise DecodeError(f"opencv: {str(error).strip()}") from error
    if pixels is None:
        raise DecodeError("opencv: damaged, or of a kind that it does not read")
    if mode == "RGB" or colours == "RGB":
        cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB, dst=pixels)
    return pixels


def _unchanged(pixels: np.ndarray, colours: str) -> np.ndarray:
    """Bring OpenCV's channels into the order and number of the file's."""
    import numpy as np

    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    if colours == "RGB_ALPHA" and pixels.shape[2] == 4:
        return np.ascontiguousarray(pixels[:, :, [2, 1, 0, 3]])
    if colours == "GRAY_ALPHA" and pixels.shape[2] == 4:  # gray thrice, alpha
        return np.ascontiguousarray(pixels[:, :, [0, 3]])
    if pixels.shape[2] != {"GRAY": 1, "RGB": 3}.get(colours):
        raise DecodeError(f"opencv: {pixels.shape[2]} channels of an image that is {colours}")
    return pixels
