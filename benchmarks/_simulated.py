"""Training loops with 64 workers, simulated: batch by batch, with times that vary."""

from __future__ import annotations

import random
import statistics
import warnings
from typing import Any

from torch.utils.data import DataLoader

from packio.measuring.doctor import Cause, Diagnosis, Measurements, remedies
from packio.measuring.doctor.findings import Spread, Stages
from packio.measuring.doctor.loops import LoopRun
from packio.measuring.doctor.remedies import Change
from packio.measuring.doctor.setups import Setup

WORKERS, SIZE, LAPS = 64, 32, 2
_PIECE = 0.05  # seconds of a worker for a piece of a batch, with which the doctor runs slow loops
KINDS = ("hand-over", "transform", "first reads", "too many", "step")


class Simulated:
    """A loop on a machine of 64 processors, and a doctor who looks at it for 25 of its seconds.

    Args:
        draw: Draws the sizes, and how much each batch, each run and each measurement varies.
        kind: What is planted.

    Attributes:
        expected: The kind that should be found; none for a slow step.
        sizes: What was drawn, in seconds.
    """

    def __init__(self, draw: random.Random, kind: str) -> None:
        self._draw, self._now = draw, 0.0
        self._noise = draw.uniform(0.02, 0.25)  # of runs
        self._work = {"storage": 0.03, "decode": 0.2, "transform": 0.1, "collate": 0.01}  # a batch
        self._again, self._send, self._receive, self._step = 0.02, 0.005, 0.002, 0.002
        self._crowd = 0.0  # seconds of storage that each other worker adds
        size = 0.0
        if kind == "hand-over":
            self._receive = self._send = size = draw.uniform(0.02, 0.06)
        elif kind == "transform":
            self._work["transform"] = size = draw.uniform(1.5, 5)
        elif kind == "first reads":
            self._work["storage"] = size = draw.uniform(1.5, 5)
            self._again = 0.0
        elif kind == "too many":
            self._crowd = size = draw.uniform(0.005, 0.02)
        else:
            self._step = size = draw.uniform(0.03, 0.2)
        self.sizes = {"seconds a batch": round(size, 4), "noise": round(self._noise, 3)}
        self.expected = {
            "hand-over": [Cause.HAND_OVER], "transform": [Cause.TRANSFORM],
            "first reads": [Cause.STORAGE], "too many": [Cause.WORKERS_TOO_MANY], "step": [],
        }[kind]  # fmt: skip

    def _varied(self, seconds: float, sigma: float) -> float:
        return seconds * self._draw.lognormvariate(0.0, sigma)

    def run(self, change: Change | None = None) -> LoopRun:
        """Run the loop, batch by batch: workers take turns, each makes two batches ahead."""
        options = change.options if change else {}
        workers = options.get("num_workers", WORKERS)
        scale = (change.size or SIZE) / SIZE if change else 1.0
        work = sum(self._work.values()) + self._send
        if "dataset" in options:
            work -= self._work["storage"]
        work = scale * (work + self._crowd * workers**2 / 8)
        slow = self._draw.lognormvariate(0.0, self._noise)
        free, taken, main = [0.0] * max(1, workers), list[float](), 0.0
        run, lap = LoopRun(0, 0.0, 0.0), max(1, workers)
        for number in range((2 + LAPS) * lap):
            asked = taken[number - 2 * lap] if number >= 2 * lap else 0.0
            worker = number % lap
            free[worker] = max(free[worker], asked) + self._varied(work * slow, 0.3)
            received = self._varied(scale * self._receive * slow, 0.1) if workers else 0.0
            arrived = max(main, free[worker]) + received
            computed = self._varied(scale * self._step, 0.05)
            taken.append(arrived)
            if number >= 2 * lap:
                run = LoopRun(run.samples + round(SIZE * scale), run.waited + arrived - main,
                              run.computed + computed, run.received + received)  # fmt: skip
            main = arrived + computed
        self._now += (main + 2 * work) * min(1.0, _PIECE / work)
        return run

    def diagnosis(self) -> Diagnosis:
        """Measure the stages, each wrongly by a little; run the loop; try changes."""
        each = {name: self._varied(s / SIZE, 0.15) for name, s in self._work.items()}
        stages = Stages(
            storage=each["storage"] + self._crowd / 8 / SIZE, decode=each["decode"],
            transform=each["transform"], storage_again=self._again / SIZE,
            collate=each["collate"] * SIZE, hand_over=self._varied(self._send, 0.15),
        )  # fmt: skip
        runs = [self.run() for _ in range(3)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of more workers than processors
            setup = Setup(DataLoader(range(1 << 20), SIZE, num_workers=WORKERS))  # type: ignore[arg-type]  # as good as a dataset
        measured, loop = self._measured(stages, runs), _Changed(self, None)
        changes = remedies.list_changes(setup, measured)
        found, later = remedies.try_changes(
            changes, loop, lambda change: _Changed(self, change),  # type: ignore[arg-type,return-value]  # as much of a loop as trials need
            self._now / 3, measured.rate.median, 25.0, lambda _: None, lambda: self._now,
        )  # fmt: skip
        return Diagnosis(self._measured(stages, runs + later, tuple(found)))

    def _measured(
        self, stages: Stages, runs: list[LoopRun], trials: tuple[Any, ...] = ()
    ) -> Measurements:
        return Measurements(
            loader="simulated", batch_size=SIZE, workers=WORKERS, cpus=64, device="cpu",
            has_step=True, epoch_batches=1 << 15, rate=Spread.summarize([run.rate for run in runs]),
            waiting=Spread.summarize([run.waiting for run in runs]), step=self._step,
            contiguous=True, step_contiguous=None, stages=stages, trials=trials,
            receiving=statistics.median(run.receiving for run in runs),
        )  # fmt: skip


class _Changed:
    """A simulated loop, perhaps with a change."""

    def __init__(self, loop: Simulated, change: Change | None) -> None:
        self._loop, self._change = loop, change

    def run(self) -> LoopRun:
        """Run the loop."""
        return self._loop.run(self._change)

    def close(self) -> None:
        """Do nothing."""
