"""Where a loader is in its run: the batches of an epoch, how far they have come, states.

Packio's samplers compute any position, so a state is a number. A sampler of others runs again from
the random numbers it began with; a digest of the indices that were used shows whether the order is
the same.
"""

from __future__ import annotations

import hashlib
import itertools
import operator
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any, NamedTuple, TypeGuard, cast

import numpy as np
import torch
from torch.utils.data import BatchSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from packio.batches import draws
from packio.datasets.dataset import Dataset
from packio.datasets.lookahead import unwrap_subset
from packio.errors import OptionError
from packio.loading import ranks, steps
from packio.loading.order import EpochSlice, Order
from packio.loading.steps import Span, Stretch

_MOST_AHEAD = 1 << 20  # batches of a foreign sampler that are drawn before the first is made


class EpochBatches(BatchSampler):
    """Batches of a sampler that pass on the epoch that is set here, as transformers sets it."""

    def set_epoch(self, epoch: int) -> None:
        set_epoch = getattr(self.sampler, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)


class Progress(NamedTuple):
    """How far a rank has got in an epoch, with steps that are left out."""

    step: int
    # of a sampler that is not packio's:
    samples: int = 0
    used: Any = None  # hash of the indices


class Epoch:
    """One iteration of a loader.

    ``drawn`` are the batches of the sampler, each with how far the epoch gets by it.
    """

    def __init__(
        self, number: int, start: Progress, drawn: Iterator[tuple[Progress, list[int]]],
        left_out: Sequence[Span], begun: Any, *, resumed: bool,
    ) -> None:  # fmt: skip
        self.number: int = number
        self.resumed: bool = resumed  # whether it is the rest of an epoch that was loaded
        self.progress = start  # after the batches that were handed out
        self.begun: Any = begun  # what the cursor keeps of its beginning, for a state
        ahead = [s for s in left_out if s.epoch == number and s.last >= start.step]
        self._drawn = (d for d in drawn if not steps.is_left_out(ahead, number, d[0].step - 1))
        self._waiting: deque[Progress] = deque()  # taken by workers or threads, not delivered yet
        self._next = next(self._drawn, None)  # a sampler draws here, at once
        self.batches: Iterator[list[int]] = self._take()

    def _take(self) -> Iterator[list[int]]:
        while self._next is not None:
            progress, batch = self._next
            self._waiting.append(progress)  # first: `is_over` may be asked for by another thread
            self._next = next(self._drawn, None)
            yield batch

    @property
    def is_over(self) -> bool:
        return self._next is None and not self._waiting

    def deliver(self) -> None:
        self.progress = self._waiting.popleft()


def make_cursor(
    dataset: Any, sampler: Iterable[int] | None, batches: Iterable[Sequence[int]],
    skip: Iterable[Sequence[int]] = (),
) -> Cursor:  # fmt: skip
    """Make the cursor of a loader; each iteration of the loader is another epoch."""
    inner = batches.sampler if _is_plain(batches) else sampler
    if isinstance(batches, Order):
        return Cursor(dataset, batches, batches, skip)
    if _is_plain(batches) and isinstance(inner, Order) and not inner.yields_batches:
        return Cursor(dataset, inner, batches, skip)
    return ForeignCursor(dataset, inner, batches, skip)


def _is_plain(batches: object) -> TypeGuard[BatchSampler]:
    """Tell whether batches are the indices of a sampler in its order."""
    return type(batches) in (BatchSampler, EpochBatches)


class Cursor:
    """The position of a loader in its run; the sampler, an order of packio's, counts the epochs."""

    _sampler: Any  # an `Order`; of a `ForeignCursor` anything
    _stretches: tuple[Stretch, ...] = ()  # of the run so far
    _loaded: Any = None  # last stretch of a state that was loaded, and spans of its steps

    def __init__(
        self, dataset: Any, sampler: Any, batches: Any, skip: Iterable[Sequence[int]]
    ) -> None:
        self._dataset, self._sampler, self._batches = unwrap_subset(dataset), sampler, batches
        self._is_subset = self._dataset is not dataset
        self._skip = self._left_out = steps.read_spans(skip)  # and what a loaded state says
        self._asked: Any = None  # what `_asked_now` said last
        self._latest: Epoch | None = None  # that handed out a batch last, or ended last
        self._seed: int | None = None  # of the draws, loaded

    def __len__(self) -> int:
        return len(cast("Sized", self._batches))

    @property
    def next(self) -> int:
        return int(self._sampler.epoch)

    def set_next_epoch(self, epoch: int) -> None:
        """Set the next epoch. The epoch that was just loaded keeps its position."""
        self._set(epoch)
        self._asked, self._latest = self._asked_now(), None

    def _asked_now(self) -> Any:
        """The epoch that the user set in the dataset last, in a list; another list each time."""
        return getattr(getattr(self._dataset, "_tally", None), "asked", None)

    def begin(self) -> Epoch:
        """Begin the next epoch, or the rest of the epoch that was loaded."""
        if self._seed is not None and not getattr(self._dataset, "seeded", False):
            self._dataset.seed = self._seed
        before, self._asked = self._asked, self._asked_now()
        if self._asked is not before:
            for number in self._asked:
                self._set(number)
        _ = getattr(self._dataset, "seed", None)  # drawn here, not in a thread or worker
        epoch = self._begin()
        ours = isinstance(self._dataset, Dataset)
        set_epoch = getattr(self._dataset, "_begin_epoch" if ours else "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch.number)
        return epoch

    def deliver(self, epoch: Epoch, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of an epoch; the position is after each, then at the next epoch."""
        for batch in batches:
            epoch.deliver()
            self._latest = epoch
            yield batch
        self._latest = epoch

    def state_dict(self) -> dict[str, Any]:
        """Tell the position after the batch that was handed out last, as numbers and tensors."""
        seed = self._seed if self._seed is not None else getattr(self._dataset, "seed", None)
        latest = self._latest
        state = self._state(None if latest is None or latest.is_over else latest)
        left_out = [list(span) for span in self._left_out]
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
        self._load(state)
        self._seed, self._latest = None if given else seed, None
        self._asked = self._asked_now()

    def _set(self, epoch: int) -> None:
        self._sampler.set_epoch(epoch)

    @property
    def _size(self) -> int:  # positions of a step
        return 1 if self._sampler is self._batches else int(self._batches.batch_size)

    def _upcoming(self) -> tuple[EpochSlice, Stretch, tuple[Stretch, ...]]:
        """What the next iteration begins with, its stretch, and the run's stretches with it."""
        part, start = self._sampler.upcoming(), self._sampler.start_of
        where, sizes = (part.epoch, part.start), (self._size, self._sampler.world_size)
        stretches = steps.add_stretch(self._stretches, *where, *sizes, start)
        return part, steps.find_stretch(stretches, *where, start, by="position"), stretches

    def _begin(self) -> Epoch:
        part, now, self._stretches = self._upcoming()
        step = now.step_at(part.start)
        if self._loaded is not None:
            was, spans = self._loaded
            steps.check_size(was, spans, now, step)
        drawn = zip(map(Progress, itertools.count(step + 1)), self._batches, strict=False)
        begun, resumed = (part, step, self._stretches), part.start > 0
        epoch = Epoch(part.epoch, Progress(step), drawn, self._left_out, begun, resumed=resumed)
        drops = self._batches is not self._sampler and self._batches.drop_last
        if drops and not step and 0 < part.steps < self._size:
            warnings.warn(
                f"the epoch has no batch: a rank gets {part.steps:,} samples, a batch has "
                f"{self._size:,}, and drop_last leaves smaller ones out; take a smaller "
                "batch_size, or drop_last=False",
                stacklevel=4,
            )
        total = now.step_at(self._sampler.end_of(part.epoch))
        for span in self._left_out:
            if span.epoch == part.epoch and span.first >= total:
                warnings.warn(
                    f"skip={tuple(span)}: epoch {span.epoch} has {total} steps, 0 to {total - 1}; "
                    "steps are counted from 0 in each epoch",
                    stacklevel=4,
                )
        return epoch

    def _state(self, running: Epoch | None) -> dict[str, Any]:
        if running is None:
            part, now, stretches = self._upcoming()
            first = step = now.step_at(part.start)
        else:
            part, first, stretches = running.begun
            step = running.progress.step
        order = self._sampler.state_of(part, (step - first) * self._size)
        position = {name: order.pop(name) for name in ("epoch", "consumed")}
        return {
            **position, "step": step, "order": order, "stretches": [list(s) for s in stretches],
            "drop_last": self._batches.drop_last, "sampler_drop_last": self._sampler.drop_last,
        }  # fmt: skip

    def _load(self, state: dict[str, Any]) -> None:
        if "order" not in state:
            raise OptionError("the state is of a sampler that is not packio's: of another order")
        stretches = steps.read_stretches(state.get("stretches", ()))
        loaded = steps.read_spans(state.get("left_out"), "left_out")
        left_out = steps.merge_spans(self._skip, loaded, state["epoch"], state["step"])
        position = {name: state[name] for name in ("epoch", "consumed")}
        self._sampler.load_state_dict({**state["order"], **position})
        self._stretches, self._left_out = stretches, left_out
        self._loaded = (stretches[-1], loaded) if stretches else None


class ForeignCursor(Cursor):
    """The cursor of a sampler that is not packio's, which runs again to get to a position."""

    def __init__(
        self, dataset: Any, sampler: Any, batches: Any, skip: Iterable[Sequence[int]]
    ) -> None:
        super().__init__(dataset, sampler, batches, skip)
        within = getattr(batches, "sampler", None)
        self._parts = list({id(p): p for p in (sampler, batches, within) if p is not None}.values())
        found = [v for part in self._parts for v in getattr(part, "__dict__", {}).values()]
        self._generators = list(dict.fromkeys(v for v in found if isinstance(v, torch.Generator)))
        self._number = 0
        self._told = getattr(sampler, "epoch", None)  # the epoch that the sampler had last

    @property
    def next(self) -> int:
        return self._number

    def _set(self, epoch: int) -> None:
        if self._loaded is not None and self._loaded["epoch"] != epoch:
            self._loaded = None
        self._number, self._told = epoch, getattr(self._sampler, "epoch", None)

    def _begin(self) -> Epoch:
        loaded, self._loaded = self._loaded, None
        told = getattr(self._sampler, "epoch", None)
        if loaded is None and isinstance(told, int) and told != self._told:
            self._number = told  # the user has set the sampler's epoch
        number, self._number = self._number, self._number + 1
        for part in self._parts:
            set_epoch = getattr(part, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(number)
        self._told = getattr(self._sampler, "epoch", None)
        if loaded is not None:
            for generator, state in zip(self._generators, loaded["generators"], strict=False):
                generator.set_state(state)
        skip = 0 if loaded is None else loaded["skip"]
        with torch.random.fork_rng(devices=[], enabled=skip > 0):
            if loaded is not None and skip:
                torch.set_rng_state(loaded["random"])
            generators = [generator.get_state() for generator in self._generators]
            begun = {"generators": generators, "random": torch.get_rng_state()}
            used, batches = self._draw(skip)
            start = Progress(0, 0, hashlib.blake2b(digest_size=16))
            if loaded is not None and skip:
                start = Progress(loaded["step"], len(used), _hash(start.used, used))
                self._check(loaded, start, number)
            drawn = _count(batches, number, start)
            return Epoch(number, start, drawn, self._left_out, begun, resumed=skip > 0)

    def _draw(self, skip: int) -> tuple[list[int], Iterator[list[int]]]:
        """The indices that were used, and the batches that follow.

        A sampler that may draw random numbers draws an epoch of them now: as many batches as it
        says that it has. It may have more, or no end.
        """
        if _is_plain(self._batches):  # any batch size
            indices = iter(self._batches.sampler)
            used = list(itertools.islice(indices, skip))
            size, drop_last = self._batches.batch_size, self._batches.drop_last
            batches = iter(BatchSampler(cast("Any", indices), size, drop_last))
        else:
            used, batches = [], map(list, self._batches)
            while len(used) < skip:
                used += next(batches, [-1] * skip)  # it ends too early: not the order of the state
        count = operator.length_hint(self._batches)  # 0: it does not say
        if isinstance(self._sampler, SequentialSampler) or count > _MOST_AHEAD:
            count = 0
        return used, itertools.chain(list(itertools.islice(batches, count)), batches)

    def _check(self, loaded: dict[str, Any], start: Progress, number: int) -> None:
        rank, world_size = ranks.current()
        same = rank == loaded["rank"]
        any_rank = same or isinstance(self._sampler, DistributedSampler)
        if not any_rank or world_size != loaded["world_size"]:
            raise OptionError(
                f"the state is of rank {loaded['rank']} of {loaded['world_size']}, this is rank "
                f"{rank} of {world_size}: a sampler that is not packio's needs a state of its own "
                "on each rank, and as many ranks; packio.ShuffleSampler does not"
            )
        is_other = same and start.used.hexdigest() != loaded["digest"]
        if is_other or start.samples != loaded["skip"]:
            raise OptionError(
                f"{type(self._sampler or self._batches).__name__} gives another order than the one "
                f"that the state is of: the first {loaded['skip']} indices of epoch {number} "
                "differ; seed its generator as before, and keep its batches"
            )

    def _state(self, running: Epoch | None) -> dict[str, Any]:
        if self._loaded is not None:
            return {**self._loaded}
        rank, world_size = ranks.current()
        state = {"epoch": self._number, "skip": 0, "step": 0, "rank": rank,
                 "world_size": world_size, "batch_size": getattr(self._batches, "batch_size", None),
                 "generators": [g.get_state() for g in self._generators]}  # fmt: skip
        if running is None:
            return state
        step, samples, used = running.progress
        return {**state, **running.begun, "epoch": running.number, "skip": samples, "step": step,
                "digest": used.hexdigest()}  # fmt: skip

    def _load(self, state: dict[str, Any]) -> None:
        if "skip" not in state:
            raise OptionError(f"the state is of a sampler of packio's, of {state.get('order')}")
        loaded, step = steps.read_spans(state.get("left_out"), "left_out"), state["step"]
        size, ours = state.get("batch_size"), getattr(self._batches, "batch_size", None)
        if size is not None and ours is not None:
            now = Stretch(state["epoch"], step, 0, ours, 1)
            steps.check_size(now._replace(batch_size=size), loaded, now, step)
        self._left_out = steps.merge_spans(self._skip, loaded, state["epoch"], step)
        self._loaded, self._number = dict(state), state["epoch"]


class ResumableLoader:
    """What loaders tell of the epoch, and of the position in it, that their cursor keeps."""

    _cursor: Cursor

    def __len__(self) -> int:
        """Batches of a whole epoch, those that ``skip`` leaves out included."""
        return len(self._cursor)

    @property
    def epoch(self) -> int:
        """Number of the next epoch."""
        return self._cursor.next

    def set_epoch(self, epoch: int) -> None:
        """Set the next epoch of sampler and dataset; without it they count epochs themselves."""
        self._cursor.set_next_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Tell the position after the batch that was handed out last.

        The state holds numbers, and for a sampler that is not packio's also the state of torch's
        random numbers. `torch.save` and ``torch.load(weights_only=True)`` accept it.
        """
        return self._cursor.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state: the next batch, crops and flips included, is the one that was next.

        With a `ShuffleSampler`, batch size and world size may differ from those of the state. A
        sampler that is not packio's runs again without reading samples, with torch's random numbers
        as they were. Its later epochs depend on torch's state (`torch.get_rng_state`), which a
        checkpoint has to hold as well.

        Raises:
            OptionError: the state belongs to another order.
        """
        self._cursor.load_state_dict(state)


def _count(
    batches: Iterator[list[Any]], epoch: int, at: Progress
) -> Iterator[tuple[Progress, list[Any]]]:
    """Count the batches of a foreign sampler, whose indices get places, counted over all ranks."""
    rank, world_size = ranks.current()
    for batch in batches:
        first = at.samples * world_size + rank
        at = Progress(at.step + 1, at.samples + len(batch), _hash(at.used, batch))
        yield at, draws.attach_positions(batch, epoch, first, world_size)


def _hash(before: Any, indices: Sequence[Any]) -> Any:
    used = before.copy()
    try:
        used.update(np.asarray(indices, "<i8").tobytes())
    except (TypeError, ValueError):  # indices of a foreign dataset may be anything
        used.update("".join(map(repr, indices)).encode())
    return used
