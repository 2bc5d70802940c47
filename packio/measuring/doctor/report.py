"""Step 4, the report in words: the verdict first, then the evidence, then what helps."""

from __future__ import annotations

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
    Cause.STEP: "the step is the limit: a faster loader changes nothing",
    Cause.NONE: "nothing stands out",
}
TIMES = "\N{MULTIPLICATION SIGN}"
_NAMED = 2  # findings in a verdict


def verdict(measured: Measurements, found: list[Finding]) -> str:
    """Say the heaviest findings in a sentence."""
    said = "; ".join(
        _SENTENCES[finding.kind].format(share=f"{finding.share:.0%}") for finding in found[:_NAMED]
    )
    if found[0].kind in (Cause.STEP, Cause.NONE) and not measured.contiguous:
        said += "; batches are not contiguous, which costs nothing here"
    return said[0].upper() + said[1:] + "."


def lines(measured: Measurements, found: list[Finding], remedies: list[Trial]) -> list[str]:
    """Say everything, for a terminal."""
    text = [verdict(measured, found), ""]
    text += [f"{name:<14} {value}" for name, value in evidence(measured)]
    text.append("")
    if not remedies:
        return [*text, "Nothing that was tried is clearly faster."]
    text.append("What helps, measured in turns with the loop as it is:")
    for trial in remedies:
        text.append(f"  {gain(trial):<24} {trial.change}: {trial.code}")
        text += [f"  {'':<24} {trial.note}"] if trial.note else []
    return text


def gain(trial: Trial) -> str:
    """Say the factor of a trial, with its spread: 2.00 (1.80 to 2.20)."""
    return f"{TIMES}{_spread(trial.factor, '.2f')}"


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
            cold = stages.storage_cold if name == "storage" else None
            after = f"; {_time(cold)} cold" if cold is not None else ""
            rows.append((name, f"{_time(seconds)} a sample on one core{after}"))
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
