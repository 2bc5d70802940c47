"""Seekable JPEGs: nothing is lost, and a window's pixels are those of the whole image.

PACKIO_LONG=1 in the environment tries twenty times as many images and boxes.
"""

from __future__ import annotations

import concurrent.futures
import io
import os
import random
import re
import shutil
import struct
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import native_core
import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from packio import registry
from packio.errors import DecodeError, MissingPackageError
from packio.images.jpeg import restarts
from packio.images.jpeg.restarts import is_seekable, make_seekable
from packio.images.jpeg.window import window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

pytestmark = native_core.needed  # seekable JPEGs are made


_TIMES = 20 if os.environ.get("PACKIO_LONG") else 1
_IMAGES, _BOXES = 8 * _TIMES, 12  # of each kind; of each image
_JPEGTRAN = shutil.which("jpegtran")
_IDENTIFIER = b"PACKIO\0\1"


# ---- JPEGs of all kinds ----


def _pillow(pixels: np.ndarray, mode: str = "RGB", **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(buffer, "JPEG", **{"quality": 93, **options})
    return buffer.getvalue()


def _sampled(sampling: str) -> Callable[[np.ndarray], bytes]:
    def encode(pixels: np.ndarray) -> bytes:
        data: bytes = simplejpeg.encode_jpeg(pixels, 93, colorsubsampling=sampling)
        return data

    return encode


def _replaced(data: bytes, old: bytes, new: bytes) -> bytes:
    assert data.count(old) == 1
    return data.replace(old, new)


def _ycck(pixels: np.ndarray) -> bytes:
    """CMYK declared as YCCK: Adobe's marker, its transform 2."""
    data = _pillow(pixels, "CMYK", subsampling=2)
    adobe = data.index(b"\xff\xee\0\x0eAdobe") + 15
    return data[:adobe] + b"\2" + data[adobe + 1 :]


_KINDS: dict[str, Callable[[np.ndarray], bytes]] = {
    **{name: _sampled(name) for name in ("444", "422", "420", "440", "411")},
    "gray": lambda pixels: _pillow(pixels, "L"),
    "gray, sampled": lambda pixels: _replaced(
        _pillow(pixels, "L"), b"\1\1\x11\0\xff", b"\1\1\x22\0\xff"
    ),
    "optimised": lambda pixels: _pillow(pixels, quality=40, optimize=True),
    "extended": lambda pixels: _pillow(pixels, subsampling=2).replace(b"\xff\xc0", b"\xff\xc1", 1),
    "rgb": lambda pixels: _pillow(pixels, keep_rgb=True),
    "cmyk": lambda pixels: _pillow(pixels, "CMYK", subsampling=0),
    "cmyk, sampled": lambda pixels: _pillow(pixels, "CMYK", subsampling=2),
    "ycck": _ycck,
    "restarts of 1 MCU": lambda pixels: _pillow(pixels, subsampling=2, restart_marker_blocks=1),
    "restarts of 3 MCUs": lambda pixels: _pillow(pixels, subsampling=1, restart_marker_blocks=3),
    "restarts of a row": lambda pixels: _pillow(pixels, subsampling=2, restart_marker_rows=1),
    "restarts of 2 rows": lambda pixels: _pillow(pixels, subsampling=0, restart_marker_rows=2),
}
_SEEKABLE_KINDS = [kind for kind in _KINDS if not kind.startswith("restarts")]
kinds = pytest.mark.parametrize("kind", _KINDS)


def _images(
    kind: str, photos: list[np.ndarray], count: int = _IMAGES, largest: int = 230
) -> Iterator[tuple[bytes, random.Random]]:
    """Yield JPEGs of a kind, of photos cropped to sizes from 1 pixel on."""
    rng = random.Random(kind)
    for i in range(count):
        photo = photos[i % len(photos)]
        height, width = (rng.randint(1, min(largest, side)) for side in photo.shape[:2])
        if i % 3:  # the others may be tiny
            height, width = max(height, 60), max(width, 100)
        top, left = (rng.randint(0, a - b) for a, b in zip(photo.shape, (height, width)))  # noqa: B905 (channels are left over)
        yield _KINDS[kind](photo[top : top + height, left : left + width].copy()), rng


def _box(rng: random.Random, height: int, width: int) -> tuple[int, int, int, int]:
    """A random box in an image, its sides often where MCUs end."""

    def side(length: int) -> tuple[int, int]:
        near = rng.choice((1, 8, 16)) * rng.randint(0, length) + rng.randint(-2, 2)
        start = min(max(near, 0), length - 1) if rng.random() < 0.5 else rng.randrange(length)
        size = rng.randint(1, length - start)
        return start, rng.choice((size, min(size, 20), length - start))

    (top, h), (left, w) = side(height), side(width)
    return top, left, h, w


@pytest.fixture(scope="module")
def jpegs(photos: list[np.ndarray]) -> list[bytes]:
    """Some JPEGs of every kind."""
    return [data for kind in _KINDS for data, _ in _images(kind, photos, 3)]


@pytest.fixture(scope="module")
def seekable(photos: list[np.ndarray]) -> bytes:
    """A seekable JPEG of 512x384 pixels, and 8 segments a row."""
    photo = np.asarray(Image.fromarray(photos[0]).resize((512, 384)))
    noise = np.random.default_rng(0).normal(0, 8, photo.shape)
    data = make_seekable(_pillow((photo + noise).clip(0, 255).astype(np.uint8), subsampling=2))
    assert b"\xff\xdd\0\4\0\4" in data
    return data


# ---- decoders ----


def _decoders() -> list[ModuleType]:
    found = []
    for name in registry.names("decoders"):
        module = registry.load("decoders", name)
        try:
            module.version()
        except MissingPackageError:
            continue
        if "jpeg" in module.ENCODINGS and module.EXACT:
            found.append(module)
    return found


def _decoded(module: ModuleType, data: bytes) -> np.ndarray | None:
    try:
        pixels: np.ndarray = module.decode(data, "RGB")
    except DecodeError:
        return None
    return pixels


def _size(data: bytes) -> tuple[int, int]:
    width, height = Image.open(io.BytesIO(data)).size
    return height, width


def _assert_same(data: bytes, box: tuple[int, int, int, int], wholes: list[Any]) -> bool:
    """Compare a window's pixels with the whole image's, by all decoders; True if it was cut."""
    top, left, height, width = box
    cut, first_row, first_column = window(data, box)
    cut = bytes(cut)
    rows = slice(top - first_row, top - first_row + height)
    columns = slice(left - first_column, left - first_column + width)
    for module, whole in wholes:
        if whole is not None:
            pixels = _decoded(module, cut)
            assert pixels is not None, (module.__name__, box)
            np.testing.assert_array_equal(
                pixels[rows, columns],
                whole[top : top + height, left : left + width],
                err_msg=f"{module.__name__} {box}",
            )
    return cut is not data


def _count_cut(data: bytes, rng: random.Random) -> int:
    wholes = [(module, _decoded(module, data)) for module in _decoders()]
    assert any(whole is not None for _, whole in wholes)
    return sum(_assert_same(data, _box(rng, *_size(data)), wholes) for _ in range(_BOXES))


# ---- windows ----


@kinds
def test_a_window_has_the_pixels_of_the_whole_image(kind: str, photos: list[np.ndarray]) -> None:
    cut = sum(_count_cut(make_seekable(data), rng) for data, rng in _images(kind, photos))
    assert cut > _IMAGES * _BOXES / 4


@pytest.mark.parametrize("kind", _SEEKABLE_KINDS)
def test_a_window_of_the_smallest_segments_has_these_pixels(
    kind: str, photos: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarts, "_LEAST_BYTES", 0)
    monkeypatch.setattr(restarts, "_MOST_ACROSS", 1000)
    cut = sum(_count_cut(make_seekable(data), rng) for data, rng in _images(kind, photos, _TIMES))
    assert cut > 0


@pytest.mark.parametrize("kind", [kind for kind in _KINDS if kind not in _SEEKABLE_KINDS])
def test_a_window_of_a_cameras_restarts_has_these_pixels(
    kind: str, photos: list[np.ndarray]
) -> None:
    cut = sum(_count_cut(data, rng) for data, rng in _images(kind, photos))
    assert cut >= _BOXES


def test_restarts_within_rows_are_not_cut_at(photos: list[np.ndarray]) -> None:
    data = _pillow(photos[0][:100, :160], subsampling=2, restart_marker_blocks=4)  # of 10 MCUs
    assert window(data, (20, 20, 9, 9)) == (data, 0, 0)


def test_a_window_is_much_smaller(seekable: bytes) -> None:
    cut, top, left = window(seekable, (100, 100, 40, 40))
    assert len(cut) < len(seekable) / 8
    assert (100 - top, 100 - left) >= (0, 0)
    height, width = _size(bytes(cut))
    assert height <= 40 + 2 * 16
    assert width < 40 + 2 * 64


def test_a_window_of_everything_is_the_image(seekable: bytes) -> None:
    assert window(seekable, (0, 0, *_size(seekable))) == (seekable, 0, 0)


@pytest.mark.parametrize("box", [(0, 0, 0, 0), (5000, 0, 9, 9), (0, -90, 9, 9), (0, 5000, 9, 9)])
def test_a_box_outside_the_image_gets_the_image(
    seekable: bytes, box: tuple[int, int, int, int]
) -> None:
    cut, top, left = window(seekable, box)
    assert (top, left) == (0, 0) or _size(bytes(cut)) <= _size(seekable)


def test_a_window_keeps_the_colours_and_drops_other_metadata(photos: list[np.ndarray]) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = _pillow(photos[0], keep_rgb=True, exif=exif, icc_profile=bytes(3000), comment=b"hello")
    cut, _, _ = window(make_seekable(data), (100, 100, 9, 9))
    assert b"Adobe" in cut
    for dropped in (b"Exif", b"ICC_PROFILE", b"hello", b"PACKIO"):
        assert dropped in make_seekable(data)
        assert dropped not in cut


def _lies(data: bytes) -> dict[str, bytes]:
    """JPEGs whose segments are not where they say that they are."""
    at = data.index(_IDENTIFIER) + len(_IDENTIFIER)
    count = (struct.unpack_from(">H", data, at - 10)[0] - 10) // 2
    lengths = np.frombuffer(data, ">u2", count, at).copy()
    middle = count // 2

    def told(changes: dict[int, int]) -> bytes:
        lie = lengths.copy()
        for i, change in changes.items():
            lie[i] = int(lie[i]) + change
        return b"".join((data[:at], lie.tobytes(), data[at + 2 * count :]))

    restart = [m.start() + 1 for m in re.finditer(rb"\xff[\xd0-\xd7]", data)][count // 2]
    first = data.index(b"\xff\xdd\0\4") + 5  # of DRI, the low byte
    return {
        "one byte too far": told({middle: 1}),
        "one byte back later": told({middle: 1, middle + 1: -1}),
        "beyond the data": told({middle: 60000, middle + 1: 60000, middle + 2: 60000}),
        "nothing": data[:at] + bytes(2 * count) + data[at + 2 * count :],
        "too few": _without_length(data, at, count),
        "eight segments in one": _joined(data, at, lengths.tolist()),
        "another restart": data[:restart] + bytes([data[restart] ^ 1]) + data[restart + 1 :],
        "no restart": data[: restart - 1] + b"\1\1" + data[restart + 1 :],
        "another interval": data[:first] + bytes([data[first] * 2]) + data[first + 1 :],
        "no end": data[:-2],
        "half": data[: len(data) // 2],
    }


def _joined(data: bytes, at: int, lengths: list[int]) -> bytes:
    """The first nine segments as one, and more behind the end: each marker is in its turn."""
    count = len(lengths)
    turns = [0xD0 + i % 8 for i in range(count - 9, count - 1)]
    tail = b"".join(bytes((0, 0xFF, marker)) for marker in (*turns, 0xD9))
    lie = [sum(lengths[:9]), *lengths[9:-1], lengths[-1] + 3, *[3] * 8]
    return data[:at] + struct.pack(f">{count}H", *lie) + data[at + 2 * count :] + tail


def _without_length(data: bytes, at: int, count: int) -> bytes:
    length = struct.pack(">H", 10 + 2 * (count - 1))
    lengths = data[at : at + 2 * count - 2]
    return b"".join((data[: at - 10], length, _IDENTIFIER, lengths, data[at + 2 * count :]))


_LIES = ["one byte too far", "one byte back later", "beyond the data", "nothing", "too few",
         "eight segments in one", "another restart", "no restart", "another interval", "no end",
         "half"]  # fmt: skip


@pytest.mark.parametrize("lie", _LIES)
def test_segments_that_are_elsewhere_leave_the_image_whole(seekable: bytes, lie: str) -> None:
    data = _lies(seekable)[lie]
    height, width = _size(seekable)
    assert not is_seekable(data)
    assert window(data, (9, 9, height - 60, width - 90)) == (data, 0, 0)


# ---- making them ----


def _markers(data: bytes) -> list[tuple[int, bytes]]:
    """List the markers before the entropy-coded data, each with its body."""
    found: list[tuple[int, bytes]] = []
    position = 2
    while not found or found[-1][0] != 0xDA:
        marker, length = struct.unpack_from(">xBH", data, position)
        found.append((marker, data[position + 4 : position + 2 + length]))
        position += 2 + length
    return found


def _jpegtran(data: bytes, *options: str) -> bytes:
    command = [str(_JPEGTRAN), "-copy", "none", *options]
    return subprocess.run(command, input=data, capture_output=True, check=True).stdout


@pytest.mark.skipif(not _JPEGTRAN, reason="no jpegtran (apt-get install libjpeg-turbo-progs)")
def test_every_coefficient_stays(jpegs: list[bytes]) -> None:
    made = 0
    for data in jpegs:
        new = make_seekable(data)
        made += new is not data
        assert _jpegtran(new, "-optimize") == _jpegtran(data, "-optimize")
    assert made > len(jpegs) / 2


def test_pillow_makes_the_same_pixels(jpegs: list[bytes]) -> None:
    for data in jpegs:
        old, new = Image.open(io.BytesIO(data)), Image.open(io.BytesIO(make_seekable(data)))
        assert old.mode == new.mode
        assert old.tobytes() == new.tobytes()


def test_every_marker_stays(photos: list[np.ndarray]) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = _pillow(photos[0], exif=exif, icc_profile=bytes(70000), comment=b"hi") + b"trailing"
    own = b"\xff\xe9\0\x0aothers'!"
    data = data[:2] + own + data[2:]
    new = make_seekable(data)
    added = [marker for marker in _markers(new) if marker not in _markers(data)]
    assert [marker for marker, _ in added] == [0xDD, 0xE9]
    assert [marker for marker in _markers(new) if marker not in added] == _markers(data)
    assert new.endswith(b"\xff\xd9trailing")


def test_the_lengths_lead_from_marker_to_marker(jpegs: list[bytes]) -> None:
    for data in map(make_seekable, jpegs):
        tables = [body[8:] for marker, body in _markers(data) if body.startswith(_IDENTIFIER)]
        if is_seekable(data):
            ends = np.frombuffer(tables[0], ">u2").cumsum() + data.index(b"\0\x3f\0") + 3
            found = [data[end - 2 : end] for end in ends]
            restarts = [bytes((0xFF, 0xD0 + i % 8)) for i in range(len(ends) - 1)]
            assert found == [*restarts, b"\xff\xd9"]


def test_making_it_again_changes_nothing(jpegs: list[bytes]) -> None:
    for data in jpegs:
        new = make_seekable(data)
        assert make_seekable(new) is new
        assert is_seekable(new) == (new is not data)


def test_damaged_lengths_are_made_anew(seekable: bytes) -> None:
    for lie in ("one byte too far", "too few", "nothing"):
        assert make_seekable(_lies(seekable)[lie]) == seekable


def test_restarts_of_the_source_are_replaced(photos: list[np.ndarray]) -> None:
    for blocks in (1, 2, 5, 7, 40):
        data = _pillow(photos[1], subsampling=2, restart_marker_blocks=blocks)
        new = make_seekable(data)
        assert is_seekable(new)
        lengths = [body for _, body in _markers(new) if body.startswith(_IDENTIFIER)]
        segments = (len(lengths[0]) - len(_IDENTIFIER)) // 2
        assert len(re.findall(rb"\xff[\xd0-\xd7]", new[new.index(b"\0\x3f\0") :])) == segments - 1
        assert [marker for marker, _ in _markers(new)].count(0xDD) == 1


def test_many_lengths_go_into_several_markers(
    photos: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarts, "_LENGTHS", 7)
    data = make_seekable(_pillow(photos[0]))
    assert sum(body.startswith(_IDENTIFIER) for _, body in _markers(data)) > 3
    assert _count_cut(data, random.Random(0)) > 0
    assert make_seekable(data) is data


def _tables(data: bytes) -> list[bytes]:
    return [body for marker, body in _markers(data) if marker == 0xC4]


def test_a_dc_table_gets_the_codes_that_it_lacks() -> None:
    noise = np.random.default_rng(0).integers(-9, 10, (400, 200, 3))
    ramp = np.linspace(10, 245, 400)[:, None, None]  # differences are small, values are not
    data = _pillow((ramp + noise).astype(np.uint8), quality=97, optimize=True)
    new = make_seekable(data)
    assert is_seekable(new)
    assert len(_tables(new)) > len(_tables(data))
    np.testing.assert_array_equal(Image.open(io.BytesIO(new)), Image.open(io.BytesIO(data)))
    assert _count_cut(new, random.Random(0)) > 0
    assert make_seekable(new) is new


@given(st.lists(st.integers(0, 11), unique=True, min_size=1, max_size=12), st.randoms())
def test_codes_that_a_table_has_stay_as_they_are(sizes: list[int], rng: random.Random) -> None:
    counts, free = [0] * 16, 1 << 16
    for _ in sizes:
        fitting = [i for i in range(16) if 1 << (15 - i) < free]
        i = rng.choice(fitting)
        counts[i] += 1
        free -= 1 << (15 - i)
    table = bytes([*counts, *sizes])
    before, after = restarts._codes(table), restarts._codes(restarts._completed(table))
    assert all(new == old for old, new in zip(before, after, strict=True) if old)
    words = [format(code >> 5, f"0{code & 31}b") for code in after if code]
    assert not any(a != b and b.startswith(a) for a in words for b in words)
    assert not any(set(word) == {"1"} for word in words)
    assert len(words) == 12 or free >> 4 < 12


def test_files_grow_by_less_than_2_percent(photos: list[np.ndarray]) -> None:
    datas = [_pillow(photo, quality=q, subsampling=2) for photo in photos for q in (80, 95)]
    growth = [len(make_seekable(data)) / len(data) - 1 for data in datas]
    assert all(is_seekable(make_seekable(data)) for data in datas)
    assert 0 < float(np.mean(growth)) < 0.02


def _pictures(photo: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    image = Image.fromarray(photo)
    image.save(buffer, "MPO", save_all=True, append_images=[image])
    return buffer.getvalue()


def _other_kinds(photo: np.ndarray) -> dict[str, bytes]:
    data = _pillow(photo, subsampling=2)
    frame = data.index(b"\xff\xc0")
    return {
        "progressive": _pillow(photo, progressive=True),
        "arithmetic": _replaced(data, b"\xff\xc0", b"\xff\xc9"),
        "12 bits": data[: frame + 4] + b"\x0c" + data[frame + 5 :],
        "no height": data[: frame + 5] + b"\0\0" + data[frame + 7 :],
        "more MCUs than there are": data[: frame + 5] + b"\xff\xff" + data[frame + 7 :],
        "fewer MCUs than there are": data[: frame + 5] + b"\0\x20" + data[frame + 7 :],
        "one component of three": _replaced(data, b"\xff\xda\0\x0c\3", b"\xff\xda\0\x0c\1"),
        "no Huffman table": data.replace(b"\xff\xc4", b"\xff\xfe"),
        "no end": data[:-2],
        "half": data[: len(data) // 2],
        "no data": data[: data.index(b"\xff\xda") + 14],
        "an end at once": data[: data.index(b"\xff\xda") + 14] + b"\xff\xd9",
        "an end too early": data[:-900] + b"\xff\xd9",
        "bytes too many": data[:-2] + b"\1\2\3\xff\xd9",
        "one MCU": _pillow(photo[:8, :8]),
        "several pictures": _pictures(photo),
        "nothing": b"",
        "PNG": b"\x89PNG\r\n\x1a\n" + bytes(50),
    }


@pytest.mark.parametrize("kind", _other_kinds(np.zeros((90, 90, 3), np.uint8)))
def test_other_files_stay_as_they_are(kind: str, photos: list[np.ndarray]) -> None:
    data = _other_kinds(photos[0])[kind]
    assert make_seekable(data) is data
    assert not is_seekable(data)
    assert window(data, (10, 10, 20, 20)) == (data, 0, 0)


@pytest.mark.skipif(not _JPEGTRAN, reason="no jpegtran (apt-get install libjpeg-turbo-progs)")
def test_several_scans_stay_as_they_are(photos: list[np.ndarray], tmp_path: Any) -> None:
    (tmp_path / "scans").write_text("0;\n1 2;\n")
    data = _jpegtran(_pillow(photos[0]), "-scans", str(tmp_path / "scans"))
    assert data.count(b"\xff\xda") == 2
    assert make_seekable(data) is data


def test_a_copy_with_other_pixels_is_not_taken(
    photos: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, other = _pillow(photos[0]), _pillow(photos[0][::-1].copy())
    assert is_seekable(make_seekable(data, check=True))
    monkeypatch.setattr(restarts, "_recut", lambda *_: other)
    assert make_seekable(data, check=True) is data


def test_threads_make_the_same(jpegs: list[bytes]) -> None:
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        made = list(pool.map(make_seekable, jpegs * 3))
    assert made == [make_seekable(data) for data in jpegs] * 3


# ---- damage ----


def _damaged(data: bytes, rng: random.Random) -> bytes:
    at, kind = rng.randrange(len(data)), rng.randrange(4)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + rng.randbytes(rng.randint(1, 9)) + data[at:]
    damaged = bytearray(data)
    for _ in range(rng.choice((1, 1, 3, 20))):
        at = rng.randrange(rng.choice((min(700, len(data)), len(data))))
        damaged[at] = rng.choice((0, 0xFF, 0xD0, rng.randrange(256), damaged[at] ^ 1))
    return bytes(damaged)


def test_damage_raises_nothing_and_changes_no_pixel(jpegs: list[bytes]) -> None:
    for seed in range(400 * _TIMES):
        rng = random.Random(seed)
        source = rng.choice(jpegs)
        data = _damaged(rng.choice((source, make_seekable(source))), rng)
        new = make_seekable(data)
        if new is not data:
            pixels, others = _strictly(data), _strictly(new)
            assert pixels is None or (others is not None and np.array_equal(others, pixels)), seed
        height, width = rng.choice((_size(source), (65535, 65535)))
        cut, top, left = window(data, _box(rng, height, width))
        assert len(cut) <= len(data), seed
        assert 0 <= top < 65536
        assert 0 <= left < 65536


def _strictly(data: bytes) -> np.ndarray | None:
    try:
        pixels: np.ndarray = simplejpeg.decode_jpeg(data, "RGB")
    except ValueError:
        return None
    return pixels


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_left_as_they_are(data: bytes) -> None:
    for start in (b"", b"\xff\xd8", b"\xff\xd8\xff\xc0\0\x11\x08\0\x40\0\x40\3"):
        assert make_seekable(start + data) == start + data
        assert window(start + data, (0, 0, 5, 5)) == (start + data, 0, 0)


def test_a_huge_claim_takes_no_memory() -> None:
    frame = b"\xff\xc0\0\x0b\x08\xff\xff\xff\xff\1\1\x11\0"
    tables = b"\xff\xc4\0\x14\0" + b"\1" + bytes(16) + b"\xff\xc4\0\x14\x10" + b"\1" + bytes(16)
    scan = b"\xff\xdd\0\4\0\1\xff\xda\0\x08\1\1\0\0\x3f\0"
    data = b"\xff\xd8" + frame + tables + scan + bytes(5000) + b"\xff\xd9"
    assert make_seekable(data) is data  # 67 million MCUs
    assert window(data, (0, 0, 9, 9)) == (data, 0, 0)


# ---- without the core ----

_WITHOUT = """
import pathlib, sys
from packio.images import native
native._PATH = pathlib.Path("/nowhere/_core.so")
from packio.errors import MissingPackageError
from packio.images.jpeg import restarts, window
seekable, plain = (open(path, "rb").read() for path in sys.argv[1:])
assert restarts.is_seekable(seekable) and restarts.make_seekable(seekable) is seekable
cut, _, _ = window.window(seekable, (90, 90, 9, 9))
assert len(cut) < len(seekable) / 2
try:
    restarts.make_seekable(plain)
except MissingPackageError as error:
    print(error)
"""


def test_reading_needs_no_core_and_making_says_so(
    seekable: bytes, photos: list[np.ndarray], tmp_path: Any
) -> None:
    (tmp_path / "seekable").write_bytes(seekable)
    (tmp_path / "plain").write_bytes(_pillow(photos[0]))
    command = [sys.executable, "-c", _WITHOUT, str(tmp_path / "seekable"), str(tmp_path / "plain")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "install a C compiler" in done.stdout
