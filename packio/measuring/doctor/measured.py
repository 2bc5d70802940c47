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
        """Sum up at least one value."""
        return cls(statistics.median(values), min(values), max(values))


@dataclasses.dataclass(frozen=True)
class Stages:
    """The cost of each stage by itself; None if the stage could not be measured.

    Attributes:
        storage: Seconds a sample that is fetched for the first time.
        decode, transform: Seconds a sample.
        storage_again: Seconds a sample that was fetched shortly before.
        steps: Name of a transform of the user's → its share of the time of a sample, 0 to 1.
        collate: Seconds a batch.
        hand_over: Seconds a batch that a worker spends on handing it over.
        copy: Seconds a batch, to the GPU.
        batch_bytes: Bytes of the tensors and arrays of a batch.
        start_up: Seconds that starting the workers adds to the first batch of an epoch.
    """

    storage: float | None = None
    decode: float | None = None
    transform: float | None = None
    storage_again: float | None = None
    collate: float | None = None
    hand_over: float | None = None
    copy: float | None = None
    batch_bytes: int = 0
    start_up: float | None = None
    steps: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Trial:
    """A change that was tried in turns with the loop as it is, or whose gain was estimated.

    Attributes:
        kind: The bottleneck that the change is to remedy.
        change: The change in words.
        code: The change as Python, or as a command.
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
    """All that `packio.doctor` measured.

    Attributes:
        loader: The loader in words.
        batch_size: Samples a batch.
        workers: Worker processes of the loader; None if unknown.
        cpus: CPUs that this process may use.
        device: Where batches can be copied to: "cpu", or the name of the GPU.
        has_step: Whether a step was given.
        epoch_batches: Batches an epoch; None if unknown.
        rate: Samples per second of the loop.
        waiting: Share of the loop's time in which the step waits for data, 0 to 1.
        receiving: Share of the loop's time in which this process takes batches over from workers:
            the part of `waiting` in which it computes.
        step: Seconds a batch of the step alone, on a batch that is there.
        contiguous: Whether the tensors of the batches are contiguous.
        step_contiguous: Seconds of making the batch contiguous and running the step on it.
        stages: The stages by themselves.
        trials: The changes that were tried.
        machine: Processor, versions and date of the measurement, in words.
        is_loader_alone: Whether loader and step ran by themselves, because loading a batch takes
            so long. The numbers of the loop are then calculated from both.
    """

    loader: str
    batch_size: int
    workers: int | None
    cpus: int
    device: str
    has_step: bool
    epoch_batches: int | None
    rate: Spread
    waiting: Spread
    step: float | None
    contiguous: bool
    step_contiguous: float | None
    stages: Stages
    trials: tuple[Trial, ...] = ()
    is_loader_alone: bool = False
    machine: str = ""
    receiving: float = 0.0

    @property
    def batch_seconds(self) -> float:
        """Seconds of the loop for one batch."""
        return self.batch_size / self.rate.median

    def as_dict(self) -> dict[str, Any]:
        """Give everything as JSON takes it."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Measurements:
        """Take back what `as_dict` gave."""
        trials = [
            Trial(**{**t, "kind": Cause(t["kind"]), "factor": Spread(*t["factor"])})
            for t in values["trials"]
        ]
        return cls(**{
            **values, "rate": Spread(*values["rate"]), "waiting": Spread(*values["waiting"]),
            "stages": Stages(**values["stages"]), "trials": tuple(trials),
        })  # fmt: skip
