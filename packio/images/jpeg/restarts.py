"""Seekable JPEGs: with a restart marker every few MCUs, so that a window can be cut out.

Nothing is lost: the coefficients stay equal, so every decoder makes the same pixels. The file grows
by a little more than 1 %. `packio.images.jpeg._scan` says how restarts are marked.
"""

from __future__ import annotations

import contextlib
import functools
import io
import math
import struct
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import NamedTuple

import numpy as np

from packio import registry
from packio.errors import MissingPackageError
from packio.images.jpeg import _scan

# Measured with RandomResizedCrop on photos of 500x375 and 4000x3000 pixels: shorter segments are
# not faster to crop, and each segment costs 6 bytes.
_LEAST_BYTES = 300  # in a segment, on average
_MOST_ACROSS = 16  # segments in a row of MCUs

_LONGEST = 0xFFFF  # segment, bytes
_LENGTHS = 32_000  # in a marker, which holds 65,533 bytes
_AC = 0x10  # the class of a Huffman table, beside its number; 0 for DC


def make_seekable(data: bytes, *, check: bool = False) -> bytes:
    """Put restart markers into a JPEG, without loss; restart markers that were there are replaced.

    The first call in a process loads numba, which takes half a second. The first call ever compiles
    for ten seconds. Several threads may call the function at once; it releases the GIL.

    Args:
        data: The JPEG.
        check: Decode the JPEG before and after, and return ``data`` if the pixels differ.

    Returns:
        A JPEG with the same coefficients, and the same markers but for the restarts. Or ``data``
        itself if the JPEG is seekable already; is progressive, arithmetic or 12 bits deep; has
        several scans or pictures; is damaged or no JPEG; is too small for two segments; or would
        get a segment of more than 65,535 bytes.

    Raises:
        MissingPackageError: numba is not installed.
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


@contextlib.contextmanager
def compiling_told(tell: Callable[[int], None]) -> Iterator[None]:
    """Tell when `make_seekable` compiles.

    Args:
        tell: Called with 1 when the compiling of a function begins in this process, and with -1
            when it ends. Such pairs may lie within each other. Without numba there are no calls.

    Source: https://numba.readthedocs.io/en/stable/developer/event_api.html
    """
    try:
        event = registry.require("numba.core.event", "seekable")
    except MissingPackageError:
        yield
        return

    class Listener(event.Listener):  # type: ignore[misc,name-defined]  # numba has no types
        """Passes numba's events on."""

        def on_start(self, _: object) -> None:
            tell(1)

        def on_end(self, _: object) -> None:
            tell(-1)

    with event.install_listener("numba:compile", Listener()):
        yield


def _has_all_markers(data: bytes, scan: _scan.Scan) -> bool:
    return bool(scan.lengths and scan.interval) and _scan.segment_ends(data, scan) is not None


def _has_pictures(data: bytes, scan: _scan.Scan) -> bool:
    """Tell whether the header lists more pictures behind the first one, by offset (MPF)."""
    return any(m == _scan.APP2 and data.startswith(b"MPF\0", at + 4) for m, at, _ in scan.markers)


@functools.cache  # a module: the same in every process
def _kernels() -> ModuleType:
    registry.require("numba", "seekable")
    from packio.images.jpeg import _entropy

    return _entropy


def _recut(data: bytes, scan: _scan.Scan) -> bytes | None:
    """Make a JPEG with other restarts; None if the JPEG is damaged or gets one segment only."""
    kernels = _kernels()
    tables = _tables(data, scan)
    mcus, size = scan.rows * scan.columns, len(data) - scan.start
    if tables is None or mcus * len(tables.blocks) > 4 * size:  # a block has 2 bits or more
        return None
    restarts = scan.interval or mcus
    ends = np.empty(-(-mcus // restarts), np.int64)
    clean = np.zeros(size + kernels.PADDING, np.uint8)
    stop = kernels.unstuff(np.frombuffer(data, np.uint8), scan.start, clean, ends)
    if stop <= scan.start or not data.startswith(_scan.EOI, stop):
        return None
    interval = _interval(scan, stop - scan.start)
    lengths = np.empty(-(-mcus // interval), np.int64)
    out = np.empty(2 * size + kernels.ROOM * (len(ends) + len(lengths)), np.uint8)
    sizes = np.zeros(len(tables.dc), np.int64)
    written = kernels.recut(
        clean, ends, restarts, mcus, interval, tables.blocks, tables.dc_lookups, tables.dc_codes,
        tables.ac_lookups, tables.ac_skips, out, lengths, sizes,
    )  # fmt: skip
    if written < 0 or len(lengths) == 1 or lengths.max() > _LONGEST:
        return None
    header = _header(data, scan, interval, lengths, _missing(tables, sizes))
    return b"".join([*header, out[:written].data, data[stop + 2 :]])


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


class _Tables(NamedTuple):
    """The Huffman tables of a scan; the arrays are arguments of `_entropy.recut`."""

    dc: list[tuple[int, bytes]]  # number, specification
    blocks: np.ndarray
    dc_lookups: np.ndarray
    dc_codes: np.ndarray
    ac_lookups: np.ndarray
    ac_skips: np.ndarray


def _tables(data: bytes, scan: _scan.Scan) -> _Tables | None:
    """Read the tables that a scan uses; None if a table is missing or makes no sense."""
    found = _specifications(data, scan)
    dc = sorted({selector >> 4 for selector in scan.tables})
    ac = sorted({_AC | selector & 15 for selector in scan.tables})
    if found is None or not found.keys() >= {*dc, *ac}:
        return None
    dc_arrays = _dc_arrays(*[found[number] for number in dc])
    ac_arrays = _ac_arrays(*[found[number] for number in ac])
    if dc_arrays is None or ac_arrays is None:
        return None
    blocks = [
        (component, dc.index(selector >> 4), ac.index(_AC | selector & 15))
        for component, selector in enumerate(scan.tables)
        for _ in range(scan.blocks[component])
    ]
    dc_specifications = [(number, found[number]) for number in dc]
    return _Tables(dc_specifications, np.array(blocks, np.uint64), *dc_arrays, *ac_arrays)


def _specifications(data: bytes, scan: _scan.Scan) -> dict[int, bytes] | None:
    """Read DHT markers: class and number → counts of codes by length (16 bytes), symbols."""
    found = {}
    for marker, start, end in scan.markers:
        position = start + 4
        while marker == _scan.DHT and position < end:
            size = 16 + sum(data[position + 1 : position + 17])
            found[data[position]] = data[position + 1 : position + 1 + size]
            position += 1 + size
            if position > end:
                return None
    return found


@functools.lru_cache(
    maxsize=8
)  # encoders use few tables; the arrays are only read, so threads are safe
def _dc_arrays(*specifications: bytes) -> tuple[np.ndarray, np.ndarray] | None:
    lookups = _lookups(specifications)
    codes = np.array([_codes(_completed(specification)) for specification in specifications])
    return None if lookups is None else (lookups, codes)


@functools.lru_cache(maxsize=8)  # as above
def _ac_arrays(*specifications: bytes) -> tuple[np.ndarray, np.ndarray] | None:
    lookups = _lookups(specifications)
    if lookups is None:
        return None
    skips = np.zeros((len(specifications), 1 << _kernels().PREFIX), np.uint16)
    for lookup, its_skips in zip(lookups, skips, strict=True):
        _kernels().combine(lookup, its_skips)
    return lookups, skips


def _lookups(specifications: tuple[bytes, ...]) -> np.ndarray | None:
    lookups = np.zeros((len(specifications), 1 << 16), np.uint16)
    for specification, lookup in zip(specifications, lookups, strict=True):
        if _kernels().expand(np.frombuffer(specification, np.uint8), lookup) < 0:
            return None
    return lookups


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


def _lacking(specification: bytes) -> bytes:
    """Sizes of DC differences for which a table has no code."""
    return bytes([size for size in range(12) if size not in specification[16:]])


def _codes(specification: bytes) -> list[int]:
    """For each size of a DC difference, its code << 5 | the code's length in bits; 0: no code."""
    codes, code, position = [0] * 12, 0, 16
    for length, count in enumerate(specification[:16], 1):
        code <<= 1
        for size in specification[position : position + count]:
            if size < len(codes):
                codes[size] = code << 5 | length
            code += 1
        position += count
    return codes


def _missing(tables: _Tables, sizes: np.ndarray) -> dict[int, bytes]:
    """Completed tables by number, if the table had no code for a size that was written."""
    return {
        number: _completed(specification)
        for (number, specification), written in zip(tables.dc, sizes.tolist(), strict=True)
        if any(written >> size & 1 for size in _lacking(specification))
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
