"""Orders with a window: few shards at a time, every sample once, resumed anywhere, by any ranks."""

from __future__ import annotations

import itertools
import pathlib
from collections import Counter
from typing import Any

import long
import numpy as np
import pytest
from sharded import Sharded
from statistic import chi_square, most
from torch.utils.data import ConcatDataset, DataLoader, Subset

import packio
from packio.datasets.sizes import shard_lengths
from packio.errors import OptionError

BATCH = 4


UNEVEN = Sharded(7, 1, 0, 12, 3, 3, 9)
OWNERS = [0] * 7 + [1] + [3] * 12 + [4] * 3 + [5] * 3 + [6] * 9


@pytest.mark.parametrize("window", [1, 2, 3, 5, 6, 100])
def test_every_sample_comes_once_while_few_shards_are_open(window: int) -> None:
    sampler = packio.ShuffleSampler(UNEVEN, 3, window=window)
    epochs = [[int(i) for i in sampler] for _ in range(20)]
    assert len({tuple(order) for order in epochs}) == 20
    for order in epochs:
        assert sorted(order) == list(range(35))
        owners = [OWNERS[i] for i in order]
        begin = {shard: owners.index(shard) for shard in owners}
        end = {shard: 34 - owners[::-1].index(shard) for shard in owners}
        for place in range(35):
            assert sum(begin[s] <= place <= end[s] for s in begin) <= window
    assert len({order[0] for order in epochs}) > 8


# For lengths 2, 1, 2, each order that a window allows has this chance.
def _chances(window: int) -> dict[tuple[int, ...], float]:
    chances: dict[tuple[int, ...], float] = {}
    for placed in itertools.permutations([[0, 1], [2], [3, 4]]):
        parts = [itertools.chain(*placed[i : i + window]) for i in range(0, 3, window)]
        orders = list(itertools.product(*map(itertools.permutations, parts)))
        for order in orders:
            flat = tuple(itertools.chain(*order))
            chances[flat] = chances.get(flat, 0) + 1 / 6 / len(orders)
    return chances


@pytest.mark.parametrize(("window", "each"), long.after(3, [(1, 80), (2, 80), (3, 20), (3, 80)]))
def test_all_orders_that_a_window_allows_come_as_often_as_they_should(
    window: int, each: int
) -> None:
    chances = _chances(window)
    draws = each * len(chances)
    found = Counter(
        tuple(map(int, packio.ShuffleSampler(Sharded(2, 1, 2), seed, window=window)))
        for seed in range(draws)
    )
    assert set(found) <= set(chances)
    counts = [found[order] for order in chances]
    expected = [draws * chance for chance in chances.values()]
    assert chi_square(counts, expected) < most(len(chances) - 1)


def test_large_windows_and_many_shards_are_spread_evenly() -> None:
    lengths = np.random.default_rng(0).integers(1, 40_000, 6000)
    data = Sharded(*lengths.tolist())
    sampler = packio.ShuffleSampler(data, 3, window=8)
    sampler.load_state_dict({**sampler.state_dict(), "consumed": 50_000_000})
    order = [int(i) for i in itertools.islice(sampler, 200_000)]
    assert len(set(order)) == len(order)
    ends = np.cumsum(lengths)
    within = np.array(order)
    shards = np.searchsorted(ends, within, "right")
    assert len(np.unique(shards)) < 40  # of 6,000
    places = (within - (ends - lengths)[shards]) * 10 // lengths[shards]  # tenths of their shard
    assert chi_square(np.bincount(places, minlength=10), np.full(10, 20_000)) < 40


def test_the_samples_of_a_window_are_mixed_all_along_it() -> None:
    order = np.fromiter(packio.ShuffleSampler(Sharded(*[1000] * 8), 3, window=4), np.int64)
    for half in (order[:4000], order[4000:]):
        tenths = [np.unique(part // 1000, return_counts=True) for part in np.split(half, 10)]
        for shards, counts in tenths:
            assert len(shards) == 4
            assert chi_square(counts, np.full(4, 100)) < most(3)


def test_windows_that_cannot_be_meant_are_refused() -> None:
    for window in (0, -1):
        with pytest.raises(OptionError, match="at least 1 shard"):
            packio.ShuffleSampler(UNEVEN, window=window)
    with pytest.raises(OptionError, match="shuffl"):
        packio.ShuffleSampler(UNEVEN, shuffle=False, window=2)
    with pytest.raises(OptionError, match="shuffl"):
        packio.Loader(UNEVEN, window=2)
    with pytest.raises(OptionError, match="window="):
        packio.Loader(UNEVEN, sampler=range(3), window=2)
    numbers: Any = range(3)
    unknowns: list[Any] = [35, list(range(35)), ConcatDataset([UNEVEN, numbers])]
    for unknown in unknowns:
        with pytest.raises(OptionError, match="shard_lengths"):
            packio.ShuffleSampler(unknown, window=2)
    wrong = Sharded(3, 4)
    for lengths in ((3, -1, 5), ((3, 4),), (3, 5)):
        wrong.shard_lengths = lengths
        with pytest.raises(OptionError, match="sum"):
            packio.ShuffleSampler(wrong, window=2)


@pytest.fixture(scope="module")
def packs(image_folder: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The 25 photographs in 4 shards, and in one file."""
    root = tmp_path_factory.mktemp("windows")
    packio.pack(image_folder, root / "four", format="tar", shards=4)
    packio.pack(image_folder, root / "one.tar")
    options: dict[str, Any] = {"crop": packio.RandomResizedCrop(12), "seed": 3}
    return [packio.PackDataset(root / name, **options) for name in ("four", "one.tar")]


def _files(dataset: Any) -> list[int]:
    """The file of each sample, as the index has it."""
    return [dataset.pack.row(i).file for i in range(len(dataset.pack))]


def test_packs_and_their_parts_know_their_shards(packs: list[Any]) -> None:
    four, one = packs
    counts = list(Counter(_files(four)).values())
    assert len(counts) == 4
    assert shard_lengths(four).tolist() == counts
    assert shard_lengths(one).tolist() == [25]
    both = packio.ConcatPacks([four, one])
    assert shard_lengths(both).tolist() == [*counts, 25]
    assert shard_lengths(ConcatDataset([one, four])).tolist() == [25, *counts]
    every = np.arange(0, 25, 3)
    expected = list(Counter(_files(four)[i] for i in every).values())
    assert shard_lengths(four.subset(every)).tolist() == expected
    assert shard_lengths(Subset(four, every.tolist())).tolist() == expected
    last = [i for i, file in enumerate(_files(four)) if file == _files(four)[-1]]
    assert shard_lengths(four.subset(last)).tolist() == [counts[-1]]
    assert shard_lengths(four.subset(last[::-1])).tolist() == [counts[-1]]
    cats = four.where(label="nature")
    of_cats = Counter(f for f, label in zip(_files(four), four.targets, strict=True)
                      if label == four.classes.index("nature"))  # fmt: skip
    assert shard_lengths(cats).tolist() == [of_cats[f] for f in sorted(of_cats)]
    assert shard_lengths(both.subset(np.arange(20, 40))).tolist() == [
        *Counter(_files(four)[20:]).values(), 15,
    ]  # fmt: skip


def test_a_part_that_mixes_its_shards_is_refused(packs: list[Any]) -> None:
    four, one = packs
    both = packio.ConcatPacks([four, one])
    for mixed in (
        four.subset(np.arange(25)[::-1]), Subset(four, [24, 0]), both.subset([30, 2, 31])
    ):  # fmt: skip
        with pytest.raises(OptionError, match="side by side"):
            packio.ShuffleSampler(mixed, window=2)


def _batches(loader: Any) -> list[bytes]:
    return [images.numpy().tobytes() + labels.numpy().tobytes() for images, labels in loader]


def test_any_loader_makes_the_same_batches(packs: list[Any]) -> None:
    data = packs[0]

    def sampler() -> packio.ShuffleSampler:
        return packio.ShuffleSampler(data, 5, window=2)

    expected = _batches(packio.Loader(data, BATCH, shuffle=True, order_seed=5, window=2))
    assert len(set(expected)) == 7
    assert expected != _batches(packio.Loader(data, BATCH, shuffle=True, order_seed=5))
    assert _batches(packio.Loader(data, BATCH, sampler=sampler())) == expected
    loader = DataLoader(data, BATCH, sampler=sampler(), collate_fn=packio.collate)
    assert _batches(loader) == expected
    owners = _files(data)
    order = [owners[i] for i in sampler()]
    two = list(dict.fromkeys(order))[:2]
    assert set(order[: sum(owners.count(shard) for shard in two)]) == set(two)
