"""The doctor's page in a real browser: axes, labels, phones, the dark, and what axe-core finds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import browsing
import pytest

from packio.measuring.doctor import Cause, Diagnosis, Measurements, Trial
from packio.measuring.doctor.findings import Spread, Stages
from packio.measuring.doctor.report import TIMES

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(
    not (browsing.CHROMIUM and browsing.DRIVER), reason="no chromium, or no chromedriver"
)


def trial(change: str, median: float, low: float, high: float, rounds: int = 8) -> Trial:
    return Trial(
        Cause.DECODE, change, "DataLoader(..., an_argument_whose_name_is_long=True, workers=4)",
        Spread(median, low, high), rounds, chance=0.01, assumption="" if rounds else "a guess",
    )  # fmt: skip


DIAGNOSIS = Diagnosis(Measurements(
    loader="DataLoader over ImageFolder, 2 workers, batches of 64", batch_size=64, workers=2,
    cpus=2, device="cpu", has_step=True, epoch_batches=100, rate=Spread(640, 600, 660),
    waiting=Spread(0.5, 0.4, 0.6), step=0.05, contiguous=True, step_contiguous=None,
    stages=Stages(0.0001, 0.001, 0.0003, collate=0.002, hand_over=0.001, batch_bytes=10**7),
    trials=(
        trial("4 workers instead of 2", 1.5, 1.25, 2.0), trial("batches of 128", 1.0, 0.5, 1.1),
        trial("packing the folder: packio pack photos photos.lmdb", 1.2, 1.1, 1.3, rounds=0),
    ),
    machine="a CPU, Python 3.11, torch 2.13, 2026-01-02",
))  # fmt: skip


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browsing.Browser]:
    """The page is open."""
    folder = tmp_path_factory.mktemp("doctor")
    (folder / "x.html").write_text(DIAGNOSIS.html("packio doctor train:make --html x.html"))
    with browsing.running(folder / "profile") as made:
        made.emulate(1000)
        made.go((folder / "x.html").as_uri())
        yield made


def test_every_chart_has_bars_with_values_and_a_label(browser: browsing.Browser) -> None:
    charts = browser.ask(
        "[...document.querySelectorAll('.rows')].map(chart => ({values: [...chart"
        ".querySelectorAll('.value')].map(t => t.textContent), widths: [...chart.querySelectorAll("
        "'rect')].map(r => r.getBoundingClientRect().width), "
        "label: chart.nextElementSibling.textContent}))"
    )
    assert charts[0]["label"] == "share of the loop's time"
    assert charts[1]["label"].startswith("samples per second, as a multiple of the loop as it is")
    shares = [float(value.removesuffix("%")) for value in charts[0]["values"]]
    longest = charts[0]["widths"][0] / shares[0]
    assert charts[0]["widths"] == pytest.approx([longest * s for s in shares], abs=longest)
    assert charts[1]["values"] == [
        f"{TIMES}1", f"{TIMES}1.50 (1.25 to 2.00)", f"{TIMES}1.20 (1.10 to 1.30) estimated",
        f"{TIMES}1.00 (0.50 to 1.10)",
    ]  # fmt: skip
    widths = charts[1]["widths"]  # the loop as it is, then the best first
    assert widths == pytest.approx([widths[1] * f / 1.5 for f in (1, 1.5, 1.2, 1)], abs=1)


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
