"""The epochs of a loader: batches of indices, the position in an epoch, and how to go on there.

There are two kinds. Packio's samplers compute any position, so a state is a number. A sampler of
others runs again from the random numbers it began with; a digest of the indices that were used
shows whether the order is the same.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any, TypeGuard, cast

import numpy as np
import torch
from torch.utils.data import BatchSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from packio.batches import draws
from packio.datasets.coming import Coming
from packio.errors import OptionError
from packio.loading import ranks
from packio.loading.resuming import Pass, ResumableSampler


class EpochBatches(BatchSampler):
    """Batches of a sampler that pass on the epoch that is set here, as transformers sets it."""

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the sampler, if it has one."""
        set_epoch = getattr(self.sampler, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)


_MOST_AHEAD = 1 << 20  # batches of a foreign sampler that are drawn before the first is made


class Epoch:
    """One iteration of a loader.

    Attributes:
        number: Number of the epoch.
        batches: Indices of the batches that are left.
        resumed: Whether it is the rest of an epoch that was loaded.
    """

    def __init__(self, number: int, batches: Iterator[list[int]], *, resumed: bool) -> None:
        self.number, self.resumed = number, resumed
        self._waiting: deque[list[int]] = deque()  # taken by workers or threads, not delivered yet
        self._source, self._next = batches, next(batches, None)  # a sampler draws here, at once
        self.batches = self._taken()
        self.samples = 0  # in the batches delivered
        self._hash = hashlib.blake2b(digest_size=16)

    def _taken(self) -> Iterator[list[int]]:
        while self._next is not None:
            batch = self._next
            self._waiting.append(batch)  # first: `is_over` may be asked for by another thread
            self._next = next(self._source, None)
            yield batch

    @property
    def is_over(self) -> bool:
        """Whether all batches have been delivered."""
        return self._next is None and not self._waiting

    def delivered(self) -> None:
        """Note that the next batch has been handed out."""
        self.count(self._waiting.popleft())

    def count(self, indices: Sequence[int]) -> None:
        """Count indices as used."""
        self.samples += len(indices)
        try:
            self._hash.update(np.asarray(indices, "<i8").tobytes())
        except (TypeError, ValueError):  # indices of a foreign dataset may be anything
            self._hash.update("".join(map(repr, indices)).encode())

    @property
    def digest(self) -> str:
        """Digest of the indices used so far, however they were batched."""
        return self._hash.hexdigest()


class Epochs:
    """Batches of indices, one epoch at a time; each iteration of a loader is another epoch.

    Args:
        dataset: Dataset that is told the epoch, if it has ``set_epoch``.
        sampler: Sampler; None if there is only a batch sampler.
        batches: Yields the batches of an epoch.
    """

    def __init__(
        self, dataset: Any, sampler: Iterable[int] | None, batches: Iterable[Sequence[int]]
    ) -> None:
        self._dataset, self._batches = drawing(dataset), batches
        inner = batches.sampler if _is_plain(batches) else sampler
        self._order: _Own | _Foreign
        if _is_plain(batches) and isinstance(inner, ResumableSampler):
            self._order = _Own(inner, batches)
        else:
            self._order = _Foreign(inner, batches)
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
        self._latest = None

    def begin(self) -> Epoch:
        """Begin the next epoch, or the rest of the epoch that was loaded.

        Raises:
            OptionError: a sampler that is not packio's gives another order than before.
        """
        if self._seed is not None and not getattr(self._dataset, "seeded", False):
            self._dataset.seed = self._seed
        epoch = self._order.begin()
        set_epoch = getattr(self._dataset, "set_epoch", None)
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
        return {"seed": seed, "rank": ranks.current()[0], **state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next epoch be the rest of the epoch in a state.

        Raises:
            OptionError: the state belongs to another order, or the dataset has another seed.
        """
        seed, ours = state.get("seed"), getattr(self._dataset, "seed", None)
        given = getattr(self._dataset, "seeded", False)
        if given and seed not in (None, ours) and state.get("rank") == ranks.current()[0]:
            raise OptionError(f"the state is of seed={seed}; the dataset has seed={ours}")
        self._order.load(state)
        self._seed, self._latest = None if given else seed, None


class _Own:
    """The order of a sampler of packio's; the sampler itself counts the epochs."""

    def __init__(self, sampler: ResumableSampler, batches: BatchSampler) -> None:
        self._sampler, self._batches = sampler, batches

    @property
    def next(self) -> int:
        return self._sampler.epoch

    def set(self, epoch: int) -> None:
        self._sampler.set_epoch(epoch)

    def begin(self) -> Epoch:
        return _OwnEpoch(self._sampler, iter(self._batches))

    def state(self, running: Epoch | None) -> dict[str, Any]:
        if isinstance(running, _OwnEpoch):
            state = self._sampler.state_of(running.part, running.samples)
        else:
            state = self._sampler.upcoming()
        position = {name: state.pop(name) for name in ("epoch", "consumed")}
        return {**position, "order": state}

    def load(self, state: dict[str, Any]) -> None:
        if "order" not in state:
            raise OptionError("the state is of a sampler that is not packio's: of another order")
        position = {name: state[name] for name in ("epoch", "consumed")}
        self._sampler.load_state_dict({**state["order"], **position})


class _OwnEpoch(Epoch):
    """An epoch of a sampler of packio's.

    Attributes:
        part: The pass of the sampler.
    """

    def __init__(self, sampler: ResumableSampler, batches: Iterator[list[int]]) -> None:
        super().__init__(0, batches, resumed=False)  # this begins a pass of the sampler
        self.part = cast("Pass", sampler.latest)
        self.number, self.resumed = self.part.epoch, self.part.begun > 0

    def count(self, indices: Sequence[int]) -> None:
        self.samples += len(indices)


class _Foreign:
    """The order of a sampler that is not packio's, which runs again to get to a position."""

    def __init__(self, sampler: Iterable[int] | None, batches: Iterable[Sequence[int]]) -> None:
        self._sampler, self._batches = sampler, batches
        within = getattr(batches, "sampler", None)
        self._parts = list({id(p): p for p in (sampler, batches, within) if p is not None}.values())
        found = [v for part in self._parts for v in getattr(part, "__dict__", {}).values()]
        generators = [v for v in found if isinstance(v, torch.Generator)]
        self._generators = list({id(g): g for g in generators}.values())
        self.next = 0
        self._told = getattr(sampler, "epoch", None)  # the epoch that the sampler had last
        self._loaded: dict[str, Any] | None = None

    def set(self, epoch: int) -> None:
        if self._loaded is not None and self._loaded["epoch"] != epoch:
            self._loaded = None
        self.next, self._told = epoch, getattr(self._sampler, "epoch", None)

    def begin(self) -> Epoch:
        loaded, self._loaded = self._loaded, None
        told = getattr(self._sampler, "epoch", None)
        if loaded is None and isinstance(told, int) and told != self._told:
            self.next = told  # the user has set the sampler's epoch
        number, self.next = self.next, self.next + 1
        for part in self._parts:
            set_epoch = getattr(part, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(number)
        self._told = getattr(self._sampler, "epoch", None)
        if loaded is not None:
            for generator, state in zip(self._generators, loaded["generators"], strict=False):
                generator.set_state(state)
        begun = {"generators": self._generators_now(), "random": torch.get_rng_state()}
        if loaded is None or not loaded["skip"]:
            return _ForeignEpoch(number, self._drawn(), begun)
        self._check_rank(loaded)
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(loaded["random"])
            return self._rest(number, loaded)

    def _drawn(self) -> Iterator[list[int]]:
        """The batches; a sampler that may draw random numbers draws an epoch of them now."""
        batches = map(list, self._batches)
        if isinstance(self._sampler, SequentialSampler):
            return batches
        return self._ahead(batches)

    def _ahead(self, batches: Iterator[list[int]]) -> Iterator[list[int]]:
        """Take as many batches as the sampler says that it has; it may have more, or no end."""
        if not isinstance(self._batches, Sized) or len(self._batches) > _MOST_AHEAD:
            return batches
        return itertools.chain(list(itertools.islice(batches, len(self._batches))), batches)

    def _rest(self, number: int, loaded: dict[str, Any]) -> Epoch:
        begun = {name: loaded[name] for name in ("generators", "random")}
        skip = loaded["skip"]
        if _is_plain(self._batches):  # any batch size
            indices = list(self._batches.sampler)
            used, left = indices[:skip], iter(indices[skip:])
            size = self._batches.batch_size
            batches = iter(lambda: list(itertools.islice(left, size)), [])
            if self._batches.drop_last:
                batches = (batch for batch in batches if len(batch) == size)
        else:
            batches, used = map(list, self._batches), []
            while len(used) < skip:
                used += next(batches, [-1] * skip)  # it ends too early: not the order of the state
            batches = self._ahead(batches)
        epoch = _ForeignEpoch(number, batches, begun, first=len(used), resumed=True)
        epoch.count(used)
        same_rank = loaded["rank"] == ranks.current()[0]
        if epoch.samples != skip or (same_rank and epoch.digest != loaded["digest"]):
            raise OptionError(
                f"{type(self._sampler or self._batches).__name__} gives another order than the one "
                f"that the state is of: the first {skip} indices of epoch {number} differ; seed "
                "its generator as before, and keep its batches"
            )
        return epoch

    def _check_rank(self, loaded: dict[str, Any]) -> None:
        rank, world_size = ranks.current()
        same = rank == loaded["rank"] or isinstance(self._sampler, DistributedSampler)
        if not same or world_size != loaded["world_size"]:
            raise OptionError(
                f"the state is of rank {loaded['rank']} of {loaded['world_size']}, this is rank "
                f"{rank} of {world_size}: a sampler that is not packio's needs a state of its own "
                "on each rank, and as many ranks; packio.ShuffleSampler does not"
            )

    def _generators_now(self) -> list[torch.Tensor]:
        return [generator.get_state() for generator in self._generators]

    def state(self, running: Epoch | None) -> dict[str, Any]:
        if self._loaded is not None:
            return {**self._loaded}
        rank, world_size = ranks.current()
        state = {"epoch": self.next, "skip": 0, "rank": rank, "world_size": world_size,
                 "generators": self._generators_now()}  # fmt: skip
        if not isinstance(running, _ForeignEpoch):
            return state
        position = {"epoch": running.number, "skip": running.samples, "digest": running.digest}
        return {**state, **running.begun, **position}

    def load(self, state: dict[str, Any]) -> None:
        if "skip" not in state:
            raise OptionError(f"the state is of a sampler of packio's, of {state.get('order')}")
        self._loaded, self.next = dict(state), state["epoch"]


class _ForeignEpoch(Epoch):
    """An epoch of a sampler that is not packio's.

    Attributes:
        begun: States of the random numbers when it began.
    """

    def __init__(
        self, number: int, batches: Iterator[list[int]], begun: dict[str, Any],
        *, first: int = 0, resumed: bool = False,
    ) -> None:  # fmt: skip
        self.begun = begun
        super().__init__(number, _placed(batches, number, first), resumed=resumed)


def _placed(batches: Iterator[list[Any]], epoch: int, first: int) -> Iterator[list[Any]]:
    """Give the indices of a foreign sampler places in the epoch, counted over all ranks.

    Args:
        batches: Batches of this rank.
        epoch: Number of the epoch.
        first: Samples of this rank before them.
    """
    rank, world_size = ranks.current()
    for batch in batches:
        yield draws.numbered(batch, epoch, first * world_size + rank, world_size)
        first += len(batch)


class PlacedSubset(torch.utils.data.Subset[Any]):
    """A `Subset` whose indices keep their places in the epoch, which crops are drawn from."""

    def __getitem__(self, index: Any) -> Any:
        """Get one sample."""
        return self.dataset[self._moved(index)]

    def __getitems__(self, indices: list[Any]) -> list[Any]:
        """Get some samples at once."""
        moved = (
            indices.mapped(self._moved) if isinstance(indices, Coming)
            else [self._moved(index) for index in indices]
        )  # fmt: skip
        together = getattr(self.dataset, "__getitems__", None)
        return [self.dataset[i] for i in moved] if together is None else list(together(moved))

    def _moved(self, index: Any) -> Any:
        within = self.indices[index]
        if not isinstance(index, draws.Drawn):
            return within
        return draws.Drawn(int(within), index.epoch, index.position)


def with_places(dataset: Any) -> Any:
    """Make torch's Subsets keep the places of indices; other datasets stay as they are."""
    if type(dataset) is torch.utils.data.Subset:
        return PlacedSubset(with_places(dataset.dataset), dataset.indices)
    return dataset


def _is_plain(batches: object) -> TypeGuard[BatchSampler]:
    """Tell whether batches are the indices of a sampler in its order."""
    return type(batches) in (BatchSampler, EpochBatches)


def drawing(dataset: Any) -> Any:
    """Find the dataset beneath torch's Subsets: it draws crops and flips, the subsets do not."""
    while isinstance(dataset, torch.utils.data.Subset):
        dataset = dataset.dataset
    return dataset
