"""Many durations in bounded memory: exact sums, and a histogram for their percentiles.

A bucket holds the durations that agree in their leading 8 bits, as in HdrHistogram, so the middle
of a bucket is within 1/256 of all that are in it.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter

_BITS = 8


class Durations:
    """Some durations in nanoseconds: exact sums, and a histogram whose buckets grow with them."""

    def __init__(self, warmup: int) -> None:
        self._left_out, self.count, self._total = warmup, 0, 0
        self._least = self._most = 0
        self._buckets: Counter[int] = Counter()

    def add(self, duration: int) -> None:
        """Count one, unless it is one of the first."""
        if self._left_out:
            self._left_out -= 1
            return
        self._least = min(self._least, duration) if self.count else duration
        self._most = max(self._most, duration)
        self.count, self._total = self.count + 1, self._total + duration
        shift = max(duration.bit_length() - _BITS, 0)
        self._buckets[(shift << _BITS) + (duration >> shift)] += 1  # in the order of durations

    def as_dict(self) -> dict[str, float]:
        """Count, and seconds."""
        found = {"total": self._total, "mean": self._total / self.count}
        found |= {f"p{percent}": self._percentile(percent) for percent in (50, 90, 99)}
        found |= {"min": self._least, "max": self._most}
        return {"count": self.count} | {f"{name}_s": value / 1e9 for name, value in found.items()}

    def _percentile(self, percent: int) -> float:
        """The middle of the bucket where so many are reached (nearest rank)."""
        keys = sorted(self._buckets)
        reached = list(itertools.accumulate(self._buckets[key] for key in keys))
        key = keys[bisect.bisect_left(reached, -(-self.count * percent // 100))]
        shift, leading = key >> _BITS, key & ((1 << _BITS) - 1)
        middle = (leading << shift) + ((1 << shift) - 1) / 2
        return min(max(middle, self._least), self._most)
