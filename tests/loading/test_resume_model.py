"""Epochs that are left, saved and resumed at random places: exactly the samples that were left.

A case is a story of several lives. A life makes loaders for all ranks, as a new process does, loads
the newest state, reads, saves, peeks into other epochs and leaves epochs early. The model is plain
Python: the set of positions that the epoch still owes. ``PACKIO_RESUME_CASES=5000`` tells as many
stories.
"""

from __future__ import annotations

import io
import os
import random
from collections.abc import Iterator
from typing import Any

import long
import pytest
import torch
from told import Told
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import packio

CASES = int(os.environ.get("PACKIO_RESUME_CASES", "60"))
SHORT = CASES if "PACKIO_RESUME_CASES" in os.environ else 20
OWN = ("shuffled", "in order", "mixed", "repeated", "windows")
FOREIGN = ("sequential", "random", "random generator", "weighted generator", "subset generator",
           "lazy generator", "lazy global", "batch sampler")  # fmt: skip
LOADERS = (*["threads"] * 6, *["dataloader"] * 2, "workers", "persistent")


class Lazy(Sampler[int]):
    """Swaps two indices at random before each index that it gives."""

    def __init__(self, count: int, generator: torch.Generator | None) -> None:
        self.count, self.generator = count, generator

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        left = list(range(self.count))
        while left:
            yield left.pop(int(torch.randint(len(left), (), generator=self.generator)))


def _own(kind: str, count: int, **ranks: Any) -> Any:
    if kind == "mixed":
        sizes = [count // 3 + 1, count - count // 3 - 1]
        return packio.MixedSampler(sizes, [2, 1 if sizes[1] else 0], 5, samples_per_epoch=count,
                                   **ranks)  # fmt: skip
    if kind == "repeated":
        return packio.RepeatAugSampler(count, 3, 5, **ranks)
    if kind == "windows":
        data = Told(count)
        data.shard_lengths = [count // 4, count // 3, count - count // 4 - count // 3]
        return packio.ShuffleSampler(data, 5, window=2, **ranks)
    return packio.ShuffleSampler(count, 5, shuffle=kind == "shuffled", **ranks)


def _foreign(kind: str, count: int) -> Any:
    """A sampler as each new process makes it, with a generator of the same seed."""
    generator = torch.Generator().manual_seed(7)
    if kind == "sequential":
        return SequentialSampler(range(count))
    if kind == "weighted generator":
        return WeightedRandomSampler([1.0] * count, count, replacement=False, generator=generator)
    if kind == "subset generator":
        return SubsetRandomSampler(range(count), generator)
    if kind.startswith("random"):
        return RandomSampler(range(count), generator=generator if "generator" in kind else None)
    return Lazy(count, None if kind == "lazy global" else generator)


class Life:
    """Loaders of all ranks, as one start of a training makes them."""

    def __init__(self, r: random.Random, kind: str, count: int) -> None:
        self.own, self.count, self.kind = kind in OWN, count, kind
        self.how = r.choice(LOADERS) if self.own else r.choice([n for n in LOADERS
                                                                if n != "dataloader"])  # fmt: skip
        self.world = r.choice((1, 1, 2, 3, 4, 6)) if self.own else 1
        if self.how in ("workers", "persistent"):
            self.world = min(self.world, 2)
        self.batch = r.randint(1, 7) if kind != "batch sampler" else 4
        torch.manual_seed(r.randrange(1 << 30))  # as another process has
        self.samplers: list[Any] = []
        self.loaders: list[Any] = []
        for rank in range(self.world):
            self._add(rank)

    def _add(self, rank: int) -> None:
        data = Told(self.count)
        sampler = (
            _own(self.kind, self.count, rank=rank, world_size=self.world)
            if self.own else _foreign(self.kind, self.count)
        )  # fmt: skip
        workers: dict[str, Any] = {}
        if self.how in ("workers", "persistent"):
            workers = {"num_workers": 1, "persistent_workers": self.how == "persistent"}
        loader: Any
        if self.how == "dataloader":
            loader = DataLoader(data, self.batch, sampler=sampler)
        elif self.kind == "batch sampler":
            batches = BatchSampler(sampler, self.batch, drop_last=False)
            loader = packio.Loader(data, batch_sampler=Batches(batches), **workers)
        else:
            loader = packio.Loader(data, self.batch, sampler=sampler, **workers)
        self.samplers.append(sampler)
        self.loaders.append(loader)

    def state(self, delivered: int) -> Any:
        """What rank 0 saves, through `torch.save`."""
        file = io.BytesIO()
        if self.how == "dataloader":
            taken = delivered * self.batch
            torch.save(self.samplers[0].state_dict(taken), file)
        else:
            torch.save(self.loaders[0].state_dict(), file)
        file.seek(0)
        return torch.load(file, weights_only=True)

    def load(self, state: Any) -> None:
        """Load a state in all ranks, whichever kind of loader saved it."""
        for sampler, loader in zip(self.samplers, self.loaders, strict=True):
            if self.own and ("order" not in state or self.how == "dataloader"):
                sampler.load_state_dict({**state, **state.get("order", {})})
            else:
                loader.load_state_dict(state)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch in all ranks."""
        for part in self.samplers if self.how == "dataloader" else self.loaders:
            part.set_epoch(epoch)


class Batches:
    """A batch sampler that is not torch's."""

    def __init__(self, batches: Any) -> None:
        self.batches, self.generator = batches, batches.sampler.generator

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)


class Model:
    """What the epoch that runs still owes, as plain numbers."""

    def __init__(self, kind: str, count: int) -> None:
        self.kind, self.count, self.own = kind, count, kind in OWN
        self.orders: dict[int, list[int]] = {}
        self.begin()

    def begin(self) -> None:
        """Owe a whole epoch."""
        self.epoch, self.left = None, set(range(self.count))

    def order(self, epoch: int) -> list[int]:
        """The order of an undisturbed epoch of one process."""
        if epoch not in self.orders:
            self.orders[epoch] = [int(i) for i in _own(self.kind, self.count, epoch=epoch)]
        return self.orders[epoch]

    def take(self, batch: Any, world: int) -> None:
        """Cross out what came; it has to be owed."""
        for index, epoch, position in zip(*(part.tolist() for part in batch), strict=True):
            if not self.own:
                assert index in self.left, f"{index} again, or never there"
                self.left.remove(index)
                continue
            assert self.epoch in (None, epoch), "two epochs in one"
            self.epoch = epoch
            assert index == self.order(epoch)[position % self.count]
            if position < self.count:
                assert position in self.left, f"position {position} again"
                self.left.remove(position)
            else:
                assert position < self.count + world  # the last step of all ranks is filled up

    def saved(self) -> Any:
        """What is owed now."""
        return self.epoch, set(self.left)

    def restore(self, saved: Any) -> None:
        """Owe what was owed then."""
        self.epoch, self.left = saved[0], set(saved[1])


def _batches(life: Life, running: list[Any]) -> list[Any]:
    """The next batch of each rank; empty at the end of the epoch, of all ranks alike."""
    found = [next(it, None) for it in running]
    there = [batch for batch in found if batch is not None]
    assert len(there) in (0, life.world), "ranks have different numbers of batches"
    return there


def _tell(case: int) -> None:
    """Live through one story."""
    r = random.Random(case)
    kind = r.choice(OWN if case % 3 else FOREIGN)
    count = r.choice((1, 2, 7, 23, 24, 40, 61))
    model = Model(kind, count)
    state, owed = None, None
    for _ in range(r.randint(2, 4)):
        life = Life(r, kind, count)
        for number in range(r.randint(1, 3)):
            model.begin()
            if number == 0 and state is not None:
                model.restore(owed)
                life.load(state)
                if r.random() < 0.3:
                    life.set_epoch(state["epoch"])  # as loops over epochs do
            state, owed = _read(r, life, model)


def _read(r: random.Random, life: Life, model: Model) -> Any:
    """Read an epoch or a part of it; return the newest state, and what the model then owed."""
    running = [iter(loader) for loader in life.loaders]
    stop = r.choice((r.randint(1, 6), 1000))
    delivered, newest, kept = 0, None, []
    while delivered < stop:
        batches = _batches(life, running)
        for batch in batches:
            model.take(batch, life.world)
        if not batches:
            assert not model.left, f"{len(model.left)} samples never came"
            return life.state(delivered), _whole(model)
        delivered += 1
        if newest is None or r.random() < 0.3:
            newest = life.state(delivered), model.saved() if model.left else _whole(model)
        if r.random() < 0.1 and life.how != "dataloader":  # look into another epoch
            others = [iter(loader) for loader in life.loaders]
            for other in others:
                next(other)
            kept += others if r.random() < 0.5 and life.how == "threads" else []
            others.clear()
            del other
    return newest


def _whole(model: Model) -> Any:
    return None, set(range(model.count))


@pytest.mark.parametrize("case", long.after(SHORT, range(CASES)))
def test_exactly_what_was_left_comes(case: int) -> None:
    _tell(case)
