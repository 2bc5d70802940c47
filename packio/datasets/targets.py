"""Labels as an array that also does what scripts do with the list that ImageFolder has."""

from __future__ import annotations

from typing import Any

import numpy as np

from packio.errors import OptionError


class Targets(np.ndarray):
    """Labels, (N,) int64 or (N, k) float32; its items are ints of Python."""

    def __getitem__(self, index: Any) -> Any:
        item = super().__getitem__(index)
        return item.item() if isinstance(item, np.generic) else item

    def __bool__(self) -> bool:
        """Whether there are labels; of a comparison, what NumPy says."""
        return super().__bool__() if self.dtype == bool else len(self) > 0

    def count(self, label: int) -> int:
        """Count the samples with a label."""
        return int((self == label).sum())

    def index(self, label: int) -> int:
        """Find the first sample with a label."""
        return int(self.tolist().index(label))

    def __add__(self, other: Any) -> Any:
        if isinstance(other, (list, Targets)):
            raise OptionError(
                "targets + targets: lists are joined, arrays added; numpy.concatenate joins these"
            )
        return super().__add__(other)
