"""Choosing among samples: patterns, limits, orders, splits and duplicates."""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
from collections import Counter
from typing import Any

import numpy as np
import pytest

import packio
from packio.errors import OptionError, SourceError
from packio.packing.choosing import Choice
from packio.sources import Listing


def _listing(count: int, classes: int) -> Listing:
    labels = [i % classes for i in range(count)]
    keys = [b"%d/%d" % (i % classes, i) for i in range(count)]
    return Listing("test", None, keys, [1] * count, labels, [str(i) for i in range(classes)])


def test_patterns_choose_keys() -> None:
    listing = _listing(30, 3)
    assert set(Choice(include=("1/*",)).choose(listing).labels or []) == {1}
    assert set(Choice(include=("*",), exclude=("0/*", "2/*")).choose(listing).labels or []) == {1}
    with pytest.raises(SourceError, match="none of 30"):
        Choice(include=("x",)).choose(listing)


def test_an_order_depends_on_the_seed_and_the_keys_alone() -> None:
    listing = _listing(200, 4)
    backwards = listing.take(range(199, -1, -1))
    one, two = (Choice(shuffle=7).choose(x) for x in (listing, backwards))
    assert one.keys == two.keys
    assert one.labels == two.labels
    assert one.keys != listing.keys
    assert sorted(one.keys) == sorted(listing.keys)
    assert Choice(shuffle=8).choose(listing).keys != one.keys
    assert Choice(shuffle=7, limit=10).choose(listing).keys == one.keys[:10]


def test_splits_have_their_shares_of_each_class() -> None:
    listing = Choice(split=(("train", 0.8), ("val", 0.1), ("test", 0.1))).choose(_listing(1000, 5))
    assert listing.split_names == ["train", "val", "test"]
    splits, labels = np.asarray(listing.splits), np.asarray(listing.labels)
    for label in range(5):
        assert np.bincount(splits[labels == label]).tolist() == [160, 20, 20]


def test_splits_of_many_small_classes_add_up() -> None:
    listing = Choice(split=(("train", 0.75), ("val", 0.25))).choose(_listing(400, 400))
    assert 85 <= Counter(np.asarray(listing.splits).tolist())[1] <= 115


def test_a_sample_keeps_its_split_whatever_the_order() -> None:
    listing = _listing(300, 3)
    choice = Choice(split=(("a", 0.5), ("b", 0.5)), seed=3)
    one, two = choice.choose(listing), choice.choose(listing.take(range(299, -1, -1)))
    assert dict(zip(one.keys, np.asarray(one.splits), strict=True)) == dict(
        zip(two.keys, np.asarray(two.splits), strict=True)
    )


@pytest.mark.parametrize(
    "options",
    [
        {"limit": 0}, {"dedupe": "both"}, {"split": (("a", 0.5),)}, {"split": (("a", 1.5),)},
        {"split": (("a", 0.5), ("a", 0.5))}, {"split": (("", 1.0),)},
        {"split": (("a", -1.0), ("b", 2.0))}, {"seed": 1 << 127}, {"shuffle": -1 << 127},
    ],
)  # fmt: skip
def test_choices_that_cannot_be_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(OptionError):
        Choice(**options)  # type: ignore[arg-type]  # on purpose


def test_a_pattern_may_be_given_without_a_list() -> None:
    assert Choice.from_options({"include": "1/*"}) == Choice(include=("1/*",))


@pytest.mark.parametrize("split", ["train=0.5", ["train"], [("train", "half")], 1.0, {"a": None}])
def test_splits_that_are_no_shares_are_refused(split: object) -> None:
    with pytest.raises(OptionError, match="expected names and shares"):
        Choice.from_options({"split": split})


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({}, [b"0/deep/", b"b/", b"b/x.jpg"]),
        ({"exclude": ("b/*",)}, [b"0/deep/"]),
        ({"exclude": ("*.jpg",)}, [b"0/deep/", b"b/"]),
        ({"include": ("0/*",)}, [b"0/deep/"]),
        ({"include": ("0/[01]*",)}, [b"0/deep/"]),
        ({"limit": 2}, []),
        ({"limit": 3}, [b"0/deep/", b"b/", b"b/x.jpg"]),
    ],
    ids=str,
)
def test_paths_that_cannot_be_listed_are_chosen_too(
    options: dict[str, Any], left: list[bytes]
) -> None:
    unlisted = [(key, "no permission") for key in (b"0/deep/", b"b/", b"b/x.jpg")]
    listing = dataclasses.replace(_listing(2, 1), unlisted=unlisted)
    for chosen in (Choice(**options).choose(listing), Choice(**options).choose(listing, ())):
        assert [key for key, _ in chosen.unlisted] == left
        assert bool(chosen.warnings) == (options == {"limit": 2})


def test_appending_says_how_many_samples_a_limit_leaves_out(
    image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    packio.pack(image_folder, tmp_path / "x.tar", shards=2, limit=20)
    report = packio.append(tmp_path / "x.tar", image_folder)
    assert (report.added, report.total) == (0, 20)
    (warning,) = report.warnings
    assert warning.startswith("5 new samples are left out: the pack was made with limit=20")


def test_duplicates_are_told_and_dropped(
    image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    source = shutil.copytree(image_folder, tmp_path / "s")
    names = sorted(p for p in source.rglob("*") if p.is_file())
    twin = names[3].with_name("zz" + names[3].name)
    shutil.copy(names[3], twin)
    report = packio.pack(source, tmp_path / "a.tar", dedupe="report")
    assert report.packed == 26
    assert any("samples with the bytes of an earlier one: 1," in w for w in report.warnings)
    report = packio.pack(source, tmp_path / "b.tar", dedupe="drop")
    assert (report.found, report.packed, len(report.skipped)) == (26, 25, 1)
    assert "the same bytes as" in report.skipped[0].reason
    assert packio.pack(source, tmp_path / "b.tar", dedupe="drop").up_to_date
    assert packio.verify(tmp_path / "b.tar").ok
