"""The screenshots of the pages: made by tools/make_screenshots.py, small, and described."""

from __future__ import annotations

import io
import pathlib
import re

import browsing
import make_screenshots
import numpy as np
import pytest
from PIL import Image

DOCS = make_screenshots.REPOSITORY / "docs"
MOST = 150_000  # bytes
SHOWN = re.compile(r"!\[(.*?)\]\((?:\.\./)*images/(\w+)-(\w+)\.png#only-(\w+)\)")
NAMES = [shot.name for shot in make_screenshots.SHOTS]


def test_each_is_on_a_page_in_light_and_in_dark_with_words_for_those_who_do_not_see_it() -> None:
    found = [
        match for page in sorted(DOCS.rglob("*.md")) for match in SHOWN.findall(page.read_text())
    ]
    assert all(len(words) > 20 for words, *_ in found)
    assert all(scheme == only for _, _, scheme, only in found)
    shown = sorted((name, scheme) for _, name, scheme, _ in found)
    assert shown == sorted((name, scheme) for name in NAMES for scheme in make_screenshots.SCHEMES)
    files = sorted(path.name for path in (DOCS / "images").glob("*.png"))
    assert files == sorted(f"{name}-{scheme}.png" for name, scheme in shown)


@pytest.mark.parametrize("shot", make_screenshots.SHOTS, ids=NAMES)
def test_each_is_small_and_of_one_size(shot: make_screenshots.Shot) -> None:
    light, dark = (
        (DOCS / "images" / f"{shot.name}-{scheme}.png").read_bytes()
        for scheme in make_screenshots.SCHEMES
    )
    assert max(len(light), len(dark)) <= MOST
    for picture in (light, dark):
        assert Image.open(io.BytesIO(picture)).size == (shot.width, shot.height)
    corners = [np.array(Image.open(io.BytesIO(p)).convert("L"))[-2, 2] for p in (light, dark)]
    assert corners[0] > 230
    assert corners[1] < 40


@pytest.mark.skipif(
    not (browsing.CHROMIUM and browsing.DRIVER), reason="no chromium, or no chromedriver"
)
def test_the_script_takes_them(tmp_path: pathlib.Path) -> None:
    make_screenshots.prepare(tmp_path, 48)
    shot = make_screenshots.SHOTS[NAMES.index("info")]
    make_screenshots.take(shot, tmp_path, tmp_path)
    made = sorted(path.name for path in tmp_path.glob("*.png"))
    assert made == ["info-dark.png", "info-light.png"]
    with Image.open(tmp_path / made[0]) as picture:
        assert picture.size == (shot.width, shot.height)
