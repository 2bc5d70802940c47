"""Where the native core's time goes: microseconds an image, and nanoseconds a block, by stage.

The core is compiled with clocks at the borders of its stages. One thread makes the same batches in
turns with the plain core, whose whole time is told, and with the one that has clocks. JPEGs have
seek points, and are in the page cache. What is not in the core is Python's.

    python benchmarks/stages.py [--images FOLDER] [--save]
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _results
import torch

import packio
from packio.images import native

SOURCES = Path(native.__file__).parent
BATCH, MOST = 50, 400
WORKS = {
    "RandomResizedCrop(224), hflip": {"crop": packio.RandomResizedCrop(224), "hflip": 0.5},
    "Resize(256), CenterCrop(224)": {"crop": packio.ResizeCenterCrop(224)},
}
# As enum Stage and enum Kind in core.h.
STAGES = ("read", "check", "plan", "copy", "entropy", "IDCT", "colour", "across", "down")
KINDS = ("flat", "few", "half", "any", "decoded")


def compiled(folder: Path) -> Path:
    """The core with clocks."""
    core = folder / "clocks.so"
    flags = ["-shared", "-fPIC", "-O3", "-fvisibility=hidden", "-ffp-contract=off", "-DSTAGES"]
    sources = map(str, sorted(SOURCES.glob("*.c")))
    subprocess.run(
        [os.environ.get("CC", "cc"), *flags, *sources, "-o", str(core), "-lm"], check=True
    )
    return core


def use(core: Path) -> ctypes.CDLL:
    """Let packio take another core from now on."""
    native._PATH = core  # noqa: SLF001 (no user takes another core)
    native._library.cache_clear()  # noqa: SLF001 (another core)
    native._memories.cache_clear()  # noqa: SLF001 (another core)
    library = native._library()  # noqa: SLF001 (another core)
    if isinstance(library, str):
        raise SystemExit(f"{core}: {library}")
    return library


def ticks_a_second(library: ctypes.CDLL, make: Callable[[], object]) -> float:
    """How fast the clocks of the core tick."""
    last = ctypes.c_uint64.in_dll(library, "packio_last")
    moments = []
    for _ in range(2):
        make()
        moments.append((last.value, time.perf_counter()))
        time.sleep(0.5)
    (first, began), (second, ended) = moments
    return (second - first) / (ended - began)


def measure(folder: Path, options: dict[str, Any], rounds: int) -> dict[str, Any]:
    """What each stage takes, and how many blocks there are of each kind."""
    dataset = packio.PackDataset(
        folder / "images.lmdb", decoder="native", threads=1, seed=0, **options
    )
    order = list(range(min(len(dataset), MOST)))
    batches = [order[i : i + BATCH] for i in range(0, len(order), BATCH)]
    plain, clocks = SOURCES / "_core.so", compiled(folder)
    micros: dict[str, list[float]] = {}

    def note(name: str, seconds: float) -> None:
        micros.setdefault(name, []).append(1e6 * seconds / len(order))

    def gathered() -> float:
        began = time.perf_counter()
        for batch in batches:
            dataset.gather(batch)
        return time.perf_counter() - began

    library = use(clocks)
    speed = ticks_a_second(library, lambda: dataset.gather(batches[0]))
    ticks = (ctypes.c_uint64 * len(STAGES)).in_dll(library, "packio_ticks")
    counts = (ctypes.c_uint64 * len(KINDS)).in_dll(library, "packio_blocks")
    for number in range(rounds + 1):
        use(plain)
        dataset.gather(batches[0])
        whole = gathered()
        use(clocks)
        dataset.gather(batches[0])
        for numbers in (ticks, counts):
            ctypes.memset(numbers, 0, ctypes.sizeof(numbers))
        clocked = gathered()
        seconds = [count / speed for count in ticks]
        if not number:
            continue
        note("whole, without clocks", whole)
        note("Python", clocked - sum(seconds))
        for name, value in zip(STAGES, seconds, strict=True):
            note(name, value)
    blocks = {
        name: round(count / len(order)) for name, count in zip(KINDS, counts, strict=True)
    }  # fmt: skip
    return {
        "us": {name: _results.summary(values, 1) for name, values in micros.items()},
        "blocks": blocks,
    }


def main() -> None:
    """Measure and print; with --save into benchmarks/results/stages.json."""
    parser = _results.parser(__doc__, rounds=9)
    parser.add_argument("--images", type=Path, help="Folder of class folders of JPEGs.")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        images = _results.photographs(given.images, folder / "images", MOST)
        packio.pack(images, folder / "images.lmdb")
        works = {work: measure(folder, options, given.rounds) for work, options in WORKS.items()}
    about = {
        "machine": _results.machine("numpy", "torch"),
        "images": os.path.basename(given.images or "made"),
        "rounds": given.rounds,
    }
    _results.finish("stages", {**about, "works": works}, keep=given.save)


if __name__ == "__main__":
    main()
