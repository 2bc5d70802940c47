"""Threads that decode a batch, and keep the threads of other libraries out of their way."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import wait
from typing import Any, TypeVar

import torch

from packio.errors import OptionError
from packio.system import interrupts, processors
from packio.system.locks import ForkSafeLock
from packio.system.pools import ThreadPool

_Slot = TypeVar("_Slot")
_STEP = 0.1  # seconds between two looks whether Ctrl-C has come


class Threads:
    """Threads that decode, made anew in each process that uses them."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: ThreadPool | None = None
        self._process = 0

    def __reduce__(self) -> tuple[object, ...]:
        return Threads, (self.count,)

    def run(self, work: Callable[[Iterable[_Slot]], None], slots: Sequence[_Slot]) -> None:
        """Call ``work`` in each thread; they share an iterator. An error is raised once all end."""
        pool = self._started()
        source = iter(list(slots))  # a list iterator: two threads never get the same slot
        left = threading.Event()
        events = left, *interrupts.ended_by()

        def part() -> None:
            with interrupts.leaving(*events):
                work(source)

        futures = []
        with interrupts.DeferInterrupts() as held:  # nobody works on a batch that is given up
            try:
                for _ in range(min(self.count, len(slots))):
                    futures.append(pool.submit(part))  # noqa: PERF401 (what was begun must end)
                while wait(futures, _STEP).not_done:
                    if held.count:
                        left.set()
                    if any(event.is_set() for event in events):
                        deque(source, maxlen=0)  # begin no other slot
            except BaseException:  # of another signal's handler, or no memory for a thread
                left.set()
                deque(source, maxlen=0)
                wait(futures)
                raise
        for future in futures:
            future.result()

    def _started(self) -> ThreadPool:
        if self._pool is not None and self._process == os.getpid():
            return self._pool
        with interrupts.DeferInterrupts(), _STARTING:  # two threads may use a dataset at once
            if self._pool is None or self._process != os.getpid():  # a fork has no threads
                self._pool, self._process = _new_pool(self.count), os.getpid()
            return self._pool


_STARTING = ForkSafeLock()  # one at a time: torch's number of threads is the whole process's


def _new_pool(count: int) -> ThreadPool:
    """Start a pool with all its threads."""
    pool = ThreadPool(count, "packio-decode", initializer=_without_torchs_threads)
    ours = torch.get_num_threads()
    meeting = threading.Barrier(count)  # so that all of them start here
    try:
        for future in [pool.submit(meeting.wait) for _ in range(count)]:
            future.result()
    except BaseException:  # no memory for a thread: those that started must not wait for it
        meeting.abort()
        pool.shutdown(wait=False)
        raise
    finally:
        torch.set_num_threads(ours)  # the initialisers changed the default of new threads
    return pool


def _without_torchs_threads() -> None:
    torch.set_num_threads(1)
    torch.get_num_threads()  # settles it for this thread: else it takes the default when it asks


def each(
    work: Callable[[Iterable[_Slot]], None], slots: Sequence[_Slot], threads: Threads | None
) -> None:
    """Call ``work`` with all slots; if there are several slots and threads, as `Threads.run`."""
    with alone():
        if threads is None or len(slots) == 1:
            work(slots)
        else:
            threads.run(work, slots)


def check_threads(count: object) -> None:
    if count != "auto" and (type(count) is not int or count < 1):
        raise OptionError(f"threads={count!r}: expected 'auto' or an int of at least 1")


def automatic_threads() -> int:
    """Threads for "auto": this process's processors, shared by the DataLoader's workers."""
    info = torch.utils.data.get_worker_info()
    return processors.share(info.num_workers if info is not None else 1)


class _OpenCV:
    """OpenCV's own threads, whose number is one for the whole process."""

    def __init__(self) -> None:
        self._lock, self._users, self._before = ForkSafeLock(), 0, 1

    def reset(self) -> None:
        """Forget the batches of other threads, which a process that was just forked has not."""
        self._users, self._before = 0, 1

    def enter(self, cv2: Any) -> None:
        """Count one more batch; the first one makes OpenCV keep to the calling thread."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._before = cv2.getNumThreads()
                cv2.setNumThreads(1)

    def leave(self, cv2: Any) -> None:
        """Count one batch less; after the last one OpenCV has as many threads as before."""
        with self._lock:
            self._users -= 1
            if not self._users:
                cv2.setNumThreads(self._before)


_OPENCV = _OpenCV()
os.register_at_fork(after_in_child=_OPENCV.reset)


class alone:  # noqa: N801 (used as a function; contextlib's would take six calls more)
    """Keep torch and OpenCV to the calling thread, within a ``with`` block: 0.5 µs; OpenCV 20 µs.

    On a busy machine, threads for an image wait milliseconds for each other.
    """

    __slots__ = ("_cv2", "_threads")

    def __enter__(self) -> None:
        self._cv2, self._threads = sys.modules.get("cv2"), torch.get_num_threads()
        if self._cv2 is not None:
            if hasattr(self._cv2, "setNumThreads"):
                _OPENCV.enter(self._cv2)
            else:  # another thread is importing it
                self._cv2 = None
        if self._threads > 1:
            torch.set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        if self._threads > 1:
            torch.set_num_threads(self._threads)
        if self._cv2 is not None:
            _OPENCV.leave(self._cv2)
