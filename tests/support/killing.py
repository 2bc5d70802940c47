"""An action that is killed just before one of its changes on disk."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_CHANGES = ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "os.truncate")


class ChangeCounter:
    """Counts what a process changes on disk; kills or stops it just before a change."""

    def __init__(self, kill_at: int | None = None, stop_at: int | None = None) -> None:
        self.count, self._kill_at, self._stop_at = 0, kill_at, stop_at

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Hear of an event, as a hook of `sys.addaudithook`."""
        is_write = event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITES
        if event in _CHANGES or (is_write and not str(arguments[0]).startswith("/dev")):
            self.count += 1
            if self.count == self._kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            if self.count == self._stop_at:
                os.kill(os.getpid(), signal.SIGSTOP)


def killed(action: Callable[[], object], at: int) -> bool:
    """Run an action in a child, which is killed before a change on disk, counted from 1.

    Returns:
        Whether the child was killed; False if the action has fewer changes.
    """
    child = os.fork()
    if child == 0:
        status = 1
        try:
            sys.addaudithook(ChangeCounter(kill_at=at))
            action()
            status = 0
        finally:
            os._exit(status)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code != 0


def kill_at_each_step(
    fresh: pathlib.Path,
    run: Callable[[pathlib.Path], object],
    check: Callable[[pathlib.Path, bool], object],
    stride: int = 1,
) -> int:
    """Kill an action at each change that it makes to a copy of a folder, and check what is left.

    Returns:
        How many changes the action makes, to the next multiple of the stride.
    """
    for step in range(1, 10_000, stride):
        place = fresh.with_name(f"step-{step}")
        shutil.copytree(fresh, place)
        was_killed = killed(lambda: run(place), step)  # noqa: B023 (called at once)
        check(place, was_killed)
        shutil.rmtree(place)
        if not was_killed:
            return step - 1
    raise AssertionError
