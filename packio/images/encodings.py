"""Encodings of images: codes in the index, file endings, magics, and facts from a file's header.

This is the one list of each for the whole package.

A JPEG file is a sequence of segments: the byte FF, a marker byte and, for most markers, a
big-endian uint16 length that counts itself. The frame header (SOFn) has the sample precision
(1 byte), height and width (2 bytes each) and the number of components (1 byte); the image data
begins after SOS.

The orientation is read here, not by Pillow: 1.9 µs an image for Exif data of a camera against
17 µs by `PIL.Image.Exif`, and 5.4 µs against 45 µs for the whole header.

Source: ITU-T T.81 (1992), annex B; Exif 2.32, section 4.5.4 (the APP1 segment and its TIFF).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import re
import struct
import zlib
from typing import TYPE_CHECKING, NamedTuple, Protocol

from packio.errors import DecodeError, Decoding, LimitError
from packio.images import dct
from packio.sample.record import Facts
from packio.system.locks import block_forks

if TYPE_CHECKING:
    from PIL import Image, ImageFile

CODES = {
    "unknown": 0, "jpeg": 1, "png": 2, "webp": 3, "bmp": 4, "gif": 5, "tiff": 6, "pnm": 7, "jp2": 8,
    "avif": 9, "dct": 10, "raw_hwc_bgr": 252, "raw_bgr": 253, "raw_hwc": 254, "raw": 255,
}  # fmt: skip
# Raw pixels, row by row: encoding → (in planes (C, H, W)?, in the order B, G, R?)
JPEGS = frozenset({"jpeg", "dct"})  # files, and those whose coefficients are open
RAW = {
    "raw": (True, False),  # what packio writes
    "raw_hwc": (False, False),
    "raw_bgr": (True, True),
    "raw_hwc_bgr": (False, True),
}
SUFFIXES = {  # ending of a file that packio writes
    "jpeg": ".jpg", "png": ".png", "webp": ".webp", "bmp": ".bmp", "gif": ".gif", "tiff": ".tif",
    "pnm": ".ppm", "jp2": ".jp2", "avif": ".avif", "dct": ".dct",
}  # fmt: skip
# Endings of the files that count as images in a folder; torchvision 0.28:
# ``torchvision.datasets.folder.IMG_EXTENSIONS``.
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
JPEG_MAGIC, PNG_MAGIC = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
_MAGICS = (
    JPEG_MAGIC, PNG_MAGIC, b"GIF8", b"BM", b"II*\0", b"MM\0*", b"\0\0\0\x0cjP  ",
    b"\xff\x4f\xff\x51", b"P5", b"P6", dct.MAGIC,
)  # fmt: skip
NAMES = {code: name for name, code in CODES.items()}
DTYPES = ("uint8", "uint16", "float32")  # position = code in the index

_PILLOW_FORMATS = {
    "JPEG": "jpeg", "MPO": "jpeg", "PNG": "png", "WEBP": "webp", "BMP": "bmp", "DIB": "bmp",
    "GIF": "gif", "TIFF": "tiff", "PPM": "pnm", "JPEG2000": "jp2", "AVIF": "avif",
}  # fmt: skip
_PNG_CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}  # colour type → channels; 3 (palette) asks Pillow
_SOS, _APP1, _EXIF = 0xDA, 0xE1, b"Exif\0\0"
_SOF = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # C4 DHT, C8 reserved, CC DAC
_PROGRESSIVE = frozenset({0xC2, 0xC6, 0xCA, 0xCE})
_LOSSLESS = frozenset({0xC3, 0xC7, 0xCB, 0xCF})
_RESTARTS = frozenset(range(0xD0, 0xD8))  # RSTn have no length
# What Pillow passes over as libjpeg does: SOFn, DHT, DAC, DQT, DRI, APPn, COM.
_SEGMENTS = _SOF | {0xC4, 0xCC, 0xDB, 0xDD, *range(0xE0, 0xF0), 0xFE, _SOS}
_ORIENTATION_TAG = 0x0112
_OTHERS = {  # Pillow's name of a format that it may not know → how files begin, and what they are
    "HEIF": (rb".{4}ftyp(?:hei|hev|mif1|msf1)", "HEIC or HEIF; pip install pillow-heif"),
    "JXL": (rb"\xff\x0a|\x00\x00\x00\x0cJXL ", "JPEG XL; pip install pillow-jxl-plugin"),
    "MP4": (rb".{4}ftyp(?!avi[fs])", "a video"),
    "HTML": (rb"\s*<(?:!doctype html|html)", "HTML, perhaps an answer that there is no such file"),
    "SVG": (rb"\s*(?:<\?xml.{0,200})?<svg", "SVG, a drawing without pixels"),
    "PDF": (rb"%PDF", "PDF"),
    "ZIP": (rb"PK\x03\x04", "an archive"),
    "LFS": (rb"version https://git-lfs", "a pointer of Git LFS; git lfs pull"),
}


class PixelInfo(Protocol):
    """What the index or a header (`Facts`) says of pixels."""

    @property
    def encoding(self) -> str: ...

    @property
    def height(self) -> int: ...

    @property
    def width(self) -> int: ...

    @property
    def channels(self) -> int: ...

    @property
    def dtype(self) -> str: ...


def is_image(data: bytes) -> bool:
    """Tell whether bytes begin as an image file does; only the first 12 bytes are looked at."""
    if data[:4] == b"RIFF":
        return data[8:12] == b"WEBP"
    return data.startswith(_MAGICS) or data[4:12] in (b"ftypavif", b"ftypavis")


def has_class_ids(image: Image.Image) -> bool:
    """Tell whether a mask has class ids, one channel of integers, and not colours."""
    return image.mode in ("1", "L", "P") or image.mode.startswith("I")


def check_class_ids(data: bytes, facts: Facts | None) -> None:
    """Refuse a mask of colours. Plain PNGs are looked at here; Pillow opens all others."""
    if facts is not None and facts.encoding in RAW:
        mode = f"{facts.channels} channels" if facts.channels > 1 else None
    elif data.startswith(b"\x89PNG") and data[25:26] in (b"\0", b"\3"):  # gray, or a palette
        return
    else:
        with Decoding("Pillow: "), open_image(data) as image:
            mode = None if has_class_ids(image) else f"mode {image.mode}"
    if mode is not None:
        raise DecodeError(f"pixels of {mode}; expected class ids: one channel, or a palette")


def raw_facts(
    height: int, width: int, channels: int, dtype: str = "uint8", encoding: str = "raw"
) -> Facts:
    """The facts of raw pixels, which have no header."""
    return Facts(encoding, height, width, channels, dtype)


def check_raw(facts: Facts, length: int) -> None:
    """Check that raw pixels have as many bytes as their facts say."""
    size = {"uint8": 1, "uint16": 2, "float32": 4}[facts.dtype]
    expected = facts.height * facts.width * facts.channels * size
    if length != expected or not expected:
        raise DecodeError(
            f"{length} bytes of raw pixels; {facts.width}x{facts.height} with {facts.channels} "
            f"channels of {facts.dtype} are {expected}"
        )


def read_facts(data: bytes) -> Facts:
    """Read an image's facts from its header; the file's name plays no part.

    Plain JPEG and PNG headers are read here (5 µs); Pillow reads all others (45 µs and more).
    """
    if not data:
        raise DecodeError("empty: 0 bytes, expected an image")
    if data.startswith(dct.MAGIC):
        facts = _jpeg_facts(dct.header_of(data)) or _pillow_facts(data)
        return facts._replace(encoding="dct")
    return _jpeg_facts(data) or _png_facts(data) or _pillow_facts(data)


def _jpeg_facts(data: bytes) -> Facts | None:
    header = parse_jpeg(data)
    if header is None or header.precision != 8 or header.components not in (1, 3, 4):
        return None
    if header.orientation is None or data.find(b"MPF\0", 0, 1 << 16) >= 0:
        return None
    return Facts(
        "jpeg", header.height, header.width, header.components, "uint8",
        header.orientation, header.progressive,
    )  # fmt: skip


def _png_facts(data: bytes) -> Facts | None:
    """Facts of a PNG that has no palette, transparency or metadata. Source: PNG 3rd ed., 11.2."""
    if data[:8] != PNG_MAGIC or data[12:16] != b"IHDR" or len(data) < 33:
        return None
    width, height, depth, colour, compression, filtering, interlace = struct.unpack_from(
        ">IIBBBBB", data, 16
    )
    if zlib.crc32(data[12:29]) != int.from_bytes(data[29:33], "big"):
        return None
    usual = colour in _PNG_CHANNELS and depth in (8, 16) and not (compression or filtering)
    unusual_chunk = any(c in data for c in (b"eXIf", b"iTXt", b"tRNS", b"zTXt", b"tEXt", b"acTL"))
    if not usual or unusual_chunk or interlace > 1 or not width or not height:
        return None
    dtype = "uint16" if depth == 16 else "uint8"
    return Facts("png", height, width, _PNG_CHANNELS[colour], dtype, 1, False)


def _pillow_facts(data: bytes) -> Facts:
    with Decoding(), open_image(data) as image:
        encoding = _PILLOW_FORMATS.get(image.format or "", "unknown")
        channels, dtype = _layout(image, data)
        value = 1 if encoding == "tiff" else image.getexif().get(_ORIENTATION_TAG, 1)
        # load() turns TIFFs; a fraction that is 6 turns as 6 does
        orientation = next((turn for turn in range(1, 9) if value == turn), 1)
        progressive = bool(image.info.get("progressive"))
        return Facts(encoding, image.height, image.width, channels, dtype, orientation, progressive)


def open_image(data: bytes, where: str = "") -> ImageFile.ImageFile:
    """Open an image with Pillow and its plugins; ``where`` begins an error, as "mask: "."""
    from PIL import Image, UnidentifiedImageError

    if data.startswith(dct.MAGIC):
        data = dct.as_jpeg(data)
    try:
        return Image.open(io.BytesIO(data))
    except UnidentifiedImageError:
        load_plugins()
    except Image.DecompressionBombError as error:
        raise LimitError(f"{where}{error}") from error
    except Exception as error:  # Pillow's plugins raise whatever their parsers meet
        raise unidentified_error(data, len(data), where) from error
    try:
        return Image.open(io.BytesIO(data))
    except Exception as error:
        raise unidentified_error(data, len(data), where) from error


@functools.cache  # a plugin is imported once in a process
def load_plugins() -> None:
    """Have Pillow know HEIC and JPEG XL, if pillow-heif and pillow-jxl-plugin are installed."""
    with block_forks():
        with contextlib.suppress(ImportError, OSError):
            importlib.import_module("pillow_heif").register_heif_opener()
        with contextlib.suppress(ImportError, OSError):
            importlib.import_module("pillow_jxl")


def unidentified_error(data: bytes, size: int, where: str = "") -> DecodeError:
    """Say why Pillow can identify no image in bytes, or in the first ones of ``size`` bytes."""
    from PIL import Image

    Image.init()
    told = [
        what for name, (start, what) in _OTHERS.items()
        if name not in Image.OPEN and re.match(start, data, re.DOTALL | re.IGNORECASE)
    ]  # fmt: skip
    for name, (make, accepts) in Image.OPEN.items():
        try:
            found = accepts(data[:16]) if accepts else False
            if found:
                told.append(found) if isinstance(found, str) else make(io.BytesIO(data), "")
        except Exception as error:  # noqa: BLE001 (Pillow's plugins raise whatever they meet)
            told.append(f"{name}: {error}")
    reason = "".join(f": {text}" for text in told[:1])
    start = bytes(data[:8]).hex(" ")
    return DecodeError(
        f"{where}no image that Pillow can identify{reason} ({size} bytes, starting {start})"
    )


def _layout(image: Image.Image, data: bytes) -> tuple[int, str]:
    """Channels and dtype of an image's pixels as stored, a palette expanded."""
    if image.format == "PNG" and data[24] == 16:  # Pillow narrows 16-bit RGB to 8 bits
        return _PNG_CHANNELS.get(data[25], 3), "uint16"
    if image.mode.startswith("I"):
        return 1, "uint16"
    if image.mode == "F":
        return 1, "float32"
    if image.mode in ("P", "PA"):
        return (4 if "transparency" in image.info or image.mode == "PA" else 3), "uint8"
    return len(image.getbands()), "uint8"


class JpegHeader(NamedTuple):
    """What the segments before the image data say."""

    height: int  # pixels, as stored
    width: int  # pixels, as stored
    components: int
    precision: int  # bits a sample
    progressive: bool
    orientation: int | None  # 1..8; None: unclear, ask another parser
    lossless: bool = False  # coded without a DCT


def parse_jpeg(data: bytes) -> JpegHeader | None:  # noqa: C901 (one loop over segments)
    """Read a JPEG's header: the segments before the image data.

    None if Pillow has to read it: no SOI, a segment that runs past the end, no frame header before
    the data, or a marker that Pillow refuses and libjpeg passes over, as TEM.
    """
    if data[:2] != b"\xff\xd8":
        return None
    end, position = len(data), 2
    frame: tuple[int, int, int, int, bool] | None = None
    orientation: int | None = 1
    lossless = tells = False
    while position + 4 <= end:
        if data[position] != 0xFF:
            return None
        marker = data[position + 1]
        if marker == 0xFF:  # fill byte
            position += 1
            continue
        if marker in _RESTARTS:
            position += 2
            continue
        length = data[position + 2] << 8 | data[position + 3]
        if length < 2 or position + 2 + length > end or marker not in _SEGMENTS:
            return None
        if marker in _SOF:
            if length < 8 or frame:
                return None
            precision, height, width, components = struct.unpack_from(">BHHB", data, position + 4)
            frame = (height, width, components, precision, marker in _PROGRESSIVE)
            lossless = marker in _LOSSLESS
        elif marker == _APP1:
            body = data[position + 4 : position + 2 + length]
            if body.startswith(_EXIF) or b"Orientation" in body:  # XMP has tiff:Orientation
                orientation = None if tells else _exif_orientation(body)
                tells = True  # of several segments, Pillow knows which one counts
        elif marker == _SOS:
            found = frame is not None and frame[0] and frame[1]
            return JpegHeader(*frame, orientation, lossless) if frame and found else None
        position += 2 + length
    return None


def has_dct(data: bytes) -> bool:
    """Whether a JPEG can be decoded smaller; of lossless ones, libjpeg-turbo writes all pixels."""
    found = parse_jpeg(data)
    return found is not None and not found.lossless


def _exif_orientation(app1: bytes) -> int | None:
    """Orientation in an APP1 segment: 1 if the segment has none, None if it is unclear."""
    if not app1.startswith(_EXIF):
        return None
    tiff = app1[len(_EXIF) :]
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(tiff[:4])
    if order is None or len(tiff) < 8:
        return None
    (directory,) = struct.unpack_from(order + "I", tiff, 4)
    if directory + 2 > len(tiff):
        return None
    (count,) = struct.unpack_from(order + "H", tiff, directory)
    if directory + 2 + 12 * count > len(tiff):
        return None
    found: int | None = None
    for entry in range(directory + 2, directory + 2 + 12 * count, 12):
        tag, kind, values, value = struct.unpack_from(order + "HHIH", tiff, entry)
        if tag == _ORIENTATION_TAG:
            if found or kind != 3 or values != 1 or not 1 <= value <= 8:
                return None
            found = value
    return found or 1
