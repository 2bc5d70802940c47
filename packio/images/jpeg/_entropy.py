"""Writes entropy-coded data again with other restart intervals; compiled by numba.

The code follows Huffman codes and decodes no coefficients. The DC coefficient of a block is coded
as the difference from the previous block of the same component in the segment. So only the
differences at the beginnings of segments change. All other bits are copied, 56 at a time.

A reader is (next byte, bits that were loaded and not used, their number). A writer is (bytes
written, bits that were not written, their number). Bits are held in a uint64 from the highest on.
Functions return -1 if the data are damaged. They never read or write outside their arrays: they
read at most one block beyond the last byte, and `PADDING` is longer than a block.

Source: ITU-T T.81 (1992), annexes B.1.1.5 (byte stuffing), C (Huffman tables), F.1.2 and F.2.2
(coding of differences and coefficients). Filling a reader without a branch: Fabian Giesen, "Reading
bits in far too many ways (part 2)", 2018, variant 4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import numba
import numpy as np

PADDING = 320  # bytes; a block has at most 16 + 11 + 63 * (16 + 15) bits, and 8 bytes are read
PREFIX = 12  # bits; 11 to 13 are equally fast
SIZES = 12  # of DC differences, 0 to 11 bits
ROOM = 48  # bytes; 4 DC differences of 27 bits and a filled byte, all stuffed; a marker; 8 at once

Array: TypeAlias = np.ndarray
Word: TypeAlias = Any  # uint64, of numba's arithmetic rather than numpy's
Bits: TypeAlias = tuple[int, Word, int]  # a reader or a writer

_Function = TypeVar("_Function", bound=Callable[..., Any])

_U64 = np.uint64
_ONES, _LOWS, _HIGHS = _U64(0xFFFFFFFFFFFFFFFF), _U64(0x0101010101010101), _U64(0x8080808080808080)
_FORWARD = (1 << 40) - 1  # an index & this is not negative: numba need not count from the end
_BITS, _LAST, _STEP = 63, 64, 7  # parts of what `combine` makes


def _compiled(function: _Function) -> _Function:
    """Compile a function when it is first called; keep the result for other processes."""
    try:
        compiled: _Function = numba.njit(function, nogil=True, cache=True)
    except RuntimeError:  # there is no folder to keep the result in
        compiled = numba.njit(function, nogil=True)
    return compiled


@_compiled
def expand(specification: Array, table: Array) -> int:
    """Expand a Huffman table.

    Args:
        specification: (16 + n,) uint8, as in DHT: the number of codes of each length, then symbols.
        table: (65536,) uint16, zeros. The entry of the next 16 bits becomes symbol << 8 | length of
            the code that they begin with; it stays 0 if they begin with no code.
    """
    code, at = 0, 16
    for length in range(1, 17):
        span = 1 << (16 - length)
        for _ in range(specification[length - 1]):
            if at == len(specification) or code + span >= 1 << 16:  # all ones are no code
                return -1
            table[code : code + span] = np.uint16(specification[at]) << 8 | length
            code += span
            at += 1
    return 0 if at == len(specification) else -1


@_compiled
def combine(table: Array, skips: Array) -> None:
    """Combine the AC codes that fit into PREFIX bits, so that one step skips all of them.

    Args:
        table: As `expand` fills it.
        skips: (1 << PREFIX,) uint16, zeros. The entry of the next bits combines three values: the
            number of bits of all codes in them, with the bits behind these codes (mask _BITS);
            _LAST if the last code ends the block; the number of coefficients << _STEP. The entry
            stays 0 if no whole code is in the bits.
    """
    for prefix in range(len(skips)):
        bits, coefficients = 0, 0
        while bits < PREFIX and coefficients < 64:
            entry = table[prefix << (16 - PREFIX + bits) & 0xFFFF]
            length, size, run = entry & 0xFF, entry >> 8 & 15, entry >> 12
            if length == 0 or bits + length > PREFIX:
                break
            if size == 0 and run != 15:
                if run == 0:
                    skips[prefix] = bits + length | _LAST | coefficients << _STEP
                break
            bits += length + size
            coefficients += run + 1
            skips[prefix] = bits | coefficients << _STEP


@_compiled
def _load(data: Array, at: int) -> Word:
    """Read 8 bytes, the first one highest; one instruction."""
    at &= _FORWARD
    return (
        _U64(data[at]) << 56
        | _U64(data[at + 1]) << 48
        | _U64(data[at + 2]) << 40
        | _U64(data[at + 3]) << 32
        | _U64(data[at + 4]) << 24
        | _U64(data[at + 5]) << 16
        | _U64(data[at + 6]) << 8
        | _U64(data[at + 7])
    )


@_compiled
def _store(data: Array, at: int, word: Word) -> None:
    """Write 8 bytes, the highest one first; one instruction."""
    at &= _FORWARD
    data[at] = word >> 56
    data[at + 1] = word >> 48
    data[at + 2] = word >> 40
    data[at + 3] = word >> 32
    data[at + 4] = word >> 24
    data[at + 5] = word >> 16
    data[at + 6] = word >> 8
    data[at + 7] = word


@_compiled
def _has_ff(word: Word) -> bool:
    return bool((~word - _LOWS) & word & _HIGHS)


@_compiled
def unstuff(data: Array, at: int, clean: Array, ends: Array) -> int:
    """Remove byte stuffing and restart markers from a scan.

    Args:
        data: (N,) uint8, the file.
        at: The byte of ``data`` at which the entropy-coded data begin.
        clean: (N - at + 8,) uint8 or more; takes the data.
        ends: (segments,) int64; takes the byte in ``clean`` behind each segment.

    Returns:
        The byte of ``data`` at which the marker stands that ends the scan.
    """
    size, found = 0, 0
    while at + 1 < len(data):
        if at + 8 <= len(data):
            word = _load(data, at)
            if not _has_ff(word):
                _store(clean, size, word)
                at += 8
                size += 8
                continue
        if data[at] == 0xFF and data[at + 1] != 0:
            ends[found] = size
            found += 1
            if found == len(ends):
                return at
            if data[at + 1] != 0xD0 + (found - 1) % 8:
                return -1
            at += 2
        else:
            clean[size] = data[at]
            size += 1
            at += 1 + (data[at] == 0xFF)
    return -1


@_compiled
def _fill(clean: Array, reader: Bits) -> Bits:
    """Load bits until the reader holds 56 or more."""
    at, bits, count = reader
    return at + ((63 - count) >> 3), bits | _load(clean, at) >> count, count | 56


@_compiled
def _skip_ac(clean: Array, reader: Bits, tables: Array, skips: Array, number: int) -> Bits:
    """Skip the AC coefficients of a block; on failure the reader's next byte is -1.

    This loop takes most of the time. Two steps written out in this order make it a third faster.
    """
    at, bits, count = reader
    k = 1
    while True:
        bits |= _load(clean, at) >> count
        at += (63 - count) >> 3
        count |= 56
        skip = np.int64(skips[number, bits >> (64 - PREFIX)])
        after = k + (skip >> _STEP)
        if skip == 0 or after > 63:  # a long code; or the bits reach into the next block
            entry = np.int64(tables[number, bits >> 48])
            length, size, run = entry & 0xFF, entry >> 8 & 15, entry >> 12
            if length == 0 or (size == 0 and run != 0 and run != 15):  # noqa: PLR1714 (faster)
                return -1, bits, count
            bits <<= length + size
            count -= length + size
            k += run + 1
            if (size == 0 and run == 0) or k == 64:
                return at, bits, count
            if k > 64:
                return -1, bits, count
            continue
        bits <<= skip & _BITS
        count -= skip & _BITS
        if skip & _LAST:
            return at, bits, count
        k = after
        # The bits left are enough for a second step, which takes PREFIX + 15 bits at most.
        skip = np.int64(skips[number, bits >> (64 - PREFIX)])
        after = k + (skip >> _STEP)
        if skip == 0 or after > 63:
            continue
        bits <<= skip & _BITS
        count -= skip & _BITS
        if skip & _LAST:
            return at, bits, count
        k = after


@_compiled
def _put(out: Array, writer: Bits, bits: Word, count: int) -> Bits:
    """Write the first bits of a word, at most 56, with byte stuffing; all other bits are 0."""
    size, held, held_count = writer
    held |= bits >> held_count
    count += held_count
    if not _has_ff(held):
        _store(out, size, held)
        return size + (count >> 3), held << (count & 56), count & 7
    while count >= 8:
        out[size] = held >> 56
        size += 1
        if held >> 56 == 0xFF:
            out[size] = 0
            size += 1
        held <<= 8
        count -= 8
    return size, held, count


@_compiled
def _copy(out: Array, writer: Bits, clean: Array, start: int, stop: int) -> Bits:
    """Copy the bits from ``start`` to ``stop`` of the data."""
    while start < stop:
        count = min(stop - start, 56)
        bits = _load(clean, start >> 3) << (start & 7) >> (64 - count) << (64 - count)
        writer = _put(out, writer, bits, count)
        start += count
    return writer


@_compiled
def _end_segment(out: Array, writer: Bits, marker: int) -> Bits:
    """Fill the last byte with ones and write a marker."""
    missing = -writer[2] & 7
    size, _, _ = _put(out, writer, _ONES << 1 << (63 - missing), missing)
    out[size] = 0xFF
    out[size + 1] = marker
    return size + 2, _U64(0), 0


@_compiled
def _difference(bits: Word, tables: Array, number: int) -> tuple[int, int]:
    """Decode a DC difference: (value, number of bits); 0 bits if there is no valid code."""
    entry = np.int64(tables[number, bits >> 48])
    length, size = entry & 0xFF, entry >> 8
    if length == 0 or size >= SIZES:
        return 0, 0
    value = np.int64(bits << length >> 1 >> (63 - size))
    if size and value >> (size - 1) == 0:
        value -= (1 << size) - 1
    return value, length + size


@_compiled
def _put_difference(
    out: Array, writer: Bits, value: int, codes: Array, number: int
) -> tuple[Bits, int]:
    """Write a DC difference: (writer, size); the size is -1 if the table has no code for it."""
    size = 0
    while abs(value) >> size:
        size += 1
    if size >= SIZES or codes[number, size] == 0:
        return writer, -1
    if value < 0:
        value += (1 << size) - 1
    count = (codes[number, size] & 31) + size
    bits = _U64(codes[number, size] >> 5 << size | value) << (64 - count)
    return _put(out, writer, bits, count), size


@_compiled
def recut(  # noqa: C901 (two scans at once, each with its segments)
    clean: Array, ends: Array, restarts: int, mcus: int, interval: int, blocks: Array,
    dc_tables: Array, dc_codes: Array, ac_tables: Array, ac_skips: Array,
    out: Array, lengths: Array, used: Array,
) -> int:  # fmt: skip
    """Write a scan with other restart intervals.

    Args:
        clean, ends: As `unstuff` fills them; ``clean`` has PADDING more bytes.
        restarts: MCUs between the restart markers of the scan as it was.
        mcus: MCUs in all.
        interval: MCUs between the restart markers to be written.
        blocks: (blocks in an MCU, 3) uint64, for each block: component, DC table, AC table.
        dc_tables: (D, 65536) uint16, as `expand` fills it.
        dc_codes: (D, SIZES) int64, for each size the code to write << 5 | its length; 0: no code.
        ac_tables: (A, 65536) uint16, as `expand` fills it.
        ac_skips: (A, 1 << PREFIX) uint16, as `combine` fills it.
        out: (M,) uint8; takes the entropy-coded data and EOI. M is at least twice the bytes of
            ``clean``, and ROOM for each segment of the old scan and of the new one.
        lengths: (segments,) int64; takes the lengths of the new segments in bytes, with markers.
        used: (D,) int64, zeros; bit ``size`` is set if a difference of this size was written.

    Returns:
        Number of bytes written; -1 if the data are damaged.
    """
    read, written = np.zeros(4, np.int64), np.zeros(4, np.int64)  # last DC of each component
    reader, writer = (0, _U64(0), 0), (0, _U64(0), 0)
    position, copied = 0, 0  # bits of ``clean`` that were read; that were copied or replaced
    begun, source, target = 0, 0, 0  # byte of ``out`` where the segment began; segments that ended
    for mcu in range(mcus):
        if mcu == (source + 1) * restarts:
            if 8 * ends[source] - position >= 8:
                return -1
            writer = _copy(out, writer, clean, copied, position)
            position = copied = 8 * ends[source]
            reader = ends[source], _U64(0), 0
            source += 1
            read[:] = 0
        if mcu == (target + 1) * interval:
            writer = _copy(out, writer, clean, copied, position)
            writer = _end_segment(out, writer, 0xD0 | target & 7)
            copied = position
            lengths[target] = writer[0] - begun
            begun = writer[0]
            target += 1
            written[:] = 0
        for block in range(len(blocks)):
            component, dc, ac = blocks[block, 0], blocks[block, 1], blocks[block, 2]
            at, bits, count = _fill(clean, reader)
            value, taken = _difference(bits, dc_tables, dc)
            if taken == 0:
                return -1
            read[component] += value
            wanted = read[component] - written[component]
            written[component] = read[component]
            if wanted != value:
                writer = _copy(out, writer, clean, copied, position)
                copied = position + taken
                writer, size = _put_difference(out, writer, wanted, dc_codes, dc)
                if size < 0:
                    return -1
                used[dc] |= 1 << size
            reader = at, bits << taken, count - taken
            reader = _skip_ac(clean, reader, ac_tables, ac_skips, ac)
            position = 8 * reader[0] - reader[2]
            if not 0 <= position <= 8 * ends[source]:
                return -1
    if 8 * ends[source] - position >= 8:
        return -1
    writer = _copy(out, writer, clean, copied, position)
    writer = _end_segment(out, writer, 0xD9)
    lengths[target] = writer[0] - begun
    return writer[0]
