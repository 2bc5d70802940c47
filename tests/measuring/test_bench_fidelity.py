"""`packio bench-decode --parity` and the library function behind it."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import numpy as np
import pytest
import readme_tables
from cli_runs import run
from PIL import Image

from packio.errors import OptionError
from packio.measuring.bench import fidelity


@pytest.fixture(scope="module")
def result() -> fidelity.FidelityResult:
    return fidelity.measure(crops=3, size=64)


def test_exact_is_torchvisions(result: fidelity.FidelityResult) -> None:
    exact = [row for row in result.rows if row.fidelity == "exact"]
    assert {row.decoder for row in exact} >= {"pillow", "simplejpeg"}
    for row in exact:
        assert row.torchvision.maximum <= 1
        assert row.pillow.maximum <= 1
        assert row.crops == 15


def test_fast_is_near(result: fidelity.FidelityResult) -> None:
    for row in result.rows:
        if row.fidelity == "fast":
            assert 35 <= row.torchvision.lowest_psnr <= row.torchvision.psnr
            assert row.torchvision.mean < 4
            assert 0 <= row.torchvision.off < 1
    assert any(row.torchvision.maximum > 1 for row in result.rows)


def test_a_distance_is_what_it_says() -> None:
    total = fidelity.Differences()
    zeros = np.zeros((2, 2, 3), np.uint8)
    total.add(zeros, zeros)
    total.add(zeros, np.array([[[3, 0, 0], [1, 0, 0]], [[0, 0, 0]] * 2], np.uint8))
    mse = 10 / 12
    found = total.distance()
    assert found is not None
    assert dataclasses.astuple(found) == pytest.approx(
        (
            3,
            4 / 24,
            2 / 8,
            (99 + 10 * np.log10(255**2 / mse)) / 2,
            10 * np.log10(255**2 / mse),
            1 / 24,
        )
    )


def test_the_table_of_the_readme(result: fidelity.FidelityResult) -> None:
    table = readme_tables.parity(json.loads(json.dumps(dataclasses.asdict(result))))
    lines = table.splitlines()[4:]
    assert len(lines) == len({(row.decoder, row.fidelity) for row in result.rows})
    assert all(line.count("|") == 7 for line in lines)


def test_without_a_jpeg_there_is_nothing_to_compare(tmp_path: pathlib.Path) -> None:
    Image.new("RGB", (9, 9)).save(tmp_path / "a.png")
    with pytest.raises(OptionError, match="no JPEG"):
        fidelity.measure(tmp_path)
    with pytest.raises(OptionError, match="crops=0"):
        fidelity.measure(tmp_path, crops=0)


def test_the_command_prints_a_table_or_json() -> None:
    options = ["--parity", "-d", "simplejpeg", "-q", "--limit", "1"]
    done = run("bench-decode", *options)
    assert done.returncode == 0, done.stderr
    assert [line.split()[2] for line in done.stdout.splitlines()[2:]] == ["exact", "fast"]
    assert len(json.loads(run("bench-decode", *options, "--json").stdout)["rows"]) == 2
