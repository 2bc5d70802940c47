"""`packio info --plot FILE.html` in a real browser, against what went into the pack."""

from __future__ import annotations

import collections
import re
import statistics
from typing import TYPE_CHECKING, Any

import browsing
import made
import numpy as np
import pytest
from cli_runs import run
from PIL import Image

import packio
from packio.inspecting.overview import write_overview

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

COUNT = 90
CLASSES = ["a cat", "<b>dogs</b>", "birds", "nothing"]
# Stored width, height and Exif orientation: 6 is shown turned
SIZES = [(60, 40, 1), (60, 40, 6), (32, 32, 1), (200, 40, 1)]

TIMES = "\N{MULTIPLICATION SIGN}"

needs_browser = pytest.mark.skipif(
    not (browsing.CHROMIUM and browsing.DRIVER), reason="no chromium, or no chromedriver"
)


def size(i: int) -> tuple[int, int, int]:
    return SIZES[min(i % 10, 3)]


def shown(i: int) -> tuple[int, int]:
    width, height, orientation = size(i)
    return (height, width) if orientation == 6 else (width, height)


def jpeg(i: int) -> bytes:
    width, height, orientation = size(i)
    exif = Image.Exif()
    exif[0x112] = orientation
    pixels = np.random.default_rng(i).integers(0, 256, (height, width, 3), np.uint8)
    return made.saved(pixels, "JPEG", quality=20 + i % 60, exif=exif)


class Samples:
    """A dataset; its labels are given."""

    def __init__(self, labels: list[Any], classes: list[str]) -> None:
        self.classes, self._labels = classes, labels

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, i: int) -> dict[str, Any]:
        if i >= len(self):
            raise IndexError(i)
        found = {"key": f"{i:03}.jpg", "image": jpeg(i)}
        return found if self._labels[i] is None else {**found, "label": self._labels[i]}


def label(i: int) -> int:
    return 0 if i % 2 else 1 + (i % 8 == 0)


def page(folder: pathlib.Path, labels: list[Any], classes: list[str]) -> pathlib.Path:
    packio.pack(Samples(labels, classes), folder / "many & few.tar")
    with packio.open(folder / "many & few.tar") as pack:
        write_overview(pack, folder / "x.html")
    return folder / "x.html"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browsing.Browser]:
    folder = tmp_path_factory.mktemp("overview")
    made = page(folder, [label(i) for i in range(COUNT)], CLASSES)
    with browsing.running(folder / "profile") as running:
        running.emulate(1000)
        running.go(made.as_uri())
        yield running


SECTION = (
    "[...document.querySelectorAll('section')].find(s => s.querySelector('h2').textContent == {!r})"
)


def bars(browser: browsing.Browser, title: str) -> list[tuple[str, str, float]]:
    """Names, values, and lengths in pixels of the bars of a section."""
    rows = f"[...{SECTION.format(title)}.querySelectorAll('.row:has(rect)')]"
    return [
        (name, value, length)
        for name, value, length in browser.ask(
            f"{rows}.map(r => [r.querySelector('.name').textContent, r.querySelector('.value')"
            ".textContent, r.querySelector('rect').getBoundingClientRect().width])"
        )
    ]


def counts_of(browser: browsing.Browser, title: str) -> dict[str, int]:
    """The values of each bar of a histogram, and how many images have them."""
    return {name: int(value) for name, value, _ in bars(browser, title) if int(value)}


@needs_browser
def test_classes_have_their_names_and_counts(browser: browsing.Browser) -> None:
    counts = collections.Counter(label(i) for i in range(COUNT))
    order = sorted(counts, key=lambda number: -counts[number])
    found = bars(browser, "Classes")
    assert [name for name, _, _ in found] == [CLASSES[number] for number in [*order, 3]]
    assert [value for _, value, _ in found] == [
        f"{counts[number]} · {counts[number] / COUNT:.1%}" for number in [*order, 3]
    ]
    longest = found[0][2]
    for (_, _, length), number in zip(found, order, strict=False):
        assert length == pytest.approx(longest * counts[number] / counts[order[0]], abs=1)
    said = browser.ask(f"{SECTION.format('Classes')}.querySelector('.said').textContent")
    assert said == f"4 classes · 0 to {counts[order[0]]} samples each · 1 without a sample"


@needs_browser
@pytest.mark.parametrize(("title", "side"), [("Width", 0), ("Height", 1)])
def test_sizes_are_those_of_upright_images(
    browser: browsing.Browser, title: str, side: int
) -> None:
    counts = collections.Counter(shown(i)[side] for i in range(COUNT))
    found: collections.Counter[int] = collections.Counter()
    for said, count in counts_of(browser, title).items():
        low, _, high = said.partition(" to ")
        (value,) = (v for v in counts if int(low) <= v <= int(high or low))
        found[value] += count
    assert found == counts


@needs_browser
def test_bytes_are_those_of_the_images(browser: browsing.Browser) -> None:
    lengths = [len(jpeg(i)) for i in range(COUNT)]
    assert sum(counts_of(browser, "Bytes").values()) == COUNT
    said = browser.ask(f"{SECTION.format('Bytes')}.querySelector('.said').textContent")
    least, middle, most = min(lengths), statistics.median(lengths), max(lengths)
    texts = [f"{v:,g} bytes" for v in (least, most, middle)]
    assert said == f"{texts[0]} to {texts[1]}, median {texts[2]}"


@needs_browser
def test_aspect_ratios_tell_landscape_from_portrait(browser: browsing.Browser) -> None:
    shapes = [shown(i) for i in range(COUNT)]
    wide = sum(width > height for width, height in shapes) / COUNT
    high = sum(width < height for width, height in shapes) / COUNT
    said = browser.ask(f"{SECTION.format('Aspect ratio')}.querySelector('.said').textContent")
    assert said == f"{wide:.1%} landscape, {1 - wide - high:.1%} square, {high:.1%} portrait"
    assert sorted(counts_of(browser, "Aspect ratio").values()) == [9, 9, 9, 63]


@needs_browser
def test_frequent_sizes_are_listed(browser: browsing.Browser) -> None:
    counts = collections.Counter(shown(i) for i in range(COUNT))
    found = bars(browser, "The most frequent sizes")
    assert {name: int(value.split(" ")[0]) for name, value, _ in found} == {
        f"{w}{TIMES}{h}": count for (w, h), count in counts.items()
    }


@needs_browser
@pytest.mark.parametrize("width", [390, 1000])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_readable_on_phones_and_in_the_dark(
    browser: browsing.Browser, width: int, scheme: str
) -> None:
    browser.emulate(width, scheme)
    assert browser.too_wide() == []
    assert browser.smallest_text() >= 12
    assert browser.log() == []
    if browsing.has_axe():
        assert browser.complaints() == []


def test_each_of_many_classes_has_a_bar_the_largest_first(tmp_path: pathlib.Path) -> None:
    classes = [f"class {number}" for number in range(60)]
    text = page(tmp_path, [min(i, 49) for i in range(70)], classes).read_text()
    names = re.findall(r'<bdi class="name" title="(class \d+)"', text)
    assert names == ["class 49", *classes[:49], *classes[50:]]
    counts = re.findall(r'<span class="value">(\d+) · ', text)[:60]
    assert [int(count) for count in counts] == [21] + [1] * 49 + [0] * 10


@pytest.mark.parametrize(
    ("labels", "classes", "said"),
    [
        ([None] * 3, [], "No labels."),
        ([0, 2, 2], [], "3 classes · 0 to 2 samples each · 1 without a sample"),
        ([np.array([1, 1], np.float32), np.array([0, 1], np.float32)], ["a", "b"],
         "2 classes · 1 to 2 samples each · a sample may be of several classes"),
    ],
)  # fmt: skip
def test_labels_of_every_kind_are_told(
    tmp_path: pathlib.Path, labels: list[Any], classes: list[str], said: str
) -> None:
    assert f'<p class="said">{said}</p>' in page(tmp_path, labels, classes).read_text()


def test_the_command_writes_the_page(tmp_path: pathlib.Path) -> None:
    made = page(tmp_path, [0, 1], ["a", "b"])
    done = run("info", "many & few.tar", "--plot", "again.html", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "again.html").read_text() == made.read_text()


def test_a_page_replaces_only_pages(tmp_path: pathlib.Path) -> None:
    page(tmp_path, [0, 1], ["a", "b"])
    (tmp_path / "notes.html").write_text("my notes")
    done = run("info", "many & few.tar", "--plot", "notes.html", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (73, "")
    assert "notes.html: is there, and no HTML page" in done.stderr
    assert (tmp_path / "notes.html").read_text() == "my notes"
