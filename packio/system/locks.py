"""Locks: for objects that forked workers inherit, and between the processes of one machine."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold the lock of a file; threads and processes that want the same lock wait for it.

    The file is made if it is not there. Where the file system has no locks, nobody waits.

    Raises:
        OSError: the file cannot be made.
    """
    with path.open("ab") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


class ForkSafeLock:
    """A lock that is free in a forked child, even if a thread of the parent held it at the fork.

    Such a thread does not exist in the child, so nobody would ever release the lock there. It
    pickles as a new lock.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _all.add(self)

    def __reduce__(self) -> tuple[object, ...]:
        return ForkSafeLock, ()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def renew(self) -> None:
        """Be free again; only for a process that was just forked."""
        self._lock = threading.Lock()


_all: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()  # of this process


def _renew_all() -> None:
    for lock in list(_all):
        lock.renew()


os.register_at_fork(after_in_child=_renew_all)
