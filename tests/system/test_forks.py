"""Forks beside threads: what a thread was amid at the fork does not hold up the child."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest

from packio.system import locks

pytestmark = pytest.mark.filterwarnings("ignore:This process .* multi-threaded:DeprecationWarning")


def _in_child(action: Callable[[], object]) -> int:
    """Exit code of a child that runs an action; SIGALRM ends one that hangs."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(60)
            action()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_fork_waits_for_threads_that_are_amid_something() -> None:
    inside, over, seen = threading.Event(), threading.Event(), list[str]()

    def run() -> None:
        with locks.block_forks(), locks.block_forks():
            inside.set()
            over.wait(0.2)  # a fork that does not wait comes first
            seen.append("over")

    thread = threading.Thread(target=run)
    thread.start()
    inside.wait()
    assert _in_child(lambda: seen.index("over")) == 0
    thread.join()


def test_a_thread_may_fork_amid_something_itself() -> None:
    def again() -> None:
        with locks.block_forks():
            pass

    with locks.block_forks():
        assert _in_child(again) == 0
    assert _in_child(again) == 0


class _Counted:
    def __init__(self, inside: threading.Event | None = None) -> None:
        self.inside, self.over, self.times = inside, threading.Event(), 0

    @locks.cached_property
    def value(self) -> int:
        """Wait in the middle, if told to."""
        self.times += 1
        if self.inside is not None:
            self.inside.set()
            self.over.wait()
        return 7


def test_a_child_computes_an_attribute_that_a_thread_was_computing_at_the_fork() -> None:
    slow, quick = _Counted(threading.Event()), _Counted()
    thread = threading.Thread(target=lambda: slow.value)
    thread.start()
    assert slow.inside is not None
    slow.inside.wait()
    code = _in_child(lambda: quick.value)
    slow.over.set()
    thread.join()
    assert code == 0


def test_an_attribute_is_computed_once() -> None:
    counted = _Counted()
    assert (counted.value, counted.value, counted.times) == (7, 7, 1)
