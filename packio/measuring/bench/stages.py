"""What one image costs, stage by stage, and the gain of smaller images: by the loop's own code.

One definition: the time in which one thread makes a batch of images in the page cache, and hands it
over, divided by the images. The stages are parts of this time and add up to it.
"""

from __future__ import annotations

import itertools
import shlex
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packio.batches import collating
from packio.datasets.pack_dataset import PackDataset
from packio.errors import OptionError, PackioError
from packio.measuring.bench.rounds import in_turns
from packio.packing.making import pack as pack_samples
from packio.packs.rows import Row

_LOOKED_AT = 64  # images whose stages are timed
_PIXELS, _LEAST = 64_000_000, 8  # of all these images; but so many images at least
_ROUNDS = 3
_LONG = 0.5  # seconds of rounds, if so many are shorter
_WASTE = 2.0  # times the short side of the crop: from here on, smaller copies would do


class Gain(NamedTuple):
    """The gain of a change of the pack, measured on some images.

    Attributes:
        what: The change.
        command: The command that makes the change.
        factor: Times as many images per second on one core; reading from disk does not count. The
            median over rounds in which both were timed, in turns.
        low, high: The lowest and the highest round.
    """

    what: str
    command: str
    factor: float
    low: float
    high: float


def time_stages(dataset: PackDataset, batch_size: int) -> dict[str, float]:
    """Time "read", "decode and crop" and "collate", in microseconds an image."""
    pack, alone = dataset.pack, dataset.with_options(threads=1)
    chosen = _chosen(dataset, _LOOKED_AT)
    count = -(-len(chosen) // batch_size)
    parts = np.resize(chosen, count * batch_size).reshape(count, batch_size)  # whole batches
    rows = [pack.rows(part) for part in parts]
    times, until = list[list[float]](), time.perf_counter() + _LONG
    while len(times) <= _ROUNDS or time.perf_counter() < until:
        began = time.perf_counter()
        for row in itertools.chain.from_iterable(rows):
            pack.read(row)
        read = time.perf_counter()
        batches = [alone.__getitems__(part.tolist()) for part in parts]
        made = time.perf_counter()
        for batch in batches:
            if len(batch):
                collating.collate(batch)
        times.append([read - began, made - read, time.perf_counter() - made])
    if not any(map(len, batches)):
        raise OptionError(f"{pack.path}: none of {len(chosen)} images can be decoded")
    reading, making, collate = (
        1e6 * statistics.median(column) / parts.size for column in zip(*times[1:], strict=True)
    )
    reading = min(reading, making)
    return {"read": reading, "decode and crop": making - reading, "collate": collate}


def gains(dataset: PackDataset, images: int = _LOOKED_AT) -> list[Gain]:
    """Measure what smaller images would bring to a dataset with a crop, if they would do."""
    size = dataset.options["crop"].output_size
    chosen = _chosen(dataset, images)
    shorts = [min(row.height, row.width) for row in dataset.pack.rows(chosen)]
    if size is None or statistics.median(shorts) < _WASTE * min(size):
        return []
    resize = f"short={round(min(size) * 8 / 7)}"  # as 256 is to 224
    command = f"packio pack {shlex.quote(str(dataset.pack.path))} OUT.lmdb --encode jpeg --resize "
    with tempfile.TemporaryDirectory() as folder:
        out, samples = Path(folder, "small.tar"), [dataset.pack[int(i)] for i in chosen]
        try:
            pack_samples(samples, out, encode="jpeg", resize=resize, on_error="skip", num_workers=1)
        except PackioError:  # none of them can be decoded
            return []
        options = {n: dataset.options[n] for n in ("crop", "hflip", "fidelity", "decoder")}
        small = PackDataset(out, **options, fields="image", on_error="skip", threads=1)
        works = (dataset.with_options(threads=1), chosen), (small, np.arange(len(small)))
        olds, news = in_turns(works, _ROUNDS, _seconds_an_image)
    ratios = [old / new for old, new in zip(olds, news, strict=True)]
    what = f"images of {resize.removeprefix('short=')} pixels on the short side"
    return [Gain(what, command + resize, statistics.median(ratios), min(ratios), max(ratios))]


def _seconds_an_image(work: tuple[PackDataset, np.ndarray]) -> float:
    dataset, indices = work
    return _seconds(lambda: dataset.__getitems__(indices.tolist())) / len(indices)


def _seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _chosen(dataset: PackDataset, images: int) -> np.ndarray:
    """Some positions, drawn at random, in their order."""
    drawn = np.random.default_rng(0).permutation(len(dataset.pack))[:images]
    return np.sort(drawn[: _few_enough(dataset.pack.rows(drawn))])


def _few_enough(rows: Sequence[Row]) -> int:
    """Count the first images that have few enough pixels together: photographs take long."""
    pixels = np.cumsum([row.height * row.width for row in rows])
    return max(_LEAST, int(np.searchsorted(pixels, _PIXELS, "right")))
