"""Random numbers from a key: they never depend on a worker, a thread or the order of a batch.

Every sample of a batch has a lane of counters. SplitMix64 turns a counter into a number, which does
not depend on the numbers drawn before. So numbers can be drawn in any order, all at once, and the
same key gives the same numbers everywhere.

Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014 (the
finaliser with the constants of variant 13).
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from packio.errors import OptionError

LANE = 64  # numbers that one view of one sample may draw
VIEWS = 16  # views a sample may have

_GAMMA = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_M1_INT, _M2_INT = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_M1, _M2 = np.uint64(_M1_INT), np.uint64(_M2_INT)
_11, _27, _30, _31 = (np.uint64(n) for n in (11, 27, 30, 31))
_STEPS = np.arange(1, LANE + 1, dtype=np.uint64) * np.uint64(_GAMMA)
_LANE_STEP = np.uint64(LANE * VIEWS * _GAMMA & _MASK)


def mix(*values: int) -> int:
    """Combine integers into one 64-bit key; their order matters."""
    state = 0
    for value in values:
        z = (state ^ (value & _MASK)) + _GAMMA & _MASK
        z = (z ^ z >> 30) * _M1_INT & _MASK
        z = (z ^ z >> 27) * _M2_INT & _MASK
        state = z ^ z >> 31
    return state


def scramble(z: np.ndarray) -> np.ndarray:
    """Mix the bits of each number: (n,) uint64, by the last steps of SplitMix64."""
    z = (z ^ z >> _30) * _M1
    z = (z ^ z >> _27) * _M2
    mixed: np.ndarray = z ^ z >> _31
    return mixed


def digest(indices: Sequence[int] | np.ndarray) -> int:
    """A 64-bit digest of a batch's indices, in their order."""
    data = np.asarray(indices, "<i8").tobytes()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


class PositionedIndex(int):
    """An index that knows its place in an epoch. Anybody can use it as an int."""

    epoch: int
    position: int
    # (height, width) in pixels that `packio.BucketCrop` makes of its batch; None: of no sizes
    size: tuple[int, int] | None = None
    # the `packio.loading.order.Course` that tells what comes after it; None: unknown
    course: Any = None

    def __new__(
        cls, index: int, epoch: int, position: int, size: tuple[int, int] | None = None,
        course: Any = None,
    ) -> PositionedIndex:  # fmt: skip
        self = super().__new__(cls, index)
        self.epoch, self.position = epoch, position
        if size is not None:
            self.size = size
        if course is not None:
            self.course = course
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return PositionedIndex, (int(self), self.epoch, self.position, self.size, self.course)

    def with_index(self, index: int) -> PositionedIndex:
        """The same place with another index, as that of the same sample in a larger dataset."""
        return PositionedIndex(index, self.epoch, self.position, self.size)


def size_of(batch: Sequence[Any] | np.ndarray) -> tuple[int, int] | None:
    """The size that the indices of a batch carry; None: they carry none."""
    first = batch[0] if len(batch) else None
    if isinstance(first, list):
        raise OptionError(
            "a batch of batches: give the sampler, which yields them, as batch_sampler="
        )
    if not isinstance(first, PositionedIndex) or first.size is None:
        return None
    sizes = {index.size if isinstance(index, PositionedIndex) else None for index in batch}
    if len(sizes) > 1:
        raise OptionError(
            f"a batch of the sizes {sorted(map(str, sizes))}: expected one size, as each batch of "
            "packio.BucketSampler has; something put two of its batches together"
        )
    return first.size


def attach_positions(batch: Sequence[Any], epoch: int, first: int, step: int) -> list[Any]:
    """Give the indices of a foreign sampler's batch places in an epoch: `PositionedIndex`.

    A batch that has something else in it than ints, or `PositionedIndex`, stays as it is.
    """
    if any(isinstance(index, PositionedIndex) for index in batch):
        return list(batch)
    try:
        plain = [operator.index(index) for index in batch]
    except TypeError:
        return list(batch)
    return [PositionedIndex(index, epoch, first + slot * step) for slot, index in enumerate(plain)]


class Lane:
    """The numbers that `uniforms` gives a single sample, each drawn when asked for."""

    __slots__ = ("_start",)

    def __init__(self, key: int, lane: int, view: int, skip: int = 0) -> None:
        first = lane * LANE * VIEWS + view * LANE + 1 + skip
        self._start = key + first * _GAMMA

    def __getitem__(self, i: int) -> float:
        z = self._start + i * _GAMMA & _MASK
        z = (z ^ z >> 30) * _M1_INT & _MASK
        z = (z ^ z >> 27) * _M2_INT & _MASK
        return ((z ^ z >> 31) >> 11) * 2.0**-53


def first_bits(keys: np.ndarray, count: int) -> np.ndarray:
    """The 53 bits of the first numbers that `uniforms` gives: (K, count) of K uint64 keys."""
    lanes = np.arange(count).astype(np.uint64) * _LANE_STEP
    bits: np.ndarray = scramble(lanes + _STEPS[0] + keys[:, None]) >> _11
    return bits


def uniforms(key: int, lanes: np.ndarray, view: int, count: int) -> np.ndarray:
    """Draw numbers for (N,) lanes, at least 0, of a view: (N, count) float64, uniform on [0, 1)."""
    start = np.uint64(key + view * LANE * _GAMMA & _MASK)
    z = (lanes.astype(np.uint64) * _LANE_STEP + start)[:, None] + _STEPS[:count]
    numbers: np.ndarray = (scramble(z) >> _11) * (2.0**-53)
    return numbers
