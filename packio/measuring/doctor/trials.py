"""Step 3b, trials: a first look at each change, then the best changes in turns with the loop.

The looks choose; they are no evidence. The evidence is a paired t-test: in each round the loop as
it is and every chosen change run once, each of them first in turn, and the logarithms of the ratios
of their rates are tested against 0. The chances of all changes that ran in turns are added
(Bonferroni), so that a whole diagnosis errs no more often than `measured.ERROR_RATE`.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from packio.errors import DiagnosisError
from packio.measuring.doctor.loops import Loop, LoopRun
from packio.measuring.doctor.measured import Spread, Trial
from packio.measuring.doctor.remedies import Change

_PROMISING = 1.05  # gain at first look from which on a change is measured in turns
_LEAST_NOISE = 0.03  # of runs, as a share: few runs may agree by chance
_MOST_CHANGES = 3  # that are measured in turns
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


def noise(rates: Sequence[float]) -> float:
    """Give how far runs of one loop are from their median, as a share of it (MAD, as a sigma)."""
    middle = statistics.median(rates)
    return 1.4826 * statistics.median(abs(rate - middle) for rate in rates) / max(middle, 1e-9)


class _Look(NamedTuple):
    """A first look at a change: the gain, and the seconds that a run of it takes."""

    change: Change
    gain: float
    price: float


class Trials:
    """Tries changes, within a time."""

    def __init__(
        self,
        baseline: Loop,
        make: Callable[[Change], Loop],
        timed: Callable[[Loop, Change | None], LoopRun],
        say: Callable[[str], None],
        runs: Sequence[LoopRun],
        price: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._baseline, self._make, self._timed, self._say = baseline, make, timed, say
        self._price, self._now = price, now
        self.baseline_runs: list[LoopRun] = list(runs)  # all of the loop as it is

    def run(self, candidates: list[Change], until: float) -> list[Trial]:
        """Look at changes once, then measure the best ones in turns with the unchanged loop."""
        looks = self._look(candidates, self._now() + _FOR_LOOKS * (until - self._now()))
        chosen = self._choose(looks, until - self._now())
        ratios = self._run_in_turns(chosen, until)
        trials = [_make_trial(c, ratios[c.what], len(chosen)) for c in chosen if ratios[c.what]]
        tried = {trial.change for trial in trials}
        return trials + [_make_trial(c, [gain], 0) for c, gain, _ in looks if c.what not in tried]

    def _look(self, candidates: list[Change], until: float) -> list[_Look]:
        looks: list[_Look] = []
        price = 2 * self._price
        for change in candidates:
            if self._now() + price > until:
                break
            self._say(f"trying {change.what}")
            began = self._now()
            with contextlib.suppress(DiagnosisError):  # the loader cannot be changed so
                before = self._run_baseline()
                between = self._now()
                with contextlib.closing(self._make(change)) as loop:
                    gain = self._timed(loop, change).rate / before
                looks.append(_Look(change, gain, self._now() - between))
            price = max(price, self._now() - began)
        return looks

    def _run_baseline(self) -> float:
        self.baseline_runs.append(self._timed(self._baseline, None))
        return self.baseline_runs[-1].rate

    def _choose(self, looks: list[_Look], seconds: float) -> list[Change]:
        """Choose the most promising change of each kind, and of these as many as can be tested."""
        doubt = 1 + 3 * max(_LEAST_NOISE, noise([run.rate for run in self.baseline_runs]))
        best: list[_Look] = []
        for kind in dict.fromkeys(look.change.kind for look in looks):
            alike = [look for look in looks if look.change.kind is kind]
            most = max(look.gain for look in alike)
            # Several numbers of workers are no different within the noise: the fewest.
            alike = [look for look in alike if look.gain * doubt >= most]
            best.append(min(alike, key=lambda look: (look.change.workers, -look.gain)))
        chosen = sorted((look for look in best if look.gain >= _PROMISING),
                        key=lambda look: -look.gain)[:_MOST_CHANGES]  # fmt: skip
        while len(chosen) > 1:
            a_round = self._price + sum(min(look.price, 2 * self._price) for look in chosen)
            if a_round * (_LEAST_ROUNDS + 1) <= seconds:
                break
            chosen.pop()
        return [look.change for look in chosen]

    def _run_in_turns(self, chosen: list[Change], until: float) -> dict[str, list[float]]:
        """Measure changes as multiples of the unchanged loop, in each round."""
        ratios: dict[str, list[float]] = {change.what: [] for change in chosen}
        with contextlib.ExitStack() as stack:
            loops = [(change, stack.enter_context(contextlib.closing(self._make(change))))
                     for change in chosen]  # fmt: skip
            lanes = [None, *loops]
            longest = 0.0
            for number in range(_MOST_ROUNDS if chosen else 0):
                began = self._now()
                if began + longest > until:
                    break
                self._say(f"round {number + 1}: {', '.join(c.what for c in chosen)}")
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


def _make_trial(change: Change, ratios: list[float], family: int) -> Trial:
    return Trial(
        change.kind, change.what, change.code, Spread.of(ratios), len(ratios) if family else 0,
        change.note, chance(ratios, family) if family else 1.0,
    )  # fmt: skip
