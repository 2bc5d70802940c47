"""Pools of threads, and the loop that waits for tasks of any pool.

The pools raise an error if there is no memory for a thread, instead of hanging.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    Executor,
    Future,
    ThreadPoolExecutor,  # noqa: TID251 (this is where it is made safe)
    wait,
)
from typing import Any, ParamSpec, TypeVar

from packio.errors import WorkerDiedError
from packio.system import interrupts, memory
from packio.system.progress import PROGRESS_SECONDS

ATTEMPTS = 3  # at a task whose worker dies

_STEP = 0.1  # seconds between two looks whether Ctrl-C has come
_P = ParamSpec("_P")
_T = TypeVar("_T")
_Item = TypeVar("_Item")
_Task = TypeVar("_Task", bound=tuple[Any, ...])


class ThreadPool(ThreadPoolExecutor):
    """A `ThreadPoolExecutor` for a process whose memory is limited and that Ctrl-C may end.

    Ctrl-C waits until threads that start are known to the pool, and until those joined have ended.
    A ``with`` block that ends by an exception cancels what has not begun.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._left = threading.Event()

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        memory.require_thread()
        events = self._left, *interrupts.ended_by()

        def work() -> _T:
            with interrupts.leaving(*events):
                return fn(*args, **kwargs)

        with interrupts.DeferInterrupts():
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
        with interrupts.DeferInterrupts() as held:
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

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.shutdown(cancel_futures=kind is not None)


class DaemonPool:
    """Threads, started when needed, for work that the end of the process may cut off."""

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = self._waiting = 0  # waiting: calls, less the threads that are free

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
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
            with interrupts.DeferInterrupts():
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


def run_tasks(
    engine: Executor, function: Callable[..., Any], tasks: Iterable[_Task],
    took: Callable[[_Task, Future[Any]], object], *, most: int | None = None,
    attempts: int = ATTEMPTS, step: Callable[[], object] = bool, stop: Callable[[], object] = bool,
) -> None:  # fmt: skip
    """Call a function with the arguments of each task on an engine; the first error ends all.

    `took` gets a task and its future, in this thread, as tasks end; the future has a
    `WorkerDiedError` if a worker died at each attempt. At most `most` tasks are with the engine at
    a time. `step` is called ten times a second, `stop` at an error: running tasks leave the rest.
    """
    waiting, looked = zip(tasks, itertools.repeat(1)), time.monotonic()
    running: dict[Future[Any], tuple[_Task, int]] = {}
    try:
        while True:
            room = None if most is None else max(0, most - len(running))
            for task, attempt in itertools.islice(waiting, room):
                running[engine.submit(function, *task)] = task, attempt
            if not running:
                return
            with interrupts.DeferInterrupts():  # Python leaves locks locked when Ctrl-C ends a wait
                ended, _ = wait(running, PROGRESS_SECONDS, FIRST_COMPLETED)
            for future in ended:
                task, attempt = running.pop(future)
                if attempt < attempts and isinstance(future.exception(), WorkerDiedError):
                    running[engine.submit(function, *task)] = task, attempt + 1
                else:
                    took(task, future)
            if not running or time.monotonic() - looked >= PROGRESS_SECONDS:
                looked = time.monotonic()
                step()
    except BaseException:
        stop()
        for future in running:
            future.cancel()
        raise
