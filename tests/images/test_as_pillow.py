"""Unusual headers: every decoder, and the facts of an image, say what Pillow says."""

from __future__ import annotations

import io
import itertools
import struct
import zlib
from typing import TYPE_CHECKING, Any, Literal

import made
import numpy as np
import pytest
from PIL import Image, ImageOps, UnidentifiedImageError

import packio
from packio import registry
from packio.errors import DecodeError, MissingPackageError
from packio.images.decoders import Decoder
from packio.images.encodings import read_facts

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

_SHORT, _RATIONAL, _FLOAT, _LONG = 3, 5, 11, 4
_XMP = b"http://ns.adobe.com/xap/1.0/\0"
_EXACT = [name for name in registry.names("decoders") if registry.load("decoders", name).EXACT]


@pytest.fixture(params=_EXACT)
def plugin(request: pytest.FixtureRequest) -> ModuleType:
    """Each exact decoder that is installed, and decodes JPEGs."""
    module: ModuleType = registry.load("decoders", request.param)
    try:
        module.version()
    except MissingPackageError as error:
        pytest.skip(str(error))
    if "jpeg" not in module.ENCODINGS:
        pytest.skip("decodes no JPEGs")
    return module


def _photo() -> Image.Image:
    y, x, c = np.ogrid[:30, :40, :3]
    waves = 128 + 70 * np.sin(x / (3 + c)) + 50 * np.cos(y / (5 - c))
    return Image.fromarray(waves.clip(0, 255).astype(np.uint8))


def _jpeg(*segments: bytes, **options: object) -> bytes:
    """A JPEG of 40x30 with segments behind its start marker."""
    data = made.saved(_photo(), "JPEG", **options)
    return data[:2] + b"".join(segments) + data[2:]


def _app1(body: bytes) -> bytes:
    return b"\xff\xe1" + struct.pack(">H", 2 + len(body)) + body


def _exif(*entries: tuple[int, bytes], order: str = "<") -> bytes:
    """An Exif segment whose directory has entries of the tag orientation: (type, 4 bytes)."""
    tiff = {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(f"{order}IH", 8, len(entries))
    for kind, value in entries:
        tiff += struct.pack(f"{order}HHI", 0x0112, kind, 1) + value
    return _app1(b"Exif\0\0" + tiff + bytes(4))


def _short(value: int) -> tuple[int, bytes]:
    return _SHORT, struct.pack("<HH", value, 0)


def _rational(numerator: int, denominator: int) -> bytes:
    """An Exif segment with the orientation as a fraction, behind the directory."""
    tiff = b"II*\0" + struct.pack("<IHHHIII", 8, 1, 0x0112, _RATIONAL, 1, 26, 0)
    return _app1(b"Exif\0\0" + tiff + struct.pack("<II", numerator, denominator))


def _xmp(orientation: int) -> bytes:
    text = f'<x:xmpmeta><rdf tiff:Orientation="{orientation}"/></x:xmpmeta>'
    return _app1(_XMP + text.encode())


_SEGMENTS = {
    "first 1, second 6": [_exif(_short(1)), _exif(_short(6))],
    "first 6, second 1": [_exif(_short(6)), _exif(_short(1))],
    "first 6, second 6": [_exif(_short(6)), _exif(_short(6))],
    "first without, second 6": [_exif(), _exif(_short(6))],
    "first 3, second without": [_exif(_short(3)), _exif()],
    "three segments": [_exif(_short(1)), _exif(_short(8)), _exif(_short(6))],
    "Exif 1, XMP 6": [_exif(_short(1)), _xmp(6)],
    "XMP 6, Exif 1": [_xmp(6), _exif(_short(1))],
    "XMP 6, Exif without": [_xmp(6), _exif()],
    "XMP 8 alone": [_xmp(8)],
    "two XMP": [_xmp(3), _xmp(6)],
    "the tag twice": [_exif(_short(1), _short(6))],
    "the tag twice, the other way round": [_exif(_short(6), _short(1))],
    "RATIONAL 6": [_rational(6, 1)],
    "RATIONAL 12/2": [_rational(12, 2)],
    "RATIONAL 13/2": [_rational(13, 2)],
    "RATIONAL 6/0": [_rational(6, 0)],
    "FLOAT 6": [_exif((_FLOAT, struct.pack("<f", 6.0)))],
    "LONG 6": [_exif((_LONG, struct.pack("<I", 6)))],
    "BYTE 6": [_exif((1, b"\6\0\0\0"))],
    "ASCII 6": [_exif((2, b"6\0\0\0"))],
    "9, no turn": [_exif(_short(9))],
    "big-endian 5": [_exif((_SHORT, struct.pack(">HH", 5, 0)), order=">")],
}


@pytest.mark.parametrize("name", _SEGMENTS)
def test_a_jpeg_is_turned_as_pillow_turns_it(name: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.jpg").write_bytes(data := _jpeg(*_SEGMENTS[name]))
    with Image.open(io.BytesIO(data)) as opened:
        expected = np.asarray(ImageOps.exif_transpose(opened))
    packio.pack(tmp_path / "in", tmp_path / "out.tar")
    dataset = packio.PackDataset(tmp_path / "out.tar", fields="image", output="numpy")
    image = dataset[0]
    assert np.array_equal(image, expected)


_PALETTE = b"".join(bytes((i, 255 - i, i * 7 % 256)) for i in range(10))


def _beyond_its_palette(kind: str, **options: object) -> bytes:
    """An image of 8-bit indices from 0 to 29, with colours for the first ten."""
    image = Image.new("P", (30, 20))
    image.putdata([(x + y) % 30 for y, x in itertools.product(range(20), range(30))])
    image.putpalette(_PALETTE + bytes(3 * 246))
    data = made.saved(image, kind, **options)
    if kind != "PNG":
        return data
    start = data.index(b"PLTE") - 4
    (length,) = struct.unpack_from(">I", data, start)
    return data[:start] + _chunk(b"PLTE", _PALETTE) + data[start + 12 + length :]


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


@pytest.mark.parametrize("transparency", [None, 3, bytes([0, 90, 255])])
@pytest.mark.parametrize("options", [{"encode": "png"}, {"orientation": "bake"}])
def test_encoding_as_png_keeps_indices_beyond_the_palette(
    transparency: int | bytes | None, options: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    more: dict[str, Any] = {} if transparency is None else {"transparency": transparency}
    if "orientation" in options:
        exif = Image.Exif()
        exif[0x0112] = 3
        more["exif"] = exif
    data = _beyond_its_palette("PNG", **more)
    (tmp_path / "in/a.png").write_bytes(data)
    packio.pack(tmp_path / "in", tmp_path / "out.tar", **options)
    (sample,) = packio.open(tmp_path / "out.tar")
    with Image.open(io.BytesIO(data)) as image, Image.open(io.BytesIO(sample.data)) as made:
        upright = ImageOps.exif_transpose(image)
        assert np.array_equal(np.asarray(made), np.asarray(upright))  # the indices
        assert np.array_equal(np.asarray(made.convert("RGBA")), np.asarray(upright.convert("RGBA")))


def _scans(data: bytes) -> list[int]:
    """Where the scans of a progressive JPEG begin, each with the tables before it."""
    places, at = [], 2
    while True:
        marker, (length,) = data[at + 1], struct.unpack_from(">H", data, at + 2)
        if marker == 0xDA:
            places.append(at)
            at += 2 + length
            while data[at] != 0xFF or data[at + 1] == 0 or 0xD0 <= data[at + 1] <= 0xD7:
                at += 1
            if data[at + 1] == 0xD9:
                return places
        else:
            at += 2 + length


def test_progressive_jpegs_without_their_last_scans_decode_as_pillow_decodes_them(
    plugin: ModuleType, photos: list[np.ndarray]
) -> None:
    data = made.saved(photos[0], "JPEG", quality=85, progressive=True)
    for end in _scans(data)[1:]:
        cut = data[:end] + b"\xff\xd9"
        with Image.open(io.BytesIO(cut)) as image:
            expected = np.asarray(image)
        try:
            pixels = plugin.decode(cut, "RGB")
        except DecodeError:
            continue
        assert np.array_equal(pixels, expected)


def test_whole_progressive_jpegs_are_not_left_to_pillow(plugin: ModuleType) -> None:
    data = _jpeg(progressive=True)
    with Image.open(io.BytesIO(data)) as image:
        assert np.array_equal(plugin.decode(data, "RGB"), np.asarray(image))


@pytest.mark.parametrize("marker", [0x01, 0x02, 0xBF])  # TEM, and two that are reserved
def test_a_jpeg_with_a_marker_that_pillow_refuses_is_refused_by_every_decoder(
    plugin: ModuleType, marker: int
) -> None:
    data = _jpeg(bytes((0xFF, marker)))
    with pytest.raises(UnidentifiedImageError):
        Image.open(io.BytesIO(data))
    with pytest.raises(DecodeError):
        read_facts(data)
    with pytest.raises(DecodeError):
        plugin.decode(data, "RGB")
    name = plugin.__name__.rpartition(".")[2]
    facts = read_facts(_jpeg())
    with pytest.raises(DecodeError):
        Decoder(name)(data, facts)


@pytest.mark.parametrize("marker", [0xD0, 0xD9, 0xF0, 0xFD])  # RST0, EOI, JPG0, JPG13
def test_a_jpeg_with_a_marker_that_pillow_passes_over_has_pillows_pixels(
    plugin: ModuleType, marker: int
) -> None:
    data = _jpeg(bytes((0xFF, marker)))
    expected: np.ndarray | None = None
    try:
        with Image.open(io.BytesIO(data)) as image:
            expected = np.asarray(image)
    except OSError:
        pass
    name = plugin.__name__.rpartition(".")[2]
    try:
        pixels = Decoder(name)(data, read_facts(data))
    except DecodeError:
        pixels = None
    assert (pixels is None) == (expected is None)
    assert pixels is None or (expected is not None and np.array_equal(pixels, expected))


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("output", ["tensor", "numpy", "pil"])
def test_16_bit_tiffs_of_both_byte_orders_have_their_pixels(
    big: bool, output: str, tmp_path: Path
) -> None:
    values = np.random.default_rng(1).integers(0, 1 << 16, (9, 14), np.uint16)
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.tif").write_bytes(_tiff(values, ">" if big else "<"))
    packio.pack(tmp_path / "in", tmp_path / "out.tar", check="decode")
    dataset = packio.PackDataset(
        tmp_path / "out.tar", mode="UNCHANGED", fields=("image", "key"), output=output
    )
    for image in (dataset[0][0], dataset.__getitems__([0])[0][0]):
        assert np.array_equal(np.asarray(image).reshape(9, 14), values)


def _tiff(values: np.ndarray, order: Literal["<", ">"]) -> bytes:
    """A gray image of one strip. Source: TIFF 6.0, sections 2 and 4."""
    height, width = values.shape
    body = values.astype(values.dtype.newbyteorder(order)).tobytes()
    sample = {"u": 1, "i": 2, "f": 3}[values.dtype.kind]
    entries = [(256, width), (257, height), (258, 8 * values.itemsize), (259, 1), (262, 1),
               (273, 8), (277, 1), (278, height), (279, len(body)), (339, sample)]  # fmt: skip
    head = {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(f"{order}I", 8 + len(body))
    tags = b"".join(struct.pack(f"{order}HHII", tag, _LONG, 1, n) for tag, n in entries)
    return head + body + struct.pack(f"{order}H", len(entries)) + tags + bytes(4)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int16, np.int32, np.float32])
def test_a_tiff_of_any_type_and_byte_order_becomes_a_tensor(
    order: Literal["<", ">"], dtype: type, tmp_path: Path
) -> None:
    values: np.ndarray = np.arange(12).reshape(3, 4).astype(dtype)
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.tif").write_bytes(_tiff(values, order))
    packio.pack(tmp_path / "in", tmp_path / "out.tar")
    image = packio.PackDataset(tmp_path / "out.tar", mode="UNCHANGED", fields="image")[0]
    assert np.array_equal(image.numpy()[0], values)
