"""Pools of threads that say so where there is no memory for a thread, rather than wait for ever."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import (
    Future,
    ThreadPoolExecutor,  # noqa: TID251 (this is where it is made safe)
)
from typing import ParamSpec, TypeVar

from packio.system import memory

_THREAD = 12 << 20  # bytes: a thread's stack, 8 MiB on Linux, and what Python allots to it
_P = ParamSpec("_P")
_T = TypeVar("_T")


class ThreadPool(ThreadPoolExecutor):
    """A `ThreadPoolExecutor` for a process whose memory is limited.

    In CPython, who starts a thread that finds no memory for its first step waits for it for ever.
    """

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Call a function in a thread.

        Raises:
            MemoryError: there is no room for a thread.
        """
        memory.require(_THREAD)
        return super().submit(fn, *args, **kwargs)
