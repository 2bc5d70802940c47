"""Crops and flips differ in each epoch, in any DataLoader, and are the same again with a seed."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import long
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

import packio

SAMPLES = 30


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of noise: two crops of one are never equal."""
    folder = tmp_path_factory.mktemp("epochs")
    (folder / "images" / "noise").mkdir(parents=True)
    draw = np.random.default_rng(0)
    for i in range(SAMPLES):
        noise = Image.fromarray(draw.integers(0, 256, (40, 48, 3), np.uint8))
        noise.save(folder / "images" / "noise" / f"{i}.jpg")
    packio.pack(folder / "images", folder / "pack.lmdb")
    return folder / "pack.lmdb"


def dataset(pack: Path, seed: int | None = None) -> packio.PackDataset:
    return packio.LmdbDataset(pack, crop=packio.RandomResizedCrop(8), fields="image", seed=seed)


FIXED = [list(range(start, start + 10)) for start in range(0, SAMPLES, 10)]
LOADERS: dict[str, dict[str, Any]] = {
    "not shuffled": {"batch_size": 8},
    "batches of one": {"batch_size": 1},
    "fixed batches": {"batch_sampler": FIXED},
    "samples without batches": {"batch_size": None},
}


def epochs(ds: packio.PackDataset, count: int = 2, **options: Any) -> list[torch.Tensor]:
    """The images of some epochs, in the order of the loader: (N, 3, 8, 8) each."""
    loader = DataLoader(ds, **options)
    return [torch.cat([b.reshape(-1, 3, 8, 8) for b in loader]) for _ in range(count)]


@pytest.mark.parametrize("workers", [
    {}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True},
], ids=["no workers", "new workers", "persistent workers"])  # fmt: skip
@pytest.mark.parametrize("kind", LOADERS)
def test_every_sample_is_drawn_anew_in_each_epoch(
    pack: Path, kind: str, workers: dict[str, Any]
) -> None:
    a, b = epochs(dataset(pack), **LOADERS[kind], **workers)
    assert len(a) == len(b) == SAMPLES
    same = sum(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert same <= 3  # boxes are whole pixels: one in some thousand is drawn twice


@pytest.mark.parametrize("method", long.after(1, ("spawn", "forkserver")))
def test_in_workers_that_are_not_forked_too(pack: Path, method: str) -> None:
    a, b = epochs(dataset(pack), batch_size=1, num_workers=1, multiprocessing_context=method)
    assert sum(torch.equal(x, y) for x, y in zip(a, b, strict=True)) <= 3


@pytest.mark.parametrize("workers", [0, 2])
def test_a_seed_of_its_own_gives_the_same_whatever_torchs_seed(pack: Path, workers: int) -> None:
    ds, again = dataset(pack, seed=3), dataset(pack, seed=3)
    for epoch in range(2):
        torch.manual_seed(epoch)
        ds.set_epoch(epoch)
        again.set_epoch(epoch)
        (a,) = epochs(ds, 1, batch_size=4, num_workers=workers)
        (b,) = epochs(again, 1, batch_size=4)
        assert torch.equal(a, b)


@pytest.mark.parametrize("batches", ["not shuffled", "batches of one", "fixed batches"])
def test_a_seed_without_epochs_warns_once_that_batches_repeat(pack: Path, batches: str) -> None:
    ds = dataset(pack, seed=3)
    (first,) = epochs(ds, 1, **LOADERS[batches])
    with pytest.warns(UserWarning, match=r"draws the same crops.*set_epoch") as said:
        second, _ = epochs(ds, 2, **LOADERS[batches])
    assert len(said) == 1
    assert torch.equal(first, second)


def test_what_is_not_random_never_warns(pack: Path) -> None:
    ds = packio.LmdbDataset(pack, crop=packio.CenterCrop(8), fields="image", seed=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        a, b = epochs(ds, batch_size=1)
    assert torch.equal(a, b)


def test_more_threads_share_epoch_and_counts(pack: Path) -> None:
    ds = dataset(pack, seed=3)
    ds.set_epoch(4)
    threaded, cropped = ds.with_options(threads=2), ds.with_options(hflip=0.5)
    assert threaded.epoch == cropped.epoch == ds.subset([1]).epoch == 4
    threaded.set_epoch(5)
    assert (ds.epoch, cropped.epoch) == (5, 4)
