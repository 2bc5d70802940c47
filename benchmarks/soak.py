"""Whether the native core stays as it is: many images, by many more threads than there are cores.

JPEGs of many sizes are made into batches again and again, in one way after the other, with crops
and mirrors that are the same each time. A batch must have the same bytes whenever it is made,
memory must stay where it is, and nothing may crash. Memory is that of this process that is no
file's; its slope is that of a straight line through the second half of a way's rounds: in the first
half, threads come upon the largest images and upon all Huffman tables. The exit status is 1 if a
batch differs, or if memory grows by more than 16 bytes an image and 5 % in all.

    python benchmarks/soak.py [--samples 1000000] [--threads 32] [--images FOLDER] [--save]
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

import _results
import numpy as np
import torch

import packio
from packio.images import native

BATCH, MOST = 128, 512
BYTES_AN_IMAGE, SHARE = 16, 0.05
WAYS: dict[str, dict[str, Any]] = {
    "exact": {"crop": packio.RandomResizedCrop(224)},
    "nearest": {"crop": packio.RandomResizedCrop(160, interpolation="nearest")},
    "fast": {"crop": packio.ResizeCenterCrop(96), "fidelity": "fast"},
}


def soak(folder: Path, count: int, threads: int, options: dict[str, Any]) -> dict[str, Any]:
    """Make about so many images in one way. Memory, batches that differed, and the rate."""
    dataset = packio.PackDataset(
        folder, decoder="native", threads=threads, seed=0, hflip=0.5, fields="image", **options
    )
    order = list(range(min(len(dataset), MOST)))
    wanted: dict[int, int] = {}
    points, differing, images, began = [], 0, 0, time.perf_counter()
    while images < count:
        for first in range(0, len(order), BATCH):
            chosen = order[first : first + BATCH]
            found = zlib.crc32(dataset.gather(chosen).numpy())
            differing += wanted.setdefault(first, found) != found
            images += len(chosen)
        points.append((images, _results.memory(os.getpid())["Pss_Anon"]))
        if len(points) % 50 == 0:
            print(f"{images:,} images, {points[-1][1] / 1e6:.1f} MB", file=sys.stderr, flush=True)
    return {
        "images": images,
        "images_per_second": round(images / (time.perf_counter() - began)),
        "differing_batches": differing,
        "declined": sum(dataset.declined.values()),
        "memory": flatness(points),
    }


def flatness(points: list[tuple[int, int]]) -> dict[str, float]:
    """How memory behaved in the second half of the rounds."""
    later = np.array(points[len(points) // 2 :], np.float64)
    slope = np.polyfit(later[:, 0], later[:, 1], 1)[0] if len(later) > 1 else 0.0
    return {
        "first_bytes": int(later[0, 1]),
        "last_bytes": int(later[-1, 1]),
        "most_bytes": int(later[:, 1].max()),
        "bytes_an_image": round(float(slope), 2),
        "growth": round(float(slope * (later[-1, 0] - later[0, 0]) / later[0, 1]), 4),
    }


def stays(found: dict[str, Any]) -> bool:
    """Whether all batches were the same, and memory did not grow."""
    memory = found["memory"]
    grows = memory["bytes_an_image"] > BYTES_AN_IMAGE and memory["growth"] > SHARE
    return not found["differing_batches"] and not grows


def main() -> None:
    """Measure and print; with --save into benchmarks/results/soak.json."""
    parser = _results.parser(__doc__)
    parser.add_argument("--samples", type=int, default=1_000_000, help="Images to make.")
    parser.add_argument("--threads", type=int, default=32)
    parser.add_argument("--images", type=Path, help="Folder of class folders of JPEGs.")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        images = _results.photographs(given.images, folder / "images", MOST)
        packio.pack(images, folder / "pack.lmdb")
        share = given.samples // len(WAYS)
        ways = {
            name: soak(folder / "pack.lmdb", share, given.threads, options)
            for name, options in WAYS.items()
        }
    about = {
        "machine": _results.machine("numpy", "torch"),
        "kernels": native.kernels(),
        "threads": given.threads,
    }
    _results.finish("soak", {**about, "ways": ways}, keep=given.save)
    if not all(map(stays, ways.values())):
        raise SystemExit("the core does not stay as it is")


if __name__ == "__main__":
    main()
