"""Step 2, findings: the numbers that were measured, and what bounds the loop. Pure functions."""

from __future__ import annotations

import dataclasses
import enum
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

ERROR_RATE = 0.05  # probability that a diagnosis takes any change for a gain that is none
_WORTH_IT = 1.1  # factor from which on a change is recommended
_LEAST = 0.2  # share of the loop's explained time from which on a kind is named
_LEAST_STEP = 0.1  # share of a sample's time from which on a transform is named
_KEPT_AHEAD = 0.1  # share of waiting below which the loader keeps ahead of the step


class Cause(str, enum.Enum):
    """What can bound a training loop."""

    STORAGE = "storage"
    DECODE = "decode"
    TRANSFORM = "transform"
    COLLATE = "collate"
    HAND_OVER = "hand-over"
    START_UP = "start-up"
    WORKERS_TOO_FEW = "workers-too-few"
    WORKERS_TOO_MANY = "workers-too-many"
    BATCH_SIZE = "batch-size"
    MEMORY_FORMAT = "memory-format"
    COPY = "copy"
    LOADER = "loader"  # the loop waits for data, and the loader cannot be looked into
    UNEXPLAINED = "unexplained"  # the loop waits longer than the stages by themselves take
    STEP = "step"
    NONE = "none"


# Only a trial shows these; the batch size should stay for a small gain: it changes training.
_OF_TRIALS = {Cause.WORKERS_TOO_FEW: 0.0, Cause.WORKERS_TOO_MANY: 0.0, Cause.BATCH_SIZE: 1.25}


class Spread(NamedTuple):
    """Median, lowest and highest of some measurements."""

    median: float
    low: float
    high: float

    @classmethod
    def summarize(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))


@dataclasses.dataclass(frozen=True)
class Stages:
    """The cost of each stage by itself, in seconds; None if it could not be measured."""

    storage: float | None = None  # a sample that is fetched for the first time
    decode: float | None = None  # a sample
    transform: float | None = None  # a sample
    storage_again: float | None = None  # a sample that was fetched shortly before
    collate: float | None = None  # a batch
    hand_over: float | None = None  # a batch, of a worker
    copy: float | None = None  # a batch, to the GPU
    batch_bytes: int = 0  # of tensors and arrays
    start_up: float | None = None  # that starting workers adds to the first batch of an epoch
    steps: Mapping[str, float] = dataclasses.field(default_factory=dict)
    # qualified name of a transform → its share of the time of a sample, 0 to 1; largest first


@dataclasses.dataclass(frozen=True)
class Trial:
    """A change that was tried in turns with the loop as it is, or whose gain was estimated."""

    kind: Cause
    change: str
    code: str
    factor: Spread  # samples per second, as a multiple of the loop as it is
    rounds: int  # in which both loops ran; 0: one first look, or an estimate
    note: str = ""  # what to consider
    chance: float = 1.0  # at most, that any of the changes does as well without being faster
    assumption: str = ""  # what an estimate rests on; empty if the change was tried

    @property
    def is_gain(self) -> bool:
        """Whether the change is worth it, and its gain no chance; an estimate: worth it."""
        is_sure = self.factor.low > 1 if self.assumption else self.chance <= ERROR_RATE
        return is_sure and self.factor.median >= _WORTH_IT


@dataclasses.dataclass(frozen=True)
class Measurements:
    """All that `packio.doctor` measured."""

    loader: str  # in words
    batch_size: int
    workers: int | None  # None: unknown
    cpus: int  # that this process may use
    device: str  # "cpu", or the name of the GPU
    has_step: bool
    epoch_batches: int | None  # None: unknown
    rate: Spread  # samples per second of the loop
    waiting: Spread  # share of the loop's time in which the step waits for data, 0 to 1
    step: float | None  # seconds of the step alone, on a batch that is there
    contiguous: bool  # whether the tensors of the batches are
    step_contiguous: float | None  # seconds of making the batch contiguous and of the step on it
    stages: Stages
    trials: tuple[Trial, ...] = ()
    is_loader_alone: bool = False  # a batch loads so long that loader and step ran by themselves
    machine: str = ""  # processor, versions and date
    receiving: float = 0.0  # part of `waiting` in which this process computes: it receives batches

    @property
    def batch_seconds(self) -> float:
        return self.batch_size / self.rate.median

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Measurements:
        trials = [Trial(**{**t, "kind": Cause(t["kind"]), "factor": Spread(*t["factor"])})
                  for t in values["trials"]]  # fmt: skip
        return cls(**{
            **values, "rate": Spread(*values["rate"]), "waiting": Spread(*values["waiting"]),
            "stages": Stages(**values["stages"]), "trials": tuple(trials),
        })  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something that bounds the loop."""

    kind: Cause
    share: float  # of the loop's time that it takes, or that its remedy would save; 0 to 1
    # Name → number that shows it; also qualified names of the slowest transforms, with their shares
    evidence: dict[str, float]


def shares(measured: Measurements) -> dict[Cause, float]:
    """Divide the time of an epoch: waiting among the loader's stages, the rest within the step.

    Receiving batches occupies this process alone; the rest of the waiting is divided by the time of
    the workers, side by side. The shares add up to 1.
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

    Sleeping (storage) is divided by all workers; computing by all workers, or by the processors.
    The time that the loop takes says which.
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
    storage = statistics.median((taken - total / workers, again, first))
    computed = statistics.median(
        (taken - storage, total / workers, total / min(workers, measured.cpus))
    )
    work = {kind: computed * seconds / total for kind, seconds in computing.items() if total}
    work |= {Cause.STORAGE: storage, Cause.UNEXPLAINED: max(0.0, taken - storage - computed)}
    return work if sum(work.values()) > 0 else {Cause.LOADER: 1.0}


def find(measured: Measurements) -> list[Finding]:
    """Name what bounds the loop, the heaviest first; then what trials show, and unexplained time.

    There is always a finding: `Cause.STEP` if the step is the limit, `Cause.NONE` if nothing is.
    """
    parts = shares(measured)
    unexplained, step = parts.pop(Cause.UNEXPLAINED, 0.0), parts.pop(Cause.STEP)
    least = max(_LEAST / 2, _LEAST * (1 - unexplained))
    found = [Finding(kind, share, _give_evidence(measured, kind))
             for kind, share in parts.items() if share >= least]  # fmt: skip
    best = {trial.kind: trial.factor for trial in reversed(remedies(measured))}
    by_trials = [
        Finding(kind, 1 - 1 / best[kind].median,
                {"factor": best[kind].median, "low": best[kind].low, "high": best[kind].high})
        for kind, least in _OF_TRIALS.items() if kind in best and best[kind].median >= least
    ]  # fmt: skip
    found = sorted(found, key=lambda f: -f.share) + sorted(by_trials, key=lambda f: -f.share)
    if unexplained >= _LEAST:
        evidence = _give_evidence(measured, Cause.UNEXPLAINED)
        found.append(Finding(Cause.UNEXPLAINED, unexplained, evidence))
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
