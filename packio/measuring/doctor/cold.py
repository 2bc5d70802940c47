"""Reading samples cold: from files that the system has been asked to forget."""

from __future__ import annotations

import builtins
import contextlib
import functools
import io
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from packio.measuring.doctor.setups import Setup
from packio.measuring.doctor.watch import Watch, mean


def time_cold(setup: Setup, indices: Sequence[Any], seconds: float) -> float | None:
    """Seconds of storage a sample, once the files are out of the page cache.

    Returns:
        None where there are no files to be found, or the system keeps them.
    """
    with _opened_files() as opened:
        setup.dataset[indices[0]]
    paths = {*opened, *_open_files()}
    for index in indices:  # whose files are opened one by one
        with _opened_files() as opened:
            setup.dataset[index]
        paths |= opened
    dropped = [_dropped(path) for path in paths]
    if not any(dropped):
        return None
    watch = Watch(setup.dataset)
    return mean(watch.run(setup.dataset, indices, seconds)).storage


@contextlib.contextmanager
def _opened_files() -> Iterator[set[str]]:
    """Take note of the files that this process opens meanwhile."""
    found: set[str] = set()

    def noting(opening: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(opening)
        def noted(path: Any, *rest: Any, **options: Any) -> Any:
            if isinstance(path, (str, bytes, os.PathLike)):
                found.add(os.fsdecode(path))
            return opening(path, *rest, **options)

        return noted

    before = builtins.open, io.open, os.open
    builtins.open, io.open, os.open = noting(before[0]), noting(before[1]), noting(before[2])
    try:
        yield found
    finally:
        builtins.open, io.open, os.open = before


def _open_files() -> set[str]:
    """Regular files that are open, but for libraries and logs: those that are only read."""
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                flags = int(Path(f"/proc/self/fdinfo/{name}").read_text().split()[3], 8)
                if flags & os.O_ACCMODE == os.O_RDONLY:
                    found.add(os.readlink(f"/proc/self/fd/{name}"))
    return found


def _dropped(path: str) -> bool:
    """Ask the system to forget a file's pages; tell whether its first one is gone."""
    try:
        if not os.path.isfile(path) or not os.path.getsize(path):
            return False
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False
