"""The part of a JPEG's bytes that a box of its pixels needs, as a JPEG of its own.

A JPEG with restart markers (`packio.images.jpeg.restarts` puts them in, some cameras do) is cut
between its segments without being decoded. The window holds the segments that the box touches, and
those of the neighbouring chroma samples from which decoders interpolate; so its pixels are those of
the whole image.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

from packio.images.jpeg import _scan

_KEPT = frozenset({_scan.DHT, _scan.DQT, _scan.DRI, _scan.SOS, _scan.APP0, _scan.APP14})
_TOO_NARROW = 2  # chroma samples a row; with no more, libjpeg-turbo does not interpolate


class _Cut(NamedTuple):
    """Which segments to keep; they are the cells of a grid."""

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
        data: The JPEG. Only its header and the places where it is cut are looked at.
        box: (top, left, height, width) in pixels as stored, before orientation, within the image.
        size: (height, width) that the image should have, if known.

    Returns:
        A JPEG (a bytearray, where it was cut: another copy would take as long as all the rest), and
        the top and left in the whole image of its first pixel. It has the tables, the
        markers that say what the colours are (JFIF, Adobe) and no other metadata. It is ``data, 0,
        0`` where that cannot be cut (it has no restart markers, none where rows of MCUs end, or not
        all of them where they should be), where nothing can be left out, where it has another size,
        and where the header is unusual or damaged: who decodes it is to say so.
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


def _cut(scan: _scan.Scan, box: tuple[int, int, int, int]) -> _Cut | None:
    """Find the cells that a box needs; None where there is no grid, or it needs all of it."""
    if not scan.interval or (scan.columns % scan.interval and scan.interval % scan.columns):
        return None
    top, left, height, width = box
    cell_height = max(scan.interval // scan.columns, 1) * scan.mcu_height
    cell_width = min(scan.interval, scan.columns) * scan.mcu_width
    down, across = -(-scan.height // cell_height), -(-scan.width // cell_width)
    # A chroma sample is as many pixels as there are blocks; that next to the box has to be there.
    reach_y, reach_x = scan.mcu_height // 8 - 1, scan.mcu_width // 8 - 1
    narrow = scan.width - _TOO_NARROW * (reach_x + 1) - 1  # where too narrow a window would begin
    row = max(top - reach_y, 0) // cell_height
    column = max(min(left - reach_x, narrow), 0) // cell_width
    rows = min(-(-(top + height + reach_y) // cell_height), down) - row
    columns = min(-(-(left + width + reach_x) // cell_width), across) - column
    if rows < 1 or columns < 1 or rows * columns == down * across:
        return None
    return _Cut(across, cell_height, cell_width, row, column, rows, columns)


def _header(data: bytes, scan: _scan.Scan, height: int, width: int) -> bytes:
    parts = [_scan.SOI]
    for marker, start, end in scan.markers:
        if marker in _KEPT:
            parts.append(data[start:end])
        elif marker in _scan.FRAMES:
            size = struct.pack(">HH", height, width)
            parts.append(data[start : start + 5] + size + data[start + 9 : end])
    return b"".join(parts)


def _joined(data: bytes, header: bytes, ends: np.ndarray, cut: _Cut) -> bytearray:
    """Put a header before the cells that are kept, and give these new markers."""
    first = cut.row * cut.across + cut.column
    last = first + cut.rows * cut.across
    starts = ends[first : last : cut.across].tolist()
    stops = ends[first + cut.columns : last + cut.columns : cut.across].tolist()
    view, parts = memoryview(data), [memoryview(header)]
    parts += [view[start:stop] for start, stop in zip(starts, stops, strict=True)]
    out = bytearray().join(parts)  # the one copy that is made
    lengths = (ends[1:] - ends[:-1]).reshape(-1, cut.across)
    rows, columns = slice(cut.row, cut.row + cut.rows), slice(cut.column, cut.column + cut.columns)
    kept = lengths[rows, columns].cumsum() + (len(header) - 2)
    _scan.pairs(out)[kept] = np.frombuffer(_scan.restarts(len(kept)), ">u2")
    out[-1] = _scan.EOI[1]
    return out
