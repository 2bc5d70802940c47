"""What bounds a training loop, and what would help: measured, by running it, as it is and changed.

In four steps: numbers (`measured`, by `stages` and `loops`), what they say (`findings`, a pure
function), what helps (`remedies`, each tried), and how it is told (`wording`, `page`).
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

from packio.batches.batches import collate
from packio.errors import DiagnosisError, OptionError
from packio.images.tensors import ensure_contiguous, is_contiguous_batch
from packio.measuring.doctor import cold, findings, profiles, remedies, stages, wording
from packio.measuring.doctor.findings import Finding
from packio.measuring.doctor.loops import Loop, Run, Step, call, explained, together
from packio.measuring.doctor.measured import Kind, Measured, Spread, Stages, Trial
from packio.measuring.doctor.setups import Flow, Setup, bytes_of, size_of
from packio.measuring.doctor.trials import Trials
from packio.measuring.doctor.watch import Share
from packio.system import processors

__all__ = ["Diagnosis", "Finding", "Kind", "Measured", "Trial", "doctor"]

Say = Callable[[str], None]
_LONG = 0.3  # seconds that a worker may take for a batch, to run the loop with whole ones
_PIECE = 0.05  # seconds of a worker's piece of a batch, where batches take longer
_WHOLE = 2.0  # seconds that fetching all samples of a batch may take


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What `doctor` found.

    Attributes:
        measured: The numbers.
    """

    measured: Measured

    @property
    def findings(self) -> list[Finding]:
        """What bounds the loop, the heaviest first; one at least."""
        return findings.find(self.measured)

    @property
    def kinds(self) -> list[Kind]:
        """Of the findings."""
        return [finding.kind for finding in self.findings]

    @property
    def remedies(self) -> list[Trial]:
        """What helps, beyond the noise; the largest gain first."""
        return findings.remedies(self.measured)

    @property
    def verdict(self) -> str:
        """The findings in a sentence or two."""
        return wording.verdict(self.measured, self.findings)

    def __str__(self) -> str:
        return "\n".join(wording.lines(self.measured, self.findings, self.remedies))

    def as_dict(self) -> dict[str, Any]:
        """Give everything as JSON takes it."""
        return {
            "verdict": self.verdict,
            "findings": [finding.as_dict() for finding in self.findings],
            "shares": {k.value: v for k, v in findings.shares(self.measured).items()},
            "remedies": [trial.change for trial in self.remedies],
            "ceiling": findings.ceiling(self.measured),
            "measured": self.measured.as_dict(),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Diagnosis:
        """Take back what `as_dict` gave."""
        return cls(Measured.from_dict(values["measured"]))

    def html(self) -> str:
        """Make a page of it that needs nothing else."""
        from packio.measuring.doctor.page import make_page

        return make_page(self.measured, self.findings, self.remedies)


def doctor(
    loader: Any,
    step: Step | None = None,
    *,
    seconds: float = 25.0,
    keep_cache: bool = False,
    say: Say | None = None,
    profile: str | os.PathLike[str] | None = None,
    py_spy: str | os.PathLike[str] | None = None,
) -> Diagnosis:
    """Find what bounds a training loop, and what would help.

    The loop runs for short times, as it is and changed, in turns; samples, batches and steps are
    timed one by one. The step is really called: the model it trains is trained.

    Args:
        loader: A DataLoader of torch's over any dataset, a `packio.Loader`, or a
            `packio.DevicePrefetcher` around one. Of anything else that can be iterated over, only
            waiting, computing and the batches' memory format are looked at. It is not iterated
            over itself: others are made like it.
        step: Called with each batch, as it comes from the loader: all that the training does with
            it. None: only the loader is looked at.
        seconds: To spend, roughly; loaders of which a batch takes seconds need more.
        keep_cache: Do not drop files from the page cache, to read them cold.
        say: Told what is measured next.
        profile: Write cProfile's profile of this process in the loop to this file.
        py_spy: Have py-spy draw this process and the workers into this .svg.

    Raises:
        DiagnosisError: loader or step fail, or the loader has no batches.
        OptionError: something that cannot be iterated over, or seconds that are too few.
        MissingPackageError: py-spy is not installed.
    """
    if not hasattr(loader, "__iter__"):
        raise OptionError(f"loader: a {type(loader).__name__}; expected a DataLoader, or batches")
    if seconds <= 0 or (step is not None and not callable(step)):
        raise OptionError(f"seconds={seconds}, step={step!r}: expected more than 0, and a function")
    profiles.check(py_spy)
    examination = _Examination(loader, step, seconds, say or (lambda _: None))
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # of torch's, that more workers than processors are slow: that is what is measured
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        try:
            examination.look(keep_cache=keep_cache)
            measured = examination.run()
            if profile is not None or py_spy is not None:
                examination.profile(profile, py_spy)
        finally:
            examination.close()
    return Diagnosis(measured)


class _Examination:
    """One loader and step, while they are looked at."""

    def __init__(self, loader: Any, step: Step | None, seconds: float, say: Say) -> None:
        self._setup, self._step, self._seconds, self._say = Setup(loader), step, seconds, say
        self._stages, self._samples, self._indices = Stages(), list[Any](), list[Any]()
        self._size, self._piece, self._waits = 1, 0, 0.0
        self._batch: Any = None
        self._alone: float | None = None  # the step on a batch that is there
        self._contiguous: float | None = None
        self._loops: list[Loop] = []
        self._until = time.monotonic() + seconds

    def close(self) -> None:
        """End all workers."""
        for loop in self._loops:
            loop.close()

    # What a sample, a batch and a step cost

    def look(self, *, keep_cache: bool) -> None:
        """Time the stages one by one."""
        with explained("the loader failed"):
            if self._setup.is_map:
                self._look_at_samples(keep_cache=keep_cache)
            else:
                self._batch = next(iter(self._setup.make(None)), None)
                if self._batch is None:
                    raise DiagnosisError("the loader yields no batch; expected at least one")
                self._size = size_of(self._batch)
        if self._step is not None:
            self._say("the step, on a batch that is there")
            self._time_step(self._step)
        self._choose_pieces()

    def _look_at_samples(self, *, keep_cache: bool) -> None:
        setup, budget = self._setup, self._seconds * 0.08
        self._say("samples, one by one")
        batches = setup.indices()
        first = next(iter(batches), None)
        if first is None:
            raise DiagnosisError("the loader yields no batch; expected at least one")
        whole = setup.has_batches
        self._size = len(first) if whole else 1
        several = [first, *itertools.islice(batches, 1 + 64 // self._size)]
        indices = list(itertools.chain.from_iterable(several)) if whole else several
        share, samples, used = stages.time_samples(setup, indices, budget)
        chilled = None
        if not keep_cache:
            self._say("samples, from the disk")
            chilled = cold.time_cold(setup, used[:16], budget / 2)
        self._indices = used
        if not whole:  # the dataset gives batches
            self._batch, self._size, collating = samples[0], size_of(samples[0]), 0.0
            share = Share(*(part / self._size for part in share))
        else:
            self._samples = self._whole_batch(list(first), samples, share.total)
            self._say("collating and handing over")
            collating, self._batch = stages.time_collate(setup, self._samples, self._size, budget)
        handing = None
        if setup.workers:
            handing = stages.time_hand_over(self._batch, budget, shared=setup.collate is collate)
        self._stages = Stages(
            share.storage, share.decode, share.transform, chilled, None, collating, handing,
            stages.time_copy(self._batch, budget / 2), bytes_of(self._batch),
        )  # fmt: skip
        self._batch = setup.delivered(self._batch)
        self._waits = share.total * self._size + collating + (handing or 0.0)

    def _whole_batch(self, first: list[Any], samples: list[Any], each: float) -> list[Any]:
        """As many samples as a batch has; where they take too long, some of them repeatedly."""
        if each * len(first) <= _WHOLE:
            return self._setup.fetch(self._setup.dataset, first)
        return (list(samples) * -(-len(first) // len(samples)))[: len(first)]

    def _time_step(self, step: Step) -> None:
        def alone() -> None:
            call(step, self._batch)

        def contiguous() -> None:
            call(step, ensure_contiguous(self._batch))

        budget = self._seconds * 0.04
        if is_contiguous_batch(self._batch):
            self._alone = stages.median_time(alone, budget)
            return
        times: list[tuple[float, float]] = []
        while len(times) < 3:  # in turns
            before = stages.median_time(alone, budget / 3, least=2)
            times += [(before, stages.median_time(contiguous, budget / 3, least=2))]
        self._alone = statistics.median(before for before, _ in times)
        self._contiguous = statistics.median(after for _, after in times)

    def _choose_pieces(self) -> None:
        """Where batches take long and the step does not, run the loader alone, in small ones."""
        workers = self._setup.workers or 0
        slow = self._waits / max(1, workers) > 1.5 * (self._alone or 0.0)
        if self._setup.has_batches and self._waits > _LONG and slow and self._size > 1:
            self._piece = max(1, int(self._size * _PIECE / self._waits))

    def _is_slow(self, run: Run) -> bool:
        """Whether batches take longer than their samples did, so that small ones had better run."""
        share = run.waited / max(run.waited + run.computed, 1e-9)
        if self._piece or share < 0.6:
            return False
        self._waits = self._size / run.rate * max(1, self._setup.workers or 0)
        self._choose_pieces()
        return bool(self._piece)

    # The loop, as it is and changed

    def run(self) -> Measured:
        """Run the loop and what might be better."""
        self._say("the loop")
        baseline = self._loop()
        if self._is_slow(self._timed(baseline)):
            baseline.close()
            baseline = self._loop()
        starting = self._start_ups()
        runs = [self._timed(baseline) for _ in range(3)]
        measured = self._measured(runs, starting, ())
        trials = Trials(baseline, self._changed, self._timed, self._say)
        candidates = remedies.changes(self._setup, measured, self._samples, self._indices)
        if self._piece:
            candidates = [c for c in candidates if c.size is None]
        found = trials.run(candidates, self._until)
        runs += trials.baseline_runs
        found += remedies.of_starting(measured, starting)
        found += remedies.of_packing(self._setup, measured, self._say)
        return self._measured(runs, starting, tuple(found))

    def _measured(
        self, runs: list[Run], starting: list[float], trials: tuple[Trial, ...]
    ) -> Measured:
        waiting = [run.waited / max(run.waited + run.computed, 1e-9) for run in runs]
        cuda = torch.cuda.is_available()
        start_up = min(starting) if starting else None
        return Measured(
            str(self._setup), self._size, self._setup.workers, processors.usable(),
            torch.cuda.get_device_name() if cuda else "cpu", self._step is not None,
            self._setup.epoch_batches(), Spread.of([run.rate for run in runs]),
            Spread.of(waiting if self._step is not None else [1.0]), self._alone,
            is_contiguous_batch(self._batch), self._contiguous,
            dataclasses.replace(self._stages, start_up=start_up), trials, bool(self._piece),
        )  # fmt: skip

    def _loop(self, change: remedies.Change | None = None) -> Loop:
        setup, options = self._setup, dict(change.options) if change else {}
        size = self._piece or (change.size if change else None)
        flow = Flow(setup.indices, size) if setup.is_map else None
        if size is None and setup.is_known and not setup.is_map and change and change.size:
            options["batch_size"] = change.size
        step = None if self._piece else self._step
        if step is not None and change is not None and change.step is not None:
            step = change.step(step)
        workers = options.get("num_workers", setup.workers or 0)
        with explained("the loader failed"):
            loop = Loop(setup.make(flow, **options), flow, step, workers)
        self._loops.append(loop)
        return loop

    def _changed(self, change: remedies.Change) -> Loop:
        return self._loop(change)

    def _timed(self, loop: Loop, change: remedies.Change | None = None) -> Run:
        run = loop.run(self._seconds / 60)
        if not self._piece:
            return run
        step, changed = self._alone, change.step if change else None
        if changed is not None and self._step is not None:
            other = changed(self._step)
            step = stages.median_time(lambda: call(other, self._batch), self._seconds / 100)
        workers = (change.options if change else {}).get("num_workers", self._setup.workers or 0)
        return together(run, step, self._size, workers)

    def _start_ups(self) -> list[float]:
        """Seconds that starting the workers takes, where each epoch starts them."""
        if not self._setup.workers or self._setup.is_persistent or not self._setup.is_map:
            return []
        found, until = list[float](), time.monotonic() + self._seconds * 0.05
        while len(found) < 3 and (not found or time.monotonic() < until):
            loop = self._loop()
            found.append(max(0.0, loop.first_batch() - loop.first_batch()))
            loop.close()
        return found

    def profile(
        self,
        profile: str | os.PathLike[str] | None,
        py_spy: str | os.PathLike[str] | None,
    ) -> None:
        """Run the loop once more, beneath profilers."""
        self._say("the loop, profiled")
        loop = self._loop()
        profiles.record(lambda: loop.run(min(5.0, self._seconds / 5)), profile, py_spy)
        loop.close()
