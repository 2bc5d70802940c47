"""What packio costs beside the work itself: µs a sample of a batch, and of ``ds[i]``.

The same samples are made twice, in turns: by the dataset, and by a bare loop over the steps that no
loader can do without (pread, CRC32C, decode, resize into planes), with the same boxes worked out
before. The difference is the overhead: index lookup, geometry, bookkeeping. It drowns in the noise of the
decoding, so the Python side is timed by itself as well (``*_python_us``), with the steps above made
to do nothing and with the random numbers and boxes of RandomResizedCrop and flips.

    python benchmarks/read.py PACK [--save NAME]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import packio
import simplejpeg
import torch

SIZE = 224


def bare_steps(
    pack: packio.Pack, boxes: list[tuple[int, ...]]
) -> tuple[Callable[[int, torch.Tensor], None], list[int]]:
    """A function that makes one sample into a tensor, and the samples it can do (RGB JPEGs)."""
    index = pack.index_file
    file = os.open(pack.path / "data.mdb", os.O_RDONLY)
    offsets, lengths = (index.column(name).array().tolist() for name in ("offset", "length"))
    resize = torch.ops.aten._upsample_bilinear2d_aa.out

    def make(i: int, out: torch.Tensor) -> None:
        data = os.pread(file, lengths[i], offsets[i])
        google_crc32c.value(data)
        top, left, height, width = boxes[i]
        pixels = simplejpeg.decode_jpeg(data, "RGB")[top : top + height, left : left + width]
        planes = torch.from_numpy(pixels).permute(2, 0, 1).unsqueeze(0)
        resize(planes, [SIZE, SIZE], False, None, None, out=out.unsqueeze(0))

    columns = [index.column(n).array() for n in ("encoding", "channels", "orientation")]
    plain = (columns[0] == 1) & (columns[1] == 3) & (columns[2] == 1)  # noqa: PLR2004 (JPEG, RGB)
    return make, np.flatnonzero(plain).tolist()


def boxes_of(pack: packio.Pack, crop: packio.CenterCrop | packio.Resize) -> list[tuple[int, ...]]:
    """The box that a geometry without random numbers takes of each image."""
    sizes = zip(*(pack.index_file.column(n).array().tolist() for n in ("height", "width")), strict=True)
    return [tuple(crop.frame(h, w, [])[:4]) for h, w in sizes]


def measure(path: str, rounds: int, batch_size: int) -> dict[str, Any]:
    """Overheads in µs a sample, one thread."""
    torch.set_num_threads(1)
    # the same work in both: all of the image, resized; random crops differ by the boxes alone
    fixed = packio.LmdbDataset(path, crop=packio.Resize((SIZE, SIZE)), threads=1)
    make, usable = bare_steps(fixed.pack, boxes_of(fixed.pack, packio.Resize((SIZE, SIZE))))
    order = np.random.default_rng(0).permutation(usable)[: 6 * batch_size].tolist()
    batches = [order[i : i + batch_size] for i in range(0, len(order), batch_size)]

    def bare_batch() -> None:
        for batch in batches:
            out = torch.empty(batch_size, 3, SIZE, SIZE, dtype=torch.uint8)
            for slot, i in enumerate(sorted(batch)):  # file order, as the dataset reads
                make(i, out[slot])

    def bare_single() -> None:
        for i in order:
            make(i, torch.empty(3, SIZE, SIZE, dtype=torch.uint8))

    def batched() -> None:
        for batch in batches:
            packio.collate(fixed.__getitems__(batch))

    def single() -> None:
        for i in order:
            fixed[i]

    runs = {"bare_batch": bare_batch, "batch": batched, "bare_single": bare_single, "single": single}
    seconds = alternate(runs, rounds)
    extra = random_crop_cost(path, rounds)
    per_sample = {name: [1e6 * s / len(order) for s in values] for name, values in seconds.items()}
    result: dict[str, Any] = {}
    for name in ("batch", "single"):
        bare = per_sample[f"bare_{name}"]
        differences = [a - b for a, b in zip(per_sample[name], bare, strict=True)]
        result[f"{name}_bare_us"] = summary(bare)
        result[f"{name}_us"] = summary(per_sample[name])
        result[f"{name}_overhead_us"] = summary(differences)
        result[f"{name}_python_us"] = summary(extra[name])
    return result


def random_crop_cost(path: str, rounds: int) -> dict[str, list[float]]:
    """µs a sample of the whole Python side alone: everything but read, CRC, decode and resize.

    The library's own steps are replaced by ones that do nothing, so that what is left is overhead,
    random numbers and boxes of RandomResizedCrop and flips included.
    """
    from packio import batches, geometry, packs

    ds = packio.LmdbDataset(path, crop=packio.RandomResizedCrop(SIZE), hflip=0.5, threads=1)
    indices = np.random.default_rng(1).integers(0, len(ds), (20, 128)).tolist()
    blank = np.zeros((1, 1, 3), np.uint8)
    saved = batches._decoded, geometry.render, packs.Pack.read
    batches._decoded = lambda *_: blank
    geometry.render = lambda *_, **__: None  # type: ignore[assignment]
    try:

        def batched() -> None:
            for batch in indices:
                packio.collate(ds.__getitems__(batch))

        def single() -> None:
            for i in indices[0] * 4:
                ds[i]

        seconds = alternate({"batch": batched, "single": single}, rounds)
    finally:
        batches._decoded, geometry.render, packs.Pack.read = saved
    return {
        "batch": [1e6 * s / (20 * 128) for s in seconds["batch"]],
        "single": [1e6 * s / (4 * 128) for s in seconds["single"]],
    }


def alternate(candidates: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each candidate in each round, in turns, after one warm-up."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(rounds + 1):
        for name, run in candidates.items():
            began = time.perf_counter()
            run()
            if number:
                seconds[name].append(time.perf_counter() - began)
    return seconds


def summary(values: list[float]) -> dict[str, float]:
    """Median, minimum and maximum, rounded."""
    return {
        "median": round(statistics.median(values), 1),
        "min": round(min(values), 1),
        "max": round(max(values), 1),
    }


def machine() -> dict[str, Any]:
    """What it ran on."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "packio": packio.__version__,
        "torch": torch.__version__,
        "simplejpeg": simplejpeg.__version__,
    }


def main() -> None:
    """Measure and print; with --save into benchmarks/results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("pack")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--save", action="store_true", help="to benchmarks/results/read.json")
    given = parser.parse_args()
    result = {"machine": machine(), "read": measure(given.pack, given.rounds, given.batch_size)}
    text = json.dumps(result, indent=2)
    print(text)
    if given.save:
        Path(__file__).with_name("results").joinpath("read.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
