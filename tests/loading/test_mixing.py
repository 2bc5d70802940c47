"""Samplers over several datasets, and of repeated samples: proportions, orders, ranks, resuming."""

from __future__ import annotations

import itertools
import pathlib
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sharded import Sharded
from torch.utils.data import ConcatDataset

import packio
from packio.errors import OptionError
from packio.loading import mixing
from packio.loading.order import Order

_weights = st.lists(st.floats(0, 1e6), min_size=1, max_size=6).filter(lambda w: sum(w) > 1e-3)


@settings(deadline=None, max_examples=200)
@given(weights=_weights, count=st.integers(0, 10**6))
def test_shares_add_up_and_are_exact_within_one(weights: list[float], count: int) -> None:
    found = mixing.shares(weights, count)
    assert sum(found) == count
    for share, weight in zip(found, weights, strict=True):
        assert abs(share - count * weight / sum(weights)) < 1 + 1e-9 * count


def _order(sampler: Order[Any], epochs: int = 1) -> list[int]:
    return [i for _ in range(epochs) for i in sampler]


@settings(deadline=None, max_examples=60)
@given(data=st.data(), seed=st.integers(0, 2**62), chunk=st.integers(1, 60))
def test_each_dataset_has_its_share_in_an_order_of_its_own(
    data: Any, seed: int, chunk: int
) -> None:
    sizes = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=5))
    weights = data.draw(st.lists(st.floats(0, 10), min_size=len(sizes), max_size=len(sizes)))
    assume(sum(weights) > 0.1)
    count = data.draw(st.integers(0, 120))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixing, "_BLOCK", chunk)
        sampler = packio.MixedSampler(sizes, weights, seed, samples_per_epoch=count)
        epochs = [_order(sampler) for _ in range(3)]
    starts = np.cumsum([0, *sizes])
    for order in epochs:
        owners = np.searchsorted(starts, order, "right") - 1
        assert np.bincount(owners, minlength=len(sizes)).tolist() == sampler.shares
    flat = [i for order in epochs for i in order]
    for start, size in zip(starts.tolist(), sizes, strict=False):
        mine = [i - start for i in flat if start <= i < start + size]
        passes = [mine[i : i + size] for i in range(0, len(mine), size)]
        for whole in passes[:-1]:  # none comes again before all have come
            assert sorted(whole) == list(range(size))
        assert all(len(set(part)) == len(part) for part in passes)
        assert size < 9 or len(passes) < 3 or passes[0] != passes[1]


def test_epochs_of_a_mix_go_on_where_the_last_one_ended() -> None:
    sampler = packio.MixedSampler([10, 100], [1, 1], 3, samples_per_epoch=10)
    small = [i for i in _order(sampler, 2) if i < 10]
    assert sorted(small) == list(range(10))
    assert sampler.epoch == 2
    later = packio.MixedSampler([10, 100], [1, 1], 3, samples_per_epoch=10, epoch=1)
    sampler.set_epoch(1)
    assert _order(sampler) == _order(later)
    other = packio.MixedSampler([10, 100], [1, 1], 4, samples_per_epoch=10)
    sampler.set_epoch(0)
    assert _order(sampler) != _order(other)


def test_two_at_once_disturb_neither() -> None:
    sampler = packio.MixedSampler([9, 70], [0.3, 0.7], 3, samples_per_epoch=9000)
    expected = _order(sampler)
    sampler.set_epoch(0)
    one = iter(sampler)
    begun = list(itertools.islice(one, 4097))
    sampler.set_epoch(0)  # else it is the next epoch
    two = list(itertools.islice(iter(sampler), 5000))
    assert begun + list(one) == expected
    assert two == expected[:5000]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [([4] * 998 + [5, 6], "differences in sizes: 2, sizes[998]=4 in the state and 5 here"),
     ([4] * 999, "differences in sizes: 1, sizes[999]=4 in the state and 'nothing' here")],
)  # fmt: skip
def test_a_state_of_a_thousand_others_says_what_differs(sizes: list[int], message: str) -> None:
    state = packio.MixedSampler([4] * 1000, [1] * 1000).state_dict()
    other = packio.MixedSampler(sizes, [1] * len(sizes))
    with pytest.raises(OptionError, match=re.escape(message)) as caught:
        other.load_state_dict(state)
    assert len(str(caught.value)) < 500
    parts: Any = [range(n) for n in sizes]
    with pytest.raises(OptionError, match=re.escape(message)) as caught:
        packio.MixedSampler.of_order(state, ConcatDataset(parts))
    assert len(str(caught.value)) < 300
    with pytest.raises(OptionError, match=r"sizes=None in the state and \[4, ") as caught:
        other.load_state_dict(packio.ShuffleSampler(4000).state_dict())
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("sizes", "weights", "message"),
    [([3, 4], [1], "1 weights for 2 datasets"), ([], [], "0 weights"),
     ([3, 4], [1, -1], r"weights\[1\]=-1.0: expected numbers of at least 0"),
     ([3, 4], [0, 0], "not all 0"),
     ([3, 4], [1, float("nan")], "at least 0"),
     ([3, 0], [1, 0.5], "0.5 for dataset 1, which has no samples")],
)  # fmt: skip
def test_weights_that_cannot_be_meant_are_refused(sizes: Any, weights: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        packio.MixedSampler(sizes, weights)
    sampler = packio.MixedSampler([3, 0, 5], [1, 0, 0], samples_per_epoch=6)
    assert sorted(sampler) == [0, 0, 1, 1, 2, 2]  # a dataset of weight zero may be empty


def test_copies_are_side_by_side_on_different_ranks() -> None:
    for world in (1, 2, 3, 4):
        samplers = [
            packio.RepeatAugSampler(40, 3, 7, rank=r, world_size=world, samples_per_epoch=120)
            for r in range(world)
        ]
        ranks = list(map(_order, samplers))
        step = [i for step in zip(*ranks, strict=True) for i in step]
        copies = [step[i : i + 3] for i in range(0, 120, 3)]
        assert sorted(c[0] for c in copies) == list(range(40))
        assert all(len(set(c)) == 1 for c in copies)
        if world >= 3:
            assert all(max(Counter(rank).values()) <= (120 // 40 + world - 1) // world
                       for rank in ranks)  # fmt: skip


def test_an_epoch_is_as_long_as_the_dataset_unless_told() -> None:
    sampler = packio.RepeatAugSampler(100, 3, 1)
    order = list(sampler)
    assert len(order) == len(sampler) == 100
    assert len(set(order)) == 34
    assert set(order) != set(sampler)  # the next epoch has another third
    assert list(packio.RepeatAugSampler(100, 1, 1)) == list(packio.ShuffleSampler(100, 1))
    for repeats, count in ((0, None), (3, 301), (3, -1)):
        with pytest.raises(OptionError):
            packio.RepeatAugSampler(100, repeats, samples_per_epoch=count)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_repeats_are_laid_out_as_timms(timm: Any, world: int) -> None:
    """The same places for the copies; which samples they are of, each shuffles in its own way."""
    for rank in range(world):
        theirs = timm.data.distributed_sampler.RepeatAugSampler(
            range(512), world, rank, shuffle=False
        )
        ours = packio.RepeatAugSampler(512, 3, rank=rank, world_size=world, shuffle=False)
        assert list(ours) == list(theirs)
        assert len(ours) == len(theirs)


def test_states_of_other_orders_are_refused() -> None:
    samplers: list[Order[Any]] = [
        packio.ShuffleSampler(60, 1), packio.ShuffleSampler(60, 2), packio.ShuffleSampler(61, 1),
        packio.ShuffleSampler(60, 1, shuffle=False),
        packio.RepeatAugSampler(60, 3, 1), packio.RepeatAugSampler(60, 2, 1),
        packio.MixedSampler([30, 30], [1, 1], 1), packio.MixedSampler([30, 30], [1, 2], 1),
        packio.MixedSampler([20, 40], [1, 1], 1),
        packio.ShuffleSampler(Sharded(20, 40), 1, window=1),
        packio.ShuffleSampler(Sharded(20, 40), 1, window=2),
        packio.ShuffleSampler(Sharded(40, 20), 1, window=1),
    ]  # fmt: skip
    for a, b in itertools.permutations(samplers, 2):
        a.load_state_dict(a.state_dict(3))
        with pytest.raises(OptionError, match="another order"):
            b.load_state_dict(a.state_dict(3))
    same_shards = packio.ShuffleSampler(Sharded(20, 0, 40), 1, window=1)
    same_shards.load_state_dict(samplers[-3].state_dict())


@pytest.fixture(scope="module")
def packs(
    image_folder: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> packio.ConcatPacks:
    """25 photographs, and 8 of them in another format."""
    root = tmp_path_factory.mktemp("mixing")
    packio.pack(image_folder, root / "x.lmdb")
    packio.pack(image_folder, root / "x.tfrecord")
    options: dict[str, Any] = {"crop": packio.RandomResizedCrop(12), "hflip": 0.5, "seed": 3}
    few = packio.TFRecordDataset(root / "x.tfrecord", **options).where(label="nature")
    return packio.ConcatPacks([packio.LmdbDataset(root / "x.lmdb", **options), few])


def test_copies_of_a_sample_are_drawn_differently(packs: packio.ConcatPacks) -> None:
    sampler = packio.RepeatAugSampler(packs, 4, 6, samples_per_epoch=40)
    batches = list(packio.Loader(packs, 8, sampler=sampler))
    images = torch.cat([images for images, _ in batches])
    assert len({image.numpy().tobytes() for image in images}) == 40
    assert all(i.position == p for p, i in enumerate(sampler))


def test_a_state_of_another_mix_is_refused_by_the_loader(packs: packio.ConcatPacks) -> None:
    mixed, other = (packio.MixedSampler(packs, [1, w], 6) for w in (1, 2))
    loader = packio.Loader(packs, 5, sampler=mixed)
    next(iter(loader))
    with pytest.raises(OptionError, match="another order"):
        packio.Loader(packs, 5, sampler=other).load_state_dict(loader.state_dict())
    with pytest.raises(OptionError, match="sampler of packio's"):
        packio.Loader(packs, 5, sampler=range(9)).load_state_dict(loader.state_dict())
    foreign = packio.Loader(packs, 5, sampler=range(9))
    next(iter(foreign))
    with pytest.raises(OptionError, match="another order"):
        packio.Loader(packs, 5, sampler=mixed).load_state_dict(foreign.state_dict())
