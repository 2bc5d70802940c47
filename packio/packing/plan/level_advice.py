"""What levels cost and bring, measured on some images: bytes, crops a second, and decibels."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from packio.images import native, regions
from packio.images.decoders import Decoder
from packio.images.frames import Placement
from packio.images.geometry import RandomResizedCrop
from packio.images.regions import Need
from packio.packing.images.levels import Levels
from packio.sample import levels
from packio.sample.record import Field, Record

_CROPS = 3  # of each image
_ROUNDS = 3  # in which all of them are made; the fastest round counts
_SAME = 99.0  # decibels, of crops without any difference


class LevelsAdvice(NamedTuple):
    """What levels cost and bring, estimated from some images.

    Attributes:
        options: Options of the levels.
        images: Number of images looked at that get a level.
        bytes: Bytes of the levels of all images.
        share: The same as a share of the bytes of the images.
        crops_per_second: Random resized crops that one core makes with fidelity="fast".
        without: The same without levels.
        psnr, lowest_psnr: Of these crops to exact ones, mean and lowest, in decibels.
    """

    options: dict[str, Any]
    images: int
    bytes: int
    share: float
    crops_per_second: float
    without: float
    psnr: float
    lowest_psnr: float


class _Crop(NamedTuple):
    """A crop, and the JPEG or image that it is made of."""

    field: Field
    need: Need
    points: bytes = b""

    def made(self, decoder: Decoder) -> np.ndarray:
        """Make it: (3, H, W) uint8."""
        _, data, facts, _ = self.field
        assert facts is not None  # noqa: S101 (it was read to be packed)
        return regions.make(decoder, data, facts, [self.need], [None], self.points)[0]


def advice(records: Sequence[Record[Field]], asked: Levels, images: int) -> LevelsAdvice | None:
    """Measure levels on some images.

    Returns:
        None if there are no images of 8 bits.
    """
    usable = [r for r in records if r.facts.dtype == "uint8" and r.facts.channels in (1, 3)]
    if not usable:
        return None
    kinds = [dict.fromkeys(r.fields, "image") for r in usable]
    sizes = [
        sum(len(r.fields[name].data) for name in levels.among(kind).values())
        for r, kind in zip(usable, kinds, strict=True)
    ]
    whole = sum(len(r.image.data) for r in usable)
    crops = [crop for number, r in enumerate(usable) for crop in _crops(r, asked.crop, number)]
    decoder = Decoder()
    psnrs = [_psnr(fast.made(decoder), exact.made(decoder)) for exact, _, fast in crops]
    return LevelsAdvice(
        asked.as_options(), sum(map(bool, sizes)), round(statistics.fmean(sizes) * images),
        sum(sizes) / whole, _rate(decoder, [fast for _, _, fast in crops]),
        _rate(decoder, [plain for _, plain, _ in crops]), statistics.fmean(psnrs), min(psnrs),
    )  # fmt: skip


def _crops(record: Record[Field], size: int, seed: int) -> list[tuple[_Crop, _Crop, _Crop]]:
    """Crops of an image: exact, fast without levels, and fast with levels."""
    facts, geometry = record.facts, RandomResizedCrop(size)
    there = levels.among(dict.fromkeys(record.fields, "image"))
    points = native.seek_points(record.image.data) if facts.encoding == "jpeg" else b""
    found = []
    for numbers in np.random.default_rng(seed).random((_CROPS, geometry.draws)).tolist():
        placement = Placement(geometry.frame(facts.height, facts.width, numbers))
        exact, fast = (
            regions.needed(placement, facts.height, facts.width, geometry.interpolation, fast=fast)
            for fast in (False, True)
        )  # fmt: skip
        plain = _Crop(record.image, fast, points)
        divisor = regions.smallest(fast, list(there))
        level = plain
        if divisor is not None:
            level = _Crop(record.fields[there[divisor]], fast._replace(level=divisor))
        found.append((plain._replace(need=exact), plain, level))
    return found


def _rate(decoder: Decoder, crops: Sequence[_Crop]) -> float:
    """Crops that one core makes in a second."""
    best = 0.0
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        for crop in crops:
            crop.made(decoder)
        best = max(best, len(crops) / max(time.perf_counter() - began, 1e-9))
    return best


def _psnr(one: np.ndarray, other: np.ndarray) -> float:
    error = float(np.mean((one.astype(np.float64) - other) ** 2))
    return 10 * float(np.log10(255**2 / error)) if error else _SAME
