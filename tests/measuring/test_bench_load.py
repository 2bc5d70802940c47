"""How fast a pack loads: every setting measured, the stages told, and what would help."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

import packio
from packio.errors import OptionError
from packio.measuring.bench import load


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory, image_folder: pathlib.Path) -> pathlib.Path:
    """The image folder, packed."""
    return packio.pack(image_folder, tmp_path_factory.mktemp("load") / "x.lmdb").out


def test_every_setting_and_stage_is_measured(pack: pathlib.Path) -> None:
    said: list[str] = []
    result = load.measure(
        pack, crop=packio.RandomResizedCrop(16), batch_size=8, workers=[1], threads=[1, 2],
        rounds=2, images=32, say=said.append,
    )  # fmt: skip
    assert [(s.workers, s.threads) for s in result.settings] == [(0, 1), (0, 2), (1, 1)]
    for setting in result.settings:
        assert 0 < setting.slowest <= setting.images_per_second <= setting.fastest
        assert setting.megabytes_per_second > 0
    assert list(result.stages) == ["read", "crc", "window", "decode", "resize", "collate"]
    assert all(micros >= 0 for micros in result.stages.values())
    assert result.wall > 0
    assert result.best in result.settings
    assert (result.samples, result.format, result.seekable) == (25, "lmdb", 0)
    assert {"seekable JPEGs", "images of 18 pixels on the short side"} == {
        gain.what for gain in result.gains
    }
    assert all(gain.factor > 0 for gain in result.gains)
    assert any("round 2 of 2" in text for text in said)
    assert json.loads(json.dumps(result.as_dict()))["best"]["images_per_second"] > 0


def test_a_seekable_pack_needs_no_advice_to_be_one(
    pack: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    packio.convert(pack, tmp_path / "y.tar", seekable=True)
    result = load.measure(tmp_path / "y.tar", workers=[1], threads=[1], rounds=1, images=16,
                          batch_size=8, fidelity="fast")  # fmt: skip
    assert 0 < result.seekable < 1
    assert result.fidelity == "fast"


@pytest.mark.parametrize("options", [{"rounds": 0}, {"batch_size": 0}, {"images": 0}])
def test_what_cannot_be_measured_is_refused(pack: pathlib.Path, options: dict[str, int]) -> None:
    with pytest.raises(OptionError):
        load.measure(pack, **options)  # type: ignore[arg-type]  # ints all


def test_the_command_says_what_to_use_and_draws(pack: pathlib.Path, tmp_path: pathlib.Path) -> None:
    code = "import sys; from packio.cli import main; sys.argv[0] = 'packio'; main()"
    plot = tmp_path / "x.png"
    command = [sys.executable, "-c", code, "bench-load", str(pack), "--size", "16", "--rounds", "1",
               "--images", "16", "--batch-size", "8", "--workers", "1", "--threads", "1",
               "--plot", str(plot), "-q"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "decode wall" in done.stdout
    assert "use: " in done.stdout
    assert plot.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("options", [{"workers": [-1]}, {"threads": [0]}])
def test_impossible_settings_are_refused(pack: pathlib.Path, options: dict[str, list[int]]) -> None:
    with pytest.raises(OptionError, match="expected 1 thread"):
        load.measure(pack, workers=options.get("workers"), threads=options.get("threads"))
