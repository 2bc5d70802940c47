"""Lead through steps 1 and 3: time the stages, run the loop, try changes of the loop."""

from __future__ import annotations

import cProfile
import dataclasses
import datetime as dt
import functools
import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from packio.batches.collating import collate
from packio.errors import DiagnosisError, OutputError
from packio.images.tensors import ensure_contiguous, is_contiguous_batch
from packio.measuring.doctor import loops, remedies
from packio.measuring.doctor.findings import Cause, Measurements, Spread, Stages, Trial
from packio.measuring.doctor.loops import Loop, LoopRun, Step, call, combine
from packio.measuring.doctor.remedies import Change, Trials
from packio.measuring.doctor.samples import SampleTime, time_samples
from packio.measuring.doctor.setups import Setup, bytes_of, explained, size_of
from packio.measuring.turns import IndexFeed, IndexOrder
from packio.system import processors

_LONG = 0.3  # seconds of a worker for a batch, from which on the loop runs with pieces of batches
_PIECE = 0.05  # seconds of a worker for such a piece
_FOR_LOOP = 0.4  # share of the time left that the loop as it is may take
_LOOKED_AT = 64  # samples that are timed one by one, at most
_NO_CHANGE = Change(Cause.NONE, "", "")
_NO_BATCH = "the loader yields no batch; expected at least one"


class Examination:
    """One loader and step under examination; a context manager that ends all workers.

    Call `time_stages`, `run_loop` and `try_changes`, in this order; then `measured` has all.
    """

    def __init__(
        self, loader: Any, step: Step | None, seconds: float, say: Callable[[str], None]
    ) -> None:
        self._setup, self._step, self._seconds, self._say = Setup(loader), step, seconds, say
        self._workers = self._setup.workers or 0
        self._until = time.monotonic() + seconds
        self._order = IndexOrder(self._setup.indices)
        self._stages, self._samples, self._indices = Stages(), list[Any](), list[Any]()
        self._batch: Any = None
        self._size = 1  # samples a batch
        self._piece = 0  # samples a batch of the loops, if whole batches take too long; 0: whole
        self._price = 0.0  # seconds of a run of the loop as it is, with what is not timed
        self._step_alone: float | None = None  # seconds of the step on a batch that is there
        self._step_contiguous: float | None = None  # the same, with making the batch contiguous
        self._loops, self._runs = list[Loop](), list[LoopRun]()
        self._starting, self._trials = list[float](), list[Trial]()

    def __enter__(self) -> Examination:
        return self

    def __exit__(self, *_: object) -> None:
        for loop in self._loops:
            loop.close()

    def time_stages(self) -> None:
        """Time samples, batches and the step by themselves."""
        loading = 0.0  # seconds of one process for a batch
        with explained("the loader failed"):
            if self._setup.is_map:
                loading = self._time_samples()
            else:
                self._batch = next(iter(self._setup.make(None)), None)
                if self._batch is None:
                    raise DiagnosisError(_NO_BATCH)
                self._size = size_of(self._batch)
        if self._step is not None:
            self._say("the step, on a batch that is there")
            self._time_step(self._step)
        # Pieces of batches, and loops without the step, if loading takes far too long
        is_slow = loading / max(1, self._workers) > 1.5 * (self._step_alone or 0.0)
        long = min(_LONG, self._seconds / 80)
        if self._setup.has_batches and loading > long and is_slow and self._size > 1:
            self._piece = max(1, int(self._size * _PIECE / loading))

    def _time_samples(self) -> float:
        """Time samples and what becomes of them. Returns the seconds of a process for a batch."""
        setup, budget = self._setup, self._seconds * 0.08
        self._say("samples, one by one")
        first = next(iter(setup.indices()), None)
        if first is None:
            raise DiagnosisError(_NO_BATCH)
        self._size = len(first) if setup.has_batches else 1
        count = min(_LOOKED_AT, self._size * (setup.epoch_batches() or _LOOKED_AT))
        indices = (self._order.take(count) if setup.has_batches
                   else [self._order.take() for _ in range(count)])  # fmt: skip
        share, again, samples, self._indices, steps = time_samples(setup, indices, budget)
        if setup.has_batches:
            if share.total * self._size <= budget:
                samples = setup.fetch(self._order.take(self._size))
            else:  # repeat those fetched so far
                samples = (list(samples) * -(-self._size // len(samples)))[: self._size]
            self._samples = samples
            self._say("collating and handing over")
            collating = loops.median_time(lambda: setup.collate(samples), budget)
            collating *= self._size / max(1, len(samples))
            self._batch = setup.collate(samples)
        else:  # the dataset gives batches
            self._batch, self._size, collating = samples[0], size_of(samples[0]), 0.0
            share = SampleTime(*(part / self._size for part in share))
            again /= self._size
        handing = None
        if setup.workers:
            handing = loops.time_hand_over(self._batch, budget, shared=setup.collate is collate)
        self._stages = Stages(
            **share._asdict(), storage_again=again, steps=steps,
            collate=collating, hand_over=handing,
            copy=loops.time_copy(self._batch, budget / 2), batch_bytes=bytes_of(self._batch),
        )  # fmt: skip
        self._batch = setup.deliver(self._batch)
        return share.total * self._size + collating + (handing or 0.0)

    def _time_step(self, step: Step) -> None:
        run_alone = functools.partial(call, step, self._batch)
        budget = self._seconds * 0.04
        if is_contiguous_batch(self._batch):
            self._step_alone = loops.median_time(run_alone, budget)
            return
        ways = list[Callable[[], None]]((
            run_alone, lambda: call(step, ensure_contiguous(self._batch)),
        ))  # fmt: skip
        times: list[list[float]] = []
        until = time.monotonic() + 3 * budget
        while not times or (len(times) < 3 and time.monotonic() < until):  # in turns
            times.append([loops.median_time(work, budget / 3, least=2) for work in ways])
        self._step_alone, self._step_contiguous = map(statistics.median, zip(*times, strict=True))

    def run_loop(self) -> None:
        """Run the loop as it is, three times if there is time."""
        self._say("the loop")
        until = time.monotonic() + _FOR_LOOP * (self._until - time.monotonic())
        self._baseline = self._make_loop()
        first = self._run_baseline()
        self._price /= 2  # starting the workers does not come again
        self._starting = self._time_starts()
        while len(self._runs) < 3 and time.monotonic() + self._price < until:
            self._runs.append(self._run_baseline())
        self._runs = self._runs or [first]

    def _run_baseline(self) -> LoopRun:
        """Run the loop as it is, and note how long that takes, with all that is not timed."""
        began = time.monotonic()
        run = self._time_loop(self._baseline)
        self._price = time.monotonic() - began
        return run

    def _time_starts(self) -> list[float]:
        """Measure the seconds that starting the workers takes, if each epoch starts them."""
        starts: list[float] = []
        if not self._workers or self._setup.is_persistent or not self._setup.is_map:
            return starts
        until = time.monotonic() + self._seconds * 0.05
        if time.monotonic() + 2 * self._price > self._until:
            return starts
        while len(starts) < 3 and (not starts or time.monotonic() < until):
            loop = self._make_loop()
            starts.append(max(0.0, loop.first_batch() - loop.first_batch()))
            loop.close()
        return starts

    def _make_loop(self, change: Change = _NO_CHANGE) -> Loop:
        setup, options = self._setup, dict(change.options)
        feed = IndexFeed(self._order, self._piece or change.size) if setup.is_map else None
        step = None if self._piece else self._step
        if step is not None and change.step is not None:
            step = change.step(step)
        workers = options.get("num_workers", self._workers)
        with explained("the loader failed"):
            loop = Loop(setup.make(feed, **options), feed, step, workers)
        self._loops.append(loop)
        return loop

    def _time_loop(self, loop: Loop, change: Change | None = None) -> LoopRun:
        run = loop.run(self._seconds / 80, self._until)
        if not self._piece:
            return run
        change, step = change or _NO_CHANGE, self._step_alone
        if change.step is not None and self._step is not None:
            changed = change.step(self._step)
            step = loops.median_time(lambda: call(changed, self._batch), self._seconds / 100)
        return combine(run, step, self._size, change.options.get("num_workers", self._workers))

    def try_changes(self) -> None:
        """Estimate the gains that cannot be tried; try what might help in the time that is left."""
        measured = self.measured()
        candidates = remedies.changes(self._setup, measured, self._samples, self._indices)
        if self._piece:
            candidates = [c for c in candidates if c.size is None]
        estimated = remedies.estimate_persistence(measured, self._starting)
        estimated += remedies.estimate_packing(
            self._setup, measured, self._indices, 0.1 * self._seconds, self._say
        )
        trials = Trials(
            self._baseline, self._make_loop, self._time_loop, self._say, self._runs, self._price
        )
        self._trials = trials.run(candidates, self._until) + estimated
        self._runs = trials.baseline_runs

    def profile(self, out: str | os.PathLike[str]) -> None:
        self._say("the loop, profiled")
        loop, recorder = self._make_loop(), cProfile.Profile()
        recorder.runcall(loop.run, min(5.0, self._seconds / 5))
        loop.close()
        try:
            recorder.dump_stats(out)
        except OSError as error:
            raise OutputError(f"{os.fspath(out)}: {error.strerror}") from error

    def measured(self) -> Measurements:
        """Give all numbers measured so far."""
        setup, has_step = self._setup, self._step is not None
        start_up = min(self._starting) if self._starting else None
        return Measurements(
            loader=str(setup), batch_size=self._size, workers=setup.workers,
            cpus=processors.usable(), has_step=has_step, epoch_batches=setup.epoch_batches(),
            device=torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
            rate=Spread.of([run.rate for run in self._runs]),
            waiting=Spread.of([run.waiting for run in self._runs] if has_step else [1.0]),
            step=self._step_alone, step_contiguous=self._step_contiguous,
            contiguous=is_contiguous_batch(self._batch),
            stages=dataclasses.replace(self._stages, start_up=start_up),
            trials=tuple(self._trials), is_loader_alone=bool(self._piece),
            receiving=statistics.median([run.receiving for run in self._runs]),
            machine=f"{processors.model()}, Python {platform.python_version()}, "
            f"torch {torch.__version__}, {dt.date.today()}",  # noqa: DTZ011 (the user's day)
        )  # fmt: skip
