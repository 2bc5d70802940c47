"""Adding a field to a pack: old files stay, other readers see the values, kills lose nothing."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pathlib
import shutil
import warnings
from typing import Any

import killing
import latents
import numpy as np
import pytest
from foreign_fields import READERS

import packio
from packio import registry
from packio.errors import (
    BadImagesError,
    OptionError,
    OutputExistsError,
    PackioError,
    SourceError,
)
from packio.formats import is_added_shard, name_added_shard
from packio.packing.fields import job
from packio.storage import workshop


def _with_latents(
    name: str, images: pathlib.Path, values: pathlib.Path, folder: pathlib.Path
) -> pathlib.Path:
    """Pack images of a format into two shards, and add a field."""
    out = folder / f"x{latents.suffix(name)}"
    packio.pack(images, out, shards=2)
    packio.add_field(out, "latent", values)
    return out


def _described(pack: packio.Pack) -> list[Any]:
    return [(s.key, s.data, s.label, s.height, s.width) for s in pack]


@pytest.fixture
def folder(image_folder: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """Latents as files beside which nothing else lies, named as the images are."""
    top = tmp_path / "latents"
    for path in sorted(p for p in image_folder.rglob("*") if p.is_file()):
        key = str(path.relative_to(image_folder))
        target = (top / key).with_suffix(".npy")
        target.parent.mkdir(parents=True, exist_ok=True)
        np.save(target, latents.latent(key))
    return top


@pytest.fixture
def out(image_folder: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """A pack in one file."""
    return packio.pack(image_folder, tmp_path / "x.tar").out


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("name", latents.FORMATS)
def test_a_field_joins_and_leaves_while_all_other_files_stay(
    name: str, shards: int, image_folder: pathlib.Path, folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = tmp_path / "out" / f"x{latents.suffix(name)}"
    out.parent.mkdir()
    packio.pack(image_folder, out, shards=shards)
    before = latents.files(out.parent, times=True)
    with packio.open(out) as pack:
        described = _described(pack)
    report = packio.add_field(out, "latent", folder)
    packio.add_field(out, "caption", lambda sample: f"picture {sample.key}")
    latents.check(out)
    after = latents.files(out.parent, times=True)
    assert {n: after[n] for n in before} == before
    with packio.open(out) as pack:
        assert _described(pack) == described
        assert report.samples == len(pack) == report.resumed + report.samples
        sample = pack[3]
        assert sample.fields["caption"].data.decode() == f"picture {sample.key}"
    assert packio.drop_field(out, "latent").removed
    with packio.open(out) as pack:
        assert pack.fields == {"image": "image", "caption": "text"}
        assert [pack[i].fields["caption"].data.decode() for i in range(len(pack))] == [
            f"picture {key}" for key in map(pack.key, range(len(pack)))
        ]
    dropped = packio.drop_field(out, "caption")
    assert dropped.remaining == 0
    assert latents.files(out.parent, times=True) == before
    with packio.open(out) as pack:
        assert _described(pack) == described
    assert packio.verify(out).ok


@pytest.mark.parametrize("name", latents.FORMATS)
def test_other_libraries_read_the_new_shards(
    name: str, image_folder: pathlib.Path, folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = _with_latents(name, image_folder, folder, tmp_path)
    form, found = registry.load("formats", name), list[bytes]()
    with packio.open(out) as pack:
        for shard in pack.metadata["shards"]:
            place = out / name_added_shard(form, shard["name"], "latent", "array")
            found += READERS[out.suffix](place, "latent", "array").values()
        for key, data in zip(map(pack.key, range(len(pack))), found, strict=True):
            assert np.array_equal(np.load(io.BytesIO(data)), latents.latent(key))


_KEYS = ["*/*00*"]  # of few images


def _fresh(
    images: pathlib.Path, tmp_path: pathlib.Path, form: str = "tar", shards: int = 1
) -> pathlib.Path:
    """Pack few images in a folder of their own."""
    (tmp_path / "fresh").mkdir()
    out = tmp_path / "fresh" / f"x{latents.suffix(form)}"
    return packio.pack(images, out, shards=shards, include=_KEYS).out


@pytest.mark.long
@pytest.mark.parametrize(("name", "shards"), [("tar", 1), ("lmdb", 2), ("zarr", 1)])
def test_a_run_killed_at_any_step_leaves_the_pack_and_goes_on(
    name: str, shards: int, image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    fresh = _fresh(image_folder, tmp_path, name, shards)
    old = latents.files(fresh.parent)

    def run(place: pathlib.Path) -> packio.AddReport:
        return packio.add_field(place / fresh.name, "latent", latents.latent_of)

    def check(place: pathlib.Path, was_killed: bool) -> None:
        assert old.items() <= latents.files(place).items()
        with packio.open(place / fresh.name) as pack:
            if "latent" not in pack.fields:
                assert was_killed
                assert pack.fields == {"image": "image"}
                run(place)
        latents.check(place / fresh.name)
        with contextlib.suppress(OptionError):  # the journal of a run that was killed late is there
            assert run(place).kept
        with pytest.raises(OptionError, match="has a field"):
            run(place)
        assert not list(place.glob("*.packio-add"))
        packio.drop_field(place / fresh.name, "latent")
        assert latents.files(place) == old

    assert killing.kill_at_each_step(fresh.parent, run, check) > 10


@pytest.mark.long
def test_adding_files_killed_at_any_step_is_up_to_date_in_the_end(
    image_folder: pathlib.Path, folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    def run(place: pathlib.Path) -> packio.AddReport:
        return packio.add_field(place / "x.tar", "latent", folder)

    def check(place: pathlib.Path, _: bool) -> None:
        first, second = run(place), run(place)
        assert (first.samples or first.kept, second.samples, second.kept) == (1, 0, 1)
        assert not list(place.glob("*.packio-add"))
        latents.check(place / "x.tar")

    fresh = _fresh(image_folder, tmp_path)
    assert killing.kill_at_each_step(fresh.parent, run, check) > 10


def named_old(sample: packio.Sample) -> str:  # noqa: ARG001 (a field's function)
    return "old"


def named_new(sample: packio.Sample) -> str:  # noqa: ARG001 (likewise)
    return "new"


@pytest.mark.long
def test_replacing_a_field_killed_at_any_step_never_takes_old_values_for_new(
    image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    fresh = _fresh(image_folder, tmp_path)
    packio.add_field(fresh, "name", named_old)
    found = set[bytes | None]()

    def run(place: pathlib.Path) -> None:
        packio.add_field(place / "x.tar", "name", named_new, overwrite=True)

    def check(place: pathlib.Path, _: bool) -> None:
        out = place / "x.tar"
        with contextlib.suppress(OptionError):  # it has a field of this name: the old one
            packio.add_field(out, "name", named_new)
            assert {*latents.values(out, "name").values()} == {b"new"}
        found.update(latents.values(out, "name").values())
        with contextlib.suppress(OutputExistsError):  # new values wait in the journal, and stay
            packio.drop_field(out, "name")
        run(place)
        assert {*latents.values(out, "name").values()} == {b"new"}

    assert killing.kill_at_each_step(fresh.parent, run, check) > 10
    assert found == {b"old", b"new"}


@pytest.mark.long
def test_dropping_killed_at_any_step_ends_when_it_runs_again(
    image_folder: pathlib.Path, folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    fresh = _fresh(image_folder, tmp_path, "zarr")
    old = latents.files(fresh.parent)
    packio.add_field(fresh, "latent", folder)

    def run(place: pathlib.Path) -> None:
        packio.drop_field(place / "x.zarr", "latent")

    def check(place: pathlib.Path, was_killed: bool) -> None:
        with packio.open(place / "x.zarr") as pack:
            is_there = "latent" in pack.fields
        if is_there:
            assert was_killed
            run(place)
        packio.add_field(place / "x.zarr", "latent", folder)
        run(place)
        assert latents.files(place) == old

    assert killing.kill_at_each_step(fresh.parent, run, check) > 5


def test_other_values_than_those_of_the_pack_are_refused(out: pathlib.Path) -> None:
    texts = {sample.key: f"of {sample.key}" for sample in packio.open(out)}
    packio.add_field(out, "caption", texts)
    digest = packio.open(out).digest
    assert packio.add_field(out, "caption", texts).digest == digest
    for other in ({**texts, next(iter(texts)): "new"}, dict(list(texts.items())[1:])):
        with pytest.raises(OptionError, match="has a field 'caption' already"):
            packio.add_field(out, "caption", other)


def test_missing_values_are_refused_with_counts_or_allowed(
    image_folder: pathlib.Path, folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = tmp_path / "x.tar"
    packio.pack(image_folder, out, shards=2)
    gone = sorted(folder.rglob("*.npy"))[-3:]
    for path in gone:
        path.unlink()
    np.save(folder / "stranger.npy", np.zeros(1))
    with pytest.raises(SourceError, match=r"3 of 25 samples have no value.*'stranger.npy'"):
        packio.add_field(out, "latent", folder)
    report = packio.add_field(out, "latent", folder, missing=True)
    assert (report.samples, report.missing, report.unused) == (22, 3, ("stranger.npy",))
    stems = {str(path.relative_to(folder))[:-4] for path in gone}
    with packio.open(out) as pack:
        lacking = frozenset(
            key for key in map(pack.key, range(len(pack))) if os.path.splitext(key)[0] in stems
        )
    assert len(lacking) == 3
    latents.check(out, lacking)
    packio.drop_field(out, "latent")
    with pytest.raises(SourceError, match="3 of 25"):
        packio.add_field(
            out, "latent", lambda s: None if s.key in lacking else latents.latent(s.key)
        )
    packio.add_field(out, "latent", lambda s: latents.latent(s.key))
    latents.check(out)


def test_values_of_mixed_kinds_and_no_images_are_refused(out: pathlib.Path) -> None:
    with pytest.raises(SourceError, match="of kind text"):
        packio.add_field(out, "odd", lambda s: "text" if s.index % 2 else b"bytes")
    with pytest.raises(BadImagesError):
        packio.add_field(
            out, "depth", dict.fromkeys(latents.keys(out), b"no image"), kind="image", resume=False
        )


def test_what_cannot_be_meant_is_refused(
    out: pathlib.Path, tmp_path: pathlib.Path, folder: pathlib.Path
) -> None:
    packio.add_field(out, "latent", folder)
    for name in ("image", "label", "key", "a/b", "image_div2", ""):
        with pytest.raises(OptionError):
            packio.add_field(out, name, folder)
    with pytest.raises(OptionError, match="drop-field"):
        packio.add_field(out, "latent", latents.latent_of)
    for name in ("image", "nothing", "image_div2"):
        with pytest.raises(OptionError):
            packio.drop_field(out, name)
    with pytest.raises(OptionError, match="at a URL"):
        packio.add_field("s3://bucket/x.tar", "other", folder)
    with pytest.raises(OptionError, match="workers=0"):
        packio.add_field(out, "other", lambda s: s.key, workers=2)
    bare = tmp_path / "bare.tar"
    shutil.copy(out, bare)
    with pytest.raises(OptionError, match="packio reindex"):
        packio.add_field(bare, "other", folder)
    (tmp_path / "x.other.array.tar").write_text("of somebody else")
    with pytest.raises(OutputExistsError, match="no part of"):
        packio.add_field(out, "other", folder)
    assert (tmp_path / "x.other.array.tar").read_text() == "of somebody else"
    latents.check(out)


@pytest.mark.parametrize("name", latents.FORMATS)
def test_other_verbs_carry_the_field(
    name: str, image_folder: pathlib.Path, folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = _with_latents(name, image_folder, folder, tmp_path)
    assert packio.pack(image_folder, out, shards=2).up_to_date
    packio.convert(out, tmp_path / "converted.tar")
    latents.check(tmp_path / "converted.tar")
    more = tmp_path / "more"
    shutil.copytree(image_folder, more / "new")
    for path in [path for path in more.rglob("*") if path.is_file()]:  # append asks for new names
        path.rename(path.with_name(f"new {path.name}"))
    packio.pack(more, tmp_path / f"y{latents.suffix(name)}", shards=2)
    new = frozenset(latents.keys(tmp_path / f"y{latents.suffix(name)}"))
    merged = tmp_path / f"merged{latents.suffix(name)}"
    packio.merge(merged, [out, tmp_path / f"y{latents.suffix(name)}"], shards=2)
    latents.check(merged, new)
    packio.append(out, more)
    latents.check(out, new)
    packio.reindex(out)
    latents.check(out, new)
    packio.drop_field(merged, "latent")
    assert packio.verify(merged).ok
    latents.check(out, new)


@pytest.mark.parametrize("name", latents.FORMATS)
def test_a_lost_index_loses_no_sample_and_makes_no_wrong_ones(
    name: str, image_folder: pathlib.Path, folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = tmp_path / f"x{latents.suffix(name)}"
    packio.pack(image_folder, out, shards=2)
    with packio.open(out) as pack:
        data = [sample.data for sample in pack]
    packio.add_field(out, "latent", folder)
    (out / "index.packio").unlink()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        packio.reindex(out)
    with packio.open(out) as pack:
        assert [sample.data for sample in pack] == data
        if registry.load("formats", name).caps.fields_apart:
            assert pack.fields == {"image": "image", "latent": "array"}
        else:
            assert pack.fields == {"image": "image"}
            assert any("latent" in str(w.message) for w in told)
    assert packio.verify(out).ok


def test_a_field_that_was_packed_is_dropped_for_good(
    image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    paths = sorted(path for path in image_folder.rglob("*") if path.is_file())
    rows = [{"path": str(path), "caption": f"picture {path.name}"} for path in paths]
    table, out = tmp_path / "rows.jsonl", tmp_path / "x.tar"
    table.write_text("".join(json.dumps(row) + "\n" for row in rows[:20]))
    packio.pack(table, out, shards=2, fields={"caption": ("caption", "text")})
    before = latents.files(out)
    dropped = packio.drop_field(out, "caption")
    assert dropped.removed == ()
    assert dropped.remaining == sum(len(row["caption"]) for row in rows[:20])
    assert latents.files(out) == before
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert packio.append(out, table).added == len(rows) - 20
    packio.convert(out, tmp_path / "converted.lmdb")
    for pack in map(packio.open, (out, tmp_path / "converted.lmdb")):
        assert pack.fields == {"image": "image"}
        assert len(pack) == len(rows)
    packio.add_field(out, "caption", lambda sample: f"new {sample.key}")
    with packio.open(out) as pack:
        assert {s.fields["caption"].data.decode() for s in pack} == {f"new {s.key}" for s in pack}
    assert packio.verify(out).ok


def test_names_of_added_shards_are_told_from_others() -> None:
    names = {"a.tar", "a.latent.array.tar", "a.b.tar", "b.latent.array.tar", "latent.array.tar"}
    assert {n for n in names if is_added_shard(n, names)} == {"a.latent.array.tar"}


def test_the_workshop_of_another_user_is_not_touched(
    out: pathlib.Path, folder: pathlib.Path
) -> None:
    strange = workshop.Workshop.locate(out, job.SUFFIX).folder
    strange.mkdir()
    (strange / "thesis.txt").write_text("years of work")
    with pytest.raises(PackioError, match="not made by packio"):
        packio.add_field(out, "latent", folder)
    assert (strange / "thesis.txt").read_text() == "years of work"
