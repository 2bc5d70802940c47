"""Positions of some samples of a pack, and the check of indices that users give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from packio.errors import OptionError


class Positions:
    """Positions of some samples of a pack.

    Forked processes share the array. To processes that torch spawns it is sent once, through shared
    memory, whatever their number.

    Attributes:
        array: (n,) int64, read-only.
    """

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.array.flags.writeable = False
        self._tensor: torch.Tensor | None = None  # what is sent; kept, so that it is sent once

    def __reduce__(self) -> tuple[object, ...]:
        if self._tensor is None:
            self._tensor = torch.from_numpy(self.array.copy())
        return _received, (self._tensor,)


def _received(tensor: torch.Tensor) -> Positions:
    return Positions(tensor.numpy())


def checked(size: int, indices: Sequence[int] | np.ndarray | torch.Tensor) -> np.ndarray:
    """Check indices of samples.

    Returns:
        (n,) int64, from 0 on.
    """
    wanted = np.asarray(indices)
    if wanted.dtype == bool and wanted.shape == (size,):
        return np.flatnonzero(wanted)
    if wanted.ndim != 1 or (len(wanted) and wanted.dtype.kind not in "iu"):
        raise OptionError(
            f"indices: {wanted.dtype} {wanted.shape}; expected a list of integers, or {size} bools"
            "; for keys: where(key=[…]), or a table with a column key"
        )
    bad = wanted[(wanted < -size) | (wanted >= size)]
    if len(bad):
        raise IndexError(f"index {bad[0]} is out of range: {size} samples")
    chosen: np.ndarray = wanted.astype(np.int64)
    chosen[chosen < 0] += size
    return chosen


def several(size: int, index: Any) -> Sequence[int] | np.ndarray | None:
    """Find the indices that a slice, list or array in brackets means; None: of one sample."""
    if isinstance(index, slice):
        return range(size)[index]
    if isinstance(index, (list, range)):
        return (
            checked(size, index) if any(isinstance(i, (bool, np.bool_)) for i in index) else index
        )
    if isinstance(index, (np.ndarray, torch.Tensor)) and index.ndim:
        return checked(size, index)
    if isinstance(index, (bool, np.bool_)) or getattr(index, "dtype", None) == torch.bool:
        raise OptionError(f"index {index}: a bool; expected an int, or a list of ints or of bools")
    return None
