"""What replaying costs: a step deep in a long epoch, and a page of crops.

* step: milliseconds of `packio.replay` for the 256 samples of one step, at a random place of an
  epoch of 10^6 and of 10^9 samples, from a checkpoint on the disk: reading the state, making the
  sampler, computing the batch; of one rank of 1, of one rank of 1,024, and with a `MixedSampler`.
* randperm: the same for the order of torch's RandomSampler, which has to be made anew up to the
  step: `torch.randperm` of the epoch. 10^9 samples would take 8 GB, so it is measured at 10^6 only.
* page: seconds and bytes of the contact sheet of 10 steps of 256 photographs of 500 x 375,
  RandomResizedCrop(224), thumbnails of 128 pixels; and of the keys, crops and flips alone.

Candidates take turns, after one warm-up.

    python benchmarks/replay.py [--rounds 15] [--work FOLDER] [--save]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _results
import numpy as np
import torch
from torch.utils.data import Dataset

import packio

TOOL = Path(__file__).parent.parent / "tools" / "make_sample_images.py"
BATCH, STEPS, PHOTOS, RANKS = 256, 10, 2560, 1024
SIZES = (10**6, 10**9)


class Long(Dataset[int]):
    """A dataset that has a length."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.datasets = (range(count // 2), range(count - count // 2))  # for MixedSampler

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return int(index)


def timed(call: Callable[[], Any]) -> float:
    """Milliseconds of a call, by the clock."""
    began = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - began)


def steps(folder: Path, rounds: int) -> dict[str, Any]:
    """Milliseconds of one step, of each candidate and size."""
    calls: dict[str, Callable[[int], Any]] = {}
    for count in SIZES:
        data = Long(count)
        mixed = packio.MixedSampler(data, [2, 1], 1)
        for name, loader in {
            "one rank": packio.Loader(data, BATCH, shuffle=True, order_seed=1),
            "mixed": packio.Loader(data, BATCH, sampler=mixed),
        }.items():
            path = folder / f"{name}-{count}.pt"
            torch.save({"loader": loader.state_dict()}, path)
            calls[f"{name}, 10^{len(str(count)) - 1}"] = _replaying(data, path, count, {})
            if name == "one rank" and count > RANKS * BATCH:
                many = {"world_size": RANKS, "rank": RANKS // 2, "batch_size": BATCH}
                calls[f"one of 1,024 ranks, 10^{len(str(count)) - 1}"] = _replaying(
                    data, path, count, many
                )
    calls["torch.randperm, 10^6"] = lambda round_: torch.randperm(
        SIZES[0], generator=torch.Generator().manual_seed(round_)
    )[: BATCH * 2]
    found: dict[str, list[float]] = {name: [] for name in calls}
    for round_ in range(rounds + 1):
        for name, call in calls.items():
            found[name].append(timed(lambda call=call, round_=round_: call(round_)))  # type: ignore[misc]  # bound now
    return {name: _results.summary(values[1:], 2) for name, values in found.items()}


def _replaying(data: Any, path: Path, count: int, options: Any) -> Callable[[int], Any]:
    total = count // (BATCH * options.get("world_size", 1))

    def call(round_: int) -> Any:
        step = int(np.random.default_rng(round_).integers(total // 2, total))
        return packio.replay(data, step, state=path, seed=0, epoch=3, **options)

    return call


def page(folder: Path, rounds: int) -> dict[str, Any]:
    """The page of some steps, and what it shows alone."""
    photos, pack = folder / "photos", folder / "photos.lmdb"
    command = [sys.executable, str(TOOL), str(photos), "--n", str(PHOTOS), "--size", "500"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    packio.pack(photos, pack)
    crop = packio.RandomResizedCrop(224)
    data = packio.PackDataset(pack, crop=crop, hflip=0.5, seed=1)
    loader = packio.Loader(data, BATCH, shuffle=True)
    torch.save(loader.state_dict(), folder / "state.pt")
    seconds: dict[str, list[float]] = {"keys, crops, flips": [], "page": [], "batches": []}
    size = 0
    for _ in range(rounds + 1):
        began = time.perf_counter()
        replay = packio.replay(pack, (0, STEPS - 1), state=folder / "state.pt")
        seconds["keys, crops, flips"].append(time.perf_counter() - began)
        began = time.perf_counter()
        size = replay.write_page(folder / "page.html")
        seconds["page"].append(time.perf_counter() - began)
        began = time.perf_counter()
        for step in range(STEPS):
            replay.load(step)
        seconds["batches"].append(time.perf_counter() - began)
    return {
        "samples": STEPS * BATCH,
        "seconds": {name: _results.summary(each[1:], 3) for name, each in seconds.items()},
        "page_to_batches": _results.summary(
            _results.ratios(seconds["page"][1:], seconds["batches"][1:]), 2
        ),
        "page_mb": round(size / 1e6, 2),
    }


def main() -> None:
    """Measure and print; with --save into benchmarks/results/replay.json and replay.svg."""
    made = _results.parser(__doc__, rounds=15)
    made.add_argument("--work", type=Path, help="folder for the pack and the page")
    given = made.parse_args()
    with tempfile.TemporaryDirectory(dir=given.work) as folder:
        result = {
            "machine": _results.machine("numpy", "torch", "pillow"),
            "rounds": given.rounds,
            "step_ms": steps(Path(folder), given.rounds),
            "page": page(Path(folder), max(3, given.rounds // 3)),
        }
    _results.finish("replay", result, keep=given.save)
    if given.save:
        _results.bars(
            _results.FOLDER / "replay.svg",
            {name: (v["min"], v["median"], v["max"]) for name, v in result["step_ms"].items()},
            f"milliseconds for one step of 256, median of {result['rounds']} rounds",
            result["machine"], others="torch",
        )  # fmt: skip


if __name__ == "__main__":
    main()
