"""Threads that decode: they start once, whoever asks first."""

from __future__ import annotations

import concurrent.futures
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from packio.system import pools
from packio.system import threads as threads_module
from packio.system.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Iterable


def test_two_threads_that_use_them_first_at_once_both_get_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[object] = []
    two_made = threading.Event()

    class Pool(pools.ThreadPool):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            made.append(self)
            if len(made) > 1:
                two_made.set()
            two_made.wait(0.3)  # where nothing keeps them apart, both get here

    monkeypatch.setattr(threads_module, "ThreadPool", Pool)
    threads = Threads(3)
    done: list[int] = []
    with ThreadPoolExecutor(2) as users:
        running = [users.submit(threads.run, done.extend, range(5)) for _ in range(2)]
        for future in running:
            future.result(timeout=600)
    assert sorted(done) == sorted([*range(5), *range(5)])
    assert len(made) == 1


def test_nothing_is_at_work_once_an_error_of_the_waiting_thread_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began, ended = list[int](), list[int]()
    both, go_on = threading.Barrier(3), threading.Event()
    wait = concurrent.futures.wait

    def interrupted(*_: Any) -> Any:  # as by a handler of SIGALRM that raises
        both.wait()
        monkeypatch.setattr(threads_module, "wait", wait)
        threading.Timer(0.1, go_on.set).start()
        raise TimeoutError

    def work(slots: Iterable[int]) -> None:
        for slot in slots:
            began.append(slot)
            if slot < 2:
                both.wait()
            go_on.wait()
            ended.append(slot)

    monkeypatch.setattr(threads_module, "wait", interrupted)
    with pytest.raises(TimeoutError):
        Threads(2).run(work, range(50))
    assert sorted(began) == sorted(ended) == [0, 1]
