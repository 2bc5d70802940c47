"""Ctrl-C, held back where it would tear something apart, and found behind other errors.

Python raises KeyboardInterrupt between any two steps of the main thread. Between the start of a
thread and the note that it runs, nobody learns of the thread, so nobody waits for its end. While
a thread is joined, Python takes the thread for ended although it runs (bpo-45274).
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from packio.system import memory

_STEP = 0.5  # seconds between two looks whether work was left
_Result = TypeVar("_Result")


class DeferInterrupts:
    """Hold Ctrl-C back until a ``with`` block ends; then the handler of SIGINT is called.

    The handler may be Python's own, which raises KeyboardInterrupt, or the program's. In other
    threads, and where SIGINT is ignored or ends the process, the block is like any other. Within
    another such block nothing more is held back. A block costs 4 µs.
    """

    def __init__(self) -> None:
        self.count = 0  # how often Ctrl-C has come since the block began
        self._handler: Callable[[int, FrameType | None], Any] | None = None
        self._frame: FrameType | None = None

    def __enter__(self) -> DeferInterrupts:
        if threading.get_ident() == threading.main_thread().ident:
            handler: Any = signal.getsignal(signal.SIGINT)
            if isinstance(handler, DeferInterrupts):
                return handler
            if callable(handler):
                self._handler = handler
                signal.signal(signal.SIGINT, self)
        return self

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Note that Ctrl-C has come: what Python calls in place of the handler."""
        self.count, self._frame = self.count + 1, frame

    def __exit__(self, *_: object) -> None:
        if self._handler is None:
            return
        handler, self._handler = self._handler, None
        now: Any = signal.getsignal(signal.SIGINT)
        if now is not self:  # the block has set another handler
            return
        signal.signal(signal.SIGINT, handler)
        frame, self._frame = self._frame, None
        if self.count:
            handler(signal.SIGINT, frame)

    @contextmanager
    def let_through(self) -> Iterator[None]:
        """Let Ctrl-C through within a ``with`` block; one that came before ends it at once."""
        self.__exit__()
        try:
            yield
        finally:
            self.count = 0
            self.__enter__()


_ASIDE = "packio-aside"  # name of threads that `run_aside` starts


def run_aside(call: Callable[[], _Result], stop: Callable[[], object]) -> _Result:
    """Call a library that heeds no Ctrl-C: in a thread of its own, which Ctrl-C leaves behind.

    Outside the main thread, to which no Ctrl-C comes, the call is made at once. It closes what it
    opens: after a Ctrl-C nobody else does. ``stop`` then asks it to end, without waiting for that.
    """
    if threading.get_ident() != threading.main_thread().ident:
        return call()
    ended, results, errors = threading.Event(), list[_Result](), list[BaseException]()

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001 (the caller raises it)
            errors.append(error)
        finally:
            ended.set()

    memory.require_thread()
    with DeferInterrupts() as held:
        threading.Thread(target=run, name=_ASIDE, daemon=True).start()
        try:
            with held.let_through():
                ended.wait()
        except BaseException:
            stop()
            raise
    if errors:
        raise errors.pop()
    return results.pop()


_HERE = threading.local()


@contextmanager
def leaving(*events: threading.Event) -> Iterator[None]:
    """Let go what this thread waits for by `result` within a ``with`` block, once an event is set.

    Ctrl-C comes to the main thread only, which sets the event for threads that wait for a server.
    """
    before, _HERE.events = ended_by(), events
    try:
        yield
    finally:
        _HERE.events = before


def ended_by() -> tuple[threading.Event, ...]:
    """The events that end the work of this thread; for threads that do a part of it."""
    events: tuple[threading.Event, ...] = getattr(_HERE, "events", ())
    return events


def heed() -> None:
    """End the work of this thread if it was left; see `leaving`."""
    if any(event.is_set() for event in ended_by()):
        raise KeyboardInterrupt


def result(future: Future[_Result], seconds: float | None = None) -> _Result:
    """Wait for a result, as `Future.result` does, unless the work is left; see `leaving`."""
    step = _STEP if ended_by() else seconds
    until = None if seconds is None else time.monotonic() + seconds
    while not future.done():
        heed()
        if until is not None and time.monotonic() >= until:
            raise TimeoutError
        wait([future], step)
    return future.result()


def left_behind() -> bool:
    """Tell whether a thread that `run_aside` left behind is still at work."""
    return any(thread.name == _ASIDE for thread in threading.enumerate())


def is_interrupt(error: BaseException) -> bool:
    """Tell whether a Ctrl-C is behind an error: what cleans up after one may fail, too."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if isinstance(one, KeyboardInterrupt):
            return True
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            waiting += [one.__cause__, one.__context__]
    return False
