"""Steps 1b and 1c: the loop, waiting and computing; and the cost of a batch by itself."""

from __future__ import annotations

import math
import pickle
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch

from packio.errors import DiagnosisError
from packio.images.tensors import map_tensors, new_batch
from packio.measuring.doctor.samples import clock
from packio.measuring.doctor.setups import explain_errors, size_of
from packio.measuring.turns import IndexFeed

Step = Callable[[Any], Any]
_AHEAD = 2  # batches that each worker makes ahead


class LoopRun(NamedTuple):
    """Samples of one run of a loop, and seconds in the loader and in the step."""

    samples: int
    waited: float
    computed: float
    received: float = 0.0  # seconds of `waited` in which this thread computed

    @property
    def seconds(self) -> float:
        return max(self.waited + self.computed, 1e-9)

    @property
    def rate(self) -> float:
        return self.samples / self.seconds

    @property
    def waiting(self) -> float:
        return self.waited / self.seconds

    @property
    def receiving(self) -> float:
        return min(self.waited, self.received) / self.seconds


class Loop:
    """A loader with a step. It runs now and then; in between its workers wait.

    About as many batches as there are workers arrive at once, so laps of so many are timed.
    A run takes about `seconds`, or `most` samples; after `until`, by time.monotonic, it ends with
    its lap. `alone`: seconds of the step for a sample, if the step is not called but ran by itself.
    """

    def __init__(
        self, loader: Iterable[Any], feed: IndexFeed | None, step: Step | None, workers: int, *,
        seconds: float = math.inf, until: float = math.inf, most: float = math.inf,
        alone: float | None = None,
    ) -> None:  # fmt: skip
        self.seconds, self.until, self._most = seconds, until, most
        self.first_waits: list[float] = []  # seconds from the start of each run to its first batch
        self._loader: Any = loader
        self._feed, self._step, self._workers, self._alone = feed, step, workers, alone
        self._source: Iterator[Any] | None = None
        self._batch: Any = None

    def run(self) -> LoopRun:
        """Run after laps that are not timed.

        Workers start one after the other. Until the last one has made a batch, the others have made
        all that they may make ahead: batches that come at once, and are thrown away.
        """
        if self._feed is not None:
            self._feed.is_open = True
            self._source = None
        nothing, lap = LoopRun(0, 0.0, 0.0), max(1, self._workers)
        ahead = 0 if self.first_waits else _AHEAD * self._workers
        self.first_waits.append(self._time_batches(nothing, 1).waited)
        for _ in range(ahead):
            if time.monotonic() < self.until:
                self._next()
        self._time_batches(nothing, lap - 1)
        run = self._time_batches(nothing, lap)
        while (
            run.seconds < self.seconds and run.samples < self._most
            and time.monotonic() < self.until
        ):  # fmt: skip
            run = self._time_batches(run, lap)
        if time.monotonic() < self.until:
            self._drain()
        if self._alone is not None:
            computed = self._alone * run.samples  # meanwhile workers load, this process does not
            waited = max(0.0, run.waited - computed) if self._workers else run.waited
            run = run._replace(waited=waited, computed=computed)
        return run

    def _time_batches(self, run: LoopRun, batches: int) -> LoopRun:
        """Add batches to a run; when the time is over, no more if the step takes longer."""
        for _ in range(batches):
            began, cpu = time.perf_counter(), time.thread_time()
            self._batch = self._next()  # as in a loop, the batch before is freed here
            arrived, received = time.perf_counter(), time.thread_time() - cpu
            if self._step is not None:
                call(self._step, self._batch)
            run = LoopRun(
                run.samples + size_of(self._batch), run.waited + arrived - began,
                run.computed + time.perf_counter() - arrived, run.received + received,
            )  # fmt: skip
            if time.monotonic() >= self.until and run.computed >= run.waited:
                break
        return run

    def _next(self) -> Any:
        with explain_errors("the loader failed"):
            for _ in range(2):
                if self._source is None:
                    self._source = iter(self._loader)
                for batch in self._source:
                    return batch
                self._source = None  # another epoch begins
        raise DiagnosisError("the loader yields no batch; expected at least one")

    def _drain(self) -> None:
        """Let the workers come to rest, so that they do not disturb the next run."""
        if self._feed is None:
            return
        self._feed.is_open = False
        with explain_errors("the loader failed"):
            for _ in self._source or ():
                pass
        self._source = None

    def close(self) -> None:
        self._source = self._loader = self._batch = None


def call(step: Step, batch: Any) -> None:
    """Call the step; if the GPU is in use, wait for it."""
    with explain_errors("the step failed"):
        step(batch)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch's own
            torch.cuda.synchronize()


def median_time(work: Callable[[], Any], seconds: float) -> float:
    """Measure the median seconds of a call; the first call counts only if it takes too long."""
    until, times = time.perf_counter() + seconds, list[float]()
    while len(times) <= 3 or (time.perf_counter() < until and len(times) < 200):
        began = clock()
        work()
        times.append(clock() - began)
        if time.perf_counter() > until + seconds:
            break
    return statistics.median(times[1:] or times)


def time_hand_over(batch: Any, seconds: float, *, shared: bool) -> float:
    """Measure the seconds of a worker for handing over: sharing tensors, pickling the rest."""
    until, times = time.perf_counter() + seconds, list[float]()
    while len(times) < 2 or (time.perf_counter() < until and len(times) < 50):
        own = map_tensors(batch, lambda t: new_batch(tuple(t.shape), t.dtype).copy_(t) if shared
                     else t.clone())  # fmt: skip
        began = clock()
        pickle.dumps(map_tensors(own, lambda t: t.share_memory_().new_empty(0)))  # type: ignore[no-untyped-call]  # torch's own
        times.append(clock() - began)
    return statistics.median(times[1:])
