"""The base of packio's samplers: what is at a position of an epoch, computed for any position.

A position has an index or a batch of indices. All ranks go through the same positions: rank r of W
takes the positions r, r + W, r + 2 W, …
"""

from __future__ import annotations

import contextlib
import itertools
import reprlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from torch.utils.data.distributed import DistributedSampler

from packio.batches.draws import PositionedIndex
from packio.datasets.lookahead import unwrap_subset
from packio.errors import OptionError
from packio.loading import ranks

Self = TypeVar("Self", bound="Order[Any]")
Item_co = TypeVar("Item_co", covariant=True)  # at a position: an index, or a batch of them


class EpochSlice(NamedTuple):
    """One pass of one rank through an epoch, or through the rest of an epoch."""

    epoch: int
    start: int  # first position: what all ranks together had consumed before
    rank: int
    world_size: int
    steps: int  # positions that this rank takes

    def count_consumed(self, steps: int) -> int:
        """Count the positions that all ranks have consumed after some positions of this rank."""
        return self.start + min(steps, self.steps) * self.world_size

    def positions(self, first: int, last: int) -> np.ndarray:
        """Compute the positions of some steps of this rank: (n,) int64, ascending."""
        positions: np.ndarray = self.start + self.rank + np.arange(first, last) * self.world_size
        return positions


class Course(NamedTuple):
    """What travels with each index to a worker, which computes the indices that follow."""

    kind: type[Order[Any]]
    order: Mapping[str, Any]
    part: EpochSlice

    def make_sampler(self, data: Any) -> Order[Any] | None:
        """Make the sampler that computes the indices; None: it is of another dataset."""
        with contextlib.suppress(ArithmeticError, LookupError, TypeError, ValueError):
            return self.kind.of_order(self.order, data)
        return None


class Order(DistributedSampler[Item_co]):
    """An order in which each position of an epoch is computed by itself.

    A subclass defines ``_indices``, or ``at`` if a position has a batch, and by ``_names`` and
    ``_options`` what `order` says; see "A sampler" in ``docs/extending.md``. The order works in any
    DataLoader, persistent workers included. Crops and flips of packio's datasets depend on the
    position, so batches are the same for any number of workers and ranks.

    The class is torch's DistributedSampler by name only, so that Lightning does not share out the
    samples a second time. The wrappers of accelerate that share out a sampler are recognised.
    """

    yields_batches = False  # whether a position has a batch, not an index
    _names: Sequence[str] = ()  # attributes that the order depends on, beside the seed
    _options: Sequence[str] = ()  # arguments that an order says
    _first_chunk = 16  # positions computed together at the beginning: the first index comes soon
    _last_chunk = 4096  # and later, at most
    _span = 1 << 40  # positions of all ranks that are computed together at most

    def __init__(  # DistributedSampler's own looks for a process group
        self, data: Any, count: int, seed: int, *, epoch: int, rank: int | None,
        world_size: int | None, drop_last: bool,
    ) -> None:  # fmt: skip
        self.count: int = count  # positions of an epoch, unless a subclass says it of each epoch
        self.seed: int = seed
        self.epoch: int = epoch  # of the next iteration
        self.drop_last: bool = drop_last
        self.even: bool = True  # whether all ranks take as many steps
        self.latest: EpochSlice | None = None  # that began last; None: none since `set_epoch`
        self._given = rank, world_size
        self._start: int | None = None  # first position of the next slice; None: of its epoch
        self._told = 0  # world size when the length was asked for last; 0: it was not
        self._open = 0  # iterations that have begun and not ended
        # Whether indices carry their course. Workers get the class: a user's may not be picklable.
        is_ours = type(self).__module__.startswith("packio.") and not self.yields_batches
        self._is_far = is_ours and bool(getattr(data, "looks_ahead", False))
        # of the crops: drawn before workers need it, or each would draw another
        self._draws: Any = None
        if not self.yields_batches:
            self._draws = getattr(unwrap_subset(data), "_seed", None)
        self._ranks()

    def _ranks(self) -> tuple[int, int]:
        rank, world_size = (
            now if given is None else given
            for given, now in zip(self._given, ranks.current(), strict=True)
        )
        if not 0 <= rank < world_size:
            raise OptionError(
                f"rank={rank}, world_size={world_size}: expected 0 <= rank < world_size"
            )
        return rank, world_size

    @property
    def rank(self) -> int:  # type: ignore[override]  # torch's is an attribute
        """Number of this process, as of now."""
        return self._ranks()[0]

    @property
    def world_size(self) -> int:
        """Number of processes that share an epoch, as of now."""
        return self._ranks()[1]

    @property
    def order(self) -> dict[str, Any]:
        """Everything but the epoch that the order depends on; fits `torch.save` and JSON."""
        own = {name: getattr(self, name) for name in self._names}
        return {"sampler": type(self).__name__, "seed": self.seed, "samples": self.count, **own}

    @classmethod
    def of_order(
        cls: type[Self], order: Mapping[str, Any], data: Any, *, drop_last: bool = False
    ) -> Order[Any]:
        """Make the sampler, of one rank, whose `order` a state tells.

        Raises:
            OptionError: the order is not of this dataset.
        """
        said = {"samples_per_epoch": order.get("samples"), **order}
        given = {option: said[option] for option in cls._options if option in said}
        return cls(data, **given, rank=0, world_size=1, drop_last=drop_last).check(order)

    # ---- positions ----

    def _indices(self, positions: np.ndarray, epoch: int) -> np.ndarray:
        """Compute the index at each of some positions, 0..count-1, of an epoch."""
        raise NotImplementedError

    def at(self, positions: np.ndarray, epoch: int) -> list[Any]:
        """Compute what is at some positions of an epoch, which begins anew at its end."""
        indices = self._indices(positions % max(self.count, 1), epoch).tolist()
        pairs = zip(indices, positions.tolist(), strict=True)
        return [PositionedIndex(index, epoch, position) for index, position in pairs]

    def start_of(self, epoch: int, world_size: int) -> int:
        """First position of an epoch that no other epoch precedes in this process."""
        return 0

    def end_of(self, epoch: int) -> int:
        """Position where an epoch ends."""
        return self.count

    def _start_after(self, part: EpochSlice) -> int | None:
        """First position of the epoch after a slice; None: as `start_of` says."""
        return None

    def _steps(self, epoch: int, start: int, world_size: int, rank: int = 0) -> int:
        left = max(0, self.end_of(epoch) - start)
        if self.drop_last:
            return left // world_size
        return -(-left // world_size) if self.even else len(range(rank, left, world_size))

    def slice_from(self, epoch: int, start: int | None) -> EpochSlice:
        """Describe the slice from a position of an epoch on; ranks are as of now."""
        rank, world_size = self._ranks()
        start = self.start_of(epoch, world_size) if start is None else start
        return EpochSlice(
            epoch, start, rank, world_size, self._steps(epoch, start, world_size, rank)
        )

    def walk(self, part: EpochSlice) -> Iterator[Item_co]:
        """Yield what is at the positions of a slice; indices of far datasets carry their course."""
        course = Course(type(self), self.order, part) if self._is_far else None
        first, size = 0, self._first_chunk
        most = min(self._last_chunk, max(64, self._span // part.world_size))
        self._open += 1
        try:
            while first < part.steps:
                last = min(first + size, part.steps)
                for item in self.at(part.positions(first, last), part.epoch):
                    if course is not None:
                        item.course = course
                    yield item
                first, size = last, min(2 * size, most)
        finally:
            self._open -= 1

    def batch_at(
        self, epoch: int, position: int, batch_size: int, *, rank: int, world_size: int
    ) -> list[PositionedIndex]:
        """Compute the batch that a rank gets in a step, whose first position of all ranks is given.

        It is smaller than ``batch_size``, or empty, where the epoch ends; no iteration begins.
        """
        left = self._steps(epoch, position, world_size, rank) if self.count else 0
        steps = min(batch_size, left)
        part = EpochSlice(epoch, position, rank, world_size, steps)
        items = self.at(part.positions(0, steps), epoch)
        return list(items[0]) if items and self.yields_batches else items

    # ---- iterations ----

    def __len__(self) -> int:
        """Positions that this rank takes in the whole running epoch, or else in the next one."""
        rank, self._told = self._ranks()
        epoch = self.latest.epoch if self.latest and self._open else self.epoch
        return self._steps(epoch, self.start_of(epoch, self._told), self._told, rank)

    def __iter__(self) -> Iteration[Item_co]:
        """Go through the next epoch; or through the rest of an epoch that was loaded."""
        return Iteration(self)

    def upcoming(self) -> EpochSlice:
        """Describe the slice of the next iteration."""
        part = self.slice_from(self.epoch, self._start)
        is_over = part.start > 0 == part.steps  # all that is left is left out, by drop_last
        return self.slice_from(self.epoch + 1, self._start_after(part)) if is_over else part

    def begin(self, part: EpochSlice | None = None) -> EpochSlice:
        """Begin a slice, the next one if none is given; the next iteration has the epoch after."""
        if self._draws is not None:
            _ = self._draws.value
        part = part or self.upcoming()
        if self._told not in (0, part.world_size):
            warnings.warn(
                f"{type(self).__name__}: {part.world_size} processes share this epoch; when its "
                f"length was asked for, there were {self._told}. It was "
                f"{self._steps(part.epoch, 0, self._told)} then and is "
                f"{self._steps(part.epoch, 0, part.world_size)} now: "
                "ask for it after torch.distributed is initialised",
                stacklevel=2,
            )
            self._told = part.world_size
        self.latest, self.epoch, self._start = part, part.epoch + 1, self._start_after(part)
        return part

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration.

        The epoch of a state that was just loaded keeps its position; any other begins anew.
        """
        self.latest = None
        if epoch != self.epoch:
            self.epoch, self._start = epoch, None

    # ---- states ----

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        """Tell the position in an epoch.

        Args:
            consumed: Samples that this rank has trained on in the iteration that began last:
                batches times their size, and ``len(sampler)`` at the end of an epoch. A
                `BucketSampler` counts batches instead. None: no iteration has begun since the
                epoch was set or a state was loaded.

        Raises:
            OptionError: an iteration has begun, and consumed is None: a DataLoader works ahead, so
                the sampler cannot know what was trained on. Or the iteration has fewer batches;
                or several iterations are running.
        """
        if consumed is None and self.latest is not None and not ranks.is_called_by("torchdata"):
            raise OptionError(  # torchdata's loader saves the iteration's own state, too
                "state_dict() after an iteration has begun: say consumed=, the "
                f"{'batches' if self.yields_batches else 'samples'} "
                "that this rank has trained on since; len(sampler) at the end of an epoch"
            )
        if consumed is not None and self._open > 1:
            raise OptionError(f"{self._open} iterations of this sampler are running; end others")
        part = self.latest or self.upcoming()
        if consumed is not None and consumed > part.steps and self.yields_batches:
            raise OptionError(
                f"consumed={consumed}: the iteration has {part.steps} batches for this rank; "
                "count batches, not samples"
            )
        if consumed is not None and consumed >= part.steps > 0:
            part, consumed = self.slice_from(part.epoch + 1, self._start_after(part)), 0
        return self.state_of(part, consumed or 0)

    def state_of(self, part: EpochSlice, steps: int) -> dict[str, Any]:
        """Tell the position after some positions of this rank in a slice."""
        return {**self.order, "epoch": part.epoch, "consumed": part.count_consumed(steps)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state: the next iteration is the rest of its epoch, for any world size.

        Raises:
            OptionError: the state belongs to another order.
        """
        self.check(state)
        epoch, consumed = state["epoch"], state["consumed"]
        over = consumed >= self.end_of(epoch) > 0
        self.latest, self.epoch = None, epoch + over
        self._start = self._start_after(self.slice_from(epoch, consumed)) if over else consumed

    def check(self: Self, state: Mapping[str, Any]) -> Self:
        """Refuse a state that belongs to another order; return the sampler."""
        order = self.order
        differ = {name: ours for name, ours in order.items() if state.get(name) != ours}
        if differ:
            differences = ", ".join(tell_difference(n, state.get(n), differ[n]) for n in differ)
            raise OptionError(
                f"the state is of another order than that of the {order['sampler']}: "
                f"{differences}; make the sampler, and the loader, "
                "as they were made when the state was saved"
            )
        return self


def tell_difference(name: str, theirs: Any, ours: Any) -> str:
    """Tell how two values differ; of two lists, how many values differ, and the first of these."""
    if isinstance(theirs, list) and isinstance(ours, list):
        pairs = enumerate(itertools.zip_longest(theirs, ours, fillvalue="nothing"))
        (first, (theirs, ours)), *more = [(i, pair) for i, pair in pairs if pair[0] != pair[1]]
        name = f"differences in {name}: {1 + len(more)}, {name}[{first}]"
    return f"{name}={reprlib.repr(theirs)} in the state and {reprlib.repr(ours)} here"


class Iteration(Iterator[Item_co]):
    """An iteration of a sampler; torchdata's StatefulDataLoader saves and loads its state.

    The slice begins with the first item that is asked for, so an iteration that was made for
    nothing takes no epoch.
    """

    def __init__(self, sampler: Order[Item_co]) -> None:
        self._sampler, self._handed_out = sampler, 0
        self._part: EpochSlice | None = None
        self._items: Iterator[Item_co] = iter(())

    def __next__(self) -> Item_co:
        if self._part is None:
            self._begin(self._sampler.begin())
        item = next(self._items)
        self._handed_out += 1
        return item

    def _begin(self, part: EpochSlice) -> None:
        self._part, self._items = part, self._sampler.walk(part)

    def state_dict(self) -> dict[str, Any]:
        """Tell the position after the items that were handed out."""
        part = self._part or self._sampler.upcoming()
        return self._sampler.state_of(part, self._handed_out)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Begin after the items that a state counts; there may be none left of its epoch."""
        self._sampler.check(state)
        part = self._sampler.slice_from(state["epoch"], state["consumed"])
        self._begin(self._sampler.begin(part))
