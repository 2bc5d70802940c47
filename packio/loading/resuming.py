"""The base of packio's samplers: orders that resume at any sample, for any number of processes.

The index at each position of an epoch is computed by itself (`packio.loading.permuting`). All ranks
go through the same positions: rank r of W takes the positions r, r + W, r + 2 W, …
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data.distributed import DistributedSampler

from packio.batches.draws import Drawn
from packio.errors import OptionError
from packio.loading import ranks

_FIRST, _CHUNK = 16, 4096  # positions computed together: at the beginning, and at most


class Pass(NamedTuple):
    """One pass of one rank through an epoch, or through the rest of an epoch.

    Attributes:
        epoch: Number of the epoch.
        begun: First position of the pass: what all ranks together had consumed before.
        rank, world_size: This process among all.
        steps: Samples that this rank takes.
    """

    epoch: int
    begun: int
    rank: int
    world_size: int
    steps: int

    def consumed(self, samples: int) -> int:
        """Count the positions that all ranks have consumed after some samples of this rank."""
        return self.begun + min(samples, self.steps) * self.world_size


class ResumableSampler(DistributedSampler[int]):
    """An order in which the index at each position of an epoch is computed by itself.

    A subclass defines ``_indices``. The order works in any DataLoader, persistent workers included.
    Each rank takes every `world_size`-th position, so all ranks together follow the same order,
    whatever their number. Crops and flips of packio's datasets depend on the position, so batches
    are the same for any number of workers.

    The class is torch's DistributedSampler by name only, so that Lightning does not share out the
    samples a second time. The wrappers of accelerate that share out a sampler are recognised.

    Args:
        count: Positions of an epoch.
        seed: Seed of the order; the same on all ranks.
        epoch: First epoch. Each iteration begins the next one, unless `set_epoch` sets another.
        rank, world_size: This process among all. None: as torch.distributed says when an epoch
            begins, else 0 and 1.
        drop_last: Leave out samples at the end that do not suffice for all ranks; otherwise the
            first samples fill up the last step.

    Attributes:
        latest: The pass that began last. None: none has begun since the epoch was set or a state
            was loaded.

    Raises:
        OptionError: the rank is not below the world size.
    """

    def __init__(  # DistributedSampler's own looks for a process group
        self, count: int, seed: int, *, epoch: int, rank: int | None, world_size: int | None,
        drop_last: bool,
    ) -> None:  # fmt: skip
        self.count, self.seed, self.epoch, self.drop_last = count, seed, epoch, drop_last
        self._given = rank, world_size
        self._begun = 0  # positions consumed before the next pass
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

    def _indices(self, positions: np.ndarray, epoch: int) -> np.ndarray:
        """The index at each of some ascending positions, 0..count-1, of an epoch."""
        raise NotImplementedError

    def _at_once(self, world_size: int) -> int:
        """How many positions are computed together at most."""
        return _CHUNK

    def __len__(self) -> int:
        """Samples that this rank takes in a whole epoch."""
        self._told = self.world_size
        return self._steps(0, self._told)

    def _steps(self, begun: int, world_size: int) -> int:
        left = max(0, self.count - begun)
        return left // world_size if self.drop_last else -(-left // world_size)

    def __iter__(self) -> Iteration:
        """Go through the next epoch; or through the rest of an epoch that was loaded."""
        return Iteration(self)

    def pass_from(self, epoch: int, begun: int) -> Pass:
        """Describe the pass that begins after some positions of an epoch; ranks are as of now."""
        rank, world_size = self._ranks()
        return Pass(epoch, begun, rank, world_size, self._steps(begun, world_size))

    def _upcoming(self) -> Pass:
        part = self.pass_from(self.epoch, self._begun)
        is_over = part.begun > 0 == part.steps  # all that is left is left out, by drop_last
        return self.pass_from(self.epoch + 1, 0) if is_over else part

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
                f"{self._steps(0, self._told)} then and is {self._steps(0, part.world_size)} now: "
                "ask for it after torch.distributed is initialised",
                stacklevel=2,
            )
            self._told = part.world_size
        self.latest, self.epoch, self._begun = part, part.epoch + 1, 0
        self._open += 1
        return part

    def end(self) -> None:
        """Note that an iteration has ended, or is not used any more."""
        self._open -= 1

    def walk(self, part: Pass) -> Iterator[Drawn]:
        """Yield the indices of a pass."""
        most = self._at_once(part.world_size)
        start, size = 0, _FIRST  # the first index, and each one after it, comes soon
        while start < part.steps:
            steps = np.arange(start, min(start + size, part.steps))
            start, size = start + size, min(2 * size, most)
            positions = part.begun + part.rank + steps * part.world_size
            whole = int(np.searchsorted(positions, self.count))  # then it begins anew
            indices = self._indices(positions[:whole], part.epoch).tolist()
            indices += self._indices(positions[whole:] % self.count, part.epoch).tolist()
            for index, position in zip(indices, positions.tolist(), strict=True):
                yield Drawn(index, part.epoch, position)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration.

        The epoch of a state that was just loaded keeps its position; any other begins anew.
        """
        self.latest = None
        if epoch != self.epoch:
            self.epoch, self._begun = epoch, 0

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        """Tell the position in an epoch.

        Args:
            consumed: Samples that this rank has trained on in the iteration that began last:
                batches times their size, and ``len(sampler)`` at the end of an epoch. None: no
                iteration has begun since the epoch was set or a state was loaded.

        Raises:
            OptionError: an iteration has begun, and consumed is None: a DataLoader works ahead, so
                the sampler cannot know what was trained on. Or several iterations are running.
        """
        if consumed is None and self.latest is not None and not ranks.asked_by("torchdata"):
            raise OptionError(  # torchdata's loader saves the iteration's own state, too
                "state_dict() after an iteration has begun: say consumed=, the samples that this "
                "rank has trained on since; len(sampler) at the end of an epoch"
            )
        if consumed is not None and self._open > 1:
            raise OptionError(f"{self._open} iterations of this sampler are running; end others")
        part = self.latest or self._upcoming()
        if consumed is not None and consumed >= part.steps > 0:
            part = self.pass_from(part.epoch + 1, 0)
            consumed = 0
        return self.state_of(part, consumed or 0)

    def state_of(self, part: Pass, samples: int) -> dict[str, Any]:
        """Tell the position after some samples of this rank in a pass."""
        return {**self.order, "epoch": part.epoch, "consumed": part.consumed(samples)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state: the next iteration is the rest of its epoch, for any world size.

        Raises:
            OptionError: the state belongs to another order.
        """
        self.check(state)
        over = state["consumed"] >= self.count and self.count > 0
        self.latest, self.epoch = None, state["epoch"] + over
        self._begun = 0 if over else state["consumed"]

    def check(self, state: Mapping[str, Any]) -> None:
        """Check that a state belongs to this order.

        Raises:
            OptionError: it belongs to another order.
        """
        if any(state.get(name) != ours for name, ours in self.order.items()):
            raise OptionError(
                f"the state is of another order: {dict(state)}; that of the {type(self).__name__} "
                f"is {self.order}"
            )


class Iteration(Iterator[int]):
    """An iteration of a sampler; torchdata's StatefulDataLoader saves and loads its state.

    The pass begins with the first index that is asked for, so an iteration that was made for
    nothing takes no epoch.

    Args:
        sampler: The sampler.
    """

    def __init__(self, sampler: ResumableSampler) -> None:
        self._sampler, self._handed_out = sampler, 0
        self._part: Pass | None = None
        self._indices: Iterator[Drawn] = iter(())
        self._is_open = False

    def __next__(self) -> Drawn:
        if self._part is None:
            self._begin(self._sampler.begin())
        for index in self._indices:
            self._handed_out += 1
            return index
        self._end()
        raise StopIteration

    def _begin(self, part: Pass) -> None:
        self._end()
        self._part, self._indices, self._is_open = part, self._sampler.walk(part), True

    def _end(self) -> None:
        if self._is_open:
            self._is_open = False
            self._sampler.end()

    def __del__(self) -> None:
        self._end()

    def state_dict(self) -> dict[str, Any]:
        """Tell the position after the indices that were handed out."""
        if self._part is None:
            return self._sampler.upcoming()
        return self._sampler.state_of(self._part, self._handed_out)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Begin after the indices that a state counts; there may be none left of its epoch.

        Raises:
            OptionError: the state belongs to another order.
        """
        self._sampler.check(state)
        part = self._sampler.pass_from(state["epoch"], state["consumed"])
        self._begin(self._sampler.begin(part))
