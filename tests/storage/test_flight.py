"""Ranges in flight: asked for once, taken once, and never more than the limit."""

from __future__ import annotations

import os
import random
import threading
from typing import TYPE_CHECKING

import pytest

from packio.storage import remote_store
from packio.storage.remote_store import Flight
from packio.system import interrupts
from packio.system.pools import ThreadPool

if TYPE_CHECKING:
    from packio.storage.store import Range

DATA = [random.Random(number).randbytes(1 << 20) for number in range(2)]


class _Source:
    """Files that count how often each byte was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, int]] = []
        self.gate = threading.Event()
        self.gate.set()

    def fetch(self, file: int, start: int, stop: int) -> bytes:
        self.asked.append((file, start, stop))
        self.gate.wait()
        return DATA[file][start:stop]


def _bytes(found: dict[Range, remote_store.Landing]) -> dict[Range, bytes]:
    return {(f, at, length): landing.part(at, length) for (f, at, length), landing in found.items()}


def test_ranges_that_are_close_become_one_request() -> None:
    ranges = [(1, 500, 10), (0, 0, 100), (0, 90, 30), (0, 200, 1), (0, 300_000, 5), (0, 0, 100)]
    found = [(p.file, p.start, p.stop, p.ranges) for p in remote_store.pieces(ranges)]
    assert found == [
        (0, 0, 201, [(0, 0, 100), (0, 90, 30), (0, 200, 1)]),
        (0, 300_000, 300_005, [(0, 300_000, 5)]),
        (1, 500, 510, [(1, 500, 10)]),
    ]


def test_no_request_is_longer_than_the_limit_unless_a_range_is() -> None:
    mib = 1 << 20
    ranges = [(0, at * mib, mib) for at in range(20)] + [(0, 20 * mib, 30 * mib)]
    assert [p.stop - p.start for p in remote_store.pieces(ranges)] == [
        8 * mib,
        8 * mib,
        4 * mib,
        30 * mib,
    ]


def test_what_is_expected_is_asked_for_once_and_right() -> None:
    draw, source = random.Random(5), _Source()
    wanted = [
        (draw.randrange(2), draw.randrange(900_000), draw.randrange(1, 9000)) for _ in range(80)
    ]
    ready = Flight(source.fetch)
    ready.expect(wanted[:50])
    ready.expect(wanted[20:60])  # some are expected already
    found = _bytes(dict(ready.claim(wanted)))
    assert found == {(f, at, n): DATA[f][at : at + n] for f, at, n in wanted}
    assert sum(stop - start for _, start, stop in source.asked) < 3 << 20
    asked = len(source.asked)
    assert _bytes(dict(ready.claim(wanted[:1]))) == {wanted[0]: found[wanted[0]]}
    assert len(source.asked) == asked + 1  # it was taken before


def test_no_more_than_the_limit_is_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_store, "_MOST", 250_000)
    source = _Source()
    ready = Flight(source.fetch)
    far = [(0, at * 100_000 + at * 70_000, 100_000) for at in range(5)]
    for _ in range(3):
        ready.expect(far)
    assert _bytes(dict(ready.claim(far[:2]))) == {r: DATA[0][r[1] : r[1] + r[2]] for r in far[:2]}
    assert sorted(source.asked) == [(0, at, at + n) for _, at, n in far[:2]]
    ready.expect(far[2:])  # there is room again
    ready.drop()
    ready.expect(far[2:4])
    assert _bytes(dict(ready.claim(far[2:]))) == {r: DATA[0][r[1] : r[1] + r[2]] for r in far[2:]}


def _busy(ready: Flight, monkeypatch: pytest.MonkeyPatch) -> list[Range]:
    """Let every thread wait for the source, so that nothing more is asked for."""
    monkeypatch.setattr(remote_store, "_GAP", 0)
    ranges = [(0, 100 * at, 10) for at in range(remote_store.CONNECTIONS)]
    ready.expect(ranges)
    return ranges


def test_what_is_dropped_before_it_is_asked_for_never_is(monkeypatch: pytest.MonkeyPatch) -> None:
    source = _Source()
    source.gate.clear()
    ready = Flight(source.fetch)
    first = _busy(ready, monkeypatch)
    later = [(1, at * 80_000, 10) for at in range(10)]
    ready.expect(later)
    ready.drop(later)
    source.gate.set()
    assert len(_bytes(dict(ready.claim(first)))) == len(first)
    assert {file for file, _, _ in source.asked} == {0}


def test_an_error_comes_to_who_takes_the_range() -> None:
    def fetch(file: int, start: int, stop: int) -> bytes:
        if start:
            raise OSError("no such luck")
        return DATA[file][start:stop]

    ready = Flight(fetch)
    ready.expect([(0, 0, 10), (0, 500_000, 10)])
    found = ready.claim([(0, 0, 10), (0, 500_000, 10)])
    assert found[0, 0, 10].part(0, 10) == DATA[0][:10]
    with pytest.raises(OSError, match="no such luck"):
        found[0, 500_000, 10].part(500_000, 10)


def test_a_forked_process_asks_for_itself() -> None:
    source = _Source()
    ready = Flight(source.fetch)
    ready.expect([(0, 0, 10)])
    ready.claim([(1, 0, 10)])[1, 0, 10].part(0, 10)  # the threads run
    child = os.fork()
    if not child:
        good = False
        try:
            good = ready.claim([(0, 0, 10)])[0, 0, 10].part(0, 10) == DATA[0][:10]
        finally:
            os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert ready.claim([(0, 0, 10)])[0, 0, 10].part(0, 10) == DATA[0][:10]


def test_dropping_ranges_leaves_those_of_the_same_piece_that_were_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = _Source()
    source.gate.clear()
    ready = Flight(source.fetch)
    _busy(ready, monkeypatch)
    one, other = (1, 1_000_000, 10), (1, 1_000_010, 10)  # one piece, which no thread has yet
    ready.expect([one, other])
    found = dict(ready.claim([one]))
    ready.drop()
    source.gate.set()
    assert _bytes(found) == {one: DATA[1][1_000_000:1_000_010]}


def test_what_failed_before_it_is_needed_is_asked_for_again() -> None:
    asked: list[int] = []

    def fetch(file: int, start: int, stop: int) -> bytes:
        asked.append(start)
        if len(asked) < 3:
            raise OSError("busy")
        return DATA[file][start:stop]

    ready = Flight(fetch)
    wanted = [(0, 0, 10), (0, 500_000, 10)]
    ready.expect(wanted)
    landings = dict(ready._coming)
    for (_, at, length), landing in landings.items():
        with pytest.raises(OSError, match="busy"):
            landing.part(at, length)
    assert _bytes(dict(ready.claim(wanted))) == {r: DATA[0][r[1] : r[1] + 10] for r in wanted}
    assert sorted(asked) == [0, 0, 500_000, 500_000]


def test_a_thread_that_waits_for_bytes_is_let_go_after_ctrl_c() -> None:
    source = _Source()
    source.gate.clear()
    landing = Flight(source.fetch).claim([(0, 0, 5)])[0, 0, 5]
    left = threading.Event()
    with ThreadPool(1) as pool, interrupts.leaving(left):
        waits = pool.submit(landing.part, 0, 5)
        left.set()
        assert isinstance(waits.exception(), KeyboardInterrupt)
    source.gate.set()
    assert landing.part(0, 5) == DATA[0][:5]
