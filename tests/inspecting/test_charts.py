"""Charts: bars against plain Python."""

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
    _, bars = pages.make_histogram(np.array(values), exactly)
    end = 0.0
    for bar in bars:
        found = re.fullmatch(r"([\d.e+]+)(?: to ([\d.e+]+))?", bar.name)
        assert found is not None
        low, high = float(found[1]), float(found[2] or found[1])
        assert end in (0, low)  # bars follow each other without a gap
        end = high + 1
        assert int(bar.text.replace(",", "")) == sum(low <= value <= high for value in values)
    assert sum(int(bar.text.replace(",", "")) for bar in bars) == len(values)


@given(WHOLE)
def test_bars_are_as_long_as_their_counts(values: list[int]) -> None:
    _, bars = pages.make_histogram(np.array(values), exactly)
    most = max(int(bar.text) for bar in bars)
    assert len(bars) <= 12
    for bar in bars:
        assert bar.length == pytest.approx(100 * int(bar.text) / most, abs=0.01)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=60))
def test_every_ratio_is_in_a_bar(values: list[float]) -> None:
    _, bars = pages.make_histogram(np.array(values), exactly, are_ratios=True)
    assert sum(int(bar.text) for bar in bars) == len(values)


def test_the_axis_is_logarithmic() -> None:
    said, bars = pages.make_histogram(np.array([10, 100, 1000]), exactly)
    assert said == "10 to 1000, median 100"
    full = [i / len(bars) for i, bar in enumerate(bars) if bar.length]
    assert full == pytest.approx([0, 0.5, 0.975], abs=0.1)


@pytest.mark.parametrize("value", [1, 5, 500, 2**40])
def test_values_that_are_all_alike_have_a_chart(value: int) -> None:
    said, bars = pages.make_histogram(np.array([value] * 3), exactly)
    assert said == f"all {value}"
    assert [bar.text for bar in bars if bar.length] == ["3"]
