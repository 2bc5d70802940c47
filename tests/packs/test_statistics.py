"""What is told of a pack's pixels, and of a pack that is not made yet."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest
from cli_runs import run

import packio
from packio import packing
from packio.errors import OptionError, SourceError
from packio.packs import pixel_statistics


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory, image_folder: pathlib.Path) -> packio.Pack:
    """The image folder, packed."""
    out = tmp_path_factory.mktemp("statistics") / "x.lmdb"
    return packio.open(packio.pack(image_folder, out).out)


def test_mean_and_std_are_those_of_all_pixels(pack: packio.Pack) -> None:
    pixels = np.concatenate(
        [s.decode(exif_orientation=False).reshape(-1, 3) for s in pack]
    ) / 255  # fmt: skip
    found = pixel_statistics.measure(pack, None)
    assert (found["images"], found["bad"]) == (25, 0)
    assert found["mean"] == pytest.approx(pixels.mean(axis=0), abs=1e-6)
    assert found["std"] == pytest.approx(pixels.std(axis=0), abs=1e-6)


def test_a_sample_is_drawn_by_its_seed(pack: packio.Pack) -> None:
    one, two = (pixel_statistics.measure(pack, 5, seed=3) for _ in range(2))
    assert one == two
    assert one["images"] == 5
    assert pixel_statistics.measure(pack, 5, seed=4)["mean"] != one["mean"]
    with pytest.raises(OptionError):
        pixel_statistics.measure(pack, 0)


@pytest.mark.parametrize("name", ["x.lmdb", "x.tar"])
def test_statistics_go_into_the_index(
    name: str, image_folder: pathlib.Path, pack: packio.Pack, tmp_path: pathlib.Path
) -> None:
    reports = [
        packio.pack(image_folder, tmp_path / f"{shards}{name}", stats=10, shards=shards)
        for shards in (1, 2)
    ]
    for report in reports:
        made = packio.open(report.out)
        assert made.digest == report.digest
        assert made.metadata["statistics"] == pixel_statistics.measure(pack, 10)
        assert packio.verify(report.out).ok


def test_info_measures_and_draws(pack: packio.Pack, tmp_path: pathlib.Path) -> None:
    plot = tmp_path / "x.html"
    done = run("info", pack.path, "--stats", "0", "--plot", plot, "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["statistics"] == pixel_statistics.measure(pack, None)
    assert sum(summary["labels"]["counts"]) == 25
    assert plot.read_bytes()[:5].lower() == b"<!doc"
    assert "values 0..1" in run("info", pack.path, "--stats", "5").stdout


def test_a_dry_run_tells_and_writes_nothing(
    image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    found = packing.dry_run(image_folder, tmp_path / "x.tar", shards=3)
    assert (found.kind, found.found, found.shards, found.labels) == ("image_folder", 25, 3, "class")
    assert sum(found.class_counts) == 25
    keep, raw = found.advice[0], found.advice[-1]
    assert keep.options == {"encode": "keep"}
    assert keep.bytes == found.source_bytes
    assert raw.bytes == 25 * 224 * 224 * 3
    assert all(advice.images_per_second > 0 for advice in found.advice)
    with pytest.raises(SourceError):
        packing.dry_run(tmp_path, tmp_path / "x.tar")
    done = run("pack", image_folder, tmp_path / "x.tar", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "25 images" in done.stdout
    assert "--encode raw --resize exact=224x224" in done.stdout
    assert json.loads(run("pack", image_folder, tmp_path / "x.tar", "--dry-run", "--json").stdout)
    assert list(tmp_path.iterdir()) == []
