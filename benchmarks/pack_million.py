"""Packing a million tiny images: memory of all processes, and whether the rate holds to the end.

    python benchmarks/pack_million.py --images 1000000 --format tar

Makes a folder of as many names for 1,000 small PNGs, packs it into shards, and looks twice a second
at the proportional set size of the process and its children, and at the progress. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import shutil
import sys
import tempfile
import threading
import time

import numpy as np
from PIL import Image

import packio

CLASSES, FILES = 1000, 1000


def make(root: pathlib.Path, images: int) -> None:
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
    waiting, total = [os.getpid()], 0
    while waiting:
        pid = waiting.pop()
        try:
            for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
            for task in os.listdir(f"/proc/{pid}/task"):
                children = pathlib.Path(f"/proc/{pid}/task/{task}/children").read_text()
                waiting += map(int, children.split())
        except OSError:  # it has just ended
            continue
    return total


def main() -> None:
    """Measure, and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument("--format", default="tar")
    parser.add_argument("--shards", type=int, default=20)
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--folder", default=None, help="where to work [default: a temporary one]")
    arguments = parser.parse_args()
    work = pathlib.Path(tempfile.mkdtemp(dir=arguments.folder))
    try:
        make(work / "source", arguments.images)
        print(json.dumps(measure(work, arguments), indent=1))
    finally:
        shutil.rmtree(work)


def measure(work: pathlib.Path, arguments: argparse.Namespace) -> dict[str, object]:
    """Pack once; return what was seen."""
    seen: list[tuple[float, int]] = []  # seconds, samples done
    memory: list[tuple[float, int]] = []
    stop = threading.Event()
    began = time.monotonic()

    def watch() -> None:
        while not stop.wait(0.5):
            memory.append((time.monotonic() - began, tree_pss()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    before = tree_pss()
    try:
        report = packio.pack(
            work / "source", work / f"out.{arguments.format}", shards=arguments.shards,
            num_workers=arguments.workers,
            progress=lambda p: seen.append((time.monotonic() - began, p.done)),
        )  # fmt: skip
    finally:
        stop.set()
        watcher.join()
    first = next(t for t, done in seen if done)
    last = seen[-1][0]
    writing = [m for t, m in memory if first <= t <= last]
    fifth = (last - first) / 5
    return {
        "images": report.packed,
        "format": report.format,
        "seconds": round(report.seconds, 1),
        "listing_seconds": round(first, 1),
        "publishing_seconds": round(report.seconds - last, 1),
        "images_per_second": round(report.packed / report.seconds),
        "rate_first_fifth": round(_rate(seen, first, first + fifth)),
        "rate_last_fifth": round(_rate(seen, last - fifth, last)),
        "pss_mb_before": round(before / 1e6),
        "pss_mb_peak": round(max(m for _, m in memory) / 1e6),
        "pss_mb_writing_first_last": [round(m / 1e6) for m in (writing[0], writing[-1])],
        "machine": f"{os.cpu_count()} CPUs, Python {platform.python_version()}, {sys.platform}",
    }


def _rate(seen: list[tuple[float, int]], start: float, stop: float) -> float:
    inside = [(t, done) for t, done in seen if start <= t <= stop]
    return (inside[-1][1] - inside[0][1]) / max(inside[-1][0] - inside[0][0], 1e-9)


if __name__ == "__main__":
    main()
