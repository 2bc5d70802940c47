"""Parts of packs: `where`, `subset`, and torch's own ways to take some samples."""

from __future__ import annotations

import fnmatch
import hashlib
import multiprocessing.reduction
import os
import pathlib
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Subset, WeightedRandomSampler, random_split

import packio
from packio.datasets import selection
from packio.errors import IntegrityError, KeyNotFoundError, OptionError

_CITIES = ("Ulm", "Köln", None)


def _samples(count: int) -> list[dict[str, Any]]:
    """Tiny images, each of its own colour, with classes, keys in folders and metadata."""
    return [
        {
            "key": f"{'aé'[i % 2]}/{i // 5}/{i:02d}.png",
            "image": np.full((6, 7, 3), i, np.uint8),
            "label": ("cat", "dog", "owl")[i % 3],
            "size": i / 4,
            **({"city": _CITIES[i % 3]} if i % 3 < 2 else {}),
        }
        for i in range(count)
    ]


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """30 of them, 20 in the split "train" and 10 in "val"."""
    out = tmp_path_factory.mktemp("views") / "x.lmdb"
    return packio.pack(_samples(30), out, split={"train": 2 / 3, "val": 1 / 3}).out


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """12 images with vectors as labels."""
    rows = [{**row, "label": [float(i % 2), 0.0, i / 12]} for i, row in enumerate(_samples(12))]
    return packio.pack(rows, tmp_path_factory.mktemp("vectors") / "x.lmdb").out


def _dataset(pack: pathlib.Path, **options: Any) -> packio.PackDataset:
    given = {"fields": ("image", "label", "index"), "crop": packio.RandomCrop(3), "seed": 5}
    return packio.PackDataset(pack, **{**given, **options})


def _which(ds: packio.PackDataset) -> list[int]:
    """Positions in the pack, as a batch has them."""
    if not len(ds):
        return []
    batch = ds.gather(range(len(ds)))
    assert packio.is_contiguous_batch(batch)
    if ds.targets is not None:
        assert batch[1].tolist() == ds.targets.tolist()
    return list(batch[2].tolist())


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({"label": "dog"}, lambda i: i % 3 == 1),
        ({"label": 2}, lambda i: i % 3 == 2),
        ({"label": np.int64(2)}, lambda i: i % 3 == 2),
        ({"label": ["owl", 0]}, lambda i: i % 3 != 1),
        ({"key": "é/*"}, lambda i: i % 2 == 1),
        ({"key": "?/1/*"}, lambda i: i // 5 == 1),
        ({"key": "[!a]/1/*"}, lambda i: i // 5 == 1 and i % 2),
        ({"key": os.fsencode("é/*")}, lambda i: i % 2 == 1),
        ({"key": b"??/*"}, lambda i: i % 2 == 1),  # two bytes
        ({"key": ["a/0/00.png", "*/5/*", b"*9.png"]}, lambda i: i in (0, 9, 19) or i >= 25),
        ({"city": "Köln"}, lambda i: i % 3 == 1),
        ({"city": None}, lambda i: i % 3 == 2),
        ({"size": lambda s: s > 3}, lambda i: i > 12),
        ({"label": "cat", "key": "a/*", "size": lambda s: s < 4}, lambda i: i % 6 == 0 and i < 16),
    ],
)  # fmt: skip
@pytest.mark.parametrize("chunk", [1 << 16, 7])
def test_what_matches_is_taken_in_order(
    how: Any, expected: Any, chunk: int, pack: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "_TEXTS", chunk)
    monkeypatch.setattr(selection, "_CHUNK", chunk)
    whole = _dataset(pack)
    found = whole.where(**how)
    assert type(found) is type(whole)
    assert found.pack is whole.pack
    assert _which(found) == [i for i in range(30) if expected(i)]
    train = _dataset(pack, split="train")
    assert _which(train.where(**how)) == [i for i in _which(train) if expected(i)]
    backwards = whole.subset(range(29, -1, -1)).where(**how)
    assert _which(backwards) == _which(found)[::-1]


def test_label_vectors_are_of_each_class_above_zero(vectors: pathlib.Path) -> None:
    ds = packio.LmdbDataset(vectors, fields=("image", "label", "index"))
    assert ds.where(label=0).gather([0, 1])[2].tolist() == [1, 3]
    assert len(ds.where(label=[0, 2])) == 11
    assert ds.where(label=2).targets is not None
    for label in (3, -1):
        with pytest.raises(OptionError, match=r"labels 0\.\.2"):
            ds.where(label=label)
    with pytest.raises(OptionError, match="none of 12"):
        ds.where(label=1)


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ({"label": "cta"}, OptionError, "no class 'cta' among 3; there are: cat"),
        ({"label": 7}, OptionError, "none of 30 samples has label=7"),
        ({"label": "cat", "city": "Köln"}, OptionError, "has label='cat', city='Köln'"),
        ({"key": "b/*"}, OptionError, "none of 30"),
        ({"key": "b"}, KeyNotFoundError, "'b'"),
        ({"key": ["a/0/00.png", "b"]}, KeyNotFoundError, "'b'"),
        ({"ctiy": "Ulm"}, OptionError, "no metadata 'ctiy' .*: city"),
        ({"key": []}, OptionError, "none of 30"),
    ],
)
def test_nothing_is_an_error_that_names_what_is_near(
    how: Any, error: Any, message: str, pack: pathlib.Path
) -> None:
    with pytest.raises(error, match=message):
        _dataset(pack).where(**how)


def test_a_pack_without_labels_or_metadata_says_so(tmp_path: pathlib.Path) -> None:
    packio.pack([{"image": np.zeros((3, 3, 3), np.uint8)}], tmp_path / "x.lmdb")
    ds = packio.LmdbDataset(tmp_path / "x.lmdb")
    with pytest.raises(OptionError, match="no labels"):
        ds.where(label=0)
    with pytest.raises(OptionError, match="no metadata"):
        ds.where(city="Ulm")


_keys = st.lists(
    st.text("ab[]*?!-/é\n", min_size=1, max_size=4), min_size=1, max_size=8, unique=True
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(keys=_keys, globs=st.lists(st.text("ab[]*?!-/é\n", max_size=4), min_size=1, max_size=3))
def test_globs_match_as_fnmatch(keys: list[str], globs: list[str]) -> None:
    class Fake:
        """As much of a pack as is asked for."""

        def __init__(self) -> None:
            data = [key.encode() for key in keys]
            self.index_file = self
            self._columns = {
                "key_data": np.frombuffer(b"".join(data), np.uint8),
                "key_offsets": np.cumsum([0, *map(len, data)]),
            }

        def __len__(self) -> int:
            return len(keys)

        def column(self, name: str) -> Any:
            fake = self._columns[name]
            return type("Column", (), {"span": staticmethod(lambda a, b: fake[a:b])})

        def find(self, key: str) -> int:
            return keys.index(key) if key in keys else len(keys) - 1

    globs = [g for g in globs if set(g) & set("*?[")] or ["*"]
    fake: Any = Fake()
    (found,) = selection.matching([(fake, np.arange(len(keys)), None)], globs, {})
    assert found.tolist() == [any(fnmatch.fnmatchcase(k, g) for g in globs) for k in keys]


def test_a_part_has_the_keys_of_its_samples_only(pack: pathlib.Path) -> None:
    ds = _dataset(pack)
    val = _dataset(pack, split="val")
    parts = [val, ds.where(label="dog"), ds.subset([7, 3, 3]), val.subset([1]), ds.subset([])]
    for part in parts:
        inside = set(_which(part))
        for position, key in enumerate(ds.pack.keys()):
            if position in inside:
                assert part.by_key(key)[2] == part.by_key(os.fsencode(key))[2] == position
            else:
                message = rf"x\.lmdb: '{key}' is in the pack, .* \({len(part)} of 30 samples\)"
                with pytest.raises(KeyNotFoundError, match=message):
                    part.by_key(key)
        with pytest.raises(KeyNotFoundError, match="no sample has the key 'b'"):
            part.by_key("b")


def test_indices_in_any_form(pack: pathlib.Path) -> None:
    ds = _dataset(pack)
    forms: list[Any] = [[3, 3, 0, 29], np.array([3, 3, 0, -1], np.int16), (3, 3, -30, 29)]
    forms.append(torch.tensor([3, 3, 0, -1]))
    for form in forms:
        assert _which(ds.subset(form)) == [3, 3, 0, 29]
    assert _which(ds.subset(range(1, 4)).subset([-1, 0])) == [3, 1]
    assert ds.targets is not None
    assert _which(ds.subset(ds.targets == 1)) == _which(ds.where(label=1))
    assert len(ds.subset([])) == 0
    for wrong in (["a"], [1.0], [True, False], [[1]], 3):
        with pytest.raises(OptionError, match="expected a list of integers, or 30 bools"):
            ds.subset(wrong)
    for index in (30, -31):
        with pytest.raises(IndexError, match=f"index {index} is out of range: 30"):
            ds.subset([0, index])


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_parts_of_parts_are_as_lists_of_lists(data: Any, pack: pathlib.Path) -> None:
    ds, expected = _dataset(pack, fields="index"), list(range(30))
    for _ in range(data.draw(st.integers(1, 4))):
        if data.draw(st.booleans()) or not expected:
            size = len(expected)
            chosen = data.draw(st.lists(st.integers(-size, size - 1), max_size=40) if size
                               else st.just([]))  # fmt: skip
            ds, expected = ds.subset(chosen), [expected[i] for i in chosen]
        else:
            label = data.draw(st.sampled_from(sorted({i % 3 for i in expected})))
            ds, expected = ds.where(label=label), [i for i in expected if i % 3 == label]
        assert len(ds) == len(expected)
    assert ds.gather(range(len(expected))).tolist() == expected
    assert [ds[i] for i in range(len(expected))] == expected


def test_options_and_choice_go_together(pack: pathlib.Path) -> None:
    transform = torch.neg
    ds = _dataset(pack, split="val", hflip=0.5).where(label="dog")
    ds.transform = transform
    other = ds.with_options(crop=packio.CenterCrop(2), hflip=0.0)
    assert _which(other) == _which(ds)
    assert other.transform is transform
    assert other.pack is ds.pack
    assert other[0][0].shape == (3, 2, 2)
    assert ds.seed == other.seed == 5
    assert repr(ds).endswith(f"split='val', seed=5)[{len(ds)} of 30 samples]")
    assert "samples]" not in repr(_dataset(pack, split="val"))
    assert _which(ds.with_options(access="lmdb")) == _which(ds)
    with pytest.raises(OptionError, match="take the split first"):
        ds.with_options(split="train")
    assert len(_dataset(pack, split="val").with_options(split="train")) == 20
    with pytest.raises(IndexError):
        ds[len(ds)]


def test_epochs_and_counters_are_each_datasets_own(pack: pathlib.Path) -> None:
    ds = _dataset(pack)
    ds.set_epoch(3)
    part = ds.subset([1, 2])
    assert part.epoch == 3
    part.set_epoch(4)
    assert (ds.epoch, part.epoch) == (3, 4)


def test_a_changed_pack_is_noticed_with_another_access(tmp_path: pathlib.Path) -> None:
    packio.pack(_samples(9), tmp_path / "x.lmdb")
    ds = packio.LmdbDataset(tmp_path / "x.lmdb").subset([1])
    packio.pack(_samples(8), tmp_path / "x.lmdb", overwrite=True)
    with pytest.raises(IntegrityError, match="changed"):
        ds.with_options(access="lmdb")


def test_an_open_pack_is_taken_as_it_is(pack: pathlib.Path) -> None:
    opened = packio.open(pack)
    ds = packio.LmdbDataset(opened)
    assert ds.pack is opened
    assert len(pickle.loads(pickle.dumps(ds))) == 30
    with pytest.raises(OptionError, match="hdf5"):
        packio.Hdf5Dataset(opened)


def test_a_folder_has_parts_too(image_folder: pathlib.Path) -> None:
    ds = packio.FolderDataset(image_folder, crop=packio.CenterCrop(8), fields=("image", "key"))
    part = ds.where(label="people", key="people/0*").with_options(hflip=1.0)
    keys = [key for _, key in part.__getitems__(range(len(part)))]
    assert keys == sorted(f"people/{p.name}" for p in (image_folder / "people").glob("0*"))
    image = ds.by_key(keys[1])[0]
    assert torch.equal(part[1][0], image.flip(2))


def test_positions_travel_once_to_spawned_processes(pack: pathlib.Path) -> None:
    ds = _dataset(pack).subset(np.arange(100_000) % 30)
    dumps = multiprocessing.reduction.ForkingPickler.dumps  # as spawn does
    sent = [bytes(dumps(ds)) for _ in range(2)]
    assert len(sent[0]) < 20_000
    assert len(pickle.loads(sent[0])) == 100_000
    again = pickle.loads(pickle.dumps(ds))
    assert _which(again) == _which(ds)


def _digests(loader: Any) -> list[str]:
    return [hashlib.sha256(b"".join(t.numpy().tobytes() for t in b)).hexdigest() for b in loader]


@pytest.mark.parametrize(("method", "workers"), [("fork", 2), ("spawn", 1)])
def test_workers_make_the_same_batches(method: str, workers: int, pack: pathlib.Path) -> None:
    ds = _dataset(pack, hflip=0.5).where(label=["cat", "owl"]).subset(range(15))
    expected = _digests(DataLoader(ds, 4, sampler=packio.ShuffleSampler(ds, 1)))
    loader = DataLoader(
        ds, 4, sampler=packio.ShuffleSampler(ds, 1), num_workers=workers, collate_fn=packio.collate,
        multiprocessing_context=method,
    )  # fmt: skip
    assert _digests(loader) == expected
    assert len(set(expected)) == 4


def _loaders(data: Any, sampler: Any) -> list[Any]:
    """The ways to load: plain DataLoader and packio's, without and with workers."""
    return [
        kind(data, 6, sampler=sampler, num_workers=workers)
        for kind in (DataLoader, packio.Loader)
        for workers in (0, 2)
    ]


@pytest.mark.parametrize("number", range(4))
def test_a_weighted_sampler_draws_repeated_samples_apart(number: int, pack: pathlib.Path) -> None:
    ds = _dataset(_photo(pack), crop=packio.RandomResizedCrop(8), hflip=0.5)
    torch.manual_seed(0)
    batches = list(_loaders(ds, WeightedRandomSampler([0.3, 0.3, 0.4], 18))[number])
    assert max(batches[0][1].tolist().count(i) for i in range(3)) > 1
    assert len({image.numpy().tobytes() for batch in batches for image in batch[0]}) == 18


def _photo(pack: pathlib.Path) -> pathlib.Path:
    """Three images whose crops differ, beside the pack."""
    out = pack.with_name("noise.lmdb")
    if not out.exists():
        noise = np.random.default_rng(0).integers(0, 256, (3, 40, 50, 3), np.uint8)
        packio.pack([{"image": image, "label": i} for i, image in enumerate(noise)], out)
    return out


@pytest.mark.parametrize("number", range(4))
def test_torchs_parts_pass_whole_batches_on(
    number: int, pack: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds = _dataset(pack)
    train, val = random_split(ds, [0.7, 0.3], torch.Generator().manual_seed(2))
    monkeypatch.setattr(type(ds), "_sample", None)  # nobody takes them one by one
    both = [
        [i for batch in _loaders(part, None)[number] for i in batch[2].tolist()]
        for part in (train, val)
    ]
    assert both == [list(train.indices), list(val.indices)]


@pytest.mark.parametrize("number", range(4))
def test_both_sides_of_a_random_split_have_options_of_their_own(
    number: int, pack: pathlib.Path
) -> None:
    ds = _dataset(pack)
    train, val = random_split(ds, [0.7, 0.3], torch.Generator().manual_seed(2))
    plain = packio.CenterCrop(4)
    sides: list[Any] = [
        ds.with_options(crop=plain).subset(val.indices),
        Subset(ds.with_options(crop=plain), val.indices),
    ]
    for side in sides:
        batches = list(_loaders(side, None)[number])
        assert torch.cat([b[0] for b in batches]).shape == (9, 3, 4, 4)
        assert torch.cat([b[2] for b in batches]).tolist() == list(val.indices)
    assert next(iter(_loaders(train, None)[number]))[0].shape == (6, 3, 3, 3)


@pytest.mark.parametrize("workers", [0, 2])
def test_each_epoch_of_a_torch_part_draws_anew_and_resumes(
    workers: int, pack: pathlib.Path
) -> None:
    def made(seed: int) -> packio.Loader:
        ds = _dataset(_photo(pack), crop=packio.RandomResizedCrop(8), seed=seed)
        return packio.Loader(Subset(Subset(ds, [0, 1, 2]), [2, 1, 0, 2, 1]), 2, num_workers=workers)

    loader = made(1)
    first = _digests(loader)
    running = iter(loader)
    next(running)
    state, rest = loader.state_dict(), _digests(running)
    assert len({*first, *rest}) == 5
    again = made(1)
    again.load_state_dict(state)
    assert _digests(again) == rest
