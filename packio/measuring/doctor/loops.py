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
from packio.images.tensors import mapped, new_batch
from packio.measuring.doctor.samples import clock
from packio.measuring.doctor.setups import explained, leaves, size_of
from packio.measuring.turns import IndexFeed

Step = Callable[[Any], Any]
_AHEAD = 2  # batches that each worker makes ahead
_APART = 1.25  # times the wait for the first batch, from which on workers start one by one


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
    """

    def __init__(
        self, loader: Iterable[Any], feed: IndexFeed | None, step: Step | None, workers: int
    ) -> None:
        self._loader: Any = loader
        self._feed, self._step, self._lap = feed, step, max(1, workers)
        self._source: Iterator[Any] | None = None
        self._has_run, self._batch = False, None

    def run(self, seconds: float, until: float = math.inf) -> LoopRun:
        """Run for about so many seconds, after laps that are not timed.

        Workers start one after the other. Until the last one has made a batch, the others have made
        all that they may make ahead: laps that come at once. `until`: by time.monotonic.
        """
        if self._feed is not None:
            self._feed.is_open = True
            self._source = None
        nothing = LoopRun(0, 0.0, 0.0)
        first = self._timed_batch(nothing)
        lap = self._timed_lap(first, until, self._lap - 1)
        if not self._has_run and lap.waited > _APART * first.waited:
            for _ in range(_AHEAD):
                self._timed_lap(nothing, until, self._lap)
        self._has_run = True
        run = self._timed_lap(nothing, until, self._lap)
        while run.waited + run.computed < seconds and time.monotonic() < until:
            run = self._timed_lap(run, until, self._lap)
        if time.monotonic() < until:
            self._drain()
        return run

    def _timed_lap(self, run: LoopRun, until: float, batches: int) -> LoopRun:
        for _ in range(batches):
            run = self._timed_batch(run)
            if time.monotonic() >= until and run.computed >= run.waited:
                break
        return run

    def _timed_batch(self, run: LoopRun) -> LoopRun:
        """Take a batch, compute, and add both to a run."""
        began, cpu = time.perf_counter(), time.thread_time()
        self._batch = self._next()  # as in a loop, the batch before is freed here
        arrived, received = time.perf_counter(), time.thread_time() - cpu
        if self._step is not None:
            call(self._step, self._batch)
        ended = time.perf_counter()
        return LoopRun(
            run.samples + size_of(self._batch), run.waited + arrived - began,
            run.computed + ended - arrived, run.received + received,
        )  # fmt: skip

    def first_batch(self) -> float:
        """Measure the seconds from the start of an epoch to its first batch."""
        if self._feed is not None:
            self._feed.is_open = True
        began = time.perf_counter()
        self._source = None
        self._next()
        taken = time.perf_counter() - began
        self._drain()
        return taken

    def _next(self) -> Any:
        with explained("the loader failed"):
            if self._source is not None:
                batch = next(self._source, self)
                if batch is not self:
                    return batch
            self._source = iter(self._loader)  # the first epoch, or another one
            batch = next(self._source, self)
        if batch is self:
            raise DiagnosisError("the loader yields no batch; expected at least one")
        return batch

    def _drain(self) -> None:
        """Let the workers come to rest, so that they do not disturb the next run."""
        if self._feed is None:
            return
        self._feed.is_open = False
        with explained("the loader failed"):
            for _ in self._source or ():
                pass
        self._source = None

    def close(self) -> None:
        self._source = self._loader = self._batch = None


def call(step: Step, batch: Any) -> None:
    """Call the step; if the GPU is in use, wait for it."""
    with explained("the step failed"):
        step(batch)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch's own
            torch.cuda.synchronize()


def combine(loading: LoopRun, step: float | None, size: int, workers: int) -> LoopRun:
    """Calculate a run of the loop from runs of its loader and its step by themselves."""
    batches = loading.samples / size
    computed = (step or 0.0) * batches
    loaded = loading.waited + loading.computed
    waited = max(0.0, loaded - computed) if workers else loaded
    return LoopRun(loading.samples, waited, computed, loading.received)


def median_time(work: Callable[[], Any], seconds: float, *, least: int = 3) -> float:
    """Measure the median seconds of a call; the first call counts only if it takes too long."""
    until, times = time.perf_counter() + seconds, list[float]()
    while len(times) <= least or (time.perf_counter() < until and len(times) < 200):
        began = clock()
        work()
        times.append(clock() - began)
        if time.perf_counter() > until + seconds:
            break
    return statistics.median(times[1:] or times)


def time_hand_over(batch: Any, seconds: float, *, shared: bool) -> float:
    """Measure the seconds of a worker for handing over: sharing tensors, pickling the rest."""
    rest = mapped(batch, lambda _: torch.empty(0))
    found = [leaf for leaf in leaves(batch) if isinstance(leaf, torch.Tensor)]
    until, times = time.perf_counter() + seconds, list[float]()
    while len(times) < 2 or (time.perf_counter() < until and len(times) < 50):
        tensors = [new_batch(tuple(t.shape), t.dtype).copy_(t) if shared else t.clone()
                   for t in found]  # fmt: skip
        began = clock()
        for tensor in tensors:
            tensor.share_memory_()  # type: ignore[no-untyped-call]  # torch's own
        pickle.dumps(rest)
        times.append(clock() - began)
    return statistics.median(times[1:])


def time_copy(batch: Any, seconds: float) -> float | None:
    """Measure the seconds that a batch takes to the GPU; None without a GPU."""
    if not torch.cuda.is_available():
        return None

    def copy() -> None:
        mapped(batch, lambda t: t.to("cuda", non_blocking=True))
        torch.cuda.synchronize()

    return median_time(copy, seconds)
