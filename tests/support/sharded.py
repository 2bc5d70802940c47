"""A dataset of integers in shards, as samplers with a window want it."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset


class Sharded(Dataset[int]):
    """A dataset of integers in shards."""

    def __init__(self, *lengths: int) -> None:
        self.shard_lengths: Any = lengths
        self._count = sum(lengths)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> int:
        return int(index)
