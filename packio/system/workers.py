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
import ctypes
import errno
import functools
import gc
import mmap
import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing import connection
from typing import Any

import torch

from packio.errors import SharedMemoryError
from packio.system import memory

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE. Source: madvise(2), Linux 5.14 and newer
_FOLDER = "/dev/shm"  # noqa: S108 (where shm_open makes its files)
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


def new_storage(count: int) -> torch.UntypedStorage:
    """Make uninitialised shared memory whose pages exist at once, which is also 15 % faster.

    If the kernel has no pages left, that is an error now, and no bus error at the first write.
    """
    made: Any = torch.UntypedStorage._new_shared  # noqa: SLF001 (as torch's default_collate)
    try:
        storage: torch.UntypedStorage = made(count)
        if count:
            _reserve(storage, count)
    except (OSError, RuntimeError) as error:  # torch's own is a RuntimeError
        raise SharedMemoryError(_no_room(count)) from error
    return storage


def _reserve(storage: torch.UntypedStorage, count: int) -> None:
    start = storage.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    length = ctypes.c_size_t(storage.data_ptr() + count - start)
    if not libc.madvise(ctypes.c_void_p(start), length, _POPULATE_WRITE):
        return
    number = ctypes.get_errno()
    if number != errno.EINVAL:
        raise OSError(number, os.strerror(number))
    strategy: Any = torch.multiprocessing.get_sharing_strategy
    if strategy() == "file_descriptor":  # an older kernel
        descriptor, size = storage._share_fd_cpu_()
        os.posix_fallocate(descriptor, 0, size)


def _no_room(count: int) -> str:
    usage = shutil.disk_usage(_FOLDER)
    return (
        f"{_FOLDER}: no room for a batch of {count / 1e6:.0f} MB: {usage.free / 1e6:.0f} of "
        f"{usage.total / 1e6:.0f} MB are free; use packio.Loader with num_workers=0, which needs "
        "none, smaller batches, a smaller prefetch_factor, or fewer workers, or make it larger "
        "(docker run --shm-size=8g)"
    )
