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
import functools
import inspect
import io
import json
import os
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from packio.errors import CannotCreateError, OptionError
from packio.system.locks import ForkSafeLock

if TYPE_CHECKING:
    import torch
    from rich.console import Group

T = TypeVar("T")
_Function = TypeVar("_Function", bound=Callable[..., Any])

_PENDING = 4096  # measurements that may wait for the GPU
_BITS = 8  # leading bits of a duration that choose its bucket


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
        self._host = Clock("the host's clock", clock)
        self._clock = _make_device_clock(cuda, device, clock) if cuda else self._host
        self._durations: dict[str, Durations] = defaultdict(lambda: Durations(warmup))
        self._pending: deque[tuple[str, Clock, object, object]] = deque()  # name, clock, begin, end
        self._lock = ForkSafeLock()
        self._here = threading.local()

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
        rows = self.as_dict()
        wait, compute = (rows.get(f"{within}/{n}".lstrip("/")) for n in ("wait", "compute"))
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
            ordered = sorted(self._durations.items(), key=lambda named: named[0].split("/"))
            return {name: durations.as_dict() for name, durations in ordered if durations.count}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything as JSON: "clock", "warmup", and "names", which is `as_dict`.

        Raises:
            CannotCreateError: the file cannot be written.
        """
        values = {"clock": self._clock.name, "warmup": self._warmup, "names": self.as_dict()}
        try:
            Path(path).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
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

        rows = self.as_dict()
        table = Table(box=None, pad_edge=False)
        table.add_column("name", overflow="fold")
        for title in ("count", "total s", "mean ms", "p50", "p90", "p99", "min", "max"):
            table.add_column(title, justify="right")
        lines = []
        for name, row in rows.items():
            count, total, *seconds = row.values()
            cells = (f"{1e3 * s:,.3f}" for s in seconds)
            table.add_row(name, f"{count:,}", f"{total:,.3f}", *cells)
            within, _, last = name.rpartition("/")
            if last == "wait" and (share := self.wait_share(within)) is not None:
                loop = f"{within}: " if within else ""
                lines.append(f"{loop}{share:.1%} of the loop's time was waiting for data")
        left_out = f"; the first {self._warmup} of each name left out" if self._warmup else ""
        return Group(table, *lines, f"measured by {self._clock.name}{left_out}")

    def _open_spans(self) -> list[tuple[Span, str, object]]:
        """List the parts that this thread is within: span, name, begin."""
        spans: list[tuple[Span, str, object]] = vars(self._here).setdefault("open", [])
        return spans

    def _within(self) -> str:
        """Give the prefix of names here, in this thread."""
        spans = self._open_spans()
        return f"{spans[-1][1]}/" if spans else ""

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
        name = self._timer._within() + self._name  # noqa: SLF001 (a part of it)
        self._timer._open_spans().append((self, name, self._clock.mark()))  # noqa: SLF001 (a part of it)
        return self

    def __exit__(self, *_: object) -> None:
        end = self._clock.mark()
        spans = self._timer._open_spans()  # noqa: SLF001 (a part of it)
        place = -1
        while spans[place][0] is not self:  # generators took turns
            place -= 1
        name, begin = spans.pop(place)[1:]
        self._timer._add(name, self._clock, begin, end)  # noqa: SLF001 (a part of it)

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


class Clock(NamedTuple):
    """Marks moments, and measures nanoseconds between two of them."""

    name: str
    mark: Callable[[], Any]
    is_over: Callable[[Any], bool] = lambda _: True  # the device, too, has come to the moment
    between: Callable[[Any, Any], int] = lambda begin, end: int(end - begin)


def _make_device_clock(
    kind: str, device: torch.device | str | int | None, read: Callable[[], int]
) -> Clock:
    """Make a clock for work on a GPU; without a GPU the host's clock, whose name says so."""
    import torch

    gpu = (
        torch.device("cuda", device) if isinstance(device, int) else torch.device(device or "cuda")
    )
    if gpu.type != "cuda":
        return Clock(f"the host's clock (cuda={kind!r} means nothing on device {gpu})", read)
    if not torch.cuda.is_available():
        return Clock(f"the host's clock (cuda={kind!r}, but there is no GPU)", read)
    if str(gpu) == "cuda":
        gpu = torch.device("cuda", torch.cuda.current_device())

    def synchronize() -> int:
        torch.cuda.synchronize(gpu)
        return read()

    def record() -> Any:  # never waits: an event behind all work of the stream so far
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's own
        event.record(torch.cuda.current_stream(gpu))
        return event

    def between(begin: Any, end: Any) -> int:
        begin.synchronize()  # perhaps of another stream
        end.synchronize()
        return int(begin.elapsed_time(end) * 1e6)

    if kind == "events":
        return Clock(f"CUDA events on {gpu}", record, torch.cuda.Event.query, between)
    return Clock(f"the host's clock, {gpu} idle at both ends", synchronize)


class Durations:
    """Many durations in bounded memory: exact sums, and a histogram for percentiles.

    The durations of a bucket agree in their leading 8 bits: 1/256. Source: HdrHistogram.
    """

    def __init__(self, warmup: int) -> None:
        self._left_out, self.count, self._total = warmup, 0, 0
        self._least = self._most = 0
        self._buckets: Counter[int] = Counter()

    def add(self, nanoseconds: int) -> None:
        if self._left_out:
            self._left_out -= 1
            return
        self._least = min(self._least, nanoseconds) if self.count else nanoseconds
        self._most = max(self._most, nanoseconds)
        self.count, self._total = self.count + 1, self._total + nanoseconds
        shift = max(nanoseconds.bit_length() - _BITS, 0)
        self._buckets[(shift << _BITS) + (nanoseconds >> shift)] += 1  # keys sort as durations

    def as_dict(self) -> dict[str, float]:
        values = {"total": self._total, "mean": self._total / self.count}
        values |= {f"p{percent}": self._percentile(percent) for percent in (50, 90, 99)}
        values |= {"min": self._least, "max": self._most}
        return {"count": self.count} | {f"{name}_s": value / 1e9 for name, value in values.items()}

    def _percentile(self, percent: int) -> float:
        """Find the middle of the bucket in which the percentile lies (nearest rank)."""
        left = -(-self.count * percent // 100)
        for key in sorted(self._buckets):
            left -= self._buckets[key]
            if left <= 0:
                break
        shift, leading = divmod(key, 1 << _BITS)
        middle = (leading << shift) + ((1 << shift) - 1) / 2
        return min(max(middle, self._least), self._most)
