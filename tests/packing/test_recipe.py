"""How a pack was made is kept: by append, merge, convert, resume and finish."""

from __future__ import annotations

import os
import pathlib
import shutil
from collections import Counter
from typing import Any

import made
import numpy as np
import pytest
from PIL import Image

import packio
from packio.errors import BadImagesError, LockedError, OptionError, OutputError, OutputExistsError
from packio.packing.run import reading
from packio.sample.packed import Sample
from packio.sample.recipe import Recipe, merge_recipes
from packio.sample.record import Field
from packio.sources import Listing
from packio.system import locks


@pytest.fixture
def source(tmp_path: pathlib.Path) -> pathlib.Path:
    """Class folders of forty PNGs of several sizes."""
    return made.image_tree(tmp_path / "source", 40, 2, most=50, seed=1)


def _more(source: pathlib.Path, count: int, name: str = "new") -> None:
    for i in range(count):
        (source / "class 0" / f"{name}{i}.png").write_bytes(made.png(60, 50, i + 1))


def _jpeg(width: int = 60, height: int = 40, **options: Any) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 255, (height, width, 3), np.uint8)
    return made.saved(pixels, "JPEG", **options)


@pytest.mark.parametrize("verb", ["convert", "merge"])
def test_append_makes_samples_as_the_packs_of_before_were_made(
    verb: str, source: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    other = made.image_tree(tmp_path / "other", 6, 3, most=50, seed=2)
    one, two, out = (tmp_path / f"{n}.tar" for n in ("one", "two", "out"))
    options: dict[str, Any] = {"resize": "short=8", "enlarge": True, "encode": "png"}
    packio.pack(source, one, shards=2, **options)
    packio.pack(_prefixed(other), two, shards=2, **options)
    if verb == "convert":
        packio.convert(one, out, shards=2)
    else:
        packio.merge(out, [one, two], shards=2)
    _more(source, 2)
    packio.append(out, source)
    assert {min(s.height, s.width) for s in packio.open(out)} == {8}


def _prefixed(folder: pathlib.Path) -> pathlib.Path:
    for path in [p for p in folder.rglob("*") if p.is_file()]:
        path.rename(path.with_name(f"other-{path.name}"))
    return folder


def test_packs_made_in_different_ways_are_not_appended_to(
    source: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    one, two = tmp_path / "one.tar", tmp_path / "two.tar"
    other = _prefixed(made.image_tree(tmp_path / "other", 6, 2, most=50, seed=2))
    packio.pack(source, one, shards=2, resize="short=2")
    packio.pack(other, two, shards=2)
    packio.merge(tmp_path / "all.tar", [one, two], shards=2)
    with pytest.raises(OptionError, match="in different ways"):
        packio.append(tmp_path / "all.tar", source)


@pytest.mark.parametrize(
    "choice", [{"exclude": ["class 1/*"]}, {"include": ["*/1*"]}, {"limit": 7}, {"dedupe": "drop"},
               {"limit": 9, "shuffle": 3}],
    ids=str,
)  # fmt: skip
def test_what_was_left_out_does_not_come_back(
    choice: dict[str, Any], source: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    twin = next(source.rglob("0.png"))
    shutil.copy(twin, twin.with_name("twin.png"))
    one, out = tmp_path / "one.tar", tmp_path / "x.tar"
    count = packio.pack(source, one, shards=2, **choice).packed
    assert count < 41
    packio.convert(one, out, shards=2)
    for path in (one, out):
        report = packio.append(path, source)
        assert (report.added, report.total) == (0, count)


def test_splits_of_one_sample_at_a_time_have_their_shares(tmp_path: pathlib.Path) -> None:
    source, out = tmp_path / "s", tmp_path / "x.tar"
    _write(source, range(10))
    shares = {"train": 0.6, "val": 0.4}
    packio.pack(source, out, shard_size=10**6, split=shares)
    before = [packio.open(out).split_of(i) for i in range(10)]
    for i in range(10, 24):
        _write(source, range(i, i + 1))
        packio.append(out, source)
    pack = packio.open(out)
    drawn = {pack.key(i): pack.split_of(i) for i in range(10, 24)}
    assert [pack.split_of(i) for i in range(10)] == before
    assert 3 <= Counter(drawn.values())["train"] <= 13
    both = tmp_path / "y.tar"  # all at once: each sample has the same split
    shutil.rmtree(source)
    _write(source, range(10))
    packio.pack(source, both, shard_size=10**6, split=shares)
    _write(source, range(10, 24))
    packio.append(both, source)
    again = packio.open(both)
    assert {again.key(i): again.split_of(i) for i in range(10, 24)} == drawn


def _write(source: pathlib.Path, numbers: range) -> None:
    (source / "a").mkdir(parents=True, exist_ok=True)
    for i in numbers:
        (source / "a" / f"{i:03d}.png").write_bytes(made.png(3, 3, i))


def _rich(tmp_path: pathlib.Path, suffix: str = ".tar") -> pathlib.Path:
    """A pack with splits, statistics, skipped samples, boxes with columns, and orientation 6."""
    exif = Image.Exif()
    exif[0x0112] = 6
    samples = [
        Sample(i, f"{i}.jpg", _jpeg(60, 40, exif=exif, quality=80 + i), "jpeg", i % 2, 40, 60, 6,
               boxes=np.array([[0, 0, 9, 9]], np.float32), box_labels=np.array([i % 2]),
               box_columns={"crowd": np.array([i])}, meta={"n": i})
        for i in range(10)
    ]  # fmt: skip
    samples.append(
        Sample(
            10,
            "bad.jpg",
            b"no image",
            "jpeg",
            0,
            1,
            1,
            boxes=samples[0].boxes,
            box_labels=np.array([0]),
            box_columns={"crowd": np.array([0])},
        )
    )
    out = tmp_path / f"rich{suffix}"
    packio.pack(samples, out, shards=2, on_error="skip", stats=0, classes_from=["a", "b"],
                split={"train": 0.5, "val": 0.5})  # fmt: skip
    return out


def _described(path: pathlib.Path) -> list[object]:
    pack = packio.open(path)
    return [
        (s.key, s.data, s.label, s.split, s.orientation, s.height, s.meta, s.boxes.tolist(),  # type: ignore[union-attr]  # all have boxes
         s.box_labels.tolist(), s.box_columns["crowd"].tolist())  # type: ignore[union-attr]  # all have labels
        for s in pack
    ]  # fmt: skip


def test_convert_keeps_everything(tmp_path: pathlib.Path) -> None:
    rich = _rich(tmp_path)
    packio.convert(rich, tmp_path / "x.lmdb")
    assert _described(tmp_path / "x.lmdb") == _described(rich)
    before, after = packio.open(rich).metadata, packio.open(tmp_path / "x.lmdb").metadata
    for name in ("splits", "statistics", "counts", "source", "classes"):
        assert after[name] == before[name]
    assert before["counts"]["skipped"] == 1
    assert Recipe.from_metadata(after).choice == Recipe.from_metadata(before).choice != {}


@pytest.mark.parametrize("suffix", [".lmdb", ".h5"])
def test_orientations_that_bytes_cannot_tell_are_kept(suffix: str, tmp_path: pathlib.Path) -> None:
    rich = _rich(tmp_path)
    packio.convert(rich, tmp_path / "bmp.tar", encode="bmp")
    packio.convert(rich, tmp_path / "raw.tar", encode="raw")
    for name in ("bmp", "raw"):
        out = tmp_path / f"{name}{suffix}"
        packio.convert(tmp_path / f"{name}.tar", out)
        assert {s.orientation for s in packio.open(out)} == {6}


def test_merge_keeps_everything(tmp_path: pathlib.Path) -> None:
    rich = _rich(tmp_path)
    other = [Sample(0, "other.jpg", _jpeg(), "jpeg", 1, 40, 60, meta={"n": 9},
                    boxes=np.array([[1, 1, 2, 2]], np.float32), box_labels=np.array([0]),
                    box_columns={"crowd": np.array([1])})]  # fmt: skip
    packio.pack(other, tmp_path / "o.tar", stats=0, classes_from=["b", "a"], split={"test": 1.0})
    packio.merge(tmp_path / "all.tar", [rich, tmp_path / "o.tar"])
    pack = packio.open(tmp_path / "all.tar")
    assert _described(tmp_path / "all.tar")[:10] == _described(rich)
    assert (pack[10].split, pack[10].label, pack.classes) == ("test", 0, ["a", "b"])
    assert pack.metadata["splits"] == ["train", "val", "test"]
    assert pack.metadata["counts"] == {"found": 12, "packed": 11, "skipped": 1}
    pixels = np.concatenate([s.decode(exif_orientation=False).reshape(-1, 3) for s in pack]) / 255
    assert pack.metadata["statistics"]["mean"] == pytest.approx(pixels.mean(axis=0), abs=1e-5)
    assert pack.metadata["statistics"]["std"] == pytest.approx(pixels.std(axis=0), abs=1e-5)
    assert packio.verify(tmp_path / "all.tar").ok


def test_finishing_with_other_options_deletes_nothing(
    source: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = tmp_path / "x.tar"
    for i in (1, 2):
        packio.pack(source, out, shards=4, part=(i, 2), resize="short=2", check="decode")
    wrongs: list[dict[str, Any]] = [
        {}, {"resize": "short=2"}, {"resize": "short=3", "check": "decode"}
    ]  # fmt: skip
    for wrong in wrongs:
        with pytest.raises(OutputExistsError, match=r"what differs: (check|encoding)"):
            packio.pack(source, out, shards=4, finish=True, **wrong)
    with pytest.raises(OptionError, match="finishing needs"):
        packio.pack(source, out, shards=4, finish=True, resume=False)
    report = packio.pack(source, out, shards=4, finish=True, resize="short=2", check="decode")
    assert (report.resumed, report.packed) == (4, 40)


def test_finishing_without_the_parts_on_error_deletes_nothing(
    source: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = tmp_path / "x.tar"
    next(source.rglob("*.png")).write_bytes(b"no image")
    how: dict[str, Any] = {"shards": 4, "source_kind": "image_folder"}
    for i in (1, 2):
        packio.pack(source, out, part=(i, 2), on_error="skip", **how)
    with pytest.raises(OutputExistsError, match="what differs: on_error"):
        packio.pack(source, out, finish=True, **how)
    report = packio.pack(source, out, finish=True, on_error="skip", **how)
    assert (report.resumed, report.packed, len(report.skipped)) == (4, 39, 1)


def test_finishing_needs_no_room_for_what_is_written(
    source: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "x.tar"
    packio.pack(source, out, shards=2, part=(1, 1))
    real = os.statvfs(tmp_path)
    full = os.statvfs_result((*real[:4], 0, *real[5:]))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    with pytest.raises(OutputError, match="are free"):
        packio.pack(source, tmp_path / "y.tar", shards=2)
    assert packio.pack(source, out, shards=2, finish=True).packed == 40


def test_an_index_that_may_only_be_read_is_locked_too(
    source: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, real = tmp_path / "x.tar", os.open
    packio.pack(source, out, shards=2)

    def read_only(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if flags & os.O_RDWR and str(path).endswith("index.packio"):
            raise PermissionError(13, "Permission denied", path)
        return real(path, flags, *arguments, **options)

    monkeypatch.setattr(os, "open", read_only)
    with locks.changing(out / "index.packio"), pytest.raises(LockedError):
        packio.append(out, source)


def test_append_sees_other_files_under_old_names(
    source: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    other = tmp_path / "other"
    for path in sorted(p for p in source.rglob("*") if p.is_file()):
        target = other / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes()[:-1] + b"?" if path.stem != "3" else path.read_bytes())
        shutil.copystat(path, target)
    out = tmp_path / "x.tar"
    packio.pack(source, out, shards=2)
    shutil.rmtree(source)
    other.rename(source)
    then = (out / "index.packio").stat().st_mtime + 3600
    os.utime(out / "index.packio", (then, then))  # all files are older than the pack
    report = packio.append(out, source, compare=True)
    assert report.changed is not None
    assert (report.added, report.known, len(report.changed)) == (0, 40, 39)


def test_append_sees_changed_annotations(tmp_path: pathlib.Path) -> None:
    def samples(**changed: Any) -> list[Sample]:
        values = {"label": 0, "meta": {"a": 1}, "boxes": np.array([[0, 0, 1, 1]], np.float32),
                  "box_labels": np.array([1]), **changed}  # fmt: skip
        return [
            Sample(0, "a.png", made.png(), "png", height=3, width=4, **values),
            Sample(1, "b.png", made.png(), "png", 1, 3, 4, box_labels=np.array([0]),
                   boxes=np.array([[0, 0, 2, 2]], np.float32)),
        ]  # fmt: skip

    out = tmp_path / "x.tar"
    packio.pack(samples(), out, shards=2)
    assert packio.append(out, samples(), compare=True).changed == ()
    moved = np.array([[0, 0, 1, 2]], np.float32)
    changes: list[dict[str, Any]] = [
        {"label": 1}, {"meta": {"a": 2}}, {"boxes": moved}, {"box_labels": np.array([0])}
    ]  # fmt: skip
    for changed in changes:
        assert packio.append(out, samples(**changed), compare=True).changed == ("a.png",)


def test_unchanged_files_are_not_read_again(
    source: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACKIO_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("packio.packing.run.sameness._SETTLED", -(10**12))
    out, read = tmp_path / "x.tar", list[int]()
    packio.pack(source, out, shards=2)
    real = reading.read_ahead

    def counted(part: Listing, *arguments: Any, **options: Any) -> Any:
        read.append(len(part.keys))
        return real(part, *arguments, **options)

    monkeypatch.setattr("packio.packing.run.sameness.read_ahead", counted)
    assert packio.pack(source, out, shards=2).up_to_date
    assert packio.append(out, source).known == 40
    _more(source, 1)
    packio.append(out, source)
    packio.append(out, source)
    assert read == [0]


def test_statistics_never_cost_the_pack(tmp_path: pathlib.Path) -> None:
    sample = Sample(
        0, "deep.png", made.saved(np.full((4, 5), 40_000, np.uint16)), "png", None, 4, 5
    )
    report = packio.pack([sample], tmp_path / "x.tar", stats=0)
    assert report.packed == 1
    assert "no statistics" in report.warnings[1]
    assert packio.open(report.out)[0].data == sample.data


def test_a_mask_of_another_size_is_refused_while_packing(tmp_path: pathlib.Path) -> None:
    samples = [
        Sample(i, f"{i}.png", made.png(9, 8), "png", None, 8, 9, mask=made.png(9 - i, 8 + i))
        for i in range(2)
    ]
    with pytest.raises(BadImagesError, match="mask: 8x9 pixels, its image has 9x8"):
        packio.pack(samples, tmp_path / "x.tar")
    assert packio.pack(samples, tmp_path / "x.tar", on_error="skip").packed == 1


def test_recipes_follow_each_other() -> None:
    small = Recipe("a", encoding={"encode": "jpeg", "quality": 80, "resize": "short=64"},
                   choice={"exclude": ["x*"]})  # fmt: skip
    kept = small.combine_with(Recipe("pack"))
    assert (kept.source, kept.encoding) == ("a", small.encoding)
    png = small.combine_with(Recipe("pack", encoding={"encode": "png"}, choice={"exclude": ["y"]}))
    assert png.encoding == {"encode": "png", "resize": "short=64"}
    assert png.choice == {"exclude": ["x*", "y"]}
    assert merge_recipes([small, small]) == small
    assert merge_recipes([small, kept]).is_mixed is False
    assert merge_recipes([small, png]).is_mixed


def test_a_field_of_another_kind_is_refused(tmp_path: pathlib.Path) -> None:
    def samples(kind: str) -> list[Sample]:
        fields = {"extra": Field(kind, b"x")}
        return [Sample(0, kind, made.png(), "png", None, 3, 4, fields=fields)]

    with pytest.raises(OptionError):
        packio.pack([*samples("text"), *samples("bytes")], tmp_path / "x.tar")
