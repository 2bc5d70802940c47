"""A dataset whose samples say how they were asked for."""

from __future__ import annotations

from torch.utils.data import Dataset


class Told(Dataset[tuple[int, int, int]]):
    """Gives each index back, with the epoch and the position that it carries, or -1."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.shard_lengths = [count]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[int, int, int]:
        return int(index), getattr(index, "epoch", -1), getattr(index, "position", -1)
