"""Draw what run.py measured: a panel a work, a bar a candidate, whiskers over all rounds.

python benchmarks/peers/plot.py benchmarks/results/peers.json benchmarks/results/peers.svg
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

PACKIO, PEER, WALL, VIEW = "#d1495b", "#4878a8", "#888888", "#a9c1d9"
mpl.rcParams["svg.hashsalt"] = "packio"  # the same bytes for the same results
mpl.rcParams["svg.fonttype"] = "none"  # text as text: a tenth of the bytes


def colour(row: dict[str, Any]) -> str:
    """By whose it is; paler where batches are not contiguous (N, C, H, W)."""
    own = {"packio": PACKIO, "wall": WALL}.get(row["peer"])
    return own or (PEER if row["contiguous"] else VIEW)


def draw(axes: Any, result: dict[str, Any]) -> None:
    """One work's bars, the fastest on top."""
    rows = sorted(
        result["candidates"].items(), key=lambda item: item[1]["images_per_second"]["median"]
    )
    rates = [row["images_per_second"] for _, row in rows]
    middle = [rate["median"] for rate in rates]
    spread = [
        [rate["median"] - rate["min"] for rate in rates],
        [rate["max"] - rate["median"] for rate in rates],
    ]
    axes.barh(
        [name for name, _ in rows], middle, xerr=spread, capsize=2,
        color=[colour(row) for _, row in rows],
    )  # fmt: skip
    axes.set_title(result["says"], fontsize=10)
    axes.tick_params(labelsize=8)
    axes.set_xlabel(f"images per second, median of {result['rounds']} rounds", fontsize=8)


def main() -> None:
    """Read the JSON file, write the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--works", help="of those measured; default: all")
    given = parser.parse_args()
    measured = json.loads(given.results.read_text())
    names = given.works.split(",") if given.works else list(measured["works"])
    works = [measured["works"][name] for name in names]
    heights = [len(work["candidates"]) + 4 for work in works]
    figure = Figure(figsize=(9, 0.2 * sum(heights) + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(works), 1, squeeze=False, height_ratios=heights)
    for axes, work in zip(panels[:, 0], works, strict=True):
        draw(axes, work)
    machine = measured["machine"]
    figure.suptitle(
        f"{machine['cpu']}, {machine['cores']} cores; pale: not contiguous (N, C, H, W)"
    )
    figure.savefig(given.picture, metadata={"Date": None})


if __name__ == "__main__":
    main()
