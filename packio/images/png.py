"""Plain PNGs: chunks are checked here, zlib or ISA-L inflates, the native core undoes filters.

A plain PNG is whole, not interlaced, and has 8 bits a channel: palette indices, gray or RGB. Its
chunks are those in the table below, in their order and of their lengths; all checksums are right.
Pillow reads such a PNG without a warning, and to the same pixels. Whatever is unusual or damaged is
left to Pillow: `decode` returns None.

One difference is known: ISA-L inflates a block whose Huffman codes are incomplete, and zlib refuses
it. No encoder writes such a block, and the checksum of the rows has to be right all the same.

Source: W3C, Portable Network Graphics (PNG) Specification, third edition, sections 5 (chunks), 9
(filters), 10 (compression) and 11 (what chunks hold); https://www.w3.org/TR/png-3/.
"""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Container
from typing import TYPE_CHECKING, Any, NamedTuple

from packio import registry
from packio.errors import MissingPackageError
from packio.images import native
from packio.images.encodings import PNG_MAGIC
from packio.system.locks import block_forks

if TYPE_CHECKING:
    from types import ModuleType

    import numpy as np

GRAY, RGB, PALETTE = 0, 2, 3  # colour types
MOST_PIXELS = 89_478_485  # Pillow warns of images with more
_CHANNELS = {GRAY: 1, RGB: 3, PALETTE: 1}
_HEADER = struct.Struct(">I4sIIBBBBB")  # length and name of IHDR; its fields
_CHUNK = struct.Struct(">I4s")
_CHUNKS_BEGIN = 8 + 12 + 13  # behind IHDR
# deflate needs 2 bits for the longest repetition, 258 bytes: a header that promises more is wrong,
# and nothing is allocated for its pixels.
_MOST_EXPANSION = 1032
_MOST_TEXT, _MOST_TEXTS = 1024, 64  # bytes of a text chunk; such chunks; Pillow limits both


class _Rule(NamedTuple):
    """When a chunk between IHDR and IEND is harmless."""

    lengths: Container[int]  # bytes of the chunk
    before: frozenset[bytes] = frozenset()  # chunks that may not have come yet
    most: int = 1  # such chunks


def _rules(colour: int) -> dict[bytes, _Rule]:
    """The chunks that a PNG of a colour type may have, by name."""
    early, late = frozenset({b"PLTE", b"IDAT"}), frozenset({b"IDAT"})
    rules = {
        b"cHRM": _Rule((32,), early),
        b"gAMA": _Rule((4,), early),
        b"sBIT": _Rule((1 if colour == GRAY else 3,), early),
        b"sRGB": _Rule((1,), early),
        b"bKGD": _Rule(({GRAY: 2, RGB: 6, PALETTE: 1}[colour],), late),
        b"pHYs": _Rule((9,), late),
        b"tIME": _Rule((7,)),
        b"tEXt": _Rule(range(2, _MOST_TEXT + 1), most=_MOST_TEXTS),
    }
    if colour != GRAY:
        rules[b"PLTE"] = _Rule(range(3, 3 * 256 + 1, 3), late | {b"bKGD", b"tRNS"})
    if colour == PALETTE:
        rules[b"tRNS"] = _Rule(range(1, 256 + 1), late)
    return rules


_RULES = {colour: _rules(colour) for colour in _CHANNELS}


class _Parsed(NamedTuple):
    colour: int
    height: int  # pixels
    width: int
    entries: int  # of the palette
    compressed: bytearray  # of all IDAT chunks


@functools.cache  # a module: the same in every process
def _inflater() -> ModuleType:
    """ISA-L's zlib, or Python's own where ISA-L is not installed: the same interface."""
    try:
        with block_forks():
            return registry.require("isal.isal_zlib")
    except MissingPackageError:
        return zlib


def decode(
    data: bytes, colours: frozenset[int], size: tuple[int, int] | None = None
) -> np.ndarray | None:
    """Decode a plain PNG of some colour types: (H, W, C) uint8; of a palette its indices.

    None if the PNG is not plain or has another size than ``size``, or if there is no native core.
    """
    if native.why_not():
        return None
    parsed = _parse(data, colours, size)
    if parsed is None:
        return None
    channels = _CHANNELS[parsed.colour]
    rows = _inflated(parsed.compressed, parsed.height * (parsed.width * channels + 1))
    if rows is None:
        return None
    pixels = native.unfilter(rows, (parsed.height, parsed.width, channels))
    if pixels is not None and parsed.colour == PALETTE and parsed.entries < 256:
        return pixels if int(pixels.max()) < parsed.entries else None
    return pixels


def _parse(data: bytes, colours: frozenset[int], size: tuple[int, int] | None) -> _Parsed | None:
    """Read the chunks of a PNG; None if it is not plain."""
    if len(data) < _CHUNKS_BEGIN or data[:8] != PNG_MAGIC:
        return None
    length, name, width, height, depth, colour, *methods = _HEADER.unpack_from(data, 8)
    if (length, name, depth) != (13, b"IHDR", 8) or any(methods) or colour not in colours:
        return None
    if not 0 < width * height <= MOST_PIXELS or size not in (None, (height, width)):
        return None
    view, counts, compressed = memoryview(data), dict[bytes, int](), bytearray()
    if not _is_right(view, 8, length):
        return None
    entries = _walk(view, _RULES[colour], counts, compressed)
    if entries is None or b"IDAT" not in counts or (colour == PALETTE and not entries):
        return None
    return _Parsed(colour, height, width, entries, compressed)


def _walk(
    view: memoryview, rules: dict[bytes, _Rule], counts: dict[bytes, int], compressed: bytearray
) -> int | None:
    """Check the chunks behind IHDR: entries of the palette; None if one is damaged or unusual.

    ``counts`` gets the number of chunks of each name, ``compressed`` what IDAT chunks hold.
    """
    position, previous, entries = _CHUNKS_BEGIN, b"IHDR", 0
    while position + 12 <= len(view):
        length, name = _CHUNK.unpack_from(view, position)
        if length > len(view) - position - 12 or not _is_right(view, position, length):
            return None
        count = counts.get(name, 0)
        if name == b"IDAT":
            if count and previous != b"IDAT":
                return None
            compressed += view[position + 8 : position + 8 + length]
        elif name == b"IEND":
            return None if length or position + 12 != len(view) else entries
        elif (
            (rule := rules.get(name)) is None
            or count >= rule.most
            or length not in rule.lengths
            or not rule.before.isdisjoint(counts)
            or (name == b"tEXt" and not _is_only_text(view[position + 8 :]))
        ):
            return None
        elif name == b"PLTE":
            entries = length // 3
        elif name == b"tRNS" and length > entries:
            return None
        counts[name] = count + 1
        previous = name
        position += 12 + length
    return None


def _is_only_text(data: memoryview) -> bool:
    """Whether Pillow takes a text for none of its own settings, as of the keyword "interlace".

    The standard's keywords begin with a capital letter; ImageMagick's have a colon.
    """
    keyword = bytes(data[:80]).partition(b"\0")[0]
    return keyword[:1].isupper() or b":" in keyword


def _is_right(view: memoryview, position: int, length: int) -> bool:
    """Whether the checksum of the chunk at a position is right."""
    end = position + 8 + length
    return zlib.crc32(view[position + 4 : end]) == int.from_bytes(view[end : end + 4], "big")


def _inflated(compressed: bytearray, size: int) -> bytes | None:
    """Inflate a zlib stream that has to be whole and to give `size` bytes; else None."""
    if size > _MOST_EXPANSION * len(compressed) or len(compressed) < 2:
        return None
    method, flags = compressed[:2]  # RFC 1950, section 2.2; no dictionary
    if method & 15 != 8 or method >> 4 > 7 or (method << 8 | flags) % 31 or flags & 32:
        return None
    library: Any = _inflater()
    stream = library.decompressobj()
    try:
        rows: bytes = stream.decompress(compressed, size + 1)
    except library.error:
        return None
    if len(rows) != size or not stream.eof or stream.unused_data:
        return None
    return rows
