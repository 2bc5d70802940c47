"""Threads that decode: they start once, whoever asks first."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from packio.system import pools
from packio.system import threads as threads_module
from packio.system.threads import Threads

if TYPE_CHECKING:
    import pytest


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
