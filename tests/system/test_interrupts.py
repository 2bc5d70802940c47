"""Ctrl-C: held back where it would tear something apart, and found behind other errors."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING

import pytest

from packio.system import interrupts
from packio.system.pools import ThreadPool
from packio.system.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


@pytest.fixture(autouse=True)
def heeded() -> Iterator[None]:
    """These tests heed Ctrl-C, though a shell has what it runs in the background ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_it_is_raised_when_the_block_ends() -> None:
    steps = []
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 (where it is raised is what is tested)
        with interrupts.DeferInterrupts() as held:
            _ctrl_c()
            steps.append(held.count)
        steps.append(2)
    assert steps == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_block_without_it_ends_quietly() -> None:
    with interrupts.DeferInterrupts() as held:
        assert signal.getsignal(signal.SIGINT) is held
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_outer_of_two_blocks_raises_it() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), interrupts.DeferInterrupts():  # noqa: PT012 (as above)
        with interrupts.DeferInterrupts():
            _ctrl_c()
        done.append(True)
    assert done


def test_it_comes_with_the_error_of_the_block() -> None:
    with pytest.raises(KeyboardInterrupt) as raised, interrupts.DeferInterrupts():  # noqa: PT012 (as above)
        _ctrl_c()
        raise OSError
    assert isinstance(raised.value.__context__, OSError)


def test_a_handler_of_the_program_is_called() -> None:
    told: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: told.append(number))
    with interrupts.DeferInterrupts():
        _ctrl_c()
        assert not told
    assert told == [signal.SIGINT]


def test_it_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interrupts.DeferInterrupts():
        _ctrl_c()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_other_threads_hold_nothing_back() -> None:
    found: list[object] = []

    def look() -> None:
        with interrupts.DeferInterrupts():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]


def test_one_that_came_before_ends_what_heeds_it() -> None:
    with interrupts.DeferInterrupts() as held:
        _ctrl_c()
        with pytest.raises(KeyboardInterrupt), held.let_through():
            pytest.fail("the block has begun")
        with pytest.raises(KeyboardInterrupt), held.let_through():
            _ctrl_c()
        _ctrl_c()
        assert held.count == 1
        held.count = 0


def test_it_is_found_behind_other_errors() -> None:
    def cleaning_up_fails() -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise OSError("full")

    with pytest.raises(OSError, match="full") as raised:
        cleaning_up_fails()
    assert interrupts.is_interrupt(raised.value)
    told = ValueError()
    told.__cause__ = raised.value
    assert interrupts.is_interrupt(told)


def test_it_is_not_found_where_there_was_none() -> None:
    one, two = ValueError(), ValueError()
    one.__context__, two.__context__ = two, one
    assert not interrupts.is_interrupt(one)


def test_a_pool_knows_a_thread_that_ctrl_c_saw_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    start, begun, ended = threading.Thread.start, threading.Event(), threading.Event()

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        begun.wait()
        _ctrl_c()

    def work() -> None:
        begun.set()
        time.sleep(0.1)
        ended.set()

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt), ThreadPool(1) as pool:
        pool.submit(work)
    assert ended.is_set()


class _Busy:
    """A pool of one thread that works until it is told to stop, and has two calls more to make.

    Args:
        then: What to do once the pool shuts down and Ctrl-C has cancelled the two calls.
    """

    def __init__(self, then: Callable[[threading.Event], None]) -> None:
        self.begun, self.stop, self.done = threading.Event(), threading.Event(), list[int]()
        self._then, self._pool = then, ThreadPool(1)
        self._pool.submit(self._work)
        self._later = [self._pool.submit(self.done.append, i) for i in (1, 2)]
        self.begun.wait()

    def _work(self) -> None:
        self.begun.set()
        self.stop.wait()
        self.done.append(0)

    def _interrupt(self) -> None:
        while not self._pool._shutdown:  # so Ctrl-C is held back
            time.sleep(0.001)
        _ctrl_c()
        while not all(future.cancelled() for future in self._later):
            time.sleep(0.001)
        self._then(self.stop)

    def shut_down(self) -> None:
        other = threading.Thread(target=self._interrupt, daemon=True)
        other.start()
        try:
            self._pool.shutdown()
        finally:
            other.join()


def test_a_pool_ends_what_it_has_begun_and_nothing_else() -> None:
    busy = _Busy(threading.Event.set)
    with pytest.raises(KeyboardInterrupt):
        busy.shut_down()
    assert busy.done == [0]


def test_a_second_one_does_not_wait_for_a_thread_that_hangs() -> None:
    busy = _Busy(lambda _: _ctrl_c())
    with pytest.raises(KeyboardInterrupt):
        busy.shut_down()
    assert busy.done == []
    busy.stop.set()


def test_a_block_that_fails_leaves_what_has_not_begun() -> None:
    begun, went = threading.Event(), threading.Event()

    def first() -> None:
        begun.set()
        went.wait()

    with pytest.raises(ZeroDivisionError), ThreadPool(1) as pool:  # noqa: PT012 (several steps)
        pool.submit(first)
        later = pool.submit(first)
        begun.wait()
        threading.Timer(0.01, went.set).start()
        _ = 1 / 0
    assert later.cancelled()


def test_nobody_works_on_a_batch_that_is_given_up() -> None:
    threads, began, ended = Threads(2), [], []
    both = threading.Barrier(2)

    def work(slots: Iterable[int]) -> None:
        for slot in slots:
            began.append(slot)
            if slot < 2:
                both.wait()
            if slot == 0:
                _ctrl_c()
            time.sleep(0.01)
            ended.append(slot)

    with pytest.raises(KeyboardInterrupt):
        threads.run(work, range(100_000))
    assert sorted(began) == sorted(ended)
    assert len(began) < 100_000
    time.sleep(0.05)
    assert len(began) == len(ended)


def test_without_memory_for_all_threads_none_waits_for_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    submit, count = ThreadPool.submit, [0]

    def scarce(pool: ThreadPool, *args: object) -> object:
        count[0] += 1
        if count[0] == 2:
            raise MemoryError
        return submit(pool, *args)  # type: ignore[arg-type]  # a function first

    monkeypatch.setattr(ThreadPool, "submit", scarce)
    before = set(threading.enumerate())
    threads, done = Threads(2), list[int]()
    with pytest.raises(MemoryError):
        threads.run(done.extend, [1, 2])
    for thread in set(threading.enumerate()) - before:
        thread.join()
    threads.run(done.extend, [1, 2])
    assert sorted(done) == [1, 2]


def test_what_runs_aside_gives_its_result_or_its_error() -> None:
    assert interrupts.run_aside(lambda: threading.current_thread().name, int) == "packio-aside"
    with pytest.raises(ZeroDivisionError):
        interrupts.run_aside(lambda: 1 // 0, int)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_leaves_behind_what_runs_aside() -> None:
    asked, begun = threading.Event(), threading.Event()

    def endless() -> None:
        begun.set()
        _ctrl_c()
        asked.wait(60)

    with pytest.raises(KeyboardInterrupt):
        interrupts.run_aside(endless, asked.set)
    assert begun.is_set()
    assert asked.is_set()
    while interrupts.left_behind():
        time.sleep(0.01)


def test_in_other_threads_nothing_runs_aside() -> None:
    found: list[str] = []
    call = lambda: found.append(threading.current_thread().name)  # noqa: E731 (short)
    thread = threading.Thread(target=lambda: interrupts.run_aside(call, int), name="mine")
    thread.start()
    thread.join()
    assert found == ["mine"]


def test_a_thread_that_waits_for_a_result_is_let_go() -> None:
    never: Future[bytes] = Future()
    with pytest.raises(KeyboardInterrupt), ThreadPool(1) as pool:  # noqa: PT012 (as above)
        waits = pool.submit(interrupts.result, never)
        raise KeyboardInterrupt
    assert isinstance(waits.exception(), KeyboardInterrupt)


def test_a_thread_of_other_work_goes_on_waiting() -> None:
    answer: Future[bytes] = Future()
    never: Future[bytes] = Future()
    left = threading.Event()
    with ThreadPool(1) as pool:
        with interrupts.leaving(left):
            ended = pool.submit(interrupts.result, never)
        left.set()
        assert isinstance(ended.exception(), KeyboardInterrupt)
        waits = pool.submit(interrupts.result, answer)
        answer.set_result(b"7")
        assert waits.result() == b"7"


def test_a_wait_has_a_limit() -> None:
    with interrupts.leaving(threading.Event()), pytest.raises(TimeoutError):
        interrupts.result(Future(), 0.1)
    with pytest.raises(TimeoutError):
        interrupts.result(Future(), 0.1)


def test_it_ends_decoding_that_waits_for_bytes() -> None:
    never: Future[bytes] = Future()

    def work(slots: Iterable[int]) -> None:
        for _ in slots:
            interrupts.result(never)

    threads = Threads(2)
    threading.Timer(0.5, _ctrl_c).start()
    with pytest.raises(KeyboardInterrupt):
        threads.run(work, range(100))
    threads.run(lambda slots: list(slots).clear(), range(100))  # its threads are free again
