"""Several crops of one read, as SimCLR's, DINO's: how they are decoded, and what that takes.

The native core decodes crops of one image together (the box that holds all) or each by itself.
packio chooses for each image. Here its choice ("chosen") takes turns with "together" and "apart"
for all images, and with datasets of one crop each ("one by one"), which read each image anew. The
first three make the same pixels, or the benchmark fails. One thread, packs in the page cache,
milliseconds of a processor for a sample. "regret" is how much longer the choice takes than the
better of the two, chosen for all images at once.

Photographs of 0.2 megapixels and of 12, which are made of smaller ones, side by side; "levels" is a
pack with two levels. ``--quick`` takes fewer images.

    python benchmarks/views.py [--rounds 7] [--quick] [--save]
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import _results
import levels
import torch

import packio
from packio.images import native, regions

DINO = [
    *[packio.RandomResizedCrop(224, scale=(0.4, 1))] * 2,
    *[packio.RandomResizedCrop(96, scale=(0.05, 0.4))] * 8,
]
VIEWS = {
    "SimCLR: 2 x 224": [packio.RandomResizedCrop(224)] * 2,
    "DINO: 2 x 224, 8 x 96": DINO,
    "4 x 96": [packio.RandomResizedCrop(96, scale=(0.05, 0.2))] * 4,
}
POLICIES = ("chosen", "together", "apart")


@contextlib.contextmanager
def policy(name: str) -> Iterator[None]:
    """Let the core decode by a policy, for all images."""
    before = regions.is_less_at_once
    if name != "chosen":
        regions.is_less_at_once = lambda _: name == "together"
    try:
        yield
    finally:
        regions.is_less_at_once = before


def measured(path: Path, views: list[Any], fidelity: str, rounds: int) -> dict[str, Any]:
    """One pack and one set of crops: milliseconds a sample, and ratios."""
    joint = levels.opened(path, views=views, fidelity=fidelity)
    alone = [levels.opened(path, views=[view], fidelity=fidelity) for view in views]
    times: dict[str, list[float]] = {name: [] for name in (*POLICIES, "one by one")}
    order, seen = list(range(len(joint))), list[torch.Tensor]()
    for number in range(rounds + 1):
        for ds in (joint, *alone):
            ds.set_epoch(number)
        for name in POLICIES:
            with policy(name):
                if not number:
                    check(joint.gather(order), seen, name)
                seconds = levels.timed(lambda: joint.gather(order))
            times[name].append(1e3 * seconds / len(order))
        seconds = sum(levels.timed(lambda ds=ds: ds.gather(order)) for ds in alone)
        times["one by one"].append(1e3 * seconds / len(order))
    kept = {name: millis[1:] for name, millis in times.items()}
    better = min(sum(kept["together"]), sum(kept["apart"]))
    return {
        **{name: _results.summary(millis, 2) for name, millis in kept.items()},
        "times_as_fast": _results.summary(
            _results.ratios(kept["one by one"], kept["chosen"]), 2
        ),
        "regret": round(sum(kept["chosen"]) / better - 1, 3),
    }  # fmt: skip


def check(views: Any, seen: list[torch.Tensor], name: str) -> None:
    """Compare the pixels of a policy with those of the policy before.

    Raises:
        SystemExit: they differ.
    """
    if not seen:
        seen += [view.clone() for view in views]
    if not all(torch.equal(a, b) for a, b in zip(views, seen, strict=True)):
        raise SystemExit(f"{name}: other pixels")


def plot(found: dict[str, Any], path: Path) -> None:
    """Draw milliseconds of each policy, a group of bars for each case."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "packio"
    figure = Figure((9, 0.55 * len(found) + 1.2), layout="constrained")
    axes = figure.subplots()
    names = ("chosen", "together", "apart", "one by one")
    for place, (name, colour) in enumerate(
        zip(names, ("#36c", "#8ac", "#bbb", "#d1495b"), strict=True)
    ):
        middle = [case[name]["median"] / case["chosen"]["median"] for case in found.values()]
        ys = [number + 0.2 * (place - 1.5) for number in range(len(found))]
        axes.barh(ys, middle, 0.19, label=name, color=colour)
    axes.set_yticks(range(len(found)), list(found), fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("time of a sample, as many times as the choice's")
    axes.legend()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measure and print; with --save into benchmarks/results/views.json and views.svg."""
    parser = _results.parser(__doc__, rounds=7)
    parser.add_argument("--quick", action="store_true", help="fewer images")
    given = parser.parse_args()
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        small = levels.write(folder / "small", 12 if given.quick else 48, (500, 400))
        large = levels.write(folder / "large", 2 if given.quick else 8, levels.LARGE)
        packs = {
            "0.2 MP": packio.pack(small, folder / "small.tar").out,
            "12 MP": packio.pack(large, folder / "large.tar").out,
            "12 MP, levels": packio.pack(large, folder / "levels.tar", levels=2).out,
        }
        found = {}
        for pack, path in packs.items():
            for views, crops in VIEWS.items():
                for fidelity in ("exact", "fast") if pack != "12 MP, levels" else ("fast",):
                    case = f"{pack}, {fidelity}, {views}"
                    found[case] = measured(path, crops, fidelity, given.rounds)
                    print(case, found[case], file=sys.stderr, flush=True)
    about = {
        "machine": _results.machine("numpy", "torch", load=round(load, 1)),
        "rounds": given.rounds, "kernels": native.kernels(),
    }  # fmt: skip
    _results.finish("views", {**about, "cases": found}, keep=given.save)
    if given.save:
        plot(found, _results.FOLDER / "views.svg")


if __name__ == "__main__":
    main()
