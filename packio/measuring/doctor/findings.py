"""Step 2, findings: from the numbers to what bounds the loop. Pure functions."""

from __future__ import annotations

import dataclasses
from typing import Any

from packio.measuring.doctor.measured import Cause, Measurements, Trial

_LEAST = 0.2  # share of the loop's explained time from which on a kind is named
_LEAST_STEP = 0.1  # share of a sample's time from which on a transform is named
_KEPT_AHEAD = 0.1  # share of waiting below which the loader keeps ahead of the step
_CHANGES_TRAINING = 1.25  # gain below which the batch size should stay: it changes training
_OF_TRIALS = {Cause.WORKERS_TOO_FEW: 0, Cause.WORKERS_TOO_MANY: 0,
              Cause.BATCH_SIZE: _CHANGES_TRAINING}  # fmt: skip  # only a trial shows these


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something that bounds the loop.

    Attributes:
        share: Share of the loop's time that it takes, or that its remedy would save; 0 to 1.
        evidence: Name → number that shows it. Of transforms, the qualified names of the slowest,
            with their shares of a sample's time.
    """

    kind: Cause
    share: float
    evidence: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def shares(measured: Measurements) -> dict[Cause, float]:
    """Divide the time of an epoch: waiting among the loader's stages, the rest within the step.

    Receiving batches occupies this process alone. The rest of the waiting is divided by the time
    that the work of all worker processes, side by side, takes for a batch. The shares add up to 1.
    """
    waiting = min(1.0, max(0.0, measured.waiting.median)) if measured.has_step else 1.0
    receiving = min(waiting, max(0.0, measured.receiving)) if measured.workers else 0.0
    work = _divide_work(measured, waiting)
    total = sum(work.values())
    found = {kind: (waiting - receiving) * seconds / total for kind, seconds in work.items()}
    if measured.workers:
        found[Cause.HAND_OVER] = found.get(Cause.HAND_OVER, 0.0) + receiving
    computing, layout, copying = 1 - waiting, 0.0, 0.0
    if measured.step and measured.step_contiguous is not None and not measured.contiguous:
        layout = max(0.0, 1 - measured.step_contiguous / measured.step)
    if measured.step and measured.stages.copy:
        copying = min(measured.stages.copy / measured.step, 1 - layout)
    found[Cause.MEMORY_FORMAT] = computing * layout
    found[Cause.COPY] = computing * copying
    found[Cause.STEP] = computing * (1 - layout - copying)
    # The loop's rate is without the time in which workers start.
    epoch = (measured.epoch_batches or 0) * measured.batch_seconds
    starting = measured.stages.start_up
    lost = starting / (starting + epoch) if starting and epoch else 0.0
    return {kind: share * (1 - lost) for kind, share in found.items()} | {Cause.START_UP: lost}


def _divide_work(measured: Measurements, waiting: float) -> dict[Cause, float]:
    """Give the seconds of the loop in which the loader works on a batch, by kind.

    Sleeping (storage) is divided by all workers; computing by all workers if there are processors
    enough, else by the processors. The time that the loop takes says which: a repeated read may
    be faster than the first read, and processors may be shared.
    """
    stages, size = measured.stages, measured.batch_size
    if stages.storage is None or stages.decode is None or stages.transform is None:
        return {Cause.LOADER: 1.0}
    computing = {
        Cause.DECODE: stages.decode * size,
        Cause.TRANSFORM: stages.transform * size,
        Cause.COLLATE: stages.collate or 0.0,
    }
    if measured.workers:
        computing[Cause.HAND_OVER] = stages.hand_over or 0.0
    total = sum(computing.values())
    workers = measured.workers or 1
    again = stages.storage if stages.storage_again is None else stages.storage_again
    first, again = max(stages.storage, again) * size / workers, again * size / workers
    taken = measured.batch_seconds * (1.0 if measured.workers else waiting)
    storage = _clamp(taken - total / workers, again, first)
    computed = _clamp(taken - storage, total / workers, total / min(workers, measured.cpus))
    work = {kind: computed * seconds / total for kind, seconds in computing.items() if total}
    work |= {Cause.STORAGE: storage, Cause.UNEXPLAINED: max(0.0, taken - storage - computed)}
    return work if sum(work.values()) > 0 else {Cause.LOADER: 1.0}


def _clamp(value: float, low: float, high: float) -> float:
    return min(max(value, low), max(low, high))


def find(measured: Measurements) -> list[Finding]:
    """Name what bounds the loop, the heaviest first, then what trials show of workers and batches.

    Time that nothing explains comes last. There is always a finding: `Cause.STEP` if the step is
    the limit, `Cause.NONE` if nothing is.
    """
    parts = shares(measured)
    unexplained = parts.pop(Cause.UNEXPLAINED, 0.0)
    step = parts.pop(Cause.STEP)
    least = max(_LEAST / 2, _LEAST * (1 - unexplained))
    found = [Finding(kind, share, _give_evidence(measured, kind))
             for kind, share in parts.items() if share >= least]  # fmt: skip
    found.sort(key=lambda finding: -finding.share)
    of_trials = []
    for kind, least in _OF_TRIALS.items():
        gains = [t for t in measured.trials
                 if t.kind is kind and t.is_gain and t.factor.median >= least]  # fmt: skip
        if gains:
            factor = max(gains, key=lambda t: t.factor.median).factor
            evidence = {"factor": factor.median, "low": factor.low, "high": factor.high}
            of_trials.append(Finding(kind, 1 - 1 / factor.median, evidence))
    found += sorted(of_trials, key=lambda finding: -finding.share)
    if unexplained >= _LEAST:
        found.append(Finding(Cause.UNEXPLAINED, unexplained,
                             _give_evidence(measured, Cause.UNEXPLAINED)))  # fmt: skip
    if found:
        return found
    if measured.has_step and measured.waiting.median <= _KEPT_AHEAD:
        return [Finding(Cause.STEP, step, _give_evidence(measured, Cause.STEP))]
    return [Finding(Cause.NONE, 0.0, {"waiting": measured.waiting.median})]


def remedies(measured: Measurements) -> list[Trial]:
    """List the changes that help: tried ones first, then estimates; the largest gain first."""
    gains = (t for t in measured.trials if t.is_gain)
    return sorted(gains, key=lambda t: (bool(t.assumption), -t.factor.median))


def ceiling(measured: Measurements) -> float | None:
    """Give the gain of a loader that is never waited for, as a factor; None without a step."""
    return 1 / max(1 - measured.waiting.median, 1e-3) if measured.step else None


def slow_transforms(measured: Measurements) -> dict[str, float]:
    """Give the transforms that take a noticeable share of a sample's time, the slowest first."""
    steps = measured.stages.steps.items()
    return {name: share for name, share in steps if share >= _LEAST_STEP}


def _give_evidence(measured: Measurements, kind: Cause) -> dict[str, float]:
    stages = measured.stages
    numbers: dict[Cause, dict[str, float | None]] = {
        Cause.STORAGE: {"seconds_a_sample": stages.storage, "again": stages.storage_again},
        Cause.DECODE: {"seconds_a_sample": stages.decode},
        Cause.TRANSFORM: {"seconds_a_sample": stages.transform, **slow_transforms(measured)},
        Cause.COLLATE: {"seconds_a_batch": stages.collate},
        Cause.HAND_OVER: {"seconds_a_batch": stages.hand_over, "receiving": measured.receiving,
                          "bytes_a_batch": stages.batch_bytes},
        Cause.START_UP: {"seconds_an_epoch": stages.start_up},
        Cause.COPY: {"seconds_a_batch": stages.copy, "bytes_a_batch": stages.batch_bytes},
        Cause.MEMORY_FORMAT: {"seconds_a_step": measured.step,
                              "seconds_contiguous": measured.step_contiguous},
        Cause.STEP: {"seconds_a_step": measured.step},
    }  # fmt: skip
    given = {"waiting": measured.waiting.median, **numbers.get(kind, {})}
    return {name: value for name, value in given.items() if value is not None}
