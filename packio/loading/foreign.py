"""The order of a sampler that is not packio's: it runs again to get to a position."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any, cast

import torch
from torch.utils.data import SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from packio.batches import draws
from packio.errors import OptionError
from packio.loading import ranks, steps
from packio.loading.running import Epoch, Reached, is_plain, used_hash
from packio.loading.steps import Span, Stretch

_MOST_AHEAD = 1 << 20  # batches of a foreign sampler that are drawn before the first is made


class ForeignOrder:
    """The order of a sampler that is not packio's, which runs again to get to a position."""

    def __init__(
        self, sampler: Iterable[int] | None, batches: Iterable[Sequence[int]],
        skip: tuple[Span, ...],
    ) -> None:  # fmt: skip
        self._sampler, self._batches, self._skip, self.left_out = sampler, batches, skip, skip
        within = getattr(batches, "sampler", None)
        self._parts = list({id(p): p for p in (sampler, batches, within) if p is not None}.values())
        found = [v for part in self._parts for v in getattr(part, "__dict__", {}).values()]
        generators = [v for v in found if isinstance(v, torch.Generator)]
        self._generators = list({id(g): g for g in generators}.values())
        self.next = 0
        self._told = getattr(sampler, "epoch", None)  # the epoch that the sampler had last
        self._loaded: dict[str, Any] | None = None

    def set(self, epoch: int) -> None:
        """Set the next epoch; the epoch that was just loaded keeps its position."""
        if self._loaded is not None and self._loaded["epoch"] != epoch:
            self._loaded = None
        self.next, self._told = epoch, getattr(self._sampler, "epoch", None)

    def begin(self) -> Epoch:
        """Begin the next epoch, or the rest of the epoch that was loaded."""
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
            return _ForeignEpoch(number, self._drawn(), begun, left_out=self.left_out)
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
        try:
            count = len(cast("Sized", self._batches))
        except TypeError:  # no length, or one that asks a sampler without any
            return batches
        if count > _MOST_AHEAD:
            return batches
        return itertools.chain(list(itertools.islice(batches, count)), batches)

    def _rest(self, number: int, loaded: dict[str, Any]) -> Epoch:
        begun = {name: loaded[name] for name in ("generators", "random")}
        skip = loaded["skip"]
        if is_plain(self._batches):  # any batch size
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
        step = loaded["step"]
        start = Reached(step - 1, used=used_hash()).after(used)
        same_rank = loaded["rank"] == ranks.current()[0]
        if start.samples != skip or (same_rank and start.used.hexdigest() != loaded["digest"]):
            raise OptionError(
                f"{type(self._sampler or self._batches).__name__} gives another order than the one "
                f"that the state is of: the first {skip} indices of epoch {number} differ; seed "
                "its generator as before, and keep its batches"
            )
        return _ForeignEpoch(
            number, batches, begun, start=start, resumed=True, left_out=self.left_out
        )

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
        """Tell the position in the running epoch, or where the next one begins."""
        if self._loaded is not None:
            return {**self._loaded}
        rank, world_size = ranks.current()
        state = {"epoch": self.next, "skip": 0, "step": 0, "rank": rank, "world_size": world_size,
                 "batch_size": getattr(self._batches, "batch_size", None),
                 "generators": self._generators_now()}  # fmt: skip
        if not isinstance(running, _ForeignEpoch):
            return state
        reached = running.reached
        position = {"epoch": running.number, "skip": reached.samples, "step": reached.step,
                    "digest": reached.used.hexdigest()}  # fmt: skip
        return {**state, **running.begun, **position}

    def load(self, state: dict[str, Any]) -> None:
        """Let the next epoch be the rest of the epoch in a state."""
        if "skip" not in state:
            raise OptionError(f"the state is of a sampler of packio's, of {state.get('order')}")
        loaded, step = steps.read_spans(state.get("left_out"), "left_out"), state["step"]
        size, ours = state.get("batch_size"), getattr(self._batches, "batch_size", None)
        if size is not None and ours is not None:
            now = Stretch(state["epoch"], step, 0, ours, 1)
            steps.check_size(now._replace(batch_size=size), loaded, now, step)
        self.left_out = steps.joined(self._skip, loaded, state["epoch"], step)
        self._loaded, self.next = dict(state), state["epoch"]


class _ForeignEpoch(Epoch):
    """An epoch of a sampler that is not packio's."""

    def __init__(
        self, number: int, batches: Iterator[list[int]], begun: dict[str, Any],
        *, start: Reached | None = None, resumed: bool = False, left_out: Sequence[Span] = (),
    ) -> None:  # fmt: skip
        self.begun = begun
        start = start or Reached(0, used=used_hash())
        placed = _placed(batches, number, start.samples)
        super().__init__(number, placed, resumed=resumed, start=start, left_out=left_out)


def _placed(batches: Iterator[list[Any]], epoch: int, first: int) -> Iterator[list[Any]]:
    """Give the indices of a foreign sampler places in the epoch, counted over all ranks."""
    rank, world_size = ranks.current()
    for batch in batches:
        yield draws.numbered(batch, epoch, first * world_size + rank, world_size)
        first += len(batch)
