"""torch's Subset of a dataset whose crops are drawn by places in the epoch."""

from __future__ import annotations

from typing import Any

import torch

from packio.batches.draws import Drawn
from packio.datasets.lookahead import BatchWithLookahead


class PlacedSubset(torch.utils.data.Subset[Any]):
    """A `Subset` whose indices keep their places in the epoch, which crops are drawn from."""

    def __getitem__(self, index: Any) -> Any:
        """Get one sample."""
        return self.dataset[self._moved(index)]

    def __getitems__(self, indices: list[Any]) -> list[Any]:
        """Get some samples at once."""
        if isinstance(indices, BatchWithLookahead):
            moved: list[Any] = indices.mapped(self._moved)
        else:
            moved = [self._moved(index) for index in indices]
        together = getattr(self.dataset, "__getitems__", None)
        return [self.dataset[i] for i in moved] if together is None else list(together(moved))

    def _moved(self, index: Any) -> Any:
        """The index of the same sample in the dataset beneath."""
        within = self.indices[index]
        return index.moved(int(within)) if isinstance(index, Drawn) else within


def wrap_subset(dataset: Any) -> Any:
    """Make torch's Subsets keep the places of indices; other datasets stay as they are."""
    if type(dataset) is torch.utils.data.Subset:
        return PlacedSubset(wrap_subset(dataset.dataset), dataset.indices)
    return dataset


def unwrap_subset(dataset: Any) -> Any:
    """Find the dataset beneath torch's Subsets: it draws crops and flips, the subsets do not."""
    while isinstance(dataset, torch.utils.data.Subset):
        dataset = dataset.dataset
    return dataset
