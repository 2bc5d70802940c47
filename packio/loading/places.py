"""Datasets whose indices keep their places in the epoch: torch's Subset, and what is beneath it."""

from __future__ import annotations

from typing import Any

import torch

from packio.batches import draws
from packio.datasets.lookahead import BatchWithLookahead


class PlacedSubset(torch.utils.data.Subset[Any]):
    """A `Subset` whose indices keep their places in the epoch, which crops are drawn from."""

    def __getitem__(self, index: Any) -> Any:
        """Get one sample."""
        return self.dataset[self.moved(index)]

    def __getitems__(self, indices: list[Any]) -> list[Any]:
        """Get some samples at once."""
        moved = (
            indices.mapped(self.moved) if isinstance(indices, BatchWithLookahead)
            else [self.moved(index) for index in indices]
        )  # fmt: skip
        together = getattr(self.dataset, "__getitems__", None)
        return [self.dataset[i] for i in moved] if together is None else list(together(moved))

    def moved(self, index: Any) -> Any:
        """The index of the same sample in the dataset beneath."""
        within = self.indices[index]
        if not isinstance(index, draws.Drawn):
            return within
        return index.moved(int(within))


def with_places(dataset: Any) -> Any:
    """Make torch's Subsets keep the places of indices; other datasets stay as they are."""
    if type(dataset) is torch.utils.data.Subset:
        return PlacedSubset(with_places(dataset.dataset), dataset.indices)
    return dataset


def drawing(dataset: Any) -> Any:
    """Find the dataset beneath torch's Subsets: it draws crops and flips, the subsets do not."""
    while isinstance(dataset, torch.utils.data.Subset):
        dataset = dataset.dataset
    return dataset
