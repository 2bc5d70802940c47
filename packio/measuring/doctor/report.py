"""Step 4, the report in words: the verdict first, then the evidence, then what helps."""

from __future__ import annotations

from typing import Any

from packio.measuring.doctor import findings
from packio.measuring.doctor.findings import Cause, Finding, Measurements, Spread, Stages, Trial

_SENTENCES = {
    Cause.STORAGE: "reading the samples' bytes takes {share} of the loop's time",
    Cause.DECODE: "decoding takes {share} of the loop's time",
    Cause.TRANSFORM: "the dataset's transforms take {share} of the loop's time",
    Cause.COLLATE: "collating takes {share} of the loop's time",
    Cause.HAND_OVER: "handing batches over from the workers takes {share} of the loop's time",
    Cause.START_UP: "starting the workers takes {share} of the loop's time",
    Cause.WORKERS_TOO_FEW: "too few workers: {share} of the time could be saved",
    Cause.WORKERS_TOO_MANY: "too many workers: {share} of the time could be saved",
    Cause.BATCH_SIZE: "the batches are too small: {share} of the time could be saved",
    Cause.MEMORY_FORMAT: "the step gets tensors that are not contiguous: {share} of the time",
    Cause.COPY: "copying to the GPU takes {share} of the loop's time",
    Cause.LOADER: "waiting for the loader takes {share} of the loop's time",
    Cause.UNEXPLAINED: "{share} of the loop's time is in no stage: contention, or a busy machine",
    Cause.STEP: "the step is the limit: a faster loader changes nothing",
    Cause.NONE: "nothing stands out",
}
TIMES = "\N{MULTIPLICATION SIGN}"
_NAMED = 2  # findings in a verdict
_NAMED_STEPS = 3  # transforms


def verdict(measured: Measurements, found: list[Finding]) -> str:
    """Say the heaviest findings in a sentence, and how much time is unexplained."""
    named = found[:_NAMED] + [f for f in found[_NAMED:] if f.kind is Cause.UNEXPLAINED]
    sentences = []
    for finding in named:
        said = _SENTENCES[finding.kind].format(share=f"{finding.share:.0%}")
        slow = list(findings.slow_transforms(measured).items())
        if finding.kind is Cause.TRANSFORM and slow:
            (name, share), *others = slow[:_NAMED_STEPS]
            said += f": {name} is {share:.0%} of what a sample costs"
            said += "".join(f", {name} {share:.0%}" for name, share in others)
        sentences.append(said)
    if found[0].kind in (Cause.STEP, Cause.NONE) and not measured.contiguous:
        sentences[-1] += "; batches are not contiguous, which costs nothing here"
    said = "; ".join(sentences)
    return said[0].upper() + said[1:] + "."


def lines(measured: Measurements, found: list[Finding], remedies: list[Trial]) -> list[str]:
    """Say everything, for a terminal."""
    text = [verdict(measured, found), ""]
    text += [f"{name:<14} {value}" for name, value in evidence(measured)]
    tried = [trial for trial in remedies if not trial.assumption]
    estimated = [trial for trial in remedies if trial.assumption]
    text += ["", "What helps, measured in turns with the loop as it is:" if tried
             else "Nothing that was tried is clearly faster."]  # fmt: skip
    text += [line for trial in tried for line in _tell_remedy(trial)]
    if estimated:
        text += ["", "What may help, estimated, not tried:"]
    return text + [line for trial in estimated for line in _tell_remedy(trial)]


def _tell_remedy(trial: Trial) -> list[str]:
    said = [f"  {gain(trial):<24} {trial.change}: {trial.code}"]
    return said + [f"  {'':<24} {more}" for more in (remark(trial),) if more]


def remark(trial: Trial) -> str:
    """Say what to consider: the note of a change; of an estimate, what it assumes."""
    return f"estimated: {trial.assumption}" if trial.assumption else trial.note


def gain(trial: Trial) -> str:
    """Say the factor of a trial, with its spread: 2.00 (1.80 to 2.20)."""
    if trial.factor.low == trial.factor.high:
        return f"{TIMES}{trial.factor.median:.2f}"
    return f"{TIMES}{_spread(trial.factor, '.2f')}"


def tried(trial: Trial) -> str:
    """Say the factor of a trial, and what it rests on if not on rounds in turns."""
    rests = "" if trial.rounds else " estimated" if trial.assumption else " at first look"
    return gain(trial) + rests


def origin(measured: Measurements, command: str) -> list[tuple[str, str]]:
    """Say which command was run on which machine, and when."""
    machine, _, date = measured.machine.rpartition(", ")
    device = "no GPU" if measured.device == "cpu" else measured.device
    told = f"{machine}; {measured.cpus} CPUs, {device}" if machine else ""
    return [("command", command), ("machine", told), ("date", date)]


def evidence(measured: Measurements) -> list[tuple[str, str]]:
    """Give the names and values of what was measured."""
    stages, alone, best = measured.stages, measured.step, findings.ceiling(measured)
    each = f"{_time(measured.batch_seconds)} a batch of {measured.batch_size}"
    within = _time(measured.batch_seconds * (1 - measured.waiting.median))
    contiguous, again = _time(measured.step_contiguous), _time(stages.storage_again)
    slowest = list(stages.steps.items())[:_NAMED_STEPS]
    steps = "".join(f"; {name} {share:.0%} of a sample" for name, share in slowest)
    unexplained = findings.shares(measured).get(Cause.UNEXPLAINED)
    batches = measured.epoch_batches or "?"
    receives = measured.receiving and measured.workers
    copying = "none: there is no GPU" if measured.device == "cpu" else _rate(stages.copy, stages)
    rows: list[tuple[str, str, Any]] = [  # the third: whether there is such a value
        ("loader", measured.loader, True),
        ("loop", f"{_spread(measured.rate, ',.0f')} samples/s, {each}", True),
        ("waiting", f"{_spread(measured.waiting, '.0%')} of the time", measured.has_step),
        ("step", f"{_time(alone)} a batch by itself, {within} in the loop", best),
        ("at most", f"{TIMES}{best or 1:.2f}, with a loader that is never waited for", best),
        ("contiguous", f"{contiguous} a step, with making the batch contiguous", contiguous),
        ("storage", f"{_time(stages.storage)} a sample at first{again and f'; {again} again'}",
         stages.storage is not None),
        ("decode", f"{_time(stages.decode)} a sample on one core", stages.decode is not None),
        ("transform", f"{_time(stages.transform)} a sample on one core{steps}",
         stages.transform is not None),
        ("collate", f"{_time(stages.collate)} a batch", stages.collate is not None),
        ("hand-over", _rate(stages.hand_over, stages), True),
        ("copy", copying, True),
        ("start-up", f"{_time(stages.start_up)} an epoch of {batches} batches",
         stages.start_up is not None),
        ("unexplained", f"{unexplained or 0:.0%} of the loop's time, in no stage",
         unexplained is not None),
        ("receiving", f"{measured.receiving:.0%} of the loop's time, in this process", receives),
        ("machine", measured.machine, True),
        ("note", "batches take long to load: loader and step ran by themselves",
         measured.is_loader_alone),
    ]  # fmt: skip
    return [(name, text) for name, text, is_known in rows if text and is_known]


def _rate(seconds: float | None, stages: Stages) -> str:
    if seconds is None:
        return ""
    megabytes = stages.batch_bytes / 1e6
    rate = f"{megabytes / max(seconds, 1e-9) / 1e3:,.1f} GB/s"
    return f"{_time(seconds)} a batch of {megabytes:,.1f} MB, {rate}"


def _spread(spread: Spread, form: str) -> str:
    return f"{spread.median:{form}} ({spread.low:{form}} to {spread.high:{form}})"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds >= 1:
        return f"{seconds:,.2f} s"
    return f"{seconds * 1e3:,.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:,.0f} µs"
