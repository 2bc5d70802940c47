"""The base of packio's samplers: orders that resume at any position, for any number of processes.

What is at each position of an epoch, an index or a batch of indices, is computed by itself
(`packio.loading.permuting`). All ranks go through the same positions: rank r of W takes the
positions r, r + W, r + 2 W, …
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from torch.utils.data.distributed import DistributedSampler

from packio.batches.draws import Drawn
from packio.errors import OptionError
from packio.loading import ranks
from packio.loading.course import Course
from packio.loading.places import drawing

_FIRST, _CHUNK = 16, 4096  # positions computed together: at the beginning, and at most

Taken_co = TypeVar("Taken_co", covariant=True)  # at a position: an index, or a batch of them


class Pass(NamedTuple):
    """One pass of one rank through an epoch, or through the rest of an epoch.

    Attributes:
        begun: First position of the pass: what all ranks together had consumed before.
    """

    epoch: int
    begun: int
    rank: int
    world_size: int
    steps: int

    def consumed(self, steps: int) -> int:
        """Count the positions that all ranks have consumed after some positions of this rank."""
        return self.begun + min(steps, self.steps) * self.world_size


class Resumable(DistributedSampler[Taken_co]):
    """An order in which what is at each position of an epoch is computed by itself.

    A subclass defines ``walk``, and ``of_order`` and ``batches_from`` for ``packio replay``. The
    order works in any DataLoader, persistent workers included.
    Each rank takes every `world_size`-th position, so all ranks together follow the same order,
    whatever their number. Crops and flips of packio's datasets depend on the position, so batches
    are the same for any number of workers.

    The class is torch's DistributedSampler by name only, so that Lightning does not share out the
    samples a second time. The wrappers of accelerate that share out a sampler are recognised.

    Args:
        count: Positions of an epoch, unless a subclass says it of each epoch.
        seed: Seed of the order; the same on all ranks.
        epoch: First epoch. Each iteration begins the next one, unless `set_epoch` sets another.
        rank, world_size: This process among all. None: as torch.distributed says when an epoch
            begins, else 0 and 1.
        drop_last: Leave out positions at the end that do not suffice for all ranks; otherwise the
            first positions fill up the last step.

    Attributes:
        latest: The pass that began last. None: none has begun since the epoch was set or a state
            was loaded.

    Raises:
        OptionError: the rank is not below the world size.
    """

    _steps_are = "samples"  # what a position is

    def __init__(  # DistributedSampler's own looks for a process group
        self, count: int, seed: int, *, epoch: int, rank: int | None, world_size: int | None,
        drop_last: bool,
    ) -> None:  # fmt: skip
        self.count: int = count
        self.seed: int = seed
        self.epoch: int = epoch
        self.drop_last: bool = drop_last
        self.even: bool = True  # whether all ranks take as many steps
        self._given = rank, world_size
        self._begun: int | None = None  # first position of the next pass; None: of its epoch
        self._told = 0  # world size when the length was asked for last; 0: it was not
        self._open = 0  # iterations that have begun and not ended
        self.latest: Pass | None = None
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
        return {"sampler": type(self).__name__, "seed": self.seed, "samples": self.count}

    @classmethod
    def of_order(
        cls, order: Mapping[str, Any], data: Any, *, drop_last: bool = False
    ) -> Resumable[Any]:
        """Make the sampler of an order that a state tells.

        Args:
            order: What `order` of the sampler said.
            data: The dataset.
            drop_last: As of the sampler.

        Raises:
            OptionError: the order is not of this dataset.
        """
        raise NotImplementedError

    def walk(self, part: Pass) -> Iterator[Taken_co]:
        """Yield what is at the positions of a pass."""
        raise NotImplementedError

    def _positions_of(self, epoch: int) -> int:
        """How many positions an epoch has."""
        return self.count

    def _first(self, epoch: int, world_size: int) -> int:
        """First position of an epoch that no other epoch precedes in this process."""
        return 0

    def _after(self, part: Pass) -> int | None:
        """First position of the epoch after a pass; None: as `_first` says."""
        return None

    def __len__(self) -> int:
        """Positions that this rank takes in a whole epoch."""
        self._told = self.world_size
        return self._steps(self.epoch, self._first(self.epoch, self._told), self._told, self.rank)

    def _steps(self, epoch: int, begun: int, world_size: int, rank: int = 0) -> int:
        left = max(0, self._positions_of(epoch) - begun)
        if self.drop_last:
            return left // world_size
        return -(-left // world_size) if self.even else len(range(rank, left, world_size))

    def __iter__(self) -> Iteration[Taken_co]:
        """Go through the next epoch; or through the rest of an epoch that was loaded."""
        return Iteration(self)

    def pass_from(self, epoch: int, begun: int | None) -> Pass:
        """Describe the pass from a position of an epoch on; ranks are as of now."""
        rank, world_size = self._ranks()
        start = self._first(epoch, world_size) if begun is None else begun
        return Pass(epoch, start, rank, world_size, self._steps(epoch, start, world_size, rank))

    def _upcoming(self) -> Pass:
        part = self.pass_from(self.epoch, self._begun)
        is_over = part.begun > 0 == part.steps  # all that is left is left out, by drop_last
        return self.pass_from(self.epoch + 1, self._after(part)) if is_over else part

    def upcoming(self) -> dict[str, Any]:
        """Tell where the next iteration begins, as a state."""
        return self.state_of(self._upcoming(), 0)

    def begin(self, part: Pass | None = None) -> Pass:
        """Begin a pass: the next one if none is given. The iteration after it has the next epoch.

        Warns if the length was asked for while there was another number of processes.
        """
        part = part or self._upcoming()
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
        self.latest, self.epoch, self._begun = part, part.epoch + 1, self._after(part)
        self._open += 1
        return part

    def end(self) -> None:
        """Note that an iteration has ended, or is not used any more."""
        self._open -= 1

    def start_of(self, epoch: int, world_size: int) -> int:
        """First position of an epoch, for so many ranks."""
        return self._first(epoch, world_size)

    def end_of(self, epoch: int) -> int:
        """Position where an epoch ends."""
        return self._positions_of(epoch)

    def batches_from(
        self, epoch: int, position: int, batch_size: int, *, rank: int, world_size: int,
        drop_last: bool = False,
    ) -> Iterator[list[Drawn]]:  # fmt: skip
        """Yield the batches that a rank gets from a step of an epoch on; no pass begins.

        Takes as long anywhere in an epoch.

        Args:
            epoch: Number of the epoch.
            position: First position of the step, of all ranks.
            batch_size: Positions that a rank takes in a step.
            rank, world_size: The process among all.
            drop_last: Whether a last, smaller batch is left out.
        """
        raise NotImplementedError

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration.

        The epoch of a state that was just loaded keeps its position; any other begins anew.
        """
        self.latest = None
        if epoch != self.epoch:
            self.epoch, self._begun = epoch, None

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
        if consumed is None and self.latest is not None and not ranks.asked_by("torchdata"):
            raise OptionError(  # torchdata's loader saves the iteration's own state, too
                f"state_dict() after an iteration has begun: say consumed=, the {self._steps_are} "
                "that this rank has trained on since; len(sampler) at the end of an epoch"
            )
        if consumed is not None and self._open > 1:
            raise OptionError(f"{self._open} iterations of this sampler are running; end others")
        part = self.latest or self._upcoming()
        if consumed is not None and consumed > part.steps and self._steps_are == "batches":
            raise OptionError(
                f"consumed={consumed}: the iteration has {part.steps} batches for this rank; "
                "count batches, not samples"
            )
        if consumed is not None and consumed >= part.steps > 0:
            part = self.pass_from(part.epoch + 1, self._after(part))
            consumed = 0
        return self.state_of(part, consumed or 0)

    def state_of(self, part: Pass, steps: int) -> dict[str, Any]:
        """Tell the position after some positions of this rank in a pass."""
        return {**self.order, "epoch": part.epoch, "consumed": part.consumed(steps)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state: the next iteration is the rest of its epoch, for any world size.

        Raises:
            OptionError: the state belongs to another order.
        """
        self.check(state)
        epoch, consumed = state["epoch"], state["consumed"]
        over = consumed >= self._positions_of(epoch) > 0
        self.latest, self.epoch = None, epoch + over
        self._begun = self._after(self.pass_from(epoch, consumed)) if over else consumed

    def check(self, state: Mapping[str, Any]) -> None:
        """Check that a state belongs to this order.

        Raises:
            OptionError: it belongs to another order.
        """
        if _differences(state, self.order):
            raise OptionError(
                f"the state is of another order than that of the {type(self).__name__}: "
                f"{_differences(state, self.order)}; make the sampler, and the loader, "
                "as they were made when the state was saved"
            )


def _differences(state: Mapping[str, Any], order: Mapping[str, Any]) -> str:
    """Name the values of a state that are not those of an order; "" if there are none."""
    return ", ".join(
        f"{name}={state.get(name)!r} in the state and {ours!r} here"
        for name, ours in order.items()
        if state.get(name) != ours
    )


class ResumableSampler(Resumable[Drawn]):
    """An order in which the index at each position of an epoch is computed by itself.

    A subclass defines ``_indices``.

    Args:
        data: The dataset, or something that tells its length.
        count, seed, epoch, rank, world_size, drop_last: As of `Resumable`.
    """

    def __init__(
        self, data: Any, count: int, seed: int, *, epoch: int, rank: int | None,
        world_size: int | None, drop_last: bool,
    ) -> None:  # fmt: skip
        super().__init__(
            count, seed, epoch=epoch, rank=rank, world_size=world_size, drop_last=drop_last
        )
        self._is_far = bool(getattr(data, "looks_ahead", False))
        # of the crops: drawn before workers need it, or each would draw another
        self._draws: Any = getattr(drawing(data), "_seed", None)

    def begin(self, part: Pass | None = None) -> Pass:
        """Begin a pass; see `Resumable.begin`."""
        if self._draws is not None:
            _ = self._draws.value
        return super().begin(part)

    def _indices(self, positions: np.ndarray, epoch: int) -> np.ndarray:
        """The index at each of some ascending positions, 0..count-1, of an epoch."""
        raise NotImplementedError

    def at(self, positions: np.ndarray, epoch: int) -> list[Drawn]:
        """The indices at some ascending positions of an epoch, which begins anew at its end."""
        whole = int(np.searchsorted(positions, self.count))
        indices = self._indices(positions[:whole], epoch).tolist()
        indices += self._indices(positions[whole:] % self.count, epoch).tolist()
        pairs = zip(indices, positions.tolist(), strict=True)
        return [Drawn(index, epoch, position) for index, position in pairs]

    def _at_once(self, world_size: int) -> int:
        """How many positions are computed together at most."""
        return _CHUNK

    def walk(self, part: Pass) -> Iterator[Drawn]:
        """Yield the indices of a pass; those of a dataset that looks ahead carry its course."""
        course = Course(self.order, part) if self._is_far else None
        for positions in positions_of(part, _FIRST, self._at_once(part.world_size)):
            for index in self.at(positions, part.epoch):
                if course is not None:
                    index.course = course
                yield index

    def batches_from(
        self, epoch: int, position: int, batch_size: int, *, rank: int, world_size: int,
        drop_last: bool = False,
    ) -> Iterator[list[Drawn]]:  # fmt: skip
        """Yield the batches that a rank gets; see `Resumable.batches_from`."""
        steps = self._steps(epoch, position, world_size, rank)
        indices = self.walk(Pass(epoch, position, rank, world_size, steps))
        while batch := list(itertools.islice(indices, batch_size)):
            if len(batch) < batch_size and drop_last:
                return
            yield batch


def positions_of(part: Pass, first: int, most: int) -> Iterator[np.ndarray]:
    """Yield the positions that a rank takes in a pass, in ascending arrays.

    The arrays grow from ``first`` to ``most`` positions, so that the first index, and each one
    after it, comes soon.
    """
    start, size = 0, first
    while start < part.steps:
        steps = np.arange(start, min(start + size, part.steps))
        start, size = start + size, min(2 * size, most)
        yield part.begun + part.rank + steps * part.world_size


class Iteration(Iterator[Taken_co], Generic[Taken_co]):
    """An iteration of a sampler; torchdata's StatefulDataLoader saves and loads its state.

    The pass begins with the first item that is asked for, so an iteration that was made for
    nothing takes no epoch.
    """

    def __init__(self, sampler: Resumable[Taken_co]) -> None:
        self._sampler, self._handed_out = sampler, 0
        self._part: Pass | None = None
        self._items: Iterator[Taken_co] = iter(())
        self._is_open = False

    def __next__(self) -> Taken_co:
        if self._part is None:
            self._begin(self._sampler.begin())
        for item in self._items:
            self._handed_out += 1
            return item
        self._end()
        raise StopIteration

    def _begin(self, part: Pass) -> None:
        self._end()
        self._part, self._items, self._is_open = part, self._sampler.walk(part), True

    def _end(self) -> None:
        if self._is_open:
            self._is_open = False
            self._sampler.end()

    def __del__(self) -> None:
        self._end()

    def state_dict(self) -> dict[str, Any]:
        """Tell the position after the items that were handed out."""
        if self._part is None:
            return self._sampler.upcoming()
        return self._sampler.state_of(self._part, self._handed_out)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Begin after the items that a state counts; there may be none left of its epoch."""
        self._sampler.check(state)
        part = self._sampler.pass_from(state["epoch"], state["consumed"])
        self._begin(self._sampler.begin(part))
