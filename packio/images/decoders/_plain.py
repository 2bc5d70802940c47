"""Which image files are plain enough that all libraries decode them to the same pixels.

Libraries hide problems: they fill missing data with gray, or convert CMYK in ways of their own.
A file that passes these checks is of a kind on which all libraries agree. Any other file raises
DecodeError, and Pillow decodes it.
"""

from __future__ import annotations

import re
import struct

from packio.errors import DecodeError
from packio.images import encodings
from packio.images.encodings import PNG_MAGIC

_EOI, _SOS = 0xD9, 0xDA
_FRAMES = frozenset({0xC0, 0xC1, 0xC2})  # Huffman: baseline, extended, progressive
_SEGMENTS = frozenset({0xC4, _SOS, 0xDB, 0xDD, 0xFE, *range(0xE0, 0xF0)})  # DHT DQT DRI COM APPn
_APP14, _RGB = 0xEE, b"RGB"
_SAMPLINGS = frozenset(
    {b"\x11", b"\x21\x11\x11", b"\x22\x11\x11", b"\x12\x11\x11", b"\x11\x11\x11"}
)  # of each component, across << 4 | down
_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")  # not stuffing, RSTn or fill; 22 µs for 70 KB
_PNG_HARMLESS = frozenset(
    {b"IHDR", b"IDAT", b"IEND", b"pHYs", b"tIME", b"sRGB", b"gAMA", b"cHRM", b"sBIT", b"bKGD"}
)


def plain_jpeg(data: bytes, mode: str) -> encodings.JpegHeader:
    """Check that a JPEG is 8 bits deep, and gray or, if the mode is not GRAY, in three colours."""
    facts = encodings.parse_jpeg(data)
    if facts is None:
        raise DecodeError("an unusual JPEG header")
    if facts.precision != 8 or facts.components not in (1, 3):
        raise DecodeError(
            f"{facts.components} components of {facts.precision} bits, expected 1 or 3 of 8"
        )
    check_gray(mode, is_gray=facts.components == 1)
    if facts.progressive:
        _check_complete(data, facts.components)
    return facts


def _check_complete(data: bytes, components: int) -> None:
    """Leave progressive JPEGs without their last scans to Pillow.

    libjpeg-turbo smooths their blocks, and does so otherwise since 2.1, and since 3.0.

    Source: ITU-T T.81, B.2.3 (scan header): Ss, Se, and the low half of Ah/Al, which ends as 0.
    """
    whole: dict[int, set[int]] = {}  # component → its coefficients that have all bits
    position = 2
    while match := _MARKER.search(data, position):
        position = match.end() + int.from_bytes(data[match.end() : match.end() + 2], "big")
        if data[match.start() + 1] == _EOI:
            break
        if data[match.start() + 1] == _SOS and position <= len(data):
            first, last, bits = data[position - 3 : position]
            for component in data[match.end() + 3 : position - 3 : 2]:
                if not bits & 15:
                    whole.setdefault(component, set()).update(range(first, last + 1))
    if sum(len(found) for found in whole.values()) < 64 * components:
        raise DecodeError("a progressive JPEG without its last scans")


def check_gray(mode: str, *, is_gray: bool) -> None:
    """Leave coloured pixels to Pillow under the mode GRAY: libraries convert them differently."""
    if mode == "GRAY" and not is_gray:
        raise DecodeError("coloured pixels under mode='GRAY'")


def check_scans(data: bytes) -> None:
    """Check that segments and scans follow each other up to EOI: some libraries stop before it."""
    position, frames = 2, 0
    while match := _MARKER.match(data, position):
        marker = data[match.start() + 1]
        if marker == _EOI:
            return
        frames += marker in _FRAMES
        if frames > 1 or not (marker in _FRAMES or marker in _SEGMENTS):
            break
        position += 2 + int.from_bytes(data[position + 2 : position + 4], "big")
        if marker == _SOS:
            found = _MARKER.search(data, position)
            position = found.start() if found else len(data)
    raise DecodeError(f"no JPEG segment at byte {position}: damaged or truncated")


def plain_ycbcr(data: bytes) -> tuple[int, int, int]:
    """Check that a JPEG is whole, 8 bits deep, and gray or YCbCr: 4:4:4, 4:2:2, 4:4:0 or 4:2:0.

    For libraries that ignore the colour space, or determine it in a way of their own. Returns
    height and width in pixels, and the number of components.

    Source: ITU-T T.81, B.2.2 (frame header); T.872, 6.5.3 (Adobe's APP14, whose last byte is 1 for
    YCbCr); libjpeg's default_decompress_parms (components named R, G, B are that).
    """
    position, frame = 2, b""
    while match := _MARKER.match(data, position):
        marker, body = data[match.start() + 1], match.end() + 2
        position = match.end() + int.from_bytes(data[match.end() : body], "big")
        if marker == _SOS and frame:
            if not _ends_at_next_marker(data, position):
                check_scans(data)
            return _of_frame(frame)
        if marker in _FRAMES and not frame:
            frame = bytes(data[body:position])
        elif marker not in _SEGMENTS:
            break
        elif marker == _APP14 and data[body : body + 5] == b"Adobe" and data[position - 1] != 1:
            raise DecodeError("a JPEG that Adobe's marker says is not YCbCr")
    raise DecodeError("an unusual JPEG header")


def _of_frame(frame: bytes) -> tuple[int, int, int]:
    if len(frame) >= 9:
        precision, height, width, components = struct.unpack_from(">BHHB", frame)
        names, samplings = frame[6::3], frame[7::3]
        if samplings in _SAMPLINGS and names != _RGB and precision == 8 and height and width:
            return height, width, components
    raise DecodeError("a JPEG of unusual components, colours or size")


def _ends_at_next_marker(data: bytes, position: int) -> bool:
    """Whether the first marker in entropy-coded data is EOI; NumPy lets other threads run."""
    import numpy as np

    coded = np.frombuffer(data, np.uint8)[position:]
    codes = coded[np.flatnonzero(coded[:-1] == 0xFF) + 1]
    markers = codes[(codes != 0) & (codes != 0xFF) & ((codes < 0xD0) | (codes > 0xD7))]
    return bool(len(markers)) and bool(markers[0] == _EOI)


def plain_png(data: bytes) -> tuple[int, int]:
    """Check that a PNG is complete, without transparency, palette, frames or metadata.

    Returns bits a sample, and the colour type: 0 gray, 2 RGB, 3 palette, 4 and 6 with alpha.

    Source: PNG specification, third edition, sections 5.3 (chunks) and 11.2.1 (IHDR).
    """
    if data[:8] != PNG_MAGIC or data[12:16] != b"IHDR" or len(data) < 33:
        raise DecodeError("no PNG header")
    position = 8
    while position + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        if kind not in _PNG_HARMLESS:
            raise DecodeError(f"PNG chunk {kind!r}")
        position += 12 + length
        if kind == b"IEND" and position <= len(data):
            return data[24], data[25]
    raise DecodeError("no IEND chunk: truncated")
