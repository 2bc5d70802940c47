"""Trials and estimates: what is chance, what is a gain, which changes fit into the time."""

from __future__ import annotations

import dataclasses
import math
import pathlib
import random
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import long
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, Subset

import packio
from packio.measuring.doctor import (
    Cause,
    Diagnosis,
    Measurements,
    Trial,
    remedies,
)
from packio.measuring.doctor.findings import Spread, Stages
from packio.measuring.doctor.loops import Loop, LoopRun
from packio.measuring.doctor.remedies import Change, try_changes
from packio.measuring.doctor.setups import Setup


class FakeLoop:
    """A loop whose rate is known, but for noise; a run takes a second of a clock that is not."""

    def __init__(self, rate: float, run: Callable[[float], LoopRun]) -> None:
        self._rate, self._run = rate, run

    def run(self) -> LoopRun:
        """Take as long as the bench says."""
        return self._run(self._rate)

    def close(self) -> None:
        """Do nothing."""


class Bench:
    """Trials of fake loops, on a fake clock.

    Args:
        rates: The true rate of each change; that of the loop as it is is 100.
        noise: Standard deviation of the logarithm of a run's rate.
        bursts: Whether one run in ten is five times as noisy.
    """

    def __init__(
        self,
        rates: dict[str, float],
        noise: float,
        seed: int,
        price: float = 1,
        bursts: bool = False,
    ) -> None:
        self.now, self._price, self._noise, self._bursts = 0.0, price, noise, bursts
        self._rates, self._draw, self.ran = rates, random.Random(seed), list[float]()

    def run(self, changes: list[Change], until: float) -> list[Trial]:
        """Try changes for so many seconds."""
        make: Any = lambda change: FakeLoop(self._rates[change.what], self._run)  # noqa: E731 (as much of a loop as trials need)
        baseline: Any = FakeLoop(100.0, self._run)
        rate = statistics.median(self._draw_run(100.0).rate for _ in range(3))
        return try_changes(
            changes, baseline, make, self._price, rate, until, lambda _: None, lambda: self.now
        )[0]

    def _run(self, rate: float) -> LoopRun:
        self.now += self._price
        self.ran.append(rate)
        return self._draw_run(rate)

    def _draw_run(self, rate: float) -> LoopRun:
        noise = self._noise * (5 if self._bursts and self._draw.random() < 0.1 else 1)
        return LoopRun(1, 1 / rate / math.exp(self._draw.gauss(0, noise)), 0.0)


KINDS = (Cause.WORKERS_TOO_FEW, Cause.STORAGE, Cause.BATCH_SIZE, Cause.DECODE, Cause.COLLATE)
CHANGES = [Change(kind, kind.value, "") for kind in KINDS]


@pytest.mark.parametrize(
    ("t", "freedom", "tail"),  # from printed tables of Student's t
    [(2.920, 2, 0.05), (6.965, 2, 0.01), (2.353, 3, 0.05), (2.132, 4, 0.05), (3.365, 5, 0.01),
     (1.796, 11, 0.05), (0.0, 5, 0.5), (-2.353, 3, 0.95), (6.314, 1, 0.05)],
)  # fmt: skip
def test_the_tail_of_students_t_is_that_of_the_tables(t: float, freedom: int, tail: float) -> None:
    assert remedies.student_tail(t, freedom) == pytest.approx(tail, rel=2e-3)


def test_the_chance_is_that_of_all_changes_together() -> None:
    ratios = [math.exp(x) for x in (0.1, 0.2, 0.3)]  # t = 0.2 / (0.1 / sqrt(3)) = 3.464
    assert remedies.chance(ratios, 1) == pytest.approx(0.0371, rel=1e-2)
    assert remedies.chance(ratios, 3) == pytest.approx(3 * 0.0371, rel=1e-2)
    assert remedies.chance([0.9, 0.8, 0.7], 3) == 1
    assert remedies.chance([3.0, 3.0], 1) == 1  # two rounds are too few
    assert 0 < remedies.chance([1.001] * 3, 1) < 1


@pytest.mark.parametrize("bursts", [False, True])
@pytest.mark.parametrize("seeds", long.after(1, (50, 300)))
def test_of_changes_without_effect_one_diagnosis_in_twenty_names_a_gain_at_most(
    bursts: bool, seeds: int
) -> None:
    rates = dict.fromkeys((kind.value for kind in KINDS), 100.0)
    wrong = sum(
        any(
            trial.chance <= 0.05
            for trial in Bench(rates, 0.3, seed, bursts=bursts).run(CHANGES, until)
        )
        for seed in range(seeds)
        for until in (25.0, 100.0)
    )
    runs = 2 * seeds
    assert wrong <= runs * 0.05 + 3 * math.sqrt(runs * 0.05 * 0.95)


def test_a_clear_gain_is_found_on_a_noisy_machine() -> None:
    rates = dict.fromkeys((kind.value for kind in KINDS), 100.0) | {"storage": 250.0}
    found = [
        [trial.kind for trial in Bench(rates, 0.2, seed).run(CHANGES, 60.0) if trial.is_gain]
        for seed in range(50)
    ]
    assert sum(Cause.STORAGE in kinds for kinds in found) >= 45


def test_first_looks_are_no_evidence() -> None:
    bench = Bench({"storage": 400.0}, 0.0, 0)
    (look,) = bench.run([CHANGES[1]], 6.0)  # a run is a look; two rounds would fit after it
    assert look.rounds == 0
    assert bench.now == 1
    assert look.factor.median == pytest.approx(4)
    assert not look.is_gain


def test_no_more_is_begun_than_the_time_is_enough_for() -> None:
    for until in (1.0, 10.0, 30.0, 100.0):
        bench = Bench({change.what: 150.0 for change in CHANGES}, 0.1, 1)
        bench.run(CHANGES, until)
        assert bench.now <= until
    slow = Bench({change.what: 150.0 for change in CHANGES}, 0.1, 1, price=40.0)
    assert slow.run(CHANGES, 6.0) == []
    assert slow.now == 0


def test_every_loop_runs_once_a_round_and_none_is_always_first() -> None:
    bench = Bench({"storage": 300.0, "decode": 200.0}, 0.0, 0)
    bench.run([CHANGES[1], CHANGES[3]], 40.0)
    rounds = [bench.ran[i : i + 3] for i in range(2, len(bench.ran), 3)]
    assert all(sorted(order) == [100.0, 200.0, 300.0] for order in rounds)
    assert len({order[0] for order in rounds}) == 3


@pytest.mark.parametrize(
    ("now", "tried"),
    [(0, ["2 workers"]), (1, ["2 workers"]), (2, ["1 worker", "4 workers"]),
     (8, ["2 workers", "16 workers"]), (64, ["2 workers"])],
)  # fmt: skip
def test_one_number_of_workers_is_tried_in_each_direction(now: int, tried: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of more workers than processors
        setup = Setup(DataLoader(Numbers(), 4, num_workers=now))
    slow = dataclasses.replace(measured(storage=0.0, decode=0.0, transform=0.1), workers=now)
    found = [c.what for c in remedies.list_changes(setup, slow) if "worker" in c.what]
    assert sorted(found, key=len) == tried


class Numbers(Dataset[Any]):
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(index)

    def __len__(self) -> int:
        return 100


# What is not tried


def measured(**stages: float) -> Measurements:
    one = Spread(1.0, 1.0, 1.0)
    return Measurements(
        loader="DataLoader", batch_size=10, workers=0, cpus=2, device="cpu", has_step=False,
        epoch_batches=10, rate=Spread(100.0, 100.0, 100.0), waiting=one, step=None,
        contiguous=True, step_contiguous=None, stages=Stages(**stages),  # type: ignore[arg-type]  # no whole numbers here
    )  # fmt: skip


class ImageFolder(Dataset[Any]):
    """What torchvision's has: `root`, `samples`, `loader`."""

    def __init__(self, root: pathlib.Path, size: int) -> None:
        self.root, self.samples = str(root), list[tuple[str, int]]()
        pixels = np.random.default_rng(0).integers(0, 255, (size, size, 3), np.uint8)
        for i in range(4):
            Image.fromarray(pixels).save(root / f"{i}.jpg")
            self.samples.append((str(root / f"{i}.jpg"), i % 2))

    @staticmethod
    def loader(path: str) -> Image.Image:
        """Open a file as torchvision does."""
        return Image.open(path).convert("RGB")

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(np.asarray(self.loader(self.samples[index][0])).copy())


@pytest.mark.parametrize("size", [64, 600])
def test_packing_is_proposed_for_a_slow_image_folder(tmp_path: pathlib.Path, size: int) -> None:
    setup = Setup(DataLoader(Subset(ImageFolder(tmp_path, size), [3, 1, 0]), 2))
    slow = measured(storage=0.005, decode=0.005, transform=0.0)
    found = remedies.estimate_gains(setup, slow, [0, 2], 1.0, lambda _: None)
    pack = f"packio pack {tmp_path} OUT.lmdb"
    resized = [f"{pack} --encode jpeg --resize short=256"] if size == 600 else []
    assert [trial.code for trial in found] == [pack, *resized]
    assert all(trial.assumption and not trial.rounds for trial in found)
    assert found[0].factor.median == pytest.approx(2)  # at most: half of the time is storage
    assert found[0].is_gain
    quick = measured(storage=0.0001, decode=0.0001, transform=0.01)  # reading takes little
    assert remedies.estimate_gains(setup, quick, [0, 1], 1.0, lambda _: None) == []


def test_the_folder_of_a_folder_dataset_is_packed(image_folder: pathlib.Path) -> None:
    dataset = packio.FolderDataset(image_folder, crop=packio.RandomResizedCrop(16))
    slow = measured(storage=0.0, decode=0.005, transform=0.0)
    found = remedies.estimate_gains(Setup(DataLoader(dataset)), slow, [0, 1], 1.0, lambda _: None)
    command = f"packio pack {image_folder} OUT.lmdb --encode jpeg --resize short=18"
    assert [trial.code for trial in found] == [command]  # the decoder of files is that of packs
    assert remedies.find_files(dataset, [0, 1]) == (str(image_folder), [])
    assert remedies.find_files([1, 2], [0]) == ("", [])


def test_estimates_are_marked_and_say_what_they_assume() -> None:
    short = measured(storage=0.0, decode=0.0, transform=0.01, start_up=1.0)
    setup = Setup(DataLoader(Numbers()))
    (living,) = remedies.estimate_gains(setup, short, [0], 1.0, lambda _: None)
    assert living.factor.median == pytest.approx(2)  # an epoch takes a second
    tried = Trial(Cause.COLLATE, "tried", "code", Spread(1.5, 1.4, 1.6), 6, chance=1 / 64)
    diagnosis = Diagnosis(Measurements(**{**vars(short), "trials": (living, tried)}))
    assert diagnosis.remedies == [tried, living]  # what was tried comes first
    said = str(diagnosis)
    head = said.index("What may help, estimated, not tried:")
    assert said.index("1.50 (1.40 to 1.60)") < head < said.index("persistent_workers=True")
    assert "2.00 estimated" in said
    assert "workers start once" in said
    assert "workers start once" in diagnosis.html()


def test_a_gain_of_decoding_is_that_of_the_whole_loop() -> None:
    trial = remedies._estimate(
        Cause.DECODE, {Cause.DECODE: 0.5}, "change", "code", "assumption", (4.0, 2.0, 1e9)
    )
    assert trial.factor == pytest.approx((1.6, 4 / 3, 2.0))


# The time


class Clocked:
    """Batches of one sample that come after so many seconds of a clock that is set by them.

    Args:
        waits: Seconds of waiting for each batch; half of them computing.
    """

    def __init__(self, waits: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall, self.waits = 0.0, waits
        monkeypatch.setattr(time, "perf_counter", lambda: self.wall)
        monkeypatch.setattr(time, "thread_time", lambda: self.wall / 2)

    def __iter__(self) -> Any:
        for wait in self.waits:
            self.wall += wait
            yield torch.zeros(1)


def test_a_loop_tells_computing_from_idling_while_it_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batches = Clocked([3.0] * 100, monkeypatch)
    run = Loop(batches, None, None, workers=2, seconds=7.0).run()
    assert run == LoopRun(4, 12.0, 0.0, 6.0)  # two whole laps
    assert run.receiving == pytest.approx(0.5)


def test_what_workers_make_while_others_start_is_not_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Four workers that start a second after one another, have made two batches each when the last
    # one has begun, and make four batches in four seconds.
    waits = [1.0] * 4 + [0.0] * 8 + [4.0, 0.0, 0.0, 0.0] * 10
    loop = Loop(Clocked(waits, monkeypatch), None, None, workers=4, seconds=8.0)
    assert loop.run().rate == pytest.approx(1.0)


class Seconds(Dataset[Any]):
    """Samples that each take a second of a clock, which nobody waits for."""

    def __init__(self, clock: list[float]) -> None:
        self.clock = clock

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> torch.Tensor:
        self.clock[0] += 1.0
        return torch.zeros(3)


def test_a_slow_loader_takes_little_longer_than_the_seconds_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]

    def ticking() -> float:
        clock[0] += 1e-4
        return clock[0]

    monkeypatch.setattr(time, "monotonic", ticking)
    monkeypatch.setattr(time, "perf_counter", ticking)
    found = packio.doctor(DataLoader(Seconds(clock), 32), lambda _: None, seconds=6)
    assert found.kinds[0] is Cause.STORAGE
    assert clock[0] < 10  # a lap of the loop is run, and a few samples are timed, in any case
