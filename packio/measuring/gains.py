"""What packing, or packing otherwise, would bring: measured on a few images that are packed."""

from __future__ import annotations

import functools
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
from packio.datasets.folders import FolderDataset
from packio.datasets.pack_dataset import PackDataset
from packio.errors import PackioError
from packio.measuring.bench.rounds import run_in_turns
from packio.packs.rows import Row

_PIXELS, _LEAST = 64_000_000, 8  # of all images that are chosen; but so many images at least
_ROUNDS = 3
_WASTE = 2.0  # times the short side of the crop: from here on, smaller copies would do
_LARGE = 512  # pixels of the short side from which on smaller copies of files are looked at
_COMMON = 256  # pixels of the short side of such copies: crops of 224 pixels are cut from them


class Gain(NamedTuple):
    """Times as many images a second on one core after a change; reading from disk does not count.

    The median over rounds in which both ways were timed, in turns; the lowest and the highest.
    """

    what: str
    command: str
    factor: float
    low: float
    high: float


def choose_images(dataset: PackDataset, count: int) -> np.ndarray:
    """Draw some positions at random, in their order; fewer of large photographs."""
    drawn = np.random.default_rng(0).permutation(len(dataset.pack))[:count]
    return np.sort(drawn[: _count_few(dataset.pack.rows(drawn))])


def _count_few(rows: Sequence[Row]) -> int:
    """Count the first images that have few enough pixels together: photographs take long."""
    pixels = np.cumsum([row.height * row.width for row in rows])
    return max(_LEAST, int(np.searchsorted(pixels, _PIXELS, "right")))


def measure_smaller(dataset: PackDataset, count: int) -> list[Gain]:
    """Measure what smaller images would bring to a dataset with a crop, if they would do."""
    size = dataset.options["crop"].output_size
    chosen = choose_images(dataset, count)
    shorts = [min(row.height, row.width) for row in dataset.pack.rows(chosen)]
    if size is None or statistics.median(shorts) < _WASTE * min(size):
        return []
    short = round(min(size) * 8 / 7)  # as 256 is to 224
    what, options = _resize_to(short)
    command = f"packio pack {shlex.quote(str(dataset.pack.path))} OUT.lmdb{_as_typed(options)}"
    with tempfile.TemporaryDirectory() as folder:
        out, samples = Path(folder, "small.tar"), [dataset.pack[int(i)] for i in chosen]
        try:
            packio.pack(samples, out, on_error="skip", num_workers=1, **options)
        except PackioError:  # none of them can be decoded
            return []
        kept = {n: dataset.options[n] for n in ("crop", "hflip", "fidelity", "decoder")}
        small = PackDataset(out, **kept, fields="image", on_error="skip", threads=1)
        old, new = dataset.with_options(threads=1), list(range(len(small)))
        return [_compare(
            what, command, lambda: old.__getitems__(chosen.tolist()),
            lambda: small.__getitems__(new), len(new) / len(chosen),
        )]  # fmt: skip


def measure_packing(root: str, files: Sequence[str], dataset: Any) -> list[Gain]:
    """Pack some image files of a dataset, and compare how fast they become images."""
    shorts = []
    for file in files:
        with Image.open(file) as image:
            shorts.append(min(image.size))
    ways: list[tuple[str, dict[str, Any]]] = [("a pack instead of files", {})]
    if statistics.median(shorts) >= _LARGE:
        what, options = _resize_to(_COMMON)
        ways.append((f"{what}, packed", options))
    before: tuple[Callable[[Any], Any], Sequence[Any]] = (
        getattr(dataset, "loader", None) or _open_as_rgb,
        files,
    )
    found = []
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "source")
        source.mkdir()
        for number, file in enumerate(dict.fromkeys(files)):
            (source / f"{number:04}{Path(file).suffix}").symlink_to(os.path.abspath(file))
        for number, (what, options) in enumerate(ways):
            out = Path(folder, f"{number}.lmdb")
            packio.pack(source, out, on_error="skip", num_workers=1, **options)
            images = PackDataset(out, fields="image", output="pil")
            after = (images.__getitem__, range(len(images)))
            if isinstance(dataset, FolderDataset) and not options:
                before = after  # the same decoder makes the same images
                continue
            command = f"packio pack {shlex.quote(root)} OUT.lmdb{_as_typed(options)}"
            old, new = functools.partial(_map, *before), functools.partial(_map, *after)
            found.append(_compare(what, command, old, new, len(after[1]) / len(before[1])))
    return found


def _resize_to(short: int) -> tuple[str, dict[str, Any]]:
    options = {"encode": "jpeg", "resize": f"short={short}"}
    return f"images of {short} pixels on the short side", options


def _as_typed(options: dict[str, Any]) -> str:
    return "".join(f" --{name} {value}" for name, value in options.items())


def _open_as_rgb(file: str) -> Any:
    with Image.open(file) as image:
        return image.convert("RGB")


def _map(make: Callable[[Any], Any], sources: Sequence[Any]) -> None:
    for source in sources:
        make(source)


def _compare(
    what: str, command: str, old: Callable[[], Any], new: Callable[[], Any], size: float
) -> Gain:
    """Time two ways in turns; `size`: images that the new way makes, for one of the old."""

    def time_one(work: Callable[[], Any]) -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    olds, news = run_in_turns([old, new], _ROUNDS, time_one)
    ratios = [size * a / max(b, 1e-9) for a, b in zip(olds, news, strict=True)]
    return Gain(what, command, statistics.median(ratios), min(ratios), max(ratios))
