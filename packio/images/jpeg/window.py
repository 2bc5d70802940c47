"""Windows: the part of a JPEG's bytes that a box of its pixels needs, as a small JPEG.

A JPEG with restart markers can be cut between its segments without being decoded. Restart markers
come from `packio.images.jpeg.restarts` and from some cameras. The window holds the segments that
the box touches, and the segments of the neighbouring chroma samples, from which decoders
interpolate. So the pixels of the window are equal to those of the whole image.

Of a damaged JPEG, a window may decode where the whole image does not: the damage lies outside the
box, in data that is not looked at.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

from packio.images.jpeg import _scan

_KEPT = frozenset({_scan.DHT, _scan.DQT, _scan.DRI, _scan.SOS, _scan.APP0, _scan.APP14})
_TOO_NARROW = 2  # chroma samples in a row; libjpeg-turbo interpolates only if there are more


class _Cells(NamedTuple):
    """Which segments to keep; the segments are the cells of a grid."""

    across: int  # cells in a row of the whole image
    cell_height: int  # pixels
    cell_width: int  # pixels
    row: int  # of the first cell kept
    column: int
    rows: int  # of cells kept
    columns: int


def window(
    data: bytes, box: tuple[int, int, int, int], size: tuple[int, int] | None = None
) -> tuple[bytes | bytearray, int, int]:
    """Cut out the part of a JPEG that holds a box.

    Args:
        data: The JPEG. Only the header and the bytes around each cut are read.
        box: (top, left, height, width) in pixels as stored, before orientation, within the image.
        size: (height, width) that the image should have, if known.

    Returns:
        A JPEG, and the top and left of its first pixel in the whole image. The JPEG has the tables
        and the markers of the colours (JFIF, Adobe), and no other metadata. It is a bytearray,
        because another copy would take as long as the cutting.

        The result is ``data, 0, 0`` if the box needs the whole image, or if the JPEG cannot be cut:
        there are no restart markers, none at the ends of MCU rows, or one is missing; the size is
        not ``size``; the header is unusual or damaged, which the decoder will say.
    """
    scan = _scan.parse(data)
    if scan is None or size not in (None, (scan.height, scan.width)):
        return data, 0, 0
    if (cut := _cut(scan, box)) is None:
        return data, 0, 0
    if (ends := _scan.segment_ends(data, scan)) is None:
        return data, 0, 0
    top, left = cut.row * cut.cell_height, cut.column * cut.cell_width
    height = min(cut.rows * cut.cell_height, scan.height - top)
    width = min(cut.columns * cut.cell_width, scan.width - left)
    return _joined(data, _header(data, scan, height, width), ends, cut), top, left


def _cut(scan: _scan.Scan, box: tuple[int, int, int, int]) -> _Cells | None:
    """Find the cells that a box needs; None if there is no grid, or if the box needs all cells."""
    if not scan.interval or (scan.columns % scan.interval and scan.interval % scan.columns):
        return None
    top, left, height, width = box
    cell_height = max(scan.interval // scan.columns, 1) * scan.mcu_height
    cell_width = min(scan.interval, scan.columns) * scan.mcu_width
    down, across = -(-scan.height // cell_height), -(-scan.width // cell_width)
    # A chroma sample spans as many pixels as the MCU has blocks. The samples next to the box stay.
    reach_y, reach_x = scan.mcu_height // 8 - 1, scan.mcu_width // 8 - 1
    narrow = (
        scan.width - _TOO_NARROW * (reach_x + 1) - 1
    )  # a window that begins further right is too narrow
    row = max(top - reach_y, 0) // cell_height
    column = max(min(left - reach_x, narrow), 0) // cell_width
    rows = min(-(-(top + height + reach_y) // cell_height), down) - row
    columns = min(-(-(left + width + reach_x) // cell_width), across) - column
    if rows < 1 or columns < 1 or rows * columns == down * across:
        return None
    return _Cells(across, cell_height, cell_width, row, column, rows, columns)


def _header(data: bytes, scan: _scan.Scan, height: int, width: int) -> bytes:
    parts = [_scan.SOI]
    for marker, start, end in scan.markers:
        if marker in _KEPT:
            parts.append(data[start:end])
        elif marker in _scan.FRAMES:
            size = struct.pack(">HH", height, width)
            parts.append(data[start : start + 5] + size + data[start + 9 : end])
    return b"".join(parts)


def _joined(data: bytes, header: bytes, ends: np.ndarray, cut: _Cells) -> bytearray:
    """Put the header before the cells that are kept, and number their restart markers anew."""
    first = cut.row * cut.across + cut.column
    last = first + cut.rows * cut.across
    starts = ends[first : last : cut.across].tolist()
    stops = ends[first + cut.columns : last + cut.columns : cut.across].tolist()
    view, parts = memoryview(data), [memoryview(header)]
    parts += [view[start:stop] for start, stop in zip(starts, stops, strict=True)]
    out = bytearray().join(parts)  # the only copy
    lengths = (ends[1:] - ends[:-1]).reshape(-1, cut.across)
    rows, columns = slice(cut.row, cut.row + cut.rows), slice(cut.column, cut.column + cut.columns)
    kept = lengths[rows, columns].cumsum() + (len(header) - 2)
    _scan.pairs(out)[kept] = np.frombuffer(_scan.restarts(len(kept)), ">u2")
    out[-1] = _scan.EOI[1]
    return out
