"""Orders as functions: exact, even, and as cheap for 10^10 samples as for a hundred.

What is expected is computed here, from lists, not by packio.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import pickle
import tracemalloc
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from sharded import Sharded
from statistic import chi_square, most

import packio
from packio.batches import draws
from packio.errors import OptionError
from packio.loading import permuting
from packio.loading.order import Order

BILLIONS = 10**10
MEGABYTES = 10


def _samplers(count: int, **options: Any) -> dict[str, Order[Any]]:
    """One of each kind, over as many samples; a third of the mix are turns of 7 samples."""
    parts = [count // 2, count - count // 2 - 7, 7]
    shards = [7, 1, 0, count - 11, 3] if count < BILLIONS else [10**6] * 10**4
    return {
        "windowed": packio.ShuffleSampler(Sharded(*shards), 5, window=2, **options),
        "shuffled": packio.ShuffleSampler(count, 5, **options),
        "mixed": packio.MixedSampler(parts, [1, 1, 1], 5, samples_per_epoch=count, **options),
        "repeated": packio.RepeatAugSampler(count, 3, 5, samples_per_epoch=count, **options),
        "in order": packio.ShuffleSampler(count, shuffle=False, **options),
    }


KINDS = tuple(_samplers(30))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world", [1, 8, 1024])
def test_ten_billion_samples_need_no_memory(kind: str, world: int) -> None:
    state = {**_samplers(BILLIONS)[kind].state_dict(), "consumed": 6_543_210_987}
    tracemalloc.start()
    try:
        for resumed in (False, True):
            sampler = _samplers(BILLIONS, rank=world // 2, world_size=world)[kind]
            if resumed:
                sampler.load_state_dict(state)
            found = list(itertools.islice(sampler, 100))
            assert len(found) == 100
            assert all(0 <= index < BILLIONS for index in found)
            assert len(pickle.dumps(sampler)) < 10**6
        assert tracemalloc.get_traced_memory()[1] < MEGABYTES * 10**6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world", [1, 8, 1024])
def test_the_first_index_takes_few_computed_ones(
    kind: str, world: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = _samplers(BILLIONS, rank=world // 2, world_size=world)[kind]
    indices, computed = sampler._indices, []

    def counted(positions: np.ndarray, epoch: int) -> np.ndarray:
        computed.append(len(positions))
        return indices(positions, epoch)

    monkeypatch.setattr(sampler, "_indices", counted)
    next(iter(sampler))
    assert sum(computed) <= 16


@pytest.mark.parametrize("kind", KINDS)
def test_an_index_of_ten_billion_is_the_same_from_anywhere(kind: str) -> None:
    begun = 9_876_543_210 - 9_876_543_210 % 3
    state = {**_samplers(BILLIONS)[kind].state_dict(), "consumed": begun}
    one = _samplers(BILLIONS)[kind]
    one.load_state_dict(state)
    expected = [int(i) for i in itertools.islice(one, 9000)]
    ranks = [_samplers(BILLIONS, rank=r, world_size=3)[kind] for r in range(3)]
    for sampler in ranks:
        sampler.load_state_dict(state)
    steps = itertools.islice(zip(*ranks, strict=True), 3000)
    assert [int(i) for step in steps for i in step] == expected
    late = _samplers(BILLIONS)[kind]
    late.load_state_dict({**state, "consumed": begun + 8_888})
    assert [int(i) for i in itertools.islice(late, 112)] == expected[8_888:]


def test_a_loader_of_ten_billion_resumes_where_it_was() -> None:
    def made() -> packio.Loader:
        return packio.Loader(Sharded(BILLIONS), 64, shuffle=True, order_seed=3)

    tracemalloc.start()
    try:
        loader = made()
        loader.load_state_dict(_moved(loader.state_dict(), 7_000_000_000))
        batches = iter(loader)
        next(batches)
        state, expected = json.loads(json.dumps(loader.state_dict())), next(batches)
        assert state["consumed"] == 7_000_000_064
        again = made()
        again.load_state_dict(state)
        assert torch.equal(next(iter(again)), expected)
        assert tracemalloc.get_traced_memory()[1] < MEGABYTES * 10**6
    finally:
        tracemalloc.stop()


def _moved(state: dict[str, Any], consumed: int) -> dict[str, Any]:
    return {**state, "consumed": consumed}


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_left_comes_at_any_world_size_after_any_step(kind: str, drop_last: bool) -> None:
    count = 23
    whole = [int(i) for i in _samplers(count)[kind]]
    assert kind in ("mixed", "repeated") or sorted(whole) == list(range(count))
    for before, after in itertools.product((1, 2, 3, 5), repeat=2):
        for step in range(count // before + 1):
            ranks = [_samplers(count, rank=r, world_size=before)[kind] for r in range(before)]
            steps = zip(*(itertools.islice(sampler, step) for sampler in ranks), strict=True)
            used = [int(i) for each in steps for i in each]
            assert used == whole[: step * before]
            state = json.loads(json.dumps(ranks[-1].state_dict(step)))
            resumed = [
                _samplers(count, rank=r, world_size=after, drop_last=drop_last)[kind]
                for r in range(after)
            ]
            for sampler in resumed:
                sampler.load_state_dict(state)
            left = whole[len(used) :]
            if len(left) < (after if drop_last else 1):
                continue  # nothing is left of this epoch
            rest = [int(i) for each in zip(*resumed, strict=True) for i in each]
            if drop_last:
                assert rest == left[: len(left) // after * after]
            else:
                assert rest == left + whole[: -len(left) % after]


def test_all_orders_of_five_samples_come_equally_often() -> None:
    orders = Counter(tuple(packio.ShuffleSampler(5, seed)) for seed in range(12_000))
    assert len(orders) == 120
    assert chi_square(list(orders.values()), np.full(120, 100)) < most(119)


def test_the_indices_of_ten_billion_are_spread_evenly() -> None:
    order = np.fromiter(packio.ShuffleSampler(BILLIONS, 3), np.int64, 50_000)
    assert len(np.unique(order)) == 50_000
    for period in (BILLIONS // 100, 1):  # the leading digits, and the last ones
        found = np.bincount(order // period % 100, minlength=100)
        assert chi_square(found, np.full(100, 500)) < most(99)
    pairs = np.bincount(order[:-1] * 10 // BILLIONS * 10 + order[1:] * 10 // BILLIONS)
    assert chi_square(pairs, np.full(100, 499.99)) < most(99)


def test_a_mix_of_ten_billion_has_its_shares_evenly() -> None:
    sizes = [BILLIONS, BILLIONS, 100]
    sampler = packio.MixedSampler(sizes, [2, 1, 1], 3, samples_per_epoch=BILLIONS)
    order = np.fromiter(sampler, np.int64, 1 << 16)
    owners = np.searchsorted(np.cumsum(sizes), order, "right")
    shares = np.bincount(owners)
    assert np.abs(shares - np.array([2, 1, 1]) * (1 << 14)).max() <= 2
    of_first = np.bincount(order[owners == 0] // (BILLIONS // 100), minlength=100)
    assert chi_square(of_first, np.full(100, shares[0] / 100)) < most(99)
    small = np.bincount(order[owners == 2] - 2 * BILLIONS, minlength=100)
    assert small.max() - small.min() <= 1  # all of them before any comes again
    for each in range(2):  # ranks of two get both
        found = np.bincount(owners[each::2])
        assert chi_square(found, np.array([2, 1, 1]) * (1 << 13)) < most(2)


_FROZEN = {
    "shuffle few": "0450f7386e5632f0",
    "shuffle many": "00cd7bb3841e3dc1",
    "shuffle rank": "4b6785a661f6dd71",
    "repeated": "03778b36e1e0d339",
    "mixed": "d195c539a93b6237",
    "mixed many": "a2c919a3409c6bc8",
    "mixed small": "2432e39dfc4e4112",
    "mixed ranks": "ce7985323d12d679",
}


def _frozen(name: str) -> Order[Any]:
    mixed = packio.MixedSampler
    if name == "shuffle few":
        return packio.ShuffleSampler(1000, 7, epoch=1)
    if name == "shuffle many":
        return _at(packio.ShuffleSampler(10**10, 7), 123_456_789)
    if name == "shuffle rank":
        return _at(packio.ShuffleSampler(10**6 + 1, 7, rank=3, world_size=7), 990_001)
    if name == "repeated":
        return _at(packio.RepeatAugSampler(10**6, 3, 7, rank=1, world_size=3), 5001)
    if name == "mixed":
        return mixed([30_000, 50_000, 7], [1, 3, 0.2], 7, epoch=3)
    if name == "mixed many":
        sizes = [10**10, 10**9, 5000]
        return _at(mixed(sizes, [1, 1, 0.1], 7, samples_per_epoch=10**10), 10**9 + 77)
    if name == "mixed small":
        return mixed([1, 2, 3000, 4096], [1, 1, 2, 3], 7, samples_per_epoch=10**5, epoch=5)
    ranks: dict[str, Any] = {"rank": 900, "world_size": 1024}
    sampler = mixed([10, 10**5, 4097], [1, 1, 1], 7, samples_per_epoch=10**7, **ranks)
    return _at(sampler, 4096 * 3 + 5)


def _at(sampler: Order[Any], consumed: int) -> Order[Any]:
    sampler.load_state_dict({**sampler.order, "epoch": 2, "consumed": consumed})
    return sampler


@pytest.mark.parametrize("name", _FROZEN)
def test_a_seed_gives_the_order_that_it_gave_before(name: str) -> None:
    """Checkpoints of a training that goes on with this version count positions of that order."""
    order = np.array(list(itertools.islice(_frozen(name), 6000)), "<i8")
    assert hashlib.sha256(order.tobytes()).hexdigest()[:16] == _FROZEN[name]


@pytest.mark.parametrize("count", [1, 2, 9, 4096, 4097, 10**9])
def test_a_permutation_has_each_number_once(count: int) -> None:
    whole = np.arange(min(count, 10_000))
    found = permuting.permute(whole, count, count)
    assert len(np.unique(found)) == len(whole)
    assert ((found >= 0) & (found < count)).all()


def test_an_index_says_when_it_is_drawn_and_pickles() -> None:
    index = list(packio.ShuffleSampler(10, seed=1, epoch=3))[4]
    assert isinstance(index, draws.PositionedIndex)
    assert (index.epoch, index.position) == (3, 4)
    again = pickle.loads(pickle.dumps(index))
    assert (again, again.epoch, again.position) == (index, 3, 4)
    assert torch.arange(10)[index] == int(index)


@pytest.mark.parametrize(("rank", "world_size"), [(2, 2), (-1, 2), (0, 0)])
def test_ranks_that_cannot_be_are_refused(rank: int, world_size: int) -> None:
    with pytest.raises(OptionError, match="rank="):
        packio.ShuffleSampler(10, rank=rank, world_size=world_size)


def test_nothing_to_sample_is_an_empty_epoch() -> None:
    for data in (0, Sharded(), Sharded(0, 0)):
        window = None if data == 0 else 2
        assert list(packio.ShuffleSampler(data, window=window)) == []
