"""A DataLoader's worker: it ends when its parent is killed, and goes on sharing memory with it.

A worker of torch's looks every 5 seconds whether it has got another parent. One that forkserver
started never does: its parent is the server, which ends only after its workers. Nor does one look
that cannot hand over what it has made, and waits at its end for somebody to take it.

What a forked worker has of its parent's memory is copied where it writes. Python's garbage
collector writes to every object that it looks at: within an epoch of a million samples, four
workers had 110 MB more because of that.
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

_PATIENCE = 3  # seconds in which a worker can clean up


def settle() -> None:
    """If this process is a worker, have it end when its parent does, whatever ends that.

    It ends as Ctrl-C ends it, so that it cleans up; where that takes too long, at once. And what it
    has now is left alone by its garbage collector.
    """
    if torch.utils.data.get_worker_info() is not None:
        _settle(os.getpid())


def begin(init: Callable[[int], None] | None, worker: int) -> None:
    """Begin a worker: see `settle`; then do what the user wants done.

    Args:
        init: The user's ``worker_init_fn``.
        worker: Number of the worker.
    """
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
        threading.Thread(target=_follow, args=(signs,), name="packio-parent", daemon=True).start()


def _follow(signs: list[int]) -> None:
    connection.wait(signs)
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    time.sleep(_PATIENCE)
    os._exit(1)
