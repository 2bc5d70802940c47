"""RandAugment as timm has it, by timm's configuration strings.

Source: timm 1.0.31, ``timm.data.auto_augment``: names, magnitudes, and the strings.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence

from packio.errors import OptionError
from packio.ops import program
from packio.ops.transform import Fill, Transform, as_interpolation, colour_of
from packio.ops.warps import rotation_coefficients

_LEVELS = 10.0  # of a magnitude
TRANSLATE_PCT = 0.45  # of a side that the largest move is
_NAMES = (
    "AutoContrast", "Equalize", "Invert", "Rotate", "Posterize", "Solarize", "SolarizeAdd", "Color",
    "Contrast", "Brightness", "Sharpness", "ShearX", "ShearY", "TranslateXRel", "TranslateYRel",
)  # fmt: skip
_INCREASING = ("Posterize", "Solarize", "Color", "Contrast", "Brightness", "Sharpness")
_FACTORS = {"Color": "saturation", "Contrast": "contrast", "Brightness": "brightness",
            "Sharpness": "sharpness"}  # fmt: skip
_PLAIN = {"AutoContrast": "autocontrast", "Equalize": "equalize", "Invert": "invert"}
_PART = re.compile(r"(mstd|mmax|inc|m|n|p)(\d+(?:\.\d+)?)$")


@dataclasses.dataclass(frozen=True)
class TimmRandAugment(Transform):
    """Some random operations, as timm's RandAugment makes them of a configuration string.

    Args:
        config: As "rand-m9-mstd0.5-inc1". m9: strength, of 10. mstd0.5: the strength varies by this
            standard deviation; mstd101 draws it uniformly from 0 to m. mmax9: the largest strength.
            n2: number of operations. p0.5: probability of each. inc1: with a larger m posterize,
            solarize, colour, contrast, brightness and sharpness change more, too.
        fill: Colour outside the image. Gray; timm's ``create_transform`` takes the dataset's mean.
        interpolation: "bilinear", "bicubic" or "nearest"; or "random", one of the first two.

    Raises:
        OptionError: a value is none of these.
    """

    config: str = "rand-m9-mstd0.5-inc1"
    fill: Fill = (128, 128, 128)
    interpolation: str = "random"

    def __post_init__(self) -> None:
        colour_of(self.fill)
        if self.interpolation != "random":
            object.__setattr__(self, "interpolation", as_interpolation(self.interpolation))
        kind, *parts = str(self.config).split("-")
        found = [_PART.match(part) for part in parts]
        if kind != "rand" or not all(found):
            raise OptionError(
                f"TimmRandAugment: {self.config!r}; expected as 'rand-m9-mstd0.5-inc1', of "
                "the parts m, mstd, mmax, n, p, inc"
            )
        read = {match[1]: float(match[2]) for match in found if match}
        values = {"m": _LEVELS, "mstd": 0.0, "mmax": _LEVELS, "n": 2.0, "p": 0.5, "inc": 0.0} | read
        if values["n"] > 10:
            raise OptionError(f"TimmRandAugment: {self.config!r}; expected 10 operations at most")
        object.__setattr__(self, "_values", values)

    @property
    def names(self) -> list[str]:
        """Operations that there are, as timm names them."""
        grows = self._values["inc"]  # type: ignore[attr-defined]  # __post_init__ sets it
        return [n + "Increasing" * bool(grows and n in _INCREASING) for n in _NAMES]

    @property
    def draws(self) -> int:  # type: ignore[override]  # it is computed, and never set
        """Random numbers that an image takes."""
        return 6 * int(self._values["n"])  # type: ignore[attr-defined]  # __post_init__ sets it

    def operations(self, u: Sequence[float], channels: int, height: int, width: int) -> list[bytes]:
        """Plan what is done to one image: see `packio.ops.Transform`."""
        made = []
        p = self._values["p"]  # type: ignore[attr-defined]  # __post_init__ sets it
        for i in range(0, len(u), 6):
            if u[i + 1] <= p:
                name, level = _NAMES[int(u[i] * len(_NAMES))], self._level(*u[i + 2 : i + 4])
                made += self._plan(name, level, u[i + 4], u[i + 5], height, width)
        return made

    def _level(self, a: float, b: float) -> float:
        """Draw a magnitude: normal, or uniform if its standard deviation is above 100."""
        values: dict[str, float] = self._values  # type: ignore[attr-defined]  # as above
        level = values["m"]
        if values["mstd"] > 100:
            level *= a
        elif values["mstd"]:
            normal = math.sqrt(-2 * math.log(1 - a)) * math.cos(2 * math.pi * b)
            level += values["mstd"] * normal
        return max(0.0, min(level, values["mmax"] or _LEVELS))

    def _plan(
        self, name: str, level: float, sign: float, choice: float, height: int, width: int
    ) -> list[bytes]:
        part, turn = level / _LEVELS, -1 if sign > 0.5 else 1
        grows = bool(self._values["inc"]) and name in _INCREASING  # type: ignore[attr-defined]  # as above
        if name in _PLAIN:
            return [program.pack(_PLAIN[name])]
        if name in _FACTORS:
            factor = max(0.1, 1.0 + turn * part * 0.9) if grows else part * 1.8 + 0.1
            return [program.pack(_FACTORS[name], factor)]
        if name == "Posterize":
            return [program.pack("posterize", 4 - int(part * 4) if grows else int(part * 4))]
        if name == "Solarize":
            threshold = min(256, int(part * 256))
            return [program.pack("solarize", 256 - threshold if grows else threshold)]
        if name == "SolarizeAdd":
            return [program.pack("solarize_add", min(128, int(part * 110)), 128)]
        matrix = _matrix(name, turn * part, height, width)
        how = self.interpolation
        if how == "random":
            how = "bilinear" if choice < 0.5 else "bicubic"
        return [program.pack("affine", *matrix, *colour_of(self.fill), interpolation=how)]


def _matrix(name: str, part: float, height: int, width: int) -> Sequence[float]:
    """Coefficients of a move, a shear or a rotation, by a part of the largest one, -1 to 1."""
    if name == "Rotate":
        return rotation_coefficients(height, width, part * 30.0)
    if name == "ShearX":
        return 1, part * 0.3, 0, 0, 1, 0
    if name == "ShearY":
        return 1, 0, 0, part * 0.3, 1, 0
    if name == "TranslateXRel":
        return 1, 0, part * TRANSLATE_PCT * width, 0, 1, 0
    return 1, 0, 0, 0, 1, part * TRANSLATE_PCT * height
