"""`packio.prefetch`: items made ahead, errors where they belong, and no thread left behind."""

from __future__ import annotations

import gc
import itertools
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, cast

import pytest

import packio
from packio.errors import OptionError
from packio.loading import prefetching
from packio.system import interrupts


def _threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "packio-prefetch"]


class _Closing:
    """Counts without end, and tells whether it was closed."""

    def __init__(self) -> None:
        self.made, self.closed = 0, threading.Event()

    def __iter__(self) -> Iterator[int]:
        try:
            for self.made in itertools.count():
                yield self.made
        finally:
            self.closed.set()


@pytest.mark.parametrize("n", [1, 2, 50])
def test_items_come_in_order_and_the_thread_ends(n: int) -> None:
    ahead = packio.prefetch(iter(range(20)), n)
    assert list(ahead) == list(range(20))
    assert _threads() == []
    assert list(ahead) == []


@pytest.mark.parametrize("n", [1, 3])
def test_no_more_than_n_wait(n: int) -> None:
    source = _Closing()
    with packio.prefetch(source, n) as ahead:
        seen = [source.made - item for item in itertools.islice(ahead, 30)]
    assert max(seen) <= n + 1
    assert source.closed.is_set()
    assert _threads() == []


def _breaks() -> Iterator[int]:
    yield 1
    raise ValueError("at two")


def test_an_error_comes_in_its_place_with_its_traceback() -> None:
    ahead = packio.prefetch(_breaks(), 5)
    assert next(ahead) == 1
    with pytest.raises(ValueError, match="at two") as caught:
        next(ahead)
    assert "_breaks" in "".join(traceback.format_tb(caught.value.__traceback__))
    assert _threads() == []
    with pytest.raises(StopIteration):
        next(ahead)


def test_what_is_no_iterable_says_so() -> None:
    with pytest.raises(TypeError, match="not iterable"):
        next(packio.prefetch(cast("Any", 3)))
    assert _threads() == []


def test_nothing_ahead_cannot_be_meant() -> None:
    with pytest.raises(OptionError, match="n=0"):
        packio.prefetch([], 0)


@pytest.mark.parametrize("way", ["close", "leave", "forget", "raise"])
def test_it_ends_however_it_is_left(way: str) -> None:
    source = _Closing()
    ahead = packio.prefetch(source)
    assert next(ahead) == 0
    if way == "close":
        ahead.close()
    elif way == "leave":
        with ahead:
            pass
    elif way == "raise":
        with pytest.raises(KeyError), ahead:
            raise KeyError
    del ahead
    gc.collect()
    assert source.closed.wait(10)
    assert _threads() == []


@pytest.mark.parametrize("end", ["", "raise SystemExit(3)", "1 / 0"])
def test_the_interpreter_ends_with_one_running(end: str) -> None:
    code = f"import itertools, packio\nkept = packio.prefetch(itertools.count())\nnext(kept)\n{end}"
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, timeout=600, capture_output=True, text=True
    )
    assert done.returncode == {"": 0, "raise SystemExit(3)": 3, "1 / 0": 1}[end]
    assert ("ZeroDivisionError" in done.stderr) == (end == "1 / 0")


def test_many_left_midway_leave_nothing() -> None:
    for _ in range(300):
        next(packio.prefetch(itertools.count(), 3))
    gc.collect()
    assert _threads() == []


def test_ctrl_c_does_not_wait_for_an_item_that_waits_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prefetching, "_PATIENCE", 0.1)
    answered = threading.Event()

    def items() -> Iterator[int]:
        yield 1
        answered.wait(600)
        yield 2

    here = threading.main_thread().ident
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # main() sets another one
    try:
        with packio.prefetch(items()) as ahead:
            assert next(ahead) == 1
            threading.Timer(0.3, signal.pthread_kill, [here, signal.SIGINT]).start()
            with pytest.raises(KeyboardInterrupt):
                next(ahead)
    finally:
        signal.signal(signal.SIGINT, before)
    (left,) = _threads()
    answered.set()
    left.join(60)
    assert _threads() == []


def test_closing_does_not_wait_for_an_answer() -> None:
    never: Future[int] = Future()

    def items() -> Iterator[int]:
        yield 1
        yield interrupts.result(never)

    with packio.prefetch(items()) as ahead:
        assert next(ahead) == 1
    assert _threads() == []
