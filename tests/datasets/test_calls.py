"""Arguments of the wrong kind, or of another library, are refused with the right call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, Subset

import packio
from packio.errors import OptionError


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Noise of several sizes; each label is the sample's number."""
    r = np.random.default_rng(0)
    samples = [
        {"image": r.integers(0, 256, (12 + i, 12, 3), np.uint8), "label": i} for i in range(6)
    ]
    return packio.pack(samples, tmp_path_factory.mktemp("calls") / "x.lmdb").out


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"hflip": True}, r"hflip=True: .*hflip=0\.5"),
        ({"vflip": True}, r"vflip=True: .*vflip=0\.5"),
        ({"hflip": "0.5"}, r"hflip='0\.5'.*probability"),
        ({"crop": 224}, r"crop=224: .*packio\.RandomResizedCrop\(224\)"),
        ({"views": packio.CenterCrop(8)}, r"views=.*\[packio\.RandomResizedCrop"),
        ({"threads": True}, "threads=True"),
        ({"seed": "a"}, "seed='a'.*int"),
        ({"seed": True}, "seed=True.*int"),
        ({"transform": "flip"}, "transform='flip'.*function"),
        ({"transform": [str], "views": [packio.CenterCrop(8)] * 2}, "transform=.*2"),
        ({"exif_orientation": "no"}, "exif_orientation='no'.*True or False"),
    ],
)  # fmt: skip
def test_options_of_another_kind_are_refused(
    pack: Path, options: dict[str, Any], expected: str
) -> None:
    with pytest.raises(OptionError, match=expected):
        packio.LmdbDataset(pack, **options)


@pytest.mark.parametrize(
    ("positional", "named", "expected"),
    [
        ((str,), {}, r"LmdbDataset\(path, transform=…\).*output='pil'"),
        ((), {"loader": str}, "loader=.*transform=.*output='pil'"),
        ((), {"is_valid_file": str}, "is_valid_file=.*--include"),
        ((), {"num_workers": 2}, r"num_workers=.*packio\.Loader"),
        ((), {"batch_size": 2}, r"batch_size=.*packio\.Loader"),
        ((), {"tranform": str}, "tranform=.*transform="),
    ],
)
def test_calls_as_of_image_folder_say_how_packios_is_called(
    pack: Path, positional: Any, named: Any, expected: str
) -> None:
    with pytest.raises(TypeError, match=expected):
        packio.LmdbDataset(pack, *positional, **named)


def test_root_is_the_first_argument() -> None:
    kind: Any = packio.LmdbDataset
    with pytest.raises(TypeError, match=r"root=.*LmdbDataset\('train"):
        kind(root="train.lmdb")


def test_a_class_that_hands_image_folders_arguments_on_hears_the_same(pack: Path) -> None:
    class Mine(packio.LmdbDataset):
        def __init__(self, root: Any, transform: Any) -> None:
            super().__init__(root, transform)  # type: ignore[call-arg]  # what is refused

    with pytest.raises(TypeError, match="transform=…"):
        Mine(pack, None)


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ({"workers": 2}, "workers=.*num_workers="),
        ({"seed": 1}, r"seed=.*order_seed=.*LmdbDataset\(…, seed="),
        ({"in_order": True}, "in_order=.*always"),
        ({"pin_memory_device": "cuda"}, "pin_memory_device=.*device="),
        ({"crop": 8}, r"crop=.*the dataset"),
        ({"bath_size": 8}, "bath_size=.*batch_size="),
        ({"normalise": None}, "normalise=.*normalize="),
    ],
)
def test_arguments_that_loader_lacks_are_refused_with_those_that_it_has(
    pack: Path, named: Any, expected: str
) -> None:
    with pytest.raises(TypeError, match=expected):
        packio.Loader(packio.LmdbDataset(pack), **named)


def test_loader_takes_no_more_than_two_arguments_by_position(pack: Path) -> None:
    kind: Any = packio.Loader
    with pytest.raises(TypeError, match=r"Loader\(dataset, batch_size, shuffle=…\)"):
        kind(packio.LmdbDataset(pack), 2, True)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"batch_size": None}, "batch_size=None.*batch_sampler="),
        ({"batch_size": 2.5}, r"batch_size=2\.5"),
        ({"batch_size": True}, "batch_size=True"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"num_workers": "2"}, "num_workers='2'"),
        ({"num_workers": True}, "num_workers=True"),
        ({"prefetch_factor": "2"}, "prefetch_factor='2'"),
        ({"shuffle": "yes"}, "shuffle='yes'"),
    ],
)
def test_options_of_a_loader_of_another_kind_are_refused(
    pack: Path, options: Any, expected: str
) -> None:
    with pytest.raises(OptionError, match=expected):
        packio.Loader(packio.LmdbDataset(pack), **options)


def test_a_loader_of_no_dataset_is_refused_with_the_right_call(pack: Path) -> None:
    class Endless(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(range(3))

    opened = packio.open(pack)
    for wrong in ("train.lmdb", Path("train.lmdb"), opened, 5, packio.LmdbDataset, Endless()):
        with pytest.raises(OptionError, match=r"packio\.Loader\(packio\.PackDataset\('"):
            packio.Loader(wrong, 2)


@pytest.mark.parametrize("kind", [packio.ShuffleSampler, packio.RepeatAugSampler])
def test_a_sampler_of_no_dataset_is_refused(kind: Any) -> None:
    for wrong in ("train.lmdb", Path("train.lmdb"), True):
        with pytest.raises(OptionError, match="dataset"):
            kind(wrong)


def test_a_path_that_is_no_path_is_refused(pack: Path) -> None:
    kind: Any = packio.LmdbDataset
    for wrong in (5, None, packio.LmdbDataset(pack), [pack, pack]):
        with pytest.raises(OptionError, match="path"):
            kind(wrong)
    with pytest.raises(OptionError, match="ConcatPacks"):
        kind([pack, pack])


# ---- indices ----


def test_lists_slices_and_arrays_of_indices_give_a_batch(pack: Path) -> None:
    ds = packio.LmdbDataset(pack, crop=packio.CenterCrop(8))
    for data in (ds, packio.ConcatPacks([ds]), ds.subset([0, 1, 2, 3, 4, 5])):
        mask = [False, True, True, False, False, False]
        for which in (slice(1, 3), [1, 2], np.array([1, 2]), torch.tensor([1, 2]), range(1, 3),
                      np.array(mask), torch.tensor(mask)):  # fmt: skip
            images, labels = data[which]
            assert images.shape == (2, 3, 8, 8)
            assert labels.tolist() == [1, 2]
        assert data[-2:][1].tolist() == [4, 5]
        assert data[::-2][1].tolist() == [5, 3, 1]


def test_numbers_of_numpy_and_torch_give_a_sample(pack: Path) -> None:
    ds = packio.LmdbDataset(pack)
    assert [ds[i][1] for i in (np.int64(3), torch.tensor(3), -3)] == [3, 3, 3]


@pytest.mark.parametrize("collate", [None, packio.collate])
@pytest.mark.parametrize("fields", [("image", "label"), {"x": "image", "y": "label"}])
@pytest.mark.parametrize("subset", [False, True])
def test_a_batch_sampler_as_sampler_gives_batches(
    pack: Path, collate: Any, fields: Any, subset: bool
) -> None:
    ds: Any = packio.LmdbDataset(pack, crop=packio.CenterCrop(8), fields=fields)
    ds = Subset(ds, range(6)) if subset else ds
    sampler = BatchSampler(SequentialSampler(ds), 4, drop_last=False)
    batches = list(DataLoader(ds, batch_size=None, sampler=sampler, collate_fn=collate))
    pairs = [list(batch.values()) if isinstance(batch, dict) else batch for batch in batches]
    assert [tuple(images.shape) for images, _ in pairs] == [(4, 3, 8, 8), (2, 3, 8, 8)]
    assert [labels.tolist() for _, labels in pairs] == [[0, 1, 2, 3], [4, 5]]


@pytest.mark.parametrize("wrong", [True, np.True_, torch.tensor(data=True), [True, False]])
def test_a_bool_is_no_index(pack: Path, wrong: Any) -> None:
    ds = packio.LmdbDataset(pack, crop=packio.CenterCrop(8))
    for data in (ds, packio.ConcatPacks([ds]), ds.subset([0, 1, 2])):
        with pytest.raises(OptionError, match="bool"):
            data[wrong]


def test_images_of_several_sizes_say_which_crop_makes_one(pack: Path) -> None:
    ds = packio.LmdbDataset(pack)
    with pytest.raises(OptionError, match=r"\(3, 12, 12\).*\(3, 13, 12\).*RandomResizedCrop") as e:
        packio.collate([ds[0], ds[1]])
    assert "ResizeCenterCrop" in str(e.value)


def test_other_errors_of_collating_stay_torchs() -> None:
    with pytest.raises(TypeError, match="default_collate"):
        packio.collate([object()])
