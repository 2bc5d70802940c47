"""Locks: for what forked workers inherit, and between the processes of one machine."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import math
import os
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from packio.errors import CannotCreateError, LockedError

_POLL = 0.05  # seconds between two looks at a lock
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP)  # as of Lustre, mounted without flock


def try_lock(file: int, *, shared: bool = False) -> bool:
    """Lock an open file until it is closed, without waiting; whether nobody else has locked it."""
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold the lock of a file, which is made; threads and processes wait for each other.

    It saves work, it does not protect: where there are no locks, nobody waits. So what is written
    under it must come into its place whole, by a rename. On file systems without locks, as Lustre
    mounted without ``flock``, a file in this machine's temporary folder is locked instead.
    """
    with _opened_and_locked(path) as file:
        try:
            yield
        finally:  # forked processes may have the file open, too
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_UN)


@contextlib.contextmanager
def changing(index: Path) -> Iterator[None]:
    """Lock the index of a pack, if any, while the pack is changed; readers take no lock."""
    descriptor = -1
    for access in (os.O_RDWR, os.O_RDONLY):  # NFS locks only what may be written
        with contextlib.suppress(OSError):
            descriptor = os.open(index, access | os.O_CLOEXEC)
            break
    if descriptor < 0:  # no pack
        yield
        return
    try:
        try:
            is_ours = try_lock(descriptor)
            if not is_ours or os.stat(index).st_ino != os.fstat(descriptor).st_ino:  # replaced
                raise LockedError(
                    f"{index.parent}: another packio is changing it; wait for it to end"
                )
        except LockedError:  # an OSError
            raise
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise CannotCreateError(
                    f"{index}: {error.strerror} while locking it, which keeps others from changing "
                    "the pack meanwhile"
                ) from error
        yield
    finally:
        os.close(descriptor)


def _opened_and_locked(path: Path) -> IO[bytes]:
    """Open the file that a path names, and lock it if that can be had."""
    while True:
        file = path.open("ab")
        try:
            wait_for_lock(file)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    return file
        except OSError:  # no locks on this file system
            file.close()
            return _stand_in(path)
        except BaseException:
            file.close()
            raise
        file.close()  # removed meanwhile: others lock the file that has its name now


def wait_for_lock(file: IO[Any], patience: float = math.inf) -> bool:
    """Lock an open file, or return False: its holder has not touched it for so many seconds."""
    seen, since = -1, time.monotonic()
    while not try_lock(file.fileno()):
        now = os.fstat(file.fileno()).st_mtime_ns
        if now != seen:
            seen, since = now, time.monotonic()
        elif time.monotonic() - since > patience:
            return False
        time.sleep(_POLL)
    return True


def _stand_in(path: Path) -> IO[bytes]:
    """Open a file of this user's in the temporary folder, and lock it in place of another file."""
    name = hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:32]
    place = os.path.join(tempfile.gettempdir(), f"packio-{os.geteuid()}-{name}.lock")
    descriptor = os.open(place, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    file = os.fdopen(descriptor, "r+b")
    with contextlib.suppress(OSError):  # no locks there either: some work is done twice
        wait_for_lock(file)
    return file


class ForkSafeLock:
    """A lock that is free in a forked child, even if a thread of the parent held it at the fork.

    Nobody would ever release it there. It pickles as a new lock.
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

    def take(self) -> bool:
        """Lock it without waiting; whether it was free. Then `give_back` it."""
        return self._lock.acquire(blocking=False)

    def give_back(self) -> None:
        self._lock.release()

    def renew(self) -> None:
        """Be free again; only for a process that was just forked."""
        self._lock = threading.Lock()


_all: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()  # of this process


def _renew_all() -> None:
    for lock in list(_all):
        lock.renew()


os.register_at_fork(after_in_child=_renew_all)


_UNFORKED = threading.RLock()
# The thread that forks holds it in both processes, and no other thread does: both release it.
os.register_at_fork(
    before=_UNFORKED.acquire, after_in_parent=_UNFORKED.release, after_in_child=_UNFORKED.release
)


def block_forks() -> contextlib.AbstractContextManager[Any]:
    """Have forks of this process, and other threads that call this, wait until a block ends.

    For what a forked child could not go on with if another thread was amid it at the fork: locks of
    others, as those that Python holds while it imports a module.
    """
    return _UNFORKED


if TYPE_CHECKING:
    from functools import cached_property as cached_property  # noqa: PLC0414, TID251 (for mypy)
else:

    class cached_property(functools.cached_property):  # noqa: N801, TID251 (as its base)
        """`functools.cached_property` without the lock that it has before Python 3.12.

        All objects of a class share that lock. A thread that holds it when another one forks leaves
        it locked in the child for ever. Without the lock two threads may compute the value twice.
        """

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            """Compute the value and keep it in the object."""
            if instance is None:
                return self
            value = vars(instance)[self.attrname] = self.func(instance)
            return value
