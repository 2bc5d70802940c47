"""PNGs of a test's own: each filter in each row, any split of the data, any chunk.

Pillow and OpenCV write few of these. Source: PNG specification, third edition.
"""

from __future__ import annotations

import io
import itertools
import struct
import warnings
import zlib
from collections.abc import Callable, Iterable

import numpy as np
from PIL import Image

from packio.batches import masks
from packio.errors import DecodeError
from packio.images import png
from packio.images.decoders import Decoder
from packio.sample.record import Facts

ALL = frozenset({png.GRAY, png.RGB, png.PALETTE})
CHANNELS = {png.GRAY: 1, png.RGB: 3, png.PALETTE: 1}


def chunk(name: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def header(
    height: int, width: int, colour: int, *, depth: int = 8, methods: tuple[int, ...] = (0, 0, 0)
) -> bytes:
    return chunk(b"IHDR", struct.pack(">IIBB3B", width, height, depth, colour, *methods))


def _foretold(kind: int, left: int, up: int, corner: int) -> int:
    """What a filter foretells of a byte. Source: PNG specification, section 9.2."""
    if kind == 4:
        estimate = left + up - corner
        return min((left, up, corner), key=lambda value: abs(estimate - value))
    return (0, left, up, (left + up) // 2)[kind]


def filtered(pixels: np.ndarray, kinds: Iterable[int]) -> bytes:
    """The rows of (H, W, C) pixels, each by the next filter."""
    height, width, channels = pixels.shape
    rows = [bytes(width * channels), *(row.tobytes() for row in pixels)]
    out = bytearray()
    for (above, row), kind in zip(itertools.pairwise(rows), kinds, strict=False):
        out.append(kind)
        for i, value in enumerate(row):
            left, corner = (row[i - channels], above[i - channels]) if i >= channels else (0, 0)
            out.append((value - _foretold(kind, left, above[i], corner)) % 256)
    assert len(out) == height * (width * channels + 1)
    return bytes(out)


def whole(*chunks: bytes) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


PALETTE = chunk(b"PLTE", bytes(range(256)) * 3)


def encoded(
    pixels: np.ndarray, colour: int, *, kinds: Iterable[int] = itertools.repeat(0),
    level: int = 6, early: bytes = b"", late: bytes = b"", split: Callable[[bytes], list[bytes]] = (
        lambda data: [data]
    ),
) -> bytes:  # fmt: skip
    """A PNG of (H, W, C) pixels, with further chunks before and behind the data."""
    palette = PALETTE if colour == png.PALETTE and b"PLTE" not in early else b""
    data = zlib.compress(filtered(pixels, kinds), level)
    parts = b"".join(chunk(b"IDAT", part) for part in split(data))
    return whole(
        header(pixels.shape[0], pixels.shape[1], colour),
        palette,
        early,
        parts,
        late,
        chunk(b"IEND"),
    )


def made_pixels(height: int, width: int, colour: int, seed: int = 0) -> np.ndarray:
    """Runs and edges, as of a mask, beside noise, as of a photograph."""
    rng = np.random.default_rng(seed)
    shape = height, width, CHANNELS[colour]
    runs = np.repeat(np.repeat(rng.integers(0, 256, shape), 7, 0), 11, 1)[:height, :width]
    made: np.ndarray = np.where(rng.random(shape) < rng.choice([0.05, 0.7]),
                                rng.integers(0, 256, shape), runs)  # fmt: skip
    return made.astype(np.uint8)


def of_pillow(data: bytes) -> np.ndarray | None:
    """The pixels that Pillow reads without a warning, as stored; else None."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            with Image.open(io.BytesIO(data)) as image:
                pixels = np.array(image)
        except Exception:  # noqa: BLE001 (Pillow's parsers raise whatever they meet)
            return None
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def assert_taken(data: bytes, expected: np.ndarray | None = None) -> None:
    made, pillows = png.decode(data, ALL), of_pillow(data)
    assert made is not None
    assert pillows is not None
    assert made.flags.writeable
    assert made.flags.c_contiguous
    np.testing.assert_array_equal(made, pillows)
    if expected is not None:
        np.testing.assert_array_equal(made, expected)


RED = chunk(b"PLTE", b"\xff\0\0\0\xff\0")  # two entries
HARMLESS = {
    "gAMA": struct.pack(">I", 45455),
    "cHRM": struct.pack(">8I", *range(30000, 30008)),
    "sRGB": b"\0",
    "pHYs": struct.pack(">IIB", 2835, 2835, 1),
    "tIME": struct.pack(">HBBBBB", 2026, 1, 2, 3, 4, 5),
    "tEXt": b"Software\0a test",
}
OF_COLOUR = {  # chunks whose length depends on the colour type
    png.GRAY: {"sBIT": b"\5", "bKGD": b"\0\7"},
    png.RGB: {"sBIT": b"\5\6\5", "bKGD": b"\0\7\0\6\0\5"},
    png.PALETTE: {"sBIT": b"\5\6\5", "bKGD": b"\1"},
}
GRAY_ONE = made_pixels(5, 6, png.GRAY)
FEW = GRAY_ONE % 2
GAMA = chunk(b"gAMA", HARMLESS["gAMA"])


def indexed(pixels: np.ndarray, early: bytes) -> bytes:
    return encoded(pixels, png.PALETTE, early=early)


HEADER, END = header(5, 6, png.GRAY), chunk(b"IEND")


def stream(data: bytes, *, head: bytes = HEADER, end: bytes = END) -> bytes:
    """A gray PNG of 5 x 6 pixels whose IDAT chunk has these bytes."""
    return whole(head, chunk(b"IDAT", data), end)


ROWS = filtered(GRAY_ONE, itertools.repeat(1))
GOOD = zlib.compress(ROWS)
HALVES = chunk(b"IDAT", GOOD[:9]), chunk(b"IDAT", GOOD[9:])


def _mask(decode: Callable[[bytes, tuple[int, int]], np.ndarray], data: bytes) -> object:
    """What becomes of a mask of 5 x 6 pixels: the ids, or the text of the error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of what it repairs
        try:
            ids = decode(data, (5, 6))
        except DecodeError as error:
            # Pillow writes the address of its file into some messages
            return str(error).partition(" <")[0]
    assert ids.flags.writeable
    assert ids.flags.c_contiguous
    return ids.shape, ids.dtype.str, ids.tobytes()


def _image(name: str, data: bytes, mode: str) -> object:
    """What becomes of an image: the pixels, or the text of the error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            pixels = Decoder(name, mode)(data, Facts("png", 5, 6, 1, "uint8"))
        except DecodeError as error:
            return str(error).partition(" <")[0]
    return pixels.shape, pixels.dtype.str, pixels.tobytes()


def assert_as_with_pillow_alone(data: bytes) -> None:
    assert _mask(masks.decode, data) == _mask(masks.decode_with_pillow, data)
    for mode in ("RGB", "UNCHANGED", "GRAY", "RGB_ALPHA"):
        assert _image("isal", data, mode) == _image("pillow", data, mode)


def sealed(data: bytes) -> bytes:
    """A PNG with right sums of all chunks, where chunks can be found."""
    out, position = bytearray(data[:8]), 8
    while position + 12 <= len(data):
        length = int.from_bytes(data[position : position + 4], "big")
        end = position + 8 + length
        if end + 4 > len(data):
            break
        out += chunk(data[position + 4 : position + 8], data[position + 8 : end])
        position = end + 4
    return bytes(out + data[position:])


def seeds() -> list[bytes]:
    """Good PNGs to begin with."""
    made = [stream(GOOD), whole(HEADER, *HALVES, END), indexed(FEW, RED),
             indexed(FEW, RED + chunk(b"tRNS", b"\0\x80"))]  # fmt: skip
    early = b"".join(chunk(name.encode(), body) for name, body in HARMLESS.items())
    for colour in sorted(ALL):
        palette = PALETTE if colour == png.PALETTE else b""
        sbit, bkgd = (chunk(name.encode(), body) for name, body in OF_COLOUR[colour].items())
        made += [
            encoded(
                made_pixels(5, 6, colour, level), colour, kinds=(0, 1, 2, 3, 4), level=level,
                early=early + sbit + palette + bkgd if level == 1 else palette,
            )
            for level in (0, 1, 9)
        ]  # fmt: skip
    return made
