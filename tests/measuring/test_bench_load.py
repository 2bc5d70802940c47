"""How fast a pack loads: every setting measured, the stages told, and what would help."""

from __future__ import annotations

import json
import pathlib
import time
import types
from typing import Any

import pytest
import torch
from cli_runs import run

import packio
from packio.batches import collating
from packio.errors import OptionError
from packio.measuring import gains
from packio.measuring.bench import load
from packio.measuring.turns import run_in_turns


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
    assert list(result.stages) == ["read", "decode and crop", "collate"]
    assert all(micros >= 0 for micros in result.stages.values())
    assert result.ceiling == pytest.approx(1e6 * result.cpus / sum(result.stages.values()))
    assert result.best in result.settings
    assert (result.samples, result.format) == (25, "lmdb")
    (gain,) = result.gains
    assert gain.what == "images of 18 pixels on the short side"
    assert gain.command == f"packio pack {pack} OUT.lmdb --encode jpeg --resize short=18"
    assert 0 < gain.low <= gain.factor <= gain.high
    assert any("round 2 of 2" in text for text in said)
    assert json.loads(json.dumps(result.as_dict()))["best"]["images_per_second"] > 0


@pytest.mark.parametrize("workers", [0, 1, 3, 64, 128])
def test_each_worker_makes_as_many_of_the_batches_that_are_timed(workers: int) -> None:
    batches = load.batches_timed(2000, 64, workers)
    assert batches * 64 >= 2000
    assert batches % max(1, workers) == 0
    assert batches >= 4 * workers


class Counted(torch.utils.data.Dataset[Any]):
    """Samples that know how many of them were taken."""

    def __init__(self, dataset: Any) -> None:
        self.dataset, self.taken, self.pack = dataset, list[int](), dataset.pack

    def with_options(self, **_: Any) -> Counted:
        """Stay as it is."""
        return self

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> torch.Tensor:
        self.taken.append(index)
        return torch.zeros(1)


def test_a_round_loads_a_batch_before_those_that_are_timed(pack: pathlib.Path) -> None:
    counted = Counted(packio.PackDataset(pack, fields="image"))
    timed = load._TimedLoader(counted, 0, 1, batch_size=4, images=20)  # type: ignore[arg-type]  # as much of a dataset as a loader needs
    timed.run(lambda _: None, rounds=1)
    assert len(counted.taken) == 24  # a batch, then five


def test_a_round_ends_after_its_time_with_a_batch_of_each_worker(
    pack: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = packio.PackDataset(pack, fields="image", crop=packio.RandomResizedCrop(8))
    taken: list[int] = []

    def noted(batch: list[Any]) -> list[Any]:
        taken.append(len(batch))
        return batch

    monkeypatch.setattr(collating, "collate", noted)
    clock = iter(range(100))  # a second passes between two looks, of which a batch takes two
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))
    timed = load._TimedLoader(dataset, 0, 1, batch_size=4, images=400)
    timed.run(lambda _: None, 1, seconds=5)
    assert taken == [4, 4, 4, 4]  # a batch before, then three
    timed.run(lambda _: None, 1, seconds=0)
    assert taken[4:] == [4, 4]


def test_without_time_each_setting_is_measured_once(pack: pathlib.Path) -> None:
    said: list[str] = []
    result = load.measure(
        pack, crop=packio.RandomResizedCrop(8), batch_size=4, workers=[0], threads=[1, 2],
        rounds=3, images=10**7, seconds=1e-9, say=said.append,
    )  # fmt: skip
    assert [s.threads for s in result.settings] == [1, 2]
    assert [line.partition(":")[0] for line in said if "round" in line] == ["round 1 of 3"] * 2
    assert all(s.images_per_second == s.slowest == s.fastest > 0 for s in result.settings)


def test_an_image_costs_what_whole_batches_of_the_loop_cost(
    pack: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One definition: the parts of the time in which one thread makes batches add up to it."""
    monkeypatch.setattr(load, "_LONG", 0.0)
    dataset = packio.PackDataset(pack, crop=packio.RandomResizedCrop(8), fields="image", threads=2)
    asked: list[int] = []
    make = packio.LmdbDataset.__getitems__

    def noted(self: Any, indices: list[int]) -> Any:
        assert self.options["threads"] == 1
        asked.append(len(indices))
        return make(self, indices)

    monkeypatch.setattr(packio.PackDataset, "__getitems__", noted)
    clock = iter(range(0, 10**6, 2))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))
    found = load.time_stages(dataset, 40)
    assert set(asked) == {40}  # of 25 samples
    assert sum(found.values()) * 40 == pytest.approx(4e6)  # making 2 s, collating 2 s


@pytest.mark.parametrize(
    ("height", "width", "count"), [(375, 500, 64), (2000, 3000, 10), (9000, 9000, 8)]
)
def test_the_stages_of_photographs_are_timed_on_fewer_of_them(
    height: int, width: int, count: int
) -> None:
    class Photographs:
        """As much of a pack as choosing needs."""

        def __len__(self) -> int:
            return 100

        def rows(self, positions: Any) -> list[Any]:
            """Rows that know their size only."""
            return [types.SimpleNamespace(height=height, width=width) for _ in positions]

    dataset: Any = types.SimpleNamespace(pack=Photographs())
    assert len(gains.choose_images(dataset, 64)) == count


def setting(workers: int, threads: int, rate: float, spread: float) -> load.Setting:
    return load.Setting(workers, threads, rate, 1.0, rate * (1 - spread), rate * (1 + spread))


@pytest.mark.parametrize(
    ("rates", "spread", "best"),
    [
        ((1000.0, 1900.0, 1950.0, 1990.0), 0.05, 2),  # 2, 4 and 8 workers are alike
        ((1000.0, 1900.0, 2500.0, 2550.0), 0.05, 4),
        ((1000.0, 1100.0, 1300.0, 1500.0), 0.01, 8),  # every worker helps
        ((1000.0, 1010.0, 1020.0, 1030.0), 0.0, 1),  # one round says nothing of noise
    ],
)
def test_of_settings_that_are_alike_within_the_noise_the_one_with_the_fewest_workers_is_best(
    rates: tuple[float, ...], spread: float, best: int
) -> None:
    settings = [setting(w, 1, rate, spread) for w, rate in zip((1, 2, 4, 8), rates, strict=True)]
    result = load.LoadResult(
        path="x", format="lmdb", samples=1, batch_size=1, crop="", fidelity="exact",
        decoder="auto", cpus=8, settings=settings[::-1], stages={}, gains=[],
    )  # fmt: skip
    assert result.noise == pytest.approx(spread)
    assert result.best.workers == best


def test_another_candidate_begins_each_round() -> None:
    ran: list[str] = []
    run_in_turns("abcd", 4, ran.append)
    assert ["".join(ran[i : i + 4]) for i in range(0, 16, 4)] == ["abcd", "bcda", "cdab", "dabc"]


@pytest.mark.parametrize(
    "options", [{"rounds": 0}, {"batch_size": 0}, {"images": 0}, {"seconds": 0}]
)
def test_what_cannot_be_measured_is_refused(pack: pathlib.Path, options: dict[str, int]) -> None:
    with pytest.raises(OptionError):
        load.measure(pack, **options)  # type: ignore[arg-type]  # ints all


def test_the_command_says_what_to_use(pack: pathlib.Path) -> None:
    done = run("bench-load", pack, "--size", 16, "--rounds", 1, "--images", 16, "--batch-size", 8,
               "--workers", 1, "--threads", 1, "-q")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "one image on one core" in done.stdout
    assert "at this rate" in done.stdout
    assert "use: " in done.stdout


@pytest.mark.parametrize("options", [{"workers": [-1]}, {"threads": [0]}])
def test_impossible_settings_are_refused(pack: pathlib.Path, options: dict[str, list[int]]) -> None:
    with pytest.raises(OptionError, match="expected 1 thread"):
        load.measure(pack, workers=options.get("workers"), threads=options.get("threads"))
