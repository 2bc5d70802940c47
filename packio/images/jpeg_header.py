"""Facts from a JPEG file's header, without decoding.

A JPEG file is a sequence of segments: the byte FF, a marker byte and, for most markers, a
big-endian uint16 length that counts itself. The frame header (SOFn) has the sample precision
(1 byte), height and width (2 bytes each) and the number of components (1 byte); the image data
begins after SOS.

The orientation is read here, not by Pillow: 1.9 µs an image for Exif data of a camera against
17 µs by `PIL.Image.Exif`, and 5.4 µs against 45 µs for the whole header.

Source: ITU-T T.81 (1992), annex B; Exif 2.32, section 4.5.4 (the APP1 segment and its TIFF).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

_SOS, _APP1, _EXIF = 0xDA, 0xE1, b"Exif\0\0"
_SOF = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # C4 DHT, C8 reserved, CC DAC
_PROGRESSIVE = frozenset({0xC2, 0xC6, 0xCA, 0xCE})
_LOSSLESS = frozenset({0xC3, 0xC7, 0xCB, 0xCF})
_RESTARTS = frozenset(range(0xD0, 0xD8))  # RSTn have no length
# What Pillow passes over as libjpeg does: SOFn, DHT, DAC, DQT, DRI, APPn, COM.
_SEGMENTS = _SOF | {0xC4, 0xCC, 0xDB, 0xDD, *range(0xE0, 0xF0), 0xFE, _SOS}
_ORIENTATION_TAG = 0x0112


class JpegHeader(NamedTuple):
    """What the segments before the image data say."""

    height: int  # pixels, as stored
    width: int  # pixels, as stored
    components: int
    precision: int  # bits a sample
    progressive: bool
    orientation: int | None  # 1..8; None: unclear, ask another parser
    lossless: bool = False  # coded without a DCT


def parse(data: bytes) -> JpegHeader | None:  # noqa: C901 (one loop over segments)
    """Read a JPEG's header: the segments before the image data.

    None if the file is unusual, so that Pillow has to read it: it does not start with SOI, a
    segment runs past the end, no frame header precedes the data, or there is a marker that Pillow
    refuses and libjpeg passes over, as TEM.
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
                orientation = None if tells else _orientation(body)
                tells = True  # of several segments, Pillow knows which one counts
        elif marker == _SOS:
            found = frame is not None and frame[0] and frame[1]
            return JpegHeader(*frame, orientation, lossless) if frame and found else None
        position += 2 + length
    return None


def has_dct(data: bytes) -> bool:
    """Whether a JPEG can be decoded at a smaller size.

    Of a lossless one, libjpeg-turbo 3.1 writes all pixels, beyond the end of the smaller image; or
    Pillow calls it broken.
    """
    found = parse(data)
    return found is not None and not found.lossless


def _orientation(app1: bytes) -> int | None:
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
