"""Tasks of one run, carried out by threads or processes, and their progress."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

from packio.packing.run import executors
from packio.system.pools import ThreadPool
from packio.system.progress import PROGRESS_SECONDS, Progress, ProgressCallback
from packio.system.tasks import run_tasks

THREADS = 4  # that read files in this process
_T = TypeVar("_T")


class Carrier:
    """Carries tasks out.

    Args:
        workers: Processes, 0 for this one.
        progress: Callback, or None.
        began: Time when the run began, by `time.monotonic`.
    """

    def __init__(self, workers: int, progress: ProgressCallback | None, began: float) -> None:
        self._workers, self._progress, self._began = workers, progress, began
        self._called, self._stopped = -math.inf, threading.Event()

    @property
    def stopped(self) -> bool:
        """Whether tasks in this process are to leave the rest: one has failed, or Ctrl-C came."""
        return self._stopped.is_set()

    def run(
        self, function: Callable[[Any], _T], tasks: Sequence[Any], done: int, total: int,
        stage: str, took: Callable[[_T], int], made: Callable[[], int] = int, *, threads: int = 1,
    ) -> None:  # fmt: skip
        """Run tasks, and report the progress meanwhile. The first error ends all.

        Args:
            function: Carries one task out.
            tasks: What to do.
            done: Samples that are done before.
            total: Samples in all.
            stage: Name of the work, for the progress.
            took: Takes what a task made, and returns the number of its samples.
            made: Returns how many samples are done, those of unfinished tasks included.
            threads: Of this process, unless there are workers.
        """

        def count(_: tuple[Any], future: Future[_T]) -> None:
            nonlocal done
            done += took(future.result())

        with self._engine(min(self._workers, len(tasks)), threads) as engine:
            run_tasks(
                engine, function, ((task,) for task in tasks), count,
                most=2 * max(self._workers, THREADS), attempts=1,
                step=lambda: self._tell(max(done, made()), total, stage), stop=self._stopped.set,
            )  # fmt: skip

    @contextlib.contextmanager
    def _engine(self, workers: int, threads: int) -> Iterator[Executor]:
        if workers > 1:
            with executors.started("local", workers) as engine:
                yield engine
        else:
            with ThreadPool(threads, "packio-field") as pool:
                yield pool

    def _tell(self, done: int, total: int, stage: str) -> None:
        now = time.monotonic()
        if self._progress is None or (done < total and now - self._called < PROGRESS_SECONDS):
            return
        self._called = now
        self._progress(Progress(done, total, 0, 0, 0, now - self._began, stage))
