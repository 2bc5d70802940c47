"""Step 4, the report in words: the verdict first, then the evidence, then what helps."""

from __future__ import annotations

from packio.measuring.doctor import findings
from packio.measuring.doctor.findings import Cause, Finding, Measurements, Spread, Trial

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
    said = "; ".join(sentences)
    return said[0].upper() + said[1:] + "."


def lines(measured: Measurements, found: list[Finding], remedies: list[Trial]) -> list[str]:
    text = [verdict(measured, found), ""]
    text += [f"{name:<14} {value}" for name, value in evidence(measured)]
    tried = [trial for trial in remedies if not trial.assumption]
    helps = "What helps, measured in turns with the loop as it is:"
    text += ["", helps if tried else "Nothing that was tried is clearly faster."]
    for number, trial in enumerate(remedies):
        if number == len(tried):
            text += ["", "What may help, estimated, not tried:"]
        text.append(f"  {gain(trial):<24} {trial.change}: {trial.code}")
        if trial.assumption or trial.note:
            text.append(f"  {'':<24} {trial.assumption or trial.note}")
    return text


def gain(trial: Trial) -> str:
    """Say the factor of a trial, 2.00 (1.80 to 2.20), and what else than rounds it rests on."""
    rests = "" if trial.rounds else " estimated" if trial.assumption else " at first look"
    if trial.factor.low == trial.factor.high:
        return f"{TIMES}{trial.factor.median:.2f}{rests}"
    return f"{TIMES}{_spread(trial.factor, '.2f')}{rests}"


def origin(measured: Measurements, command: str) -> list[tuple[str, str]]:
    machine, _, date = measured.machine.rpartition(", ")
    device = "no GPU" if measured.device == "cpu" else measured.device
    told = f"{machine}; {measured.cpus} CPUs, {device}" if machine else ""
    return [("command", command), ("machine", told), ("date", date)]


def evidence(measured: Measurements) -> list[tuple[str, str]]:
    stages, best = measured.stages, findings.ceiling(measured)
    within = _time(measured.batch_seconds * (1 - measured.waiting.median), "in the loop")
    each = _time(measured.batch_seconds, f"a batch of {measured.batch_size}")
    again = _time(stages.storage_again, "again")
    slowest = list(stages.steps.items())[:_NAMED_STEPS]
    steps = "".join(f"; {name} {share:.0%} of a sample" for name, share in slowest)
    unexplained = findings.shares(measured).get(Cause.UNEXPLAINED)
    megabytes = stages.batch_bytes / 1e6
    hand_over, copy = (_time(seconds, f"a batch of {megabytes:,.1f} MB, "
                             f"{megabytes / max(seconds or 0.0, 1e-9) / 1e3:,.1f} GB/s")
                       for seconds in (stages.hand_over, stages.copy))  # fmt: skip
    rows = [
        ("loader", measured.loader),
        ("loop", f"{_spread(measured.rate, ',.0f')} samples/s, {each}"),
        ("waiting", measured.has_step and f"{_spread(measured.waiting, '.0%')} of the time"),
        ("step", best and f"{_time(measured.step, 'a batch by itself')}, {within}"),
        ("at most", best and f"{TIMES}{best:.2f}, with a loader that is never waited for"),
        ("contiguous", _time(measured.step_contiguous,
                             "a step, with making the batch contiguous")),
        ("storage", _time(stages.storage, f"a sample at first{again and f'; {again}'}")),
        ("decode", _time(stages.decode, "a sample on one core")),
        ("transform", _time(stages.transform, f"a sample on one core{steps}")),
        ("collate", _time(stages.collate, "a batch")),
        ("hand-over", hand_over),
        ("copy", "none: there is no GPU" if measured.device == "cpu" else copy),
        ("start-up", _time(stages.start_up,
                           f"an epoch of {measured.epoch_batches or '?'} batches")),
        ("unexplained", unexplained is not None
         and f"{unexplained:.0%} of the loop's time, in no stage"),
        ("receiving", measured.workers and measured.receiving
         and f"{measured.receiving:.0%} of the loop's time, in this process"),
        ("machine", measured.machine),
        ("note", measured.is_loader_alone
         and "batches take long to load: loader and step ran by themselves"),
    ]  # fmt: skip
    return [(name, text) for name, text in rows if text and isinstance(text, str)]


def _spread(spread: Spread, form: str) -> str:
    return f"{spread.median:{form}} ({spread.low:{form}} to {spread.high:{form}})"


def _time(seconds: float | None, of: str) -> str:
    if seconds is None:
        return ""
    if seconds >= 1e-3:
        return f"{seconds:,.2f} s {of}" if seconds >= 1 else f"{seconds * 1e3:,.1f} ms {of}"
    return f"{seconds * 1e6:,.0f} µs {of}"
