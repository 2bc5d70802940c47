"""Attributes: those of ImageFolder that scripts read, and those that cannot be set."""

from __future__ import annotations

import collections
import json
import pickle
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

import packio
from packio.errors import OptionError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of three JPEGs."""
    root = tmp_path_factory.mktemp("attributes") / "photos"
    for i, name in enumerate(("cats/0", "cats/1", "cats/2", "dogs/0", "dogs/1", "dogs/2")):
        path = root / f"{name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 30), (i * 40, 0, 0)).save(path)
    return root


@pytest.fixture(scope="module")
def pack(folder: Path) -> Path:
    return packio.pack(folder, folder.with_name("x.lmdb")).out


OPTIONS: dict[str, Any] = {
    "crop": packio.CenterCrop(8), "hflip": 0.5, "vflip": 0.5, "output": "pil", "fields": "image",
    "dtype": None, "exif_orientation": False, "split": "val", "threads": 2, "decoder": "pillow",
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_that_is_set_later_is_refused_with_the_right_call(pack: Path, name: str) -> None:
    ds = packio.LmdbDataset(pack)
    for target in (ds, packio.ConcatPacks([ds])):
        with pytest.raises(OptionError, match=rf"with_options\({name}="):
            setattr(target, name, OPTIONS[name])


@pytest.mark.parametrize(
    ("name", "expected"),
    [("samples", "subset"), ("imgs", "subset"), ("targets", "target_transform"),
     ("loader", "transform="), ("classes", "target_transform"), ("class_to_idx", "target_tra")],
)  # fmt: skip
def test_what_image_folder_reads_cannot_be_set(pack: Path, name: str, expected: str) -> None:
    ds = packio.LmdbDataset(pack)
    with pytest.raises(OptionError, match=expected):
        setattr(ds, name, [])


def test_transforms_can_be_set_later(pack: Path) -> None:
    ds = packio.LmdbDataset(pack)
    ds.transform = lambda image: image[:, :1]
    ds.target_transform = lambda label: label + 5
    image, label = ds[0]
    assert (tuple(image.shape), label) == ((3, 1, 40), 5)


def test_transforms_of_several_packs_can_be_set_later(pack: Path) -> None:
    whole = packio.ConcatPacks([packio.LmdbDataset(pack), packio.LmdbDataset(pack)])
    whole.target_transform = lambda label: label + 5
    assert [whole[0][1], whole[7][1]] == [5, 5]
    assert whole.target_transform(1) == 6


def test_other_attributes_are_the_users(pack: Path) -> None:
    ds: Any = packio.LmdbDataset(pack)
    ds.note = "mine"
    assert pickle.loads(pickle.dumps(ds)).note == "mine"


def test_targets_do_what_scripts_do_with_a_list(
    pack: Path, folder: Path, torchvision: ModuleType
) -> None:
    theirs = torchvision.datasets.ImageFolder(folder).targets
    for ds in (packio.LmdbDataset(pack), packio.ConcatPacks([packio.LmdbDataset(pack)])):
        ours: Any = ds.targets
        assert ours
        assert ours.count(1) == theirs.count(1)
        assert ours.index(1) == theirs.index(1)
        assert json.dumps(ours[0]) == json.dumps(theirs[0])
        assert [json.dumps(t) for t in ours] == [json.dumps(t) for t in theirs]
        assert collections.Counter(ours) == collections.Counter(theirs)
        assert list(ours[2:4]) == theirs[2:4]
        with pytest.raises(ValueError, match="in"):
            ours.index(9)


def test_targets_are_an_array_too(pack: Path) -> None:
    ours: Any = packio.LmdbDataset(pack).targets
    assert isinstance(ours, np.ndarray)
    assert ours.tolist() == [0, 0, 0, 1, 1, 1]
    assert (1 / np.bincount(ours))[ours].tolist() == [1 / 3] * 6
    assert ours[np.array([0, 5])].tolist() == [0, 1]
    assert not packio.LmdbDataset(pack).subset([]).targets


def test_a_comparison_of_targets_has_no_truth_of_its_own(pack: Path) -> None:
    ours: Any = packio.LmdbDataset(pack).targets
    with pytest.raises(ValueError, match="ambiguous"):
        bool(ours == [0, 0, 0, 0, 0, 0])


def test_targets_are_not_added_as_numbers_where_lists_would_be_joined(pack: Path) -> None:
    ours: Any = packio.LmdbDataset(pack).targets
    with pytest.raises(OptionError, match="concatenate"):
        ours + ours


def test_samples_are_pairs_of_key_and_label(
    pack: Path, folder: Path, torchvision: ModuleType
) -> None:
    theirs = torchvision.datasets.ImageFolder(folder).samples
    expected = [(str(Path(path).relative_to(folder)), label) for path, label in theirs]
    ds = packio.LmdbDataset(pack)
    assert list(ds.samples) == list(ds.imgs) == expected
    assert list(ds.subset([4, 1]).samples) == [expected[4], expected[1]]
    assert list(packio.FolderDataset(folder).samples) == expected
    timms = pytest.importorskip("timm.data").ImageDataset(str(folder))
    for given in ({}, {"basename": True}, {"absolute": True}):
        assert packio.FolderDataset(folder).filenames(**given) == timms.filenames(**given)


def test_samples_cannot_be_changed_in_place(pack: Path) -> None:
    samples: Any = packio.LmdbDataset(pack).samples
    with pytest.raises(AttributeError):
        samples.pop()


def test_a_loader_says_what_it_loads(pack: Path) -> None:
    said = repr(packio.Loader(packio.LmdbDataset(pack), 8, shuffle=True))
    assert said.startswith("Loader(LmdbDataset('")
    assert said.endswith("batch_size=8, shuffle=True)")


@pytest.mark.parametrize("name", ["batch_size", "dataset", "num_workers", "device", "sampler"])
def test_an_option_of_a_loader_that_is_set_later_is_refused(pack: Path, name: str) -> None:
    loader = packio.Loader(packio.LmdbDataset(pack), 2)
    with pytest.raises(OptionError, match=rf"packio\.Loader\(…, {name}="):
        setattr(loader, name, 1)
