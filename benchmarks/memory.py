"""Whether memory stays where it is: over epochs, in threads and in DataLoader's workers.

A pack of tiny JPEGs, a million by default, is gone through in an order of `packio.ShuffleSampler`
with RandomResizedCrop and flips, several times:

* in this process, by threads;
* by a DataLoader with four persistent workers.

After each epoch, RSS (what a process has in memory), PSS (pages that are shared counted in parts)
and the part of PSS that is no file's are summed over this process and its workers. The slope is
that of a straight line through the epochs but the first, in which libraries load and the pages of
the index are touched. Of the workers alone, they are also compared between a twentieth of the first
epoch and its end. To be run alone: where another process that had loaded torch ends, the pages of
its libraries that it shared with these count as more PSS here.

    python benchmarks/memory.py [--samples 1000000] [--epochs 4] [--work FOLDER] [--save]
"""

from __future__ import annotations

import io
import multiprocessing
import os
import platform
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import _results
import numpy as np
import torch
from PIL import Image
from torch.utils.data import BatchSampler, DataLoader

import packio

SIDE, DIFFERENT, CLASSES = 24, 64, 100
WORKERS, THREADS, BATCH = 4, 2, 256
EARLY = 0.05  # of the first epoch
MEASURES = {"rss": "Rss", "pss": "Pss", "anonymous": "Pss_Anon"}  # as the kernel calls them


def samples(count: int) -> Iterator[tuple[bytes, int]]:
    """Tiny JPEGs, a few different ones again and again, and labels."""
    random, datas = np.random.default_rng(0), []
    for _ in range(DIFFERENT):
        file = io.BytesIO()
        Image.fromarray(random.integers(0, 256, (SIDE, SIDE, 3), np.uint8)).save(file, "JPEG")
        datas.append(file.getvalue())
    for i in range(count):
        yield datas[i % DIFFERENT], i * CLASSES // count


def pack(path: Path, count: int) -> None:
    """Pack the samples."""
    packio.pack(samples(count), path)


def megabytes(pids: list[int]) -> dict[str, float]:
    """RSS and PSS of processes, summed."""
    each = [_results.memory(pid) for pid in pids]
    return {n: round(sum(e[k] for e in each) / 1e6, 1) for n, k in MEASURES.items()}


def growth(first: dict[str, float], last: dict[str, float]) -> dict[str, float]:
    """Percent."""
    return {n: round(100 * (last[n] / first[n] - 1), 2) for n in MEASURES}


def slopes(epochs: list[dict[str, Any]]) -> dict[str, Any]:
    """Megabytes an epoch, over all but the first; growth in percent over the same."""
    later = epochs[1:]
    lines = {n: np.polyfit(range(len(later)), [e[n] for e in later], 1)[0] for n in MEASURES}
    return {
        "megabytes_an_epoch": {n: round(float(slope), 2) for n, slope in lines.items()},
        "growth_percent": growth(later[0], later[-1]),
    }


def dataset(path: Path) -> packio.PackDataset:
    """The pack, cropped and flipped."""
    crop = packio.RandomResizedCrop(16)
    return packio.PackDataset(path, crop=crop, hflip=0.5, seed=0, threads=THREADS)


def in_threads(path: Path, epochs: int) -> dict[str, Any]:
    """Memory of this process after each epoch."""
    ds, seen = dataset(path), []
    sampler = packio.ShuffleSampler(ds, seed=0)
    out = torch.empty(BATCH, 3, 16, 16, dtype=torch.uint8)
    for _ in range(epochs):
        began = time.perf_counter()
        for batch in BatchSampler(sampler, BATCH, drop_last=True):
            ds.gather(batch, out=out)
        seconds = round(time.perf_counter() - began, 1)
        seen.append({**megabytes([os.getpid()]), "seconds": seconds})
    return {"threads": THREADS, **slopes(seen), "epochs": seen}


def in_workers(path: Path, epochs: int) -> dict[str, Any]:
    """Memory of this process and the workers after each epoch; of the workers within the first."""
    ds = dataset(path)
    loader = DataLoader(
        ds.with_options(threads=1), BATCH, sampler=packio.ShuffleSampler(ds, seed=0),
        num_workers=WORKERS, persistent_workers=True, collate_fn=packio.collate,
    )  # fmt: skip
    seen: list[dict[str, Any]] = []
    early: dict[str, float] = {}
    for epoch in range(epochs):
        began = time.perf_counter()
        for i, _ in enumerate(loader):
            if not epoch and i == int(EARLY * len(loader)):
                early = megabytes(pids(loader))
        seconds = round(time.perf_counter() - began, 1)
        of_workers = megabytes(pids(loader))
        both = megabytes([os.getpid(), *pids(loader)])
        seen.append({**both, "of_workers": of_workers, "seconds": seconds})
    return {
        "workers": WORKERS,
        "of_workers_early": early,
        "of_workers_growth_percent_in_an_epoch": growth(early, seen[0]["of_workers"]),
        **slopes(seen),
        "epochs": seen,
    }


def pids(loader: Any) -> list[int]:
    """Of a DataLoader's workers."""
    return [worker.pid for worker in loader._iterator._workers]  # noqa: SLF001 (nothing else says it)


def main() -> None:
    """Measure and print; with --save into benchmarks/results/memory.json."""
    parser = _results.parser(__doc__)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--epochs", type=int, default=4, help="at least 3")
    parser.add_argument("--work", type=Path, help="folder to write in; default: the temporary one")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.work) as name:
        path = Path(name) / "tiny.rec"
        packing = multiprocessing.get_context("spawn").Process(
            target=pack, args=(path, given.samples)
        )
        packing.start()  # what it needs of memory is not this process's
        packing.join()
        result = {
            "samples": given.samples,
            "pack_megabytes": round(path.stat().st_size / 1e6, 1),
            "index_megabytes": round(Path(f"{path}.packio").stat().st_size / 1e6, 1),
            "workers": in_workers(path, given.epochs),  # before this process has threads
            "threads": in_threads(path, given.epochs),
        }
    machine = _results.machine("torch", kernel=platform.release())
    _results.finish("memory", {"machine": machine, **result}, keep=given.save)


if __name__ == "__main__":
    main()
