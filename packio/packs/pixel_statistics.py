"""Statistics of a pack's pixels: mean and standard deviation of each channel, for normalising."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from packio.errors import DecodeError, IntegrityError, OptionError
from packio.images.decoders import Decoder
from packio.packs.opening import Pack
from packio.system import processors
from packio.system.pools import ThreadPool

SAMPLE = 1000  # images that give the mean to about 0.005
_CHUNK = 16  # images of one task


class _Sums(NamedTuple):
    """Sums over the pixels of some images: whole numbers, so their order changes nothing."""

    images: int = 0
    pixels: int = 0
    values: tuple[int, int, int] = (0, 0, 0)
    squares: tuple[int, int, int] = (0, 0, 0)
    bad: int = 0

    def plus(self, other: _Sums) -> _Sums:
        return _Sums(
            self.images + other.images,
            self.pixels + other.pixels,
            _added(self.values, other.values),
            _added(self.squares, other.squares),
            self.bad + other.bad,
        )


def _added(a: tuple[int, int, int], b: tuple[int, int, int]) -> tuple[int, int, int]:
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


def measure(
    pack: Pack,
    images: int | None = SAMPLE,
    *,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Measure the channels of a pack's images, decoded as RGB.

    Args:
        pack: The pack.
        images: Number of images to measure, drawn at random; None: all.
        seed: Seed of the draw.
        progress: Callback that receives the number of images done, and the number to do.

    Returns:
        ``images`` (number measured), ``bad`` (number that could not be decoded), ``seed``, and
        ``mean`` and ``std`` of R, G and B over all pixels, of values from 0 to 1, to 6 digits.
    """
    if not len(pack) or (images is not None and images < 1):
        raise OptionError(f"{images} of {len(pack)} images: expected at least one to look at")
    chosen = np.arange(len(pack))
    if images is not None and images < len(pack):
        chosen = np.sort(np.random.default_rng(seed).choice(len(pack), images, replace=False))
    decoder, total, done = Decoder(), _Sums(), 0
    chunks = [chosen[i : i + _CHUNK] for i in range(0, len(chosen), _CHUNK)]
    with ThreadPool(processors.usable(), "packio-statistics") as pool:
        for chunk, sums in zip(
            chunks, pool.map(lambda c: _of(pack, c, decoder), chunks), strict=True
        ):
            total, done = total.plus(sums), done + len(chunk)
            if progress is not None:
                progress(done, len(chosen))
    if not total.pixels:
        raise OptionError(f"{pack.path}: none of {len(chosen)} images can be decoded as RGB")
    mean = [value / total.pixels / 255 for value in total.values]
    second = [square / total.pixels / 255**2 for square in total.squares]
    return {
        "images": total.images,
        "bad": total.bad,
        "seed": seed,
        "mean": [round(m, 6) for m in mean],
        "std": [round(math.sqrt(max(s - m * m, 0)), 6) for m, s in zip(mean, second, strict=True)],
    }


def joined(packs: Sequence[Pack]) -> dict[str, Any] | None:
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
        "images": sum(s["images"] for s in found),
        "bad": sum(s["bad"] for s in found),
        "seed": found[0]["seed"],
        "mean": np.round(mean, 6).tolist(),
        "std": np.round(np.sqrt(np.maximum(second - mean**2, 0)), 6).tolist(),
    }


def _pixels(pack: Pack) -> int:
    sides = (pack.index_file.column(f"image/{n}").chunks() for n in ("height", "width"))
    return sum(int((h.astype(np.int64) * w).sum()) for h, w in zip(*sides, strict=True))


def _of(pack: Pack, positions: np.ndarray, decoder: Decoder) -> _Sums:
    sums = _Sums()
    for row in pack.rows(positions):
        try:
            pixels = decoder(pack.read(row), row)
        except (DecodeError, IntegrityError):
            sums = sums._replace(bad=sums.bad + 1)
            continue
        counts = [np.bincount(pixels[..., c].ravel(), minlength=256) for c in range(3)]
        levels = np.arange(256)
        red, green, blue = ((int(n @ levels), int(n @ levels**2)) for n in counts)
        sums = sums.plus(
            _Sums(
                1, pixels.shape[0] * pixels.shape[1],
                (red[0], green[0], blue[0]), (red[1], green[1], blue[1]),
            )
        )  # fmt: skip
    return sums
