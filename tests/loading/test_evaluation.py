"""Evaluation over several ranks counts every sample once; trainers set the epoch."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import packio
from packio.errors import OptionError
from packio.loading.samplers import DefaultSampler


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eighty small images; each label is the sample's number."""
    r = np.random.default_rng(0)
    samples = [{"image": r.integers(0, 256, (8, 8, 3), np.uint8), "label": i} for i in range(80)]
    return packio.pack(samples, tmp_path_factory.mktemp("evaluation") / "x.lmdb").out


@pytest.fixture
def as_rank(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let this process be one of several ranks."""

    def be(rank: int, world_size: int) -> None:
        monkeypatch.setattr("packio.loading.ranks.current", lambda: (rank, world_size))

    return be


def _seen(pack: Path, as_rank: Any, world_size: int, **options: Any) -> list[list[int]]:
    found = []
    for rank in range(world_size):
        as_rank(rank, world_size)
        loader = packio.Loader(packio.LmdbDataset(pack), 9, **options)
        batches = [labels.tolist() for _, labels in loader]
        assert len(loader) == len(batches)
        found.append([label for batch in batches for label in batch])
    return found


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_sample_comes_once_where_ranks_are_not_made_even(
    pack: Path, as_rank: Any, world_size: int, shuffle: bool
) -> None:
    each = _seen(pack, as_rank, world_size, even=False, shuffle=shuffle)
    assert sorted(label for rank in each for label in rank) == list(range(80))


def test_even_ranks_take_as_many_samples(pack: Path, as_rank: Any) -> None:
    each = _seen(pack, as_rank, 3, even=True)
    assert [len(rank) for rank in each] == [27, 27, 27]


def test_samples_that_come_twice_in_evaluation_are_said(pack: Path, as_rank: Any) -> None:
    as_rank(0, 3)
    loader = packio.Loader(packio.LmdbDataset(pack), 9)
    with pytest.warns(UserWarning, match=r"80 samples for 3 ranks: 1 come twice.*even=False"):
        list(loader)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(loader)  # once
        list(packio.Loader(packio.LmdbDataset(pack), 9, shuffle=True))
        list(packio.Loader(packio.LmdbDataset(pack), 9, even=True))
        as_rank(1, 2)
        list(packio.Loader(packio.LmdbDataset(pack), 9))


def test_an_evaluation_that_is_not_even_resumes(pack: Path, as_rank: Any) -> None:
    as_rank(1, 3)
    loader = packio.Loader(packio.LmdbDataset(pack), 9, even=False)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    rest = [labels.tolist() for _, labels in batches]
    resumed = packio.Loader(packio.LmdbDataset(pack), 9, even=False)
    resumed.load_state_dict(state)
    assert [labels.tolist() for _, labels in resumed] == rest


def test_even_is_for_the_loaders_own_order(pack: Path) -> None:
    with pytest.raises(OptionError, match="even="):
        packio.Loader(packio.LmdbDataset(pack), 9, sampler=range(80), even=False)


def test_a_sampler_for_a_dataloader_may_leave_ranks_uneven() -> None:
    orders = [
        packio.ShuffleSampler(80, rank=rank, world_size=3, even=False, shuffle=False)
        for rank in range(3)
    ]
    assert [len(order) for order in orders] == [27, 27, 26]
    assert sorted(i for order in orders for i in order) == list(range(80))


# ---- the epoch that others set ----


def _first(loader: Any) -> torch.Tensor:
    images: torch.Tensor = next(iter(loader))[0]
    return images


def _loader(pack: Path, **options: Any) -> Any:
    ds = packio.LmdbDataset(pack, crop=packio.RandomResizedCrop(4), seed=3)
    return packio.Loader(ds, 8, shuffle=True, **options)


@pytest.mark.parametrize("options", [{}, {"threads": 2}])
@pytest.mark.parametrize("target", ["dataset", "sampler", "loader"])
def test_a_run_that_starts_again_at_an_epoch_sees_that_epoch(
    pack: Path, target: str, options: Any
) -> None:
    whole = _loader(pack, **options)
    epochs = [_first(whole) for _ in range(6)]
    again = _loader(pack, **options)
    {"dataset": again.dataset, "sampler": again.sampler, "loader": again}[target].set_epoch(5)
    assert torch.equal(_first(again), epochs[5])
    assert again.epoch == 6


def test_a_dataset_that_is_told_each_epoch_goes_through_all(pack: Path) -> None:
    counting, told = _loader(pack), _loader(pack)
    for epoch in range(3):
        told.dataset.set_epoch(epoch)
        assert torch.equal(_first(counting), _first(told))


def test_a_loaded_epoch_keeps_its_position_when_it_is_set(pack: Path) -> None:
    loader = _loader(pack)
    loader.dataset.set_epoch(2)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    rest = [images for images, _ in batches]
    resumed = _loader(pack)
    resumed.dataset.set_epoch(0)
    resumed.load_state_dict(state)
    resumed.dataset.set_epoch(2)  # as timm does before each epoch
    assert torch.equal(_first(resumed), rest[0])


def test_a_state_counts_more_than_an_epoch_set_before_it(pack: Path) -> None:
    loader = _loader(pack)
    next(batches := iter(loader))
    state, second = loader.state_dict(), next(batches)[0]
    resumed = _loader(pack)
    resumed.dataset.set_epoch(4)
    resumed.load_state_dict(state)
    assert torch.equal(_first(resumed), second)


def test_two_loaders_of_one_dataset_count_apart(pack: Path) -> None:
    ds = packio.LmdbDataset(pack)
    one, other = packio.Loader(ds, 8, shuffle=True), packio.Loader(ds, 8)
    for _ in range(3):
        list(one)
    list(other)
    assert (one.epoch, other.epoch) == (3, 1)


# ---- trainers that ask for a DataLoader ----


@pytest.mark.usefixtures("torchvision")  # lightning imports it
def test_fabric_takes_a_dataloader_of_packios_dataset_and_sampler(pack: Path) -> None:
    fabric = pytest.importorskip("lightning.fabric").Fabric(accelerator="cpu", devices=1)
    ds = packio.LmdbDataset(pack)
    loader = DataLoader(ds, 8, sampler=packio.ShuffleSampler(ds), collate_fn=packio.collate)
    seen = [i for _, labels in fabric.setup_dataloaders(loader) for i in labels.tolist()]
    assert sorted(seen) == list(range(80))


def test_lightnings_seeded_workers_use_the_function_that_it_sets(pack: Path) -> None:
    loader = packio.Loader(packio.LmdbDataset(pack), 40, num_workers=1, collate_fn=_threads)
    loader.worker_init_fn = _with_seven_threads
    assert list(loader) == [7, 7]


def _with_seven_threads(_: int) -> None:
    torch.set_num_threads(7)


def _threads(_: Any) -> int:
    return torch.get_num_threads()


def test_an_order_says_that_it_is_not_even() -> None:
    order = DefaultSampler(80, None, lambda: 0, shuffle=False, even=False, rank=0, world_size=1)
    assert order.order["even"] is False
    assert "even" not in packio.ShuffleSampler(80).order
