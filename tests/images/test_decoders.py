"""The contract of decoders: Pillow's pixels or a DecodeError, whatever the bytes."""

from __future__ import annotations

import io
import pathlib
import pickle
import random
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import made
import numpy as np
import pytest
from PIL import Image

from packio import registry
from packio.errors import DecodeError, LimitError, MissingPackageError, ModeError, OptionError
from packio.images import decoders, encodings
from packio.images.decoders import Decoder, pillow
from packio.sample.record import Facts

if TYPE_CHECKING:
    from types import ModuleType

_SIZE = (45, 61)  # (height, width) in pixels: no block size divides them
_IMAGE_MODES = {"RGB": "RGB", "GRAY": "L", "RGB_ALPHA": "RGBA"}


@pytest.fixture(params=registry.names("decoders"))
def plugin(request: pytest.FixtureRequest) -> ModuleType:
    """Each decoder module that is installed."""
    module: ModuleType = registry.load("decoders", request.param)
    try:
        module.version()
    except MissingPackageError as error:
        pytest.skip(str(error))
    return module


def _pixels(seed: int = 0) -> np.ndarray:
    y, x, c = np.ogrid[: _SIZE[0], : _SIZE[1], :3]
    waves = 128 + 70 * np.sin(x / (5 + c)) + 50 * np.cos(y / (7 - c))
    noise = np.random.default_rng(seed).normal(0, 9, waves.shape)
    pixels: np.ndarray = (waves + noise).clip(0, 255).astype(np.uint8)
    return pixels


def _photo(mode: str = "RGB") -> Image.Image:
    return Image.fromarray(_pixels()).convert(mode)


def _saved(kind: str, image: Image.Image | None = None, **options: Any) -> bytes:
    return made.saved(image or _photo(), kind, **options)


def _sampled_1x4() -> bytes:
    """A gray image of 4:4:1, which Pillow cannot write: four blocks of luminance, then chroma."""
    plain = Image.new("RGB", (16, 64), (128, 128, 128))
    data = bytearray(_saved("JPEG", plain, subsampling="4:4:4"))  # with the standard's own tables
    data[data.index(b"\xff\xc0") + 11] = 0x14
    scan = data.index(b"\xff\xda")
    head = data[: scan + 2 + int.from_bytes(data[scan + 2 : scan + 4], "big")]
    unit = b"\x28\xa2\x8a\x00"  # four blocks of 00 1010 (no difference, end), two of 00 00
    return bytes(head) + 4 * unit + b"\xff\xd9"


def _transparent() -> Image.Image:
    image = _photo()
    image.putalpha(_photo("L"))
    return image


def _of_encoding() -> dict[str, bytes]:
    """Make one plain image of each encoding that a plugin claims."""
    return {
        "jpeg": _saved("JPEG"),
        "png": _saved("PNG"),
        "webp": _saved("WEBP"),
        "bmp": _saved("BMP"),
        "gif": _saved("GIF"),
        "tiff": _saved("TIFF"),
        "pnm": _saved("PPM"),
        "jp2": _saved("JPEG2000"),
        "avif": _saved("AVIF"),
        "unknown": _saved("TGA"),
    }


def _kinds() -> dict[str, bytes]:
    """Make images on which libraries disagree, or might."""
    photo, gray = _photo(), _photo("L")
    return {
        **_of_encoding(),
        **{f"jpeg {s}": _saved("JPEG", subsampling=s) for s in ("4:4:4", "4:2:2", "4:2:0")},
        "jpeg 4:4:1": _sampled_1x4(),
        "jpeg progressive": _saved("JPEG", progressive=True),
        "jpeg restarts": _saved("JPEG", restart_marker_blocks=1),
        "jpeg optimised": _saved("JPEG", optimize=True, quality=30),
        "jpeg gray": _saved("JPEG", gray),
        "jpeg rgb": _saved("JPEG", keep_rgb=True),
        "jpeg cmyk 4:4:4": _saved("JPEG", photo.convert("CMYK"), subsampling=0),
        "jpeg cmyk 4:2:0": _saved("JPEG", photo.convert("CMYK"), subsampling=2),
        "jpeg multi-picture": _saved("MPO", save_all=True, append_images=[photo.rotate(90)]),
        "jpeg turned": _saved("JPEG", exif=_turned()),
        "jpeg tiny": _saved("JPEG", photo.resize((1, 1))),
        "jpeg trailing": _saved("JPEG") + bytes(9000),
        "png gray": _saved("PNG", gray),
        "png alpha": _saved("PNG", _transparent()),
        "png gray alpha": _saved("PNG", _transparent().convert("LA")),
        "png palette": _saved("PNG", photo.quantize(16)),
        "png palette transparent": _saved("PNG", photo.quantize(16), transparency=3),
        "png colour key": _saved("PNG", transparency=(1, 2, 3)),
        "png 1 bit": _saved("PNG", _photo("1")),
        "png turned": _saved("PNG", exif=_turned()),
        "png frames": _saved("PNG", save_all=True, append_images=[photo.rotate(90)]),
        "webp lossless": _saved("WEBP", lossless=True),
        "webp alpha": _saved("WEBP", _transparent()),
        "webp lossless alpha": _saved("WEBP", _transparent(), lossless=True),
        "webp turned": _saved("WEBP", exif=_turned()),
        "webp frames": _saved("WEBP", save_all=True, append_images=[photo.rotate(90)]),
        "bmp gray": _saved("BMP", gray),
        "bmp alpha": _saved("BMP", _transparent()),
        "pnm gray": _saved("PPM", gray),
        "pnm comment": b"P6\n# a comment\n1 1 255\n\1\2\3",
    }


def _turned() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


_KINDS = _kinds()
_PLAIN = _of_encoding()


def _decoded(module: ModuleType, data: bytes, mode: str = "RGB") -> np.ndarray | None:
    try:
        pixels: np.ndarray = module.decode(data, mode)
    except DecodeError:
        return None
    assert pixels.ndim == 3
    assert pixels.flags.c_contiguous
    assert pixels.flags.writeable
    return pixels


def _assert_pillows_or_refused(module: ModuleType, data: bytes, mode: str = "RGB") -> None:
    pixels = _decoded(module, data, mode)
    if pixels is not None and module.EXACT:
        expected = pillow.decode(data, mode)
        assert pixels.dtype == expected.dtype
        np.testing.assert_array_equal(pixels, expected)


def test_constants_are_of_the_contract(plugin: ModuleType) -> None:
    assert isinstance(plugin.PACKAGE, str)
    assert plugin.EXTRA is None or isinstance(plugin.EXTRA, str)
    assert frozenset(encodings.CODES) >= plugin.ENCODINGS
    assert frozenset(decoders.MODES) >= plugin.MODES
    assert isinstance(plugin.EXACT, bool)
    assert {n for n in vars(decoders.CONTRACT) if not n.startswith("_")} <= set(vars(plugin))
    assert plugin.decode_fast is None or "jpeg" in plugin.ENCODINGS
    assert (plugin.decode_batch is None) == (plugin.size is None)
    assert plugin.version()[0].isdigit()


def test_mypy_finds_the_contract_in_every_plugin(tmp_path: pathlib.Path) -> None:
    api = pytest.importorskip("mypy.api")
    names = registry.list_built_in("decoders")
    lines = [f"from packio.images.decoders import DecoderPlugin, {', '.join(names)}"]
    lines += [f"{name}_: DecoderPlugin = {name}" for name in names]
    (tmp_path / "contract.py").write_text("\n".join(lines))
    folder = pathlib.Path(decoders.__file__).parent
    # other modules are not followed, so that it takes a few seconds
    options = ["--follow-imports=skip", "--ignore-missing-imports", "--config-file=",
               f"--cache-dir={tmp_path / 'cache'}", "--explicit-package-bases"]  # fmt: skip
    files = [str(folder / f"{name}.py") for name in ("__init__", *names)]
    found, _, status = api.run([*options, str(tmp_path / "contract.py"), *files])
    assert status == 0, found


def test_every_encoding_claimed_is_decoded(plugin: ModuleType) -> None:
    for encoding in plugin.ENCODINGS:
        pixels = _decoded(plugin, _PLAIN[encoding])
        assert pixels is not None, encoding
        assert pixels.shape == (*_SIZE, 3)
        assert pixels.dtype == np.uint8


@pytest.mark.parametrize("kind", _KINDS)
def test_rgb_is_pillows_or_refused(plugin: ModuleType, kind: str) -> None:
    _assert_pillows_or_refused(plugin, _KINDS[kind])


@pytest.mark.parametrize("kind", _KINDS)
def test_unchanged_is_pillows_or_refused(plugin: ModuleType, kind: str) -> None:
    if "UNCHANGED" in plugin.MODES:
        _assert_pillows_or_refused(plugin, _KINDS[kind], "UNCHANGED")


@pytest.mark.parametrize("kind", ["jpeg gray", "png gray", "pnm gray", "bmp gray"])
def test_gray_images_are_pillows_or_refused(plugin: ModuleType, kind: str) -> None:
    if "GRAY" in plugin.MODES and kind.split(maxsplit=1)[0] in plugin.ENCODINGS:
        _assert_pillows_or_refused(plugin, _KINDS[kind], "GRAY")


def test_a_gray_jpeg_is_decoded_under_gray(plugin: ModuleType) -> None:
    if "GRAY" in plugin.MODES and "jpeg" in plugin.ENCODINGS:
        pixels = _decoded(plugin, _KINDS["jpeg gray"], "GRAY")
        assert pixels is not None
        assert pixels.shape == (*_SIZE, 1)


@pytest.mark.parametrize("encoding", _PLAIN)
def test_truncated_images_are_pillows_or_refused(plugin: ModuleType, encoding: str) -> None:
    data = _PLAIN[encoding]
    for end in (0, 2, 20, len(data) // 2, len(data) - 40, len(data) - 2):
        _assert_refused_if_pillow_fails(plugin, data[:end])


@pytest.mark.parametrize(
    "kind", ["jpeg", "jpeg progressive", "jpeg restarts", "png", "webp", "webp lossless", "bmp"]
)
def test_damaged_images_are_pillows_or_refused(plugin: ModuleType, kind: str) -> None:
    randomness, data = random.Random(0), _KINDS[kind]
    for _ in range(60):
        damaged = bytearray(data)
        if randomness.random() < 0.5:
            damaged[randomness.randrange(len(data))] ^= 1 << randomness.randrange(8)
        else:
            at = randomness.randrange(len(data))
            del damaged[at : at + 9]
        _assert_refused_if_pillow_fails(plugin, bytes(damaged))


def _assert_refused_if_pillow_fails(module: ModuleType, data: bytes) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of what it repairs
        if _decoded(pillow, data) is None:
            assert _decoded(module, data) is None
        else:
            _assert_pillows_or_refused(module, data)


def test_a_stray_marker_behind_the_pixels_is_seen(plugin: ModuleType) -> None:
    jpeg = _saved("JPEG")
    for at in range(3, 40):
        damaged = jpeg[:-at] + b"\xff\x45" + jpeg[2 - at :]
        _assert_refused_if_pillow_fails(plugin, damaged)


def test_a_good_image_decodes_after_a_bad_one(plugin: ModuleType) -> None:
    for encoding in plugin.ENCODINGS & {"jpeg", "png"}:
        data = _PLAIN[encoding]
        inside = data.index(b"\xff\xc4" if encoding == "jpeg" else b"IDAT") + 5
        for bad in (data[:inside] + b"\xff" * 16 + data[inside + 16 :], data[:400], data[:2]):
            assert _decoded(plugin, bad) is None
        assert _decoded(plugin, data) is not None


def test_threads_get_the_pixels_that_one_thread_gets(plugin: ModuleType) -> None:
    images = [_saved("JPEG", Image.fromarray(_pixels(seed))) for seed in range(8)] * 8
    images += [images[0][:500]] * 8
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda data: _decoded(plugin, data), images))
    for data, pixels in zip(images, together, strict=True):
        alone = _decoded(plugin, data)
        assert (alone is None) == (pixels is None)
        if alone is not None and pixels is not None:
            np.testing.assert_array_equal(pixels, alone)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_sixteen_bits_are_kept_or_refused(plugin: ModuleType, channels: int) -> None:
    values = np.random.default_rng(0).integers(0, 1 << 16, (6, 5, channels)).astype(np.uint16)
    data = _png16(values)
    if "UNCHANGED" in plugin.MODES and (pixels := _decoded(plugin, data, "UNCHANGED")) is not None:
        np.testing.assert_array_equal(pixels, values)
    assert _decoded(plugin, data) is None


def test_some_decoder_keeps_sixteen_bits_of_colour() -> None:
    values = np.random.default_rng(0).integers(0, 1 << 16, (6, 5, 3)).astype(np.uint16)
    data = _png16(values)
    stored = encodings.read_facts(data)
    with pytest.raises(ModeError, match="decoder='opencv'"):
        Decoder("pillow", "UNCHANGED")(data, stored)
    try:
        named = Decoder("opencv", "UNCHANGED")  # the one that the message names
    except MissingPackageError as error:
        pytest.skip(str(error))
    np.testing.assert_array_equal(named(data, stored), values)


def _png16(values: np.ndarray) -> bytes:
    import struct
    import zlib

    height, width, channels = values.shape
    header = struct.pack(">IIBBBBB", width, height, 16, {1: 0, 2: 4, 3: 2, 4: 6}[channels], 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )


def _stored(data: bytes) -> Facts:
    return encodings.read_facts(data)


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("mode", ["RGB", "GRAY", "RGB_ALPHA"])
def test_with_pillow_behind_it_every_decoder_gives_pillows_pixels(
    plugin: ModuleType, kind: str, mode: str
) -> None:
    name = plugin.__name__.rpartition(".")[2]
    data = _KINDS[kind]
    pixels = Decoder(name, mode)(data, _stored(data))
    if not plugin.EXACT:
        return
    expected = np.asarray(Image.open(io.BytesIO(data)).convert(_IMAGE_MODES[mode]))
    np.testing.assert_array_equal(pixels, expected.reshape(pixels.shape))


def test_auto_gives_pillows_pixels() -> None:
    decoder = Decoder()
    for data in _KINDS.values():
        np.testing.assert_array_equal(decoder(data, _stored(data)), pillow.decode(data))


def test_fallbacks_are_counted(plugin: ModuleType) -> None:
    decoder = Decoder(plugin.__name__.rpartition(".")[2])
    cmyk = _KINDS["jpeg cmyk 4:2:0"]
    decoder(cmyk, _stored(cmyk))
    assert decoder.fallbacks == (0 if plugin is pillow else 1)


def test_a_decoder_pickles(plugin: ModuleType) -> None:
    decoder = Decoder(plugin.__name__.rpartition(".")[2], "GRAY", max_pixels=77)
    copy = pickle.loads(pickle.dumps(decoder))
    assert (copy.name, copy.mode, copy.max_pixels) == (decoder.name, "GRAY", 77)


def test_unknown_names_and_modes_are_option_errors() -> None:
    with pytest.raises(OptionError, match="simplejpeg"):
        Decoder("simplejpg")
    with pytest.raises(OptionError, match="UNCHANGED"):
        Decoder("auto", "BGR")


def test_the_pixel_limit_holds() -> None:
    data = _PLAIN["jpeg"]
    with pytest.raises(LimitError, match="2,000"):
        Decoder(max_pixels=2000)(data, _stored(data))


def test_auto_takes_one_decoder_an_encoding_of_those_that_are_installed() -> None:
    pngs = "isal"
    try:
        registry.load("decoders", "isal").version()
    except MissingPackageError:
        pngs = "pillow"
    named = [decoders.automatic(encoding) for encoding in ("jpeg", "png", "webp")]
    assert named == ["simplejpeg", pngs, "pillow"]
    assert all(registry.load("decoders", name).EXACT for name in named)
