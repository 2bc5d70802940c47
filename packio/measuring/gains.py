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
from packio.errors import PackioError
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
    size = dataset.options["crop"].output_size
    chosen = choose_images(dataset, count)
    shorts = [min(row.height, row.width) for row in dataset.pack.rows(chosen)]
    if size is None or statistics.median(shorts) < _WASTE * min(size):
        return []
    samples, old = [dataset.pack[int(i)] for i in chosen], dataset.with_options(threads=1)
    kept = {n: dataset.options[n] for n in ("crop", "hflip", "fidelity", "decoder")}
    short = round(min(size) * 8 / 7)  # as 256 is to 224
    try:
        return [_measure(dataset.pack.path, samples, lambda: old.__getitems__(chosen.tolist()),
                         len(chosen), short, on_error="skip", **kept)]  # fmt: skip
    except PackioError:  # none of them can be decoded
        return []


def measure_packing(
    root: str, files: Sequence[str], load: Callable[[str], Any] | None
) -> list[Gain]:
    """Pack some files of a folder, and compare how fast they become images; `load` None: Pillow."""
    shorts = []
    for file in files:
        with Image.open(file) as image:
            shorts.append(min(image.size))
    ways = [None, _COMMON] if statistics.median(shorts) >= _LARGE else [None]
    with tempfile.TemporaryDirectory() as folder:
        for number, file in enumerate(dict.fromkeys(files)):
            Path(folder, f"{number:04}{Path(file).suffix}").symlink_to(os.path.abspath(file))

        def load_all() -> None:
            for file in files:
                if load is not None:
                    load(file)
                else:
                    with Image.open(file) as image:
                        image.convert("RGB")

        return [_measure(root, folder, load_all, len(files), short, output="pil") for short in ways]


def _measure(
    root: str | os.PathLike[str], source: Any, old: Callable[[], Any], images: int,
    short: int | None, **opening: Any,
) -> Gain:  # fmt: skip
    """Pack a source, at so many pixels on the short side; time reading it in turns with `old`.

    `images`: those that `old` makes; the pack lacks what cannot be decoded.
    """
    options: dict[str, Any] = {"encode": "jpeg", "resize": f"short={short}"} if short else {}
    typed = "".join(f" --{name} {value}" for name, value in options.items())
    what = f"images of {short} pixels on the short side" if short else "a pack instead of files"

    def time_one(work: Callable[[], Any]) -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "small.lmdb")
        packio.pack(source, out, on_error="skip", num_workers=1, **options)
        new = PackDataset(out, fields="image", threads=1, **opening)
        positions = list(range(len(new)))
        olds, news = run_in_turns([old, lambda: new.__getitems__(positions)], _ROUNDS, time_one)
    ratios = [len(positions) / images * a / max(b, 1e-9) for a, b in zip(olds, news, strict=True)]
    command = f"packio pack {shlex.quote(os.fspath(root))} OUT.lmdb{typed}"
    return Gain(what, command, statistics.median(ratios), min(ratios), max(ratios))
