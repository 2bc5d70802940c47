"""Clocks: the host's, the host's with the GPU idle, the GPU's own; and durations, summed up."""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

_BITS = 8  # leading bits of a duration that choose its bucket


class Clock(Protocol):
    """Marks moments, and measures the time between two of them. Its text is its name."""

    def mark(self) -> Any:
        """Mark this moment."""

    def is_over(self, moment: Any) -> bool:
        """Whether the device, too, has come to a marked moment."""

    def between(self, begin: Any, end: Any) -> int:
        """Measure nanoseconds from one moment to another; waits until both have come."""


class HostClock:
    """The time of the host.

    Args:
        read: Returns nanoseconds.
        remark: A remark for the clock's name.
    """

    def __init__(self, read: Callable[[], int], remark: str = "") -> None:
        self.mark, self._remark = read, remark

    def __str__(self) -> str:
        return f"the host's clock{self._remark}"

    def is_over(self, moment: Any) -> bool:
        """Always true: the host has come to each moment that it marked."""
        return True

    def between(self, begin: Any, end: Any) -> int:
        """Subtract."""
        return int(end - begin)


class EventClock:
    """The time of a GPU, by events in its current stream. Marking never waits."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __str__(self) -> str:
        return f"CUDA events on {self._device}"

    def mark(self) -> Any:
        """Put an event behind all work that the stream has been given so far."""
        import torch

        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's own
        event.record(torch.cuda.current_stream(self._device))
        return event

    def is_over(self, moment: Any) -> bool:
        """Whether the GPU has come to an event."""
        return bool(moment.query())

    def between(self, begin: Any, end: Any) -> int:
        """Wait for both events, then measure."""
        begin.synchronize()  # perhaps of another stream
        end.synchronize()
        return int(begin.elapsed_time(end) * 1e6)


def device_clock(
    kind: str, device: torch.device | str | int | None, read: Callable[[], int]
) -> Clock:
    """Make a clock for work on a GPU; without a GPU the host's clock, whose name says so.

    Args:
        kind: "events", or "synchronize": the host's time with the device idle.
        device: The GPU; None: the current one.
        read: Returns the host's time, nanoseconds.
    """
    import torch

    asked = (
        torch.device("cuda", device) if isinstance(device, int) else torch.device(device or "cuda")
    )
    if asked.type != "cuda":
        return HostClock(read, f" (cuda={kind!r} means nothing on device {asked})")
    if not torch.cuda.is_available():
        return HostClock(read, f" (cuda={kind!r}, but there is no GPU)")
    without_index = str(asked) == "cuda"
    gpu = torch.device("cuda", torch.cuda.current_device()) if without_index else asked
    if kind == "events":
        return EventClock(gpu)

    def idle() -> int:
        torch.cuda.synchronize(gpu)
        return read()

    return HostClock(idle, f", {gpu} idle at both ends")


class Durations:
    """Many durations in bounded memory: exact sums, and a histogram for percentiles.

    A bucket holds the durations that agree in their leading 8 bits. So the middle of a bucket is
    within 1/256 of each duration in it. Source: HdrHistogram.

    Args:
        warmup: Durations to leave out, at the beginning.
    """

    def __init__(self, warmup: int) -> None:
        self._left_out, self.count, self._total = warmup, 0, 0
        self._least = self._most = 0
        self._buckets: Counter[int] = Counter()

    def add(self, nanoseconds: int) -> None:
        """Count a duration."""
        if self._left_out:
            self._left_out -= 1
            return
        self._least = min(self._least, nanoseconds) if self.count else nanoseconds
        self._most = max(self._most, nanoseconds)
        self.count, self._total = self.count + 1, self._total + nanoseconds
        shift = max(nanoseconds.bit_length() - _BITS, 0)
        self._buckets[(shift << _BITS) + (nanoseconds >> shift)] += 1  # keys sort as durations

    def as_dict(self) -> dict[str, float]:
        """Give the count, and sums and percentiles in seconds."""
        found = {"total": self._total, "mean": self._total / self.count}
        found |= {f"p{percent}": self._percentile(percent) for percent in (50, 90, 99)}
        found |= {"min": self._least, "max": self._most}
        return {"count": self.count} | {f"{name}_s": value / 1e9 for name, value in found.items()}

    def _percentile(self, percent: int) -> float:
        """Find the middle of the bucket in which the percentile lies (nearest rank)."""
        keys = sorted(self._buckets)
        reached = list(itertools.accumulate(self._buckets[key] for key in keys))
        key = keys[bisect.bisect_left(reached, -(-self.count * percent // 100))]
        shift, leading = key >> _BITS, key & ((1 << _BITS) - 1)
        middle = (leading << shift) + ((1 << shift) - 1) / 2
        return min(max(middle, self._least), self._most)
