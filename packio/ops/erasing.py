"""Random erasing: a random box of an image, of bytes or floats, gets one value or noise.

Source: Zhong et al., "Random Erasing Data Augmentation", 2017, arXiv:1708.04896; the draws are
those of torchvision 0.28, ``RandomErasing``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch

from packio.errors import OptionError, TransformError
from packio.images.geometry import as_numbers, check_probability, is_number

_TRIES = 10  # boxes that are drawn until one fits into the image


@dataclasses.dataclass(frozen=True)
class RandomErasing:
    """Erase a random box of an image with a probability, as torchvision's RandomErasing.

    Put it last in a dataset's ``transform=``, after `packio.Normalize`: then ``value`` is one of
    normalised images, 0 the mean; and the same seed erases the same boxes.

    Args:
        p: Probability.
        scale: (least, most) share of the image's area that is erased.
        ratio: (least, most) height divided by width.
        value: What the box gets: a number, one number a channel, or "random", normal noise, which
            needs floats.

    Raises:
        OptionError: a value is none of these.
        TransformError: when an image is made, it has not as many channels as ``value``, or it is of
            bytes and shall get noise.
    """

    p: float = 0.5
    scale: Sequence[float] = (0.02, 0.33)
    ratio: Sequence[float] = (0.3, 3.3)
    value: float | Sequence[float] | str = 0
    draws = 2 + 4 * _TRIES

    def __post_init__(self) -> None:
        check_probability("p", self.p)
        scale, ratio = as_numbers(self.scale, 2), as_numbers(self.ratio, 2)
        if scale is None or not 0 <= scale[0] <= scale[1] <= 1:
            raise OptionError(
                f"RandomErasing: scale={self.scale!r}; expected (least, most) in 0..1"
            )
        if ratio is None or not 0 < ratio[0] <= ratio[1] < math.inf:
            raise OptionError(f"RandomErasing: ratio={self.ratio!r}; expected (least, most)")
        values = self.value if isinstance(self.value, (list, tuple)) else [self.value]
        are_numbers = all(map(is_number, values)) and len(values) in (1, 3)
        is_noise = isinstance(self.value, str) and self.value == "random"
        if not is_noise and not are_numbers:
            raise OptionError(
                f"RandomErasing: value={self.value!r}; expected a number, three, or 'random'"
            )

    def erase(self, image: torch.Tensor, u: Sequence[float]) -> None:
        """Erase a box of an image, (C, H, W), in place, by ``draws`` numbers, uniform on [0, 1)."""
        if isinstance(self.value, (list, tuple)) and len(self.value) not in (1, len(image)):
            raise TransformError(
                f"RandomErasing: value={self.value!r} for an image of {len(image)} channels; "
                "expected a number, or one for each channel"
            )
        if self.value == "random" and not image.is_floating_point():
            raise TransformError(
                "RandomErasing: noise is of floats around 0; put packio.Normalize before it"
            )
        if u[0] >= self.p:
            return
        height, width = image.shape[-2:]
        logs = math.log(self.ratio[0]), math.log(self.ratio[1])
        for i in range(2, len(u), 4):
            share = self.scale[0] + (self.scale[1] - self.scale[0]) * u[i]
            ratio = math.exp(logs[0] + (logs[1] - logs[0]) * u[i + 1])
            high = round(math.sqrt(height * width * share * ratio))
            broad = round(math.sqrt(height * width * share / ratio))
            if high < height and broad < width:
                top = int(u[i + 2] * (height - high + 1))
                left = int(u[i + 3] * (width - broad + 1))
                self._fill(image[..., top : top + high, left : left + broad], u[1])
                return

    def _fill(self, box: torch.Tensor, number: float) -> None:
        if self.value == "random":
            generator = torch.Generator().manual_seed(int(number * 2**53))
            box.copy_(
                torch.empty(box.shape, dtype=torch.float32, device="cpu").normal_(
                    generator=generator
                )
            )
            return
        values = torch.tensor(self.value, dtype=torch.float32, device="cpu").reshape(-1, 1, 1)
        box.copy_(values.expand(box.shape[-3:]))

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Erase a box of an image, (C, H, W), or of each of a batch; returns new ones."""
        given: Any = images
        if not isinstance(given, torch.Tensor) or given.ndim not in (3, 4):
            raise OptionError(f"RandomErasing: {type(images).__name__}; expected a tensor")
        made = images.clone()
        for image in made if made.ndim == 4 else [made]:
            self.erase(image, torch.rand(self.draws, dtype=torch.float64, device="cpu").tolist())
        return made
