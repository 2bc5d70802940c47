"""Indices for loaders that run now and then: in between their workers have nothing to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from packio.batches.draws import Drawn

_ENDLESS = 1 << 30


class Order:
    """Indices in the order of the loader's sampler, epoch after epoch, for several loops.

    What one loop took, no other loop takes in the same epoch: nobody finds samples in the page
    cache because another loop has just read them.
    """

    def __init__(self, epochs: Callable[[], Iterable[Any]]) -> None:
        self._source = _without_end(epochs)
        self._left: list[Any] = []

    def batch(self) -> Any:
        """Take the next batch."""
        left, self._left = self._left, []
        return left or next(self._source)

    def regrouped(self, size: int) -> list[Any]:
        """Take so many indices. What is left of a batch, the next batch begins with.

        Indices that carry sizes, those of a `packio.BucketSampler`, get the size of the first.
        """
        while len(self._left) < size:
            self._left = self._left + next(self._source)
        taken, self._left = self._left[:size], self._left[size:]
        first = taken[0] if taken else None
        if not isinstance(first, Drawn) or first.size is None:
            return taken
        return [Drawn(int(i), i.epoch, i.position, first.size) for i in taken]


class Flow:
    """A loop's batches of indices, until it is closed."""

    def __init__(self, order: Order, size: int | None = None) -> None:
        self.is_open = True
        self._order, self._size = order, size

    def __len__(self) -> int:
        return _ENDLESS

    def __iter__(self) -> Iterator[Any]:
        while self.is_open:
            try:
                yield self._order.regrouped(self._size) if self._size else self._order.batch()
            except StopIteration:
                return


def _without_end(epochs: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    while True:
        empty = True
        for batch in epochs():
            empty = False
            yield list(batch) if isinstance(batch, (list, tuple)) else batch
        if empty:
            return
