"""Step 4, the report in words: the verdict first, then the evidence, then what helps."""

from __future__ import annotations

from packio.inspecting.pages.charts import Scale
from packio.measuring.doctor import findings
from packio.measuring.doctor.findings import Finding
from packio.measuring.doctor.measured import Cause, Measurements, Spread, Trial

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


def verdict(measured: Measurements, found: list[Finding]) -> str:
    """Say the heaviest findings in a sentence, and how much time is unexplained."""
    named = found[:_NAMED] + [f for f in found[_NAMED:] if f.kind is Cause.UNEXPLAINED]
    said = "; ".join(_sentence(finding, measured) for finding in named)
    if found[0].kind in (Cause.STEP, Cause.NONE) and not measured.contiguous:
        said += "; batches are not contiguous, which costs nothing here"
    return said[0].upper() + said[1:] + "."


def _sentence(finding: Finding, measured: Measurements) -> str:
    said = _SENTENCES[finding.kind].format(share=f"{finding.share:.0%}")
    slowest = max(measured.stages.steps.items(), key=lambda step: step[1], default=None)
    if finding.kind is not Cause.TRANSFORM or slowest is None:
        return said
    return f"{said}: {slowest[0]} is {slowest[1]:.0%} of what a sample costs"


def lines(measured: Measurements, found: list[Finding], remedies: list[Trial]) -> list[str]:
    """Say everything, for a terminal."""
    text = [verdict(measured, found), ""]
    text += [f"{name:<14} {value}" for name, value in evidence(measured)]
    text.append("")
    tried = [trial for trial in remedies if not trial.assumption]
    estimated = [trial for trial in remedies if trial.assumption]
    if tried:
        text.append("What helps, measured in turns with the loop as it is:")
    else:
        text.append("Nothing that was tried is clearly faster.")
    text += [line for trial in tried for line in _remedy(trial)]
    if estimated:
        text += ["", "What may help, estimated, not tried:"]
    return text + [line for trial in estimated for line in _remedy(trial)]


def _remedy(trial: Trial) -> list[str]:
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
    """Say the median factor of a trial, and what it rests on if not on rounds in turns."""
    rests = "" if trial.rounds else " estimated" if trial.assumption else " at first look"
    return f"{TIMES}{trial.factor.median:.2f}{rests}"


def scale(trials: list[Trial]) -> Scale:
    """The axis of the factors of trials; the loop as it is (1) is on it."""
    low = min([0.8, *(0.95 * trial.factor.low for trial in trials)])
    return Scale(low, max([1.25, *(1.05 * trial.factor.high for trial in trials)]))


def origin(measured: Measurements, command: str) -> list[tuple[str, str]]:
    """Say which command was run on which machine, and when."""
    machine, _, date = measured.machine.rpartition(", ")
    device = "no GPU" if measured.device == "cpu" else measured.device
    told = f"{machine}; {measured.cpus} CPUs, {device}" if machine else ""
    return [("command", command), ("machine", told), ("date", date)]


def evidence(measured: Measurements) -> list[tuple[str, str]]:
    """Give the names and values of what was measured."""
    size = measured.batch_size
    each = f"{_time(measured.batch_seconds)} a batch of {size}"
    rows = [
        ("loader", measured.loader),
        ("loop", f"{_spread(measured.rate, ',.0f')} samples/s, {each}"),
    ]
    if measured.has_step:
        rows.append(("waiting", f"{_spread(measured.waiting, '.0%')} of the time"))
    best = findings.ceiling(measured)
    if measured.step is not None and best is not None:
        within = _time(measured.batch_seconds * (1 - measured.waiting.median))
        rows.append(("step", f"{_time(measured.step)} a batch by itself, {within} in the loop"))
        rows.append(("at most", f"{TIMES}{best:.2f}, with a loader that is never waited for"))
    if measured.step_contiguous is not None:
        taken = _time(measured.step_contiguous)
        rows.append(("contiguous", f"{taken} a step, with making the batch contiguous"))
    rows += _stages(measured)
    unexplained = findings.shares(measured).get(Cause.UNEXPLAINED)
    if unexplained is not None:
        rows.append(("unexplained", f"{unexplained:.0%} of the loop's time, in no stage"))
    if measured.receiving and measured.workers:
        rows.append(("receiving", f"{measured.receiving:.0%} of the loop's time, in this process"))
    if measured.machine:
        rows.append(("machine", measured.machine))
    if measured.is_loader_alone:
        rows.append(("note", "batches take long to load: loader and step ran by themselves"))
    return rows


def _stages(measured: Measurements) -> list[tuple[str, str]]:
    stages, rows = measured.stages, list[tuple[str, str]]()
    size = f"{stages.batch_bytes / 1e6:,.1f} MB"
    for name in ("storage", "decode", "transform"):
        seconds = getattr(stages, name)
        if seconds is not None:
            named = stages.steps.items() if name == "transform" else ()
            most = "".join(f"; {step} {share:.0%} of a sample" for step, share in [*named][:3])
            rows.append((name, f"{_time(seconds)} a sample on one core{most}"))
    if stages.storage is not None:
        again = stages.storage_again
        after = "" if again is None else f"; {_time(again)} again"
        rows[0] = ("storage", f"{_time(stages.storage)} a sample at first{after}")
    if stages.collate is not None:
        rows.append(("collate", f"{_time(stages.collate)} a batch"))
    for name, taken in (("hand-over", stages.hand_over), ("copy", stages.copy)):
        if taken is not None:
            rate = f"{stages.batch_bytes / max(taken, 1e-9) / 1e9:,.1f} GB/s"
            rows.append((name, f"{_time(taken)} a batch of {size}, {rate}"))
    if measured.device == "cpu":
        rows.append(("copy", "none: there is no GPU"))
    if stages.start_up is not None:
        epoch = f"{measured.epoch_batches or '?'} batches"
        rows.append(("start-up", f"{_time(stages.start_up)} an epoch of {epoch}"))
    return rows


def _spread(spread: Spread, form: str) -> str:
    return f"{spread.median:{form}} ({spread.low:{form}} to {spread.high:{form}})"


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:,.2f} s"
    return f"{seconds * 1e3:,.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:,.0f} µs"
