"""What is done to the images of a batch: operations, which the native core runs through."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

import torch

from packio.errors import OptionError, TransformError
from packio.images import native
from packio.system.threads import Threads, each

OPERATORS = {  # as Operator in core.h
    "brightness": 1, "contrast": 2, "saturation": 3, "hue": 4, "grayscale": 5, "invert": 6,
    "posterize": 7, "solarize": 8, "solarize_add": 9, "equalize": 10, "autocontrast": 11,
    "sharpness": 12, "hflip": 13, "vflip": 14, "affine": 32, "perspective": 33,
    "gaussian_blur": 49, "kernel_blur": 50,
}  # fmt: skip
INTERPOLATIONS = {"nearest": 3, "bilinear": 0, "bicubic": 1}  # as Method in core.h
_PACKED = [struct.Struct(f"@2i{count}d{8 * (12 - count)}x") for count in range(13)]
_LONGEST = 1 << 15  # pixels; as in kernels/operate.h
_NOTHING = bytes(_PACKED[0].size)


def pack(name: str, *values: float, interpolation: str = "nearest") -> bytes:
    """Pack an operation: see Operation in ``core.h``."""
    return _PACKED[len(values)].pack(OPERATORS[name], INTERPOLATIONS[interpolation], *values)


def run(
    images: torch.Tensor, programs: Sequence[Sequence[bytes]], threads: Threads | None = None
) -> None:
    """Change images, (N, C, H, W) uint8, contiguous, in place: each by operations of its own."""
    longest = max(map(len, programs), default=0)
    if not longest or not images.numel():
        return
    if max(images.shape[-2:]) > _LONGEST:
        size = f"{images.shape[-1]}x{images.shape[-2]} pixels"
        raise TransformError(f"{size}; operations take {_LONGEST:,} along a side at most")
    padded = [b"".join(program) + _NOTHING * (longest - len(program)) for program in programs]
    place, shape = images.data_ptr(), tuple(images.shape)
    operations = native.Operations(place, shape, b"".join(padded), longest)

    def work(turns: Iterable[int]) -> None:
        try:
            for _ in turns:
                operations.apply()
        except ValueError:
            numbers = {struct.unpack_from("@i", one)[0] for each in programs for one in each}
            names = ", ".join(name for name, number in OPERATORS.items() if number in numbers)
            raise TransformError(
                f"a value that has no meaning, too large or no number, for one of {names}"
            ) from None

    each(work, range(operations.turns), threads)


def check_images(images: torch.Tensor, what: str) -> None:
    """Check that images are (C, H, W) or (N, C, H, W) uint8 on the processor, C 1 or 3.

    Raises:
        OptionError: they are not.
        MissingPackageError: the native core was not compiled.
    """
    native.require(what)
    if not isinstance(images, torch.Tensor):
        raise OptionError(f"{what}: {type(images).__name__}; expected a tensor of uint8")
    said = f"{what}: {tuple(images.shape)} {images.dtype} on {images.device}"
    is_image = images.ndim in (3, 4) and images.shape[-3] in (1, 3)
    if images.dtype != torch.uint8 or images.device.type != "cpu" or not is_image:
        has_alpha = images.ndim in (3, 4) and images.shape[-3] in (2, 4)
        raise OptionError(
            f"{said}; expected (C, H, W) or (N, C, H, W) uint8 on the processor, C 1 or 3"
            + "; a dataset with mode='RGB' decodes without alpha" * has_alpha
        )


def run_one(
    images: torch.Tensor, name: str, *values: float, interpolation: str = "nearest"
) -> torch.Tensor:
    """Apply one operation to an image or a batch; returns a new tensor. Raises: `check_images`."""
    check_images(images, f"packio.ops.{name}")
    if interpolation not in INTERPOLATIONS:
        raise OptionError(
            f"interpolation={interpolation!r}: expected one of {', '.join(INTERPOLATIONS)}"
        )
    made = images.clone(memory_format=torch.contiguous_format)
    batch = made if made.ndim == 4 else made[None]
    run(batch, [[pack(name, *values, interpolation=interpolation)]] * len(batch))
    return made
