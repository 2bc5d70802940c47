"""Lead through steps 1 and 3: time the stages, run the loop, try changes of the loop."""

from __future__ import annotations

import cProfile
import dataclasses
import datetime as dt
import math
import operator
import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from packio.batches.collating import collate
from packio.errors import DiagnosisError, OutputError
from packio.images.tensors import ensure_contiguous, is_contiguous_batch, map_tensors
from packio.measuring.doctor import loops, remedies
from packio.measuring.doctor.findings import Cause, Measurements, Spread, Stages, Trial
from packio.measuring.doctor.loops import Loop, LoopRun, Step, call
from packio.measuring.doctor.remedies import Change
from packio.measuring.doctor.samples import time_samples
from packio.measuring.doctor.setups import Setup, explain_errors, leaves, size_of
from packio.measuring.turns import IndexFeed, IndexOrder
from packio.system import processors

_LONG = 0.3  # seconds of a worker for a batch, from which on the loop runs with pieces of batches
_PIECE = 0.05  # seconds of a worker for such a piece
_FOR_LOOP = 0.4  # share of the time left that the loop as it is may take
_LOOKED_AT = 64  # samples that are timed one by one, at most
_NO_CHANGE = Change(Cause.NONE, "", "")


class Examination:
    """One loader and step under examination; `close` ends all workers.

    Call `time_stages`, `run_loop` and `try_changes`, in this order; then `summarize` gives all.
    """

    def __init__(
        self, loader: Any, step: Step | None, seconds: float, say: Callable[[str], None]
    ) -> None:
        self._setup, self._step, self._seconds, self._say = Setup(loader), step, seconds, say
        self._until = time.monotonic() + seconds
        self._order = IndexOrder(self._setup.indices)
        self._stages, self._indices = Stages(), list[Any]()
        self._batch: Any = None
        self._size = 1  # samples a batch
        self._piece = 0  # samples a batch of the loops, if whole batches take too long; 0: whole
        self._price = 0.0  # seconds of a run of the loop as it is, with what is not timed
        self._step_alone: float | None = None  # seconds of the step on a batch that is there
        self._step_contiguous: float | None = None  # the same, with making the batch contiguous
        self._loops, self._runs, self._trials = list[Loop](), list[LoopRun](), list[Trial]()

    def close(self) -> None:
        for loop in self._loops:
            loop.close()

    def time_stages(self) -> None:
        """Time samples, batches and the step by themselves."""
        loading = 0.0  # seconds of one process for a batch
        with explain_errors("the loader failed"):
            if self._setup.is_map:
                loading = self._time_samples()
            else:
                self._batch = next(iter(self._setup.make(None)), self)
                if self._batch is self:
                    raise DiagnosisError("the loader yields no batch; expected at least one")
                self._size = size_of(self._batch)
        if self._step is not None:
            self._say("the step, on a batch that is there")
            step, batch, budget = self._step, self._batch, self._seconds * 0.06
            self._step_alone = loops.median_time(lambda: call(step, batch), budget)
            if not is_contiguous_batch(batch):
                self._step_contiguous = loops.median_time(
                    lambda: call(step, ensure_contiguous(batch)), budget
                )
        # Pieces of batches, and loops without the step, if loading takes far too long
        is_slow = loading / max(1, self._setup.workers or 0) > 1.5 * (self._step_alone or 0.0)
        if loading > min(_LONG, self._seconds / 80) and is_slow and self._size > 1:
            self._piece = max(1, int(self._size * _PIECE / loading))

    def _time_samples(self) -> float:
        """Time samples and what becomes of them. Returns the seconds of a process for a batch."""
        setup, budget = self._setup, self._seconds * 0.08
        self._say("samples, one by one")
        self._size = len(next(iter(setup.indices()), ()))
        if not self._size:
            raise DiagnosisError("the loader yields no batch; expected at least one")
        count = min(_LOOKED_AT, self._size * (setup.epoch_batches() or _LOOKED_AT))
        stages, samples, self._indices = time_samples(setup, self._order.take(count), budget)
        one = sum(filter(None, (stages.storage, stages.decode, stages.transform)))
        if one * self._size <= budget:
            samples = setup.fetch(self._order.take(self._size))
        else:  # repeat those fetched so far
            samples = (list(samples) * -(-self._size // len(samples)))[: self._size]
        self._say("collating and handing over")
        collating = loops.median_time(lambda: setup.collate(samples), budget)
        batch, handing, copying = setup.collate(samples), None, None
        if torch.cuda.is_available():
            to_gpu = operator.methodcaller("to", "cuda", non_blocking=True)
            copying = loops.median_time(
                lambda: call(lambda b: map_tensors(b, to_gpu), batch), budget / 2
            )
        if setup.workers:
            handing = loops.time_hand_over(batch, budget, shared=setup.collate is collate)
        self._stages = dataclasses.replace(
            stages, collate=collating, hand_over=handing, copy=copying,
            batch_bytes=sum(int(getattr(leaf, "nbytes", 0)) for leaf in leaves(batch)),
        )  # fmt: skip
        self._batch = setup.deliver(batch)
        return one * self._size + collating + (handing or 0.0)

    def run_loop(self) -> None:
        """Run the loop as it is: once, and if there is time three times more."""
        self._say("the loop")
        until = time.monotonic() + _FOR_LOOP * (self._until - time.monotonic())
        self._baseline = self._make_loop()
        runs = list[LoopRun]()
        while not runs or (len(runs) < 4 and time.monotonic() + self._price < until):
            began = time.monotonic()
            runs.append(self._baseline.run())
            self._price = (time.monotonic() - began) / (1 if runs[1:] else 2)
        self._runs = runs[1:] or runs  # the first run starts the workers: it counts only if alone

    def _make_loop(self, change: Change = _NO_CHANGE) -> Loop:
        setup, step, alone = self._setup, self._step, None
        feed = IndexFeed(self._order, self._piece or change.size) if setup.is_map else None
        if step is not None and change.step is not None:
            step = change.step(step)
        if self._piece:
            step, alone = None, (self._step_alone or 0.0) / self._size
        workers = change.options.get("num_workers", setup.workers or 0)
        with explain_errors("the loader failed"):
            loop = Loop(setup.make(feed, **change.options), feed, step, workers,
                        seconds=self._seconds / 80, until=self._until, alone=alone)  # fmt: skip
        self._loops.append(loop)
        return loop

    def try_changes(self) -> None:
        """Estimate the gains that cannot be tried; try what might help in the time that is left."""
        setup, measured = self._setup, self.summarize()
        changes = remedies.list_changes(setup, measured)
        if self._piece:  # the step is not called, and takes less time than loading
            changes = [change for change in changes if change.options]
        estimated = remedies.estimate_gains(
            setup, measured, self._indices, 0.1 * self._seconds, self._say
        )
        tried, runs = remedies.try_changes(
            changes, self._baseline, self._make_loop, self._price, measured.rate.median,
            self._until, self._say,
        )  # fmt: skip
        self._trials = tried + estimated
        self._runs += runs

    def profile(self, out: str | os.PathLike[str]) -> None:
        self._say("the loop, profiled")
        loop, recorder = self._make_loop(), cProfile.Profile()
        loop.seconds, loop.until = min(5.0, self._seconds / 5), math.inf
        recorder.runcall(loop.run)
        loop.close()
        try:
            recorder.dump_stats(out)
        except OSError as error:
            raise OutputError(f"{os.fspath(out)}: {error.strerror}") from error

    def summarize(self) -> Measurements:
        setup, has_step = self._setup, self._step is not None
        first, *later = self._baseline.first_waits
        if later and setup.workers and setup.is_map and not setup.is_persistent:
            start_up = max(0.0, first - statistics.median(later))
            self._stages = dataclasses.replace(self._stages, start_up=start_up)
        return Measurements(
            loader=str(setup), batch_size=self._size, workers=setup.workers,
            cpus=processors.usable(), has_step=has_step, epoch_batches=setup.epoch_batches(),
            device=torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
            rate=Spread.summarize([run.rate for run in self._runs]),
            waiting=Spread.summarize([run.waiting for run in self._runs] if has_step else [1.0]),
            step=self._step_alone, step_contiguous=self._step_contiguous,
            contiguous=is_contiguous_batch(self._batch), stages=self._stages,
            trials=tuple(self._trials), is_loader_alone=bool(self._piece),
            receiving=statistics.median([run.receiving for run in self._runs]),
            machine=f"{processors.model()}, Python {platform.python_version()}, "
            f"torch {torch.__version__}, {dt.date.today()}",  # noqa: DTZ011 (the user's day)
        )  # fmt: skip
