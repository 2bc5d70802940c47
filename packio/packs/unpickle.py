"""A pack that arrives in another process, where it is opened again."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any, NoReturn

from packio.errors import PackioError


class FailedPack:
    """Stands for a pack that cannot be opened in a worker: whoever uses it gets the error.

    An error while a worker starts would end the worker, and torch would only say "exited
    unexpectedly". So the error waits until the worker is asked for a batch.
    """

    def __init__(self, error: PackioError) -> None:
        self._error = error

    def __getattr__(self, name: str) -> NoReturn:
        raise self._error

    def __len__(self) -> NoReturn:
        raise self._error

    def __getitem__(self, index: object) -> NoReturn:
        raise self._error


def open_pickled(open_pack: Callable[[Any], Any], path: Any) -> Any:
    """Open a pack that was pickled; in a process that is just starting, errors wait."""
    try:
        return open_pack(path)
    except PackioError as error:
        # multiprocessing sets it while a process that it spawned unpickles what it was given.
        if not getattr(multiprocessing.current_process(), "_inheriting", False):
            raise
        return FailedPack(error)
