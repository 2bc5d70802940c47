"""Plain PNGs have Pillow's pixels; sizes are limited before memory is taken."""

from __future__ import annotations

import itertools
import random
import tracemalloc
import types
import zlib
from typing import Any

import made
import native_core
import numpy as np
import pytest
from PIL import Image
from png_parts import (
    ALL,
    END,
    FEW,
    GOOD,
    GRAY_ONE,
    HALVES,
    HARMLESS,
    HEADER,
    OF_COLOUR,
    PALETTE,
    RED,
    ROWS,
    assert_as_with_pillow_alone,
    assert_taken,
    chunk,
    encoded,
    header,
    indexed,
    made_pixels,
    seeds,
    stream,
    whole,
)

from packio import registry
from packio.batches import masks
from packio.errors import DecodeError, MissingPackageError
from packio.images import decoders, native, png
from packio.images.decoders import Decoder, isal, pillow
from packio.sample.record import Facts

pytestmark = native_core.needed
_SIDES = range(1, 41)


@pytest.mark.parametrize("kind", range(5))
@pytest.mark.parametrize("colour", sorted(ALL))
def test_each_filter_is_undone_at_odd_sizes(kind: int, colour: int) -> None:
    for side in _SIDES:
        pixels = made_pixels(1 + side * 7 % 11, side, colour, side)
        assert_taken(encoded(pixels, colour, kinds=itertools.repeat(kind)), pixels)


@pytest.mark.parametrize("colour", sorted(ALL))
def test_filters_may_change_from_row_to_row(colour: int) -> None:
    draw = random.Random(colour)
    for seed in range(60):
        pixels = made_pixels(draw.randint(1, 40), draw.randint(1, 40), colour, seed)
        kinds = [draw.randrange(5) for _ in pixels]
        assert_taken(encoded(pixels, colour, kinds=kinds, level=draw.randrange(10)), pixels)


@pytest.mark.parametrize("level", range(10))
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_data_may_be_split_anywhere(level: int, size: int) -> None:
    def split(data: bytes) -> list[bytes]:
        parts = [data[i : i + size] for i in range(0, len(data), size)]
        return [b"", *parts[:1], b"", b"", *parts[1:], b""]

    for colour in ALL:
        pixels = made_pixels(30, 33, colour)
        assert_taken(encoded(pixels, colour, level=level, split=split), pixels)


@pytest.mark.parametrize(
    "options",
    [{}, {"optimize": True}, {"compress_level": 0}, {"compress_type": 2}, {"dpi": (72, 72)}],
    ids=repr,
)
@pytest.mark.parametrize("mode", ["L", "P", "RGB"])
def test_pngs_of_pillow_are_taken(mode: str, options: dict[str, Any]) -> None:
    colour = {"L": png.GRAY, "P": png.PALETTE, "RGB": png.RGB}[mode]
    pixels = made_pixels(61, 45, colour)
    image = Image.fromarray(pixels[:, :, 0] if mode != "RGB" else pixels)
    if mode == "P":
        image.putpalette(bytes(range(256)) * 3)
    if mode == "P" and options.get("optimize"):
        return  # Pillow numbers the indices anew
    assert_taken(made.saved(image, **options), pixels)


def test_pngs_of_opencv_are_taken() -> None:
    cv2 = pytest.importorskip("cv2")
    for strategy, level in itertools.product(range(5), (0, 1, 9)):
        options = [cv2.IMWRITE_PNG_STRATEGY, strategy, cv2.IMWRITE_PNG_COMPRESSION, level]
        for colour in (png.GRAY, png.RGB):
            pixels = made_pixels(61, 45, colour)
            assert_taken(cv2.imencode(".png", pixels[:, :, ::-1], options)[1].tobytes(), pixels)


@pytest.mark.parametrize("name", [*HARMLESS, "sBIT", "bKGD"])
@pytest.mark.parametrize("colour", sorted(ALL))
def test_harmless_chunks_are_taken_at_their_lengths_only(name: str, colour: int) -> None:
    body = (HARMLESS | OF_COLOUR[colour])[name]
    assert_taken(_with_chunk(name, body, colour), made_pixels(5, 6, colour))
    wrong = [body[:-1], body + b"\0", b"", bytes(40)] if name != "tEXt" else [b"", bytes(2000)]
    for other in wrong:
        assert png.decode(_with_chunk(name, other, colour), ALL) is None


def _with_chunk(name: str, body: bytes, colour: int) -> bytes:
    added = chunk(name.encode(), body)
    palette = PALETTE if colour == png.PALETTE else b""
    early = palette + added if name == "bKGD" else added + palette
    return encoded(made_pixels(5, 6, colour), colour, early=early)


def test_the_same_without_what_is_wrong_is_taken() -> None:
    assert_taken(stream(GOOD), GRAY_ONE)
    assert_taken(whole(HEADER, *HALVES, END), GRAY_ONE)
    assert_taken(indexed(FEW, RED), FEW)
    assert_taken(indexed(FEW, RED + chunk(b"tRNS", b"\0\x80")), FEW)


def test_many_empty_chunks_take_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many bytes are summed as the PNG has: no chunk is looked at twice."""
    looked_at = 0

    def counted(data: memoryview) -> int:
        nonlocal looked_at
        looked_at += len(data)
        return zlib.crc32(data)

    many = chunk(b"IDAT") * 300_000
    data = whole(HEADER, many, *HALVES, many, END)
    monkeypatch.setattr(png, "zlib", types.SimpleNamespace(crc32=counted))
    made = png.decode(data, ALL)
    assert made is not None
    np.testing.assert_array_equal(made, GRAY_ONE)
    assert looked_at < len(data)


def _peak_of(data: bytes) -> int:
    """The most bytes that a decoding that is declined allocates at once."""
    tracemalloc.start()
    try:
        assert png.decode(data, ALL) is None
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_many_chunks_take_no_memory_of_their_own() -> None:
    for parts in (chunk(b"IDAT") * 100_000, chunk(b"IDAT", b"x") * 100_000):
        assert _peak_of(whole(HEADER, parts, END)) < 500_000


def test_nothing_is_allocated_for_pixels_that_are_only_promised() -> None:
    data = zlib.compress(bytes(1000))
    for height, width in ((9_000, 9_000), (2**31 - 1, 2**31 - 1), (1, 2**31 - 1), (2**32 - 1, 1)):
        assert _peak_of(stream(data, head=header(height, width, png.GRAY))) < 100_000


def test_a_stream_is_inflated_no_further_than_the_pixels_go() -> None:
    bomb = zlib.compress(bytes(1 << 26), 9)
    assert _peak_of(stream(bomb)) < 1 << 20


def test_images_that_pillow_warns_of_are_left_to_pillow() -> None:
    assert Image.MAX_IMAGE_PIXELS == png.MOST_PIXELS
    rows = zlib.compress(bytes(10 * (9_000_000 + 1)), 1)
    data = stream(rows, head=header(10, 9_000_000, png.GRAY))
    assert png.decode(data, ALL) is None


def test_another_size_than_wanted_is_not_decoded() -> None:
    assert png.decode(stream(GOOD), ALL, (5, 6)) is not None
    assert png.decode(stream(GOOD), ALL, (6, 5)) is None
    with pytest.raises(DecodeError, match="6x5 pixels, its image has 5x6"):
        masks.decode(stream(GOOD), (6, 5))


def test_ids_of_masks_are_those_of_pillow() -> None:
    for colour in (png.GRAY, png.PALETTE):
        pixels = made_pixels(5, 6, colour)
        data = encoded(pixels, colour)
        assert png.decode(data, masks._OF_IDS) is not None
        assert_as_with_pillow_alone(data)
        np.testing.assert_array_equal(masks.decode(data, (5, 6)), pixels[:, :, 0])


def test_a_mask_of_colours_is_refused_as_before() -> None:
    data = encoded(made_pixels(5, 6, png.RGB), png.RGB)
    with pytest.raises(DecodeError, match="mode RGB; expected class ids"):
        masks.decode(data, (5, 6))


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_bytes_of_both_kinds_are_taken(kind: type[bytes | bytearray]) -> None:
    for data in (stream(GOOD), whole(HEADER, *HALVES, END)):
        made = png.decode(kind(data), ALL)  # type: ignore[arg-type]  # as decoders get either
        assert made is not None
        np.testing.assert_array_equal(made, GRAY_ONE)


def test_without_isa_l_pythons_zlib_inflates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(png, "_inflater", lambda: zlib)
    for data in seeds():
        assert_taken(data)
    for damaged in (GOOD[:-1], GOOD + b"\0", GOOD[:-1] + b"\0", zlib.compress(ROWS + b"\0")):
        assert png.decode(stream(damaged), ALL) is None


def test_where_isa_l_is_not_installed_zlib_is_taken_and_auto_is_pillow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def absent(package: str, extra: str | None = None) -> types.ModuleType:
        raise MissingPackageError(f"{package}: {extra}")

    monkeypatch.setattr(registry, "require", absent)
    assert png._inflater.__wrapped__() is zlib
    assert decoders.automatic.__wrapped__("png") == "pillow"


def test_without_the_core_pillow_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_library", lambda: "a test")
    for data in seeds():
        assert png.decode(data, ALL) is None
    np.testing.assert_array_equal(masks.decode(stream(GOOD), (5, 6)), GRAY_ONE[:, :, 0])
    assert native.unfilter(ROWS, (5, 6, 1)) is None
    with pytest.raises(MissingPackageError, match="core is not here: a test"):
        isal.version()


def test_rows_of_another_shape_are_refused() -> None:
    assert native.unfilter(ROWS, (5, 6, 1)) is not None
    for shape in ((6, 5, 1), (5, 7, 1), (4, 6, 1), (5, 3, 2), (5, 2, 3)):
        assert (native.unfilter(ROWS, shape) is None) == (shape != (5, 2, 3))


def test_auto_decodes_plain_pngs_by_isa_l(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        isal.version()
    except MissingPackageError as error:
        pytest.skip(str(error))
    decoder = Decoder()
    monkeypatch.setattr(pillow, "decode", None)
    for colour in (png.GRAY, png.RGB):
        pixels = made_pixels(5, 6, colour)
        made = decoder(encoded(pixels, colour), Facts("png", 5, 6, pixels.shape[2], "uint8"))
        np.testing.assert_array_equal(made, np.broadcast_to(pixels, (5, 6, 3)))
    assert decoder.fallbacks == 0
