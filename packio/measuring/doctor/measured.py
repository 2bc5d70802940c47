"""What is measured of a training loop: plain numbers, which travel as JSON."""

from __future__ import annotations

import dataclasses
import enum
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple


class Kind(str, enum.Enum):
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
    LOADER = "loader"  # it waits for data, and cannot be looked into
    STEP = "step"
    NONE = "none"


class Spread(NamedTuple):
    """The median of some measurements, and between what they lie.

    Attributes:
        median: The middle one.
        low, high: The lowest and the highest.
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Sum up at least one value."""
        return cls(statistics.median(values), min(values), max(values))


@dataclasses.dataclass(frozen=True)
class Stages:
    """What a sample and a batch cost, one by one; None: could not be measured.

    Attributes:
        storage, decode, transform: Seconds a sample, read from memory if it is there by then.
        storage_cold: The same, after the files were dropped from the page cache.
        item_bytes: Of a sample as it lies in its files.
        collate: Seconds a batch.
        hand_over: Seconds a batch from a worker process to this one.
        copy: Seconds a batch to the GPU.
        batch_bytes: Of the tensors and arrays of a batch.
        start_up: Seconds from asking for an epoch to its first batch, beyond those of a loader
            whose workers run already.
    """

    storage: float | None = None
    decode: float | None = None
    transform: float | None = None
    storage_cold: float | None = None
    item_bytes: float | None = None
    collate: float | None = None
    hand_over: float | None = None
    copy: float | None = None
    batch_bytes: int = 0
    start_up: float | None = None


@dataclasses.dataclass(frozen=True)
class Trial:
    """A change that was tried: the loop as it is and the changed one, in turns.

    Attributes:
        kind: What it is a remedy for.
        change: What was changed.
        code: That makes the change: Python, or a command.
        factor: Times as many samples a second, pair by pair.
        pairs: How many pairs; 0: it was not worth more than a first look.
        note: What to mind.
        noise: How far the loop as it is was from itself, pair by pair: 0.1 is a tenth.
    """

    kind: Kind
    change: str
    code: str
    factor: Spread
    pairs: int
    note: str = ""
    noise: float = 0.0

    @property
    def is_gain(self) -> bool:
        """Whether it is clearly faster: beyond the noise, and in every pair."""
        least = max(1.1, 1 + 1.5 * self.noise)
        return self.pairs >= 4 and self.factor.median >= least and self.factor.low > 1.03


@dataclasses.dataclass(frozen=True)
class Measured:
    """All that `packio.doctor` measured.

    Attributes:
        loader: What it is, in words.
        batch_size: Samples a batch.
        workers: Of the loader; None where that is unknown.
        cpus: That this process may use.
        device: What there is to copy to: "cpu", or a GPU's name.
        has_step: Whether a step was given.
        epoch_batches: Batches of an epoch; None where that is unknown.
        rate: Samples a second of the loop.
        waiting: Share of the loop's time in which the step waits for data, 0 to 1.
        step: Seconds a batch of the step alone, on a batch that is there.
        contiguous: Whether the tensors of the batches are.
        step_contiguous: Seconds of making the batch contiguous and of the step on it.
        stages: See there.
        trials: See there.
        is_loader_alone: Whether loader and step were run by themselves, as a batch takes so long
            to load, and the loop's numbers worked out from both.
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

    @property
    def batch_seconds(self) -> float:
        """Seconds of the loop for one batch."""
        return self.batch_size / self.rate.median

    def as_dict(self) -> dict[str, Any]:
        """Give everything as JSON takes it."""
        return {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Measured:
        """Take back what `as_dict` gave."""
        trials = [
            Trial(**{**t, "kind": Kind(t["kind"]), "factor": Spread(*t["factor"])})
            for t in values["trials"]
        ]
        return cls(**{
            **values, "rate": Spread(*values["rate"]), "waiting": Spread(*values["waiting"]),
            "stages": Stages(**values["stages"]), "trials": tuple(trials),
        })  # fmt: skip


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return [_plain(v) for v in value] if isinstance(value, tuple) else value
