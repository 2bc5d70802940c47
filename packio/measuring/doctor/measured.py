"""The numbers that the doctor measures of a training loop; they travel as JSON."""

from __future__ import annotations

import dataclasses
import enum
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

ERROR_RATE = 0.05  # probability that a diagnosis takes any change for a gain that is none
_WORTH_IT = 1.1  # factor from which on a change is recommended


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


class Spread(NamedTuple):
    """Median, lowest and highest of some measurements."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
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
    """A change that was tried in turns with the loop as it is, or whose gain was estimated.

    Attributes:
        factor: Samples per second of the changed loop as a multiple of the loop as it is.
        rounds: Rounds in which both loops ran; 0: one first look, or an estimate.
        note: What to consider.
        chance: At most, the probability that any of the changes that ran in turns does as well
            without being faster.
        assumption: What an estimate rests on; empty if the change was tried.
    """

    kind: Cause
    change: str
    code: str
    factor: Spread
    rounds: int
    note: str = ""
    chance: float = 1.0
    assumption: str = ""

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

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Measurements:
        trials = [
            Trial(**{**t, "kind": Cause(t["kind"]), "factor": Spread(*t["factor"])})
            for t in values["trials"]
        ]
        return cls(**{
            **values, "rate": Spread(*values["rate"]), "waiting": Spread(*values["waiting"]),
            "stages": Stages(**values["stages"]), "trials": tuple(trials),
        })  # fmt: skip
