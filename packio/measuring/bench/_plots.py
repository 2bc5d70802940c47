"""Plots of what the benches measured."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from packio import registry

if TYPE_CHECKING:
    from packio.measuring.bench import load, memory_format
    from packio.measuring.bench.decode import Result, Row
    from packio.packs.packs import Pack


def plot_decoders(result: Result, path: str | os.PathLike[str]) -> None:
    """Draw bars of images per second with the spread over the rounds.

    Args:
        result: From `packio.measuring.bench.decode.measure`.
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


def plot_pack(pack: Pack, path: str | os.PathLike[str]) -> None:
    """Draw the sizes of a pack's images and how many samples its classes have.

    Args:
        pack: The pack.
        path: The file; its suffix says which kind, as ``.png`` or ``.svg``.

    Raises:
        MissingPackageError: matplotlib is not installed.
    """
    registry.require("matplotlib", "bench")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    sides, sizes, classes = figure.subplots(1, 3)
    for name in ("width", "height"):
        values = pack.index_file.column(name).array()
        sides.hist(values, bins=50, alpha=0.6, label=name)
    sides.set_xlabel("pixels, as stored")
    sides.set_ylabel("images")
    sides.legend()
    lengths = pack.index_file.column("length").array() / 1000
    sizes.hist(lengths, bins=50, color="#4878a8")
    sizes.set_xlabel("kB an image")
    classes.set_ylabel("images")
    classes.set_xlabel("class, the largest first")
    labels = pack.labels
    if labels is not None and labels.ndim == 1 and len(labels) and labels.min() >= 0:
        counts = np.sort(np.bincount(labels, minlength=len(pack.classes)))[::-1]
        classes.fill_between(np.arange(len(counts)), counts, step="mid", color="#4878a8")
        classes.set_ylim(bottom=0)
    figure.suptitle(f"{pack.path.name}: {len(pack):,} images", fontsize=11)
    figure.savefig(path)


def plot_load(result: load.Result, path: str | os.PathLike[str]) -> None:
    """Draw the rate of every setting, the decode wall, and what one image takes.

    Args:
        result: From `packio.measuring.bench.load.measure`.
        path: The file; its suffix says which kind, as ``.png`` or ``.svg``.

    Raises:
        MissingPackageError: matplotlib is not installed.
    """
    registry.require("matplotlib", "bench")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 1.8 + 0.35 * len(result.settings)), layout="constrained")
    FigureCanvasAgg(figure)
    rates, stages = figure.subplots(1, 2)
    for number, setting in enumerate(result.settings):
        rate = setting.images_per_second
        spread = [[rate - setting.slowest], [setting.fastest - rate]]
        rates.barh(number, rate, xerr=spread, color="#4878a8", capsize=3)
    names = [f"{s.workers} workers" if s.workers else f"{s.threads} threads"
             for s in result.settings]  # fmt: skip
    rates.set_yticks(range(len(names)), names)
    rates.axvline(result.wall, color="#c44", linestyle="--", label="decode wall")
    rates.set_xlabel("images per second (whiskers: all rounds)")
    rates.legend(loc="lower right", fontsize=8)
    stages.barh(list(result.stages), list(result.stages.values()), color="#888")
    stages.invert_yaxis()
    stages.set_xlabel("µs an image, on one core")
    figure.suptitle(f"{result.path}: {result.fidelity}, {result.cpus} CPUs", fontsize=10)
    figure.savefig(path)


def plot_memory_formats(result: memory_format.Result, path: str | os.PathLike[str]) -> None:
    """Draw how many times as long as contiguous images each layout takes, a panel a stage.

    Args:
        result: From `packio.measuring.bench.memory_format.measure`.
        path: The file; its suffix says which kind, as ``.png`` or ``.svg``.

    Raises:
        MissingPackageError: matplotlib is not installed.
    """
    registry.require("matplotlib", "bench")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = list(dict.fromkeys((r.part, r.stage, r.dtype) for r in result.rows))
    figure = Figure(figsize=(12, 2.4 * -(-len(panels) // 2)), layout="constrained")
    FigureCanvasAgg(figure)
    for number, panel in enumerate(panels):
        rows = [r for r in result.rows if (r.part, r.stage, r.dtype) == panel]
        axes = figure.add_subplot(-(-len(panels) // 2), 2, number + 1)
        names = [f"{r.images}, {r.model} model" if r.model else r.images for r in rows]
        spread = [[r.ratio - r.lowest for r in rows], [r.highest - r.ratio for r in rows]]
        axes.barh(names, [r.ratio for r in rows], xerr=spread, color="#4878a8", capsize=3)
        axes.axvline(1, color="#c44", linestyle="--")
        axes.invert_yaxis()
        axes.tick_params(labelsize=8)
        axes.set_title(", ".join(panel), fontsize=9)
    machine = result.machine
    on = machine["cpu"] if machine["device"] == "cpu" else machine["device"]
    figure.suptitle(f"times as long as contiguous (whiskers: all rounds); {on}", fontsize=10)
    figure.savefig(path)
