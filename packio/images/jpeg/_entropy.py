"""Entropy-coded data written anew with other restart intervals; compiled by numba.

Huffman codes are followed, coefficients are not decoded. The DC coefficient of a block is coded as
its difference from that of the last block of its component in the segment, so these differences
change where a segment begins. All other bits are copied, 56 at a time.

A reader is (next byte, bits taken from the data and not yet used, how many), a writer is (bytes
written, bits not yet written, how many); bits are held in a uint64 from the highest on. Functions
return -1 where the data are not as they must be. They do not read or write outside their arrays:
what they read ends within a block of the last byte, and `PADDING` follows that.

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
    except RuntimeError:  # there is no folder in which it could keep it
        compiled = numba.njit(function, nogil=True)
    return compiled


@_compiled
def expand(specification: Array, table: Array) -> int:
    """Expand a Huffman table.

    Args:
        specification: (16 + n,) uint8, as in DHT: how many codes of each length, their symbols.
        table: (65536,) uint16, zeros; takes, for the next 16 bits, symbol << 8 | length of its
            code, and keeps 0 where no code begins with them.
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
    """Combine the AC codes that begin in the same few bits, to skip them in one step.

    Args:
        table: What `expand` makes.
        skips: (1 << PREFIX,) uint16, zeros; takes, for the next bits, how many (_BITS) the symbols
            have whose codes lie in them, with the bits behind these codes; _LAST if the last one
            ends the block; how many coefficients they are << _STEP. 0 where there is none.
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
    """Take byte stuffing and restart markers out of a scan.

    Args:
        data: (N,) uint8, the file.
        at: The byte in it at which the entropy-coded data begin.
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
    """Have the reader hold 56 bits or more."""
    at, bits, count = reader
    return at + ((63 - count) >> 3), bits | _load(clean, at) >> count, count | 56


@_compiled
def _skip_ac(clean: Array, reader: Bits, tables: Array, skips: Array, number: int) -> Bits:
    """Go on behind the AC coefficients of a block; the reader's next byte is -1 on failure.

    Its loop is where the time goes: that it is written out, and in this order, makes it a third
    faster.
    """
    at, bits, count = reader
    k = 1
    while True:
        bits |= _load(clean, at) >> count
        at += (63 - count) >> 3
        count |= 56
        skip = np.int64(skips[number, bits >> (64 - PREFIX)])
        after = k + (skip >> _STEP)
        if skip == 0 or after > 63:  # a long code; or the codes of the next block are in there, too
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
        # There are bits for a second one: one has PREFIX + 15 bits at most.
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
    """Write the first bits, up to 56, of a word in which 0 follow, with byte stuffing."""
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
    """Write what lies between two bits of the data."""
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
    """Decode a DC difference: (its value, how many bits it takes), 0 bits for what is none."""
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
    """Write a DC difference: (writer, its size), -1 for a size that has no code."""
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
        clean, ends: What `unstuff` makes of it; ``clean`` has PADDING more bytes.
        restarts: MCUs between its restart markers.
        mcus: MCUs in all.
        interval: MCUs between the restart markers to be written.
        blocks: (blocks in an MCU, 3) uint64, of each: component, DC table, AC table.
        dc_tables: (D, 65536) uint16, what `expand` makes.
        dc_codes: (D, SIZES) int64, the code to be written for each size << 5 | its length; or 0.
        ac_tables: (A, 65536) uint16, what `expand` makes.
        ac_skips: (A, 1 << PREFIX) uint16, what `combine` makes of them.
        out: (M,) uint8; takes the entropy-coded data and EOI. M is at least twice the bytes of
            ``clean``, and ROOM for each segment of either scan.
        lengths: (segments,) int64; takes their lengths in bytes, markers included.
        used: (D,) int64, zeros; takes 1 << size for each size that was coded.

    Returns:
        How many bytes were written.
    """
    read, written = np.zeros(4, np.int64), np.zeros(4, np.int64)  # last DC of each component
    reader, writer = (0, _U64(0), 0), (0, _U64(0), 0)
    position, copied = 0, 0  # bits of ``clean``: how far read, how far written or replaced
    begun, source, target = 0, 0, 0  # byte of ``out`` at which the segment began; segments ended
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
