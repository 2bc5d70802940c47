"""Plots of the results of benchmarks, and of a pack. They need matplotlib.

The suffix of the file says the kind: ``.png``, ``.svg``, ``.pdf``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from packio import registry
from packio.errors import CannotCreateError, OptionError
from packio.inspecting import overview
from packio.system import files

if TYPE_CHECKING:
    from packio.measuring.bench import decode, load, memory_format
    from packio.packs.opening import Pack

_BLUE = "#4878a8"
_NAMED_CLASSES = 20  # a bar each in a plot; more classes are one area


def check_plot(path: str | os.PathLike[str], also: Sequence[str] = ()) -> None:
    """Check that a plot can be drawn into this file; call this before minutes of measuring.

    Args:
        path: The file.
        also: Further suffixes that the caller draws, for the message.

    Raises:
        MissingPackageError: matplotlib is not installed.
        OptionError: matplotlib draws no files of this suffix.
        CannotCreateError: the file's folder does not exist.
    """
    kinds = sorted(_figure(1, 1).canvas.get_supported_filetypes())
    suffix = Path(path).suffix.removeprefix(".").lower()
    if suffix and suffix not in kinds:
        known = ", ".join(f".{kind}" for kind in sorted([*kinds, *also]))
        raise OptionError(f"{os.fspath(path)}: cannot draw a .{suffix}; expected one of {known}")
    files.check_folder_of(path)


def _figure(width: float, height: float) -> Any:
    """Make an empty figure; width and height in inches."""
    registry.require("matplotlib", "bench")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Any, path: str | os.PathLike[str]) -> None:
    check_plot(path)
    try:
        figure.savefig(path)
    except OSError as error:
        raise CannotCreateError(f"{os.fspath(path)}: {error.strerror}") from error


def _bars(
    axes: Any, names: Sequence[str], middle: Sequence[float], low: Sequence[float],
    high: Sequence[float],
) -> None:  # fmt: skip
    """Draw bars with whiskers from low to high, one below another."""
    spread = [np.subtract(middle, low), np.subtract(high, middle)]
    axes.barh(range(len(names)), middle, xerr=spread, color=_BLUE, capsize=3)
    axes.set_yticks(range(len(names)), names)


def plot_decoders(result: decode.DecodeResult, path: str | os.PathLike[str]) -> None:
    """Draw the images a second of each decoder, with the spread over the rounds.

    Raises:
        MissingPackageError, OptionError: see `check_plot`.
        CannotCreateError: the file cannot be written.
    """
    decoding = (row for row in result.rows if row.stage == "decode")
    rows = sorted(decoding, key=lambda row: row.images_per_second)
    figure = _figure(8, 1.5 + 0.35 * len(rows))
    axes = figure.add_subplot()
    names = [f"{row.decoder}, {row.encoding}, {row.on}" for row in rows]
    _bars(axes, names, [r.images_per_second for r in rows], [r.slowest for r in rows],
          [r.fastest for r in rows])  # fmt: skip
    axes.set_xlabel(f"images per second (median of {result.rounds} rounds; whiskers: all rounds)")
    axes.set_title(f"{result.images} images, {result.cpu}, {result.cpus} CPUs", fontsize=10)
    _save(figure, path)


def plot_pack(pack: Pack, path: str | os.PathLike[str]) -> None:
    """Draw the samples of each class of a pack, and sizes, aspect ratios and bytes of its images.

    Raises:
        MissingPackageError, OptionError: see `check_plot`.
        CannotCreateError: the file cannot be written.
    """
    figure = _figure(12, 7)
    (classes, sides), (ratios, sizes) = figure.subplots(2, 2)
    shown = overview.shapes(pack)
    for i, name in enumerate(("width", "height")):
        sides.hist(shown[:, i], bins=50, alpha=0.6, label=name)
    sides.set_xlabel("pixels, as Exif turns the images")
    sides.legend()
    _plot_ratios(ratios, shown[:, 0] / shown[:, 1])
    sizes.hist(pack.index_file.column("image/length").array() / 1000, bins=50, color=_BLUE)
    sizes.set_xlabel("kB an image")
    for axes in (sides, ratios, sizes):
        axes.set_ylabel("images")
    labels = pack.labels
    if labels is not None and labels.ndim == 1 and len(labels) and labels.min() >= 0:
        _plot_classes(classes, np.bincount(labels, minlength=len(pack.classes)), pack.classes)
    else:
        classes.set_axis_off()
    name = pack.path.name.replace("$", r"\$")
    figure.suptitle(f"{name}: {len(pack):,} images", fontsize=11)
    _save(figure, path)


def _plot_ratios(axes: Any, ratios: np.ndarray) -> None:
    """Draw how many images have which width : height, on an axis with 1:1 in the middle."""
    far = 1.05 * max(2.0, ratios.max(initial=1), 1 / ratios.min(initial=1))
    axes.hist(ratios, bins=np.geomspace(1 / far, far, 51), color=_BLUE)
    axes.set_xscale("log")
    marks = {at: text for at, text in overview.RATIOS.items() if 1 / far <= at <= far}
    axes.set_xticks(list(marks), list(marks.values()), fontsize=8)
    axes.set_xticks([], minor=True)
    axes.set_xlabel("width : height")


def _plot_classes(axes: Any, counts: np.ndarray, names: list[str]) -> None:
    """Draw a bar with its name for each class; of many classes, one area without names."""
    order = np.argsort(-counts, kind="stable")
    if len(counts) <= _NAMED_CLASSES:
        told = [names[i] if i < len(names) else str(i) for i in order]
        axes.barh(range(len(counts)), counts[order], color=_BLUE)
        axes.set_yticks(range(len(counts)), [name.replace("$", r"\$") for name in told])
        axes.invert_yaxis()
        axes.set_xlabel("images")
        return
    axes.fill_between(np.arange(len(counts)), counts[order], step="mid", color=_BLUE)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("class, the largest first")
    axes.set_ylabel("images")


def plot_load(result: load.LoadResult, path: str | os.PathLike[str]) -> None:
    """Draw the rate of every setting, the decode wall, and the time that one image takes.

    Raises:
        MissingPackageError, OptionError: see `check_plot`.
        CannotCreateError: the file cannot be written.
    """
    settings = result.settings
    figure = _figure(11, 1.8 + 0.35 * len(settings))
    rates, stages = figure.subplots(1, 2)
    _bars(rates, [str(s) for s in settings], [s.images_per_second for s in settings],
          [s.slowest for s in settings], [s.fastest for s in settings])  # fmt: skip
    rates.axvline(result.wall, color="#c44", linestyle="--", label="decode wall")
    rates.set_xlabel("images per second (whiskers: all rounds)")
    rates.legend(loc="lower right", fontsize=8)
    stages.barh(list(result.stages), list(result.stages.values()), color="#888")
    stages.invert_yaxis()
    stages.set_xlabel("µs an image, on one core")
    figure.suptitle(f"{result.path}: {result.fidelity}, {result.cpus} CPUs", fontsize=10)
    _save(figure, path)


def plot_memory_formats(
    result: memory_format.MemoryFormatResult, path: str | os.PathLike[str]
) -> None:
    """Draw the time of each layout as a multiple of that of contiguous images, a panel a stage.

    Raises:
        MissingPackageError, OptionError: see `check_plot`.
        CannotCreateError: the file cannot be written.
    """
    panels = list(dict.fromkeys((r.part, r.stage, r.dtype) for r in result.rows))
    lines = -(-len(panels) // 2)
    figure = _figure(12, 2.4 * lines)
    for number, panel in enumerate(panels):
        rows = [r for r in result.rows if (r.part, r.stage, r.dtype) == panel]
        axes = figure.add_subplot(lines, 2, number + 1)
        names = [f"{r.images}, {r.model} model" if r.model else r.images for r in rows]
        _bars(axes, names, [r.ratio for r in rows], [r.lowest for r in rows],
              [r.highest for r in rows])  # fmt: skip
        axes.axvline(1, color="#c44", linestyle="--")
        axes.invert_yaxis()
        axes.tick_params(labelsize=8)
        axes.set_title(", ".join(panel), fontsize=9)
    title = f"times as long as contiguous (whiskers: all rounds); {result.on}"
    figure.suptitle(title, fontsize=10)
    _save(figure, path)
