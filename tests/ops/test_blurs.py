"""Blurs: the pixels of Pillow, bit for bit, and nearly those of torchvision."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import native_core
import numpy as np
import pytest
import torch
from make_sample_images import photograph
from native_core import kernels
from PIL import Image, ImageFilter
from vision import import_torchvision

from packio.errors import OptionError, TransformError
from packio.ops import program
from packio.ops.blurs import gaussian_blur, pillow_blur

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["kernels"]
pytestmark = [native_core.needed, pytest.mark.usefixtures("kernels")]

SIZES = [(1, 1), (1, 13), (17, 1), (2, 3), (5, 40), (15, 32), (16, 31), (33, 47), (64, 96)]
RADII = [0.0, 1e-30, 1e-4, *(step / 10 for step in range(1, 21)), 2.345, 5.0, 7.75, 30.0, 63.0,
         63.99, 64.0, 150.5, 4000.0]  # fmt: skip
OUT_OF_RANGE = [-1.0, math.nan, math.inf, -math.inf, 2.0**21, 1e300]


def _planes(pixels: np.ndarray) -> torch.Tensor:
    """(C, H, W) of (H, W) or (H, W, C) pixels."""
    return torch.from_numpy(np.atleast_3d(pixels).transpose(2, 0, 1).copy())


@functools.cache
def _noise(size: tuple[int, int], mode: str) -> np.ndarray:
    shape = size if mode == "L" else (*size, 3)
    return np.random.default_rng(list(size)).integers(0, 256, shape, dtype=np.uint8)


def _images() -> Iterator[np.ndarray]:
    for size in SIZES:
        for mode in ("L", "RGB"):
            yield _noise(size, mode)


@functools.cache
def _filtered(size: tuple[int, int], mode: str, kind: str, radius: Any) -> torch.Tensor:
    blur = getattr(ImageFilter, kind)(radius)
    return _planes(np.asarray(Image.fromarray(_noise(size, mode)).filter(blur)))


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("size", [*SIZES, (300, 200)])
def test_gaussians_are_pillows(size: tuple[int, int], mode: str) -> None:
    image = _planes(_noise(size, mode))
    rng = np.random.default_rng(size[0])
    for radius in RADII + rng.uniform(0, 40, 3).tolist():
        expected = _filtered(size, mode, "GaussianBlur", radius)
        assert torch.equal(pillow_blur(image, radius), expected), radius


def test_all_bytes_beside_all_others() -> None:
    pixels = np.stack(np.meshgrid(np.arange(256), np.arange(256)), axis=-1).astype(np.uint8)
    rows = np.repeat(pixels.reshape(-1, 1, 2), 2, axis=1).reshape(256, 1024)
    for radius in (0.3, 0.5, 1.0):
        expected = np.asarray(Image.fromarray(rows).filter(ImageFilter.GaussianBlur(radius)))
        assert torch.equal(pillow_blur(_planes(rows), radius), _planes(expected))


@pytest.mark.long
def test_ten_thousand_radii_are_pillows() -> None:
    pixels = _noise((33, 47), "L")
    image = _planes(pixels)
    for radius in np.random.default_rng(3).exponential(4, 10_000).tolist():
        expected = Image.fromarray(pixels).filter(ImageFilter.GaussianBlur(radius))
        assert torch.equal(pillow_blur(image, radius), _planes(np.asarray(expected))), radius


def _exactly(
    image: torch.Tensor, size: tuple[int, int], sigma: tuple[float, float]
) -> torch.Tensor:
    """What the blur of torchvision is in double precision, before it is rounded."""
    across, down = (
        torch.exp(-0.5 * (torch.arange(n, dtype=torch.float64) - n // 2).div(s).square())
        for n, s in zip(size, sigma, strict=True)
    )
    kernel = torch.outer(down / down.sum(), across / across.sum())
    x, y = size[0] // 2, size[1] // 2
    padded = torch.nn.functional.pad(image[:, None].double(), (x, x, y, y), mode="reflect")
    return torch.conv2d(padded, kernel[None, None])[:, 0]


@pytest.mark.parametrize(
    ("size", "sigma"),
    [((1, 1), (1, 1)), ((3, 3), (0.1, 0.1)), ((3, 3), (0.8, 0.8)), ((5, 3), (1.1, 0.3)),
     ((1, 9), (2, 1.5)), ((23, 23), (0.1, 2)), ((23, 23), (2, 1)), ((23, 21), (4, 3.5)),
     ((31, 61), (30, 1e6))],
)  # fmt: skip
def test_kernels_give_the_nearest_gray_level(
    size: tuple[int, int], sigma: tuple[float, float]
) -> None:
    tried = 0
    for pixels in [*_images(), _noise((35, 300), "RGB")]:
        image = _planes(pixels)
        if image.shape[2] <= size[0] // 2 or image.shape[1] <= size[1] // 2:
            continue
        made, exact = gaussian_blur(image, size, sigma), _exactly(image, size, sigma)
        assert float((made - exact).abs().max()) < 0.5001
        tried += 1
    assert tried >= 4


@pytest.mark.parametrize(("kernel_size", "sigma"), [(3, 0.7), (5, None), (9, 1.5), (23, (0.5, 2))])
def test_kernels_on_photographs_are_nearly_torchvisions(kernel_size: int, sigma: Any) -> None:
    functional = import_torchvision().transforms.functional
    differing = total = 0
    for name in ("astronaut", "coffee", "chelsea"):
        photo = photograph(f"skimage/data/{name}.png").resize((224, 200), Image.Resampling.BICUBIC)
        image = _planes(np.asarray(photo))
        made = gaussian_blur(image, kernel_size, sigma).int()
        expected = functional.gaussian_blur(image, kernel_size, sigma).int()
        assert int((made - expected).abs().max()) <= 1
        differing += int((made != expected).sum())
        total += made.numel()
    assert differing <= 2e-4 * total


@pytest.mark.parametrize("size", [(1, 1), (3, 5), (23, 23), (63, 1)])
@pytest.mark.parametrize("sigma", [0.2, 1.1, 6.0, 1e9])
def test_all_kernels_give_the_same(size: tuple[int, int], sigma: float, kernels: str) -> None:
    image = _planes(_noise((40, 67), "RGB"))
    made = gaussian_blur(image, size, sigma)
    with native_core.chosen("portable" if kernels == "AVX2" else "AVX2"):
        assert torch.equal(gaussian_blur(image, size, sigma), made)


def test_plain_images_stay_plain() -> None:
    for value in range(256):
        image = torch.full((1, 9, 40), value, dtype=torch.uint8)
        for made in (gaussian_blur(image, 9), pillow_blur(image, 1.7)):
            assert torch.equal(made, image)


def test_batches_are_blurred_image_by_image() -> None:
    batch = torch.stack([_planes(_noise((33, 47), "RGB")).roll(step, 2) for step in range(11)])
    before = batch.clone()
    blurs = [functools.partial(pillow_blur, radius=1.3),
             functools.partial(gaussian_blur, kernel_size=7)]  # fmt: skip
    for blur in blurs:
        made = blur(batch)
        assert torch.equal(made, torch.stack([blur(image) for image in batch]))
        assert torch.equal(blur(batch.to(memory_format=torch.channels_last)), made)
        assert torch.equal(batch, before)


@pytest.mark.parametrize("name", ["gaussian_blur", "kernel_blur"])
def test_neighbours_in_memory_are_left_alone(name: str) -> None:
    values = {"gaussian_blur": (1.7,), "kernel_blur": (5, 5, 1, 1)}[name]
    for size in SIZES[3:]:
        batch = torch.from_numpy(np.stack([_noise(size, "L")] * 3))[:, None].clone()
        if name == "kernel_blur" and min(size) < 3:
            continue
        before = batch.clone()
        program.run(batch, [[], [program.pack(name, *values)], []])
        assert torch.equal(batch[[0, 2]], before[[0, 2]])
        assert not torch.equal(batch[1], before[1])


def test_no_image_is_an_empty_batch() -> None:
    empty = torch.zeros(0, 3, 8, 8, dtype=torch.uint8)
    for made in (gaussian_blur(empty, 3), pillow_blur(empty, 1)):
        assert made.shape == empty.shape


def test_radii_that_cannot_be_meant_are_refused() -> None:
    image = torch.zeros(3, 8, 8, dtype=torch.uint8)
    for radius in OUT_OF_RANGE:
        with pytest.raises(OptionError, match="radius="):
            pillow_blur(image, radius)
    for given in ("2", None, (1, 2)):
        with pytest.raises(OptionError, match="radius="):
            pillow_blur(image, given)  # type: ignore[arg-type]  # that is the point


def test_kernels_that_cannot_be_meant_are_refused() -> None:
    image = torch.zeros(3, 8, 30, dtype=torch.uint8)
    for size in (0, 2, -3, (3, 17), (61, 3), (3, 3, 3), 2.5, math.nan):
        with pytest.raises(OptionError, match="kernel_size="):
            gaussian_blur(image, size)  # type: ignore[arg-type]  # that is the point
    assert gaussian_blur(image, (59, 15)).shape == image.shape
    for sigma in (0, -1.0, math.nan, math.inf, (1, 0), (1, 2, 3), "1"):
        with pytest.raises(OptionError, match="sigma="):
            gaussian_blur(image, 3, sigma)  # type: ignore[arg-type]  # that is the point


@pytest.mark.parametrize("name", ["gaussian_blur", "kernel_blur"])
def test_the_core_refuses_what_makes_no_sense(name: str) -> None:
    batch = torch.full((1, 3, 8, 8), 7, dtype=torch.uint8)
    further = [0.0, 2.0, 2.5, 17.0] if name == "kernel_blur" else []
    others = {"gaussian_blur": [], "kernel_blur": [3.0, 1.0, 1.0]}[name]
    for value in OUT_OF_RANGE + further:
        given = [value, *others]
        with pytest.raises(TransformError, match="no meaning"):
            program.run(batch, [[program.pack(name, *given)]])
    with pytest.raises(TransformError, match="no meaning"):
        program.run(batch, [[program.pack("kernel_blur", 3, 3, 1, math.nan)]])
    assert bool((batch == 7).all())
