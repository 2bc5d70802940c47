"""Orders for shards that are expensive to open: a few of them are read at a time, in random order.

A keyed permutation orders the shards. Each ``window`` shards that follow each other in this order
are a window, and another keyed permutation orders all samples of a window. So the index at a
position is computed from the positions where windows and shards begin: arrays of shards, none of
samples.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np

from packio.batches import draws
from packio.loading.permuting import permuted, runs

_SHARDS, _WINDOW = 0x736861726473, 0x77696E646F77  # what random numbers are for


class _Layout(NamedTuple):
    """The shards in the order of an epoch.

    Attributes:
        windows: (W + 1,) int64: position where each window begins, and the end.
        ends: (S,) int64: position where each shard's part ends, were no window permuted.
        shifts: (S,) int64: from such a position to the index.
    """

    windows: np.ndarray
    ends: np.ndarray
    shifts: np.ndarray


class Windows:
    """The order of samples whose shards are read a window at a time.

    Args:
        lengths: (S,) int64, samples of each shard, above 0.
    """

    def __init__(self, lengths: np.ndarray, window: int) -> None:
        self._lengths, self._window = lengths, window
        self.digest: str = hashlib.blake2b(
            lengths.astype("<i8").tobytes(), digest_size=8
        ).hexdigest()
        self._latest: tuple[int | None, _Layout] = None, self._laid_out(0)

    def indices(self, positions: np.ndarray, key: int) -> np.ndarray:
        """The index at each of some ascending positions of the order that a key selects."""
        known, layout = self._latest
        if known != key:
            layout = self._laid_out(key)
            self._latest = key, layout  # at once: another thread reads
        numbers = np.searchsorted(layout.windows, positions, "right") - 1
        places = np.empty_like(positions)
        for number, part in runs(numbers):
            start, stop = layout.windows[number : number + 2].tolist()
            own = draws.mix(key, number, _WINDOW)
            places[part] = start + permuted(positions[part] - start, stop - start, own)
        indices: np.ndarray = places + layout.shifts[np.searchsorted(layout.ends, places, "right")]
        return indices

    def _laid_out(self, key: int) -> _Layout:
        count = len(self._lengths)
        order = permuted(np.arange(count), count, draws.mix(key, _SHARDS))
        lengths = self._lengths[order]
        ends = np.cumsum(lengths)
        firsts = np.cumsum(self._lengths) - self._lengths
        edges = np.concatenate([[0], ends])
        return _Layout(
            np.append(edges[:-1][:: self._window], edges[-1]), ends, firsts[order] - edges[:-1]
        )
