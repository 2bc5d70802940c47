"""Engines, which write shards in other processes: each is a `concurrent.futures.Executor`.

``"local"`` starts processes on this machine. ``"ray"`` uses a Ray cluster whose nodes share the
output's file system (`packio.packing.run.cluster`). An executor of the user's, as of mpi4py or
Dask, is taken as it is.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import queue
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from multiprocessing.connection import Connection, Pipe
from typing import Any

from packio import registry
from packio.errors import OptionError, WorkerDiedError
from packio.packing.run import cluster
from packio.system import interrupts, isolation, memory
from packio.system.pools import ThreadPool

_END_SECONDS = 60  # in which a process that has closed its pipe ends
# With -c, Python looks for modules in the current folder first, so sys.path is set before imports.
# Without memory, libraries may wait for ever while they are imported, or when the process ends: so
# memory is watched before they are imported. What else waits for ever, a thread of faulthandler
# ends, which takes neither memory nor the interpreter's lock.
_COMMAND = f"""
import faulthandler, os, sys
told = sys.stderr or open(os.devnull, "w")
faulthandler.dump_traceback_later({isolation.START_SECONDS}, exit=True, file=told)
sys.path[:] = %r
try:
    from packio.system import memory
    memory.watch()
    from packio.packing.run.executors import serve
    serve(%d, %d)
except BaseException as error:
    if isinstance(error, MemoryError) or {registry.NO_MEMORY!r} in str(error):
        os._exit({memory.GONE})
    sys.excepthook(type(error), error, error.__traceback__)
    os._exit(1)
os._exit(0)
"""


@contextlib.contextmanager
def start_engine(engine: str | Executor, workers: int, threads: int = 1) -> Iterator[Executor]:
    """Start an engine; stop it at the end, or at once after an exception.

    One local worker is no process, but so many threads of this process.
    """
    if not isinstance(engine, str):
        yield engine
        return
    name, _, address = engine.partition(":")
    if name not in ("local", "ray"):
        raise OptionError(
            f"engine={engine!r}: expected 'local', 'ray', 'ray:ADDRESS' or an executor"
        )
    if name == "ray":
        with cluster.connect(address or None) as nodes:
            yield nodes
    elif workers <= 1:
        with ThreadPool(threads, "packio-shard") as pool:
            yield pool
    else:
        processes = Processes(workers)
        try:
            yield processes
        finally:
            processes.shutdown(cancel_futures=True)


class Processes(Executor):
    """Processes that run tasks. A process starts when it is needed, and is replaced if it dies.

    Each is a new ``python`` process, not a fork: it has no threads, locks or open files of this
    process, and does not import the program's main module again. It ends when this process ends.
    """

    def __init__(self, count: int) -> None:
        self._threads = ThreadPool(count, "packio-shard")
        self._idle: queue.SimpleQueue[_Worker | None] = queue.SimpleQueue()
        self._all: list[_Worker] = []
        self._closed = False
        for _ in range(count):
            self._idle.put(None)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a function in a process. The function, its arguments and its result are pickled.

        The future has a `WorkerDiedError` if the process dies.
        """
        return self._threads.submit(self._call, fn, args, kwargs)

    def _call(self, *task: Any) -> Any:
        worker = self._idle.get()
        try:
            if worker is None or not worker.alive:
                worker = _Worker()
                self._all.append(worker)
            if self._closed:
                worker.kill()
            return worker.call(task)
        finally:
            self._idle.put(worker)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes: after their tasks, or at once if futures are cancelled."""
        self._closed = cancel_futures
        if not cancel_futures:
            self._threads.shutdown(wait=wait)
        with interrupts.DeferInterrupts():
            for worker in list(self._all):
                worker.kill()
        self._threads.shutdown(wait=wait, cancel_futures=cancel_futures)


class _Worker:
    def __init__(self) -> None:
        self._line, theirs = Pipe()
        # The process inherits the block: so Ctrl-C during its start makes no traceback there; the
        # parent ends the process.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with theirs:
                self._process = subprocess.Popen(  # noqa: S603 (our own interpreter, our own code)
                    [sys.executable, "-c", _COMMAND % (sys.path, theirs.fileno(), os.getpid())],
                    stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
                )  # fmt: skip
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def call(self, task: tuple[Any, ...]) -> Any:
        try:
            self._line.send(task)
            good, value = self._line.recv()
        except (EOFError, OSError) as error:
            raise WorkerDiedError(f"a process that writes shards died ({self._end()})") from error
        if not good:
            raise value
        return value

    def _end(self) -> str:
        """Wait for the end of a process that has closed its pipe; say how it ended."""
        try:
            code = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            return "it did not end by itself, perhaps for lack of memory"
        if code >= 0:
            return "for lack of memory" if code == memory.GONE else f"exit code {code}"
        name = signal.Signals(-code).name if -code in signal.valid_signals() else str(-code)
        return f"{name}, perhaps for lack of memory" if -code == signal.SIGKILL else name

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            self._process.kill()
        self._process.wait()


def serve(descriptor: int, parent: int) -> None:
    """Run tasks in a process of `Processes`, until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all; the parent decides
    if not isolation.end_with(parent):
        return
    faulthandler.cancel_dump_traceback_later()
    line = Connection(descriptor)
    with contextlib.suppress(EOFError, OSError):
        while True:
            good, value = outcome(*line.recv())
            if isinstance(value, WorkerDiedError):  # memory ran out; a new process has it again
                os._exit(memory.GONE)
            line.send((good, value))


def outcome(function: Callable[..., Any], args: Any, kwargs: Any) -> tuple[bool, Any]:
    """Call a function; return whether it succeeded, and its result or its exception."""
    try:
        return True, function(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 (it is raised where the task was submitted)
        if memory.ran_out(error):
            return False, WorkerDiedError("a process that writes shards ran out of memory")
        return False, error
