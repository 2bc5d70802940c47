"""The course of a sampler: what an index carries, so that a worker knows what comes after it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from packio.batches.draws import Drawn
from packio.errors import OptionError
from packio.loading import orders

if TYPE_CHECKING:
    from packio.loading.resuming import Pass


@runtime_checkable
class Computed(Protocol):
    """A sampler that computes the index at any position of any epoch."""

    def at(self, positions: np.ndarray, epoch: int) -> list[Drawn]:
        """The indices at some ascending positions."""
        ...


class Course:
    """One pass of a sampler; see `packio.datasets.lookahead`. Pickles as a few numbers."""

    def __init__(self, order: Mapping[str, Any], part: Pass) -> None:
        self._order, self._part = order, part
        self._sampler: Computed | None = None
        self._is_known = True  # as far as has been tried

    def __reduce__(self) -> tuple[object, ...]:
        return Course, (self._order, self._part)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Course):
            return NotImplemented
        return self._part == other._part and self._order == other._order

    def __hash__(self) -> int:
        return hash(self._part)

    def step_of(self, position: int) -> int:
        """The step of the pass that has a position of the epoch."""
        return (position - self._part.begun) // self._part.world_size

    def batch(self, data: Any, step: int, size: int) -> list[Drawn] | None:
        """The indices of some steps of the pass; None if there are not as many, or not known.

        Args:
            data: The dataset whose indices they are. The order is not known for another dataset
                than the sampler's, and of samplers of others.
        """
        part, sampler = self._part, self._sampler_of(data)
        if sampler is None or step < 0 or step + size > part.steps:
            return None
        steps = np.arange(step, step + size)
        return sampler.at(part.begun + part.rank + steps * part.world_size, part.epoch)

    def _sampler_of(self, data: Any) -> Computed | None:
        if self._sampler is None and self._is_known:
            self._is_known = False
            with contextlib.suppress(OptionError):
                made = orders.sampler_of(self._order, data)
                self._sampler = made if isinstance(made, Computed) else None
        return self._sampler
