"""The one loop that waits for tasks: those of packing, of adding fields, and of reindexing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from concurrent import futures
from typing import Any, TypeVar

from packio.errors import WorkerDiedError
from packio.system import interrupts
from packio.system.progress import PROGRESS_SECONDS

ATTEMPTS = 3  # at a task whose worker dies

_Task = TypeVar("_Task", bound=tuple[Any, ...])


def run_tasks(
    engine: futures.Executor, function: Callable[..., Any], tasks: Iterable[_Task],
    took: Callable[[_Task, futures.Future[Any]], object], *, most: int | None = None,
    attempts: int = ATTEMPTS, step: Callable[[], object] = bool, stop: Callable[[], object] = bool,
) -> None:  # fmt: skip
    """Call a function with the arguments of each task on an engine; the first error ends all.

    `took` gets a task and its future, in this thread, in the order in which tasks end; the future
    has a `WorkerDiedError` if a worker died at each attempt. At most `most` tasks are with the
    engine at a time. `step` is called about ten times a second, `stop` at an error: it asks tasks
    that run to leave the rest.
    """
    waiting = zip(tasks, itertools.repeat(1))
    running: dict[futures.Future[Any], tuple[_Task, int]] = {}
    try:
        while True:
            room = None if most is None else max(0, most - len(running))
            for task, attempt in itertools.islice(waiting, room):
                running[engine.submit(function, *task)] = task, attempt
            if not running:
                return
            with interrupts.deferred():  # Python leaves locks locked when Ctrl-C ends a wait
                ended, _ = futures.wait(running, PROGRESS_SECONDS, futures.FIRST_COMPLETED)
            for future in ended:
                task, attempt = running.pop(future)
                if attempt < attempts and isinstance(future.exception(), WorkerDiedError):
                    running[engine.submit(function, *task)] = task, attempt + 1
                else:
                    took(task, future)
            step()
    except BaseException:
        stop()
        for future in running:
            future.cancel()
        raise
