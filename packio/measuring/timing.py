"""Where the time goes: named parts of a program, and how long a training loop waits for data.

>>> import itertools
>>> from packio.measuring.timing import Timer
>>> timer = Timer(clock=itertools.count(0, 1_000_000).__next__)  # each reading is 1 ms later
>>> for batch in timer.steps("abc"):
...     with timer("forward"):
...         pass
>>> timer.as_dict()["compute"]["count"], timer.as_dict()["forward"]["total_s"]
(3, 0.003)
>>> timer.wait_share()
0.25
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import io
import json
import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from packio.errors import CannotCreateError, OptionError
from packio.measuring.clocks import Clock, Durations, HostClock, device_clock
from packio.system.locks import ForkSafeLock

if TYPE_CHECKING:
    import torch
    from rich.console import Group

T = TypeVar("T")
_Function = TypeVar("_Function", bound=Callable[..., Any])

_PENDING = 4096  # measurements that may wait for the GPU


class Timer:
    """Measure named parts of a program, and the steps of a loop, in bounded memory.

    ::

        timer = packio.Timer()
        for batch in timer.steps(loader):   # "wait" and "compute"
            with timer("forward"): …
        print(timer.summary())              # rich.print(timer) in colour

    A part "forward" within a part "step" has the name "step/forward". Count, total, mean, minimum
    and maximum are exact. Percentiles (nearest rank) are within 0.4 %: they come from a histogram
    of a few thousand buckets at most, however many measurements there are. Threads may share a
    timer. Each process measures for itself: the workers of a DataLoader keep their measurements.

    Args:
        warmup: Leave out the first measurements of each name, so many of them.
        cuda: How to measure work on a GPU. None: only the time that the host waits. "events": the
            time between two events in the device's current stream; this slows nothing down.
            "synchronize": the host's time with the device idle at both ends; this slows the loop
            down. Without a GPU the host's clock is used, and the summary says so.
        device: The GPU; None: the current one. Any other device: the host's clock.
        clock: The host's clock: a function without arguments that returns nanoseconds.

    Raises:
        OptionError: a negative `warmup`, or another word for `cuda`.
    """

    def __init__(
        self,
        *,
        warmup: int = 0,
        cuda: str | None = None,
        device: torch.device | str | int | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        if warmup < 0:
            raise OptionError(f"warmup={warmup}: expected 0 or more measurements")
        if cuda not in (None, "events", "synchronize"):
            raise OptionError(f"cuda={cuda!r}: expected None, 'events' or 'synchronize'")
        self._again = functools.partial(Timer, warmup=warmup, cuda=cuda, device=device, clock=clock)
        self._warmup = warmup
        self._host = HostClock(clock)
        self._clock: Clock = device_clock(cuda, device, clock) if cuda else self._host
        self._durations: dict[str, Durations] = defaultdict(lambda: Durations(warmup))
        self._pending: deque[tuple[str, Clock, object, object]] = deque()  # name, clock, begin, end
        self._lock = ForkSafeLock()
        self._here = _Thread()

    def __reduce__(self) -> tuple[object, ...]:  # another process gets an empty timer
        return self._again, ()

    def __call__(self, name: str, *, host: bool = False) -> Span:
        """Return a context manager that measures its body; as a decorator, every call.

        Args:
            name: Name of the part; within the part "step" it becomes "step/name".
            host: Take the host's clock, whatever `cuda` says: for code that does not use the GPU.
        """
        return Span(self, name, self._host if host else self._clock)

    def steps(self, iterable: Iterable[T]) -> Generator[T, None, None]:
        """Iterate; measure waiting for each item ("wait") and the loop's body ("compute").

        The first wait includes making the iterator, and so starting the workers of a DataLoader;
        ``warmup=1`` leaves it out. When the loop is left, the last step ends, and the iterator is
        closed if it has a ``close()``. Names within the body do not begin with "compute/". With
        "events", waiting is the time in which the device had nothing to do.

        Args:
            iterable: A DataLoader, or any other iterable.
        """
        clock, within = self._clock, self._within()
        begin = clock.mark()
        iterator = iter(iterable)
        try:
            for item in iterator:
                got = clock.mark()
                self._add(f"{within}wait", clock, begin, got)
                try:
                    yield item
                finally:
                    begin = clock.mark()
                    self._add(f"{within}compute", clock, got, begin)
                del item  # do not keep it while waiting for the next item
        finally:
            close = getattr(iterator, "close", None)
            if close is not None:
                close()

    def wait_share(self, within: str = "") -> float | None:
        """Give the share of a loop's time spent on waiting for data, 0..1; None without steps.

        Args:
            within: Name of the part that the loop ran within, if any.
        """
        named = self.as_dict()
        wait, compute = (named.get(f"{within}/{n}".lstrip("/")) for n in ("wait", "compute"))
        if wait is None or compute is None:
            return None
        return wait["total_s"] / ((wait["total_s"] + compute["total_s"]) or 1.0)

    def as_dict(self) -> dict[str, dict[str, float]]:
        """Give count and seconds of each name, as JSON takes it; waits for the GPU.

        Returns:
            Name → count, total_s, mean_s, p50_s, p90_s, p99_s, min_s, max_s. A name without
            measurements is left out.
        """
        with self._lock:
            self._settle(0)
            found = sorted(self._durations.items(), key=lambda named: named[0].split("/"))
            return {name: durations.as_dict() for name, durations in found if durations.count}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything as JSON: "clock", "warmup", and "names", which is `as_dict`.

        Raises:
            CannotCreateError: the file cannot be written.
        """
        named = {"clock": str(self._clock), "warmup": self._warmup, "names": self.as_dict()}
        try:
            Path(path).write_text(json.dumps(named, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise CannotCreateError(f"{path}: {error.strerror}") from error

    def summary(self) -> str:
        """Make a text: a table, the shares of waiting, and the clock."""
        from rich.console import Console

        text = io.StringIO()
        Console(file=text, width=200, color_system=None).print(self.__rich__())
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines())

    def __rich__(self) -> Group:
        from rich.console import Group
        from rich.table import Table

        named = self.as_dict()
        table = Table(box=None, pad_edge=False)
        table.add_column("name", overflow="fold")
        for title in ("count", "total s", "mean ms", "p50", "p90", "p99", "min", "max"):
            table.add_column(title, justify="right")
        for name, row in named.items():
            count, total, *seconds = row.values()
            cells = (f"{1e3 * s:,.3f}" for s in seconds)
            table.add_row(name, f"{count:,}", f"{total:,.3f}", *cells)
        return Group(table, *self._remarks(named))

    def _remarks(self, named: Iterable[str]) -> list[str]:
        loops = [name.rpartition("/")[0] for name in named if name.split("/")[-1] == "wait"]
        shares = ((within, self.wait_share(within)) for within in loops)
        found = [
            f"{within + ': ' if within else ''}{share:.1%} of the loop's time was waiting for data"
            for within, share in shares
            if share is not None
        ]
        left_out = f"; the first {self._warmup} of each name left out" if self._warmup else ""
        return [*found, f"measured by {self._clock}{left_out}"]

    def _within(self) -> str:
        """Give the prefix of names here, in this thread."""
        return f"{self._here.open[-1].name}/" if self._here.open else ""

    def _add(self, name: str, clock: Clock, begin: object, end: object) -> None:
        with self._lock:
            if not self._pending and clock.is_over(end):
                self._durations[name].add(clock.between(begin, end))
            else:
                self._pending.append((name, clock, begin, end))
                self._settle(_PENDING)

    def _settle(self, most: int) -> None:
        """Count the measurements that the GPU has finished; wait if more than `most` are left."""
        while self._pending:
            name, clock, begin, end = self._pending[0]
            if len(self._pending) <= most and not clock.is_over(end):
                return
            self._pending.popleft()
            self._durations[name].add(clock.between(begin, end))


class Span(contextlib.ContextDecorator):
    """A part of a program to measure, from `Timer`: a context manager, and a decorator.

    It may be used repeatedly, within itself, and by several threads at once.
    """

    def __init__(self, timer: Timer, name: str, clock: Clock) -> None:
        self._timer, self._name, self._clock = timer, name, clock

    def __enter__(self) -> Span:
        timer = self._timer
        opened = _Open(self, timer._within() + self._name)  # noqa: SLF001 (a part of it)
        timer._here.open.append(opened)  # noqa: SLF001 (a part of it)
        opened.begin = self._clock.mark()
        return self

    def __exit__(self, *_: object) -> None:
        end = self._clock.mark()
        still_open = self._timer._here.open  # noqa: SLF001 (a part of it)
        place = -1
        while still_open[place].span is not self:  # generators took turns
            place -= 1
        opened = still_open.pop(place)
        self._timer._add(opened.name, self._clock, opened.begin, end)  # noqa: SLF001 (a part of it)

    def __call__(self, function: _Function) -> _Function:
        """Return the function, measured whenever it is called."""
        kinds = (
            inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction,
        )  # fmt: skip
        if any(is_kind(function) for is_kind in kinds):
            raise OptionError(
                f"{function}: a call returns before its work is done; "
                "use `with timer(name):` inside the function"
            )
        return super().__call__(function)


@dataclasses.dataclass(slots=True)
class _Open:
    """A part that has begun."""

    span: Span
    name: str
    begin: object = None


class _Thread(threading.local):
    """The parts that a thread is within."""

    def __init__(self) -> None:
        self.open: list[_Open] = []
