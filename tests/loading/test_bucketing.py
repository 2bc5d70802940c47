"""Batches by aspect ratio: what is in them, every sample as often as said, resumed anywhere."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import pickle
import tracemalloc
import warnings
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from statistic import chi_square, most
from torch.utils.data import ConcatDataset, Dataset, Subset

import packio
from packio.errors import OptionError

pytestmark = pytest.mark.filterwarnings("ignore:the epoch has no batch")
SIZES = [(40, 20), (20, 20), (20, 40), (10, 10)]


class Sized(Dataset[Any]):
    """A dataset whose samples are what their indices carry."""

    def __init__(self, sizes: Any) -> None:
        self.image_sizes = np.asarray(sizes, np.int64).reshape(-1, 2)
        self._count = len(self.image_sizes)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        return int(index), index.epoch, index.position, index.size


def _listed(samples: list[Any]) -> list[Any]:
    return samples


def plain_bucket(height: int, width: int) -> tuple[int, int]:
    """The one of SIZES that a plain script finds; no image is as near to two of them."""
    ratio = width / height
    if ratio < 0.5**0.5:
        return 40, 20
    if ratio > 2**0.5:
        return 20, 40
    return (20, 20) if min(height, width) >= 20 else (10, 10)


_sides = st.integers(4, 60)
_data = st.lists(st.tuples(_sides, _sides), min_size=1, max_size=60)
_batch = st.integers(1, 7)
_leftovers = st.sampled_from(["carry", "drop", "short"])


def _sampler(data: Any, batch_size: int, **options: Any) -> packio.BucketSampler:
    return packio.BucketSampler(data, SIZES, batch_size=batch_size, **options)


def _ranks(data: Any, batch: int, world: int, **options: Any) -> list[packio.BucketSampler]:
    return [_sampler(data, batch, rank=r, world_size=world, **options) for r in range(world)]


def _epoch(samplers: list[packio.BucketSampler]) -> list[list[Any]]:
    """The batches of all ranks, step by step; every rank takes as many as it says."""
    said = [len(sampler) for sampler in samplers]
    each = [list(sampler) for sampler in samplers]
    assert [len(batches) for batches in each] == said
    assert len(set(said)) == 1
    return [batch for step in zip(*each, strict=True) for batch in step]


@settings(deadline=None, max_examples=150)
@given(
    sizes=_data, batch=_batch, world=st.integers(1, 4), leftovers=_leftovers,
    drop_small=st.booleans(), same_size=st.booleans(), shuffle=st.booleans(), seed=st.integers(0),
)  # fmt: skip
def test_every_sample_comes_as_often_as_is_said_in_a_batch_of_its_size(
    sizes: list[tuple[int, int]], batch: int, world: int, leftovers: str, drop_small: bool,
    same_size: bool, shuffle: bool, seed: int,
) -> None:  # fmt: skip
    buckets = {i: plain_bucket(*size) for i, size in enumerate(sizes)}
    small = {i for i, (h, w) in enumerate(sizes) if h < buckets[i][0] or w < buckets[i][1]}
    dropped = small if drop_small else set()
    owned = Counter(size for i, size in buckets.items() if i not in dropped)
    ranks = _ranks(
        Sized(sizes), batch, world, leftovers=leftovers, drop_small=drop_small,
        same_size=same_size, shuffle=shuffle, seed=seed,
    )  # fmt: skip
    told = {b.size: b for b in ranks[0].buckets}
    assert {size: b.images for size, b in told.items() if b.images} == dict(owned)
    assert sum(b.enlarged for b in told.values()) == len(small - dropped)
    block = batch * world if same_size else batch
    total: Counter[int] = Counter()
    for epoch in range(3):
        left_out = ranks[0].left_out
        batches = _epoch(ranks)
        for one in batches:
            assert {buckets[int(i)] for i in one} == {i.size for i in one} == {one[0].size}
            assert len(one) == batch or (leftovers == "short" and 0 < len(one) < batch)
        if same_size:
            steps = [batches[i : i + world] for i in range(0, len(batches), world)]
            assert all(len({(b[0].size, len(b)) for b in step}) <= 2 for step in steps)
            assert all(len({b[0].size for b in step}) == 1 for step in steps)
        comes = Counter(int(i) for one in batches for i in one)
        total += comes
        assert not comes.keys() & dropped
        assert left_out["small"] == len(dropped)
        kept = len(sizes) - len(dropped)
        if leftovers == "carry":
            assert left_out["leftovers"] == (epoch + 1) * kept - total.total()
            assert 0 <= left_out["leftovers"] < len(SIZES) * block + world * batch
            assert max(total.values(), default=0) <= epoch + 1
        elif leftovers == "drop":
            assert max(comes.values(), default=1) == 1
            assert left_out["leftovers"] == kept - len(comes)
            blocks = sum(n // block for n in owned.values())
            whole = blocks if same_size else blocks // world * world
            assert len(comes) == whole * block
        else:
            assert comes.keys() == buckets.keys() - dropped
            assert left_out["leftovers"] == 0
            if world == 1:
                assert max(comes.values(), default=1) == 1
                assert len(batches) == sum(-(-n // batch) for n in owned.values())
            elif not same_size:
                blocks = sum(-(-n // batch) for n in owned.values())
                assert len(batches) == -(-blocks // world) * world


@settings(deadline=None, max_examples=150)
@given(
    sizes=_data, batch=_batch, leftovers=_leftovers, begun=st.integers(0, 3),
    before=st.integers(1, 4), after=st.integers(1, 4), stop=st.integers(0, 20),
)  # fmt: skip
def test_what_is_left_comes_at_any_world_size_after_any_step(
    sizes: list[tuple[int, int]], batch: int, leftovers: str, begun: int, before: int, after: int,
    stop: int,
) -> None:  # fmt: skip
    data = Sized(sizes)
    alone = _sampler(data, batch, leftovers=leftovers, seed=3)
    epochs = [[_told(one) for one in alone] for _ in range(begun + 3)]
    ranks = _ranks(data, batch, before, leftovers=leftovers, seed=3, epoch=begun)
    steps = zip(*(itertools.islice(sampler, stop) for sampler in ranks), strict=True)
    used = [_told(one) for step in steps for one in step]
    state = json.loads(json.dumps(ranks[-1].state_dict(len(used) // before)))
    resumed = _ranks(data, batch, after, leftovers=leftovers, seed=3)
    for sampler in resumed:
        sampler.load_state_dict(state)
    rest = [[_told(one) for one in _all(resumed)] for _ in range(2)]
    if leftovers == "carry":  # one endless row of batches
        row = [one for epoch in epochs for one in epoch]
        first = sum(map(len, epochs[:begun]))
        first -= first % before
        together = used + [one for epoch in rest for one in epoch]
        assert together == row[first : first + len(together)]
        ends = list(itertools.accumulate(map(len, epochs)))
        assert any(0 <= end - first - len(together) < after for end in ends)
        return
    whole = epochs[begun]
    assert [one[:1] for one in used] == [one[:1] for one in (whole + whole * before)[: len(used)]]
    number = state["epoch"]
    at = state["consumed"]
    left = epochs[number][at:] if at <= len(epochs[number]) else []
    size = len(left) // after * after if leftovers == "drop" else -(-len(left) // after) * after
    if len(left) == 0 or size == 0:
        return  # nothing is left of this epoch
    filled = left + epochs[number] * after
    assert [one[0] for one in rest[0]] == [one[0] for one in filled[:size]]
    assert rest[0][: len(left)] == left[:size]


def _all(samplers: list[packio.BucketSampler]) -> list[Any]:
    return [one for step in zip(*samplers, strict=True) for one in step]


def _told(batch: list[Any]) -> tuple[list[int], list[tuple[int, int]], Any]:
    """The samples of a batch, the places that crops are drawn from, and the size."""
    return [int(i) for i in batch], [(i.epoch, i.position) for i in batch], batch[0].size


@settings(deadline=None, max_examples=60)
@given(sizes=_data, batch=_batch, world=st.integers(2, 3), leftovers=_leftovers,
       stop=st.integers(0, 12))  # fmt: skip
def test_ranks_with_one_size_go_on_after_any_step(
    sizes: list[tuple[int, int]], batch: int, world: int, leftovers: str, stop: int
) -> None:
    def made() -> list[packio.BucketSampler]:
        return _ranks(Sized(sizes), batch, world, leftovers=leftovers, same_size=True)

    whole = made()
    expected = [[_told(one) for one in _all(whole)] for _ in range(3)]
    stop = min(stop, len(expected[0]) // world)
    ranks = made()
    steps = zip(*(itertools.islice(sampler, stop) for sampler in ranks), strict=True)
    assert [_told(one) for step in steps for one in step] == expected[0][: stop * world]
    resumed = made()
    for sampler in resumed:
        sampler.load_state_dict(ranks[0].state_dict(stop))
    left = expected[0][stop * world :]
    assert [_told(one) for one in _all(resumed)] == (left or expected[1 if expected[0] else 0])
    other = _ranks(Sized(sizes), batch, world + 1, leftovers=leftovers, same_size=True)[0]
    with pytest.raises(OptionError, match="another order"):
        other.load_state_dict(ranks[0].state_dict(stop))


def _many(count: int = 3000, seed: int = 0) -> Sized:
    return Sized(np.random.default_rng(seed).integers(8, 60, (count, 2)))


def test_no_two_samples_of_an_epoch_draw_the_same() -> None:
    for options in ({}, {"same_size": True}, {"leftovers": "drop"}):
        ranks = _ranks(_many(), 7, 3, **options)
        for _ in range(3):
            places = [(i.epoch, i.position) for one in _epoch(ranks) for i in one]
            assert len(set(places)) == len(places)
            assert min(position for _, position in places) >= 0


def test_epochs_and_seeds_differ_and_come_again() -> None:
    one = _sampler(_many(), 5, seed=1)
    first, second = list(one), list(one)
    assert first != second
    assert one.epoch == 2
    one.set_epoch(0)
    assert list(one) == first
    assert list(_sampler(_many(), 5, seed=2)) != first
    assert list(pickle.loads(pickle.dumps(_sampler(_many(), 5, seed=1)))) == first


def test_the_order_stays_as_it_is() -> None:
    """A checkpoint of today resumes with a packio of tomorrow."""
    sampler = _sampler(_many(), 5, seed=1)
    batches = [_told(one) for _ in range(3) for one in sampler]
    digest = hashlib.sha256(json.dumps(batches).encode()).hexdigest()
    assert digest[:16] == "90406af0cdc2db1c"


def test_samples_and_batches_are_spread_evenly() -> None:
    data = Sized([(20, 20)] * 12_000 + [(20, 40)] * 4000)
    orders = [list(_sampler(data, 8, seed=seed)) for seed in range(3)]
    for batches in orders:
        flat = [int(i) for one in batches for i in one if i < 12_000]
        assert abs(np.corrcoef(np.arange(len(flat)), flat)[0, 1]) < 0.04
        wide = [one[0].size == (20, 40) for one in batches]  # a quarter of each tenth
        tenths = np.array(wide).reshape(10, -1).sum(1)
        assert chi_square(tenths, np.full(10, 50)) < most(9)
    together = Counter(frozenset(map(int, one)) for batches in orders for one in batches)
    assert max(together.values()) == 1


def test_without_shuffling_samples_keep_their_order_in_their_buckets() -> None:
    data = Sized([(20, 20), (20, 40), (20, 20), (20, 40), (20, 20), (20, 20), (20, 40)])
    batches = [list(map(int, b)) for b in _sampler(data, 2, shuffle=False, leftovers="short")]
    assert batches == [[0, 2], [4, 5], [1, 3], [6]]
    carrying = _sampler(data, 2, shuffle=False)
    assert [list(map(int, b)) for b in carrying] == [[0, 2], [4, 5], [1, 3]]
    assert [list(map(int, b)) for b in carrying] == [[0, 2], [4, 5], [6, 1], [3, 6]]


def test_a_sample_takes_four_bytes() -> None:
    data = Sized(np.random.default_rng(0).integers(8, 60, (300_000, 2)))
    tracemalloc.start()
    sampler = _sampler(data, 16)
    next(iter(sampler))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 5 * len(data) + 200_000
    assert sampler.state_dict(1)["samples"] == 300_000


def _of_samples(samples: list[Any]) -> Any:
    indices, epochs, positions, sizes = zip(*samples, strict=True)
    return list(indices), list(zip(epochs, positions, strict=True)), sizes[0]


def _through_a_file(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("leftovers", ["carry", "drop", "short"])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_resumes_after_every_batch(leftovers: str, workers: int) -> None:
    data = _many(31)

    def made(number: int = workers) -> packio.Loader:
        sampler = _sampler(data, 4, seed=3, leftovers=leftovers)
        return packio.Loader(data, batch_sampler=sampler, num_workers=number, collate_fn=_listed)

    whole = made(0)
    expected = [_of_samples(batch) for _ in range(4) for batch in whole]
    loader = made()
    states = [loader.state_dict()]
    for _ in range(2):
        for _ in loader:
            states.append(loader.state_dict())  # noqa: PERF401 (a comprehension ends otherwise)
    for number in range(0, len(states), 1 if workers == 0 else 5):
        resumed = made(0)
        resumed.load_state_dict(_through_a_file(states[number]))
        rest = [_of_samples(batch) for _ in range(2) for batch in resumed]
        assert rest == expected[number : number + len(rest)]
        assert len(rest) >= 5


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata's
@pytest.mark.parametrize("workers", [0, 2])
def test_torchdatas_loader_resumes(workers: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    data = _many(61)

    def made() -> Any:
        sampler = _sampler(data, 4, seed=3)
        return stateful(data, batch_sampler=sampler, num_workers=workers, collate_fn=_listed)

    whole = made()
    expected = [[_of_samples(batch) for batch in whole] for _ in range(3)]
    for stop in (1, 6, len(expected[0]) - 1):
        loader = made()
        taken = [_of_samples(batch) for batch in itertools.islice(loader, stop)]
        assert taken == expected[0][:stop]
        state = pickle.loads(pickle.dumps(loader.state_dict()))
        resumed = made()
        resumed.load_state_dict(state)
        assert [_of_samples(batch) for batch in resumed] == expected[0][stop:]
        assert [_of_samples(batch) for batch in resumed] == expected[1]


def test_datasets_of_torch_know_the_sizes_of_their_parts() -> None:
    one, two = _many(40, 1), _many(30, 2)
    both: ConcatDataset[Any] = ConcatDataset([one, two])
    sizes = np.concatenate([one.image_sizes, two.image_sizes])
    some = [3, 60, 41, 0]
    for data, indices in ((both, list(range(70))), (Subset(both, some), some)):
        batches = list(_sampler(data, 1, leftovers="short"))
        found = {int(i): i.size for b in batches for i in b}
        assert found == {n: plain_bucket(*sizes[i].tolist()) for n, i in enumerate(indices)}


def test_a_state_of_another_order_is_refused() -> None:
    data = _many(40)
    samplers = [
        _sampler(data, 4), _sampler(data, 5), _sampler(data, 4, leftovers="drop"),
        _sampler(data, 4, seed=1), _sampler(data, 4, drop_small=True), _sampler(_many(40, 1), 4),
        _sampler(data, 4, shuffle=False), packio.BucketSampler(data, SIZES[:3], batch_size=4),
        _sampler(data, 4, same_size=True, rank=0, world_size=2), packio.ShuffleSampler(data),
    ]  # fmt: skip
    for a, b in itertools.permutations(samplers, 2):
        with pytest.raises(OptionError, match="another order"):
            b.load_state_dict(a.state_dict(3))
    said = "seed=0 in the state and 1 here, batch_size=4 in the state and 5 here;"
    with pytest.raises(OptionError, match=said) as refused:
        _sampler(data, 5, seed=1).load_state_dict(samplers[0].state_dict())
    assert "samples=" not in str(refused.value)
    with pytest.raises(OptionError, match="no such batch"):
        samplers[0].load_state_dict({**samplers[0].state_dict(), "epoch": 2, "consumed": -1000})


def test_what_cannot_be_meant_is_refused() -> None:
    data = _many(40)
    for options in ({"batch_size": 0}, {"batch_size": 2.5}, {"leftovers": "keep"}):
        with pytest.raises(OptionError, match="expected"):
            packio.BucketSampler(data, SIZES, **{"batch_size": 4, **options})  # type: ignore[arg-type]  # what a user may give
    with pytest.raises(OptionError, match="rank="):
        _sampler(data, 4, rank=2, world_size=2)
    with pytest.raises(OptionError, match="sizes= or area="):
        packio.BucketSampler(data, batch_size=4)
    numbers: Any = range(3)
    unknowns: list[Any] = [40, list(range(40)), ConcatDataset([data, numbers])]
    for unknown in unknowns:
        with pytest.raises(OptionError, match="image_sizes"):
            _sampler(unknown, 4)
    wrong: Any = _many(40)
    for sizes in (np.ones((39, 2), int), np.ones((40, 3), int), np.ones((40, 2))):
        wrong.image_sizes = sizes
        with pytest.raises(OptionError, match="height and width"):
            _sampler(wrong, 4)
    none = _many(40)
    none.image_sizes[[7, 30]] = 0
    with pytest.raises(OptionError, match=r"sample 7 .* 2 of 40"):
        _sampler(none, 4)
    with pytest.raises(OptionError, match="batch_sampler="):
        packio.Loader(data, sampler=_sampler(data, 4))  # type: ignore[arg-type]  # what a user may give


def test_a_state_counts_batches() -> None:
    sampler = _sampler(_many(40), 4)
    steps = len(list(sampler))
    with pytest.raises(OptionError, match="consumed=, the batches"):
        sampler.state_dict()
    with pytest.raises(OptionError, match="count batches, not samples"):
        sampler.state_dict(4 * steps)
    assert sampler.state_dict(steps)["epoch"] == 1


def test_no_samples_are_an_empty_epoch() -> None:
    for leftovers in ("carry", "drop", "short"):
        sampler = _sampler(Sized([]), 4, leftovers=leftovers)
        assert list(sampler) == []
        assert len(sampler) == 0
        assert sampler.left_out == {"small": 0, "leftovers": 0}
        assert sampler.batch_at(0, -1, 4, rank=0, world_size=2) == []  # as a forged state says
        few = _sampler(Sized([(20, 20)] * 3), 8, leftovers=leftovers)
        counts = [len(list(few)) for _ in range(8)]
        assert (
            counts
            == {"carry": [0, 0, 1] * 2 + [0, 1], "drop": [0] * 8, "short": [1] * 8}[leftovers]
        )


def _loaded(sampler: packio.BucketSampler) -> list[Any]:
    return list(packio.Loader(Sized(_FEW), batch_sampler=sampler, collate_fn=_listed))


@pytest.mark.parametrize("make", [list, _loaded])
@pytest.mark.parametrize(("leftovers", "said"), [("drop", 1), ("carry", 0)])
def test_buckets_without_a_whole_batch_are_told(make: Any, leftovers: str, said: int) -> None:
    sampler = _sampler(Sized(_FEW), 9, leftovers=leftovers)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert make(sampler) == []
    told = [str(w.message) for w in caught if "the epoch has no batch" in str(w.message)]
    assert len(told) == said
    assert all("the largest bucket has 3 samples" in message for message in told)


_FEW = [(40, 20)] * 3 + [(20, 40)] * 2
