"""Charts: bars and ticks against plain Python."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packio.inspecting import pages

WHOLE = st.lists(st.integers(1, 100_000), min_size=1, max_size=60)


def exactly(value: float) -> str:
    return f"{value:.17g}"


@given(WHOLE)
def test_each_bar_counts_the_values_that_it_names(values: list[int]) -> None:
    chart = pages.make_histogram("", "", np.array(values), exactly)
    end = 0.0
    for bar in chart.bars:
        found = re.fullmatch(r"([\d.e+]+)(?: to ([\d.e+]+))?", bar.name)
        assert found is not None
        low, high = float(found[1]), float(found[2] or found[1])
        assert end in (0, low)  # bars follow each other without a gap
        end = high + 1
        assert int(bar.text.replace(",", "")) == sum(low <= value <= high for value in values)
    assert sum(int(bar.text.replace(",", "")) for bar in chart.bars) == len(values)


@given(WHOLE)
def test_bars_are_as_high_as_their_counts(values: list[int]) -> None:
    bars = pages.make_histogram("", "", np.array(values), exactly).bars
    most = max(int(bar.text) for bar in bars)
    assert len(bars) <= 48
    for bar in bars:
        assert bar.length == pytest.approx(100 * int(bar.text) / most, abs=0.01)


@given(WHOLE)
def test_an_axis_has_whole_numbers_in_order(values: list[int]) -> None:
    ticks = pages.make_histogram("", "", np.array(values), exactly).ticks
    numbers = [float(tick) for tick in ticks]
    assert len(numbers) == 5
    assert numbers == sorted(set(numbers))
    assert all(number.is_integer() for number in numbers)


def test_an_axis_of_values_far_apart_is_logarithmic_and_says_so() -> None:
    chart = pages.make_histogram("", "pixels", np.array([10, 100, 1000]), exactly)
    assert chart.label == "pixels, a logarithmic axis"
    assert chart.ticks == ["10", "32", "100", "320", "1000"]
    full = [i / len(chart.bars) for i, bar in enumerate(chart.bars) if bar.length]
    assert full == pytest.approx([0, 0.5, 0.975], abs=0.07)
    assert pages.make_histogram("", "pixels", np.array([90, 100]), exactly).label == "pixels"


def test_ratios_are_as_far_from_square_on_both_sides() -> None:
    chart = pages.make_histogram("", "", np.array([0.5, 1.0, 4.0]), exactly, are_ratios=True)
    assert [float(tick) for tick in chart.ticks] == pytest.approx([1 / 4, 1 / 2, 1, 2, 4])
    full = [i for i, bar in enumerate(chart.bars) if bar.length]
    middle = len(chart.bars) // 2
    assert (full[1], full[2]) == (middle, 2 * middle)
    assert full[0] == pytest.approx(middle / 2, abs=1)


@pytest.mark.parametrize("value", [1, 5, 500, 2**40])
def test_values_that_are_all_alike_have_a_chart(value: int) -> None:
    chart = pages.make_histogram("", "", np.array([value] * 3), exactly)
    assert chart.summary == f"all {value}"
    assert [bar.text for bar in chart.bars if bar.length] == ["3"]
