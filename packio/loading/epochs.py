"""The epochs of a loader: which one runs, where it stands, and how to go on with it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any, cast

import torch

from packio.errors import OptionError
from packio.loading.sampling import ResumableSampler


class Epochs:
    """Batches of indices, one epoch at a time; each iteration of a loader is another epoch.

    Args:
        dataset: Dataset that is told the epoch, if it has ``set_epoch``.
        sampler: Sampler that is told likewise; None if there is only a batch sampler.
        batches: Yields the batches of an epoch.
        batch_size: Samples in each batch but the last, if the batches come from the sampler.
        drop_last: Whether a smaller last batch is left out.

    Attributes:
        next: Number of the next epoch.
        resumed: Whether the running epoch is the rest of one that was loaded.
    """

    def __init__(
        self,
        dataset: Any,
        sampler: Iterable[int] | None,
        batches: Iterable[Sequence[int]],
        *,
        batch_size: int,
        drop_last: bool,
    ) -> None:
        self._dataset, self._sampler, self._batches = drawing(dataset), sampler, batches
        self._batch_size, self._drop_last = batch_size, drop_last
        self.next, self._running = 0, -1
        self.resumed = False
        self._told: Any = None  # the epoch that the sampler was set to last
        self._loaded: dict[str, Any] | None = None  # state that the next epoch starts from
        self._state: dict[str, Any] = {}  # that the running one started from
        self._left = self._delivered = 0  # its batches
        self._indices: Iterator[list[int]] = iter(())

    def __len__(self) -> int:
        return len(cast("Sized", self._batches))

    def set(self, epoch: int) -> None:
        """Set the next epoch; it runs from its beginning."""
        self.next, self._loaded = epoch, None
        self._told = getattr(self._sampler, "epoch", None)

    def begin(self) -> None:
        """Begin the next epoch, or the rest of the epoch that was loaded."""
        state, self._loaded = self._loaded or {}, None
        self.resumed = bool(state)
        told = getattr(self._sampler, "epoch", None)
        if not state and isinstance(told, int) and told != self._told:
            self.next = told  # the user has set the sampler's epoch
        self._running, self.next = self.next, self.next + 1
        if state.get("seed") is not None:
            self._dataset.seed = state["seed"]
        within = getattr(self._batches, "sampler", None)  # of a BatchSampler
        for part in (self._sampler, self._batches, within, self._dataset):
            set_epoch = getattr(part, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(self._running)
        self._told = getattr(self._sampler, "epoch", None)
        if isinstance(self._sampler, ResumableSampler):
            self._left = self._left_of(self._sampler, state.get("consumed", 0))
        else:
            state = {"random": torch.get_rng_state(), **state}
            self._left = len(self) - state.get("skip", 0)
        self._state, self._delivered = state, 0
        self._indices = self._order()

    def _left_of(self, sampler: ResumableSampler, consumed: int) -> int:
        """Let the sampler begin after the consumed samples of all ranks; count the batches left."""
        sampler.go_on(self._running, consumed)
        samples = len(sampler) - -(-consumed // sampler.world_size)
        return (samples + (0 if self._drop_last else self._batch_size - 1)) // self._batch_size

    def indices(self) -> Iterator[list[int]]:
        """Yield the indices of the batches left in the running epoch; call this once."""
        return self._indices

    def _order(self) -> Iterator[list[int]]:
        if "skip" in self._state:
            with torch.random.fork_rng(devices=[]):
                torch.set_rng_state(self._state["random"])
                return iter(list(map(list, self._batches))[self._state["skip"] :])
        order = map(list, self._batches)
        # samplers draw when they are first asked: here, before anything else draws
        return itertools.chain(list(itertools.islice(order, 1)), order)

    def delivered(self) -> None:
        """Note that a batch of the running epoch was handed out."""
        self._delivered += 1

    def state_dict(self) -> dict[str, Any]:
        """Tell the position in the running epoch, as numbers and perhaps a tensor."""
        if self._loaded is not None:
            return dict(self._loaded)
        seed = getattr(self._dataset, "seed", None)
        if self._delivered >= self._left:
            return {"epoch": self.next, "seed": seed}
        state = {"epoch": self._running, "seed": seed}
        if isinstance(self._sampler, ResumableSampler):
            new = self._sampler.state_dict(self._delivered * self._batch_size)["consumed"]
            consumed = self._state.get("consumed", 0) + new
            return {**state, "order": self._sampler.order, "consumed": consumed}
        skip = self._state.get("skip", 0) + self._delivered
        return {**state, "skip": skip, "random": self._state["random"]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next epoch be the rest of the epoch in a state.

        Raises:
            OptionError: the state belongs to another order.
        """
        if isinstance(self._sampler, ResumableSampler):
            self._sampler.check(state.get("order", {} if "skip" in state else self._sampler.order))
        elif "order" in state:
            raise OptionError(f"the state is of a sampler of packio's, of {state['order']}")
        self._loaded, self.next = dict(state), state["epoch"]


def drawing(dataset: Any) -> Any:
    """Find the dataset beneath torch's Subsets: it draws crops and flips, the subsets do not."""
    while isinstance(dataset, torch.utils.data.Subset):
        dataset = dataset.dataset
    return dataset
