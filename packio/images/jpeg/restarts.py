"""Seekable JPEGs: with a restart marker every few MCUs, so that a window can be cut out.

Nothing is lost: the coefficients stay equal, so every decoder makes the same pixels. The file grows
by a little more than 1 %. `packio.images.jpeg._scan` says how restarts are marked.
"""

from __future__ import annotations

import functools
import io
import math
import struct

import numpy as np

from packio.errors import MissingPackageError
from packio.images import native
from packio.images.jpeg import _scan

# Measured with RandomResizedCrop on photos of 500x375 and 4000x3000 pixels: shorter segments are
# not faster to crop, and each segment costs 6 bytes.
_LEAST_BYTES = 300  # in a segment, on average
_MOST_ACROSS = 16  # segments in a row of MCUs

_LONGEST = 0xFFFF  # segment, bytes
_LENGTHS = 32_000  # in a marker, which holds 65,533 bytes
_LARGEST_TABLE = 16 + 256  # bytes: a symbol is a byte
_AC = 0x10  # the class of a Huffman table, beside its number; 0 for DC


def make_seekable(data: bytes, *, check: bool = False) -> bytes:
    """Put restart markers into a JPEG, without loss; restart markers that were there are replaced.

    The native core does it, in a fifth of the time that decoding takes. Several threads may call
    the function at once; it releases the GIL.

    Args:
        data: The JPEG.
        check: Decode the JPEG before and after, and return ``data`` if the pixels differ.

    Returns:
        A JPEG with the same coefficients, and the same markers but for the restarts. Or ``data``
        itself if the JPEG is seekable already; is progressive, arithmetic or 12 bits deep; has
        several scans or pictures; is damaged or no JPEG; is too small for two segments; or would
        get a segment of more than 65,535 bytes.
    """
    scan = _scan.parse(data)
    if scan is None or _has_all_markers(data, scan) or _has_pictures(data, scan):
        return data
    made = _recut(data, scan)
    if made is None or (check and not _same_pixels(data, made)):
        return data
    return made


def is_seekable(data: bytes) -> bool:
    """Tell whether `make_seekable` made a JPEG, with all restart markers in their places."""
    scan = _scan.parse(data)
    return scan is not None and _has_all_markers(data, scan)


def _has_all_markers(data: bytes, scan: _scan.Scan) -> bool:
    return bool(scan.lengths and scan.interval) and _scan.segment_ends(data, scan) is not None


def _has_pictures(data: bytes, scan: _scan.Scan) -> bool:
    """Tell whether the header lists more pictures behind the first one, by offset (MPF)."""
    return any(m == _scan.APP2 and data.startswith(b"MPF\0", at + 4) for m, at, _ in scan.markers)


def _recut(data: bytes, scan: _scan.Scan) -> bytes | None:
    """Make a JPEG with other restarts; None if the JPEG is damaged or gets one segment only."""
    if reason := native.why_not():
        message = f"no JPEG can be made seekable: the native core is missing ({reason})"
        raise MissingPackageError(f"{message}; install a C compiler, then packio again")
    mcus, size = scan.rows * scan.columns, len(data) - scan.start
    blocks = bytes(c for c, count in enumerate(scan.blocks) for _ in range(count))
    specifications = _specifications(data, scan)
    if specifications is None or mcus * len(blocks) > 4 * size:  # a block has 2 bits or more
        return None
    stop = native.end_of_scan(data, scan.start)
    if stop <= scan.start or not data.startswith(_scan.EOI, stop):
        return None
    interval = _interval(scan, stop - scan.start)
    intervals = scan.interval or mcus, interval
    tables = tuple(native.Codes(dc, ac, _codes(_completed(dc))) for dc, ac in specifications)
    made = native.recut(data, scan.start, mcus, intervals, blocks, tables)
    if made is None or len(made.lengths) == 1 or made.lengths.max() > _LONGEST:
        return None
    missing = _missing(scan, specifications, made.used)
    header = _header(data, scan, interval, made.lengths, missing)
    return b"".join([*header, made.data, data[stop + 2 :]])


def _interval(scan: _scan.Scan, size: int) -> int:
    """Choose how many MCUs a segment has: an even part of an MCU row, or whole rows.

    Args:
        scan: The scan.
        size: Of its entropy-coded data, bytes.
    """
    least = max(_LEAST_BYTES * scan.rows * scan.columns / size, scan.columns / _MOST_ACROSS)
    if least > scan.columns:
        return scan.columns * min(math.ceil(least / scan.columns), 0xFFFF // scan.columns)
    return next(n for n in range(math.ceil(least), scan.columns + 1) if scan.columns % n == 0)


def _header(
    data: bytes, scan: _scan.Scan, interval: int, lengths: np.ndarray, tables: dict[int, bytes]
) -> list[bytes]:
    """Make the parts of the header, which stands before the entropy-coded data.

    Args:
        data: The JPEG as it was.
        scan: The JPEG's header, parsed.
        interval: MCUs between restarts.
        lengths: (segments,) int64 bytes.
        tables: Huffman tables to be added, by class and number.
    """
    parts = [_scan.SOI]
    for marker, start, end in scan.markers[:-1]:
        ours = marker == _scan.APP9 and data.startswith(_scan.IDENTIFIER, start + 4, end)
        if not ours and marker != _scan.DRI:
            parts.append(data[start:end])
    for number, specification in tables.items():
        parts.append(_marker(_scan.DHT, bytes([number]) + specification))
    parts.append(_marker(_scan.DRI, struct.pack(">H", interval)))
    for first in range(0, len(lengths), _LENGTHS):
        some = lengths[first : first + _LENGTHS].astype(">u2").tobytes()
        parts.append(_marker(_scan.APP9, _scan.IDENTIFIER + some))
    _, start, end = scan.markers[-1]
    return [*parts, data[start:end]]


def _marker(marker: int, body: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, 2 + len(body)) + body


def _specifications(data: bytes, scan: _scan.Scan) -> list[tuple[bytes, bytes]] | None:
    """The DC and the AC table of each component: counts of codes by length (16 bytes), symbols.

    Returns:
        None if a table is missing or makes no sense.
    """
    found = {}  # class and number → table
    for marker, start, end in scan.markers:
        position = start + 4
        while marker == _scan.DHT and position < end:
            size = 16 + sum(data[position + 1 : position + 17])
            found[data[position]] = data[position + 1 : position + 1 + size]
            position += 1 + size
            if position > end or size > _LARGEST_TABLE:
                return None
    try:
        return [(found[s >> 4], found[_AC | s & 15]) for s in scan.tables]
    except KeyError:
        return None


@functools.lru_cache(maxsize=16)  # encoders use few tables
def _completed(specification: bytes) -> bytes:
    """Add codes to a DC table for the sizes that have none; all codes that were there stay.

    Returns:
        The specification of the new table; the old one if there is no room for more codes.
    """
    counts, lacking = list(specification[:16]), _lacking(specification)
    free = (1 << 16) - sum(count << (15 - i) for i, count in enumerate(counts))  # codes of 16 bits
    longest = max((i for i, count in enumerate(counts) if count), default=0)
    for i in range(longest, 16):
        if free >> (15 - i) > len(lacking):  # one more than needed: all ones are no code
            counts[i] += len(lacking)
            return bytes(counts) + specification[16:] + lacking
    return specification


@functools.lru_cache(maxsize=16)
def _lacking(specification: bytes) -> bytes:
    """Sizes of DC differences for which a table has no code."""
    return bytes([size for size in range(12) if size not in specification[16:]])


@functools.lru_cache(maxsize=16)
def _codes(specification: bytes) -> tuple[int, ...]:
    """For each size of a DC difference, its code << 5 | the code's length in bits; 0: no code."""
    codes, code, position = [0] * 12, 0, 16
    for length, count in enumerate(specification[:16], 1):
        code <<= 1
        for size in specification[position : position + count]:
            if size < len(codes):
                codes[size] = code << 5 | length
            code += 1
        position += count
    return tuple(codes)


def _missing(
    scan: _scan.Scan, specifications: list[tuple[bytes, bytes]], used: list[int]
) -> dict[int, bytes]:
    """Completed tables by number, if the table had no code for a size that was written."""
    components = zip(scan.tables, specifications, used[: len(specifications)], strict=True)
    return {
        selector >> 4: _completed(dc)
        for selector, (dc, _), sizes in sorted(components)
        if any(sizes >> size & 1 for size in _lacking(dc))
    }


def _same_pixels(data: bytes, other: bytes) -> bool:
    try:
        return np.array_equal(_pixels(data), _pixels(other))
    except OSError:
        return False


def _pixels(data: bytes) -> np.ndarray:
    import simplejpeg

    try:
        pixels: np.ndarray = simplejpeg.decode_jpeg(data, "RGB")
    except ValueError:  # damaged, or sampled in an unusual way
        from PIL import Image

        with Image.open(io.BytesIO(data)) as image:
            pixels = np.asarray(image)
    return pixels
