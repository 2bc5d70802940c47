"""Plots: what is on them."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

import packio
from packio.measuring.bench import plots

if TYPE_CHECKING:
    import pathlib


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


def test_aspect_ratios_lie_around_one(axes: Any) -> None:
    plots._plot_ratios(axes, np.array([0.5, 1.0, 1.0, 3.0]))
    low, high = axes.get_xlim()
    assert low * high == pytest.approx(1)
    counts = [
        sum(bar.get_height() for bar in axes.patches
            if bar.get_x() <= ratio < bar.get_x() + bar.get_width())
        for ratio in (0.5, 1.0, 3.0)
    ]  # fmt: skip
    assert counts == [1, 2, 1]
    told = {text.get_text(): text.get_position()[0] for text in axes.get_xticklabels()}
    assert told["1:1"] == 1
    assert told["1:2"] == 0.5
    assert told["3:1"] == 3


def test_a_pack_has_its_four_plots(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("matplotlib")
    image = io.BytesIO()
    Image.new("RGB", (8, 4)).save(image, "PNG")
    items = [{"key": "a", "image": image.getvalue(), "label": 0}]
    packio.pack(items, tmp_path / "x.tar")
    with packio.open(tmp_path / "x.tar") as pack:
        plots.plot_pack(pack, tmp_path / "x.svg")
    text = (tmp_path / "x.svg").read_text()
    drawn = ("pixels, as Exif turns the images", "width : height", "kB an image", "x.tar: 1 images")
    assert [name for name in drawn if f"<!-- {name} -->" not in text] == []
