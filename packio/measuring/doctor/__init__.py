"""What bounds a training loop, and what would help: the doctor runs the loop, as it is and changed.

`examination` leads through it: `samples` and `loops` measure, `findings` says what bounds the loop,
`remedies` tries or estimates changes, `report` puts it in words.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from packio.errors import OptionError
from packio.inspecting.pages import Bar, make_page
from packio.measuring.doctor import findings, report
from packio.measuring.doctor.examination import Examination
from packio.measuring.doctor.findings import Cause, Finding, Measurements, Trial
from packio.measuring.doctor.loops import Step
from packio.system import files

__all__ = ["Cause", "Diagnosis", "Finding", "Measurements", "Trial", "doctor"]

_COLOURS = {
    Cause.STEP: "step", Cause.MEMORY_FORMAT: "layout", Cause.COPY: "copy",
    Cause.UNEXPLAINED: "unexplained",
}  # in page.css; all else is the loader's  # fmt: skip


def doctor(
    loader: Any,
    step: Step | None = None,
    *,
    seconds: float = 25.0,
    say: Callable[[str], None] | None = None,
    profile: str | os.PathLike[str] | None = None,
) -> Diagnosis:
    """Find what bounds a training loop, and what would help.

    The loop runs for short times, unchanged and with one thing changed, in turns. Samples, batches
    and steps are also timed by themselves. The step is really called: the model is trained.

    Args:
        loader: torch's DataLoader over any dataset, a `packio.Loader`, or a
            `packio.DevicePrefetcher` around one of them. Loaders like it are made; it is not
            iterated over itself. Any other iterable is iterated over: waiting, computing and the
            batches' memory format are measured, no more. The same is measured of an IterableDataset
            and of ``batch_size=None``.
        step: Called with each batch as the loader gives it; does all that training does with a
            batch. None: only the loader is measured.
        seconds: Seconds to spend. Nothing is begun that can be expected to end later; a loader that
            takes seconds for a sample leaves no time to try changes.
        say: Called with a line that says what is measured next.
        profile: File for cProfile's profile of the loop in this process.

    Raises:
        DiagnosisError: loader or step raise an exception, or the loader gives no batches.
        OptionError: the loader is no iterable, the step no function, or `seconds` not above 0.
        CannotCreateError: the folder of the profile does not exist.
    """
    if not isinstance(loader, Iterable):
        raise OptionError(
            f"loader: of type {type(loader).__name__}; expected a DataLoader, or batches"
        )
    if seconds <= 0:
        raise OptionError(f"seconds={seconds}: expected more than 0")
    if step is not None and not callable(step):
        raise OptionError(f"step={step!r}: expected a function of a batch")
    if profile is not None:
        files.check_folder_of(profile)  # before minutes of measuring
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # torch warns of more workers than processors; the doctor measures what they cost
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        examination = Examination(loader, step, seconds, say or (lambda _: None))
        with contextlib.closing(examination):
            examination.time_stages()
            examination.run_loop()
            examination.try_changes()
            if profile is not None:
                examination.profile(profile)
            return Diagnosis(examination.summarize())


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What `doctor` found: the numbers, from which all else is derived."""

    measured: Measurements

    @property
    def findings(self) -> list[Finding]:
        """What bounds the loop, the heaviest first; at least one finding."""
        return findings.find(self.measured)

    @property
    def kinds(self) -> list[Cause]:
        return [finding.kind for finding in self.findings]

    @property
    def remedies(self) -> list[Trial]:
        """The changes that help: tried ones, beyond the noise; then estimates. Largest first."""
        return findings.remedies(self.measured)

    @property
    def verdict(self) -> str:
        """The heaviest findings in a sentence."""
        return report.verdict(self.measured, self.findings)

    def __str__(self) -> str:
        return "\n".join(report.lines(self.measured, self.findings, self.remedies))

    def as_dict(self) -> dict[str, Any]:
        """Give everything as JSON takes it."""
        return {
            "verdict": self.verdict,
            "findings": [dataclasses.asdict(finding) for finding in self.findings],
            "shares": {k.value: v for k, v in findings.shares(self.measured).items()},
            "remedies": [trial.change for trial in self.remedies],
            "ceiling": findings.ceiling(self.measured),
            "measured": dataclasses.asdict(self.measured),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Diagnosis:
        """Take back what `as_dict` gave."""
        return cls(Measurements.from_dict(values["measured"]))

    def html(self, command: str = "packio.doctor") -> str:
        """Make an HTML page, with plots, that needs no other file; `command`: for its head."""
        measured = self.measured
        shares = sorted(findings.shares(measured).items(), key=lambda part: -part[1])
        trials = sorted(measured.trials, key=lambda trial: -trial.factor.median)
        fastest = max([1.0, *(trial.factor.median for trial in trials)])
        bars = [Bar("the loop as it is", 100 / fastest, f"{report.TIMES}1", "none")]
        bars += [
            Bar(trial.change, 100 * trial.factor.median / fastest, report.gain(trial),
                "gain" if trial.is_gain else "none")
            for trial in trials
        ]  # fmt: skip
        return make_page(Path(__file__).parent, {
            "verdict": self.verdict, "origin": report.origin(measured, command),
            "shares": [Bar(kind.value, 100 * share, f"{share:.0%}", _COLOURS.get(kind, "data"))
                       for kind, share in shares if round(100 * share)],
            "remedies": self.remedies, "gain": report.gain,
            "trials": bars if trials else [],
            "evidence": [row for row in report.evidence(measured) if row[0] != "machine"],
        })  # fmt: skip
