"""Steps that are left out: nothing else changes, states say it, and every rank does the same."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from told import Told
from torch.utils.data import BatchSampler, RandomSampler

import packio
from packio.errors import OptionError
from packio.loading import ranks, steps
from packio.loading.steps import Stretch

COUNT, BATCH = 45, 4  # 12 steps of one rank; the last one has a single sample
SKIP = [(1, 0, 1), (1, 4, 4), (1, 5, 6), (1, 10, 11), (2, 3, 3)]
LEFT_OUT = {(e, s) for e, first, last in SKIP for s in range(first, last + 1)}


class Batches:
    """A batch sampler that is not torch's, with batches of varied sizes."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(5)

    def __iter__(self) -> Any:
        order = iter(torch.randperm(COUNT, generator=self.generator).tolist())
        for number in itertools.count():
            batch = list(itertools.islice(order, 3 + number % 3))
            if not batch:
                return
            yield batch

    def __len__(self) -> int:
        return 12


def made(kind: str, **options: Any) -> packio.Loader:
    """A loader as each new process makes it."""
    generator = torch.Generator().manual_seed(7)
    how: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "order_seed": 2}
    if kind == "workers":
        how |= {"num_workers": 2}
    if kind == "foreign":
        how = {"batch_size": BATCH, "sampler": RandomSampler(Told(COUNT), generator=generator)}
    if kind == "batches":
        how = {"batch_sampler": Batches()}
    if kind == "torch's batches":
        how = {"batch_sampler": BatchSampler(packio.ShuffleSampler(COUNT, 2), BATCH, False)}
    return packio.Loader(Told(COUNT), **{**how, **options})


def epochs(loader: Any, many: int = 3) -> list[list[Any]]:
    return [[_plain(batch) for batch in loader] for _ in range(many)]


def _plain(batch: Any) -> list[list[int]]:
    return [part.tolist() for part in batch]


KINDS = ("threads", "workers", "foreign", "batches", "torch's batches")


@pytest.mark.parametrize("kind", KINDS)
def test_the_steps_are_left_out_and_nothing_else(kind: str) -> None:
    whole = epochs(made(kind))
    assert [len(epoch) for epoch in whole] == [12] * 3
    kept = [[b for s, b in enumerate(epoch) if (e, s) not in LEFT_OUT]
            for e, epoch in enumerate(whole)]  # fmt: skip
    assert epochs(made(kind, skip=SKIP)) == kept
    assert len(made(kind, skip=SKIP)) == 12


@pytest.mark.parametrize("kind", [*KINDS[::2], "batches"])
@pytest.mark.parametrize("again", [True, False])
def test_a_run_resumes_exactly_around_what_is_left_out(kind: str, again: bool) -> None:
    """After each batch; the loader that goes on says the same steps, or the state alone does."""
    whole = [(e, b) for e, epoch in enumerate(epochs(made(kind, skip=SKIP))) for b in epoch]
    running = made(kind, skip=SKIP)
    done = 0
    for _ in range(2):
        for _ in running:
            done += 1
            state = running.state_dict()
            assert state["left_out"] == [[1, 0, 1], [1, 4, 6], [1, 10, 11], [2, 3, 3]]
            resumed = made(kind, skip=SKIP if again else None)
            resumed.load_state_dict(state)
            epoch = whole[done][0]
            rest = [b for e, b in whole[done:] if e == epoch]
            assert [_plain(batch) for batch in resumed] == rest
            assert resumed.state_dict()["left_out"] == state["left_out"]


def test_all_ranks_leave_the_same_steps_out(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {}
    for rank, skip in itertools.product(range(3), ([(0, 1, 1)], None)):
        monkeypatch.setattr(ranks, "current", lambda rank=rank: (rank, 3))
        runs[rank, skip is None] = epochs(made("threads", skip=skip), 1)[0]
    for rank in range(3):
        whole = runs[rank, True]
        assert len(whole) == 4
        assert runs[rank, False] == [whole[0], *whole[2:]]


def test_an_epoch_may_be_left_out_to_its_end() -> None:
    loader, whole = made("threads", skip=[(0, 2, 10**9), (1, 0, 11)]), epochs(made("threads"))
    first = []
    for batch in loader:
        first.append(_plain(batch))
        state = loader.state_dict()
    assert first == whole[0][:2]
    assert (state["epoch"], state["consumed"], state["step"]) == (1, 0, 0)
    assert epochs(loader, 2) == [[], whole[2]]


def test_a_state_counts_the_steps_of_an_epoch() -> None:
    loader = made("threads", skip=[(0, 2, 4)])
    told = [(loader.state_dict()["step"], loader.state_dict()["consumed"]) for _ in loader]
    assert told == [(1, 4), (2, 8), *[(s, 4 * s) for s in range(6, 12)], (0, 0)]


@pytest.mark.parametrize("kind", KINDS[:3])
def test_steps_that_were_trained_on_cannot_be_left_out_any_more(kind: str) -> None:
    loader = made(kind, num_workers=0)
    for _ in itertools.islice(loader, 5):
        state = loader.state_dict()
    made(kind, num_workers=0, skip=[(0, 5, 6)]).load_state_dict(state)
    for skip in ([(0, 4, 6)], [(0, 0, 0)]):
        with pytest.raises(OptionError, match=r"step 5 of epoch 0, and its run has trained"):
            made(kind, num_workers=0, skip=skip).load_state_dict(state)
    made(kind, num_workers=0, skip=[(0, 4, 6)]).load_state_dict({**state, "left_out": [[0, 3, 8]]})


def test_a_loader_and_a_state_leave_out_what_either_says() -> None:
    loader = made("threads", skip=[(0, 6, 7)])
    running = iter(loader)
    next(running)
    other = made("threads", skip=[(0, 7, 8), (0, 2, 2)])
    other.load_state_dict(loader.state_dict())
    assert other.state_dict()["left_out"] == [[0, 2, 2], [0, 6, 8]]
    whole = epochs(made("threads"), 1)[0]
    assert epochs(other, 1)[0] == [whole[s] for s in (1, 3, 4, 5, 9, 10, 11)]


@pytest.mark.parametrize("kind", ["threads", "foreign"])
def test_steps_that_a_state_leaves_out_keep_their_size(kind: str) -> None:
    loader = made(kind, skip=[(0, 6, 7)])
    for batch in itertools.islice(loader, 2):
        state, seen = loader.state_dict(), len(batch[0])
    assert seen == BATCH

    def go_on() -> None:
        other = made(kind, batch_size=2)
        other.load_state_dict(state)
        list(other)

    with pytest.raises(OptionError, match="steps of 4"):
        go_on()
    passed = {**state, "left_out": [[0, 0, 1]]}
    other = made(kind, batch_size=2)
    other.load_state_dict(passed)
    assert sum(len(ids) for ids, *_ in epochs(other, 1)[0]) == COUNT - 8


@pytest.mark.parametrize(
    "skip", [[(0, 3, 2)], [(0, 1)], [(0, -1, 2)], [3], [(0, 1.0, 2)], [("a", 1, 2)], [None]]
)
def test_spans_that_make_no_sense_are_refused(skip: Any) -> None:
    with pytest.raises(OptionError, match="skip"):
        made("threads", skip=skip)


def test_a_span_behind_the_end_of_its_epoch_is_a_warning() -> None:
    loader = made("threads", skip=[(0, 12, 13)])
    with pytest.warns(UserWarning, match=r"epoch 0 has 12 steps, 0 to 11; .* from 0 in each"):
        assert len(epochs(loader, 1)[0]) == 12


def test_equal_sizes_make_one_stretch_however_often_a_run_is_resumed() -> None:
    stretches: tuple[Stretch, ...] = ()
    for epoch, position in ((0, 0), (0, 24), (1, 0), (4, 8), (4, 24), (5, 0)):
        stretches = steps.add_stretch(stretches, epoch, position, 4, 2)
    assert stretches == (Stretch(0, 0, 0, 4, 2),)


def test_an_epoch_begins_with_step_0_wherever_the_epoch_before_ended() -> None:
    """Carried over, batches of buckets begin elsewhere after a run of other ranks."""

    def start(epoch: int, world_size: int) -> int:  # noqa: ARG001 (of a `Start`)
        return -1

    for position in (0, -2, -1):
        stretches = steps.add_stretch((), 0, 0, 1, 3, start)
        stretches = steps.add_stretch(stretches, 5, position, 1, 3, start)
        for step in (0, 2):  # also after it was resumed
            at = position + 3 * step
            stretches = steps.add_stretch(stretches, 5, at, 1, 3, start)
            assert steps.find_stretch(stretches, 5, step, start).position_of(step) == at
            assert steps.find_stretch(stretches, 5, at, start, by="position").step_at(at) == step
