"""Clocks to measure by: the host's, the host's with the GPU idle, and the GPU's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


class Clock(Protocol):
    """Takes moments, and tells what lies between two of them; its text names it."""

    def mark(self) -> Any:
        """Take this moment."""

    def is_over(self, moment: Any) -> bool:
        """Whether a moment taken has come for the device, too."""

    def between(self, begin: Any, end: Any) -> int:
        """Nanoseconds from one moment to another; waits until both have come."""


class HostClock:
    """The host's time.

    Args:
        read: Nanoseconds.
        asked: What else there is to say of it.
    """

    def __init__(self, read: Callable[[], int], asked: str = "") -> None:
        self.mark, self._asked = read, asked

    def __str__(self) -> str:
        return f"the host's clock{self._asked}"

    def is_over(self, moment: Any) -> bool:
        """It is: the host waits for none."""
        return True

    def between(self, begin: Any, end: Any) -> int:
        """Nanoseconds."""
        return int(end - begin)


class EventClock:
    """The device's time, by events in its current stream: it never waits for them to come."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __str__(self) -> str:
        return f"CUDA events on {self._device}"

    def mark(self) -> Any:
        """Put an event behind what the stream has been given so far."""
        import torch

        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's own
        event.record(torch.cuda.current_stream(self._device))
        return event

    def is_over(self, moment: Any) -> bool:
        """Whether the device has come to an event."""
        return bool(moment.query())

    def between(self, begin: Any, end: Any) -> int:
        """Nanoseconds."""
        begin.synchronize()  # of another stream, perhaps
        end.synchronize()
        return int(begin.elapsed_time(end) * 1e6)


def device_clock(
    kind: str, device: torch.device | str | int | None, read: Callable[[], int]
) -> Clock:
    """Make a clock of a GPU's work; without a GPU the host's, which says so.

    Args:
        kind: "events", or "synchronize": the host's time with the device idle.
        device: The GPU; None: the current one.
        read: The host's time.
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
