"""PNGs that are unusual or damaged are left to Pillow: the same pixels, or the same error."""

from __future__ import annotations

import os
import random
import struct
import zlib

import fuzzing
import native_core
import numpy as np
import pytest
from png_parts import (
    ALL,
    END,
    FEW,
    GAMA,
    GOOD,
    GRAY_ONE,
    HALVES,
    HARMLESS,
    HEADER,
    PALETTE,
    RED,
    ROWS,
    assert_as_with_pillow_alone,
    chunk,
    encoded,
    header,
    indexed,
    made_pixels,
    of_pillow,
    sealed,
    seeds,
    stream,
    whole,
)

from packio.images import png

_MUTANTS = int(os.environ.get("PACKIO_PNG_MUTANTS", "600"))

pytestmark = native_core.needed


_LEFT_TO_PILLOW = {
    "a palette of 4 bytes": indexed(FEW, chunk(b"PLTE", bytes(4))),
    "a palette of 771 bytes": indexed(FEW, chunk(b"PLTE", bytes(771))),
    "an empty palette": indexed(FEW, chunk(b"PLTE")),
    "an index beyond the palette": indexed(FEW + 1, RED),
    "two palettes": indexed(FEW, RED + RED),
    "no palette": whole(header(5, 6, 3), chunk(b"IDAT", GOOD), END),
    "a palette behind the data": whole(header(5, 6, 3), chunk(b"IDAT", GOOD), PALETTE, END),
    "a palette of gray": encoded(GRAY_ONE, png.GRAY, early=PALETTE),
    "transparency of more entries than there are": indexed(
        FEW, RED + chunk(b"tRNS", b"\0\0\0")
    ),
    "transparency before the palette": indexed(FEW, chunk(b"tRNS", b"\0") + RED),
    "no transparency": indexed(FEW, RED + chunk(b"tRNS")),
    "a transparent gray": encoded(GRAY_ONE, png.GRAY, early=chunk(b"tRNS", b"\0\1")),
    "a transparent colour": encoded(made_pixels(5, 6, 2), png.RGB, early=chunk(b"tRNS", bytes(6))),
    "gamma twice": encoded(GRAY_ONE, png.GRAY, early=GAMA + GAMA),
    "gamma behind the data": encoded(GRAY_ONE, png.GRAY, late=GAMA),
    "gamma behind the palette": indexed(FEW, RED + GAMA),
    "orientation": encoded(GRAY_ONE, png.GRAY, early=chunk(b"eXIf", b"MM\0*\0\0\0\x08\0\0")),
    "a colour profile": encoded(GRAY_ONE, png.GRAY, early=chunk(b"iCCP", b"a\0\0")),
    "frames": encoded(GRAY_ONE, png.GRAY, early=chunk(b"acTL", struct.pack(">II", 1, 0))),
    "an unknown chunk": encoded(GRAY_ONE, png.GRAY, early=chunk(b"abCd")),
    "an unknown critical chunk": encoded(GRAY_ONE, png.GRAY, early=chunk(b"ABCD")),
    "two headers": encoded(GRAY_ONE, png.GRAY, early=HEADER),
    "no data": whole(HEADER, END),
    "data in two places": whole(HEADER, HALVES[0], GAMA, HALVES[1], END),
    "text between data": whole(HEADER, HALVES[0], chunk(b"tEXt", b"a\0b"), HALVES[1], END),
    "a text that Pillow takes for the way of interlacing": encoded(
        GRAY_ONE, png.GRAY, early=chunk(b"tEXt", b"interlace\x001")
    ),
    "a text that Pillow takes for transparency": encoded(
        GRAY_ONE, png.GRAY, early=chunk(b"tEXt", b"transparency\0x")
    ),
    "a text that Pillow takes for a box": encoded(
        GRAY_ONE, png.GRAY, early=chunk(b"tEXt", b"bbox\0x")
    ),
    "no end": whole(HEADER, *HALVES),
    "an end with bytes": stream(GOOD, end=chunk(b"IEND", b"\0")),
    "bytes behind the end": stream(GOOD) + b"\0",
    "chunks behind the end": stream(GOOD) + GAMA,
    "bytes behind the stream": stream(GOOD + b"\0"),
    "a second stream": stream(GOOD + GOOD),
    "a chunk behind the stream": whole(
        HEADER, chunk(b"IDAT", GOOD), chunk(b"IDAT", b"x"), END
    ),
    "a stream that is cut": stream(GOOD[:-5]),
    "a stream without its sum": stream(GOOD[:-4]),
    "a stream with half of its sum": stream(GOOD[:-2]),
    "a stream of a wrong sum": stream(GOOD[:-1] + bytes([GOOD[-1] ^ 1])),
    "a stream with a dictionary": stream(b"\x78\xbb" + GOOD[2:]),
    "a stream of a window of 64 KB": stream(b"\x88\x1c" + GOOD[2:]),
    "a stream without a header": stream(GOOD[2:]),
    "a row too few": stream(zlib.compress(ROWS[:-7])),
    "a byte too few": stream(zlib.compress(ROWS[:-1])),
    "a byte too much": stream(zlib.compress(ROWS + b"\0")),
    "a row too many": stream(zlib.compress(ROWS + ROWS[:7])),
    "a filter that there is not": stream(zlib.compress(b"\5" + ROWS[1:])),
    "a filter of another method": stream(GOOD, head=header(5, 6, 0, methods=(0, 1, 0))),
    "another compression": stream(GOOD, head=header(5, 6, 0, methods=(1, 0, 0))),
    "interlaced": stream(GOOD, head=header(5, 6, 0, methods=(0, 0, 1))),
    "no pixels": stream(GOOD, head=header(0, 6, 0)),
    "a wrong signature": b"\x88" + stream(GOOD)[1:],
    "a wrong sum of the header": stream(GOOD, head=HEADER[:-1] + b"\0"),
    "a wrong sum of the data": stream(GOOD)[:-16] + bytes(4) + END,
    "a header of 14 bytes": stream(GOOD, head=chunk(b"IHDR", HEADER[8:-4] + b"\0")),
    "a chunk beyond the end": stream(GOOD, end=b"\xff\xff\xff\xffIEND\xaeB`\x82"),
    "nothing": b"",
    "a signature": b"\x89PNG\r\n\x1a\n",
}  # fmt: skip


@pytest.mark.parametrize("what", _LEFT_TO_PILLOW)
def test_the_unusual_and_the_damaged_is_left_to_pillow(what: str) -> None:
    data = _LEFT_TO_PILLOW[what]
    assert png.decode(data, ALL) is None
    assert_as_with_pillow_alone(data)


@pytest.mark.parametrize(
    ("depth", "colour"),
    [(1, 0), (2, 0), (4, 0), (16, 0), (16, 2), (1, 3), (2, 3), (4, 3), (8, 4), (16, 4), (8, 6),
     (16, 6)],
)  # fmt: skip
def test_other_depths_and_colours_are_left_to_pillow(depth: int, colour: int) -> None:
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
    rows = b"".join(b"\0" + bytes(-(-6 * channels * depth // 8)) for _ in range(5))
    palette = RED if colour == 3 else b""
    data = whole(
        header(5, 6, colour, depth=depth), palette, chunk(b"IDAT", zlib.compress(rows)), END
    )
    assert of_pillow(data) is not None
    assert png.decode(data, ALL) is None
    assert_as_with_pillow_alone(data)


def _chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    found, position = [], 8
    while position + 12 <= len(data):
        length = int.from_bytes(data[position : position + 4], "big")
        body = data[position + 8 : position + 8 + length]
        found.append((data[position + 4 : position + 8], body))
        position += 12 + length
    return found


_NAMES = [b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS", b"bKGD", b"sBIT", b"hIST", b"eXIf", b"iCCP",
          b"acTL", b"fcTL", b"fdAT", b"zTXt", b"iTXt", b"CgBI",
          *(name.encode() for name in HARMLESS)]  # fmt: skip


def _with_other_chunks(draw: random.Random, data: bytes) -> bytes:
    chunks = _chunks(data)
    for _ in range(draw.randint(1, 3)):
        at, way = draw.randrange(len(chunks)), draw.randrange(6)
        name, body = chunks[at]
        if way == 0:
            body = draw.choice([bytes(draw.randrange(40)), draw.choice(list(HARMLESS.values()))])
            chunks.insert(at, (draw.choice(_NAMES), body))
        elif way == 1 and len(chunks) > 1:
            del chunks[at]
        elif way == 2:
            chunks.insert(draw.randrange(len(chunks)), chunks[at])
        elif way == 3:
            chunks[at] = draw.choice(_NAMES), body
        elif way == 4:
            chunks[at] = name, body[: draw.randrange(len(body) + 1)] + bytes(draw.randrange(3))
        else:
            cut = draw.randrange(len(body) + 1)
            chunks[at : at + 1] = [(name, body[:cut]), (name, body[cut:])]
    return whole(*(chunk(name, body) for name, body in chunks)) + bytes(
        draw.choice([0, 0, 0, 1, 12])
    )


def _with_other_rows(draw: random.Random, data: bytes) -> bytes:
    """Other bytes in the rows, or rows cut short or made longer, compressed anew."""
    compressed = b"".join(body for name, body in _chunks(data) if name == b"IDAT")
    rows = bytearray(zlib.decompress(compressed))
    for _ in range(draw.randint(1, 4)):
        rows[draw.randrange(len(rows))] = draw.choice([draw.randrange(256), draw.randrange(6)])
    rows = rows[: len(rows) - draw.choice([0, 0, 0, 1, 7])] + bytes(draw.choice([0, 0, 0, 1, 7]))
    packer = zlib.compressobj(draw.randrange(10), zlib.DEFLATED, draw.randint(9, 15),
                              draw.randint(1, 9), draw.randrange(5))  # fmt: skip
    packed = packer.compress(bytes(rows)) + packer.flush() + bytes(draw.choice([0, 0, 0, 1]))
    kept = [one for one in _chunks(data) if one[0] != b"IDAT"]
    return whole(*(chunk(*one) for one in [*kept[:-1], (b"IDAT", packed), kept[-1]]))


def test_mutants_are_pillows_or_left_to_pillow() -> None:
    good, taken = seeds(), 0
    for number in range(_MUTANTS):
        draw = random.Random(number)
        mutate = draw.choice([_with_other_chunks, _with_other_rows, None])
        data = mutate(draw, draw.choice(good)) if mutate else fuzzing.mutated(draw, good)
        if not mutate and draw.randrange(4):
            data = sealed(data)
        made = png.decode(data, ALL)
        if made is not None:
            taken += 1
            pillows = of_pillow(data)
            assert pillows is not None, (number, data)
            assert np.array_equal(made, pillows), (number, data)
        if number % 5 == 0:
            assert_as_with_pillow_alone(data)
    assert _MUTANTS // 20 < taken < _MUTANTS * 19 // 20


def test_each_truncation_is_left_to_pillow() -> None:
    for data in seeds()[:6]:
        for end in range(len(data)):
            assert png.decode(data[:end], ALL) is None


def test_a_wrong_sum_of_any_chunk_is_left_to_pillow() -> None:
    for data in seeds():
        position = 8
        while position + 12 <= len(data):
            position += 12 + int.from_bytes(data[position : position + 4], "big")
            changed = bytearray(data)
            changed[position - 1] ^= 16
            assert png.decode(bytes(changed), ALL) is None
