"""Locks for objects that DataLoader's forked workers inherit."""

from __future__ import annotations

import os
import threading
import weakref


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
