"""Affine and perspective transformations of images, with the pixels of Pillow.

Sources: Pillow 13.0.0, ``Image.transform`` and ``Image.rotate``; torchvision 0.28,
``transforms.functional`` (`affine`, `rotate`, `perspective` of PIL images); timm 1.0,
``data/auto_augment.py`` (moves and shears).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import torch

from packio.errors import OptionError
from packio.ops import program
from packio.ops.transform import Fill, as_interpolation, colour_of

Points = Sequence[Sequence[float]]
_EIGHT = struct.Struct("8f")


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
    shears = (shear, 0.0) if isinstance(shear, (int, float)) else tuple(shear)
    shears *= 2 if len(shears) == 1 else 1
    _check("translate", translate, 2)
    _check("shear", shears, 2)
    _check("scale", [scale], 1)
    if not scale > 0:
        raise OptionError(f"scale={scale!r}: expected a number above 0")
    matrix = affine_coefficients(*_size(images), angle, translate, scale, shears, center)
    return _warp(images, "affine", matrix, interpolation, fill)


def rotate(
    images: torch.Tensor, angle: float, interpolation: str = "nearest", fill: Fill = 0,
    center: Sequence[float] | None = None,
) -> torch.Tensor:  # fmt: skip
    """Rotate images counter-clockwise by degrees into the same size, as ``Image.rotate``.

    Arguments, result and errors are those of `affine`.
    """
    program.check_images(images, "packio.ops.rotate")
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
    for name, points in (("startpoints", startpoints), ("endpoints", endpoints)):
        if len(points) != 4:
            raise OptionError(f"{name}: {len(points)} points; expected four")
        for point in points:
            _check(name, point, 2)
    coefficients = perspective_coefficients(startpoints, endpoints)
    return _warp(images, "perspective", coefficients, interpolation, fill)


def translate_x(
    images: torch.Tensor, amount: float, interpolation: str = "bicubic", fill: Fill = 0
) -> torch.Tensor:
    """Move images by pixels to the left, as timm's ``translate_x_abs``; see `affine`."""
    return _move(images, "translate_x", (1.0, 0.0, amount, 0.0, 1.0, 0.0), interpolation, fill)


def translate_y(
    images: torch.Tensor, amount: float, interpolation: str = "bicubic", fill: Fill = 0
) -> torch.Tensor:
    """Move images up by pixels, as timm's ``translate_y_abs``; see `affine`."""
    return _move(images, "translate_y", (1.0, 0.0, 0.0, 0.0, 1.0, amount), interpolation, fill)


def shear_x(
    images: torch.Tensor, amount: float, interpolation: str = "bicubic", fill: Fill = 0
) -> torch.Tensor:
    """Move each row of images to the left by ``amount`` times its y, as timm's; see `affine`."""
    return _move(images, "shear_x", (1.0, amount, 0.0, 0.0, 1.0, 0.0), interpolation, fill)


def shear_y(
    images: torch.Tensor, amount: float, interpolation: str = "bicubic", fill: Fill = 0
) -> torch.Tensor:
    """Move each column of images up by ``amount`` times its x, as timm's; see `affine`."""
    return _move(images, "shear_y", (1.0, 0.0, 0.0, amount, 1.0, 0.0), interpolation, fill)


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
    return _warp_rectangle(startpoints, endpoints) or _solve_perspective(startpoints, endpoints)


def _warp_rectangle(
    startpoints: Points, endpoints: Points
) -> tuple[float, float, float, float, float, float, float, float] | None:
    """Compute coefficients for the corners of an image and integers, ten times as fast.

    The result is exact before it is rounded to float32. LAPACK's solution was off by less than
    3e-13 of four units in 90,000 perspectives. Where 30 times that might give another float32, as
    around 0, the result is None.

    Source: Heckbert, "Fundamentals of Texture Mapping and Image Warping", 1989, section 2.2.3: the
    square to a quadrilateral, and the adjoint for the inverse.
    """
    right, bottom = startpoints[2]
    corners = [(0, 0), (right, 0), (right, bottom), (0, bottom)]
    numbers = [n for point in endpoints for n in point] + [right, bottom]
    side = max(right, bottom)
    is_within = min(right, bottom) > 0 and all(-side <= n <= 2 * side for n in numbers)
    if not (
        is_within
        and all(type(n) is int for n in numbers)
        and [tuple(point) for point in startpoints] == corners
    ):
        return None
    (x0, y0), (x1, y1), (x2, y2), (x3, y3) = endpoints
    u1, u2, u3 = x1 - x2, x3 - x2, x0 - x1 + x2 - x3
    v1, v2, v3 = y1 - y2, y3 - y2, y0 - y1 + y2 - y3
    i, g, h = u1 * v2 - u2 * v1, u3 * v2 - u2 * v3, u1 * v3 - u3 * v1
    a, b, c = (x1 - x0) * i + g * x1, (x3 - x0) * i + h * x3, x0 * i
    d, e, f = (y1 - y0) * i + g * y1, (y3 - y0) * i + h * y3, y0 * i
    z = a * e - b * d
    if not z:
        return None
    made = (
        right * (e * i - f * h) / z, right * (c * h - b * i) / z, right * (b * f - c * e) / z,
        bottom * (f * g - d * i) / z, bottom * (a * i - c * g) / z, bottom * (c * d - a * f) / z,
        (d * h - e * g) / z, (b * g - a * h) / z,
    )  # fmt: skip
    units = (1.0, 1.0, side, 1.0, 1.0, side, 1.0 / side, 1.0 / side)
    if any(abs(number) > 4 * unit for number, unit in zip(made, units, strict=True)):
        return None  # LAPACK's solution may be less exact
    least = _EIGHT.pack(*[n - 4e-11 * unit for n, unit in zip(made, units, strict=True)])
    most = _EIGHT.pack(*[n + 4e-11 * unit for n, unit in zip(made, units, strict=True)])
    return _EIGHT.unpack(least) if least == most else None


def _solve_perspective(
    startpoints: Points, endpoints: Points
) -> tuple[float, float, float, float, float, float, float, float]:
    rows: list[list[float]] = []
    for (x, y), (to_x, to_y) in zip(endpoints, startpoints, strict=True):
        rows.append([x, y, 1, 0, 0, 0, -to_x * x, -to_x * y])
        rows.append([0, 0, 0, x, y, 1, -to_y * x, -to_y * y])
    if all(isinstance(number, int) for row in rows for number in row):
        matrix = torch.tensor(rows, dtype=torch.float64)
    else:  # torchvision makes a tensor of each row, float32 if any number is a float
        matrix = torch.stack([torch.tensor(row).to(torch.float64) for row in rows])
    aims = torch.tensor(startpoints, dtype=torch.float64).view(8)
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


def _check(name: str, numbers: Sequence[float], count: int) -> None:
    """Check that there are so many finite numbers."""
    if len(numbers) != count or not all(math.isfinite(number) for number in numbers):
        raise OptionError(f"{name}={numbers!r}: expected {count} finite numbers")


def _move(
    images: torch.Tensor, name: str, matrix: Sequence[float], interpolation: str, fill: Fill
) -> torch.Tensor:
    program.check_images(images, f"packio.ops.{name}")
    return _warp(images, "affine", matrix, interpolation, fill)


def _warp(
    images: torch.Tensor, name: str, numbers: Sequence[float], interpolation: str, fill: Fill
) -> torch.Tensor:
    if not all(map(math.isfinite, numbers)):
        raise OptionError(f"packio.ops.{name}: {tuple(numbers)}; expected finite coefficients")
    if isinstance(fill, (list, tuple)) and len(fill) not in (1, images.shape[-3]):
        raise OptionError(f"fill={fill!r}: expected a number, or one for each channel")
    how = as_interpolation(interpolation)
    return program.run_one(images, name, *numbers, *colour_of(fill), interpolation=how)
