"""How fast `packio.pack` is beside `cp -r`, both until all of it is on the disk.

The two take turns, after one warm-up of each, so that the images are in the page cache and the
disk is in the same mood for both. Each output is removed, and that is synced, before the next turn.
`cp` copies bytes; `packio.pack` reads every header, computes CRC32C and SHA-256, and reads back
what it wrote.

    python benchmarks/pack.py [FOLDER] [--rounds 7] [--work FOLDER] [--save]

FOLDER is an image folder, one folder a class; without it 2,000 photographs are made.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import packio

MADE = 2000  # photographs, where no folder is given


def measure(source: Path, work: Path, rounds: int) -> dict[str, Any]:
    """Seconds and rates of both, and their ratio round by round."""
    copied, packed = work / "copied", work / "packed.lmdb"

    def copy() -> None:
        began = time.perf_counter()
        subprocess.run(["cp", "-r", source, copied], check=True)
        alone.append(time.perf_counter() - began)
        os.sync()

    def pack() -> None:
        packio.pack(source, packed)

    alone: list[float] = []  # cp, before what it wrote is on the disk
    seconds: dict[str, list[float]] = {"copy": [], "pack": []}
    for number in range(rounds + 1):
        turns: list[Callable[[], None]] = [copy, pack] if number % 2 else [pack, copy]
        for run in turns:
            shutil.rmtree(copied, ignore_errors=True)
            shutil.rmtree(packed, ignore_errors=True)
            os.sync()
            began = time.perf_counter()
            run()
            if number:
                seconds[run.__name__].append(time.perf_counter() - began)
    report = packio.pack(source, packed)  # it may have been removed by the last turn
    both = list(zip(seconds["copy"], alone[1:], seconds["pack"], strict=True))
    return {
        "images": report.packed,
        "megabytes": round(report.source_bytes / 1e6, 1),
        "rounds": rounds,
        "cp_seconds": summary(alone[1:]),
        "cp_and_sync_seconds": summary(seconds["copy"]),
        "pack_seconds": summary(seconds["pack"]),
        "pack_images_per_second": round(report.packed / statistics.median(seconds["pack"])),
        "pack_rate_over_cp_and_sync_rate": summary([s / p for s, _, p in both]),
        "pack_rate_over_cp_rate": summary([c / p for _, c, p in both]),
    }


def summary(values: list[float]) -> dict[str, float]:
    """Median, minimum and maximum, rounded."""
    return {
        "median": round(statistics.median(values), 3),
        "min": round(min(values), 3),
        "max": round(max(values), 3),
    }


def machine(work: Path) -> dict[str, Any]:
    """What it ran on."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    inside = [m for m in mounts if os.path.commonpath((m[1], work.resolve())) == m[1]]
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "file_system": max(inside, key=lambda m: len(m[1]))[2] if inside else "unknown",
        "python": platform.python_version(),
        **{name: version(name) for name in ("packio", "numpy", "lmdb", "google-crc32c")},
    }


def make_images(folder: Path) -> Path:
    """An image folder of photographs, made by tools/make_sample_images.py."""
    script = Path(__file__).parents[1] / "tools" / "make_sample_images.py"
    subprocess.run([sys.executable, script, folder / "images", "--n", str(MADE)], check=True)
    return folder / "images"


def main() -> None:
    """Measure and print; with --save into benchmarks/results/pack.json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("source", type=Path, nargs="?", metavar="FOLDER")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--work", type=Path, help="folder to write in; default: the temporary one")
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.work) as name:
        work = Path(name)
        result = measure(given.source or make_images(work), work, given.rounds)
        text = json.dumps({"machine": machine(work), **result}, indent=2)
    print(text)
    if given.save:
        Path(__file__).with_name("results").joinpath("pack.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
