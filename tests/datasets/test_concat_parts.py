"""Parts of several packs: `packio.ConcatPacks.where` and `subset`, and what goes on with them."""

from __future__ import annotations

import pathlib
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import packio
from packio.batches.draws import PositionedIndex
from packio.errors import KeyNotFoundError, OptionError

_FIELDS = ("image", "label", "key", "index")
_CLASSES = (("cat", "dog"), ("dog", "emu", "cat"))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """12 images with metadata in an LMDB, 9 without in a tar; classes in another order each."""
    root = tmp_path_factory.mktemp("parts")
    noise = np.random.default_rng(1).integers(0, 256, (21, 20, 20, 3), np.uint8)
    for name, start, stop in (("a.lmdb", 0, 12), ("b.tar", 12, 21)):
        classes = _CLASSES[name == "b.tar"]
        rows: list[dict[str, Any]] = [
            {"image": noise[i], "label": classes[i % len(classes)], "key": f"{i % 7}/{i}.png"}
            for i in range(start, stop)
        ]
        if name == "a.lmdb":
            rows = [{**row, "city": ("Ulm", "Bonn")[i % 2]} for i, row in enumerate(rows)]
        packio.pack(rows, root / name)
    return root


def _whole(root: pathlib.Path, **options: Any) -> packio.ConcatPacks:
    how: dict[str, Any] = {"crop": packio.RandomResizedCrop(8), "fields": _FIELDS, "seed": 7}
    parts = [packio.PackDataset(root / name, **{**how, **options}) for name in ("a.lmdb", "b.tar")]
    return packio.ConcatPacks(parts, labels="by_name")


def _which(ds: packio.ConcatPacks) -> list[int]:
    return [int(sample[3]) for sample in ds.__getitems__(range(len(ds)))] if len(ds) else []


def _same(ours: Any, theirs: Any) -> bool:
    return all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
        for a, b in zip(ours, theirs, strict=True)
    )


class _Seen(NamedTuple):
    """What of a sample decides whether it is found."""

    label: str
    place: int


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({"label": "cat"}, lambda s: s.label == "cat"),
        ({"label": "emu"}, lambda s: s.label == "emu"),
        ({"label": ["emu", 0]}, lambda s: s.label in ("emu", "cat")),
        ({"label": 1}, lambda s: s.label == "dog"),
        ({"key": "3/*"}, lambda s: s.place % 7 == 3),
        (
            {"key": ["5/5.png", b"4/18.png", "[01]/*"]},
            lambda s: s.place in (5, 18) or s.place % 7 < 2,
        ),
        ({"city": "Ulm"}, lambda s: s.place < 12 and not s.place % 2),
        ({"city": None}, lambda s: s.place >= 12),
        (
            {"label": "dog", "city": lambda city: city != "Ulm"},
            lambda s: s.label == "dog" and (s.place >= 12 or s.place % 2),
        ),
    ],
)
def test_where_finds_what_a_scan_finds(how: Any, expected: Any, root: pathlib.Path) -> None:
    whole = _whole(root)
    found = [i for i in range(21) if expected(_Seen(whole.classes[whole[i][1]], i))]
    assert found
    part = whole.where(**how)
    assert _which(part) == found
    assert [len(d) for d in part.datasets] == [
        sum(i < 12 for i in found),
        sum(i > 11 for i in found),
    ]
    order = np.random.default_rng(2).permutation(21)
    assert _which(whole.subset(order).where(**how)) == [i for i in order if i in found]
    assert part.classes == ["cat", "dog", "emu"]


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ({"label": "cta"}, OptionError, r"a\.lmdb, \S+b\.tar: no class 'cta' among 3; .*: cat"),
        ({"label": 7}, OptionError, "ConcatPacks: none of 21 samples has label=7"),
        ({"label": "emu", "city": "Ulm"}, OptionError, "none of 21 .* label='emu', city='Ulm'"),
        ({"key": ["5/5.png", "nowhere"]}, KeyNotFoundError, "'nowhere'"),
        ({"ctiy": "Ulm"}, OptionError, r"a\.lmdb: no metadata 'ctiy' .*: city"),
    ],
)
def test_nothing_is_an_error(how: Any, error: Any, message: str, root: pathlib.Path) -> None:
    with pytest.raises(error, match=message):
        _whole(root).where(**how)


def test_packs_without_metadata_or_labels_say_so(tmp_path: pathlib.Path) -> None:
    image = np.zeros((3, 3, 3), np.uint8)
    for name in ("a.lmdb", "b.lmdb"):
        packio.pack([{"image": image}], tmp_path / name)
    whole = packio.ConcatPacks([packio.LmdbDataset(tmp_path / n) for n in ("a.lmdb", "b.lmdb")])
    with pytest.raises(OptionError, match=r"no metadata in \S+a\.lmdb, \S+b\.lmdb"):
        whole.where(city="Ulm")
    with pytest.raises(OptionError, match=r"a\.lmdb has no labels"):
        whole.where(label=0)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_parts_of_parts_are_as_those_of_one_dataset(data: Any, root: pathlib.Path) -> None:
    """Bit for bit, whatever was drawn, in whatever order the datasets' samples come."""
    how: dict[str, Any] = {"crop": packio.RandomResizedCrop(8), "hflip": 0.5, "fields": _FIELDS}
    ds = packio.LmdbDataset(root / "a.lmdb", seed=7, **how)
    cut = data.draw(st.lists(st.lists(st.integers(0, 11), max_size=9), min_size=1, max_size=4))
    one: Any = ds.subset([i for part in cut for i in part])
    whole: Any = packio.ConcatPacks([ds.subset(part) for part in cut])
    assert len(whole) == len(one)
    for _ in range(data.draw(st.integers(0, 2)) if len(one) else 0):
        chosen = data.draw(st.lists(st.integers(-len(one), len(one) - 1), min_size=1, max_size=15))
        one, whole = one.subset(chosen), whole.subset(chosen)
    assert len(whole) == len(one)
    if not len(one):
        return
    assert whole.targets.tolist() == one.targets.tolist()
    places = data.draw(st.lists(st.integers(-len(one), len(one) - 1), min_size=1, max_size=12))
    if data.draw(st.booleans()):
        places = [PositionedIndex(i, 2, 5 * slot) for slot, i in enumerate(places)]
    batch, expected = whole.gather(places), one.gather(places)
    assert _same(batch[:3], expected[:3])
    assert packio.is_contiguous_batch(batch)
    assert [i % 12 for i in batch[3].tolist()] == expected[3].tolist()
    assert _same(
        whole.with_options(hflip=0.0).gather([0])[:3], one.with_options(hflip=0.0).gather([0])[:3]
    )


def test_no_index_is_copied_and_each_dataset_is_asked_once(
    root: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from packio.batches import samples

    made, make = [], samples.make

    def watched(pack: Any, recipe: Any, positions: np.ndarray, *rest: Any) -> Any:
        made.append(len(positions))
        return make(pack, recipe, positions, *rest)

    whole = _whole(root)
    part = whole.subset([20, 0, 19, 1, 18])
    assert [a.pack for a in part.datasets] == [b.pack for b in whole.datasets]
    monkeypatch.setattr(samples, "make", watched)
    assert part.gather([0, 1, 2, 3, 4])[3].tolist() == [20, 0, 19, 1, 18]
    assert sorted(made) == [2, 3]
    with pytest.raises(IndexError):
        part[5]
    with pytest.raises(IndexError):
        whole.subset([21])


def test_a_part_has_an_epoch_and_transforms_of_its_own(root: pathlib.Path) -> None:
    whole = _whole(root)
    whole.set_epoch(3)
    part = whole.subset([20, 0])
    assert part.epoch == 3
    assert (part.seed, part.seeded) == (whole.seed, whole.seeded)
    part.set_epoch(4)
    assert whole.epoch == 3
    part.datasets[1].target_transform = lambda label: label + 100
    assert part.gather([0, 1])[1].tolist() == [whole[20][1] + 100, whole[0][1]]
    assert whole[20][1] < 3


@pytest.mark.parametrize("chosen", [list(range(2, 17)), [20, 3, 19, 4, 5, 18, 6, 12, 0, 1]])
def test_a_mix_of_a_part_has_its_shares(chosen: list[int], root: pathlib.Path) -> None:
    part = _whole(root).subset(chosen)
    mixed = packio.MixedSampler(part, weights=[0.75, 0.25], seed=1, samples_per_epoch=40)
    found = [i for b in packio.Loader(part, 6, sampler=mixed) for i in b[3].tolist()]
    assert set(found) <= set(chosen)
    assert sum(i < 12 for i in found) == mixed.shares[0] == 30
    first = [i for i in found if i < 12][: len(part.datasets[0])]
    assert sorted(first) == sorted(i for i in chosen if i < 12)  # all, before one comes again
