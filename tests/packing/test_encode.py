"""Images encoded anew on their way into a pack, against what Pillow makes of them step by step."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import io
import pickle
import struct
import subprocess
import sys
import zlib
from typing import Any

import made
import numpy as np
import pytest
from PIL import Image, ImageCms, ImageOps, JpegImagePlugin

from packio.errors import DecodeError, LimitError, ModeError, OptionError
from packio.images.decoders import Decoder
from packio.images.encodings import raw_facts, read_facts
from packio.packing.images import encoders, resizing
from packio.packing.images.encode import CHOICES, Encoding
from packio.sample.record import Facts, Field, Record, image_record

_ORIENTATION = 0x0112


def _saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    return made.saved(image, kind, **options)


def _opened(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


def _encoded(encoding: Encoding, data: bytes, **parts: Any) -> tuple[made.Made, Facts]:
    encoded = made.of(encoding(_record(data, **parts)))
    return encoded, encoded.facts


def _record(data: bytes, *, mask: bytes | None = None, **parts: Any) -> Record[Field]:
    record = dataclasses.replace(image_record(data, read_facts(data)), **parts)
    return record if mask is None else record.with_fields(mask=Field("mask", mask))


def _pixels(data: bytes) -> np.ndarray:
    return Decoder(mode="UNCHANGED")(data, read_facts(data))


def _psnr(a: np.ndarray, b: np.ndarray) -> float:
    error = np.mean((a.astype(float) - b.astype(float)) ** 2)
    return float(10 * np.log10(255**2 / max(error, 1e-9)))


@pytest.fixture(scope="module")
def photo(photos: list[np.ndarray]) -> Image.Image:
    return Image.fromarray(photos[0]).resize((141, 96), Image.Resampling.LANCZOS)


@pytest.fixture(scope="module")
def inputs(photo: Image.Image) -> dict[str, bytes]:
    """The same photograph in all the ways that images are stored."""
    gray16 = Image.fromarray(np.asarray(photo.convert("L")).astype(np.uint16) * 257)
    alpha = photo.convert("L").point(lambda v: v // 2 + 100)
    rgba = photo.convert("RGB")
    rgba.putalpha(alpha)
    exif = Image.Exif()
    exif[_ORIENTATION] = 6
    frames = [photo, photo.convert("L").convert("RGB")]
    return {
        "rgb jpeg": _saved(photo, "JPEG", quality=95),
        "4:4:4 jpeg": _saved(photo, "JPEG", quality=95, subsampling=0),
        "gray jpeg": _saved(photo.convert("L"), "JPEG"),
        "cmyk jpeg": _saved(photo.convert("CMYK"), "JPEG"),
        "progressive jpeg": _saved(photo, "JPEG", progressive=True),
        "turned jpeg": _saved(photo, "JPEG", exif=exif),
        "rgb png": _saved(photo, "PNG"),
        "gray png": _saved(photo.convert("L"), "PNG"),
        "1-bit png": _saved(photo.convert("1"), "PNG"),
        "palette png": _saved(photo.quantize(64), "PNG"),
        "transparent palette png": _saved(photo.quantize(64), "PNG", transparency=3),
        "transparent colour png": _saved(photo, "PNG", transparency=photo.getpixel((5, 5))),
        "rgba png": _saved(rgba, "PNG"),
        "la png": _saved(rgba.convert("LA"), "PNG"),
        "16-bit png": _saved(gray16, "PNG"),
        "webp": _saved(photo, "WEBP"),
        "rgba webp": _saved(rgba, "WEBP", lossless=True),
        "bmp": _saved(photo, "BMP"),
        "gif": _saved(photo, "GIF"),
        "animated gif": _saved(frames[0], "GIF", save_all=True, append_images=frames[1:]),
        "animated webp": _saved(frames[0], "WEBP", save_all=True, append_images=frames[1:]),
        "tiff": _saved(photo, "TIFF"),
        "ppm": _saved(photo, "PPM"),
        "jp2": _saved(photo, "JPEG2000"),
    }


_INPUTS = (
    "rgb jpeg", "4:4:4 jpeg", "gray jpeg", "cmyk jpeg", "progressive jpeg", "turned jpeg",
    "rgb png", "gray png", "1-bit png", "palette png", "transparent palette png",
    "transparent colour png", "rgba png", "la png", "16-bit png", "webp", "rgba webp", "bmp", "gif",
    "animated gif", "animated webp", "tiff", "ppm", "jp2",
)  # fmt: skip
_ENCODINGS = {
    "jpeg": Encoding("jpeg", quality=95, subsampling="4:4:4", alpha="white", wide="scale"),
    "png": Encoding("png"),
    "webp": Encoding("webp", quality=95, wide="scale"),
    "lossless webp": Encoding("webp", lossless=True, wide="scale"),
    "bmp": Encoding("bmp", alpha="white", wide="scale"),
    "raw RGB": Encoding("raw", alpha="white", wide="scale"),
    "raw GRAY": Encoding("raw", mode="GRAY", alpha="white", wide="scale"),
    "raw RGB_ALPHA": Encoding("raw", mode="RGB_ALPHA", wide="scale"),
    "raw UNCHANGED": Encoding("raw", mode="UNCHANGED"),
}


def _reference(data: bytes, mode: str, *, white: bool) -> np.ndarray:
    """What Pillow makes of an image in one of its modes, 16 bits narrowed to their higher byte."""
    image = _opened(data)
    if image.mode == "I;16":
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if white and image.has_transparency_data:
        image = image.convert("RGBA")
        background = Image.new("RGBA", image.size, "white")
        background.alpha_composite(image)
        image = background.convert("RGB")
    pixels = np.asarray(image.convert(mode))
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}


@pytest.mark.parametrize("encoding", _ENCODINGS)
@pytest.mark.parametrize("name", _INPUTS)
def test_every_input_in_every_encoding(inputs: dict[str, bytes], name: str, encoding: str) -> None:
    data, encode = inputs[name], _ENCODINGS[encoding]
    item, facts = _encoded(encode, data)
    decoded = Decoder(mode="UNCHANGED")(item.data, facts)
    assert facts.encoding == encode.encode
    assert decoded.shape == (facts.height, facts.width, facts.channels)
    assert facts.orientation == read_facts(data).orientation
    assert item.facts == facts
    if encode.encode not in ("raw", "bmp"):  # which cannot carry an orientation
        assert read_facts(item.data) == facts
    if name == "16-bit png" and encoding in ("png", "raw UNCHANGED"):
        assert np.array_equal(decoded[:, :, 0], np.asarray(_opened(data)))
        return
    if encoding == "png":  # as it was stored
        assert _opened(item.data).mode == {"CMYK": "RGB"}.get(
            _opened(data).mode, _opened(data).mode
        )
    expected = _reference(data, _MODES[facts.channels], white=encode.alpha == "white")
    if encoding in ("jpeg", "webp"):
        assert _psnr(decoded[..., :3], expected[..., :3]) > (30 if name == "1-bit png" else 33)
    else:
        assert np.array_equal(decoded, expected)


@pytest.mark.parametrize("name", _INPUTS)
def test_keep_touches_nothing(inputs: dict[str, bytes], name: str) -> None:
    record = _record(inputs[name], mask=b"mask", meta=b"{}")
    for encoding in (
        Encoding(),
        Encoding(resize="short=9999"),
        Encoding(resize="max-pixels=9999999"),
    ):
        assert encoding(record) is record


@pytest.mark.parametrize("name", _INPUTS)
def test_resized_and_kept_stays_what_it_was_or_becomes_png(
    inputs: dict[str, bytes], name: str
) -> None:
    before = read_facts(inputs[name])
    _, facts = _encoded(Encoding(resize="long=40"), inputs[name])
    assert max(facts.height, facts.width) == 40
    plain = before.encoding in ("jpeg", "png", "webp", "bmp")
    assert facts.encoding == (before.encoding if plain else "png")
    assert (facts.dtype, facts.orientation) == (before.dtype, before.orientation)


def test_kept_webp_stays_lossless(photo: Image.Image) -> None:
    for lossless in (False, True):
        data = _saved(photo, "WEBP", lossless=lossless, exif=encoders.exif_of(3))  # a VP8X file
        item, _ = _encoded(Encoding(resize="short=40"), data)
        assert (b"VP8L" in item.data) == lossless


@pytest.mark.parametrize(
    ("rule", "size", "expected"),
    [
        ("short=256", (500, 375), (341, 256)),  # as torchvision's Resize, here and below
        ("short=256", (375, 500), (256, 341)),
        ("short=256", (256, 9), (256, 9)),
        ("long=100", (500, 375), (100, 75)),
        ("long=100", (1000, 3), (100, 1)),
        ("max-pixels=250000", (1000, 1000), (500, 500)),
        ("max-pixels=250000", (500, 500), (500, 500)),
        ("max-pixels=250000", (2000, 500), (1000, 250)),
        ("max-pixels=100", (10000, 1), (100, 1)),
        ("exact=320x240", (10, 10), (320, 240)),
    ],
)
def test_resize_rules(rule: str, size: tuple[int, int], expected: tuple[int, int]) -> None:
    assert resizing.target(rule, size, 1, enlarge=False) == expected


@pytest.mark.parametrize("rule", ["short=128", "long=128", "max-pixels=16384"])
def test_only_enlarge_enlarges(rule: str) -> None:
    name, _ = resizing.parse(rule)
    rng = np.random.default_rng(0)
    for width, height in rng.integers(1, 400, (200, 2)).tolist():
        wide, high = resizing.target(rule, (width, height), 1, enlarge=False)
        assert 1 <= wide <= width
        assert 1 <= high <= height
        larger = resizing.target(rule, (width, height), 1, enlarge=True)
        reached = {"short": min(larger), "long": max(larger), "max-pixels": 128}[name]
        assert reached == 128
        if name == "max-pixels":
            assert larger[0] * larger[1] <= 16384


def test_enlarging_stops_at_the_limit() -> None:
    with pytest.raises(LimitError, match="would become"):
        resizing.target("short=9000", (9, 60000), 1, enlarge=True)


@pytest.mark.parametrize("how", CHOICES["interpolation"])
def test_lossless_results_are_pillows_resize(photo: Image.Image, how: str) -> None:
    data = _saved(photo, "JPEG", quality=95)
    to = (70, 70 * photo.height // photo.width)
    expected = np.asarray(_opened(data).resize(to, Image.Resampling[how.upper()]))
    encoding = Encoding("png", resize=f"exact={to[0]}x{to[1]}", interpolation=how)
    assert np.array_equal(_pixels(_encoded(encoding, data)[0].data), expected)


def test_transparent_pixels_weigh_nothing_when_resized() -> None:
    pixels = np.zeros((8, 8, 4), np.uint8)
    pixels[:, ::2] = (200, 100, 50, 255)
    item, _ = _encoded(Encoding(resize="short=4"), _saved(Image.fromarray(pixels), "PNG"))
    colours = _pixels(item.data)[..., :3]
    assert np.abs(colours.astype(int) - (200, 100, 50)).max() <= 2


def test_sixteen_bits_are_resized_as_such() -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 0x10000, (40, 60), dtype=np.uint16)
    data = _saved(Image.fromarray(pixels), "PNG")
    expected = Image.fromarray(pixels.astype(np.float32)).resize((30, 20), Image.Resampling.BICUBIC)
    item, facts = _encoded(Encoding(resize="short=20", interpolation="bicubic"), data)
    assert facts.dtype == "uint16"
    rounded = np.rint(np.asarray(expected)).clip(0, 0xFFFF)
    assert np.array_equal(_pixels(item.data)[:, :, 0], rounded)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("size", [(600, 451), (601, 449), (903, 600)])
def test_scaled_decoding_loses_less_than_jpeg(
    photo: Image.Image, mode: str, size: tuple[int, int]
) -> None:
    image = photo.resize(size, Image.Resampling.BICUBIC).convert(mode)
    data = _saved(image, "JPEG", quality=95)
    kept = "L" if mode == "L" else "RGB"
    to = (size[0] // 4, size[1] // 4)
    resize = f"exact={to[0]}x{to[1]}"
    full = _opened(data).convert(kept).resize(to, Image.Resampling.BILINEAR)
    with Image.open(io.BytesIO(data)) as opened:
        box = resizing.decode_scaled(opened, data, to)
        assert opened.size == ((size[0] + 1) // 2, (size[1] + 1) // 2)
        scaled = resizing.resize_image(opened.convert(kept), to, "bilinear", box)
    assert _psnr(np.asarray(scaled), np.asarray(full)) > 42
    item, _ = _encoded(Encoding("jpeg", resize=resize, quality=100, subsampling="4:4:4"), data)
    assert np.abs(_pixels(item.data).squeeze().astype(int) - np.asarray(scaled)).max() <= 4
    item, _ = _encoded(Encoding("png", resize=resize), data)
    assert np.array_equal(_pixels(item.data).squeeze(), np.asarray(full))


@pytest.mark.parametrize("subsampling", CHOICES["subsampling"])
def test_jpegs_are_as_asked(photo: Image.Image, subsampling: str) -> None:
    item, facts = _encoded(Encoding("jpeg", subsampling=subsampling), _saved(photo, "PNG"))
    expected = _saved(photo, "JPEG", quality=90, subsampling=subsampling)
    assert np.array_equal(_pixels(item.data), _pixels(expected))
    made = Image.open(io.BytesIO(item.data))
    assert isinstance(made, JpegImagePlugin.JpegImageFile)
    position = ("4:4:4", "4:2:2", "4:2:0").index(subsampling)
    assert JpegImagePlugin.get_sampling(made) == position
    assert not facts.progressive


def test_same_bytes_on_any_thread_and_after_pickling(inputs: dict[str, bytes]) -> None:
    encodings = [
        Encoding("jpeg", resize="short=50", wide="scale", alpha="black", icc="srgb"),
        Encoding("webp", resize="long=33", wide="scale", interpolation="lanczos"),
        Encoding("raw", resize="exact=24x32", orientation="bake", wide="scale", alpha="drop"),
    ]
    for encoding in encodings:
        again = pickle.loads(pickle.dumps(encoding))
        once = [_encoded(encoding, data) for data in inputs.values()]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            others = list(pool.map(_encoded, [again] * 2 * len(inputs), [*inputs.values()] * 2))
        assert others == once * 2


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_kept_or_baked(photo: Image.Image, orientation: int) -> None:
    exif = Image.Exif()
    exif[_ORIENTATION], exif[0x010F] = orientation, "maker"
    data = _saved(photo, "PNG", exif=exif)
    turned = ImageOps.exif_transpose(_opened(data))
    for encode in ("keep", "png", "webp"):
        encoding = Encoding(encode, orientation="bake", lossless=encode == "webp")
        baked, facts = _encoded(encoding, data)
        assert (facts.width, facts.height, facts.orientation) == (*turned.size, 1)
        assert np.array_equal(_pixels(baked.data), np.asarray(turned))
        tags = _opened(baked.data).getexif()
        assert (tags.get(_ORIENTATION, 1), tags[0x010F]) == (1, "maker")
    for encode in ("jpeg", "webp", "png"):
        kept, facts = _encoded(Encoding(encode), data)
        assert (facts.width, facts.height, facts.orientation) == (*photo.size, orientation)
        assert _opened(kept.data).getexif()[0x010F] == "maker"
    for encode in ("bmp", "raw"):
        assert _encoded(Encoding(encode), data)[1].orientation == orientation
        baked, facts = _encoded(Encoding(encode, orientation="bake"), data)
        assert np.array_equal(Decoder(mode="RGB")(baked.data, facts), np.asarray(turned))


def test_exact_is_the_upright_size(photo: Image.Image) -> None:
    exif = Image.Exif()
    exif[_ORIENTATION] = 8
    data = _saved(photo, "JPEG", exif=exif)
    for orientation in ("keep", "bake"):
        encoding = Encoding(resize="exact=64x48", orientation=orientation)
        upright = ImageOps.exif_transpose(_opened(_encoded(encoding, data)[0].data))
        assert upright.size == (64, 48)


def test_orientation_told_by_xmp_is_not_lost(photo: Image.Image) -> None:
    xmp = b'<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    data = _saved(photo, "JPEG", xmp=xmp)
    assert read_facts(data).orientation == 6
    item, _ = _encoded(Encoding("jpeg"), data)
    assert read_facts(item.data).orientation == 6
    item, facts = _encoded(Encoding("jpeg", orientation="bake"), data)
    assert read_facts(item.data).orientation == 1
    assert (facts.width, facts.height) == photo.size[::-1]


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")  # Pillow's
def test_broken_exif_does_not_hurt(photo: Image.Image) -> None:
    entries = struct.pack("<H", 40) + b"\xff" * 8  # fewer than it says
    for exif in (b"Exif\0\0", b"Exif\0\0II*\0\x08\0\0\0" + entries):
        jpeg = _saved(photo, "JPEG", exif=exif)
        facts = Facts("jpeg", photo.height, photo.width, 3, "uint8", 6, progressive=False)
        record = image_record(jpeg, facts=facts)
        for encode in ("jpeg", "png", "webp"):
            for orientation, kept in (("keep", 6), ("bake", 1)):
                made = Encoding(encode, orientation=orientation)(record)
                assert read_facts(made.image.data).orientation == made.facts.orientation == kept


_SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def _swapped_profile() -> bytes:
    """A profile in which red is sRGB's blue, and blue its red."""
    swapped = _SRGB.replace(b"rXYZ", b"????").replace(b"bXYZ", b"rXYZ").replace(b"????", b"bXYZ")
    return swapped.replace("sRGB".encode("utf-16-be"), "BGRs".encode("utf-16-be"))


@pytest.mark.parametrize("encode", ["jpeg", "png", "webp"])
def test_colour_profiles_are_carried(photo: Image.Image, encode: str) -> None:
    long = bytearray(150_000)  # of several segments
    long[:20] = _SRGB[:20]
    for profile in (_SRGB, bytes(long)):
        item, _ = _encoded(Encoding(encode), _saved(photo, "PNG", icc_profile=profile))
        assert _opened(item.data).info["icc_profile"] == profile


def test_profiles_of_other_colours_are_not_carried(photo: Image.Image) -> None:
    cmyk = _SRGB[:16] + b"CMYK" + _SRGB[20:]
    data = _saved(photo.convert("CMYK"), "JPEG", icc_profile=cmyk)
    assert "icc_profile" not in _opened(_encoded(Encoding("jpeg"), data)[0].data).info


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "L"])
def test_srgb_converts_by_the_profile(photo: Image.Image, mode: str) -> None:
    profile = _swapped_profile()
    image = photo.convert(mode)
    if mode == "RGBA":
        image.putalpha(photo.convert("L"))
    item, _ = _encoded(Encoding(icc="srgb"), _saved(image, "PNG", icc_profile=profile))
    result = _opened(item.data)
    assert "icc_profile" not in result.info
    plain = image.convert("RGB") if mode == "P" else image
    expected = np.asarray(plain)
    if mode != "L":
        expected = expected[..., [2, 1, 0, *range(3, expected.shape[2])]]
    assert result.mode == plain.mode
    assert np.abs(np.asarray(result).astype(int) - expected).max() <= 1


def test_srgb_leaves_srgb_and_the_unprofiled_alone(photo: Image.Image) -> None:
    for options in ({}, {"icc_profile": _SRGB}):
        data = _saved(photo, "JPEG", **options)
        record = image_record(data, facts=read_facts(data))
        assert Encoding(icc="srgb")(record) is record


def test_profiles_that_cannot_be_applied_are_errors(photo: Image.Image) -> None:
    swapped = _swapped_profile()
    for profile in (b"nothing", swapped[:500], swapped[:16] + b"CMYK" + swapped[20:]):
        data = _saved(photo, "JPEG", icc_profile=profile)
        with pytest.raises(DecodeError, match="icc='keep'"):
            _encoded(Encoding("jpeg", icc="srgb"), data)


def _mask(mode: str, size: tuple[int, int]) -> Image.Image:
    ids = np.random.default_rng(3).integers(0, 5, size[::-1])
    if mode == "I;16":
        return Image.fromarray((ids * 13000).astype(np.uint16))
    if mode == "P":
        image = Image.fromarray(ids.astype(np.uint8), "L").convert("L")
        image = Image.frombytes("P", size, image.tobytes())
        image.putpalette([7, 8, 9, 200, 0, 0, 0, 200, 0, 0, 0, 200, 90, 91, 92])
        return image
    if mode == "RGB":
        return Image.fromarray(np.stack([ids, ids * 3, ids * 5], axis=2).astype(np.uint8))
    return Image.fromarray((ids > 2) if mode == "1" else ids.astype(np.uint8))


@pytest.mark.parametrize("orientation", [1, 3, 6])
@pytest.mark.parametrize("mode", ["P", "L", "1", "I;16", "RGB"])
def test_masks_follow_their_image(photo: Image.Image, mode: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[_ORIENTATION] = orientation
    data, before = _saved(photo, "JPEG", exif=exif), _mask(mode, photo.size)
    encoding = Encoding("jpeg", resize="short=57", orientation="bake")
    item, facts = _encoded(encoding, data, mask=_saved(before, "PNG"))
    assert item.mask_data is not None
    after = _opened(item.mask_data)
    assert (after.format, after.mode, after.size) == ("PNG", mode, (facts.width, facts.height))
    assert after.getpalette() == before.getpalette()
    to = (facts.width, facts.height) if orientation != 6 else (facts.height, facts.width)
    expected = before.resize(to, Image.Resampling.NEAREST)
    turns = {3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_270}
    if orientation != 1:
        expected = expected.transpose(turns[orientation])
    assert np.array_equal(np.asarray(after), np.asarray(expected))


def test_ids_beyond_the_palette_survive() -> None:
    ids = Image.frombytes("P", (4, 4), bytes([0, 1, 2, 255] * 4))
    ids.putpalette([1, 2, 3] * 256)
    data = _saved(ids, "PNG")
    length = data.index(b"PLTE") - 4
    short = zlib.crc32(b"PLTE" + bytes(9)).to_bytes(4, "big")
    data = data[:length] + b"\0\0\0\x09PLTE" + bytes(9) + short + data[length + 12 + 768 :]
    moved = resizing.move_mask(data, (4, 4), (4, 2), 1)
    assert np.asarray(_opened(moved)).tolist() == [[0, 1, 2, 255]] * 2


def test_masks_and_meta_stay_where_nothing_moves(photo: Image.Image) -> None:
    data = _saved(photo, "PNG")
    item, _ = _encoded(Encoding("jpeg", resize="short=5000"), data, mask=b"any", meta=b"{}")
    assert item.data != data
    assert (item.mask_data, item.meta) == (b"any", b"{}")


def test_masks_that_do_not_fit_are_errors(photo: Image.Image) -> None:
    data, encoding = _saved(photo, "JPEG"), Encoding(resize="short=40")
    wrong = photo.size[::-1]
    floats = Image.fromarray(np.zeros(wrong, np.float32))
    for mask in (_saved(_mask("L", wrong), "PNG"), _saved(floats, "TIFF"), b"no image"):
        with pytest.raises(DecodeError, match="mask: "):
            _encoded(encoding, data, mask=mask)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_boxes_follow_what_they_enclose(orientation: int) -> None:
    pixels = np.zeros((90, 120, 3), np.uint8)
    pixels[30:48, 60:108] = 255
    exif = Image.Exif()
    exif[_ORIENTATION] = orientation
    data = _saved(Image.fromarray(pixels), "PNG", exif=exif)
    boxes = np.array([[60, 30, 108, 48], [0, 0, 120, 90]], np.float32)
    encoding = Encoding(resize="short=60", orientation="bake", interpolation="nearest")
    item, facts = _encoded(encoding, data, boxes=boxes)
    y, x = np.nonzero(_pixels(item.data)[:, :, 0])
    assert item.boxes is not None
    assert item.boxes.dtype == np.float32
    assert item.boxes.tolist() == [
        [x.min(), y.min(), x.max() + 1, y.max() + 1],
        [0, 0, facts.width, facts.height],
    ]


def test_boxes_of_kept_orientation_only_scale(photo: Image.Image) -> None:
    exif = Image.Exif()
    exif[_ORIENTATION] = 6
    data = _saved(photo.resize((120, 90)), "JPEG", exif=exif)
    item, _ = _encoded(Encoding(resize="long=60"), data, boxes=np.array([[10, 20, 30, 40.0]]))
    assert item.boxes is not None
    assert item.boxes.tolist() == [[5, 10, 15, 20]]
    none = np.zeros((0, 4), np.float32)
    item, _ = _encoded(Encoding(resize="long=60"), data, boxes=none)
    assert item.boxes is not None
    assert item.boxes.shape == (0, 4)


def test_smart_keeps_bytes_that_would_not_shrink(photo: Image.Image) -> None:
    smart = Encoding("jpeg", quality=90, smart=True)
    small, large = _saved(photo, "JPEG", quality=60), _saved(photo, "JPEG", quality=98)
    record = image_record(small, facts=read_facts(small))
    assert smart(record) is record
    shrunk, _ = _encoded(smart, large)
    assert len(shrunk.data) < len(large)
    resized, facts = _encoded(Encoding("jpeg", smart=True, resize="short=50"), small)
    assert min(facts.height, facts.width) == 50
    assert resized.data != small
    flat = _saved(Image.new("RGBA", (64, 64), (9, 9, 9, 99)), "PNG")
    item, facts = _encoded(Encoding("jpeg", smart=True, alpha="white"), flat)
    assert (facts.encoding, len(item.data) > len(flat)) == ("jpeg", True)


def test_what_would_be_lost_is_an_error(inputs: dict[str, bytes]) -> None:
    for name in ("rgba png", "la png", "transparent palette png", "transparent colour png"):
        for encoding in (Encoding("jpeg"), Encoding("bmp"), Encoding("raw")):
            with pytest.raises(ModeError, match="alpha='white'"):
                _encoded(encoding, inputs[name])
    for encoding in (Encoding("jpeg"), Encoding("webp"), Encoding("bmp"), Encoding("raw")):
        with pytest.raises(ModeError, match="wide='scale'"):
            _encoded(encoding, inputs["16-bit png"])
    floats = _saved(Image.fromarray(np.zeros((4, 4), np.float32)), "TIFF")
    for wide in CHOICES["wide"]:
        with pytest.raises(ModeError, match="UNCHANGED"):
            _encoded(Encoding("png", wide=wide), floats)


def test_sixteen_bit_colour_is_not_narrowed_silently() -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 0x10000, (6, 5, 3), dtype=np.uint16)
    data = _sixteen_bit_png(pixels)
    for encoding in (Encoding("png"), Encoding("raw", mode="UNCHANGED"), Encoding("jpeg")):
        with pytest.raises(ModeError, match="wide='scale'"):
            _encoded(encoding, data)
    item, facts = _encoded(Encoding(wide="scale"), data)
    assert facts.dtype == "uint8"
    assert np.array_equal(_pixels(item.data), pixels >> 8)


def _sixteen_bit_png(pixels: np.ndarray) -> bytes:
    import cv2

    done, data = cv2.imencode(".png", pixels[..., ::-1])
    assert done
    return bytes(data)


def test_alpha_policies() -> None:
    pixels = np.array([[[200, 100, 0, 255], [200, 100, 0, 0], [200, 100, 0, 51]]], np.uint8)
    data = _saved(Image.fromarray(pixels), "PNG")
    expected = {
        "white": [[200, 100, 0], [255, 255, 255], [244, 224, 204]],
        "black": [[200, 100, 0], [0, 0, 0], [40, 20, 0]],
        "drop": [[200, 100, 0]] * 3,
    }
    for alpha, colours in expected.items():
        for encode in ("keep", "png", "raw"):
            item, facts = _encoded(Encoding(encode, alpha=alpha), data)
            assert Decoder()(item.data, facts)[0].tolist() == colours
    opaque = Image.fromarray(pixels)
    opaque.putalpha(255)
    assert _encoded(Encoding("jpeg"), _saved(opaque, "PNG"))[1].channels == 3


def test_raw_pixels_are_a_source_too(photo: Image.Image) -> None:
    array = np.asarray(photo)
    facts = raw_facts(photo.height, photo.width, 3, encoding="raw_hwc_bgr")
    record = image_record(array[..., ::-1].tobytes(), facts=facts)
    made = Encoding("png")(record)
    assert read_facts(made.image.data) == made.facts
    assert np.array_equal(_pixels(made.image.data), array)
    made = Encoding(resize="exact=30x20")(record)
    assert made.facts == raw_facts(20, 30, 3)
    expected = np.asarray(photo.resize((30, 20), Image.Resampling.BILINEAR))
    assert np.array_equal(Decoder()(made.image.data, made.facts), expected)
    many = raw_facts(2, 2, 5)
    with pytest.raises(ModeError, match="5 channels"):
        Encoding("png")(image_record(bytes(20), facts=many))


def test_floats_stay_floats_as_raw_pixels() -> None:
    pixels = np.random.default_rng(0).random((4, 6)).astype(np.float32)
    data = _saved(Image.fromarray(pixels), "TIFF")
    item, facts = _encoded(Encoding("raw", mode="UNCHANGED"), data)
    assert facts == raw_facts(4, 6, 1, "float32")
    assert item.data == pixels.tobytes()


def test_damaged_images_are_errors(inputs: dict[str, bytes]) -> None:
    for name in ("rgb jpeg", "rgb png", "webp"):
        data = inputs[name]
        facts = read_facts(data)
        with pytest.raises(DecodeError, match=r"cannot be encoded|can identify: WEBP"):
            Encoding("jpeg", resize="short=20")(image_record(data[: len(data) // 2], facts=facts))
    wide = _saved(Image.new("L", (20000, 1)), "PNG")
    with pytest.raises(DecodeError, match="cannot be encoded"):
        _encoded(Encoding("webp"), wide)


@pytest.mark.parametrize(
    "options",
    [
        {"encode": "gif"},
        {"quality": 0, "encode": "jpeg"},
        {"quality": 101, "encode": "jpeg"},
        {"quality": 80.5, "encode": "jpeg"},
        {"quality": 80, "encode": "png"},
        {"subsampling": "4:1:1", "encode": "jpeg"},
        {"subsampling": "4:4:4", "encode": "webp"},
        {"lossless": True},
        {"resize": "256"},
        {"resize": "short=0"},
        {"resize": "exact=224"},
        {"resize": "short=10 "},
        {"enlarge": True},
        {"interpolation": "bicubic"},
        {"interpolation": "area", "resize": "short=10"},
        {"smart": True},
        {"smart": True, "encode": "raw"},
        {"orientation": "up"},
        {"icc": "p3"},
        {"alpha": "red"},
        {"wide": "raise"},
        {"mode": "GRAY", "encode": "jpeg"},
        {"mode": "BGR", "encode": "raw"},
    ],
)
def test_options_that_cannot_be_meant(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        Encoding(**options)


def test_options_hold_what_is_no_default() -> None:
    assert Encoding().as_options() == {"encode": "keep"}
    assert Encoding(quality=90, interpolation="bilinear").as_options() == {"encode": "keep"}
    made = Encoding("jpeg", quality=80, resize="short=256", smart=True)
    assert made.as_options() == {
        "encode": "jpeg", "quality": 80, "resize": "short=256", "smart": True
    }  # fmt: skip


def test_encoding_needs_no_torch_and_no_optional_package(inputs: dict[str, bytes]) -> None:
    code = (
        "import sys; from packio.packing.images.encode import Encoding; "
        "from packio.sample.record import image_record as record; "
        "from packio.images.encodings import read_facts; data = sys.stdin.buffer.read(); "
        "Encoding('jpeg', resize='short=32', icc='srgb')(record(data, facts=read_facts(data))); "
        "print({'torch', 'cv2'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, input=inputs["rgb jpeg"], capture_output=True, check=True)
    assert done.stdout.strip() == b"set()"
