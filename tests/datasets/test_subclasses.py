"""Classes derived from packio's datasets: what they override is what batches are made by."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset

import packio
from packio.errors import OptionError

COUNT = 12
SAID = "ignore:.*sample by sample"


class WithIndex(packio.LmdbDataset):
    """The index in the place of the label, as DINO's k-NN evaluation has it."""

    def __getitem__(self, index: Any) -> Any:
        image, _ = super().__getitem__(index)
        return image, int(index)


class OwnBatches(packio.LmdbDataset):
    def __getitems__(self, indices: Any) -> Any:
        return [(image, 100 + label) for image, label in super().__getitems__(indices)]


class Half(packio.LmdbDataset):
    def __len__(self) -> int:
        return COUNT // 2


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Noise of 12 x 12 pixels; every label is 7."""
    r = np.random.default_rng(0)
    samples = [
        {"image": r.integers(0, 256, (12, 12, 3), np.uint8), "label": 7} for _ in range(COUNT)
    ]
    return packio.pack(samples, tmp_path_factory.mktemp("subclasses") / "x.lmdb").out


def _labels(batches: Any) -> list[int]:
    return [int(label) for _, labels in batches for label in labels]


def _loaders(dataset: Any, size: int = 4) -> dict[str, Any]:
    return {
        "torch": DataLoader(dataset, size),
        "collate": DataLoader(dataset, size, collate_fn=packio.collate),
        "workers": DataLoader(dataset, size, num_workers=1, collate_fn=packio.collate),
        "packio": packio.Loader(dataset, size),
        "packio_workers": packio.Loader(dataset, size, num_workers=1),
        "packio_subset": packio.Loader(Subset(dataset, range(COUNT)), size),
        "torch_subset": DataLoader(Subset(dataset, range(COUNT)), size),
    }


@pytest.mark.filterwarnings(SAID)
@pytest.mark.parametrize("how", _loaders([]))
def test_batches_are_made_by_a_getitem_of_ones_own(pack: Path, how: str) -> None:
    assert _labels(_loaders(WithIndex(pack))[how]) == list(range(COUNT))


@pytest.mark.filterwarnings(SAID)
def test_gather_and_parts_ask_a_getitem_of_ones_own(pack: Path) -> None:
    ds = WithIndex(pack)
    assert ds.gather([3, 5])[1].tolist() == [3, 5]
    assert _labels(packio.Loader(ds.subset([4, 6, 8]), 3)) == [0, 1, 2]


@pytest.mark.filterwarnings(SAID)
def test_crops_are_those_of_the_same_dataset_without_a_getitem_of_its_own(pack: Path) -> None:
    how: Any = {"crop": packio.RandomResizedCrop(8), "seed": 3}
    ours = list(packio.Loader(packio.LmdbDataset(pack, **how), 4))
    theirs = list(packio.Loader(WithIndex(pack, **how), 4))
    assert all(torch.equal(a[0], b[0]) for a, b in zip(ours, theirs, strict=True))


def test_it_is_said_once_that_batches_are_made_one_by_one(pack: Path) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        ds = WithIndex(pack)
        ds.with_options(hflip=0.5)
        for _ in range(2):
            list(DataLoader(ds, 4, collate_fn=packio.collate))
    (message,) = [str(w.message) for w in said]
    assert "WithIndex has a __getitem__ of its own" in message
    assert "fields=('image', 'index')" in message


@pytest.mark.parametrize("how", _loaders([]))
def test_batches_are_made_by_getitems_of_ones_own(pack: Path, how: str) -> None:
    assert set(_labels(_loaders(OwnBatches(pack))[how])) == {107}


def test_a_length_of_ones_own_is_the_epochs(pack: Path) -> None:
    ds = Half(pack)
    for loader in (packio.Loader(ds, 2), DataLoader(ds, 2), packio.Loader(ds, 2, num_workers=1)):
        assert len(_labels(loader)) == COUNT // 2
    assert len(packio.ShuffleSampler(ds)) == COUNT // 2


@pytest.mark.filterwarnings(SAID)
def test_a_longer_length_goes_with_a_getitem_of_ones_own(pack: Path) -> None:
    class Twice(packio.LmdbDataset):
        def __len__(self) -> int:
            return 2 * super().__len__()

        def __getitem__(self, index: Any) -> Any:
            return super().__getitem__(index % (len(self) // 2))

    assert len(_labels(packio.Loader(Twice(pack), 5, shuffle=True))) == 2 * COUNT


@pytest.mark.filterwarnings(SAID)
@pytest.mark.parametrize("kind", [WithIndex, OwnBatches, Half])
def test_concat_packs_refuses_what_it_would_not_call(pack: Path, kind: Any) -> None:
    with pytest.raises(OptionError, match=rf"{kind.__name__} has .* torch\.utils\.data\.Concat"):
        packio.ConcatPacks([packio.LmdbDataset(pack), kind(pack)])


@pytest.mark.filterwarnings(SAID)
def test_batches_on_a_device_or_into_a_tensor_are_refused(pack: Path) -> None:
    with pytest.raises(OptionError, match="__getitem__"):
        WithIndex(pack).gather([0], out=torch.empty(1, 3, 12, 12, dtype=torch.uint8))


@pytest.mark.parametrize("name", ["loader", "find_classes", "make_dataset"])
def test_what_only_image_folder_asks_is_refused_by_name(pack: Path, name: str) -> None:
    kind: Any = type("Mine", (packio.LmdbDataset,), {name: staticmethod(lambda *_: None)})
    with pytest.raises(OptionError, match=rf"Mine has {name}.*packio"):
        kind(pack)


def test_options_of_a_class_with_arguments_of_its_own_can_be_changed(pack: Path) -> None:
    class Mine(packio.LmdbDataset):
        def __init__(self, size: int, place: Path) -> None:
            super().__init__(place, crop=packio.CenterCrop(size))
            self.mine = size

    small = Mine(8, pack).with_options(crop=packio.CenterCrop(4))
    assert small[0][0].shape == (3, 4, 4)
    assert (type(small), small.mine) == (Mine, 8)
