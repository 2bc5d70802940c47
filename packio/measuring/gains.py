"""What packing, or packing otherwise, would bring: measured on a few images that are packed."""

from __future__ import annotations

import os
import shlex
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

import packio
from packio.datasets.pack_dataset import PackDataset
from packio.measuring.turns import run_in_turns

_PIXELS, _LEAST = 64_000_000, 8  # of all images that are chosen; but so many images at least
_ROUNDS = 3
_WASTE = 2.0  # times the short side of the crop: from here on, smaller copies would do
_LARGE = 512  # pixels of the short side from which on smaller copies of files are looked at
_COMMON = 256  # pixels of the short side of such copies: crops of 224 pixels are cut from them


class Gain(NamedTuple):
    """Times as many images a second on one core after a change: median over rounds, and range."""

    what: str
    command: str
    factor: float
    low: float
    high: float


def choose_images(dataset: PackDataset, count: int) -> np.ndarray:
    """Draw some positions at random, in their order; fewer of large photographs."""
    drawn = np.random.default_rng(0).permutation(len(dataset.pack))[:count]
    pixels = np.cumsum([row.height * row.width for row in dataset.pack.rows(drawn)])
    return np.sort(drawn[: max(_LEAST, int(np.searchsorted(pixels, _PIXELS, "right")))])


def measure_smaller(dataset: PackDataset, count: int) -> list[Gain]:
    """Measure what smaller images would bring to a dataset with a crop, if they would do."""
    size = getattr(dataset.options["crop"], "output_size", None)  # None: no crop, or of buckets
    chosen = choose_images(dataset, count)
    shorts = [min(row.height, row.width) for row in dataset.pack.rows(chosen)]
    if size is None or statistics.median(shorts) < _WASTE * min(size):
        return []
    samples, old = [dataset.pack[int(i)] for i in chosen], dataset.with_options(threads=1)
    kept = {n: dataset.options[n] for n in ("crop", "hflip", "fidelity", "decoder")}
    short = round(min(size) * 8 / 7)  # as 256 is to 224
    return [_measure(dataset.pack.path, samples, lambda: old.__getitems__(chosen.tolist()), short,
                     on_error="skip", **kept)]  # fmt: skip


def measure_packing(root: str, files: Sequence[str], load: Callable[[str], Any]) -> list[Gain]:
    """Measure what smaller images in a pack of a folder would bring to a loader of large ones."""
    if statistics.median(min(load_image(file).size) for file in files) < _LARGE:
        return []
    return [_measure(root, files, lambda: list(map(load, files)), _COMMON, output="pil")]


def load_image(file: str) -> Any:
    """Read a file as torchvision's default loader does."""
    with Image.open(file) as image:
        return image.convert("RGB")


def _measure(
    root: str | os.PathLike[str], samples: Sequence[Any], old: Callable[[], Any], short: int,
    **opening: Any,
) -> Gain:  # fmt: skip
    """Pack samples, at so many pixels on the short side; time reading them in turns with `old`."""

    def time_one(work: Callable[[], Any]) -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "small.lmdb")
        packio.pack(samples, out, on_error="skip", num_workers=1, encode="jpeg",
                    resize=f"short={short}")  # fmt: skip
        new = PackDataset(out, fields="image", threads=1, **opening)
        positions = list(range(len(new)))
        olds, news = run_in_turns([old, lambda: new.__getitems__(positions)], _ROUNDS, time_one)
    share = len(new) / len(samples)  # the pack lacks what cannot be decoded
    ratios = [share * a / max(b, 1e-9) for a, b in zip(olds, news, strict=True)]
    command = f"packio pack {shlex.quote(os.fspath(root))} OUT.lmdb --encode jpeg --resize "
    return Gain(f"images of {short} pixels on the short side", f"{command}short={short}",
                statistics.median(ratios), min(ratios), max(ratios))  # fmt: skip
