"""Whether decoders' pixels are Pillow's."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from packio import registry
from packio.errors import DecodeError
from packio.measuring.bench._images import Encoded

if TYPE_CHECKING:
    import numpy as np


@dataclasses.dataclass(frozen=True)
class Difference:
    """How far a decoder's pixels are from Pillow's, over the images that both decode.

    Attributes:
        maximum: Largest difference of a value, in gray levels.
        mean: Mean absolute difference, in gray levels.
        share: Share of the pixels that differ, 0 to 1.
    """

    maximum: int
    mean: float
    share: float


class Parity:
    """Sums up one decoder's differences to Pillow and its refusals on images of one encoding."""

    def __init__(self) -> None:
        self.refused = self.maximum = self.total = self.values = self.differing = self.pixels = 0

    def add(self, pixels: np.ndarray, expected: np.ndarray) -> None:
        """Count one image, (H, W, 3) uint8 RGB, against Pillow's pixels of it."""
        import numpy as np

        difference = np.abs(pixels.astype(np.int16) - expected)
        self.maximum = max(self.maximum, int(difference.max()))
        self.total += int(difference.sum())
        self.values += difference.size
        self.differing += int(difference.any(axis=2).sum())
        self.pixels += difference.shape[0] * difference.shape[1]

    def difference(self) -> Difference | None:
        """Give the difference so far; None where nothing was decoded."""
        if not self.values:
            return None
        return Difference(self.maximum, self.total / self.values, self.differing / self.pixels)


def compare(
    images: Sequence[Encoded], names: Sequence[str]
) -> tuple[dict[str, list[Encoded]], dict[tuple[str, str], Parity], int]:
    """Group the images by encoding and hold every decoder's pixels against Pillow's.

    Returns:
        The images of each encoding; the sums of each encoding and decoder; the number of images
        that Pillow cannot decode to RGB, which are left out.
    """
    pillow = registry.load("decoders", "pillow")
    groups: dict[str, list[Encoded]] = {}
    parity: dict[tuple[str, str], Parity] = {}
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
            record = parity.setdefault((encoding, name), Parity())
            try:
                record.add(registry.load("decoders", name).decode(image.data, "RGB"), expected)
            except DecodeError:
                record.refused += 1
    return groups, parity, unreadable
