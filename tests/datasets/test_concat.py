"""`packio.ConcatPacks`: one batch of several packs, as if they were one."""

from __future__ import annotations

import hashlib
import pathlib
import pickle
import shutil
from typing import Any

import coordinates
import made
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset

import packio
from packio.batches.draws import PositionedIndex
from packio.errors import IntegrityError, OptionError

_FIELDS = ("image", "label", "key", "index")


class _Named(list[Any]):
    """Samples with the names of their classes."""

    def __init__(self, samples: list[Any], classes: list[str]) -> None:
        super().__init__(samples)
        self.classes = classes


def _photo_samples(photos: list[np.ndarray], numbers: range, classes: tuple[str, ...]) -> Any:
    return [
        {
            "image": photos[i % 12],
            "key": f"{i}.png",
            "label": classes[i % len(classes)],
            "number": i,
        }
        for i in numbers
    ]


@pytest.fixture(scope="module")
def packs(
    tmp_path_factory: pytest.TempPathFactory, photos: list[np.ndarray], image_folder: pathlib.Path
) -> dict[str, pathlib.Path]:
    """25 files of an image folder, 7 photographs in a tar, 30 raw images in an HDF5 file."""
    root = tmp_path_factory.mktemp("concat")
    noise = np.random.default_rng(1).integers(0, 256, (30, 24, 24, 3), np.uint8)
    raw = [{"image": image, "label": ("people", "cat")[i % 2]} for i, image in enumerate(noise)]
    found = _photo_samples(photos, range(7), ("nature", "cat", "dog"))
    return {
        "folder": packio.pack(image_folder, root / "folder.lmdb").out,
        "photos": packio.pack(found, root / "photos.tar").out,
        "raw": packio.pack(raw, root / "raw.h5").out,
    }


def _parts(packs: dict[str, pathlib.Path], **options: Any) -> list[packio.PackDataset]:
    """All three, each with a crop of its own, to one size."""
    crops: list[Any] = [
        packio.RandomResizedCrop(16),
        packio.Resize((16, 16)),
        packio.RandomCrop(16),
    ]
    given: dict[str, Any] = {"hflip": 0.5, "fields": _FIELDS, **options}
    return [
        packio.PackDataset(path, crop=crop, **given)
        for path, crop in zip(packs.values(), crops, strict=True)
    ]


def _whole(packs: dict[str, pathlib.Path], **options: Any) -> packio.ConcatPacks:
    return packio.ConcatPacks(_parts(packs, **options), labels="by_name", seed=3)


def test_samples_are_those_of_the_parts_with_labels_by_name(packs: dict[str, pathlib.Path]) -> None:
    parts = _parts(packs)
    whole = _whole(packs)
    assert len(whole) == 62
    assert whole.classes == ["machines", "nature", "people", "cat", "dog"]
    assert whole.class_to_idx["dog"] == 4
    expected = [(part, i) for part in parts for i in range(len(part))]
    assert whole.targets is not None
    for number, (part, i) in enumerate(expected):
        torch.manual_seed(number)
        image, label, key, index = part[i]
        torch.manual_seed(number)
        found = whole[number]
        assert torch.equal(found[0], image)
        assert whole.classes[found[1]] == part.classes[label]
        assert found[1] == whole.targets[number]
        assert found[2:] == (key, number)
        assert index == i
    assert torch.equal(
        whole[PositionedIndex(30, 1, 9)][0], whole[PositionedIndex(30 - 62, 1, 9)][0]
    )


def test_one_parts_batch_is_not_copied(packs: dict[str, pathlib.Path]) -> None:
    samples = _whole(packs).__getitems__([1, 2])
    assert samples[0][0].data_ptr() == packio.collate(samples)[0].data_ptr()
    assert _whole(packs).__getitems__([]) == []


def test_into_a_tensor_that_is_given(packs: dict[str, pathlib.Path]) -> None:
    whole, out = _whole(packs), torch.empty((4, 3, 16, 16), dtype=torch.uint8)
    for indices in ([0, 60, 1, 30], [0, 1, 2, 3]):
        images = whole.gather(indices, out=out)[0]
        assert images.data_ptr() == out.data_ptr()
        assert torch.equal(images, whole.gather(indices)[0])
    with pytest.raises(OptionError, match="out="):
        whole.gather([0, 60], out=out)
    with pytest.raises(OptionError, match="one size"):
        whole.with_options(crop=None).gather([0, 60, 1, 30], out=out)
    with pytest.raises(OptionError, match="without views"):
        whole.with_options(transform=torch.neg).gather([0, 60, 1, 30], out=out)


def test_images_of_several_sizes_are_a_list(packs: dict[str, pathlib.Path]) -> None:
    parts = _parts(packs)
    parts[1] = parts[1].with_options(crop=packio.Resize((9, 9)))
    whole = packio.ConcatPacks(parts, labels="by_name")
    images = whole.gather([0, 26, 61])[0]
    assert [tuple(i.shape) for i in images] == [(3, 16, 16), (3, 9, 9), (3, 16, 16)]
    assert whole.gather([0, 1, 61])[0].shape == (3, 3, 16, 16)


def test_transforms_are_each_datasets_own(packs: dict[str, pathlib.Path]) -> None:
    parts = _parts(packs, hflip=0.0, output="numpy")
    parts[0].transform = lambda image: image * 0
    whole = packio.ConcatPacks(parts, labels="by_name", seed=1)
    parts[2].target_transform = lambda label: label + 100
    images, labels, *_ = whole.gather([0, 26, 61])
    assert [bool(image.any()) for image in images] == [False, True, True]
    assert whole.targets is not None
    assert labels.tolist() == [whole.targets[0], whole.targets[26], 103]
    assert whole[61][1] == 103
    batch = packio.collate(whole.__getitems__([0, 26, 61]))
    assert torch.equal(batch[0], images)


def test_views_masks_and_boxes(tmp_path: pathlib.Path) -> None:
    packio.pack(coordinates.samples(), tmp_path / "a.lmdb", boxes_frame="stored")
    packio.pack(coordinates.samples(wide=True), tmp_path / "b.tfrecord", boxes_frame="stored")
    options: dict[str, Any] = {
        "views": [packio.RandomCrop(12), packio.CenterCrop(9)], "seed": 1,
        "fields": {"x": "image", "m": "mask", "b": "boxes", "l": "box_labels", "where": "where"},
    }  # fmt: skip
    parts = [packio.PackDataset(tmp_path / name, **options) for name in ("a.lmdb", "b.tfrecord")]
    whole = packio.ConcatPacks(parts)
    batch = whole.gather([3, 20, 4])
    assert [view.shape for view in batch["x"]] == [(3, 3, 12, 12), (3, 3, 9, 9)]
    assert [(view.shape, view.dtype) for view in batch["m"]] == [
        ((3, 12, 12), torch.int32), ((3, 9, 9), torch.int32),
    ]  # fmt: skip
    assert batch["where"] == ["place 3", "place 4", "place 4"]
    for slot, (part, index) in enumerate([(0, 3), (1, 4), (0, 4)]):
        drawn = (
            parts[part]
            ._make_fields(
                np.array([index]), whole._draw([3, 20, 4])._replace(lanes=np.array([slot])), None
            )
            .columns
        )
        for view in range(2):
            assert torch.equal(batch["x"][view][slot], drawn["image"][view][0])
            assert torch.equal(batch["m"][view][slot], drawn["mask"][view][0].to(torch.int32))
            assert torch.equal(batch["b"][view][slot], drawn["boxes"][view][0])
            assert torch.equal(batch["l"][view][slot], drawn["box_labels"][view][0])
    flat = whole.with_options(views=None, crop=None).gather([0, 20])["m"]
    assert {mask.dtype for mask in flat} == {torch.int32}


@pytest.fixture
def damaged(packs: dict[str, pathlib.Path], tmp_path: pathlib.Path) -> dict[str, pathlib.Path]:
    """A copy with one bit of sample 2 of the tar flipped."""
    copy = tmp_path / "photos.tar"
    for suffix in ("", ".packio", ".idx"):
        shutil.copy(f"{packs['photos']}{suffix}", f"{copy}{suffix}")
    made.damage(copy, 2)
    return {**packs, "photos": copy}


def test_a_bad_sample_is_replaced_by_one_of_any_part(damaged: dict[str, pathlib.Path]) -> None:
    whole = _whole(damaged, on_error="skip")
    with pytest.warns(UserWarning, match=r"2\.png"):
        images, labels, keys, index = whole.gather([0, 27, 60])
    assert index.tolist() == [0, 60, 60]
    assert torch.equal(images[1], images[2])
    assert labels[1] == labels[2]
    assert keys[1] == keys[2]
    assert [d.replaced for d in whole.datasets] == [0, 1, 0]
    assert whole.replaced == 1
    whole.datasets[2].transform = torch.neg  # of the one that takes the place
    with pytest.warns(UserWarning, match=r"2\.png"):
        again = whole.gather([0, 27, 60])[0]
    assert torch.equal(again[1], again[2])
    assert torch.equal(again[0], images[0])
    with pytest.raises(IntegrityError, match=r"2\.png"):
        whole.gather([27, 27])
    with pytest.raises(IntegrityError, match=r"2\.png"):
        whole[27]


def test_a_part_that_raises_raises(damaged: dict[str, pathlib.Path]) -> None:
    parts = _parts(damaged, on_error="skip")
    parts[1] = parts[1].with_options(on_error="raise")
    with pytest.raises(IntegrityError, match=r"2\.png"):
        packio.ConcatPacks(parts, labels="by_name").gather([0, 27, 60])


@pytest.mark.filterwarnings("ignore:replaced by another:UserWarning")
def test_counters_come_from_workers(damaged: dict[str, pathlib.Path]) -> None:
    whole = _whole(damaged, on_error="skip")
    seen = [i for b in DataLoader(whole, 8, num_workers=2) for i in b[3].tolist()]
    assert len(seen) == 62
    assert 27 not in seen
    assert whole.replaced == 1


def _digests(loader: Any) -> list[str]:
    return [
        hashlib.sha256(images.numpy().tobytes() + labels.numpy().tobytes()).hexdigest()
        for images, labels, *_ in loader
    ]


def _shuffled(data: Any, kind: Any = DataLoader, **options: Any) -> list[str]:
    return _digests(kind(data, 9, sampler=packio.ShuffleSampler(62, 4), **options))


def test_workers_and_threads_change_nothing(packs: dict[str, pathlib.Path]) -> None:
    whole = _whole(packs, threads=1)
    expected = _shuffled(whole)
    assert len(set(expected)) == 7
    assert _shuffled(packio.ConcatPacks(whole.datasets, labels="by_name", seed=8)) != expected
    for threads in (1, 3):
        again = whole.with_options(threads=threads)
        for kind in (DataLoader, packio.Loader):
            assert _shuffled(again, kind, num_workers=2) == expected
    assert _shuffled(whole, packio.Loader, threads=2) == expected
    spawned: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": "spawn"}
    assert _shuffled(whole, **spawned) == expected
    assert _shuffled(pickle.loads(pickle.dumps(whole))) == expected


def test_epochs_reach_all_parts(packs: dict[str, pathlib.Path]) -> None:
    whole = _whole(packs)
    first = _digests(DataLoader(whole, 9))
    with pytest.warns(UserWarning, match="set_epoch"):
        assert _digests(DataLoader(whole, 9)) == first
    whole.set_epoch(2)
    assert [d.epoch for d in whole.datasets] == [2, 2, 2]
    assert whole.epoch == 2
    assert set(_digests(DataLoader(whole, 9))) & set(first) == set()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_goes_on_where_it_was(workers: int, packs: dict[str, pathlib.Path]) -> None:
    loader = packio.Loader(_whole(packs), 9, shuffle=True, num_workers=workers)
    running = iter(loader)
    next(running), next(running)
    state, rest = loader.state_dict(), _digests(running)
    again = packio.Loader(_whole(packs), 9, shuffle=True)
    again.load_state_dict(state)
    assert _digests(again) == rest


def test_torchs_subsets_pass_batches_on(packs: dict[str, pathlib.Path]) -> None:
    batch = next(iter(DataLoader(Subset(_whole(packs), [61, 0, 3]), 3, collate_fn=packio.collate)))
    assert batch[3].tolist() == [61, 0, 3]


def test_classes_have_to_agree_unless_joined_by_name(
    packs: dict[str, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    parts = _parts(packs)
    with pytest.raises(
        OptionError,
        match=r"only in \S+folder.lmdb: machines, people; only in \S+photos.tar: cat, dog",
    ):
        packio.ConcatPacks(parts)
    image = np.zeros((9, 9, 3), np.uint8)
    found = _Named([{"image": image, "label": i} for i in range(2)], ["people", "cat"])
    packio.pack(found, tmp_path / "x.lmdb")
    other = packio.LmdbDataset(tmp_path / "x.lmdb", fields=_FIELDS)
    with pytest.raises(OptionError, match="the same in another order"):
        packio.ConcatPacks([parts[2], other])
    joined = packio.ConcatPacks([parts[2], other], labels="by_name")
    assert joined.classes == parts[2].classes
    assert joined.targets is not None
    assert [joined.classes[t] for t in joined.targets[-2:]] == ["people", "cat"]
    bare = packio.ConcatPacks([p.with_options(fields=("image", "key")) for p in parts])
    assert bare.classes == []
    assert len(bare.gather([0, 40])) == 2
    with pytest.raises(OptionError, match="'same' or 'by_name'"):
        packio.ConcatPacks(parts, labels="name")
    packio.pack([{"image": image, "label": 4}], tmp_path / "y.lmdb")
    unnamed = packio.LmdbDataset(tmp_path / "y.lmdb", fields=_FIELDS)
    with pytest.raises(OptionError, match=r"y\.lmdb has no names"):
        packio.ConcatPacks([parts[0], unnamed], labels="by_name")


def test_label_vectors_are_joined_by_name(tmp_path: pathlib.Path) -> None:
    image = np.zeros((4, 4, 3), np.uint8)
    parts = []
    for number, names in enumerate(([["b"], ["b", "c"]], [["d", "a"], [], ["b"]])):
        rows = [{"image": image, "label": each} for each in names]
        parts.append(packio.LmdbDataset(packio.pack(rows, tmp_path / f"{number}.lmdb").out))
    with pytest.raises(OptionError, match=r"labels differ: vectors of 2 in \S+, vectors of 3 in"):
        packio.ConcatPacks(parts)
    whole = packio.ConcatPacks(parts, labels="by_name")
    assert whole.classes == ["b", "c", "a", "d"]
    expected = [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 0, 0], [1, 0, 0, 0]]
    assert whole.targets is not None
    assert whole.targets.tolist() == expected
    assert whole.gather([4, 1, 2])[1].tolist() == [expected[i] for i in (4, 1, 2)]
    packio.pack([{"image": image, "label": "a"}], tmp_path / "x.lmdb")
    with pytest.raises(OptionError, match=r"labels differ: vectors in \S+, integers in"):
        packio.ConcatPacks([*parts, packio.LmdbDataset(tmp_path / "x.lmdb")], labels="by_name")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fields": ("image", "label")}, r"fields differ: \('image', 'label', 'key', 'index'\) of"),
        ({"output": "numpy"}, "output differ: tensor of"),
        ({"dtype": torch.float32}, "dtype differ: torch.uint8 of"),
        ({"views": [None, None], "crop": None}, "views differ: None of .*, 2 of"),
    ],
)
def test_datasets_that_make_no_batch_are_refused(
    options: Any, message: str, packs: dict[str, pathlib.Path]
) -> None:
    parts = _parts(packs)
    parts[1] = parts[1].with_options(**options)
    with pytest.raises(OptionError, match=message):
        packio.ConcatPacks(parts, labels="by_name")


def test_what_is_no_dataset_of_ours_is_refused(packs: dict[str, pathlib.Path]) -> None:
    whole = _whole(packs)
    for wrong in ([], [whole], [torch.utils.data.TensorDataset(torch.zeros(3))]):
        with pytest.raises(OptionError, match="datasets: "):
            packio.ConcatPacks(wrong)  # type: ignore[arg-type]  # that is the point
    with pytest.raises(OptionError, match="no such option"):
        whole.with_options(corp=None)
    for index in (62, -63):
        with pytest.raises(IndexError):
            whole[index]
    assert repr(whole).endswith("labels='by_name')")
    samples: Any = whole
    assert len(list(samples)) == 62  # plain iteration ends
