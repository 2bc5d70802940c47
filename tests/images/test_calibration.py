"""The calibration that decoder="auto" follows: only exact, installed decoders, measured here."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from packio import registry
from packio.errors import MissingPackageError, OutputError
from packio.images import decoders
from packio.images.decoders import _calibration

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator


@pytest.fixture
def cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    """An empty user cache; the calibration's file in it."""
    monkeypatch.setenv("PACKIO_CACHE_DIR", str(tmp_path))
    _calibration.fastest.cache_clear()
    yield tmp_path / "decoders.json"
    _calibration.fastest.cache_clear()


def _measured(speeds: dict[str, float], *, exact: bool = True) -> list[_calibration.Measured]:
    return [_calibration.Measured("jpeg", name, speed, exact) for name, speed in speeds.items()]


def test_without_calibration_there_is_no_fastest(cache: pathlib.Path) -> None:
    assert not cache.exists()
    assert _calibration.fastest("jpeg") is None
    assert decoders.automatic("webp") == "pillow"


def test_without_calibration_pngs_go_to_isal_where_it_works(cache: pathlib.Path) -> None:
    assert not cache.exists()
    expected = "isal"
    try:
        registry.load("decoders", "isal").version()
    except MissingPackageError:
        expected = "pillow"
    assert decoders.automatic("png") == expected


def test_the_fastest_exact_decoder_is_taken(cache: pathlib.Path) -> None:
    _calibration.save(_measured({"pillow": 500.0, "simplejpeg": 400.0}))
    assert _calibration.fastest("jpeg") == decoders.automatic("jpeg") == "pillow"
    assert _calibration.fastest("png") is None
    assert [p.name for p in cache.parent.iterdir()] == [cache.name]  # no temporary file is left


def test_inexact_unknown_and_unfit_decoders_are_never_taken(cache: pathlib.Path) -> None:
    found = _measured({"simplejpeg": 900.0}, exact=False) + _measured(
        {"gone": 990.0, "pillow": 1.0}
    )
    _calibration.save([*found, _calibration.Measured("png", "simplejpeg", 5.0, exact=True)])
    assert cache.exists()
    assert _calibration.fastest("jpeg") == "pillow"
    assert _calibration.fastest("png") is None


def test_measurements_replace_those_of_their_encoding_only(cache: pathlib.Path) -> None:
    _calibration.save([_calibration.Measured("png", "pillow", 5.0, exact=True)])
    _calibration.save(_measured({"simplejpeg": 9.0}))
    _calibration.save(_measured({"pillow": 9.0}))
    assert (_calibration.fastest("png"), _calibration.fastest("jpeg")) == ("pillow", "pillow")
    assert len(json.loads(cache.read_text())["machines"]) == 1


@pytest.mark.parametrize("change", ["cpu", "packages"])
def test_what_was_measured_elsewhere_does_not_count(cache: pathlib.Path, change: str) -> None:
    _calibration.save(_measured({"pillow": 9.0}))
    content = json.loads(cache.read_text())
    content["machines"][0][change] = "another"
    cache.write_text(json.dumps(content))
    assert _calibration.fastest("jpeg") is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"version": 9}', '{"version": 1, "machines": 3}',
             '{"version": 1, "machines": [3, {"cpu": 4}]}']
)  # fmt: skip
def test_an_unreadable_calibration_is_none(cache: pathlib.Path, text: str) -> None:
    cache.write_text(text)
    assert _calibration.fastest("jpeg") is None


def test_a_cache_that_cannot_be_written_is_an_output_error(
    cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write_text("in the way")
    monkeypatch.setenv("PACKIO_CACHE_DIR", str(cache))
    with pytest.raises(OutputError, match="PACKIO_CACHE_DIR"):
        _calibration.save(_measured({"pillow": 9.0}))
