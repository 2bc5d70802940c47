"""Locks: for what forked workers inherit, and between the processes of one machine."""

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


class _Forks:
    """Makes forks wait for the threads that are within `unforked`."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Forget all threads; only for a process that was just forked."""
        self._changed = threading.Condition()
        self._inside = self._forking = 0  # threads
        self._mine = threading.local()

    @contextlib.contextmanager
    def wait(self) -> Iterator[None]:
        """See `unforked`."""
        depth = getattr(self._mine, "depth", 0)
        if not depth:
            with self._changed:
                while self._forking:
                    self._changed.wait()
                self._inside += 1
        self._mine.depth = depth + 1
        try:
            yield
        finally:
            self._mine.depth = depth
            if not depth:
                with self._changed:
                    self._inside -= 1
                    self._changed.notify_all()

    def before(self) -> None:
        """Wait until the other threads are outside, and keep them there."""
        mine = getattr(self._mine, "depth", 0) > 0
        with self._changed:
            self._forking += 1
            while self._inside > mine:
                self._changed.wait()

    def after(self) -> None:
        """Let the other threads go on."""
        with self._changed:
            self._forking -= 1
            self._changed.notify_all()


_FORKS = _Forks()
os.register_at_fork(before=_FORKS.before, after_in_parent=_FORKS.after, after_in_child=_FORKS.renew)


def unforked() -> contextlib.AbstractContextManager[None]:
    """Have forks of this process wait until a ``with`` block ends.

    For what a forked child could not go on with if another thread was amid it at the fork: locks of
    others, as those that Python holds while it imports a module. 2 µs.
    """
    return _FORKS.wait()
