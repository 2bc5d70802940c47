"""Step 1b, cold storage: read samples whose files were dropped from the page cache."""

from __future__ import annotations

import builtins
import contextlib
import functools
import io
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from packio.measuring.doctor.samples import SampleTimer, mean
from packio.measuring.doctor.setups import Setup


def time_cold(setup: Setup, indices: Sequence[Any], seconds: float) -> float | None:
    """Measure the seconds of storage of a sample whose files are not in the page cache.

    Returns:
        Seconds; None if no files are found, the system keeps them in the cache, or a sample takes
        longer than the time is.
    """
    began = time.monotonic()
    with _opened_files() as opened:
        setup.dataset[indices[0]]
    if time.monotonic() - began > seconds / 4:
        return None
    paths = {*opened, *_open_files()}
    until, looked_at = time.monotonic() + seconds / 2, 0
    for index in indices:  # a dataset may open a file for each sample
        with _opened_files() as opened:
            setup.dataset[index]
        paths |= opened
        looked_at += 1
        if time.monotonic() > until:
            break
    dropped = [_dropped(path) for path in paths]
    if not any(dropped):
        return None
    return mean(SampleTimer(setup.dataset).run(indices[:looked_at], seconds / 2)).storage


@contextlib.contextmanager
def _opened_files() -> Iterator[set[str]]:
    """Note the files that this process opens meanwhile."""
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
    """List the files that are open for reading only: not logs, which are written."""
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                flags = int(Path(f"/proc/self/fdinfo/{name}").read_text().split()[3], 8)
                if flags & os.O_ACCMODE == os.O_RDONLY:
                    found.add(os.readlink(f"/proc/self/fd/{name}"))
    return found


def _dropped(path: str) -> bool:
    """Ask the system to drop the pages of a file; tell whether the first page is gone."""
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
