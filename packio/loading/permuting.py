"""A permutation that is computed, not stored: any part of it, at any time.

A Feistel network maps each position to an index. It permutes the smallest domain of 2^(2k) numbers
that holds all positions; a result outside the wanted range goes through the network again. The
orders of few samples are sorted random numbers instead: a network of few bits does not reach all
orders equally often.
Source: Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002.
"""

from __future__ import annotations

import functools

import numpy as np

from packio.batches import draws

SORTED = 4096  # largest permutation that is sorted
_ROUNDS = 8
_M1, _M2 = (
    np.uint64(0xBF58476D1CE4E5B9),
    np.uint64(0x94D049BB133111EB),
)  # as in packio.batches.draws


def permuted(positions: np.ndarray, count: int, key: int) -> np.ndarray:
    """Apply a permutation of 0..count-1 to some positions.

    Args:
        positions: (n,) int64, each in 0..count-1.
        count: Size of the permutation.
        key: 64 bits that select the permutation.

    Returns:
        (n,) int64.
    """
    if count <= SORTED:
        found: np.ndarray = _sorted(count, key)[positions]
        return found
    half = np.uint64(-(-(count - 1).bit_length() // 2))
    mask = np.uint64((1 << int(half)) - 1)
    keys = [np.uint64(draws.mix(key, i)) for i in range(_ROUNDS)]
    result = positions.astype(np.uint64)
    outside = np.ones(len(result), bool)
    while outside.any():  # few rounds: the domain is at most 4 times as large
        values = result[outside]
        left, right = values >> half, values & mask
        for round_key in keys:
            left, right = right, left ^ (_mixed(right ^ round_key) & mask)
        result[outside] = left << half | right
        outside = result >= count
    return result.astype(np.int64)


@functools.lru_cache(maxsize=64)
def _sorted(count: int, key: int) -> np.ndarray:
    numbers = draws.uniforms(key, np.arange(count), 0, 1)[:, 0]
    order: np.ndarray = np.argsort(numbers, kind="stable")
    order.setflags(write=False)
    return order


def _mixed(z: np.ndarray) -> np.ndarray:
    z = (z ^ z >> np.uint64(30)) * _M1
    z = (z ^ z >> np.uint64(27)) * _M2
    mixed: np.ndarray = z ^ z >> np.uint64(31)
    return mixed
