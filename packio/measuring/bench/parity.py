"""How far pixels are from those of a reference, as Pillow's."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from packio import registry
from packio.errors import DecodeError
from packio.measuring.bench.images import Encoded

_IDENTICAL = 99.0  # decibels, of images without any difference


@dataclasses.dataclass(frozen=True)
class Difference:
    """How far the pixels of a decoder are from Pillow's, over the images that both decode.

    Attributes:
        maximum: Largest difference of a value, in grey levels.
        mean: Mean absolute difference, in grey levels.
        share: Share of the pixels that differ, 0 to 1.
    """

    maximum: int
    mean: float
    share: float


@dataclasses.dataclass(frozen=True)
class Distance:
    """How far crops are from those of a reference.

    Attributes:
        maximum, mean: Largest and mean absolute difference of a value, in grey levels.
        psnr, lowest_psnr: Mean and lowest peak signal-to-noise ratio of the crops, in decibels. A
            crop that is identical counts as 99.
        off: Share of the values that differ by more than 1 grey level, 0 to 1.
    """

    maximum: int
    mean: float
    psnr: float
    lowest_psnr: float
    off: float


class Differences:
    """Sums up differences of images to their references.

    Attributes:
        refused: Images that the decoder refused.
        psnrs: Peak signal-to-noise ratio of each image, in decibels.
    """

    def __init__(self) -> None:
        self.refused = 0
        self.psnrs: list[float] = []
        self._maximum = self._total = self._values = self._off = 0
        self._differing = self._pixels = 0

    def add(self, pixels: np.ndarray, reference: np.ndarray) -> None:
        """Count one image, (H, W, 3) uint8 RGB, and its reference, the same."""
        difference = np.abs(pixels.astype(np.int32) - reference)
        self._maximum = max(self._maximum, int(difference.max()))
        self._total += int(difference.sum())
        self._values += difference.size
        self._off += int((difference > 1).sum())
        self._differing += int(difference.any(axis=2).sum())
        self._pixels += difference.shape[0] * difference.shape[1]
        error = float((difference**2).mean())
        self.psnrs.append(float(10 * np.log10(255**2 / error)) if error else _IDENTICAL)

    def difference(self) -> Difference | None:
        """Sum up per pixel; None if no image was counted."""
        if not self._values:
            return None
        share = self._differing / self._pixels
        return Difference(self._maximum, self._total / self._values, share)

    def distance(self) -> Distance:
        """Sum up per value, with signal-to-noise ratios."""
        mean, off = self._total / self._values, self._off / self._values
        psnr = sum(self.psnrs) / len(self.psnrs)
        return Distance(self._maximum, mean, psnr, min(self.psnrs), off)


def compare(
    images: Sequence[Encoded], names: Sequence[str]
) -> tuple[dict[str, list[Encoded]], dict[tuple[str, str], Differences], int]:
    """Group images by encoding, and compare the pixels of every decoder with Pillow's.

    Returns:
        The images of each encoding; the differences of each encoding and decoder; and the number
        of images left out, because Pillow cannot decode them to RGB.
    """
    pillow = registry.load("decoders", "pillow")
    groups: dict[str, list[Encoded]] = {}
    differences: dict[tuple[str, str], Differences] = {}
    unreadable = 0
    for image in images:
        try:
            expected = pillow.decode(image.data, "RGB")
        except DecodeError:
            unreadable += 1
            continue
        encoding = image.stored.encoding
        groups.setdefault(encoding, []).append(image)
        for name in names:
            found = differences.setdefault((encoding, name), Differences())
            try:
                found.add(registry.load("decoders", name).decode(image.data, "RGB"), expected)
            except DecodeError:
                found.refused += 1
    return groups, differences, unreadable
