"""Orders that are computed, not stored: any part of a permutation, at any time.

A Feistel network maps each position to an index. It permutes the smallest domain of 2^(2k) numbers
that holds all positions; a result outside the wanted range goes through the network again. The
orders of few samples are sorted random numbers instead: a network of few bits does not reach all
orders equally often.
Source: Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from packio.batches import draws

SORTED = 4096  # largest permutation that is sorted
_ROUNDS = 8
_SHARDS, _WINDOW = 0x736861726473, 0x77696E646F77  # what random numbers of windows are for


def permute(positions: np.ndarray, count: int, key: int) -> np.ndarray:
    """Apply a permutation of 0..count-1 to positions, (n,) int64, each in 0..count-1."""
    if count <= SORTED:
        found: np.ndarray = _sort_numbers(count, key)[positions]
        return found
    return _run_network(positions, count, [np.uint64(draws.mix(key, i)) for i in range(_ROUNDS)])


def runs(values: np.ndarray) -> Iterator[tuple[int, slice]]:
    """Yield each stretch of equal values: the value, and where the stretch is."""
    edges = [0, *(np.flatnonzero(values[1:] != values[:-1]) + 1).tolist(), len(values)]
    for start, stop in itertools.pairwise(edges) if len(values) else ():
        yield int(values[start]), slice(start, stop)


def _run_network(positions: np.ndarray, count: int, keys: Sequence[np.uint64]) -> np.ndarray:
    """Send positions through the network, whose rounds have a key each."""
    half = np.uint64(-(-(count - 1).bit_length() // 2))
    mask = np.uint64((1 << int(half)) - 1)
    result = positions.astype(np.uint64)
    outside = np.arange(len(result))
    while len(outside):  # few rounds: the domain is at most 4 times as large
        values = result[outside]
        left, right = values >> half, values & mask
        for key in keys:
            left, right = right, left ^ (draws.scramble(right ^ key) & mask)
        result[outside] = values = left << half | right
        outside = outside[values >= count]
    return result.astype(np.int64)


@functools.lru_cache(maxsize=64)
def _sort_numbers(count: int, key: int) -> np.ndarray:
    numbers = draws.first_bits(np.array([key], np.uint64), count)[0]
    order: np.ndarray = np.argsort(numbers, kind="stable")
    order.setflags(write=False)
    return order


class Windows:
    """The order of samples whose shards are expensive to open: few are read at a time.

    A keyed permutation orders the shards. Each ``window`` shards that follow each other in this
    order are a window, and another keyed permutation orders all samples of a window. So the index
    at a position is computed from the positions where windows and shards begin: arrays of shards,
    none of samples. ``lengths``, (S,) int64, are the samples of each shard, above 0.
    """

    def __init__(self, lengths: np.ndarray, window: int) -> None:
        self._lengths, self._window = lengths, window
        self.digest: str = hashlib.blake2b(
            lengths.astype("<i8").tobytes(), digest_size=8
        ).hexdigest()
        self._latest = 0, self._lay_out(0)

    def indices(self, positions: np.ndarray, key: int) -> np.ndarray:
        """The index at each of some positions of the order that a key selects."""
        known, layout = self._latest
        if known != key:
            layout = self._lay_out(key)
            self._latest = key, layout  # at once: another thread reads
        windows, ends, shifts = layout
        numbers = np.searchsorted(windows, positions, "right") - 1
        places = np.empty_like(positions)
        for number, part in runs(numbers):
            start, stop = windows[number : number + 2].tolist()
            own = draws.mix(key, number, _WINDOW)
            places[part] = start + permute(positions[part] - start, stop - start, own)
        indices: np.ndarray = places + shifts[np.searchsorted(ends, places, "right")]
        return indices

    def _lay_out(self, key: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Lay out the shards in the order of a key: three arrays of int64.

        Where each window begins, and the end: (W + 1,) positions. Where each shard's part ends,
        were no window permuted: (S,) positions. From such a position to the index: (S,).
        """
        count = len(self._lengths)
        order = permute(np.arange(count), count, draws.mix(key, _SHARDS))
        ends, firsts = np.cumsum(self._lengths[order]), np.cumsum(self._lengths) - self._lengths
        starts, end = np.append(0, ends[:-1]), ends[-1:]
        return np.append(starts[:: self._window], end), ends, firsts[order] - starts
