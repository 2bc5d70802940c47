"""The epochs of a loader: batches of indices, the position in an epoch, and how to go on there.

There are two kinds. Packio's samplers compute any position, so a state is a number. A sampler of
others runs again from the random numbers it began with; a digest of the indices that were used
shows whether the order is the same.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence, Sized
from typing import Any, cast

from packio.datasets.dataset import Dataset
from packio.errors import OptionError
from packio.loading import ranks, steps
from packio.loading.foreign import ForeignOrder
from packio.loading.places import drawing
from packio.loading.resuming import Pass, Resumable, ResumableSampler
from packio.loading.running import Epoch, Reached, is_plain
from packio.loading.steps import Span, Stretch


class Epochs:
    """Batches of indices, one epoch at a time; each iteration of a loader is another epoch."""

    def __init__(
        self, dataset: Any, sampler: Iterable[int] | None, batches: Iterable[Sequence[int]],
        skip: Iterable[Sequence[int]] = (),
    ) -> None:  # fmt: skip
        self._dataset, self._batches = drawing(dataset), batches
        self._is_subset = self._dataset is not dataset
        inner = batches.sampler if is_plain(batches) else sampler
        self._order: _Own | ForeignOrder
        if is_plain(batches) and isinstance(inner, ResumableSampler):
            self._order = _Own(inner, batches, steps.read_spans(skip))
        elif isinstance(batches, Resumable):
            self._order = _Own(batches, batches, steps.read_spans(skip))
        else:
            self._order = ForeignOrder(inner, batches, steps.read_spans(skip))
        self._asked: Any = None  # what `_asked_now` said last
        self._latest: Epoch | None = None  # that handed out a batch last, or ended last
        self._seed: int | None = None  # of the draws, loaded

    def __len__(self) -> int:
        return len(cast("Sized", self._batches))

    @property
    def next(self) -> int:
        """Number of the next epoch."""
        return self._order.next

    def set(self, epoch: int) -> None:
        """Set the next epoch. The epoch that was just loaded keeps its position."""
        self._order.set(epoch)
        self._asked, self._latest = self._asked_now(), None

    def _asked_now(self) -> Any:
        """The epoch that the user set in the dataset last, in a list; another list each time."""
        ours = isinstance(self._dataset, Dataset)
        return self._dataset._tally.asked if ours else None  # noqa: SLF001 (no business of a dataset's user)

    def begin(self) -> Epoch:
        """Begin the next epoch, or the rest of the epoch that was loaded."""
        if self._seed is not None and not getattr(self._dataset, "seeded", False):
            self._dataset.seed = self._seed
        ours = isinstance(self._dataset, Dataset)
        if ours:
            before, self._asked = self._asked, self._asked_now()
            for number in self._asked if self._asked is not before else ():
                self._order.set(number)
        _ = getattr(self._dataset, "seed", None)  # drawn here, not in a thread or worker
        epoch = self._order.begin()
        set_epoch = getattr(self._dataset, "_begin_epoch" if ours else "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch.number)
        return epoch

    def delivered(self, epoch: Epoch) -> None:
        """Note that the next batch of an epoch has been handed out."""
        epoch.delivered()
        self._latest = epoch

    def ended(self, epoch: Epoch) -> None:
        """Note that an epoch has ended: the position is where the next one begins."""
        self._latest = epoch

    def state_dict(self) -> dict[str, Any]:
        """Tell the position after the batch that was handed out last, as numbers and tensors."""
        seed = self._seed if self._seed is not None else getattr(self._dataset, "seed", None)
        latest = self._latest
        running = latest is not None and not latest.is_over
        state = self._order.state(latest if running else None)
        left_out = [list(span) for span in self._order.left_out]
        own = getattr(self._dataset, "description", None)
        if own is not None and self._is_subset:
            own = {**own, "part": True}
        told = {} if own is None else {"dataset": own}
        return {"seed": seed, "rank": ranks.current()[0], **state, "left_out": left_out, **told}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next epoch be the rest of the epoch in a state."""
        seed, ours = state.get("seed"), getattr(self._dataset, "seed", None)
        given = getattr(self._dataset, "seeded", False)
        if given and seed not in (None, ours) and state.get("rank") == ranks.current()[0]:
            raise OptionError(f"the state is of seed={seed}; the dataset has seed={ours}")
        self._order.load(state)
        self._seed, self._latest = None if given else seed, None
        self._asked = self._asked_now()


class _Own:
    """The order of a sampler of packio's; the sampler itself counts the epochs."""

    def __init__(self, sampler: Resumable[Any], batches: Any, skip: tuple[Span, ...]) -> None:
        self._size = 1 if sampler is batches else batches.batch_size  # positions of a step
        self._sampler, self._batches, self._skip, self.left_out = sampler, batches, skip, skip
        self._stretches: tuple[Stretch, ...] = ()  # of the run so far
        self._loaded: tuple[Stretch, tuple[Span, ...]] | None = None  # spans of its steps

    @property
    def next(self) -> int:
        return self._sampler.epoch

    def set(self, epoch: int) -> None:
        self._sampler.set_epoch(epoch)

    def _continued(self) -> tuple[int, int, tuple[Stretch, ...]]:
        """Epoch and position of the next iteration, and the stretches of the run with it."""
        upcoming = self._sampler.upcoming()
        where = upcoming["epoch"], upcoming["consumed"]
        sizes = self._size, self._sampler.world_size
        start = self._sampler.start_of
        return *where, steps.continued(self._stretches, *where, *sizes, start)

    def begin(self) -> Epoch:
        epoch, position, self._stretches = self._continued()
        now = steps.of_position(self._stretches, epoch, position, self._sampler.start_of)
        step = now.step_at(position)
        if self._loaded is not None:
            steps.check_size(*self._loaded, now, step)
        begun = _OwnEpoch(self._sampler, self._batches, self._stretches, epoch, step, self.left_out)
        drops = self._batches is not self._sampler and self._batches.drop_last
        if drops and not step and 0 < begun.part.steps < self._size:
            warnings.warn(
                f"the epoch has no batch: a rank gets {begun.part.steps:,} samples, a batch has "
                f"{self._size:,}, and drop_last leaves smaller ones out; take a smaller "
                "batch_size, or drop_last=False",
                stacklevel=4,
            )
        steps.warn_if_beyond(self.left_out, now, self._sampler.end_of(epoch))
        return begun

    def state(self, running: Epoch | None) -> dict[str, Any]:
        if isinstance(running, _OwnEpoch):
            state = self._sampler.state_of(running.part, running.positions)
            step, stretches = running.reached.step, running.stretches
        else:
            state = self._sampler.upcoming()
            epoch, at, stretches = self._continued()
            step = steps.of_position(stretches, epoch, at, self._sampler.start_of).step_at(at)
        position = {name: state.pop(name) for name in ("epoch", "consumed")}
        return {
            **position, "step": step, "order": state, "stretches": [list(s) for s in stretches],
            "drop_last": self._batches.drop_last, "sampler_drop_last": self._sampler.drop_last,
        }  # fmt: skip

    def load(self, state: dict[str, Any]) -> None:
        if "order" not in state:
            raise OptionError("the state is of a sampler that is not packio's: of another order")
        stretches = steps.read_stretches(state.get("stretches", ()))
        loaded = steps.read_spans(state.get("left_out"), "left_out")
        left_out = steps.joined(self._skip, loaded, state["epoch"], state["step"])
        position = {name: state[name] for name in ("epoch", "consumed")}
        self._sampler.load_state_dict({**state["order"], **position})
        self._stretches, self.left_out = stretches, left_out
        self._loaded = (stretches[-1], loaded) if stretches else None


class _OwnEpoch(Epoch):
    """An epoch of a sampler of packio's."""

    def __init__(
        self, sampler: Resumable[Any], batches: Iterable[list[int]],
        stretches: tuple[Stretch, ...], number: int, step: int, left_out: Sequence[Span],
    ) -> None:  # fmt: skip
        self._yields_batches, self._start = sampler is batches, step
        start = Reached(step)
        super().__init__(number, iter(batches), resumed=False, start=start, left_out=left_out)
        self.part = cast("Pass", sampler.latest)  # the first batch has begun it
        self.number, self.resumed = self.part.epoch, self.part.begun > 0
        self.stretches = stretches

    @property
    def positions(self) -> int:
        """Positions of the sampler that were delivered: samples, or batches if it yields them."""
        return self.reached.step - self._start if self._yields_batches else self.reached.samples
