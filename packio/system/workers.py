"""A DataLoader's worker: it ends when its parent is killed, and shares the parent's memory.

A worker of torch checks every 5 seconds whether its parent has changed. A worker that forkserver
started never sees a change: its parent is the server, which ends after its workers. A worker that
is blocked on a full queue does not check at all.

A forked worker copies the parent's memory where it writes to it. Python's garbage collector writes
to every object that it looks at: within an epoch of a million samples, four workers took 110 MB
more because of that.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing import connection

import torch

from packio.system import memory

_PATIENCE = 3  # seconds in which a worker can clean up


def settle() -> None:
    """If this process is a worker, make it end when its parent ends, for whatever reason.

    It ends as Ctrl-C would end it, so that it cleans up, and after 3 seconds at once. Python's
    garbage collector leaves alone all objects that the worker has now.
    """
    if torch.utils.data.get_worker_info() is not None:
        _settle(os.getpid())


def begin(init: Callable[[int], None] | None, worker: int) -> None:
    """Begin a worker: `settle`, then call the user's function."""
    settle()
    if init is not None:
        init(worker)


@functools.cache  # once a process: those forked from it do not have its threads
def _settle(_process: int) -> None:
    gc.freeze()
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        signs = [parent.sentinel]
        with contextlib.suppress(OSError):  # it has just ended, or Linux is older than 5.3
            # whoever forks from the parent holds the other end of the sentinel as well
            signs.append(os.pidfd_open(parent.pid))
        memory.require_thread()
        threading.Thread(target=_follow, args=(signs,), name="packio-parent", daemon=True).start()


def _follow(signs: list[int]) -> None:
    connection.wait(signs)
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    time.sleep(_PATIENCE)
    os._exit(1)
