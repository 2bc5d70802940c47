"""Charts: bars and ticks against plain Python."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packio.inspecting.pages import charts

WHOLE = st.lists(st.integers(1, 100_000), min_size=1, max_size=60)


def exactly(value: float) -> str:
    return f"{value:.17g}"


@given(WHOLE)
def test_each_bar_counts_the_values_that_it_names(values: list[int]) -> None:
    chart = charts.histogram("", "", np.array(values), exactly)
    counted = 0
    for bar in chart.bars:
        found = re.fullmatch(r"([\d.e+]+)(?: to ([\d.e+]+))?: (\d+)", bar.text)
        assert found is not None
        low, high = float(found[1]), float(found[2] or found[1])
        assert int(found[3]) == sum(low <= value <= high for value in values)
        counted += int(found[3])
    assert counted == len(values)


@given(WHOLE)
def test_bars_stand_side_by_side_and_are_as_high_as_their_counts(values: list[int]) -> None:
    bars = charts.histogram("", "", np.array(values), exactly).bars
    assert bars[0].left >= 0
    assert bars[-1].left + bars[-1].width <= 100.01
    for one, other in itertools.pairwise(bars):
        assert one.left + one.width <= other.left + 0.01
    heights = {float(bar.text.rpartition(" ")[2]): bar.height for bar in bars}
    most = max(heights)
    for count, height in heights.items():
        assert height == pytest.approx(heights[most] * count / most, abs=0.01)
    assert 80 < heights[most] < 100


@given(WHOLE)
def test_an_axis_has_a_few_whole_numbers_in_order(values: list[int]) -> None:
    chart = charts.histogram("", "", np.array(values), exactly)
    for ticks in (chart.across, chart.up):
        numbers = [float(tick.text) for tick in ticks]
        assert 1 <= len(ticks) <= 7
        assert numbers == sorted(set(numbers))
        assert all(number.is_integer() for number in numbers)
        places = [tick.at for tick in ticks]
        assert places == sorted(places)
        assert places[0] >= -0.01
        assert places[-1] <= 100.01


def test_an_axis_of_values_far_apart_is_logarithmic_and_says_so() -> None:
    chart = charts.histogram("", "pixels", np.array([10, 100, 1000]), exactly)
    assert chart.label == "pixels, a logarithmic axis"
    assert [bar.left for bar in chart.bars] == pytest.approx(
        [0, 50, 97.5], abs=2.5
    )  # a bar is 2.5 wide
    assert charts.histogram("", "pixels", np.array([90, 100]), exactly).label == "pixels"


def test_ratios_are_as_far_from_square_on_both_sides() -> None:
    marks = {1.0: "1:1", 2.0: "2:1", 0.5: "1:2", 2.1: "near", 9.0: "far"}
    chart = charts.histogram(
        "", "", np.array([0.5, 1.0, 2.0]), lambda v: marks.get(v, exactly(v)), list(marks)
    )
    assert [tick.text for tick in chart.across] == ["1:2", "1:1", "2:1"]
    assert [tick.at for tick in chart.across] == pytest.approx([1.4, 50, 98.6], abs=0.1)
    assert [bar.text.rpartition(" ")[2] for bar in chart.bars] == ["1", "1", "1"]


@pytest.mark.parametrize("value", [1, 5, 500, 2**40])
def test_values_that_are_all_alike_have_a_chart(value: int) -> None:
    chart = charts.histogram("", "", np.array([value] * 3), exactly)
    assert chart.summary == f"all {value}"
    assert [bar.text for bar in chart.bars] == [f"{value}: 3"]
    assert len(chart.across) >= 2
