"""Packing a million tiny images: memory of all processes, and whether the rate holds to the end.

A folder of as many names for 1,000 small PNGs is packed into shards. Twice a second the
proportional set size of the process and all below it is looked at (a page that n of them share
counts 1/n in each), and the progress. Memory is told where 10, 50 and 100 % of the samples are
packed, and at its peak, listing and publishing included; the rate is that of the first and the last
tenth of the samples.

    python benchmarks/pack_million.py [--images 1000000] [--format tar] [--shards 20] [--workers N]
        [--work FOLDER] [--save]
"""

from __future__ import annotations

import argparse
import bisect
import contextlib
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import _results
import numpy as np
from PIL import Image

import packio
from packio.system.progress import Progress

CLASSES, FILES = 1000, 1000
SECONDS = 0.5  # between two looks at the memory


def make(root: Path, images: int) -> None:
    """A folder of ``images`` names, in classes, for `FILES` different images of 8 x 8 pixels."""
    draw = np.random.default_rng(0)
    originals = root.parent / "originals"
    originals.mkdir()
    for i in range(FILES):
        pixels = draw.integers(0, 256, (8, 8, 3), np.uint8)
        Image.fromarray(pixels).save(originals / f"{i}.png")
    for c in range(CLASSES):
        folder = root / f"class-{c:04d}"
        folder.mkdir(parents=True)
        for i in range(c, images, CLASSES):
            os.link(originals / f"{(i // CLASSES) % FILES}.png", folder / f"{i:07d}.png")


def tree_pss() -> int:
    """Proportional set size of this process and all below it, in bytes."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            parent = path.read_text().rpartition(")")[2].split()[1]
            parents.setdefault(int(parent), []).append(int(path.parent.name))
    waiting, total = [os.getpid()], 0
    while waiting:
        pid = waiting.pop()
        waiting += parents.get(pid, [])
        with contextlib.suppress(OSError):
            total += _results.memory(pid).get("Pss", 0)
    return total


def measure(work: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Pack once; return what was seen."""
    seen: list[tuple[float, int]] = []  # seconds, samples done
    memory: list[tuple[float, int]] = []
    stop = threading.Event()
    before, began = tree_pss(), time.monotonic()

    def watch() -> None:
        while not stop.wait(SECONDS):
            memory.append((time.monotonic() - began, tree_pss()))

    def tell(progress: Progress) -> None:
        if progress.stage != "listing":
            seen.append((time.monotonic() - began, progress.done))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        report = packio.pack(
            work / "source", work / f"out.{given.format}", shards=given.shards,
            num_workers=given.workers,
            progress=tell,
        )  # fmt: skip
        seconds = time.monotonic() - began
        memory.append((seconds, tree_pss()))
    finally:
        stop.set()
        watcher.join()
    count, first, last = report.packed, seen[0][0], seen[-1][0]
    rates = [rate(seen, *span) for span in ((1, count // 10), (count - count // 10, count))]
    return {
        "images": count,
        "format": report.format,
        "shards": given.shards,
        "seconds": round(seconds, 1),
        "listing_seconds": round(first, 1),
        "packing_seconds": round(last - first, 1),
        "publishing_seconds": round(seconds - last, 1),
        "images_per_second": round(count / seconds),
        "packing_images_per_second": round(count / (last - first)),
        "rate_first_tenth": round(rates[0]),
        "rate_last_tenth": round(rates[1]),
        "rate_last_over_first": round(rates[1] / rates[0], 2),
        "pss_mb_before": round(before / 1e6),
        **{
            f"pss_mb_at_{percent}": round(at(memory, reached(seen, count * percent // 100)) / 1e6)
            for percent in (10, 50, 100)
        },
        "pss_mb_peak": round(max(size for _, size in memory) / 1e6),
    }


def reached(seen: list[tuple[float, int]], done: int) -> float:
    """Second at which so many samples were done."""
    return seen[bisect.bisect_left([samples for _, samples in seen], done)][0]


def rate(seen: list[tuple[float, int]], start: int, stop: int) -> float:
    """Samples a second between two numbers of samples done, as nearly as they were seen."""
    inside = [(second, done) for second, done in seen if start <= done <= stop]
    return (inside[-1][1] - inside[0][1]) / max(inside[-1][0] - inside[0][0], 1e-9)


def at(memory: list[tuple[float, int]], second: float) -> int:
    """What was seen last before a time."""
    return memory[max(bisect.bisect_left(memory, (second, 0)) - 1, 0)][1]


def main() -> None:
    """Measure and print; with --save into benchmarks/results/pack_million.json."""
    parser = _results.parser(__doc__)
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument("--format", default="tar")
    parser.add_argument("--shards", type=int, default=20)
    parser.add_argument("--workers", type=int, help="processes; default: one a processor")
    parser.add_argument("--work", type=Path, help="folder to write in; default: the temporary one")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.work) as name:
        make(Path(name) / "source", given.images)
        result = measure(Path(name), given)
    about = _results.machine("numpy", "google-crc32c")
    _results.finish("pack_million", {"machine": about, **result}, keep=given.save)


if __name__ == "__main__":
    main()
