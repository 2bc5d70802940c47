"""Affine and perspective transformations: bit for bit those of Pillow, torchvision and timm."""

from __future__ import annotations

import itertools
import math
import struct
from typing import TYPE_CHECKING, Any

import long
import native_core
import numpy as np
import pytest
import torch
from PIL import Image
from vision import import_torchvision

from packio.errors import OptionError, TransformError
from packio.ops import program, warps

if TYPE_CHECKING:
    from collections.abc import Sequence

kernels = native_core.kernels
pytestmark = native_core.needed

METHODS = {"affine": Image.Transform.AFFINE, "perspective": Image.Transform.PERSPECTIVE}
FILTERS = {
    "nearest": Image.Resampling.NEAREST, "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
}  # fmt: skip
SIZES = [(1, 1), (1, 9), (7, 1), (2, 3), (8, 8), (16, 33), (65, 31), (200, 300)]
FILLS = [(0, 0, 0), (128, 128, 128), (124, 116, 104), (255, 0, 1)]


def _as_pillow(image: np.ndarray) -> Image.Image:
    """An image of (C, H, W) bytes."""
    planes = image[0] if len(image) == 1 else np.ascontiguousarray(image.transpose(1, 2, 0))
    return Image.fromarray(planes)


def _as_planes(image: Image.Image) -> np.ndarray:
    pixels = np.array(image)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _colour(fill: Sequence[int], channels: int) -> Any:
    return tuple(fill) if channels == 3 else fill[0]


def _image(kind: str, shape: tuple[int, int, int], rng: np.random.Generator) -> np.ndarray:
    channels, height, width = shape
    if kind == "noise":
        return rng.integers(0, 256, shape, dtype=np.uint8)
    if kind == "black and white":
        return (rng.integers(0, 2, shape) * 255).astype(np.uint8)
    if kind == "flat":
        return np.full(shape, rng.choice([0, 1, 128, 254, 255]), np.uint8)
    y, x = np.mgrid[:height, :width]
    steps = np.stack([x * (c + 1) + y * (3 - c) for c in range(channels)])
    scaled: np.ndarray = (steps * rng.choice([0.7, 1, 0.05]) % 256).astype(np.uint8)
    return scaled


def _affine(rng: np.random.Generator, height: int, width: int) -> list[list[float]]:
    """Coefficients that go each way of the arithmetic."""
    u = rng.uniform
    turn, small = u(-math.pi, math.pi), float(rng.integers(-5, 6))
    a, b, x, y = math.cos(turn), math.sin(turn), width / 2, height / 2
    return [
        [1, 0, small, 0, 1, float(rng.integers(-5, 6))],
        [1, 0, u(-9, 9), 0, 1, u(-9, 9)],
        [-1, 0, width, 0, -1, height],
        [0, 1, 0, 1, 0, 0],
        [u(-3, 3), 0, u(-9, width), 0, u(-3, 3), u(-9, height)],
        [u(-0.9, 0.9), 0, u(0, width), 0, u(-40, 40), u(0, height)],
        [40, 0, u(-9, 0), 0, 0.01, u(-1, height)],
        [1, u(-1, 1), 0, 0, 1, 0],
        [1, 0, 0, 0.27, 1, 0],
        [a, b, -a * x - b * y + x, -b, a, b * x - a * y + y],
        [a, b, 3.5, b, -a, small],
        [small / 4, 0.25, small / 2, 0.5, -0.75, small],
        [u(-300, 300), u(-300, 300), u(-3e4, 3e4), 0.3, 1, 0],
        [u(-3e5, 3e5), u(-3e5, 3e5), 0, u(-2, 2), 1, 0],
        [1e-9, 1e-12, u(0, width), 0, 1e-30, u(0, height)],
        [1e300, -1e300, 1, 1e300, 1e-300, 0],
        [0, 0, 0, 0, 0, 0],
    ]


def _perspective(rng: np.random.Generator, height: int, width: int) -> list[list[float]]:
    u = rng.uniform
    return [
        [1, 0, 0, 0, 1, 0, 0, 0],
        [1 + u(-0.5, 0.5), u(-0.3, 0.3), u(-9, 9), u(-0.3, 0.3), 1 + u(-0.5, 0.5), u(-9, 9),
         u(-0.2, 0.2) / width, u(-0.2, 0.2) / height],
        [u(-2, 2), u(-2, 2), u(-9, 9), u(-2, 2), u(-2, 2), u(-9, 9), -2.0 / width, u(-1, 1)],
        [1, 0.5, u(0, 9), 0, 1, 0, -1 / (width / 2), 0],  # a line of the image lies at infinity
        [u(-1, 1), 0, 300, 0, u(-1, 1), 200, u(-9, 9), u(-9, 9)],
        [1e200, 0, 0, 0, 1e-200, 1, 1e-5, 1e250],
    ]  # fmt: skip


def _check(image: np.ndarray, name: str, numbers: Sequence[float], how: str, fill: Any) -> None:
    pillow = _as_pillow(image)
    expected = pillow.transform(
        pillow.size, METHODS[name], numbers, FILTERS[how], fillcolor=_colour(fill, len(image))
    )
    batch = torch.from_numpy(image.copy())[None]
    program.run(batch, [[program.pack(name, *numbers, *fill, interpolation=how)]])
    np.testing.assert_array_equal(
        batch[0].numpy(), _as_planes(expected), err_msg=f"{image.shape} {name} {numbers} {how}"
    )


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("seed", long.after(1, range(30)))
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("how", FILTERS)
@pytest.mark.parametrize("name", METHODS)
def test_coefficients_give_pillows_pixels(name: str, how: str, channels: int, seed: int) -> None:
    rng = np.random.default_rng([seed, channels])
    draw = _affine if name == "affine" else _perspective
    kinds = itertools.cycle(["noise", "black and white", "flat", "steps", "noise"])
    fills = itertools.cycle(FILLS)
    for height, width in SIZES:
        for numbers in draw(rng, height, width):
            image = _image(next(kinds), (channels, height, width), rng)
            _check(image, name, numbers, how, next(fills))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("how", ["bilinear", "bicubic"])
def test_photographs_are_turned_as_by_pillow(how: str, photos: list[np.ndarray]) -> None:
    for photo, angle in zip(photos[::3], (0.01, 17, 133.3, -60), strict=True):
        image = np.ascontiguousarray(photo.transpose(2, 0, 1))
        _, height, width = image.shape
        numbers = warps.rotation_coefficients(height, width, angle)
        _check(image, "affine", numbers, how, (124, 116, 104))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("move", [0.3, 0.5, 0.1, 1 / 3, 0.9999999999999999, 1e-17, -1e-17, -0.5])
def test_fractions_of_pixels_are_cut_off_as_by_pillow(move: float) -> None:
    rng = np.random.default_rng(3)
    for kind in ("noise", "black and white", "flat"):
        image = _image(kind, (3, 60, 70), rng)
        for numbers in ([1, 0, move, 0, 1, 0], [1, 0, 0, 0, 1, move], [1, 0, move, 0, 1, -move]):
            for how in FILTERS:
                _check(image, "affine", numbers, how, (9, 99, 199))


@pytest.mark.usefixtures("kernels")
def test_images_of_a_batch_are_changed_alone() -> None:
    rng = np.random.default_rng(5)
    guarded = torch.from_numpy(rng.integers(0, 256, (9, 3, 13, 11), dtype=np.uint8))
    before = guarded.clone()
    batch = guarded[1:8]
    for number, how in enumerate(FILTERS):
        programs = [
            [program.pack("affine", *_affine(rng, 13, 11)[k + number], 1, 2, 3, interpolation=how)]
            for k in range(len(batch))
        ]
        expected = [batch[k : k + 1].clone() for k in range(len(batch))]
        for image, operations in zip(expected, programs, strict=True):
            program.run(image, [operations])
        program.run(batch, programs)
        assert torch.equal(batch, torch.cat(expected))
    assert torch.equal(guarded[0], before[0])
    assert torch.equal(guarded[8], before[8])


@pytest.mark.usefixtures("kernels")
def test_several_warps_follow_each_other() -> None:
    rng = np.random.default_rng(6)
    image = rng.integers(0, 256, (3, 40, 50), dtype=np.uint8)
    steps: list[tuple[list[float], str]] = [
        ([1, 0.2, 0, 0, 1, 0], "bicubic"), ([1, 0, 3, 0, 1, -2], "nearest"),
        ([0.9, 0.1, 0, 0.1, 0.8, 2], "bilinear"), ([1.5, 0, 0, 0, 0.7, 2], "nearest"),
    ]  # fmt: skip
    pillow = _as_pillow(image)
    for numbers, how in steps:
        pillow = pillow.transform(pillow.size, METHODS["affine"], numbers, FILTERS[how])
    batch = torch.from_numpy(image)[None]
    packed = [program.pack("affine", *ns, 0, 0, 0, interpolation=how) for ns, how in steps]
    program.run(batch, [packed])
    np.testing.assert_array_equal(batch[0].numpy(), _as_planes(pillow))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("numbers", [
    [math.nan, 0, 0, 0, 1, 0, 0, 0, 0], [1, 0, math.inf, 0, 1, 0, 0, 0, 0],
    [1, 0, 0, 0, 1, 0, 256, 0, 0], [1, 0, 0, 0, 1, 0, 0, -1, 0], [1, 0, 0, 0, 1, 0, 0, 0, math.nan],
])  # fmt: skip
def test_values_that_make_no_sense_are_declined(numbers: list[float]) -> None:
    image = torch.zeros(1, 3, 4, 4, dtype=torch.uint8)
    for how in FILTERS:
        with pytest.raises(TransformError, match="no meaning"):
            program.run(image, [[program.pack("affine", *numbers, interpolation=how)]])
    area = struct.pack("@2i12d", program.OPERATORS["affine"], 4, 1, 0, 0, 0, 1, *[0] * 7)
    with pytest.raises(TransformError, match="no meaning"):
        program.run(image, [[area]])


# --- The functions ---


def _functional() -> Any:
    import_torchvision()
    from torchvision.transforms import functional

    return functional


def _pair(rng: np.random.Generator, channels: int, size: tuple[int, int]) -> tuple[Any, Any]:
    image = _image("noise", (channels, *size), rng)
    return torch.from_numpy(image), _as_pillow(image)


def _assert_same(made: torch.Tensor, expected: Image.Image, what: object = "") -> None:
    np.testing.assert_array_equal(made.numpy(), _as_planes(expected), err_msg=str(what))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("how", FILTERS)
def test_affine_is_torchvisions(how: str, channels: int) -> None:
    functional, rng = _functional(), np.random.default_rng(1)
    for size in ((31, 45), (64, 64), (1, 7)):
        image, pillow = _pair(rng, channels, size)
        for angle, move, scale, shear, fill, center in (
            (30, (3, -5), 1.2, (10, 0), 0, None), (-77.7, (0, 0), 0.5, 12.5, 200, (3, 4)),
            (0, (2.5, 1), 1.0, (0.0, -30.0), None, None), (181.0, [1, 2], 2.2, [8.0], [7], [0, 0]),
        ):  # fmt: skip
            mode = functional.InterpolationMode(how)
            expected = functional.affine(
                pillow, angle, list(move), scale, shear, mode, fill, center
            )
            made = warps.affine(image, angle, move, scale, shear, how, fill, center)
            _assert_same(made, expected, (size, angle))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("how", FILTERS)
def test_rotate_is_torchvisions(how: str) -> None:
    functional, rng = _functional(), np.random.default_rng(2)
    angles = (0, 45, 90, 180, 270, -90, 360, 450, 12.34, -1e-15, 89.99999999, 1e9)
    for size in ((40, 40), (33, 33), (31, 46), (20, 33)):
        for channels, fill in ((3, (1, 2, 3)), (1, 9)):
            image, pillow = _pair(rng, channels, size)
            for angle, center in itertools.product(angles, (None, (5, 7), (0, 0))):
                mode = functional.InterpolationMode(how)
                expected = functional.rotate(pillow, angle, mode, center=center, fill=fill)
                _assert_same(warps.rotate(image, angle, how, fill, center), expected, angle)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("how", FILTERS)
def test_perspective_is_torchvisions(how: str) -> None:
    functional, rng = _functional(), np.random.default_rng(3)
    random = _corners(rng, 40, 50, 6)
    for channels in (1, 3):
        image, pillow = _pair(rng, channels, (40, 50))
        for starts, ends in random:
            mode = functional.InterpolationMode(how)
            expected = functional.perspective(pillow, starts, ends, mode, 77)
            _assert_same(warps.perspective(image, starts, ends, how, 77), expected, ends)


def _corners(
    rng: np.random.Generator, height: int, width: int, count: int
) -> list[tuple[list[list[Any]], list[list[Any]]]]:
    """Corners, and where they go: none moved, some on integers, some not."""
    starts = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
    made: list[Any] = [(starts, [[*point] for point in starts])]
    for number in range(count):
        share = rng.uniform(0, 0.25, (4, 2)) * [width, height]
        ends = [[abs(x - dx), abs(y - dy)] for (x, y), (dx, dy) in zip(starts, share, strict=True)]
        made.append((starts, ends if number % 3 == 2 else [[int(x), int(y)] for x, y in ends]))
    return made


@pytest.mark.parametrize("count", long.after(1, (300, 20000)))
def test_affine_coefficients_are_torchvisions(count: int) -> None:
    functional, rng = _functional(), np.random.default_rng(5)
    for _ in range(count):
        height, width = (int(side) for side in rng.integers(1, 513, 2))
        angle, shear = float(rng.uniform(-400, 400)), rng.uniform(-80, 80, 2).tolist()
        move, scale = rng.integers(-200, 200, 2).tolist(), float(rng.uniform(0.1, 3))
        for center in (None, rng.uniform(0, 300, 2).tolist()):
            middle = center or [width * 0.5, height * 0.5]
            expected = functional._get_inverse_affine_matrix(middle, angle, move, scale, shear)
            made = warps.affine_coefficients(height, width, angle, move, scale, shear, center)
            assert made == tuple(expected)


@pytest.mark.parametrize("count", long.after(1, (300, 20000)))
def test_rotation_coefficients_are_pillows(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(6)
    monkeypatch.setattr(Image.Image, "transform", lambda *given, **_: given[3])
    for _ in range(count):
        height, width = (int(side) for side in rng.integers(1, 513, 2))
        angle = float(rng.uniform(-400, 400) if rng.random() < 0.5 else rng.integers(1, 90))
        for center in (None, tuple(rng.uniform(0, 300, 2).tolist()), (0, 0)):
            expected: Any = Image.new("L", (width, height)).rotate(angle, center=center)
            assert warps.rotation_coefficients(height, width, angle, center) == tuple(expected)


@pytest.mark.parametrize("count", long.after(1, (200, 5000)))
def test_perspective_coefficients_are_torchvisions(count: int) -> None:
    functional, rng = _functional(), np.random.default_rng(7)
    for height, width in ((224, 224), (31, 97)):
        for starts, ends in _corners(rng, height, width, count):
            expected = functional._get_perspective_coeffs(starts, ends)
            assert warps.perspective_coefficients(starts, ends) == tuple(expected)


def test_the_images_that_are_given_stay_as_they_are() -> None:
    image = torch.from_numpy(_image("noise", (3, 20, 30), np.random.default_rng(8)))
    turned = image.transpose(1, 2)
    before = image.clone()
    expected = warps.rotate(turned.contiguous(), 30, "bilinear")
    assert torch.equal(warps.rotate(turned, 30, "bilinear"), expected)
    assert torch.equal(warps.rotate(torch.stack([turned, turned]), 30, "bilinear")[1], expected)
    assert torch.equal(image, before)


@pytest.mark.parametrize(("name", "arguments"), [
    ("affine", (0, (0, 0), 0.0, 0)), ("affine", (0, (0, 0, 0), 1.0, 0)),
    ("affine", (0, (0, 0), 1.0, (1, 2, 3))), ("affine", (math.nan, (0, 0), 1.0, 0)),
    ("affine", (0, (0, math.inf), 1.0, 0)), ("affine", (0, (0, 0), 1.0, 0, "area")),
    ("rotate", (0, "nearest", (1, 2))), ("rotate", (0, "nearest", 256)),
    ("rotate", (math.inf,)),
    ("perspective", ([(0, 0)] * 3, [(0, 0)] * 4)), ("perspective", ([(0, 0)] * 4, [(0, 0)] * 4)),
    ("perspective", ([(0, 0)] * 4, [(0, 0, 0)] * 4)),
])  # fmt: skip
def test_arguments_that_cannot_be_meant_are_refused(name: str, arguments: tuple[Any, ...]) -> None:
    image = torch.zeros(3, 8, 8, dtype=torch.uint8)
    with pytest.raises(OptionError):
        getattr(warps, name)(image, *arguments)
    with pytest.raises(OptionError, match=f"packio.ops.{name}"):
        getattr(warps, name)(image.float(), *arguments)
