"""Step 3b, trials: a first look at each change, then the best changes in turns with the loop."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable

from packio.errors import DiagnosisError
from packio.measuring.doctor.loops import Loop, LoopRun
from packio.measuring.doctor.measured import Cause, Spread, Trial
from packio.measuring.doctor.remedies import Change

_PROMISING = 1.05  # gain at first look from which on a change is measured in turns
_LOOKS = 4  # first looks that are taken in any case
_CONFIRMED = 3  # changes that are measured in turns
_LEAST, _MOST = 4, 9  # rounds in turns


class Trials:
    """Tries changes, within a time.

    Args:
        baseline: The loop as it is.
        make: Makes the loop of a change.
        timed: Runs a loop once.
        say: Called with what is tried next.

    Attributes:
        baseline_runs: All runs of the loop as it is.
    """

    def __init__(
        self,
        baseline: Loop,
        make: Callable[[Change], Loop],
        timed: Callable[[Loop, Change | None], LoopRun],
        say: Callable[[str], None],
    ) -> None:
        self._baseline, self._make, self._timed, self._say = baseline, make, timed, say
        self.baseline_runs: list[LoopRun] = []

    def run(self, candidates: list[Change], until: float) -> list[Trial]:
        """Look at each change once, then measure the best changes in turns with the unchanged loop.

        Args:
            candidates: Changes to try, the most promising first. After half of the time, no more
                of them are looked at.
            until: When to end, by time.monotonic; a few rounds are made in any case.
        """
        looks: list[tuple[float, Change]] = []
        half = (time.monotonic() + until) / 2
        for change in candidates:
            if time.monotonic() > half and len(looks) >= _LOOKS:
                break
            self._say(f"trying {change.what}")
            with contextlib.suppress(DiagnosisError):  # the loader cannot be changed so
                looks.append((self._look(change), change))
        chosen = self._best(looks)
        ratios, noise = self._in_turns([change for _, change in chosen], until)
        trials = [_trial(c, ratios[id(c)], noise) for _, c in chosen]
        others = [(gain, c) for gain, c in looks if id(c) not in ratios]
        return trials + [_trial(c, [gain], noise, is_look=True) for gain, c in others]

    def _look(self, change: Change) -> float:
        loop = self._make(change)
        try:
            before = self._base()
            gain = self._timed(loop, change).rate / before
        finally:
            loop.close()
        return gain

    def _base(self) -> float:
        run = self._timed(self._baseline, None)
        self.baseline_runs.append(run)
        return run.rate

    @staticmethod
    def _best(looks: list[tuple[float, Change]]) -> list[tuple[float, Change]]:
        """Choose the most promising change of each kind, and the best of these."""
        best: dict[Cause, tuple[float, Change]] = {}
        for gain, change in looks:
            if gain >= _PROMISING and gain > best.get(change.kind, (0.0, None))[0]:
                best[change.kind] = (gain, change)
        return sorted(best.values(), key=lambda found: -found[0])[:_CONFIRMED]

    def _in_turns(self, chosen: list[Change], until: float) -> tuple[dict[int, list[float]], float]:
        """Measure changes as multiples of the unchanged loop, and how much that loop varies."""
        ratios: dict[int, list[float]] = {id(change): [] for change in chosen}
        drifts = [0.0]
        loops = {id(change): self._make(change) for change in chosen}
        try:
            number, before = 0, self._base() if chosen else 0.0
            while chosen and (number < _LEAST or (time.monotonic() < until and number < _MOST)):
                self._say(f"round {number + 1}: {', '.join(c.what for c in chosen)}")
                rates = {id(c): self._timed(loops[id(c)], c).rate for c in chosen}
                after = self._base()
                for change in chosen:
                    ratios[id(change)].append(rates[id(change)] / statistics.mean((before, after)))
                drifts.append(abs(after / before - 1))
                number, before = number + 1, after
        finally:
            for loop in loops.values():
                loop.close()
        return ratios, statistics.median(drifts[1:] or drifts)


def _trial(change: Change, ratios: list[float], noise: float, *, is_look: bool = False) -> Trial:
    return Trial(
        change.kind, change.what, change.code, Spread.of(ratios), 0 if is_look else len(ratios),
        change.note, noise,
    )  # fmt: skip
