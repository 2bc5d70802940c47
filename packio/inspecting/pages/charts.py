"""Charts of pages: numbers become positions in percent, so that text keeps its size at any width.

``charts.html`` draws them; ``charts.css`` is their style.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

_BARS = 40  # of a histogram, at most
_FAR = 20  # a histogram has a logarithmic axis if its largest value is so many times the smallest,
_LONG = 5  # or so many times the median
_LEAST = 10  # whole numbers on an axis, at least
_TICKS = 5  # on an axis, at most: so many fit on a phone
_NEAR = 11  # percent of an axis: no two ratios are named that are nearer
_ROOM = 1.08  # of a histogram above its highest bar


class Tick(NamedTuple):
    """A place on an axis, in percent of its length, and what stands there."""

    at: float
    text: str


class Bar(NamedTuple):
    """A bar of a histogram, in percent of its width and height, and what it says."""

    left: float
    width: float
    height: float
    text: str


class Row(NamedTuple):
    """A line of a list of bars: its name, the length of its bar in percent, and its value."""

    name: str
    length: float
    text: str
    colour: str = "plain"


@dataclasses.dataclass(frozen=True)
class Scale:
    """An axis from one number to a larger one."""

    low: float
    high: float
    is_logarithmic: bool = False

    def at(self, value: float) -> float:
        """Where a number is, in percent of the axis's length."""
        low, high = self.low, self.high
        if self.is_logarithmic:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return round(100 * (value - low) / (high - low), 3)

    def ticks(
        self, say: Callable[[float], str], most: int = _TICKS, *, are_whole: bool = True
    ) -> list[Tick]:
        """Round numbers on the axis, and what a function says of each.

        Args:
            say: Gives the text of a number.
            most: Ticks, roughly.
            are_whole: Leave out numbers that are no whole ones.
        """
        values = _decades(self.low, self.high, most) if self.is_logarithmic else []
        if len(values) < 2:
            values = _steps(self.low, self.high, most, 1.0 if are_whole else 0.0)
        return [Tick(self.at(value), say(value)) for value in values]


@dataclasses.dataclass(frozen=True)
class Histogram:
    """How many images have which value.

    Attributes:
        title: What the values are.
        label: Of the axis of values.
        summary: The values in words.
        bars: From left to right.
        across: Ticks of values.
        up: Ticks of the number of images.
    """

    title: str
    label: str
    summary: str
    bars: list[Bar]
    across: list[Tick]
    up: list[Tick]


def histogram(
    title: str,
    label: str,
    values: np.ndarray,
    say: Callable[[float], str],
    marks: Sequence[float] = (),
) -> Histogram:
    """Count values.

    Args:
        title: What the values are.
        label: Of the axis of values.
        values: At least one; whole numbers above 0, or ratios around 1.
        say: Gives the text of a value.
        marks: Of ratios: values that an axis may name, the best first.
    """
    edges, is_far = _edges_of_ratios(values) if marks else _edges(values)
    counts, _ = np.histogram(values, edges)
    scale = Scale(float(edges[0]), float(edges[-1]), is_far)
    tall = Scale(0, _ROOM * int(counts.max()))
    bars = []
    for i in np.flatnonzero(counts).tolist():
        low, high, count = float(edges[i]), float(edges[i + 1]), int(counts[i])
        left, last = scale.at(low), high if marks else high - 1  # whole numbers end before an edge
        said = say(low) if last <= low else f"{say(low)} to {say(last)}"
        width = round(scale.at(high) - left, 3)
        bars.append(Bar(left, width, tall.at(count), f"{said}: {count:,}"))
    least, middle, most = (say(float(v)) for v in (values.min(), np.median(values), values.max()))
    said = f"all {least}" if least == most else f"{least} to {most}, median {middle}"
    across = _apart(scale, say, marks) if marks else scale.ticks(say)
    label += ", a logarithmic axis" if is_far and not marks else ""
    return Histogram(title, label, said, bars, across, tall.ticks(brief, 3))


def brief(count: float) -> str:
    """Say a number in few characters: 9,500, 20k, 1.5M.

    >>> brief(9500), brief(20_000), brief(1_500_000)
    ('9,500', '20k', '1.5M')
    """
    if count < 10_000:
        return f"{count:,.10g}"
    return f"{count / 1e3:g}k" if count < 1e6 else f"{count / 1e6:,g}M"


def _edges(values: np.ndarray) -> tuple[np.ndarray, bool]:
    """Whole numbers between the bars of whole numbers; whether the axis is logarithmic."""
    low, high = int(values.min()), int(values.max())
    if high > _FAR * low or high > _LONG * float(np.median(values)):
        between = np.geomspace(low, high + 1, _BARS + 1)
        return np.unique(np.ceil(between - 1e-6)), True
    if high - low < _LEAST:
        low, high = max(low - _LEAST // 2, 0), high + _LEAST // 2
    step = -(-(high - low + 1) // _BARS)
    return low + step * np.arange(-(-(high - low + 1) // step) + 1), False


def _edges_of_ratios(values: np.ndarray) -> tuple[np.ndarray, bool]:
    """Edges on a logarithmic axis, on which 1:2 and 2:1 are as far from 1:1."""
    low, high = min(float(values.min()), 1 / 1.5), max(float(values.max()), 1.5)
    return np.geomspace(low / 1.02, high * 1.02, _BARS + 1), True


def _steps(low: float, high: float, most: int, least: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten within an axis."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    step = max(step, least)
    numbers = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    return [number * step for number in numbers]


def _decades(low: float, high: float, most: int) -> list[float]:
    """Powers of ten, and 2 and 5 or 3 times such, within a logarithmic axis."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found: list[float] = []
    for factors in ((1, 2, 5), (1, 3), (1,)):
        found = [f * 10.0**p for p in powers for f in factors if low <= f * 10.0**p <= high]
        if len(found) <= most:
            break
    return found[:: -(-len(found) // most) or 1]


def _apart(scale: Scale, say: Callable[[float], str], marks: Sequence[float]) -> list[Tick]:
    """Ticks of the best marks that are on an axis and not too near to each other."""
    chosen: list[Tick] = []
    for mark in marks:
        if scale.low <= mark <= scale.high:
            at = scale.at(mark)
            if all(abs(at - other.at) >= _NEAR for other in chosen):
                chosen.append(Tick(at, say(mark)))
    return sorted(chosen)
