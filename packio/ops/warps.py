"""Affine and perspective transformations of images, with the pixels of Pillow.

Sources: Pillow 13.0.0, ``Image.transform`` and ``Image.rotate``; torchvision 0.28,
``transforms.functional`` (`affine`, `rotate`, `perspective` of PIL images).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch

from packio.errors import OptionError
from packio.ops import program
from packio.ops.transform import Fill, as_interpolation, colour_of

Points = Sequence[Sequence[float]]


def affine(
    images: torch.Tensor, angle: float, translate: Sequence[float], scale: float,
    shear: float | Sequence[float], interpolation: str = "nearest", fill: Fill = 0,
    center: Sequence[float] | None = None,
) -> torch.Tensor:  # fmt: skip
    """Rotate, move, scale and shear images, as torchvision's ``affine`` of PIL images.

    Args:
        images: (C, H, W) or (N, C, H, W) uint8, C 1 or 3, on the processor.
        angle: Degrees, clockwise.
        translate: (x, y) in pixels, after the rotation.
        scale: Factor above 0.
        shear: Degrees along x, or (x, y).
        interpolation: "nearest", "bilinear" or "bicubic", or torchvision's or Pillow's name of it.
        fill: Colour of what lies outside: one number in 0..255, or one a channel.
        center: (x, y) in pixels; None: the middle.

    Returns:
        A new tensor of the same shape.

    Raises:
        OptionError: an argument is none of these.
        MissingPackageError: the native core was not compiled.
    """
    program.check_images(images, "packio.ops.affine")
    shears = tuple(shear) if isinstance(shear, Iterable) else (shear, 0.0)
    shears *= 2 if len(shears) == 1 else 1
    _check_number("angle", angle)
    _check("translate", translate, 2)
    _check("shear", shears, 2)
    _check_number("scale", scale)
    _check_center(center)
    if not scale > 0:
        raise OptionError(f"scale={scale!r}: expected a number above 0")
    matrix = affine_coefficients(*_size(images), angle, translate, scale, shears, center)
    return _warp(images, "affine", matrix, interpolation, fill)


def rotate(
    images: torch.Tensor, angle: float, interpolation: str = "nearest", fill: Fill = 0,
    center: Sequence[float] | None = None,
) -> torch.Tensor:  # fmt: skip
    """Rotate images into the same size, as ``Image.rotate``.

    Args:
        images: (C, H, W) or (N, C, H, W) uint8, C 1 or 3, on the processor.
        angle: Degrees, counter-clockwise.
        interpolation, fill, center: See `affine`.

    Returns and raises as `affine`.
    """
    program.check_images(images, "packio.ops.rotate")
    _check_number("angle", angle)
    _check_center(center)
    matrix = rotation_coefficients(*_size(images), angle, center)
    return _warp(images, "affine", matrix, interpolation, fill)


def perspective(
    images: torch.Tensor, startpoints: Points, endpoints: Points,
    interpolation: str = "bilinear", fill: Fill = 0,
) -> torch.Tensor:  # fmt: skip
    """Move four points of images to others, as torchvision's ``perspective`` of PIL images.

    Args:
        images: (C, H, W) or (N, C, H, W) uint8, C 1 or 3, on the processor.
        startpoints: Four (x, y) in pixels: top left, top right, bottom right, bottom left.
        endpoints: Where they go.
        interpolation: See `affine`.
        fill: See `affine`.

    Returns:
        A new tensor of the same shape.

    Raises:
        OptionError: an argument is none of these, or three of the points lie on a line.
        MissingPackageError: the native core was not compiled.
    """
    program.check_images(images, "packio.ops.perspective")
    both: tuple[tuple[str, Any], ...] = ("startpoints", startpoints), ("endpoints", endpoints)
    for name, points in both:
        if not isinstance(points, Collection) or len(points) != 4:
            raise OptionError(f"{name}={points!r}: expected four points")
        for point in points:
            _check(name, point, 2)
    coefficients = perspective_coefficients(startpoints, endpoints)
    return _warp(images, "perspective", coefficients, interpolation, fill)


def affine_coefficients(
    height: int, width: int, angle: float, translate: Sequence[float], scale: float,
    shear: Sequence[float], center: Sequence[float] | None = None,
) -> tuple[float, float, float, float, float, float]:  # fmt: skip
    """Compute what ``Image.transform`` is given for an affine transformation.

    Returns:
        (a, b, c, d, e, f): pixel (x, y) comes from (a x + b y + c, d x + e y + f).

    Source: torchvision 0.28, ``_get_inverse_affine_matrix``: the inverse of a rotation, a scale and
    shears, around the centre, before a move. The order of the sums decides about the last bits.
    """
    turn, sx, sy = math.radians(angle), math.radians(shear[0]), math.radians(shear[1])
    cx, cy = (width * 0.5, height * 0.5) if center is None else center
    cos, sin, cos_y, tan_x = math.cos(turn - sy), math.sin(turn - sy), math.cos(sy), math.tan(sx)
    a = (-sin * tan_x / cos_y + math.cos(turn)) / scale
    b = -(-cos * tan_x / cos_y - math.sin(turn)) / scale
    d = -(sin / cos_y) / scale
    e = cos / cos_y / scale
    x, y = -cx - translate[0], -cy - translate[1]
    return a, b, 0.0 + (a * x + b * y) + cx, d, e, 0.0 + (d * x + e * y) + cy


def rotation_coefficients(
    height: int, width: int, angle: float, center: Sequence[float] | None = None
) -> tuple[float, float, float, float, float, float]:
    """Compute what ``Image.rotate`` gives to ``Image.transform``: see `affine_coefficients`.

    Where Pillow copies or transposes the image instead, these coefficients give the same pixels.

    Source: Pillow 13.0.0, ``Image.rotate``, which rounds sine and cosine to 15 decimals.
    """
    turn = -math.radians(angle % 360.0)
    a, b, d = round(math.cos(turn), 15), round(math.sin(turn), 15), round(-math.sin(turn), 15)
    x, y = center or (width / 2, height / 2)
    return a, b, (a * -x + b * -y + 0.0) + x, d, a, (d * -x + a * -y + 0.0) + y


def perspective_coefficients(
    startpoints: Points, endpoints: Points
) -> tuple[float, float, float, float, float, float, float, float]:
    """Compute what ``Image.transform`` is given for a perspective.

    Returns:
        (a, b, c, d, e, f, g, h): pixel (x, y) comes from ((a x + b y + c) / z, (d x + e y + f) / z)
        with z = g x + h y + 1.

    Raises:
        OptionError: the points give no such numbers, as when three of them lie on a line.

    Source: torchvision 0.28, ``_get_perspective_coeffs``: least squares in float64, the result in
    float32.
    """
    rows: list[list[float]] = []
    for (x, y), (to_x, to_y) in zip(endpoints, startpoints, strict=True):
        rows.append([x, y, 1, 0, 0, 0, -to_x * x, -to_x * y])
        rows.append([0, 0, 0, x, y, 1, -to_y * x, -to_y * y])
    if all(isinstance(number, int) for row in rows for number in row):
        matrix = torch.tensor(rows, dtype=torch.float64, device="cpu")
    else:  # torchvision makes a tensor of each row, float32 if any number is a float
        matrix = torch.stack([torch.tensor(row, device="cpu").to(torch.float64) for row in rows])
    aims = torch.tensor(startpoints, dtype=torch.float64, device="cpu").view(8)
    try:
        found = torch.linalg.lstsq(matrix, aims, driver="gels").solution.to(torch.float32)
    except RuntimeError as error:
        raise OptionError(_no_perspective(startpoints, endpoints)) from error
    a, b, c, d, e, f, g, h = found.tolist()
    if not math.isfinite(a + b + c + d + e + f + g + h):
        raise OptionError(_no_perspective(startpoints, endpoints))
    return a, b, c, d, e, f, g, h


def _no_perspective(startpoints: Points, endpoints: Points) -> str:
    return (
        f"startpoints={startpoints!r}, endpoints={endpoints!r}: no perspective moves these; "
        "expected no three points on a line"
    )


def _size(images: torch.Tensor) -> tuple[int, int]:
    return images.shape[-2], images.shape[-1]


def _check(name: str, given: Sequence[float], count: int) -> None:
    """Check that there are so many finite numbers."""
    if not _are_finite(given, count):
        raise OptionError(f"{name}={given!r}: expected {count} finite numbers")


def _check_number(name: str, given: float) -> None:
    if not _are_finite([given], 1):
        raise OptionError(f"{name}={given!r}: expected a finite number")


def _check_center(center: Sequence[float] | None) -> None:
    if center is not None:
        _check("center", center, 2)


def _are_finite(given: Sequence[float], count: int) -> bool:
    """Whether these are so many finite numbers, which may be NumPy's or torch's."""
    try:
        return len(given) == count and all(map(math.isfinite, given))
    except (TypeError, ValueError):  # as of text
        return False


def _warp(
    images: torch.Tensor, name: str, numbers: Sequence[float], interpolation: str, fill: Fill
) -> torch.Tensor:
    if not all(map(math.isfinite, numbers)):
        raise OptionError(f"packio.ops.{name}: {tuple(numbers)}; expected finite coefficients")
    if isinstance(fill, (list, tuple)) and len(fill) not in (1, images.shape[-3]):
        raise OptionError(f"fill={fill!r}: expected a number, or one for each channel")
    how = as_interpolation(interpolation)
    return program.run_one(images, name, *numbers, *colour_of(fill), interpolation=how)
