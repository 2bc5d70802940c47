"""Statistics of a pack's pixels: mean and standard deviation of each channel, for normalising."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from packio.errors import DecodeError, IntegrityError, OptionError
from packio.images.decoders import Decoder
from packio.packs.opening import Pack
from packio.system import processors
from packio.system.pools import ThreadPool

_CHUNK = 16  # images of one task


def measure(pack: Pack, images: int | None, *, seed: int = 0) -> dict[str, Any]:
    """Measure the channels of so many of a pack's images, drawn at random (None: all), as RGB."""
    if not len(pack) or (images is not None and images < 1):
        raise OptionError(f"{images} of {len(pack)} images: expected at least one to look at")
    chosen = np.arange(len(pack))
    if images is not None and images < len(pack):
        chosen = np.sort(np.random.default_rng(seed).choice(len(pack), images, replace=False))
    decoder, total = Decoder(), np.zeros((4, 3), np.int64)
    chunks = [chosen[i : i + _CHUNK] for i in range(0, len(chosen), _CHUNK)]
    with ThreadPool(processors.usable(), "packio-statistics") as pool:
        for sums in pool.map(lambda chunk: _sums(pack, chunk, decoder), chunks):
            total += sums
    values, squares, (pixels, *_), (measured, *_) = total.tolist()
    if not pixels:
        raise OptionError(f"{pack.path}: none of {len(chosen)} images can be decoded as RGB")
    mean = [value / pixels / 255 for value in values]
    second = [square / pixels / 255**2 for square in squares]
    std = [round(math.sqrt(max(s - m * m, 0)), 6) for m, s in zip(mean, second, strict=True)]
    return {"images": measured, "bad": len(chosen) - measured, "seed": seed,
            "mean": [round(m, 6) for m in mean], "std": std}  # fmt: skip


def join_statistics(packs: Sequence[Pack]) -> dict[str, Any] | None:
    """Join the statistics that packs carry; None if one of them has none.

    Each pack counts by the pixels of its images that were measured: exactly if all of them were,
    else by the mean size of its images.
    """
    found = [s for pack in packs if (s := pack.metadata.get("statistics"))]
    if len(found) < len(packs):
        return None
    weights = [_pixels(p) * s["images"] / len(p) for p, s in zip(packs, found, strict=True)]
    means, stds = (np.array([s[name] for s in found]) for name in ("mean", "std"))
    mean = np.average(means, 0, weights)
    second = np.average(stds**2 + means**2, 0, weights)
    return {
        "images": sum(s["images"] for s in found), "bad": sum(s["bad"] for s in found),
        "seed": found[0]["seed"], "mean": np.round(mean, 6).tolist(),
        "std": np.round(np.sqrt(np.maximum(second - mean**2, 0)), 6).tolist(),
    }  # fmt: skip


def _pixels(pack: Pack) -> int:
    sides = (pack.index_file.column(f"image/{n}").chunks() for n in ("height", "width"))
    return sum(int((h.astype(np.int64) * w).sum()) for h, w in zip(*sides, strict=True))


def _sums(pack: Pack, positions: np.ndarray, decoder: Decoder) -> np.ndarray:
    """Sums over some images, (4, 3) int64 RGB: values, squares, pixels, images that decode.

    They are whole numbers, so that the order of the images changes nothing.
    """
    total, levels = np.zeros((4, 3), np.int64), np.arange(256)
    for row in pack.rows(positions):
        try:
            pixels = decoder(pack.read(row), row)
        except (DecodeError, IntegrityError):
            continue
        for channel in range(3):
            counts = np.bincount(pixels[..., channel].ravel(), minlength=256)
            sums = counts @ levels, counts @ levels**2, counts.sum(), 1
            total[:, channel] += np.array(sums)
    return total
