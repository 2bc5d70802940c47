"""What a dataset draws and gives where its user says nothing."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import packio
from packio.errors import TransformError


def _pack(out: Path, count: int, **more: Any) -> Path:
    r = np.random.default_rng(0)
    samples = [
        {"image": r.integers(0, 256, (16, 16, 3), np.uint8), **dict.fromkeys(more, i)}
        for i in range(count)
    ]
    return packio.pack(samples, out).out


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve images; each label is the sample's number."""
    return _pack(tmp_path_factory.mktemp("defaults") / "x.lmdb", 12, label=True)


@pytest.fixture(scope="module")
def unlabelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _pack(tmp_path_factory.mktemp("defaults") / "bare.lmdb", 4)


# ---- no labels ----


def test_two_images_without_labels_are_not_taken_for_images_and_labels(unlabelled: Path) -> None:
    ds = packio.LmdbDataset(unlabelled)
    with pytest.raises(ValueError, match="expected 2, got 1"):
        _, _ = ds[0]
    for loader in (
        DataLoader(ds, 2), DataLoader(ds, 2, collate_fn=packio.collate), packio.Loader(ds, 2)
    ):  # fmt: skip
        with pytest.raises(ValueError, match="expected 2, got 1"):
            for _, _ in loader:
                pass


def test_images_without_labels_are_a_tuple_of_one(unlabelled: Path) -> None:
    ds = packio.LmdbDataset(unlabelled, crop=packio.CenterCrop(8))
    (image,) = ds[0]
    assert image.shape == (3, 8, 8)
    assert [images.shape for (images,) in packio.Loader(ds, 2)] == [(2, 3, 8, 8)] * 2


def test_a_field_asked_for_by_its_name_is_bare(unlabelled: Path) -> None:
    assert packio.LmdbDataset(unlabelled, fields="image")[0].shape == (3, 16, 16)


# ---- torch's generator ----


def test_making_datasets_samplers_and_loaders_draws_nothing(pack: Path) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    ds = packio.LmdbDataset(pack, crop=packio.RandomResizedCrop(8), hflip=0.5)
    both = packio.ConcatPacks([ds, ds.with_options(hflip=0)])
    for data in (ds, both, ds.subset([1, 2]), ds.where(label=3), [1, 2, 3]):
        packio.ShuffleSampler(data)
        packio.Loader(data, 2, shuffle=True)
        packio.Loader(data, 2, num_workers=1)
    assert torch.equal(before, torch.get_rng_state())


def test_a_loader_draws_nothing_from_a_generator_before_its_epoch(pack: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    packio.Loader(packio.LmdbDataset(pack), 2, shuffle=True, generator=generator)
    assert torch.equal(before, generator.get_state())


def _batches(pack: Path, kind: str, workers: int) -> list[torch.Tensor]:
    torch.manual_seed(5)
    ds = packio.LmdbDataset(pack, crop=packio.RandomResizedCrop(8))
    sampler = packio.ShuffleSampler(ds)
    loader: Any = (
        DataLoader(ds, 4, sampler=sampler, num_workers=workers)
        if kind == "torch"
        else packio.Loader(ds, 4, sampler=sampler, num_workers=workers)
    )
    return [images for _ in range(2) for images, _ in loader]


@pytest.mark.parametrize("kind", ["torch", "packio"])
def test_without_a_seed_torchs_generator_decides_for_any_number_of_workers(
    pack: Path, kind: str
) -> None:
    one = _batches(pack, kind, 0)
    for workers in (0, 1, 2):
        other = _batches(pack, kind, workers)
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert not torch.equal(one[0], one[3])  # of another epoch


def test_datasets_without_a_seed_draw_apart(pack: Path) -> None:
    one, other = (packio.LmdbDataset(pack, crop=packio.RandomResizedCrop(8)) for _ in range(2))
    assert one.seed != other.seed
    assert one.subset([0]).seed == one.with_options(hflip=0.5).seed == one.seed


# ---- transforms ----


def test_each_view_may_have_a_transform_of_its_own(pack: Path) -> None:
    ds = packio.LmdbDataset(
        pack, views=[packio.CenterCrop(8)] * 2, transform=[lambda x: x * 0, lambda x: x * 0 + 1]
    )
    (first, second), _ = ds[0]
    assert (int(first.max()), int(second.min())) == (0, 1)
    (firsts, seconds), _ = next(iter(packio.Loader(ds, 4)))
    assert (int(firsts.max()), int(seconds.min())) == (0, 1)


def test_transforms_that_are_set_later_are_as_many_as_there_are_views(pack: Path) -> None:
    ds = packio.LmdbDataset(pack, views=[packio.CenterCrop(8)] * 2)
    ds.transform = [torch.clone]
    with pytest.raises(TransformError, match="1 transforms for 2 views"):
        ds[0]


def test_a_transform_that_gives_views_with_strides_is_made_contiguous_without_a_word(
    pack: Path,
) -> None:
    ds = packio.LmdbDataset(pack, transform=lambda image: image.flip(1).transpose(1, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ds[0][0].is_contiguous()
