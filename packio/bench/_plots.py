"""Plots of what the benches measured."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from packio import registry

if TYPE_CHECKING:
    from packio.bench.decode import Result, Row


def plot_decoders(result: Result, path: str | os.PathLike[str]) -> None:
    """Draw bars of images per second with the spread over the rounds.

    Args:
        result: From `packio.bench.decode.measure`.
        path: The file; its suffix says which kind, as ``.png`` or ``.svg``.

    Raises:
        MissingPackageError: matplotlib is not installed.
    """
    registry.require("matplotlib", "bench")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = sorted(
        (row for row in result.rows if row.stage == "decode"), key=lambda r: r.images_per_second
    )
    figure = Figure(figsize=(8, 1.5 + 0.35 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    middle = [row.images_per_second for row in rows]
    spread = [
        [row.images_per_second - row.slowest for row in rows],
        [row.fastest - row.images_per_second for row in rows],
    ]
    axes.barh([_label(row) for row in rows], middle, xerr=spread, color="#4878a8", capsize=3)
    axes.set_xlabel(f"images per second (median of {result.rounds} rounds; whiskers: all rounds)")
    axes.set_title(f"{result.images} images, {result.cpu}, {result.cpus} CPUs", fontsize=10)
    figure.savefig(path)


def _label(row: Row) -> str:
    count, noun = (row.workers, "worker") if row.workers else (row.threads, "thread")
    return f"{row.decoder}, {row.encoding}, {count} {noun}{'s' if count > 1 else ''}"
