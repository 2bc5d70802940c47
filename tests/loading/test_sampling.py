"""Sampling: every sample once, in an order that anyone can resume."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from packio.batches.draws import PositionedIndex
from packio.errors import OptionError
from packio.loading.permuting import permute
from packio.loading.samplers import ShuffleSampler


@settings(deadline=None, max_examples=60)
@given(count=st.integers(1, 5000), key=st.integers(0, 2**64 - 1))
def test_a_permutation_takes_every_place_once(count: int, key: int) -> None:
    assert np.array_equal(np.sort(permute(np.arange(count), count, key)), np.arange(count))


def test_any_part_of_it_can_be_computed_by_itself() -> None:
    count = 10**12
    places = np.array([0, 5, count - 1])
    found = permute(places, count, 3)
    assert ((found >= 0) & (found < count)).all()
    assert permute(places[1:2], count, 3)[0] == found[1]


def test_places_are_spread_evenly() -> None:
    count = 100_000
    order = permute(np.arange(count), count, 1)
    assert abs(np.corrcoef(np.arange(count), order)[0, 1]) < 0.02
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.02
    first = order[: count // 10]  # a tenth of the places has a tenth of each tenth
    counts = np.bincount(first // (count // 10), minlength=10)
    assert counts.min() > 900
    assert counts.max() < 1100


def test_epochs_differ_and_come_again() -> None:
    sampler = ShuffleSampler(100, seed=5)
    one, two = list(sampler), list(sampler)
    assert sorted(one) == sorted(two) == list(range(100))
    assert one != two
    assert sampler.epoch == 2
    sampler.set_epoch(0)
    assert list(sampler) == one
    assert list(ShuffleSampler(100, seed=6)) != one
    assert list(ShuffleSampler(100, shuffle=False)) == list(range(100))


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_ranks_share_one_order(world_size: int, drop_last: bool) -> None:
    whole = list(ShuffleSampler(100, seed=1))
    ranks = [
        list(ShuffleSampler(100, seed=1, rank=r, world_size=world_size, drop_last=drop_last))
        for r in range(world_size)
    ]
    assert len({len(rank) for rank in ranks}) == 1
    together = [i for step in zip(*ranks, strict=True) for i in step]
    expected = whole[: len(together)] + whole[: max(0, len(together) - 100)]
    assert together == expected
    assert len(together) == (100 // world_size if drop_last else -(-100 // world_size)) * world_size


def test_an_index_says_when_it_is_drawn_and_pickles() -> None:
    index = list(ShuffleSampler(10, seed=1, epoch=3))[4]
    assert isinstance(index, PositionedIndex)
    assert (index.epoch, index.position) == (3, 4)
    again = pickle.loads(pickle.dumps(index))
    assert (again, again.epoch, again.position) == (index, 3, 4)
    assert torch.arange(10)[index] == int(index)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_an_epoch_goes_on_where_it_was_left(world_size: int) -> None:
    def ranks() -> list[ShuffleSampler]:
        return [
            ShuffleSampler(96, 2, epoch=1, rank=r, world_size=world_size) for r in range(world_size)
        ]

    whole = [i for step in zip(*ranks(), strict=True) for i in step]
    state = ranks()[0].state_dict(consumed=24 // world_size)
    resumed = ranks()
    for sampler in resumed:
        sampler.load_state_dict(state)
    rest = [i for step in zip(*resumed, strict=True) for i in step]
    assert rest == whole[24:]
    assert [i.position for i in rest if isinstance(i, PositionedIndex)] == list(range(24, 96))
    assert len(list(resumed[0])) == 96 // world_size  # the next epoch is a whole one
    with pytest.raises(OptionError):
        ShuffleSampler(96, seed=9).load_state_dict(state)


@pytest.mark.parametrize(("rank", "world_size"), [(2, 2), (-1, 2), (0, 0)])
def test_ranks_that_cannot_be_are_refused(rank: int, world_size: int) -> None:
    with pytest.raises(OptionError, match="rank="):
        ShuffleSampler(10, rank=rank, world_size=world_size)


def test_nothing_to_sample_is_an_empty_epoch() -> None:
    assert list(ShuffleSampler(0)) == []
