"""Operations on the values of pixels: bit for bit those of Pillow, by both kinds of kernels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import long
import native_core
import numpy as np
import pytest
import torch
from native_core import kernels  # noqa: F401 (a fixture)
from PIL import Image, ImageEnhance, ImageOps

from packio.errors import OptionError, TransformError
from packio.ops import program, tones

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

pytestmark = native_core.needed

# 1e-40 is subnormal as float32; 3e38 overflows when it is multiplied.
FACTORS = (0.0, 1.0, 0.5, 1.5, 0.1, 1 / 3, 0.999999, 1.000001, 1.9, 2.0, 7.3, 255.0, 1e9, 3e38,
           1e-40, -1e-3, -0.7, -3.0, -3e38)  # fmt: skip
RANDOM = tuple(np.random.default_rng(11).uniform(-0.5, 2.5, 12).tolist())
HUES = (0, 1, 12, 25, 42, 43, 85, 127, 128, 200, 254, 255)


def enhanced(kind: Callable[[Image.Image], Any]) -> Callable[[Image.Image, float], Image.Image]:
    def enhance(image: Image.Image, factor: float) -> Image.Image:
        made: Image.Image = kind(image).enhance(factor)
        return made

    return enhance


def turned(image: Image.Image, addition: int) -> Image.Image:
    """What torchvision 0.28 does, _functional_pil.adjust_hue."""
    if image.mode == "L":
        return image
    h, s, v = image.convert("HSV").split()
    h = Image.fromarray(np.asarray(h) + np.uint8(addition))
    return Image.merge("HSV", (h, s, v)).convert("RGB")


def posterized(image: Image.Image, bits: int) -> Image.Image:
    return ImageOps.posterize(image, bits) if bits else Image.new(image.mode, image.size)


def brightened_below(image: Image.Image, addition: int, threshold: float) -> Image.Image:
    """What timm 1.0.31 does, data/auto_augment.solarize_add."""
    table = [min(255, i + addition) if i < threshold else i for i in range(256)]
    return image.point(table * len(image.getbands()))


REFERENCES: dict[str, Callable[..., Image.Image]] = {
    "brightness": enhanced(ImageEnhance.Brightness),
    "contrast": enhanced(ImageEnhance.Contrast),
    "saturation": enhanced(ImageEnhance.Color),
    "sharpness": enhanced(ImageEnhance.Sharpness),
    "hue": turned,
    "grayscale": lambda image: image.convert("L").convert(image.mode),
    "invert": ImageOps.invert,
    "posterize": posterized,
    "solarize": ImageOps.solarize,
    "solarize_add": brightened_below,
    "equalize": ImageOps.equalize,
    "autocontrast": ImageOps.autocontrast,
}
VALUES: dict[str, list[tuple[float, ...]]] = {
    **{
        name: [(factor,) for factor in (*FACTORS, *RANDOM)]
        for name in ("brightness", "contrast", "saturation", "sharpness")
    },
    "hue": [(addition,) for addition in HUES],
    "posterize": [(bits,) for bits in range(9)],
    "solarize": [(t,) for t in (-1e300, -1, 0, 0.5, 1, 100.25, 128, 254.9, 255, 256, 1e300)],
    "solarize_add": [(0, 128), (1, 128), (40, 128), (255, 256), (110, 0), (-30, 200), (-255, 255),
                     (128, 99.5), (7, math.inf), (7, -math.inf)],
    **{name: [()] for name in ("grayscale", "invert", "equalize", "autocontrast")},
}  # fmt: skip
SIZES = ((1, 1), (1, 7), (9, 1), (2, 2), (3, 3), (2, 40), (5, 2), (3, 17), (4, 35), (31, 33),
         (64, 64), (57, 101))  # fmt: skip


def images_of(height: int, width: int, channels: int) -> Iterator[np.ndarray]:
    """Images (H, W, C): noise, values of a part of the range, one or two values, a gradient."""
    rng = np.random.default_rng(height * 1000 + width * 3 + channels)
    shape = height, width, channels
    yield rng.integers(0, 256, shape, np.uint8)
    yield rng.integers(100, 141, shape, np.uint8)
    yield np.full(shape, rng.integers(0, 256, channels), np.uint8)
    yield rng.choice(np.array([17, 230], np.uint8), shape)
    steps = np.arange(height)[:, None, None] + 2 * np.arange(width)[:, None] + 90
    yield (steps % 256).astype(np.uint8) // np.arange(1, channels + 1, dtype=np.uint8)


def picture(pixels: np.ndarray) -> Image.Image:
    return Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)


def expected(name: str, values: tuple[float, ...], pixels: np.ndarray) -> np.ndarray:
    """What Pillow makes of (H, W, C) bytes."""
    return np.asarray(REFERENCES[name](picture(pixels), *values)).reshape(pixels.shape)


def made(name: str, values: tuple[float, ...], pixels: np.ndarray) -> np.ndarray:
    """What the core makes of them."""
    batch = torch.from_numpy(pixels.transpose(2, 0, 1).copy())[None]
    program.run(batch, [[program.pack(name, *values)]])
    return np.ascontiguousarray(batch[0].permute(1, 2, 0).numpy())


def check(name: str, values: tuple[float, ...], pixels: np.ndarray) -> None:
    wanted, got = expected(name, values, pixels), made(name, values, pixels)
    count = int((wanted != got).sum())
    assert not count, f"{name}{values} of {pixels.shape}: {count} values differ"


def colours(count: int) -> np.ndarray:
    """So many of all colours, a power of 4, spread: (H, W, 3)."""
    numbers = np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B1) % np.uint64(1 << 24)
    parts = [(numbers >> np.uint64(shift)).astype(np.uint8) for shift in (16, 8, 0)]
    side = math.isqrt(count)
    return np.stack(parts, axis=1).reshape(side, side, 3)


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.usefixtures("kernels")
def test_images_of_all_sizes_are_pillows(name: str) -> None:
    for height, width in SIZES:
        for channels in (1, 3):
            for pixels in images_of(height, width, channels):
                for values in VALUES[name][:: 1 if height * width < 100 else 3]:
                    check(name, values, pixels)


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.usefixtures("kernels")
def test_photographs_are_pillows(name: str, photos: list[np.ndarray]) -> None:
    large = np.random.default_rng(3).integers(0, 256, (300, 200, 3), np.uint8)
    for number, photo in enumerate([*photos, large]):
        pixels = np.ascontiguousarray(photo)
        for values in VALUES[name][number % 4 :: 4] or VALUES[name]:
            check(name, values, pixels)
            check(name, values, pixels[:, :, 1:2])


@pytest.mark.usefixtures("kernels")
def test_all_bytes_with_all_values() -> None:
    every = np.arange(256, dtype=np.uint8).reshape(16, 16, 1)
    for factor in np.random.default_rng(5).uniform(-2, 4, 300):
        check("brightness", (float(factor),), every)
    for step in range(-2, 1030):
        check("solarize", (step / 4,), every)
    for addition in range(-255, 256, 5):
        for threshold in (0, 1, 64, 127.5, 128, 255, 256):
            check("solarize_add", (addition, threshold), every)


@pytest.mark.parametrize("factor", [0.3, 1.7, -0.4])
@pytest.mark.usefixtures("kernels")
def test_contrast_from_all_means(factor: float) -> None:
    """Means are rounded: half-way, of two pixels, and near it."""
    for mean in range(256):
        check("contrast", (factor,), np.array([[[mean], [min(mean + 1, 255)]]], np.uint8))
        filled = np.full((16, 200, 1), mean, np.uint8)
        filled[:, :16, 0] = np.arange(256).reshape(16, 16)
        check("contrast", (factor,), filled)


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.usefixtures("kernels")
def test_sharpness_of_all_sums(factor: float) -> None:
    """Blocks of 3 by 3 pixels whose weighted sums are all that there are, 0 to 13 times 255."""
    blocks = np.zeros((3316, 3, 3), np.uint8)
    for total, block in enumerate(blocks):
        centre = total // 13 if total < 2000 else -(-total // 13)
        left = total - 5 * centre
        others = [left // 8 + (i < left % 8) for i in range(8)]
        block[1, 1] = centre
        block.reshape(9)[[0, 1, 2, 3, 5, 6, 7, 8]] = others
    pixels = blocks.transpose(1, 0, 2).reshape(3, -1, 1)
    sums = blocks.reshape(-1, 9).astype(int) @ np.array([1, 1, 1, 1, 5, 1, 1, 1, 1])
    assert (sums == np.arange(3316)).all()
    check("sharpness", (factor,), pixels)


@pytest.mark.parametrize("name", ["saturation", "hue", "grayscale"])
@pytest.mark.usefixtures("kernels")
def test_many_colours_are_pillows(name: str) -> None:
    pixels = colours(1 << 18)
    for values in VALUES[name]:
        check(name, values, pixels)


@pytest.mark.parametrize(
    ("name", "values"),
    long.after(
        0,
        [
            ("grayscale", ()),
            *(("saturation", (factor,)) for factor in (0.1, 1 / 3, 0.9, 1.9, 7.3, -0.7)),
            *(("hue", (addition,)) for addition in HUES),
        ],
    ),
)
@pytest.mark.usefixtures("kernels")
def test_all_colours_are_pillows(name: str, values: tuple[float, ...]) -> None:
    check(name, values, colours(1 << 24))


@pytest.mark.usefixtures("kernels")
def test_hues_turn_by_all_additions() -> None:
    pixels = colours(1 << 14)
    for addition in range(256):
        check("hue", (addition,), pixels)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.usefixtures("kernels")
def test_operations_follow_one_another_on_images_of_a_batch(channels: int) -> None:
    """Each image gets its own operations; those without any stay as they are."""
    rng = np.random.default_rng(8)
    pixels = rng.integers(0, 256, (12, 23, 41, channels), np.uint8)
    programs, wanted = [], pixels.copy()
    for number in range(len(pixels)):
        chosen = rng.permutation(list(REFERENCES))[: number % 5]
        values = [VALUES[name][number % len(VALUES[name])] for name in chosen]
        programs.append([program.pack(n, *v) for n, v in zip(chosen, values, strict=True)])
        for name, own in zip(chosen, values, strict=True):
            wanted[number] = expected(name, own, wanted[number])
    batch = torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy())
    program.run(batch, programs)
    assert (batch.numpy() == wanted.transpose(0, 3, 1, 2)).all()


@pytest.mark.parametrize(
    ("name", "values"),
    [
        *(
            (name, (factor,))
            for name in ("brightness", "contrast", "saturation", "sharpness")
            for factor in (math.nan, math.inf, -math.inf, 1e39)
        ),
        *(("hue", (addition,)) for addition in (-1, 256, math.nan, math.inf)),
        *(("posterize", (bits,)) for bits in (-1, 9, math.nan, 1e300)),
        ("solarize", (math.nan,)),
        *(("solarize_add", values) for values in ((256, 128), (-256, 1), (math.nan, 1),
                                                  (1, math.nan))),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("kernels")
def test_the_core_refuses_values_without_a_meaning(name: str, values: tuple[float, ...]) -> None:
    pixels = np.arange(75, dtype=np.uint8).reshape(5, 5, 3)
    with pytest.raises(TransformError, match="no meaning"):
        made(name, values, pixels)


FUNCTIONS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "brightness": ((1.3,), (1.3,)), "contrast": ((0.4,), (0.4,)), "saturation": ((2,), (2,)),
    "hue": ((-0.1,), (-25 % 256,)), "grayscale": ((), ()), "invert": ((), ()),
    "posterize": ((3,), (3,)), "solarize": ((99.5,), (99.5,)), "solarize_add": ((40,), (40, 128)),
    "equalize": ((), ()), "autocontrast": ((), ()), "sharpness": ((-0.5,), (-0.5,)),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_return_new_images(name: str) -> None:
    arguments, values = FUNCTIONS[name]
    pixels = np.random.default_rng(4).integers(20, 210, (5, 19, 22, 3), np.uint8)
    batch = torch.from_numpy(pixels).permute(0, 3, 1, 2)  # channels last
    before = batch.clone()
    got = getattr(tones, name)(batch, *arguments)
    assert torch.equal(batch, before)
    assert got.is_contiguous()
    for number, image in enumerate(pixels):
        wanted = torch.from_numpy(expected(name, values, image).copy()).permute(2, 0, 1)
        assert torch.equal(got[number], wanted)
        assert torch.equal(getattr(tones, name)(batch[number], *arguments), wanted)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_image_is_an_empty_batch(name: str) -> None:
    for shape in ((0, 3, 8, 8), (2, 1, 0, 8)):
        got = getattr(tones, name)(torch.empty(shape, dtype=torch.uint8), *FUNCTIONS[name][0])
        assert (tuple(got.shape), got.dtype) == (shape, torch.uint8)


def test_functions_are_torchvisions_and_timms(
    torchvision: ModuleType, timm: ModuleType, photos: list[np.ndarray]
) -> None:
    functional = torchvision.transforms.functional
    photo = np.ascontiguousarray(photos[2])
    image, planes = Image.fromarray(photo), torch.from_numpy(photo).permute(2, 0, 1)
    pairs = [
        *((tones.brightness, functional.adjust_brightness, f) for f in RANDOM if f >= 0),
        *((tones.contrast, functional.adjust_contrast, f) for f in RANDOM if f >= 0),
        *((tones.saturation, functional.adjust_saturation, f) for f in RANDOM if f >= 0),
        *((tones.sharpness, functional.adjust_sharpness, f) for f in RANDOM if f >= 0),
        *((tones.hue, functional.adjust_hue, f) for f in (-0.5, -0.3, -0.001, 0, 0.1, 0.499, 0.5)),
        *((tones.posterize, functional.posterize, bits) for bits in range(1, 9)),
        *((tones.solarize, functional.solarize, t) for t in (0, 12, 127.5, 255)),
        *((tones.solarize_add, timm.data.auto_augment.solarize_add, more) for more in (0, 50, 110)),
        (tones.grayscale, functional.rgb_to_grayscale, 3),
        *((getattr(tones, n), getattr(functional, n), None)
          for n in ("invert", "equalize", "autocontrast")),
    ]  # fmt: skip
    for own, theirs, value in pairs:
        wanted = theirs(image) if value is None else theirs(image, value)
        got = own(planes) if own is tones.grayscale or value is None else own(planes, value)
        assert (got.permute(1, 2, 0).numpy() == np.asarray(wanted)).all(), (own, value)


@pytest.mark.parametrize(
    ("function", "arguments", "said"),
    [
        (tones.brightness, (math.nan,), "factor=nan; expected a number"),
        (tones.contrast, (-math.inf,), "factor=-inf; expected a finite number"),
        (tones.sharpness, (1e39,), "expected a finite number"),
        (tones.saturation, ("1",), "factor='1'; expected a number"),
        (tones.saturation, (True,), "factor=True; expected a number"),
        (tones.hue, (0.51,), r"factor=0\.51; expected -0\.5 to 0\.5"),
        (tones.hue, (math.nan,), "expected a number"),
        (tones.posterize, (9,), "bits=9; expected a whole number, 0 to 8"),
        (tones.posterize, (2.0,), "expected a whole number"),
        (tones.solarize, (math.nan,), "threshold=nan; expected a number"),
        (tones.solarize_add, (256,), "addition=256; expected a whole number, -255 to 255"),
        (tones.solarize_add, (1, None), "threshold=None; expected a number"),
    ],
)
def test_arguments_without_a_meaning_are_errors(
    function: Callable[..., torch.Tensor], arguments: tuple[Any, ...], said: str
) -> None:
    with pytest.raises(OptionError, match=said):
        function(torch.zeros(3, 4, 4, dtype=torch.uint8), *arguments)
    with pytest.raises(OptionError, match="expected"):
        function(torch.zeros(2, 4, 4, dtype=torch.uint8), *arguments)
