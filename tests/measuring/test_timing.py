"""`packio.Timer`: exact figures by a clock of the test's own; names, loops, threads, processes."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import rich
import torch

import packio
from packio.errors import CannotCreateError, OptionError
from packio.measuring.timing import Clock

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

pytestmark = pytest.mark.gpu
SECOND = 10**9


class _Clock:
    """Stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now

    def spend(self, nanoseconds: int) -> None:
        self.now += nanoseconds


@pytest.fixture
def clock() -> _Clock:
    return _Clock()


def _record(timer: packio.Timer, clock: _Clock, durations: list[int]) -> dict[str, float]:
    for duration in durations:
        with timer("a"):
            clock.spend(duration)
    return timer.as_dict()["a"]


def test_figures_of_a_few_are_exact(clock: _Clock) -> None:
    seconds = _record(packio.Timer(clock=clock), clock, [3 * SECOND, SECOND, 8 * SECOND])
    assert seconds["count"] == 3
    assert (seconds["total_s"], seconds["mean_s"]) == (12, 4)
    assert (seconds["min_s"], seconds["max_s"], seconds["p99_s"]) == (1, 8, 8)
    assert seconds["p50_s"] == pytest.approx(3, rel=1 / 256)
    found = _record(packio.Timer(clock=clock), clock, [123_456_789] * 10)
    assert {found[f"{name}_s"] for name in ("p50", "p90", "p99", "min", "max")} == {0.123456789}


@pytest.mark.parametrize("scale", [1, 100, 10**4, 10**9])
def test_percentiles_of_many_are_as_near_as_stated(clock: _Clock, scale: int) -> None:
    durations = np.random.default_rng(0).lognormal(3, 2, 5000) * scale
    found = _record(packio.Timer(clock=clock), clock, durations.astype(int).tolist())
    for percent in (50, 90, 99):
        true = np.percentile(durations.astype(int), percent, method="inverted_cdf") / SECOND
        assert found[f"p{percent}_s"] == pytest.approx(true, rel=1 / 256)


def test_memory_does_not_grow_with_measurements(clock: _Clock) -> None:
    timer = packio.Timer(clock=clock)
    _record(timer, clock, [1_000_000 + i for i in range(20_000)])
    assert len(timer._durations["a"]._buckets) < 10
    assert not timer._pending


def test_the_first_of_each_name_are_left_out(clock: _Clock) -> None:
    timer = packio.Timer(warmup=2, clock=clock)
    assert _record(timer, clock, [100, 50, 7])["max_s"] == 7e-9
    with timer("b"):
        clock.spend(1)
    assert list(timer.as_dict()) == ["a"]  # of b nothing is counted yet


def test_names_nest_and_an_exception_ends_them(clock: _Clock) -> None:
    timer = packio.Timer(clock=clock)

    def step() -> None:
        with timer("step"):
            clock.spend(1)
            with timer("forward"):
                clock.spend(2)
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        step()
    with timer("forward"):
        clock.spend(4)
    totals = {name: row["total_s"] for name, row in timer.as_dict().items()}
    assert totals == {"forward": 4e-9, "step": 3e-9, "step/forward": 2e-9}


def test_a_decorator_measures_every_call_even_of_itself(clock: _Clock) -> None:
    timer = packio.Timer(clock=clock)

    @timer("sum")
    def add(*numbers: int) -> int:
        """Add."""
        clock.spend(1)
        return numbers[0] + add(*numbers[1:]) if numbers else 0

    assert add(1, 2) == 3
    assert (add.__name__, add.__doc__) == ("add", "Add.")
    counts = {name: (row["count"], row["total_s"]) for name, row in timer.as_dict().items()}
    assert counts == {"sum": (1, 3e-9), "sum/sum": (1, 2e-9), "sum/sum/sum": (1, 1e-9)}


def test_what_a_call_only_begins_is_not_decorated() -> None:
    def several() -> Iterator[int]:
        yield 1

    async def later() -> None:
        pass

    for function in (several, later):
        with pytest.raises(OptionError, match="inside the function"):
            packio.Timer()("x")(function)


def test_stretches_in_generators_may_take_turns(clock: _Clock) -> None:
    timer = packio.Timer(clock=clock)

    def generator(name: str) -> Iterator[None]:
        with timer(name):
            yield

    first, second = generator("first"), generator("second")
    for one in (first, second):
        next(one)
        clock.spend(1)
    for one in (first, second):
        assert next(one, "ended") == "ended"
        clock.spend(10)
    totals = {name: row["total_s"] for name, row in timer.as_dict().items()}
    assert totals == {"first": 2e-9, "first/second": 11e-9}
    assert timer._within() == ""


class _Loader:
    """Takes 3 for each item, and tells whether it was closed."""

    def __init__(self, clock: _Clock) -> None:
        self.clock, self.closed = clock, False

    def __iter__(self) -> Iterator[int]:
        self.items = self._items()  # kept here, too: nothing but close() ends it
        return self.items

    def _items(self) -> Iterator[int]:
        try:
            for number in range(4):
                self.clock.spend(3)
                yield number
        finally:
            self.closed = True


def test_a_loop_is_waiting_and_computing(clock: _Clock) -> None:
    timer, loader = packio.Timer(clock=clock), _Loader(clock)
    with timer("train"):
        for number in timer.steps(loader):
            clock.spend(10 * number)
            with timer("forward"):
                clock.spend(1)
    named = timer.as_dict()
    assert sorted(named) == ["train", "train/compute", "train/forward", "train/wait"]
    assert (named["train/wait"]["count"], named["train/wait"]["total_s"]) == (4, 12e-9)
    assert (named["train/compute"]["count"], named["train/compute"]["total_s"]) == (4, 64e-9)
    assert timer.wait_share("train") == pytest.approx(12 / 76)
    assert timer.wait_share() is None
    assert loader.closed


def test_a_loop_left_early_counts_its_last_step_and_closes_its_iterator(clock: _Clock) -> None:
    timer, loader = packio.Timer(clock=clock), _Loader(clock)
    for number in timer.steps(loader):
        clock.spend(1)
        if number == 1:
            break
    assert loader.closed
    assert timer.as_dict()["compute"]["total_s"] == 2e-9
    failing = _Loader(clock)

    def train() -> None:
        for _ in timer.steps(failing):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()
    assert failing.closed


def test_what_the_loader_raises_goes_through(clock: _Clock) -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise ValueError("a bad image")

    timer = packio.Timer(clock=clock)
    with pytest.raises(ValueError, match="a bad image"):
        list(timer.steps(failing()))
    assert timer.as_dict()["wait"]["count"] == 1


def test_the_loop_keeps_no_batch_while_it_waits() -> None:
    import weakref

    class Batch:
        pass

    alive: list[Any] = []

    def loader() -> Iterator[Batch]:
        for _ in range(3):
            assert [r for r in alive if r() is not None] == []
            batch = Batch()
            alive.append(weakref.ref(batch))
            yield batch
            del batch

    steps = packio.Timer().steps(loader())
    for _ in range(3):
        next(steps)
    assert len(alive) == 3


def test_threads_share_a_timer() -> None:
    timer = packio.Timer(warmup=5)
    decode = timer("decode")

    def work() -> None:
        for _ in range(500):
            with decode, timer("resize"):
                pass

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = {name: row["count"] for name, row in timer.as_dict().items()}
    assert counts == {"decode": 3995, "decode/resize": 3995}


def _count_in_child(timer: packio.Timer) -> None:
    with timer("there"):
        pass
    sys.exit(not timer.as_dict())


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_timer_goes_into_other_processes(start: str) -> None:
    timer = packio.Timer(warmup=0)
    with timer._lock:  # held by another thread, as it were, when the process is forked
        context: Any = multiprocessing.get_context(start)
        child = context.Process(target=_count_in_child, args=(timer,))
        child.start()
    child.join(600)
    assert child.exitcode == 0
    assert timer.as_dict() == {}


def test_a_pickled_timer_is_empty_and_has_its_options() -> None:
    timer = packio.Timer(warmup=1, cuda="events", device="cpu")
    for _ in range(2):
        with timer("a"):
            pass
    again = pickle.loads(pickle.dumps(timer))
    assert again.as_dict() == {}
    assert again._clock.name == timer._clock.name


class _Device:
    """Stands for a GPU: its moments come when it is told so, some time after they are taken."""

    def __init__(self) -> None:
        self.taken, self.come = 0, 0

    def mark(self) -> int:
        self.taken += 1
        return self.taken

    def is_over(self, moment: int) -> bool:
        return moment <= self.come

    def between(self, begin: int, end: int) -> int:
        self.come = max(self.come, end)  # it waits
        return (end - begin) * SECOND


def test_what_the_device_has_not_done_waits_and_is_counted_at_last() -> None:
    timer, device = packio.Timer(), _Device()
    timer._clock = Clock("a GPU", device.mark, device.is_over, device.between)
    for _ in range(3):
        with timer("step"):
            pass
    with timer("decode", host=True):
        pass
    assert (len(timer._pending), timer._durations) == (4, {})
    device.come = 4
    with timer("step"):
        pass
    assert len(timer._pending) == 3  # the third, decoding behind it, and the fourth
    assert timer.as_dict()["step"] == {
        "count": 4, "total_s": 4, "mean_s": 1, "p50_s": 1, "p90_s": 1, "p99_s": 1, "min_s": 1,
        "max_s": 1,
    }  # fmt: skip
    assert timer.as_dict()["decode"]["count"] == 1
    for _ in range(5000):
        with timer("step"):
            pass
    assert len(timer._pending) <= 4096  # no more wait than fit the bound
    assert timer.as_dict()["step"]["count"] == 5004


@pytest.mark.parametrize("kind", ["events", "synchronize"])
def test_without_a_gpu_the_hosts_clock_is_used_and_said(kind: str, clock: _Clock) -> None:
    timer = packio.Timer(cuda=kind, device="cpu", clock=clock)
    assert _record(timer, clock, [5])["total_s"] == 5e-9
    assert f"the host's clock (cuda='{kind}' means nothing on device cpu)" in timer.summary()
    if not torch.cuda.is_available():
        assert "there is no GPU" in packio.Timer(cuda=kind, device=0).summary()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("kind", ["events", "synchronize"])
def test_on_a_gpu_its_own_work_is_measured(kind: str) -> None:
    timer = packio.Timer(cuda=kind)
    matrix = torch.ones(2048, 2048, device="cuda")
    for _ in range(3):
        with timer("product"):
            torch.mm(matrix, matrix)
    row = timer.as_dict()["product"]
    assert row["count"] == 3
    assert row["min_s"] > 0
    assert "cuda:" in timer.summary()


def test_the_summary_tells_all(clock: _Clock) -> None:
    timer = packio.Timer(warmup=1, clock=clock)
    for _ in timer.steps(_Loader(clock)):
        clock.spend(1_000_000)
    lines = timer.summary().splitlines()
    header = ["name", "count", "total", "s", "mean", "ms", "p50", "p90", "p99", "min", "max"]
    assert lines[0].split() == header
    assert lines[1].split() == ["compute", "3", "0.003", *["1.000"] * 6]
    assert lines[3:] == [
        "0.0% of the loop's time was waiting for data",
        "measured by the host's clock; the first 1 of each name left out",
    ]
    rich.print(timer)


def test_figures_are_saved_as_json(clock: _Clock, tmp_path: pathlib.Path) -> None:
    timer = packio.Timer(clock=clock)
    row = _record(timer, clock, [2])
    timer.save(tmp_path / "times.json")
    saved = json.loads((tmp_path / "times.json").read_text())
    assert saved == {"clock": "the host's clock", "warmup": 0, "names": {"a": row}}
    with pytest.raises(CannotCreateError, match=r"times\.json"):
        timer.save(tmp_path / "no" / "times.json")


@pytest.mark.parametrize("options", [{"warmup": -1}, {"cuda": "event"}])
def test_what_cannot_be_meant_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        packio.Timer(**options)


def test_measuring_imports_neither_torch_nor_rich() -> None:
    code = (
        "import sys, packio\n"
        "timer = packio.Timer()\n"
        "for _ in timer.steps(range(3)): pass\n"
        "assert timer.as_dict()['compute']['min_s'] >= 0\n"
        "assert not {'torch', 'numpy', 'rich'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
