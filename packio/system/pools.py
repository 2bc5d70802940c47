"""Pools of threads that raise an error if there is no memory for a thread, instead of hanging."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import (
    Future,
    ThreadPoolExecutor,  # noqa: TID251 (this is where it is made safe)
)
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from packio.system import interrupts, memory

_STEP = 0.1  # seconds between two looks whether Ctrl-C has come
_P = ParamSpec("_P")
_T = TypeVar("_T")
_Item = TypeVar("_Item")


class ThreadPool(ThreadPoolExecutor):
    """A `ThreadPoolExecutor` for a process whose memory is limited and that Ctrl-C may end.

    Ctrl-C waits until a thread that starts is known to the pool, and until threads that are joined
    have ended. A ``with`` block that ends by an exception cancels what has not begun.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._left = threading.Event()

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Call a function in a thread."""
        memory.require_thread()
        events = self._left, *interrupts.ended_by()

        def work() -> _T:
            with interrupts.leaving(*events):
                return fn(*args, **kwargs)

        with interrupts.deferred():
            return super().submit(work)

    def map_ahead(
        self, fn: Callable[[_Item], _T], items: Iterable[_Item], most: int
    ) -> Iterator[_T]:
        """Call a function of each item, at most so many before they are asked for, in order."""
        waiting: deque[Future[_T]] = deque()
        for item in items:
            waiting.append(self.submit(fn, item))
            if len(waiting) >= most:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads once they have done what was submitted.

        After a Ctrl-C they only end what they have begun; a second Ctrl-C does not wait for that.
        """
        with interrupts.deferred() as held:
            self._end(cancel_futures=cancel_futures)
            before = held.count
            for thread in list(self._threads) if wait else ():
                while thread.is_alive() and held.count <= before + 1:
                    thread.join(_STEP)
                    if held.count > before and not cancel_futures:
                        cancel_futures = True
                        self._end(cancel_futures=True)

    def _end(self, *, cancel_futures: bool) -> None:
        if cancel_futures:
            self._left.set()
        super().shutdown(wait=False, cancel_futures=cancel_futures)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown(cancel_futures=kind is not None)


class DaemonPool:
    """Threads that call functions in the order in which they were submitted.

    The threads start when they are needed. The process may end while they work, so they are for
    work whose result nobody waits for at the end, as reading.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = self._waiting = 0  # waiting: calls, less the threads that are free

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Call a function in a thread."""
        future: Future[_T] = Future()
        with self._lock:
            self._waiting += 1
            if self._waiting > 0 and self._threads < self._most:
                self._start()
        self._work.put(lambda: _call(future, fn, *args, **kwargs))
        return future

    def _start(self) -> None:
        try:
            memory.require_thread()
            with interrupts.deferred():
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
        except (MemoryError, RuntimeError) as error:  # "can't start new thread"
            if not self._threads:
                self._waiting -= 1
                raise MemoryError(f"no room for a thread: {error}") from error
            return
        self._threads += 1
        self._waiting -= 1

    def _run(self) -> None:
        while True:
            self._work.get()()
            with self._lock:
                self._waiting -= 1


def _call(future: Future[_T], fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = fn(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001 (for who waits)
        future.set_exception(error)
    else:
        future.set_result(result)
