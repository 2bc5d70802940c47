"""Charts of pages: numbers become percents, so that text keeps its size at any width.

``charts.html`` draws them: its ``bars`` a list of `Bar`, its ``histogram`` a `Histogram`.
``charts.css`` is their style.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

_BARS = 40  # of a histogram, about
_FAR = 20  # a histogram has a logarithmic axis if its largest value is so many times the smallest,
_LONG = 5  # or so many times the median
_TICKS = 5


class Bar(NamedTuple):
    """A bar: what it is of, its length in percent of the chart, its value in words, its class."""

    name: str
    length: float
    text: str
    colour: str = "plain"


class Histogram(NamedTuple):
    """How many of something have which values."""

    title: str
    label: str  # of the axis of values
    summary: str  # the values in words
    bars: list[Bar]  # one beside the other, all equally wide
    ticks: list[str]  # values at equal distances, from the left end to the right


def make_histogram(
    title: str,
    label: str,
    values: np.ndarray,
    say: Callable[[float], str],
    *,
    are_ratios: bool = False,
) -> Histogram:
    """Count values: whole numbers from 0 on, or ratios around 1; a function gives their texts."""
    low, middle, high = (float(v) for v in (values.min(), np.median(values), values.max()))
    if are_ratios:  # 1:2 and 2:1 are as far from 1:1
        most = 2.0
        while most < max(high, 1 / low):
            most *= most
        edges = np.geomspace(1 / most, most, _BARS)
        ticks = np.geomspace(1 / most, most, _TICKS).tolist()
    elif high > _FAR * low or high > _LONG * middle:
        label += ", a logarithmic axis"
        edges = np.unique(np.ceil(np.geomspace(max(low, 1), high + 1, _BARS + 1) - 1e-6))
        spaced = np.geomspace(edges[0], edges[-1], _TICKS).tolist()
        ticks = [round(value, min(0, 2 - len(f"{value:.0f}"))) for value in spaced]
    else:
        edges = _round_edges(low, high)
        ticks = np.linspace(edges[0], edges[-1], _TICKS).tolist()
    counts, _ = np.histogram(values, edges)
    bars = []
    pairs = itertools.pairwise(edges.tolist())
    for (first, end), count in zip(pairs, counts.tolist(), strict=True):
        last = end if are_ratios else end - 1  # whole numbers end before an edge
        said = say(first) if last <= first else f"{say(first)} to {say(last)}"
        bars.append(Bar(said, round(100 * count / int(counts.max()), 3), f"{count:,}"))
    summary = f"{say(low)} to {say(high)}, median {say(middle)}"
    summary = summary if low < high else f"all {say(low)}"
    return Histogram(title, label, summary, bars, [say(tick) for tick in ticks])


def _round_edges(low: float, high: float) -> np.ndarray:
    """Edges at multiples of 1, 2 or 5 times a power of ten, and a multiple of four bars."""
    rough = max(1.0, (high - low) / _BARS)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first = step * math.floor(low / step)
    bars = math.floor((high - first) / step) + 1
    return first + step * np.arange(4 * max(2, -(-bars // 4)) + 1)
