"""Policies of augmentation: RandAugment, TrivialAugmentWide, AutoAugment, as torchvision has them.

Sources: Cubuk et al., "RandAugment", 2019, arXiv:1909.13719; Müller and Hutter, "TrivialAugment",
2021, arXiv:2103.10158; Cubuk et al., "AutoAugment", 2018, arXiv:1805.09501; names, magnitudes and
policies are those of torchvision 0.28, ``torchvision.transforms.autoaugment``.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import torch

from packio.errors import OptionError
from packio.images.geometry import is_whole
from packio.ops import program
from packio.ops.transform import Fill, Transform, as_interpolation, colour_of
from packio.ops.warps import affine_coefficients, rotation_coefficients

# Name → the largest magnitude of RandAugment and AutoAugment, of TrivialAugmentWide; None: it has
# none. Those of moves are shares of the side in the first, pixels in the second.
_MAGNITUDES: dict[str, tuple[float, float] | None] = {
    "Identity": None, "ShearX": (0.3, 0.99), "ShearY": (0.3, 0.99),
    "TranslateX": (150 / 331, 32.0), "TranslateY": (150 / 331, 32.0), "Rotate": (30.0, 135.0),
    "Brightness": (0.9, 0.99), "Color": (0.9, 0.99), "Contrast": (0.9, 0.99),
    "Sharpness": (0.9, 0.99), "Posterize": (4, 6), "Solarize": (0.0, 0.0), "AutoContrast": None,
    "Equalize": None,
}  # fmt: skip
_UNSIGNED = ("Posterize", "Solarize")
_FACTORS = {"Brightness": "brightness", "Color": "saturation", "Contrast": "contrast",
            "Sharpness": "sharpness"}  # fmt: skip
_PLAIN = {"AutoContrast": "autocontrast", "Equalize": "equalize", "Invert": "invert"}

_NAMES = list(_MAGNITUDES)
_LEVELS = 10  # magnitudes of AutoAugment

# Pairs of operations: name, probability, magnitude of ten.
_IMAGENET = """
Posterize 0.4 8, Rotate 0.6 9; Solarize 0.6 5, AutoContrast 0.6; Equalize 0.8, Equalize 0.6;
Posterize 0.6 7, Posterize 0.6 6; Equalize 0.4, Solarize 0.2 4; Equalize 0.4, Rotate 0.8 8;
Solarize 0.6 3, Equalize 0.6; Posterize 0.8 5, Equalize 1.0; Rotate 0.2 3, Solarize 0.6 8;
Equalize 0.6, Posterize 0.4 6; Rotate 0.8 8, Color 0.4 0; Rotate 0.4 9, Equalize 0.6;
Equalize 0.0, Equalize 0.8; Invert 0.6, Equalize 1.0; Color 0.6 4, Contrast 1.0 8;
Rotate 0.8 8, Color 1.0 2; Color 0.8 8, Solarize 0.8 7; Sharpness 0.4 7, Invert 0.6;
ShearX 0.6 5, Equalize 1.0; Color 0.4 0, Equalize 0.6; Equalize 0.4, Solarize 0.2 4;
Solarize 0.6 5, AutoContrast 0.6; Invert 0.6, Equalize 1.0; Color 0.6 4, Contrast 1.0 8;
Equalize 0.8, Equalize 0.6
"""
_CIFAR10 = """
Invert 0.1, Contrast 0.2 6; Rotate 0.7 2, TranslateX 0.3 9; Sharpness 0.8 1, Sharpness 0.9 3;
ShearY 0.5 8, TranslateY 0.7 9; AutoContrast 0.5, Equalize 0.9; ShearY 0.2 7, Posterize 0.3 7;
Color 0.4 3, Brightness 0.6 7; Sharpness 0.3 9, Brightness 0.7 9; Equalize 0.6, Equalize 0.5;
Contrast 0.6 7, Sharpness 0.6 5; Color 0.7 7, TranslateX 0.5 8; Equalize 0.3, AutoContrast 0.4;
TranslateY 0.4 3, Sharpness 0.2 6; Brightness 0.9 6, Color 0.2 8; Solarize 0.5 2, Invert 0.0;
Equalize 0.2, AutoContrast 0.6; Equalize 0.2, Equalize 0.6; Color 0.9 9, Equalize 0.6;
AutoContrast 0.8, Solarize 0.2 8; Brightness 0.1 3, Color 0.7 0; Solarize 0.4 5, AutoContrast 0.9;
TranslateY 0.9 9, TranslateY 0.7 9; AutoContrast 0.9, Solarize 0.8 3; Equalize 0.8, Invert 0.1;
TranslateY 0.7 9, AutoContrast 0.9
"""
_SVHN = """
ShearX 0.9 4, Invert 0.2; ShearY 0.9 8, Invert 0.7; Equalize 0.6, Solarize 0.6 6;
Invert 0.9, Equalize 0.6; Equalize 0.6, Rotate 0.9 3; ShearX 0.9 4, AutoContrast 0.8;
ShearY 0.9 8, Invert 0.4; ShearY 0.9 5, Solarize 0.2 6; Invert 0.9, AutoContrast 0.8;
Equalize 0.6, Rotate 0.9 3; ShearX 0.9 4, Solarize 0.3 3; ShearY 0.8 8, Invert 0.7;
Equalize 0.9, TranslateY 0.6 6; Invert 0.9, Equalize 0.6; Contrast 0.3 3, Rotate 0.8 4;
Invert 0.8, TranslateY 0.0 2; ShearY 0.7 6, Solarize 0.4 8; Invert 0.6, Rotate 0.8 4;
ShearY 0.3 7, TranslateX 0.9 3; ShearX 0.1 6, Invert 0.6; Solarize 0.7 2, TranslateY 0.6 7;
ShearY 0.8 4, Invert 0.8; ShearX 0.7 9, TranslateY 0.8 3; ShearY 0.8 5, AutoContrast 0.7;
ShearX 0.7 2, Invert 0.1
"""
POLICIES = {"imagenet": _IMAGENET, "cifar10": _CIFAR10, "svhn": _SVHN}


@functools.lru_cache(maxsize=8192)
def _operation(
    name: str, magnitude: float, height: int, width: int, interpolation: str,
    fill: tuple[float, float, float],
) -> bytes | None:  # fmt: skip
    """An operation of a policy, by a magnitude with its sign; None: nothing is done."""
    if name == "Identity" or (name == "Posterize" and int(magnitude) >= 8):
        return None
    if name in _FACTORS:
        return program.pack(_FACTORS[name], 1.0 + magnitude)
    if name in _PLAIN:
        return program.pack(_PLAIN[name])
    if name == "Posterize":
        return program.pack("posterize", int(magnitude))
    if name == "Solarize":
        return program.pack("solarize", magnitude)
    if name == "Rotate":
        matrix = rotation_coefficients(height, width, magnitude)
    elif name.startswith("Shear"):
        degrees = math.degrees(math.atan(magnitude))
        shear = (degrees, 0.0) if name == "ShearX" else (0.0, degrees)
        matrix = affine_coefficients(height, width, 0.0, (0, 0), 1.0, shear, (0, 0))
    else:
        move = (int(magnitude), 0) if name == "TranslateX" else (0, int(magnitude))
        matrix = affine_coefficients(height, width, 0.0, move, 1.0, (0.0, 0.0))
    return program.pack("affine", *matrix, *fill, interpolation=interpolation)


@functools.lru_cache(maxsize=1024)
def _magnitudes(name: str, bins: int, is_wide: bool, side: int, is_v2: bool = False) -> list[float]:
    """The magnitude of each bin, as float32 of torch.linspace, without a sign; [0]: it has none."""
    largest = _MAGNITUDES.get(name)
    if largest is None:
        return [0.0]
    if name == "Posterize":
        bits = (
            8 - (torch.arange(bins, device="cpu") / ((bins - 1) / largest[is_wide])).round().int()
        )
        return [float(n) for n in bits.tolist()]
    if name == "Solarize":
        if is_v2:  # torchvision.transforms.v2: 255 times a share
            return [255 * float(x) for x in torch.linspace(1.0, 0.0, bins, device="cpu").tolist()]
        return [float(x) for x in torch.linspace(255.0, 0.0, bins, device="cpu").tolist()]
    end = largest[is_wide] * (side if name.startswith("Translate") and not is_wide else 1)
    return [float(x) for x in torch.linspace(0.0, end, bins, device="cpu").tolist()]


@dataclasses.dataclass(frozen=True)
class _Policy(Transform):
    """What the policies have in common."""

    def _plan(
        self, name: str, bin_: int, bins: int, sign: float, height: int, width: int
    ) -> list[bytes]:
        """Plan one operation; ``sign`` below 0.5 turns a magnitude that has a sign."""
        side = width if name == "TranslateX" else height
        is_wide, is_v2 = isinstance(self, TrivialAugmentWide), self.thresholds_of_v2  # type: ignore[attr-defined]  # all policies have it
        magnitudes = _magnitudes(name, bins, is_wide, side, is_v2)
        magnitude = magnitudes[bin_] if len(magnitudes) > 1 else 0.0
        if sign < 0.5 and name not in _UNSIGNED:
            magnitude = -magnitude
        fill = colour_of(self.fill)  # type: ignore[attr-defined]  # all policies have one
        made = _operation(name, magnitude, height, width, self.interpolation, fill)  # type: ignore[attr-defined]  # the same
        return [] if made is None else [made]


@dataclasses.dataclass(frozen=True)
class RandAugment(_Policy):
    """Some random operations of one magnitude, as torchvision's RandAugment.

    Args:
        num_ops: Operations for an image, one after the other.
        magnitude: Strength of every operation, 0 to ``num_magnitude_bins`` - 1.
        num_magnitude_bins: Number of strengths.
        interpolation: "nearest", "bilinear" or "bicubic", of rotations, shears and translations.
        fill: Colour outside the image: a number, or one a channel; None: black.
        thresholds_of_v2: As torchvision's v2, whose thresholds of Solarize differ by rounding.

    Raises:
        OptionError: a value is none of these.
    """

    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31
    interpolation: str = "nearest"
    fill: Fill = None
    thresholds_of_v2: bool = dataclasses.field(default=False, repr=False)

    def __post_init__(self) -> None:
        _check(self)
        are_whole = is_whole(self.magnitude) and is_whole(self.num_ops)
        is_known = are_whole and self.magnitude in range(self.num_magnitude_bins)
        if not is_known or self.num_ops not in range(33):
            is_timms = isinstance(self.num_ops, str)
            raise OptionError(
                f"{self}: expected a magnitude below the bins, and 0 to 32 operations"
                + "; packio.TimmRandAugment takes strings of timm" * is_timms
            )

    @property
    def draws(self) -> int:  # type: ignore[override]  # it is computed, and never set
        """Random numbers that an image takes."""
        return 2 * self.num_ops

    def operations(self, u: Sequence[float], channels: int, height: int, width: int) -> list[bytes]:
        """Plan what is done to one image: see `packio.ops.Transform`."""
        made = []
        for i in range(0, len(u), 2):
            name = _NAMES[int(u[i] * len(_NAMES))]
            made += self._plan(
                name, self.magnitude, self.num_magnitude_bins, u[i + 1], height, width
            )
        return made


@dataclasses.dataclass(frozen=True)
class TrivialAugmentWide(_Policy):
    """One random operation of a random magnitude, as torchvision's TrivialAugmentWide.

    Args and errors: see `RandAugment`.
    """

    num_magnitude_bins: int = 31
    interpolation: str = "nearest"
    fill: Fill = None
    thresholds_of_v2: bool = dataclasses.field(default=False, repr=False)
    draws = 3

    def __post_init__(self) -> None:
        _check(self)

    def operations(self, u: Sequence[float], channels: int, height: int, width: int) -> list[bytes]:
        """Plan what is done to one image: see `packio.ops.Transform`."""
        name, bins = _NAMES[int(u[0] * len(_NAMES))], self.num_magnitude_bins
        return self._plan(name, int(u[1] * bins), bins, u[2], height, width)


@dataclasses.dataclass(frozen=True)
class AutoAugment(_Policy):
    """A learned policy, as torchvision's AutoAugment: two operations, each with a probability.

    Args:
        policy: "imagenet", "cifar10" or "svhn", or torchvision's AutoAugmentPolicy.
        interpolation, fill: See `RandAugment`.

    Raises:
        OptionError: a value is none of these.
    """

    policy: str = "imagenet"
    interpolation: str = "nearest"
    fill: Fill = None
    thresholds_of_v2: bool = dataclasses.field(default=False, repr=False)
    draws = 5

    def __post_init__(self) -> None:
        object.__setattr__(self, "policy", getattr(self.policy, "value", self.policy))
        policy: Any = self.policy
        if not isinstance(policy, str) or policy not in POLICIES:
            raise OptionError(f"policy={self.policy!r}: expected one of {', '.join(POLICIES)}")
        _check(self)

    def operations(self, u: Sequence[float], channels: int, height: int, width: int) -> list[bytes]:
        """Plan what is done to one image: see `packio.ops.Transform`."""
        pairs, made = _parse(self.policy), []
        for i, (name, p, level) in enumerate(pairs[int(u[0] * len(pairs))]):
            if u[1 + i] <= p:
                made += self._plan(name, level, _LEVELS, u[3 + i], height, width)
        return made


def _check(policy: Any) -> None:
    """Check what policies have in common."""
    object.__setattr__(policy, "interpolation", as_interpolation(policy.interpolation))
    colour_of(policy.fill)
    bins = getattr(policy, "num_magnitude_bins", 2)
    if not is_whole(bins) or bins < 2:
        raise OptionError(f"num_magnitude_bins={bins!r}: expected 2 or more")


@functools.cache  # constant
def _parse(policy: str) -> list[list[tuple[str, float, int]]]:
    """The pairs of operations of a policy: name, probability, level."""
    pairs = []
    for pair in POLICIES[policy].split(";"):
        words = [operation.split() for operation in pair.split(",")]
        pairs.append([(name, float(p), int(level[0]) if level else 0) for name, p, *level in words])
    return pairs
