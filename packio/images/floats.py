"""Images as floats: of 0..1, or normalised. A byte has 256 values: a table has their floats."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from packio.errors import OptionError
from packio.images import native
from packio.system import buffers
from packio.system.threads import Threads, each

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LARGEST_STD = 10  # of values in 0..1; those of values in 0..255 are some 60
_PART_BYTES = 1 << 18  # of a batch's images that a thread turns into floats at a time


@dataclasses.dataclass(frozen=True)
class Normalize:
    """Make normalised floats of images: (x / 255 - mean) / std, as torchvision does.

    The values are those of torchvision's ToTensor and Normalize, bit for bit: each operation is
    rounded to float32, and the result to the dataset's ``dtype``. As ``transform=`` of a dataset it
    costs little: the threads that decode make floats of a whole batch. Behind a function of yours
    it runs image by image, and the function gets images of the dataset's ``dtype``.

    Args:
        mean, std: Of each channel, of values in 0..1; a list of one is for all channels.
        scales_by_product: To repeat the bits of torchvision's v2.ToDtype, which multiplies by
            1 / 255: the last bit of a value may differ from that of x / 255.

    Raises:
        OptionError: mean and std are not for values in 0..1, as those for 0..255.
    """

    mean: Sequence[float]
    std: Sequence[float]
    scales_by_product: bool = dataclasses.field(default=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            given = getattr(self, name)
            try:
                values = tuple(map(float, given))
            except (TypeError, ValueError) as error:
                raise OptionError(
                    f"Normalize: {name}={given!r}: expected a list of numbers, as [0.5]"
                ) from error
            object.__setattr__(self, name, values)
        said = f"normalize={(self.mean, self.std)}"
        if len(self.mean) != len(self.std) or not self.mean:
            raise OptionError(f"{said}: expected (mean, std), one a channel")
        if not all(0 < std <= LARGEST_STD and 0 <= mean <= 1
                   for mean, std in zip(self.mean, self.std, strict=True)):  # fmt: skip
            raise OptionError(
                f"{said}: expected means in 0..1 and standard deviations above 0 of values in "
                "0..1, not in 0..255"
            )

    @property
    def only_scales(self) -> bool:
        """Whether values of 0..1 stay as they are."""
        return {*self.mean} == {0.0} and {*self.std} == {1.0}

    def __call__(self, image: Any) -> torch.Tensor:
        """Make floats of images, (…, C, H, W): float32 of integers; floats keep their type."""
        if not isinstance(image, torch.Tensor) or image.ndim < 3 or image.dtype == torch.bool:
            shape = getattr(image, "shape", None)
            what = type(image).__name__ + (f" {tuple(shape)}" if shape is not None else "")
            raise OptionError(f"Normalize: {what}; expected a tensor of numbers, (…, C, H, W)")
        dtype = image.dtype if image.dtype.is_floating_point else torch.float32
        return to_floats(image, dtype, self)


Means = tuple[Sequence[float], Sequence[float]] | Normalize  # (mean, std) of each channel


def as_normalize(given: Any) -> Normalize | None:
    """Take (mean, std), or a `Normalize`, or None."""
    if given is None or isinstance(given, Normalize):
        return given
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise OptionError(
            f"normalize={given!r}: expected (mean, std), as ([0.485, 0.456, 0.406], [0.229, 0.224, "
            "0.225]), or a packio.Normalize"
        )
    return Normalize(*given)


def to_floats(
    images: torch.Tensor, dtype: torch.dtype, normalize: Normalize | None = None,
    out: torch.Tensor | None = None, threads: Threads | None = None,
) -> torch.Tensor:  # fmt: skip
    """Make floats of images, (…, C, H, W): integers are scaled to 0..1, then all are normalised.

    ``out``, of the images' shape and of ``dtype``, is contiguous, or (N, C, H, W) in channels_last.
    """
    channels = images.shape[-3]
    if normalize is not None and len(normalize.mean) not in (1, channels):
        raise OptionError(
            f"{normalize}: {len(normalize.mean)} means for images of {channels} channels"
        )
    by_table = images.dtype == torch.uint8 and images.device.type == "cpu" and dtype in DTYPES
    if not by_table or native.why_not():
        values = compute(images, dtype, normalize)
        return values if out is None else out.copy_(values)
    if out is None:
        out = buffers.new_tensor(tuple(images.shape), dtype)
    planes, (table, constants) = images.contiguous(), _table(dtype, normalize, channels)
    count = images.shape[:-3].numel()
    size, is_last = images.shape[-3:].numel(), not out.is_contiguous()

    def work(parts: Iterable[int]) -> None:
        for begin in parts:
            native.look_up(
                planes.data_ptr() + begin * size, min(step, count - begin), channels, size,
                table.data_ptr(), constants.data_ptr(),
                out.data_ptr() + begin * size * dtype.itemsize, dtype.itemsize,
                is_last=is_last,
            )  # fmt: skip

    step = max(1, _PART_BYTES // max(1, size))
    if size:
        each(work, range(0, count, step), threads)
    return out


@functools.lru_cache(maxsize=64)
def _table(
    dtype: torch.dtype, normalize: Normalize | None, channels: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The float of each byte, (C, 256); mean and standard deviation, (C, 2) float32."""
    values = torch.arange(256, dtype=torch.uint8, device="cpu").repeat(channels, 1)
    floats = compute(values[..., None], dtype, normalize)[..., 0].contiguous()
    both = ((0.0,), (1.0,)) if normalize is None else (normalize.mean, normalize.std)
    constants = torch.tensor(both, dtype=torch.float32, device="cpu").T
    return floats, constants.expand(channels, 2).contiguous()


def compute(images: torch.Tensor, dtype: torch.dtype, normalize: Normalize | None) -> torch.Tensor:
    """As `to_floats`, by arithmetic, on any device."""
    values = images.to(torch.float32)
    if not images.dtype.is_floating_point:
        most = torch.iinfo(images.dtype).max
        is_product = normalize is not None and normalize.scales_by_product
        values = values * (1.0 / most) if is_product else values / most
    if normalize is not None:
        mean, std = (_constants(each, images.device) for each in (normalize.mean, normalize.std))
        values = (values - mean) / std
    return values.to(dtype)


@functools.lru_cache(maxsize=64)
def _constants(values: tuple[float, ...], device: torch.device) -> torch.Tensor:
    """Values of each channel, (C, 1, 1), on the device.

    Copied there once: a copy from memory that is not pinned waits for all work of the stream.
    """
    with torch.inference_mode(False):  # a tensor of that mode is of no use outside
        return torch.tensor(values, dtype=torch.float32, device="cpu").view(-1, 1, 1).to(device)
