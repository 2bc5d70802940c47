"""The native core decodes an image smaller where fidelity is "fast".

What must come out is computed with Pillow, whose libjpeg-turbo decodes at 1/2, 1/4 and 1/8, too.
"""

from __future__ import annotations

import functools
import io
from pathlib import Path
from typing import Any

import made
import native_core
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from native_core import kernels
from PIL import Image
from skimage import data as photographs

import packio
from packio.images import native
from packio.images.frames import Frame

__all__ = ["kernels"]

pytestmark = native_core.needed
_SCALES = (2, 4, 8)
_SAMPLINGS = {"4:4:4": 0, "4:2:2": 1, "4:2:0": 2}


def _jpeg(image: Image.Image, sampling: str = "4:2:0", **options: Any) -> bytes:
    more = {} if image.mode == "L" else {"subsampling": _SAMPLINGS[sampling]}
    return made.saved(image, "JPEG", **{"quality": 90, **more, **options})


def _photo() -> Image.Image:
    name = "astronaut"  # 512 x 512
    return Image.fromarray(getattr(photographs, name)())


def _small(jpeg: bytes, scale: int) -> np.ndarray:
    """(C, H, W) at 1/scale, by Pillow."""
    image = Image.open(io.BytesIO(jpeg))
    assert isinstance(image, Image.Image)
    to = -(-image.width // scale), -(-image.height // scale)
    image.draft(image.mode, to)
    assert image.size == to
    pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _made(
    jpeg: bytes, shape: tuple[int, int], box: tuple[int, int, int, int], to: tuple[int, int],
    **options: Any,
) -> np.ndarray:  # fmt: skip
    channels = 1 if Image.open(io.BytesIO(jpeg)).mode == "L" else 3
    swapped = options.get("orientation", 1) >= 5
    sides = box[2:][::-1] if swapped else box[2:]
    out = np.full((channels, *to), 7, np.uint8)
    frame = Frame(0, 0, *sides, *to, 0, 0, *to)
    status = native_core.make(jpeg, shape, box, frame, out, how="bilinear", **options)
    assert status == 0, native.REASONS[status]
    return out


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("scale", _SCALES)
@pytest.mark.parametrize("kind", ["gray", *_SAMPLINGS])
def test_samples_are_those_of_libjpeg(kind: str, scale: int) -> None:
    """Resized to as many pixels as were decoded, they stay as they are."""
    photo = _photo().resize((176, 144))
    for size in ((144, 176), (40, 72), (8, 16)):
        image = photo.crop((0, 0, size[1], size[0]))
        jpeg = _jpeg(image.convert("L")) if kind == "gray" else _jpeg(image, kind)
        wanted = _small(jpeg, scale).astype(int)
        to = size[0] // scale, size[1] // scale
        found = _made(jpeg, size, (0, 0, *size), to, scale=scale).astype(int)
        assert found.shape == wanted.shape
        if kind == "4:2:2":  # libjpeg decodes half as many columns of chroma, and upsamples them
            pixels = np.asarray(Image.open(io.BytesIO(jpeg))).transpose(2, 0, 1)
            means = pixels.reshape(3, to[0], scale, to[1], scale).mean(axis=(2, 4))
            assert np.abs(found - means).mean() < min(1.5, np.abs(wanted - means).mean())
        else:
            assert (found == wanted).mean() > 0.99  # a few samples are rounded otherwise,
            assert np.abs(found - wanted).max() <= 2  # by 1; chroma counts up to 1.8 times


@functools.cache
def _ramps() -> list[bytes]:
    """Colours that grow from left to right, from top to bottom, and both ways: 239 x 321."""
    y, x = np.mgrid[0:239, 0:321]
    ramp = np.stack([x * 0.75, y, (x + y) * 0.4], axis=2).round().astype(np.uint8)
    image = Image.fromarray(ramp)
    made = [_jpeg(image, sampling, quality=98) for sampling in _SAMPLINGS]
    made.append(_jpeg(image, "4:2:0", quality=98, restart_marker_blocks=5))
    return [*made, _jpeg(Image.fromarray(ramp[:, :, 0]), quality=98)]


@given(
    number=st.integers(0, 4), scale=st.sampled_from(_SCALES), orientation=st.integers(1, 8),
    mirrors=st.tuples(st.booleans(), st.booleans()), part=st.tuples(*[st.integers(0, 100)] * 4),
    ratio=st.floats(1.1, 3), points=st.booleans(),
)  # fmt: skip
@settings(max_examples=400, deadline=None)
def test_a_crop_lies_where_the_exact_one_lies(
    number: int, scale: int, orientation: int, mirrors: tuple[bool, bool], part: tuple[int, ...],
    ratio: float, points: bool,
) -> None:  # fmt: skip
    jpeg = _ramps()[number]
    high, broad = 60 + part[0] * 179 // 100, 60 + part[1] * 261 // 100
    box = part[2] * (239 - high) // 100, part[3] * (321 - broad) // 100, high, broad
    sides = (broad, high) if orientation >= 5 else (high, broad)
    to = max(1, int(sides[0] / scale / ratio)), max(1, int(sides[1] / scale / ratio))
    options: dict[str, Any] = {
        "orientation": orientation, "hflip": mirrors[0], "vflip": mirrors[1],
        "points": native.seek_points(jpeg) if points else b"",
    }  # fmt: skip
    exact = _made(jpeg, (239, 321), box, to, **options).astype(int)
    fast = _made(jpeg, (239, 321), box, to, scale=scale, **options).astype(int)
    difference = fast - exact
    assert np.abs(difference).max() <= 1 + scale // 2  # samples at an edge are partly beyond it
    within = difference[:, 1:-1, 1:-1]
    assert np.abs(within).max(initial=0) <= 3  # chroma that is rounded counts up to 1.8 times
    if within.size >= 60:  # what lies elsewhere is brighter, or darker, everywhere
        assert np.abs(within.mean(axis=(1, 2))).max() <= 1


def test_parts_of_a_resized_box() -> None:
    """As `frames.visible_part` has them: the box has a ratio, and the output a border."""
    jpeg = _ramps()[2]
    for how in ("bilinear", "bicubic"):
        made = []
        for scale in (1, 2):
            out = np.full((3, 50, 40), 7, np.uint8)
            frame = Frame(0, 0, 230, 300, 57, 75, 9, 30, 50, 40, 4.0, 4.0)
            status = native_core.make(
                jpeg, (239, 321), (3, 5, 230, 300), frame, out, how=how, scale=scale
            )
            assert status == 0
            made.append(out.astype(int))
        assert np.abs(made[0] - made[1])[:, :47, :44].max() <= 2
        assert not made[1][:, 48:].any()  # beyond the resized box


@pytest.mark.parametrize("scale", [0, 3, 16, -2])
def test_other_scales_are_declined(scale: int) -> None:
    out = np.zeros((3, 20, 20), np.uint8)
    frame = Frame(0, 0, 239, 321, 20, 20, 0, 0, 20, 20)
    box = (0, 0, 239, 321)
    status = native_core.make(_ramps()[0], box[2:], box, frame, out, how="bilinear", scale=scale)
    assert native.REASONS[status] == "kind of output"


@pytest.mark.parametrize("how", ["nearest", "area"])
def test_only_antialiased_outputs_are_decoded_smaller(how: str) -> None:
    out = np.zeros((3, 20, 20), np.uint8)
    frame = Frame(0, 0, 239, 321, 20, 20, 0, 0, 20, 20)
    box = (0, 0, 239, 321)
    status = native_core.make(_ramps()[0], box[2:], box, frame, out, how=how, scale=2)
    assert native.REASONS[status] == "kind of output"


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs of 512 x 512 and of 80 x 80 pixels, some of them turned by EXIF."""
    folder = tmp_path_factory.mktemp("native_fast")
    photo = _photo()
    for number in range(8):
        exif = Image.Exif()
        exif[0x0112] = 1 + number
        image = photo if number % 2 else photo.resize((80, 80))
        target = folder / "images" / "a" / f"{number}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        image.save(target, exif=exif, quality=90)
    packio.pack(folder / "images", folder / "pack.lmdb")
    return folder / "pack.lmdb"


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_only_large_crops_are_decoded_smaller(pack: Path, interpolation: str) -> None:
    """Of smaller ones the exact pixels take less time than what a library would make."""
    crop = packio.ResizeCenterCrop(64, interpolation=interpolation)
    exact = packio.PackDataset(pack, crop=crop, decoder="native", fields="image")
    fast = exact.with_options(fidelity="fast")
    wanted, found = (dataset.gather(list(range(8))) for dataset in (exact, fast))
    assert not fast.declined
    for number, (a, b) in enumerate(zip(wanted, found, strict=True)):
        error = ((a.double() - b.double()) ** 2).mean().item()
        assert (error == 0) == (number % 2 == 0)
        assert error < 255**2 / 10**3.5  # 35 dB


def test_a_library_makes_what_the_core_declines(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    photo = _photo()
    photo.save(tmp_path / "images" / "a.jpg", keep_rgb=True)
    packio.pack(tmp_path / "images", tmp_path / "pack.lmdb")
    options: dict[str, Any] = {"crop": packio.ResizeCenterCrop(64), "fidelity": "fast"}
    by_core = packio.PackDataset(tmp_path / "pack.lmdb", decoder="native", **options)
    library = packio.PackDataset(tmp_path / "pack.lmdb", decoder="simplejpeg", **options)
    assert torch.equal(by_core.gather([0])[0], library.gather([0])[0])
    assert by_core.declined == {"kind of JPEG": 1}
