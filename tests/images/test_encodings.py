"""Facts from image headers: what Pillow says of the same bytes, and DecodeError for the rest."""

from __future__ import annotations

import io
import random
import struct
import warnings
from typing import Any

import made
import numpy as np
import pytest
from PIL import Image, ImageOps

from packio.errors import DecodeError
from packio.images import encodings
from packio.images.decoders import pillow

_PHOTO = Image.fromarray(np.random.default_rng(0).integers(0, 256, (21, 34, 3), dtype=np.uint8))
_ORIENTATION = 0x0112


def _saved(kind: str, image: Image.Image = _PHOTO, **options: Any) -> bytes:
    return made.saved(image, kind, **options)


def _with_orientation(order: str, value: int, kind: int = 3, count: int = 1) -> bytes:
    """Put Exif of one byte order into a JPEG. Source: Exif 2.32, section 4.5.4."""
    mark = {"<": b"II*\0", ">": b"MM\0*"}[order]
    body = b"Exif\0\0" + mark + struct.pack(order + "IH", 8, 1)
    body += struct.pack(order + "HHI", _ORIENTATION, kind, count)
    body += struct.pack(
        order + ("HH" if kind == 3 else "I"), *([value, 0][: 2 if kind == 3 else 1])
    )
    body += bytes(4)
    jpeg = _saved("JPEG")
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body + jpeg[2:]


_IMAGES = {
    "jpeg": _saved("JPEG"),
    "progressive jpeg": _saved("JPEG", progressive=True),
    "gray jpeg": _saved("JPEG", _PHOTO.convert("L")),
    "cmyk jpeg": _saved("JPEG", _PHOTO.convert("CMYK")),
    "multi-picture jpeg": _saved("MPO", save_all=True, append_images=[_PHOTO]),
    "png": _saved("PNG"),
    "gray png": _saved("PNG", _PHOTO.convert("L")),
    "alpha png": _saved("PNG", _PHOTO.convert("RGBA")),
    "gray alpha png": _saved("PNG", _PHOTO.convert("LA")),
    "palette png": _saved("PNG", _PHOTO.quantize(16)),
    "transparent palette png": _saved("PNG", _PHOTO.quantize(16), transparency=1),
    "1-bit png": _saved("PNG", _PHOTO.convert("1")),
    "16-bit png": _saved("PNG", Image.fromarray(np.arange(60, dtype=np.uint16).reshape(6, 10))),
    "webp": _saved("WEBP"),
    "alpha webp": _saved("WEBP", _PHOTO.convert("RGBA")),
    "bmp": _saved("BMP"),
    "gif": _saved("GIF"),
    "tiff": _saved("TIFF"),
    "float tiff": _saved("TIFF", _PHOTO.convert("F")),
    "pnm": _saved("PPM"),
    "16-bit pnm": _saved("PPM", Image.fromarray(np.arange(60, dtype=np.uint16).reshape(6, 10))),
}


_STARTS = [
    b"",
    b"\xff\xd8",
    b"\xff\xd8\xff\xe1\0\x40Exif\0\0II*\0",
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
    b"RIFF",
    b"BM",
    b"P6 ",
]


@pytest.mark.parametrize("name", _IMAGES)
def test_facts_are_those_of_the_pixels_that_pillow_decodes(name: str) -> None:
    facts = encodings.read_facts(_IMAGES[name])
    pixels = pillow.decode(_IMAGES[name], "UNCHANGED")
    stored_channels = 4 if "cmyk" in name else pixels.shape[2]  # UNCHANGED turns CMYK into RGB
    assert (facts.height, facts.width, facts.channels) == (*pixels.shape[:2], stored_channels)
    assert facts.dtype == str(pixels.dtype)
    assert facts.encoding == ("jpeg" if "jpeg" in name else name.rsplit(maxsplit=1)[-1])
    assert facts.orientation == 1
    assert facts.progressive == ("progressive" in name)


def test_every_code_has_one_name() -> None:
    assert {encodings.NAMES[code]: code for code in encodings.NAMES} == encodings.CODES


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("value", range(1, 9))
def test_jpeg_orientation_is_read_in_both_byte_orders(order: str, value: int) -> None:
    data = _with_orientation(order, value)
    parsed = encodings.parse_jpeg(data)
    assert parsed is not None
    assert parsed.orientation == value
    assert encodings.read_facts(data).orientation == value


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("value", "kind", "count"), [(0, 3, 1), (9, 3, 1), (6, 4, 1), (6, 3, 2)])
@pytest.mark.filterwarnings("ignore:Metadata Warning:UserWarning")
def test_odd_orientation_is_left_to_pillow(order: str, value: int, kind: int, count: int) -> None:
    data = _with_orientation(order, value, kind, count)
    parsed = encodings.parse_jpeg(data)
    assert parsed is not None
    assert parsed.orientation is None
    _assert_turned_like_pillow(data)


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF", "JPEG"])
@pytest.mark.parametrize("value", range(10))
def test_orientation_turns_as_pillow_does(kind: str, value: int) -> None:
    exif = Image.Exif()
    exif[_ORIENTATION] = value
    _assert_turned_like_pillow(_saved(kind, exif=exif))


def _assert_turned_like_pillow(data: bytes) -> None:
    from packio.images.frames import orient

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of tags with too many values
        image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    expected = np.asarray(image.convert("RGB"))
    turned = orient(pillow.decode(data), encodings.read_facts(data).orientation)
    np.testing.assert_array_equal(turned, expected)


@pytest.mark.parametrize("name", _IMAGES)
def test_a_truncated_header_gives_facts_or_a_decode_error(name: str) -> None:
    data = _IMAGES[name]
    for end in range(min(len(data), 700)):
        _facts_or_decode_error(data[:end])


@pytest.mark.parametrize("start", _STARTS)
def test_garbage_gives_facts_or_a_decode_error(start: bytes) -> None:
    randomness = random.Random(0)
    for length in range(200):
        _facts_or_decode_error(start + randomness.randbytes(length))


@pytest.mark.parametrize("name", ["jpeg", "progressive jpeg", "multi-picture jpeg", "png", "webp"])
def test_flipped_bits_give_facts_or_a_decode_error(name: str) -> None:
    randomness, data = random.Random(0), _IMAGES[name]
    for _ in range(300):
        damaged = bytearray(data)
        damaged[randomness.randrange(min(700, len(data)))] ^= 1 << randomness.randrange(8)
        _facts_or_decode_error(bytes(damaged))


def _facts_or_decode_error(data: bytes) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of what it repairs
        try:
            facts = encodings.read_facts(data)
        except DecodeError:
            return
    assert facts.height > 0
    assert facts.width > 0
    assert facts.encoding in encodings.CODES
    assert facts.dtype in encodings.DTYPES
    assert 1 <= facts.orientation <= 8


def test_facts_of_a_jpeg_agree_with_pillow_wherever_bits_are_flipped() -> None:
    randomness, data = random.Random(1), _IMAGES["jpeg"]
    for _ in range(400):
        damaged = bytearray(data)
        damaged[randomness.randrange(700)] ^= 1 << randomness.randrange(8)
        parsed = encodings.parse_jpeg(bytes(damaged))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                image = Image.open(io.BytesIO(bytes(damaged)))
        except (OSError, SyntaxError, ValueError):
            continue
        if parsed:
            assert (parsed.width, parsed.height) == image.size


def test_an_empty_file_is_called_empty() -> None:
    with pytest.raises(DecodeError, match="0 bytes"):
        encodings.read_facts(b"")


def test_the_header_parser_skips_fill_bytes_and_other_segments() -> None:
    jpeg = _saved("JPEG")
    comment = b"\xff\xff\xff\xfe\0\x05hi!"  # two fill bytes, then a comment
    assert encodings.parse_jpeg(jpeg[:2] + comment + jpeg[2:]) == encodings.parse_jpeg(jpeg)


def test_a_second_exif_segment_is_left_to_pillow() -> None:
    data = _with_orientation("<", 6)
    segment = data[2 : data.index(b"\xff\xe0")]
    parsed = encodings.parse_jpeg(data[:2] + segment + data[2:])
    assert parsed is not None
    assert parsed.orientation is None


@pytest.mark.parametrize("data", [b"", b"\xff\xd8", b"\x89PNG", b"\xff\xd8\xff\xda\0\2"])
def test_what_has_no_frame_header_parses_to_none(data: bytes) -> None:
    assert encodings.parse_jpeg(data) is None
