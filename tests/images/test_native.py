"""The native core's pixels are those of libjpeg-turbo and PyTorch, or there are none.

What must come out is computed with Pillow and torch alone.
"""

from __future__ import annotations

import concurrent.futures
import functools
import io
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import made
import native_core
import numpy as np
import pytest
import simplejpeg
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native_core import kernels
from PIL import Image
from skimage import data as photographs

import packio
from packio.images import native
from packio.images.frames import Frame

__all__ = ["kernels"]

pytestmark = native_core.needed
_MUTANTS = int(os.environ.get("PACKIO_NATIVE_MUTANTS", "4000"))
_SAMPLINGS = {"4:4:4": 0, "4:2:2": 1, "4:2:0": 2}


@functools.cache
def _photographs() -> list[Image.Image]:
    names = ("astronaut", "coffee", "chelsea")
    return [Image.fromarray(getattr(photographs, name)()).resize((400, 300)) for name in names]


def _photo(height: int, width: int, number: int = 0) -> Image.Image:
    return _photographs()[number % 3].crop((90, 60, 90 + width, 60 + height))


def _jpeg(
    image: Image.Image, sampling: str = "4:2:0", quality: int = 90, **options: object
) -> bytes:
    more = {} if image.mode == "L" else {"subsampling": _SAMPLINGS[sampling]}
    return made.saved(image, "JPEG", quality=quality, **more, **options)


def _decoded(jpeg: bytes) -> np.ndarray:
    """(C, H, W), by Pillow."""
    pixels = np.asarray(Image.open(io.BytesIO(jpeg)))
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _whole(jpeg: bytes, shape: tuple[int, ...]) -> np.ndarray | None:
    """The whole image by the core; None: declined."""
    _, height, width = shape
    out = np.full(shape, 7, np.uint8)
    frame = Frame(0, 0, height, width, height, width, 0, 0, height, width)
    status = native_core.make(jpeg, (height, width), (0, 0, height, width), frame, out)
    return None if status else out


def _check_whole(jpeg: bytes) -> None:
    wanted = _decoded(jpeg)
    found = _whole(jpeg, wanted.shape)
    assert found is not None
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize("sampling", _SAMPLINGS)
def test_every_small_size(sampling: str, kernels: str) -> None:
    sides = range(1, 41) if kernels == "AVX2" else range(1, 41, 3)
    for height in sides:
        for width in range(1, 41):
            image = _photo(height, width, height + width)
            jpeg = _jpeg(image, sampling, 50 + width)
            wanted = _decoded(jpeg)
            found = _whole(jpeg, wanted.shape)
            if found is None:  # libjpeg repeats such narrow chroma
                assert width <= 4
                assert sampling != "4:4:4"
            else:
                assert np.array_equal(found, wanted), (height, width)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("sampling", _SAMPLINGS)
def test_every_quality(sampling: str) -> None:
    image = _photo(75, 110, 1)
    for quality in range(1, 101):
        _check_whole(_jpeg(image, sampling, quality))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("sampling", _SAMPLINGS)
@pytest.mark.parametrize("blocks", [1, 2, 3, 7, 50])
def test_restart_markers_of_others(sampling: str, blocks: int) -> None:
    for size in ((64, 96), (75, 110), (17, 200)):
        _check_whole(_jpeg(_photo(*size), sampling, restart_marker_blocks=blocks))
    _check_whole(_jpeg(_photo(75, 110).convert("L"), restart_marker_blocks=blocks))


@pytest.mark.usefixtures("kernels")
def test_noise_and_tables_of_its_own() -> None:
    draw = np.random.default_rng(3)
    for quality in (30, 90, 100):
        noise = Image.fromarray(draw.integers(0, 256, (70, 90, 3), np.uint8))
        for sampling in _SAMPLINGS:
            jpeg = _jpeg(noise, sampling, quality, optimize=True)
            for _ in range(5):  # tables that come again are made anew, larger
                _check_whole(jpeg)
    _check_whole(_jpeg(Image.new("RGB", (300, 200), (200, 30, 90))))


def _resized(pixels: np.ndarray, size: tuple[int, int], how: str) -> np.ndarray:
    batch = torch.from_numpy(np.array(pixels, order="C"))[None]
    if tuple(batch.shape[2:]) == size:
        return pixels
    if how == "area":  # PyTorch has it for floats
        means = torch.nn.functional.interpolate(batch.float(), size, mode="area")
        return means.round().to(torch.uint8)[0].numpy()
    antialias = how != "nearest"
    made = torch.nn.functional.interpolate(batch, size, mode=how, antialias=antialias)
    return made[0].numpy()


_UPRIGHT = {
    1: lambda p: p, 2: lambda p: p[:, :, ::-1], 3: lambda p: p[:, ::-1, ::-1],
    4: lambda p: p[:, ::-1], 5: lambda p: p.transpose(0, 2, 1),
    6: lambda p: p.transpose(0, 2, 1)[:, :, ::-1],
    7: lambda p: p.transpose(0, 2, 1)[:, ::-1, ::-1],
    8: lambda p: p.transpose(0, 2, 1)[:, ::-1],
}  # fmt: skip


@functools.cache
def _jpegs() -> list[tuple[bytes, np.ndarray]]:
    """JPEGs of all kinds that the core takes, and their pixels."""
    photo = _photo(150, 210)
    made = [_jpeg(photo, sampling) for sampling in _SAMPLINGS]
    made += [_jpeg(photo, sampling, restart_marker_blocks=3) for sampling in _SAMPLINGS]
    made += [_jpeg(photo.convert("L")), _jpeg(photo, restart_marker_blocks=5)]
    return [(jpeg, _decoded(jpeg)) for jpeg in made]


@functools.cache
def _images() -> list[tuple[bytes, np.ndarray, int]]:
    """Those JPEGs, and raw pixels in all orders: bytes, pixels (C, H, W), layout."""
    made = [(*jpeg, 0) for jpeg in _jpegs()]
    for image in (_photo(90, 131), _photo(64, 33).convert("L")):
        pixels = np.asarray(image).reshape(image.height, image.width, -1)
        planes = np.ascontiguousarray(pixels.transpose(2, 0, 1))
        for name, stored in (("raw", planes), ("raw_hwc", pixels), ("raw_bgr", planes[::-1]),
                             ("raw_hwc_bgr", pixels[..., ::-1])):  # fmt: skip
            made.append((stored.tobytes(), planes, native.LAYOUTS[name]))
    return made


@pytest.mark.usefixtures("kernels")
@given(
    number=st.integers(0, 15), orientation=st.integers(1, 8),
    mirrors=st.tuples(st.booleans(), st.booleans()),
    part=st.tuples(*[st.integers(0, 100)] * 4), to=st.tuples(*[st.integers(2, 260)] * 2),
    over=st.tuples(*[st.integers(-20, 20)] * 2),
    how=st.sampled_from(["bilinear", "bicubic", "nearest", "area"]),
)  # fmt: skip
@settings(
    max_examples=600, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_crops(
    number: int, orientation: int,
    mirrors: tuple[bool, bool], part: tuple[int, ...], to: tuple[int, int], over: tuple[int, int],
    how: str,
) -> None:  # fmt: skip
    data, pixels, layout = _images()[number]
    channels, height, width = pixels.shape
    # torch fails with sides of one pixel: "num_channels == unpacked_output.size(0)"
    high, broad = 2 + part[0] * (height - 2) // 100, 2 + part[1] * (width - 2) // 100
    top, left = part[2] * (height - high) // 100, part[3] * (width - broad) // 100
    size = max(1, to[0] - over[0]), max(1, to[1] - 2 * over[1])  # the output begins at `over`

    box = _UPRIGHT[orientation](pixels[:, top : top + high, left : left + broad])
    resized = _resized(box, to, how)
    wanted = np.zeros((channels, *size), np.uint8)
    for y in range(size[0]):
        for_row = resized[:, y + over[0]] if 0 <= y + over[0] < to[0] else None
        if for_row is not None:
            first, last = max(0, -over[1]), min(size[1], to[1] - over[1])
            wanted[:, y, first:last] = for_row[:, first + over[1] : last + over[1]]
    wanted = wanted[:, :: -1 if mirrors[1] else 1, :: -1 if mirrors[0] else 1]

    out = np.full((channels, *size), 7, np.uint8)
    frame = Frame(0, 0, box.shape[1], box.shape[2], *to, *over, *size)
    status = native_core.make(
        data, (height, width), (top, left, high, broad), frame, out, layout=layout,
        orientation=orientation, hflip=mirrors[0], vflip=mirrors[1], how=how,
    )  # fmt: skip
    if status:
        assert native.REASONS[status] == "kind of output"
        assert not wanted.any()  # all of it is border
    else:
        assert np.array_equal(out, wanted)


def test_raw_pixels_of_another_size_are_declined() -> None:
    out = np.zeros((3, 5, 7), np.uint8)
    frame = Frame(0, 0, 5, 7, 5, 7, 0, 0, 5, 7)
    for size in (0, 1, 34, 36, 104, 106, 140):
        for layout in (1, 2, 5, 6):
            made = native_core.make(bytes(size), (5, 7), (0, 0, 5, 7), frame, out, layout=layout)
            assert native.REASONS[made] == "not the size in the index"
    scaled = native_core.make(bytes(105), (5, 7), (0, 0, 5, 7), frame, out, layout=1, scale=2)
    assert native.REASONS[scaled] == "kind of output"


@given(
    number=st.sampled_from([0, 1, 2, 6]),
    box=st.tuples(*[st.integers(0, 100)] * 4),
)
@settings(max_examples=200, deadline=None)
def test_crops_at_seek_points(number: int, box: tuple[int, ...]) -> None:
    jpeg, pixels = _jpegs()[number]
    channels, height, width = pixels.shape
    points = native.seek_points(jpeg)
    assert points
    high, broad = 1 + box[0] * (height - 1) // 100, 1 + box[1] * (width - 1) // 100
    top, left = box[2] * (height - high) // 100, box[3] * (width - broad) // 100
    out = np.full((channels, high, broad), 7, np.uint8)
    frame = Frame(0, 0, high, broad, high, broad, 0, 0, high, broad)
    status = native_core.make(
        jpeg, (height, width), (top, left, high, broad), frame, out, points=points
    )
    assert status == 0
    assert np.array_equal(out, pixels[:, top : top + high, left : left + broad])


def test_wrong_seek_points_do_no_harm() -> None:
    """Of a damaged index: nothing is read or written beyond the image, and it is declined."""
    draw = random.Random(8)
    jpeg, pixels = _jpegs()[2]
    _, height, width = pixels.shape
    points = native.seek_points(jpeg)
    out = np.zeros((3, height, width), np.uint8)
    frame = Frame(0, 0, height, width, height, width, 0, 0, height, width)
    declined = 0
    for _ in range(_MUTANTS // 4):
        mutant = bytearray(points)
        mutant[draw.randrange(len(mutant))] ^= 1 << draw.randrange(8)
        status = native_core.make(
            jpeg, (height, width), (0, 0, height, width), frame, out, points=bytes(mutant)
        )
        declined += status != 0
        assert status or np.array_equal(out, pixels)
    assert declined == _MUTANTS // 4  # all of it was asked for, so that every change is noticed
    for size in range(len(points)):
        whole = (0, 0, height, width)
        status = native_core.make(jpeg, (height, width), whole, frame, out, points=points[:size])
        assert (status == 0) == (size == 0)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("ratio", [0.3, 1.5, 4.0, 14.0])
@pytest.mark.parametrize("how", ["bilinear", "bicubic"])
def test_outputs_beyond_the_box_are_declined(ratio: float, how: str) -> None:
    """As of a ratio that is not that of the sizes: no pixels would be there to make them of."""
    jpeg, pixels = _jpegs()[2]
    _, height, width = pixels.shape
    inside = int(width / ratio) - 10  # 10 outputs of 40 are within the box
    frame = Frame(0, 0, height, width, 90, inside + 40, 0, inside, 90, 40, height / 90, ratio)
    out = np.zeros((3, 90, 40), np.uint8)
    status = native_core.make(jpeg, (height, width), (0, 0, height, width), frame, out, how=how)
    assert native.REASONS[status] == "kind of output"


@pytest.mark.usefixtures("kernels")
def test_the_nearest_pixel_of_every_length() -> None:
    """In each direction, to smaller and to larger sides."""
    for length in (*range(1, 60), 333, 1000):
        ramp = np.arange(length, dtype=np.uint16)
        row = np.stack([ramp * 7 & 255, ramp * 31 & 255, ramp & 255], axis=1).astype(np.uint8)
        for turned in (False, True):
            pixels = np.repeat(row[None], 16, axis=0)
            jpeg = _jpeg(Image.fromarray(pixels.transpose(1, 0, 2) if turned else pixels), "4:4:4")
            decoded = _decoded(jpeg)
            for to in (1, 2, 3, 5, 7, 11, length // 2 + 1, length - 1, 2 * length, 41, 224, 997):
                if to < 1:
                    continue
                size: tuple[int, int] = (to, 16) if turned else (16, to)
                out = np.full((3, *size), 7, np.uint8)
                _, high, broad = decoded.shape
                frame = Frame(0, 0, high, broad, *size, 0, 0, *size)
                box = (0, 0, high, broad)
                assert native_core.make(jpeg, (high, broad), box, frame, out, how="nearest") == 0
                wanted = torch.nn.functional.interpolate(torch.from_numpy(decoded)[None], size)
                assert np.array_equal(out, wanted[0].numpy()), (length, to, turned)


def test_gray_fills_three_planes() -> None:
    jpeg = _jpeg(_photo(40, 50).convert("L"))
    out = np.empty((3, 40, 50), np.uint8)
    frame = Frame(0, 0, 40, 50, 40, 50, 0, 0, 40, 50)
    assert native_core.make(jpeg, (40, 50), (0, 0, 40, 50), frame, out) == 0
    assert np.array_equal(out, np.repeat(_decoded(jpeg), 3, axis=0))


def test_other_kinds_are_declined() -> None:
    photo = _photo(40, 50)
    held = io.BytesIO()
    photo.convert("CMYK").save(held, "JPEG")
    png = io.BytesIO()
    photo.save(png, "PNG")
    shape = (3, 40, 50)
    kinds = [
        held.getvalue(),
        png.getvalue(),
        b"",
        b"\xff\xd8",
        _jpeg(photo, "4:4:4", keep_rgb=True),
    ]
    assert [_whole(kind, shape) for kind in kinds] == [None] * 5
    jpeg = _jpeg(photo)
    assert _whole(jpeg, (3, 40, 51)) is None  # of another size than the index says
    assert _whole(jpeg, (1, 40, 50)) is None  # gray is asked for
    assert _whole(jpeg[:-2], shape) is None
    assert _whole(jpeg[:-2] + b"\0\xff\xd9", shape) is None


@pytest.mark.usefixtures("kernels")
def test_a_damaged_jpeg_is_declined_or_equal() -> None:
    """Never made where libjpeg-turbo warns, and never otherwise."""
    draw = random.Random(5)
    photo = _photo(61, 97)
    seeds = [_jpeg(photo, sampling, 85) for sampling in _SAMPLINGS]
    seeds += [_jpeg(photo, optimize=True), _jpeg(photo, restart_marker_blocks=2)]
    seeds.append(_jpeg(photo, restart_marker_rows=1))
    made = 0
    for number in range(_MUTANTS):
        jpeg = bytearray(draw.choice(seeds))
        for _ in range(draw.choice((1, 1, 2, 5))):
            at = draw.randrange(len(jpeg) if draw.random() < 0.7 else min(700, len(jpeg)))
            change = draw.randrange(5)
            if change == 0:
                jpeg[at] ^= 1 << draw.randrange(8)
            elif change == 1:
                jpeg[at] = draw.randrange(256)
            elif change == 2:
                del jpeg[at : at + draw.randrange(1, 20)]
            elif change == 3:
                jpeg[at:at] = draw.randbytes(draw.randrange(1, 9))
            else:
                jpeg[at : at + 2] = bytes((0xFF, draw.choice((0, 0xD0, 0xD1, 0xD9, 0xFF, 0xC4))))
        mutant = bytes(jpeg)
        try:
            height, width, _, _ = simplejpeg.decode_jpeg_header(mutant)
        except ValueError:
            height, width = 61, 97
        if height * width > 1 << 20:
            continue
        found = _whole(mutant, (3, height, width))
        if found is None:
            continue
        wanted = simplejpeg.decode_jpeg(mutant, "RGB").transpose(2, 0, 1)  # raises on a warning
        assert np.array_equal(found, wanted), number
        made += 1
    assert made > _MUTANTS // 50  # changes of tables of numbers, of markers that mean nothing


def test_threads() -> None:
    jpegs = _jpegs()

    def check(number: int) -> bool:
        jpeg, pixels = jpegs[number % len(jpegs)]
        found = _whole(jpeg, pixels.shape)
        return found is not None and np.array_equal(found, pixels)

    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        assert all(pool.map(check, range(2000)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(12):
        target = tmp_path / "images" / "ab"[number % 2] / f"{number}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        exif = Image.Exif()
        exif[0x0112] = 1 + number % 8
        photo = _photo(90 + number, 130, number)
        is_rgb = number == 5
        jpeg = _jpeg(photo, "4:4:4", keep_rgb=True) if is_rgb else _jpeg(photo, exif=exif)
        target.write_bytes(jpeg)
    return tmp_path / "images"


@pytest.mark.parametrize("seek_points", [False, True])
@pytest.mark.parametrize(
    "crop",
    [
        packio.RandomResizedCrop(64), packio.ResizeCenterCrop(48, interpolation="bicubic"),
        packio.RandomCrop(80, padding=4), packio.CenterCrop((100, 150)), packio.Resize(40), None,
        packio.RandomResizedCrop(64, interpolation="nearest"),
        packio.ResizeCenterCrop(200, interpolation="nearest"),
        packio.RandomResizedCrop(64, interpolation="area"),
        packio.ResizeCenterCrop(200, interpolation="area"),
        packio.BucketCrop((96, 64)), packio.BucketCrop((100, 120), small="pad"),
    ],
)  # fmt: skip
def test_a_dataset_has_the_same_pixels(
    folder: Path, tmp_path: Path, crop: packio.Geometry | None, seek_points: bool
) -> None:
    path = tmp_path / "pack.lmdb"
    packio.pack(folder, path, seek_points=seek_points)
    options: dict[str, Any] = {"crop": crop, "hflip": 0.5, "vflip": 0.5, "seed": 4}
    by_core = packio.PackDataset(path, decoder="native", **options)
    without = packio.PackDataset(path, decoder="simplejpeg", **options)
    made = []
    for dataset in (by_core, without):
        torch.manual_seed(9)  # what draws for a single sample
        made.append([dataset[i][0] for i in range(12)])
        made.append(list(dataset.gather(list(range(12)))[0]))
    for found, wanted in zip(made[:2], made[2:], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert by_core.declined["kind of JPEG"] == 2  # the one of RGB, alone and in the batch
    assert sum(by_core.declined.values()) == 2
    assert not sum(without.declined.values())


def test_views(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "pack.tar"
    packio.pack(folder, path)
    views = [packio.RandomResizedCrop(64, scale=(0.1, 0.2)), packio.RandomResizedCrop(32)]
    by_core = packio.PackDataset(path, views=views, decoder="native", seed=1)
    without = packio.PackDataset(path, views=views, decoder="simplejpeg", seed=1)
    found, wanted = (d.gather(list(range(12)))[0] for d in (by_core, without))
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_declined_counts_what_workers_decline(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "pack.lmdb"
    packio.pack(folder, path)
    dataset = packio.PackDataset(path, crop=packio.CenterCrop(32))
    for _ in torch.utils.data.DataLoader(dataset, batch_size=4, num_workers=2):
        pass
    assert dataset.declined == {"kind of JPEG": 1}


def test_declined_counts_each_jpeg_that_a_library_makes(tmp_path: Path) -> None:
    """By reason. PNGs, as masks are, are not counted: the core is not for them."""
    images, masks = tmp_path / "street" / "images", tmp_path / "street" / "masks"
    images.mkdir(parents=True)
    masks.mkdir()
    photo = _photo(90, 130)
    made = {
        "plain": _jpeg(photo), "RGB": _jpeg(photo, "4:4:4", keep_rgb=True),
        "cmyk": _jpeg(photo.convert("CMYK")), "gray": _jpeg(photo.convert("L")),
    }  # fmt: skip
    for name, jpeg in made.items():
        (images / f"{name}.jpg").write_bytes(jpeg)
    photo.save(images / "other.png")
    for image in images.iterdir():
        photo.convert("L").save(masks / f"{image.stem}.png")
    path = tmp_path / "pack.rec"
    packio.pack(tmp_path / "street", path)

    def declined(interpolation: str, mode: str = "RGB", **options: Any) -> dict[str, int]:
        crop = packio.RandomResizedCrop(32, interpolation=interpolation)
        dataset = packio.PackDataset(
            path, crop=crop, mode=mode, decoder="native", fields=("image", "mask"), **options
        )
        dataset.gather(list(range(5)))
        return dataset.declined

    assert declined("bilinear") == {"kind of JPEG": 2}
    assert declined("nearest") == {"kind of JPEG": 2}
    assert declined("bilinear", fidelity="fast") == {"kind of JPEG": 2}
    assert declined("area") == {"kind of JPEG": 2}
    assert declined("bilinear", mode="GRAY") == {"kind of JPEG": 3}
    assert declined("bilinear", mode="UNCHANGED") == {}


def test_without_the_core(folder: Path, tmp_path: Path) -> None:
    """Packio works, and says what is missing where the core is insisted on."""
    path = tmp_path / "pack.lmdb"
    packio.pack(folder, path)
    script = """
import pathlib, sys
from packio.images import native
native._PATH = pathlib.Path("/nowhere/_core.so")
import packio
dataset = packio.PackDataset(sys.argv[1], crop=packio.CenterCrop(32), decoder=sys.argv[2])
print(dataset.gather([0, 1])[0].sum().item(), dataset.declined)
"""

    def ran(decoder: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", script, str(path), decoder],
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    total = packio.PackDataset(path, crop=packio.CenterCrop(32)).gather([0, 1])[0].sum().item()
    assert ran("auto").stdout == f"{total} {{}}\n"
    assert "it was not compiled when packio was installed" in ran("native").stderr


_AFTER_A_LARGE_ONE = """
import pathlib, sys
import numpy as np
import packio
from PIL import Image

folder = pathlib.Path(sys.argv[1], "a")
folder.mkdir()
Image.new("RGB", (9000, 8000), (10, 200, 90)).save(folder / "large.jpg", subsampling=0)
for i in range(4):
    Image.new("RGB", (300, 200), (60 * i, 0, 90)).save(folder / f"small{i}.jpg")
ds = packio.FolderDataset(
    folder.parent, decoder="native", crop=packio.Resize((64, 64)), threads=1, fields=("image",)
)

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 >> 20

ds.__getitems__([1, 2, 3, 4] * 50)
before = resident()
ds.__getitems__([0])
most = resident()
ds.__getitems__([1, 2, 3, 4] * 50)
print(before, most, resident())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_for_a_large_image_is_given_back(tmp_path: Path) -> None:
    told = made.in_a_process(_AFTER_A_LARGE_ONE, tmp_path)
    before, most, after = map(int, told.split())
    assert most - before > 150, told  # MiB
    assert after - before < 50, told
