"""Pools of threads that raise an error if there is no memory for a thread, instead of hanging."""

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

    In CPython, starting a thread hangs for ever if there is no memory for the thread's first step.
    """

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Call a function in a thread.

        Raises:
            MemoryError: there is no room for a thread.
        """
        memory.require(_THREAD)
        return super().submit(fn, *args, **kwargs)
