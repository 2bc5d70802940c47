"""The header and the segments of JPEGs that can be cut: one scan, sequential, Huffman-coded.

Restart markers divide the entropy-coded data of a scan into segments. The marker DRI says how many
MCUs a segment has (minimum coded units: 8 to 32 pixels high and wide). A segment can be decoded
without the others. It ends with a marker of two bytes: RST0 to RST7 in turn; the last one with EOI.

Seekable JPEGs list the lengths of their segments in one or more APP9 markers: the identifier
``PACKIO``, 0, 1, then a big-endian uint16 for each segment, which counts the segment's marker too.

Source: ITU-T T.81 (1992), annexes A.2 (MCUs), B.2 (markers), F.1.1.5 and F.2.1.3 (restarts).
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

SOI, EOI = b"\xff\xd8", b"\xff\xd9"
DHT, SOS, DQT, DRI = 0xC4, 0xDA, 0xDB, 0xDD
APP0, APP2, APP9, APP14 = 0xE0, 0xE2, 0xE9, 0xEE
FRAMES = frozenset({0xC0, 0xC1})  # SOF0 baseline, SOF1 extended sequential: Huffman-coded
IDENTIFIER = b"PACKIO\0\1"

_OTHERS = frozenset({DHT, DQT, 0xFE, *range(0xE0, 0xF0)})  # COM, APPn
_RESTARTS = b"".join(bytes((0xFF, code)) for code in range(0xD0, 0xD8))
_RESTART = re.compile(rb"\xff[\xd0-\xd7]")
_MAX_BLOCKS = 10  # in an MCU of several components


class Scan(NamedTuple):
    """The header of a JPEG: all that stands before the entropy-coded data."""

    markers: list[tuple[int, int, int]]  # (marker, first byte, byte behind); SOS is the last
    start: int  # byte at which the entropy-coded data begin
    height: int  # pixels
    width: int  # pixels
    blocks: list[int]  # for each component, the blocks in an MCU
    tables: bytes  # of each component, DC table << 4 | AC table
    mcu_height: int  # pixels
    mcu_width: int  # pixels
    rows: int  # of MCUs
    columns: int  # of MCUs
    interval: int  # MCUs in a segment; 0: there is one segment
    lengths: bytes  # contents of the APP9 markers behind the identifier


def parse(data: bytes) -> Scan | None:
    """Read the header of a JPEG.

    Returns:
        None if the JPEG is damaged or cannot be cut: progressive, arithmetic, lossless, 12 bits
        deep, with several scans, with a height that comes later (DNL), or bytes between markers.
    """
    if data[:2] != SOI:
        return None
    markers: list[tuple[int, int, int]] = []
    lengths: list[bytes] = []
    position, frame, interval = 2, 0, 0
    last = len(data) - 4
    while position <= last and data[position] == 0xFF:
        marker = data[position + 1]
        end = position + 2 + (data[position + 2] << 8 | data[position + 3])
        if end < position + 4 or end > len(data):
            return None
        markers.append((marker, position, end))
        if marker == APP9:
            if data.startswith(IDENTIFIER, position + 4, end):
                lengths.append(data[position + 4 + len(IDENTIFIER) : end])
        elif marker in FRAMES and not frame and end > position + 10:
            frame = position
        elif marker == DRI and end == position + 6:
            interval = data[position + 4] << 8 | data[position + 5]
        elif marker == SOS:
            return _described(data, markers, frame, interval, b"".join(lengths)) if frame else None
        elif marker not in _OTHERS:
            return None
        position = end
    return None


def _described(
    data: bytes, markers: list[tuple[int, int, int]], frame: int, interval: int, lengths: bytes
) -> Scan | None:
    _, sos, start = markers[-1]
    height, width = data[frame + 5] << 8 | data[frame + 6], data[frame + 7] << 8 | data[frame + 8]
    count = data[frame + 9]
    components = data[frame + 10 : frame + 10 + 3 * count]  # identifier, factors, DQT
    selectors = data[sos + 5 : sos + 5 + 2 * count]  # identifier, DHTs
    if (
        not (height and width and 1 <= count <= 4)
        or data[frame + 2 : frame + 5] != bytes((0, 8 + 3 * count, 8))  # length, bits a sample
        or data[sos + 2 : sos + 5] != bytes((0, 6 + 2 * count, count))
        or data[start - 3 : start] != b"\0\x3f\0"  # all coefficients at once
        or selectors[::2] != components[::3]
    ):
        return None
    factors = (
        components[1::3] if count > 1 else b"\x11"
    )  # of a lone component, the factors mean nothing
    across, down = [f >> 4 for f in factors], [f & 15 for f in factors]
    blocks = [h * v for h, v in zip(across, down, strict=True)]
    mcu_height, mcu_width = 8 * max(down), 8 * max(across)
    if not all(blocks) or sum(blocks) > _MAX_BLOCKS or max(mcu_height, mcu_width) > 32:
        return None
    return Scan(
        markers, start, height, width, blocks, selectors[1::2], mcu_height, mcu_width,
        -(-height // mcu_height), -(-width // mcu_width), interval, lengths,
    )  # fmt: skip


def segment_ends(data: bytes, scan: Scan) -> np.ndarray | None:
    """Find the segments of a scan with restarts, by the APP9 markers or else by searching.

    Every marker is checked, and counted. These pairs of bytes never stand within a segment. So if
    the right number of them follow each other in turn, and there are no others before the end, the
    segments are those of the scan.

    Returns:
        (segments + 1,) int64: the byte where the first segment begins, then the byte behind each
        segment's marker; ascending, all within ``data``. None if a marker is not in its place.
    """
    count = -(-scan.rows * scan.columns // scan.interval)
    if scan.lengths:
        if len(scan.lengths) != 2 * count:
            return None
        ends = np.empty(count + 1, np.int64)
        ends[0], ends[1:] = scan.start, np.frombuffer(scan.lengths, ">u2")
        ends = ends.cumsum()
    else:
        stop = data.find(EOI, scan.start)
        found = [restart.end() for restart in _RESTART.finditer(data, scan.start, max(stop, 0))]
        if len(found) != count - 1 or stop < 0:
            return None
        ends = np.array([scan.start, *found, stop + 2])
    if ends[-1] > len(data) or not data.startswith(EOI, ends[-1] - 2):
        return None
    if scan.lengths and not _has_markers(data[scan.start : ends[-1] - 1], count - 1):
        return None  # the list was forged
    return ends if pairs(data)[ends[1:-1] - 2].tobytes() == restarts(count - 1) else None


def _has_markers(scan: bytes, count: int) -> bool:
    """Whether a scan, with one byte behind it, has so many restart markers and no EOI."""
    view = np.frombuffer(scan, np.uint8)
    behind = view[np.flatnonzero(view[:-1] == 0xFF) + 1]
    return not np.any(behind == EOI[1]) and np.count_nonzero(behind & 0xF8 == 0xD0) == count


def pairs(data: bytes | bytearray) -> np.ndarray:
    """View each pair of neighbouring bytes as a marker: (len - 1,) big-endian uint16."""
    view: np.ndarray = np.ndarray(len(data) - 1, ">u2", data, 0, (1,))
    return view


def restarts(count: int) -> bytes:
    """The bytes of so many restart markers: RST0 to RST7 in turn."""
    return (_RESTARTS * (count // 8 + 1))[: 2 * count]
