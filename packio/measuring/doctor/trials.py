"""Step 3b, trials: some changes of the loop, in turns with the loop as it is.

A first look at each change leaves out what does not help; it is no evidence. The evidence is a
paired t-test: in each round the loop as it is and every change that is left run once, each of them
first in turn, and the logarithms of the ratios of their rates are tested against 0. The chances of
all changes that ran in turns are added (Bonferroni), so that a whole diagnosis errs no more often
than `measured.ERROR_RATE`.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

from packio.errors import DiagnosisError
from packio.measuring.doctor.findings import Spread, Trial
from packio.measuring.doctor.loops import Loop, LoopRun
from packio.measuring.doctor.remedies import Change

_PROMISING = 0.85  # gain at first look, noisy as it is, from which on a change runs in turns
_MOST_CHANGES = 4
_LEAST_ROUNDS, _MOST_ROUNDS = 3, 12
_LEAST_SPREAD = 0.01  # of logarithms of ratios: three rounds may agree by chance
_FOR_LOOKS = 0.35  # share of the time that first looks may take


def chance(ratios: Sequence[float], family: int) -> float:
    """Calculate how probable it is that one of some changes without effect does as well as this."""
    if len(ratios) < _LEAST_ROUNDS:
        return 1.0
    logs = [math.log(ratio) for ratio in ratios]
    spread = max(statistics.stdev(logs), _LEAST_SPREAD) / math.sqrt(len(logs))
    return min(1.0, family * student_tail(statistics.fmean(logs) / spread, len(logs) - 1))


def student_tail(t: float, freedom: int) -> float:
    """Calculate the probability that Student's t is larger than this, for whole degrees of freedom.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions (1964), 26.7.3 and 26.7.4.
    """
    angle = math.atan(t / math.sqrt(freedom))
    cosine, is_odd = math.cos(angle), freedom % 2
    term, total = (cosine, 0.0) if is_odd else (1.0, 0.0)
    for k in range(1 + is_odd, freedom, 2):
        total += term
        term *= k / (k + 1) * cosine**2
    within = math.sin(angle) * total
    return (1 - (2 / math.pi * (angle + within) if is_odd else within)) / 2


class Trials:
    """Tries changes, within a time."""

    def __init__(
        self, baseline: Loop, make: Callable[[Change], Loop],
        timed: Callable[[Loop, Change | None], LoopRun], say: Callable[[str], None],
        runs: Sequence[LoopRun], price: float, now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._baseline, self._make, self._timed, self._say = baseline, make, timed, say
        self._price, self._now = price, now
        self.baseline_runs: list[LoopRun] = list(runs)  # all of the loop as it is

    def run(self, candidates: list[Change], until: float) -> list[Trial]:
        """Look at the first changes once; measure those that help in turns with the loop."""
        looks, lanes = list[tuple[float, Change]](), list[tuple[float, Change, Loop]]()
        for gain, change, loop in self._look(candidates, until):
            looks.append((gain, change))
            if gain >= _PROMISING:
                lanes.append((gain, change, loop))
            else:
                loop.close()
        lanes.sort(key=lambda lane: -lane[0])
        fitting = int((until - self._now()) / self._price / (_LEAST_ROUNDS + 1)) - 1
        ratios = self._run_in_turns([lane[1:] for lane in lanes[: max(1, fitting)]], until)
        for *_, loop in lanes:
            loop.close()
        trials = []
        for gain, change in looks:
            found = ratios.get(change.what, [])
            trials.append(Trial(
                change.kind, change.what, change.code, Spread.of(found or [gain]), len(found),
                change.note, chance(found, len(ratios)),
            ))  # fmt: skip
        return trials

    def _look(self, candidates: list[Change], until: float) -> Iterator[tuple[float, Change, Loop]]:
        """Run the first changes once, and give the gain, the change and its loop."""
        until = self._now() + _FOR_LOOKS * (until - self._now())
        price = 2 * self._price
        for change in candidates[:_MOST_CHANGES]:
            if self._now() + price > until:
                break
            self._say(f"trying {change.what}")
            began = self._now()
            with contextlib.suppress(DiagnosisError):  # the loader cannot be changed so
                before, loop = self._run_baseline(), self._make(change)
                yield self._timed(loop, change).rate / before, change, loop
            price = max(price, self._now() - began)

    def _run_baseline(self) -> float:
        self.baseline_runs.append(self._timed(self._baseline, None))
        return self.baseline_runs[-1].rate

    def _run_in_turns(
        self, loops: list[tuple[Change, Loop]], until: float
    ) -> dict[str, list[float]]:
        """Measure changes as multiples of the unchanged loop, in each round."""
        ratios: dict[str, list[float]] = {change.what: [] for change, _ in loops}
        lanes, longest = [None, *loops], 0.0
        for number in range(_MOST_ROUNDS if loops else 0):
            began = self._now()
            if began + longest > until:
                break
            self._say(f"round {number + 1}: {', '.join(ratios)}")
            start, before, rates = number % len(lanes), 1.0, dict[str, float]()
            for lane in lanes[start:] + lanes[:start]:
                if lane is None:
                    before = self._run_baseline()
                else:
                    rates[lane[0].what] = self._timed(lane[1], lane[0]).rate
            for what, rate in rates.items():
                ratios[what].append(rate / before)
            longest = max(longest, self._now() - began)
        return ratios
