"""Batches that tell the next ones, and loaders of packs at URLs that ask for them early.

`packio.Loader` knows what comes next; under torch's own DataLoader, guesses stand in for it.
"""

from __future__ import annotations

import itertools
import pickle
import random
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from range_server import web
from torch.utils.data import BatchSampler, DataLoader

import packio
from packio.batches.draws import PositionedIndex
from packio.datasets.lookahead import AHEAD, BatchWithLookahead, Guesses, add_lookahead

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterable, Iterator

    from range_server import RangeServer

pytestmark = pytest.mark.usefixtures("own_cache")

__all__ = ["web"]


@pytest.fixture
def url(web: RangeServer, image_folder: pathlib.Path) -> str:
    packio.pack(image_folder, web.folder / "x.tar")
    return f"{web.url}/x.tar"


@pytest.mark.parametrize("size", [1, 7, 64, 200])
@pytest.mark.parametrize("processes", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("count", [0, 1, 5, 64, 301])
def test_each_batch_is_told_once_to_the_process_that_makes_it(
    size: int, processes: int, count: int
) -> None:
    batches = [list(range(n * size, n * size + size)) for n in range(count)]
    told: list[Any] = list(add_lookahead(iter(batches), processes))
    assert [list(batch) for batch in told] == batches
    by = max(processes, 1)
    for process in range(by):
        mine = told[process::by]
        assert [batch.anew for batch in mine] == [number == 0 for number in range(len(mine))]
        known = [list(mine[0])] if mine else []
        for number, batch in enumerate(mine):
            assert list(batch) in known[number:]  # it was told before it came
            known += [list(later) for later in batch.later]
        assert known == batches[process::by]


def test_no_more_than_needed_is_drawn_ahead() -> None:
    drawn: list[int] = []

    def batches() -> Any:
        for number in range(10_000):
            drawn.append(number)
            yield [number] * 64

    next(add_lookahead(batches(), 2))
    assert len(drawn) <= 1 + 2 * (AHEAD // 64)


def test_a_batch_that_tells_more_pickles() -> None:
    batch = pickle.loads(pickle.dumps(BatchWithLookahead([1, 2], [[3, 4]], anew=True)))
    assert (list(batch), batch.later, batch.anew) == ([1, 2], [[3, 4]], True)


def _expected(web: RangeServer, indices: Any, **options: Any) -> torch.Tensor:
    ds = packio.PackDataset(web.folder / "x.tar", crop=packio.CenterCrop(32), **options)
    images: torch.Tensor = ds.gather(list(indices))[0]
    return images


@pytest.mark.parametrize("kind", [packio.Loader, DataLoader])
@pytest.mark.parametrize(
    ("workers", "method", "stays"),
    [(0, None, False), (2, "fork", False), (2, "fork", True), (1, "spawn", True)],
)
def test_each_sample_of_each_epoch_is_asked_for_once(
    workers: int, method: str | None, stays: bool, kind: Any, url: str, web: RangeServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    # a request a sample; not if spawned
    monkeypatch.setattr(packio.storage.remote_store, "_GAP", 0)
    ds = packio.PackDataset(url, crop=packio.CenterCrop(32), seed=3)
    loader = kind(
        ds, 4, sampler=packio.ShuffleSampler(ds, 1), num_workers=workers, persistent_workers=stays,
        multiprocessing_context=method,
    )  # fmt: skip
    for epoch in range(3):
        web.asked.clear()
        found = torch.cat([images for images, _ in loader])
        assert torch.equal(found, _expected(web, packio.ShuffleSampler(25, 1, epoch=epoch)))
        asked = [span for path, span in web.asked if path == "/x.tar"]
        if workers == 0 or (stays and epoch and method == "fork"):
            assert len(asked) == len(set(asked)) == 25
        assert len(asked) <= 25 + 7 * workers  # those that open the pack are among them


def test_the_next_batches_are_on_their_way_before_the_first_is_there(
    url: str, web: RangeServer
) -> None:
    ds = packio.PackDataset(url, crop=packio.CenterCrop(32))
    together = threading.Barrier(7)  # as many requests as there are batches, all at once

    def held() -> None:
        if not together.broken:
            together.wait(120)

    web.asked.clear()
    web.held = held
    loader = packio.Loader(ds, 4)
    assert torch.equal(torch.cat([b[0] for b in loader]), _expected(web, range(25)))
    assert not together.broken
    assert len(web.asked) == 7


def test_an_epoch_left_early_is_forgotten(url: str, web: RangeServer) -> None:
    ds = packio.PackDataset(url, crop=packio.CenterCrop(32))
    loader = packio.Loader(ds, 4)
    for _ in range(3):
        next(iter(loader))
    assert torch.equal(torch.cat([b[0] for b in loader]), _expected(web, range(25)))
    flight: Any = ds.pack.storage
    assert not flight._flight._coming
    assert flight._flight._bytes == 0


@pytest.fixture
def far_and_near(
    url: str, web: RangeServer, image_folder: pathlib.Path
) -> tuple[list[Any], list[Any]]:
    """Two packs, at URLs and on the disk."""
    packio.pack(image_folder, web.folder / "y.tar", shuffle=1)
    places: list[Any] = [url, f"{web.url}/y.tar", web.folder / "x.tar", web.folder / "y.tar"]
    datasets = [packio.PackDataset(place, crop=packio.CenterCrop(32)) for place in places]
    return datasets[:2], datasets[2:]


@pytest.mark.parametrize("workers", [0, 2])
def test_subsets_and_several_packs_look_ahead(
    workers: int, far_and_near: tuple[list[Any], list[Any]]
) -> None:
    far, near = far_and_near
    order = [3, 40, 1, 26, 49, 0, 12]
    for there, here in (
        (packio.ConcatPacks(far), packio.ConcatPacks(near)),
        (packio.ConcatPacks(far).subset(order), packio.ConcatPacks(near).subset(order)),
        (far[0].where(label=0), near[0].where(label=0)),
    ):
        assert there.looks_ahead
        found = torch.cat([b[0] for b in packio.Loader(there, 3, num_workers=workers)])
        assert torch.equal(found, here.gather(range(len(here)))[0])
    part = torch.utils.data.Subset(far[0], [5, 7, 1, 2, 20])
    found = torch.cat([b[0] for b in packio.Loader(part, 2, num_workers=workers)])
    assert torch.equal(found, near[0].gather([5, 7, 1, 2, 20])[0])


def test_a_resumed_epoch_goes_on_where_it_was(url: str) -> None:
    ds = packio.PackDataset(url, crop=packio.RandomResizedCrop(32), seed=5)
    loader = packio.Loader(ds, 4, shuffle=True, num_workers=2)
    batches = [batch[0] for batch in loader]
    loader.set_epoch(0)
    running = iter(loader)
    for _ in range(3):
        next(running)
    state = loader.state_dict()
    other = packio.Loader(ds, 4, shuffle=True)
    other.load_state_dict(state)
    assert all(torch.equal(a[0], b) for a, b in zip(other, batches[3:], strict=True))


def test_a_sample_that_does_not_come_is_replaced_or_told(
    url: str, web: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packio.storage.urls, "_WAITS", (0.01,))
    order = [24, 0, 12]  # far from each other: a request each
    monkeypatch.setattr(packio.storage.remote_store, "_GAP", 0)
    ds = packio.PackDataset(url, crop=packio.CenterCrop(32))
    row = ds.pack.row(0)
    web.fault = lambda _, span: "500" if span[0] == row.offset else None
    with pytest.raises(packio.errors.ReadError, match="500"):
        list(packio.Loader(ds.subset(order), 3))
    web.fault = lambda *_: None
    assert torch.equal(next(iter(packio.Loader(ds.subset(order), 3)))[0], _expected(web, order))


def test_a_library_of_others_gets_plain_lists() -> None:
    class Foreign(torch.utils.data.Dataset[int]):
        def __len__(self) -> int:
            return 9

        def __getitems__(self, indices: list[int]) -> list[int]:
            assert type(indices) is list
            return [int(i) for i in indices]

    assert [b.tolist() for b in packio.Loader(Foreign(), 4)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]


# Guesses under a DataLoader


class _Far:
    """Something at a URL: it has a length, and looks ahead."""

    looks_ahead = True

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count


def _told(batches: Iterable[list[int]], data: Any, turns: int = 1) -> Iterator[Any]:
    """Show batches to the guesses of a process that takes each `turns`-th of them."""
    guesses = Guesses()
    for batch in itertools.islice(batches, 0, None, turns):
        yield list(batch), guesses.after(data, batch)


def _unfit(shown: list[Any]) -> tuple[int, int]:
    """Samples that were told and did not come next, and batches that came without being told."""
    waiting: list[Any] = []
    wrong = surprises = 0
    for number, (batch, guess) in enumerate(shown):
        if waiting and waiting[0] == batch and not guess.anew:
            waiting.pop(0)
        elif number:
            surprises += 1
        if guess.anew:
            wrong += sum(map(len, waiting))
            waiting = []
        waiting += [list(later) for later in guess.later]
    return wrong + sum(map(len, waiting)), surprises


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("resumed", [0, 63])
@pytest.mark.parametrize("world", [1, 3])
def test_all_batches_of_a_worker_are_told_before_they_come(
    world: int, resumed: int, last: bool, window: int | None
) -> None:
    data: Any = _Far(1000)
    data.shard_lengths = [300, 450, 250]
    for rank in range(world):
        sampler = packio.ShuffleSampler(
            data, 5, rank=rank, world_size=world, window=window, drop_last=last
        )
        if resumed:
            sampler.load_state_dict({**sampler.order, "epoch": 0, "consumed": resumed})
        plain = packio.ShuffleSampler(
            1000, 5, rank=rank, world_size=world, drop_last=last
        ) if window is None else sampler  # fmt: skip
        assert len(plain) == len(sampler)
        shown = list(_told(BatchSampler(sampler, 16, last), data))
        wrong, surprises = _unfit(shown)
        assert (wrong, surprises) == (0, 0 if last or len(shown[-1][0]) == 16 else 1)


def test_more_and_more_batches_are_on_their_way() -> None:
    data = _Far(2000)
    shown = list(_told(BatchSampler(packio.ShuffleSampler(data, 1), 32, drop_last=True), data))
    assert [len(guess.later) for _, guess in shown[:10]] == [1, 2, 2, 2, 2, 2, 2, 2, 1, 1]


@pytest.mark.parametrize("make", [
    lambda data: packio.RepeatAugSampler(data, 3, 2),
    lambda data: packio.MixedSampler(data, [1, 3], 4),
    lambda data: packio.ShuffleSampler(data, shuffle=False),
])  # fmt: skip
def test_every_order_of_samples_is_known(make: Any) -> None:
    data: Any = _Far(900)
    data.datasets = [range(400), range(500)]
    wrong, surprises = _unfit(list(_told(BatchSampler(make(data), 25, drop_last=True), data)))
    assert (wrong, surprises) == (0, 0)


def test_batches_that_somebody_shares_out_are_known_after_a_wrong_guess() -> None:
    data = _Far(5000)
    shown = list(_told(BatchSampler(packio.ShuffleSampler(data), 10, drop_last=True), data, 6))
    wrong, surprises = _unfit(shown)
    assert wrong == 10  # the guess that follows the first batch
    assert surprises == 2


def test_what_follows_no_order_costs_little() -> None:
    data, draw = _Far(20_000), random.Random(3)
    batches = list(BatchSampler(packio.ShuffleSampler(data), 20, drop_last=True))
    draw.shuffle(batches)
    shown = list(_told(batches, data))
    assert _unfit(shown)[0] == 20
    assert sum(len(guess.later) for _, guess in shown) == 1


@pytest.mark.parametrize("regular", range(1, 9))
def test_no_more_is_told_in_vain_than_came(regular: int) -> None:
    data, draw = _Far(4_000), random.Random(regular)
    left = list(BatchSampler(packio.ShuffleSampler(data), 10, drop_last=True))
    batches: list[Any] = []
    while left:  # so many as expected, then a leap
        batches += left[:regular]
        left = left[regular + draw.randrange(2, 9) :]
    shown = list(_told(batches, data))
    for number in range(1, len(shown)):
        assert _unfit(shown[:number])[0] <= 10 * number + 10
    assert _unfit(shown)[0] > 0


def test_looks_at_the_first_batch_are_not_followed_for_ever() -> None:
    data, guesses, told = _Far(1000), Guesses(), 0
    for epoch in range(10):
        batch = next(iter(BatchSampler(packio.ShuffleSampler(data, epoch=epoch), 50, True)))
        told += len(guesses.after(data, batch).later)
    assert told == 1
    shown = [
        (batch, guesses.after(data, batch))
        for batch in BatchSampler(packio.ShuffleSampler(data, epoch=10), 50, True)
    ]
    assert sum(len(guess.later) for _, guess in shown) == 20 - 2  # all but the first two


def test_epochs_that_are_left_early_are_followed_again() -> None:
    data, guesses = _Far(1000), Guesses()
    for epoch in range(5):
        sampler = packio.ShuffleSampler(data, 7, epoch=epoch)
        batches = list(itertools.islice(BatchSampler(sampler, 50, True), 8))
        shown = [(batch, guesses.after(data, batch)) for batch in batches]
        assert shown[0][1].anew
        assert _unfit(shown)[1] == 0


def test_two_orders_in_turns_are_not_followed() -> None:
    data, guesses = _Far(1000), Guesses()
    orders = [BatchSampler(packio.ShuffleSampler(data, seed), 10, True) for seed in (1, 2)]
    told = [
        len(guesses.after(data, batch).later) for pair in zip(*orders, strict=True)
        for batch in pair
    ]  # fmt: skip
    assert sum(told) == 1


def test_the_order_of_another_dataset_is_not_known() -> None:
    batch = list(itertools.islice(packio.ShuffleSampler(_Far(1000)), 10))
    assert Guesses().after(_Far(1000), batch).later
    other = pickle.loads(pickle.dumps(batch))  # as in a worker
    assert not Guesses().after(_Far(999), other).later


@pytest.mark.parametrize("data", [list(range(1000)), 1000])
def test_indices_of_what_is_near_carry_no_course(data: Any) -> None:
    assert next(iter(packio.ShuffleSampler(data))).course is None


@pytest.mark.parametrize("batch", [[], [3, 4], np.arange(3), [PositionedIndex(1, 0, 0)]])
def test_indices_of_others_are_left_alone(batch: Any) -> None:
    guess = Guesses().after(_Far(10), batch)
    assert (list(guess.later), guess.anew) == ([], False)


def test_a_batch_on_its_course_is_small_when_it_is_sent() -> None:
    data: Any = _Far(1 << 20)
    data.shard_lengths = [1 << 10] * (1 << 10)
    batch = list(itertools.islice(packio.ShuffleSampler(data, window=9), 256))
    sent = pickle.dumps(batch)
    assert len(sent) < 256 * 24
    came = pickle.loads(sent)
    assert came == batch
    assert [i.position for i in came] == list(range(256))
    assert all(i.course == batch[0].course for i in came)


def test_the_next_batch_is_on_its_way_before_the_first_is_there(
    url: str, web: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packio.storage.remote_store, "_GAP", 0)
    ds = packio.PackDataset(url, crop=packio.CenterCrop(32))
    together = threading.Barrier(8)  # two batches of 4

    def held() -> None:
        if not together.broken:
            together.wait(120)

    web.asked.clear()
    web.held = held
    batches = iter(DataLoader(ds, 4, sampler=packio.ShuffleSampler(ds, 1)))
    first = next(batches)[0]
    assert not together.broken
    web.held = lambda: None
    order = list(packio.ShuffleSampler(25, 1))
    assert torch.equal(torch.cat([first, *(b[0] for b in batches)]), _expected(web, order))


def test_several_packs_and_parts_are_read_ahead(
    far_and_near: tuple[list[Any], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    far, near = far_and_near
    for there, here in (
        (packio.ConcatPacks(far), packio.ConcatPacks(near)),
        (far[0].subset([3, 14, 1, 22, 9, 0, 12]), near[0].subset([3, 14, 1, 22, 9, 0, 12])),
    ):
        seen: list[int] = []

        def expect(
            batches: Any, *, anew: bool, ask: Any = there._expect, seen: list[int] = seen
        ) -> None:
            seen.append(len(batches))
            ask(batches, anew=anew)

        monkeypatch.setattr(there, "_expect", expect)
        loader = DataLoader(there, 2, sampler=packio.ShuffleSampler(there, 4))
        found = torch.cat([images for images, _ in loader])
        order = list(packio.ShuffleSampler(len(here), 4))
        assert torch.equal(found, here.gather(order)[0])
        assert max(seen) > 1


def test_what_is_wrong_with_a_guess_is_not_told_before_its_batch(
    url: str, web: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packio.storage.urls, "_WAITS", (0.01,))
    monkeypatch.setattr(packio.storage.remote_store, "_GAP", 0)
    ds = packio.PackDataset(url, crop=packio.CenterCrop(32))
    order = list(packio.ShuffleSampler(25, 1))
    bad = ds.pack.row(order[5]).offset  # of the second batch
    web.fault = lambda _, span: "500" if span[0] == bad else None
    batches = iter(DataLoader(ds, 4, sampler=packio.ShuffleSampler(ds, 1)))
    assert torch.equal(next(batches)[0], _expected(web, order[:4]))
    with pytest.raises(packio.errors.ReadError, match="500"):
        next(batches)
