"""What transforms of packio have in common: they plan operations from numbers that are drawn."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from packio.errors import OptionError
from packio.images.geometry import as_numbers, check_probability, is_whole
from packio.ops import program

Fill = float | Sequence[float] | None
_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}  # of Pillow's images, by the number of channels


class Transform:
    """A transform of images that packio's core runs, with the pixels of Pillow.

    As ``transform=`` of a dataset, or one of a list of them, it takes its random numbers from the
    dataset's: the same seed gives the same images, in any number of workers, threads and ranks. The
    threads that decode run it on a whole batch. Called by hand, as ``packio.RandAugment()(batch)``,
    or after a function of yours, it draws from torch's generator (`torch.manual_seed`). A class of
    yours that derives from it is called, too, image by image.

    Attributes:
        draws: Random numbers that an image takes.
    """

    draws: int = 0

    def operations(self, u: Sequence[float], channels: int, height: int, width: int) -> list[bytes]:
        """Plan what is done to one image, from its ``draws`` numbers, uniform on [0, 1)."""
        raise NotImplementedError

    def __call__(self, images: Any) -> Any:
        """Transform an image, (C, H, W) uint8, or each of a batch, (N, C, H, W); returns new ones.

        Pillow's image, of mode L or RGB, gives Pillow's image: within a Compose of torchvision's.

        Raises:
            OptionError: the images are of another type or mode, or have not 1 or 3 channels.
            MissingPackageError: the native core was not compiled.
        """
        if hasattr(images, "getbands"):  # Pillow's
            if images.mode not in ("L", "RGB"):
                raise OptionError(
                    f"{type(self).__name__}: Pillow's image of mode {images.mode}; expected L or "
                    "RGB, as image.convert('RGB') makes it"
                )
            planes = [torch.from_numpy(np.array(plane)) for plane in images.split()]
            return to_pillow(self(torch.stack(planes)))
        program.check_images(images, type(self).__name__)
        made = images.clone(memory_format=torch.contiguous_format)
        batch = made if made.ndim == 4 else made[None]
        numbers = torch.rand(len(batch), self.draws, dtype=torch.float64, device="cpu").tolist()
        program.run(batch, [self.operations(u, *batch.shape[1:]) for u in numbers])
        return made


@dataclasses.dataclass(frozen=True)
class RandomApply(Transform):
    """Apply a list of transforms with a probability, as torchvision's RandomApply.

    Args:
        transforms: packio's transforms, but Normalize and RandomErasing.
        p: Probability that all of them are applied.

    Raises:
        OptionError: a transform is another one, or p is no probability.
    """

    transforms: Sequence[Transform]
    p: float = 0.5

    def __post_init__(self) -> None:
        given = list(self.transforms) if isinstance(self.transforms, (list, tuple)) else []
        if not given or not all(map(is_own, given)):
            raise OptionError(
                f"RandomApply: {self.transforms!r}; expected a list of packio's transforms of "
                "uint8 images, as [packio.GaussianBlur()], without Normalize and RandomErasing"
            )
        check_probability("p", self.p)
        object.__setattr__(self, "transforms", tuple(given))

    @property
    def draws(self) -> int:  # type: ignore[override]  # it is computed, and never set
        """Random numbers that an image takes."""
        return 1 + sum(one.draws for one in self.transforms)

    def operations(self, u: Sequence[float], channels: int, height: int, width: int) -> list[bytes]:
        """Plan what is done to one image: see `Transform`."""
        if u[0] >= self.p:
            return []
        return plan(self.transforms, u[1:], channels, height, width)


def to_pillow(image: torch.Tensor) -> Any:
    """Make Pillow's image of a tensor, (C, H, W) uint8, C 1 to 4: L, LA, RGB or RGBA."""
    from PIL import Image

    if len(image) not in _MODES:
        raise OptionError(f"{tuple(image.shape)}: Pillow has no images of {len(image)} channels")
    return Image.merge(_MODES[len(image)], [Image.fromarray(plane) for plane in image.numpy()])


def is_own(transform: Any) -> bool:
    """Whether it is a transform of packio; a class derived from one may do something else."""
    return isinstance(transform, Transform) and type(transform).__module__.startswith("packio.")


def plan(
    transforms: Sequence[Transform], u: Sequence[float], channels: int, height: int, width: int
) -> list[bytes]:
    """Plan what several transforms do to one image, one after the other."""
    operations, at = [], 0
    for one in transforms:
        operations += one.operations(u[at : at + one.draws], channels, height, width)
        at += one.draws
    return operations


def check_center(center: object) -> None:
    """Check that an argument is a place in pixels, or None."""
    if center is not None and as_numbers(center, 2) is None:
        raise OptionError(f"center={center!r}: expected (x, y) in pixels, or None")


def as_interpolation(given: Any) -> str:
    """Take an interpolation by name, as torchvision's enum, or as Pillow's."""
    name = getattr(given, "value", given)
    name = {0: "nearest", 2: "bilinear", 3: "bicubic"}.get(name, name) if is_whole(name) else name
    if not isinstance(name, str) or name not in program.INTERPOLATIONS:
        raise OptionError(
            f"interpolation={given!r}: expected one of {', '.join(program.INTERPOLATIONS)}"
        )
    return name


def colour_of(fill: Fill) -> tuple[float, float, float]:
    """Take the colour of what lies outside: one number, one a channel, or None for black."""
    values: Any = fill if isinstance(fill, (list, tuple)) else [fill or 0]
    if len(values) not in (1, 3) or not all(
        isinstance(value, (int, float)) and 0 <= value <= 255 for value in values
    ):
        raise OptionError(f"fill={fill!r}: expected a number in 0..255, or three")
    three = [int(value) for value in values] * (3 // len(values))
    return three[0], three[1], three[2]
