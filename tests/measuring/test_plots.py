"""Plots: what is on them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from packio.measuring.bench import plots


@pytest.fixture
def axes() -> Any:
    pytest.importorskip("matplotlib")
    return plots._figure(4, 3).add_subplot()


def test_few_classes_have_a_bar_and_a_name_each(axes: Any) -> None:
    plots._plot_classes(axes, np.array([3, 9, 1]), ["cat", "dog", "a $ bird"])
    assert [bar.get_width() for bar in axes.patches] == [9, 3, 1]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["dog", "cat", r"a \$ bird"]


def test_many_classes_are_one_area(axes: Any) -> None:
    plots._plot_classes(axes, np.arange(100), [str(i) for i in range(100)])
    assert len(axes.patches) == 0
    assert len(axes.collections) == 1
