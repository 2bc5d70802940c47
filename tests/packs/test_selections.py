"""Selections: packs without bytes of their own, through every verb; changed and forged ones."""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import pickle
import random
import shutil
import struct
from typing import Any

import cli_runs
import latents
import numpy as np
import pytest
import queried
import safetensors.numpy
import torch
from torch.utils.data import DataLoader

import packio
from packio import registry
from packio.errors import (
    CannotCreateError,
    IntegrityError,
    KeyNotFoundError,
    NoSuchPackError,
    NotAPackError,
    OptionError,
    OutputExistsError,
    PackioError,
    VersionError,
)
from packio.index import indexfile
from packio.packs.querying import selections

pytest.importorskip("duckdb")

WANTED = [i for i, s in enumerate(queried.samples()) if s.name == "dog"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACKIO_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return queried.write(tmp_path_factory.mktemp("selections") / "p")


def _selected(pack: pathlib.Path, out: pathlib.Path) -> pathlib.Path:
    report = packio.select(pack, "class = 'dog'", out=out)
    assert (report.selected, report.samples) == (len(WANTED), queried.COUNT)
    return out


def _content(sample: packio.Sample) -> list[Any]:
    """All that a sample is, but its position."""
    return [
        sample.key, sample.data, sample.encoding, sample.label, sample.height, sample.width,
        sample.orientation, sample.meta, sample.split, sample.mask,
        None if sample.boxes is None else sample.boxes.tolist(),
        None if sample.box_labels is None else sample.box_labels.tolist(),
        {name: values.tolist() for name, values in sample.box_columns.items()},
        {name: (field.kind, field.data) for name, field in sample.fields.items()},
    ]  # fmt: skip


def _check(selection: pathlib.Path, pack: pathlib.Path, wanted: list[int] = WANTED) -> None:
    with packio.open(pack) as whole, packio.open(selection) as part:
        assert len(part) == len(wanted)
        assert [_content(s) for s in part] == [_content(whole[i]) for i in wanted]
        assert (part.classes, part.fields) == (whole.classes, whole.fields)
        assert part.find(whole.key(wanted[-1])) == len(wanted) - 1
        every = packio.PackDataset(whole, fields=("image", "label", "key"))
        some = packio.PackDataset(part, fields=("image", "label", "key"))
        found, expected = some.gather(range(len(wanted))), every.gather(wanted)
        assert torch.equal(found[0], expected[0])
        assert torch.equal(found[1], expected[1])


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("name", latents.FORMATS)
def test_a_selection_of_a_pack_of_any_format_is_a_pack(
    pack: pathlib.Path, tmp_path: pathlib.Path, name: str, shards: int
) -> None:
    suffix = latents.suffix(name)
    source = packio.convert(pack, tmp_path / f"x{suffix}", shards=shards).out
    selection = _selected(source, tmp_path / "dogs.selection")
    _check(selection, source)
    report = packio.verify(selection, decode=True)
    assert (report.ok, report.samples, report.format) == (True, len(WANTED), name)
    again = packio.convert(selection, tmp_path / f"again{suffix}").out
    _check(again, pack)


def test_a_selection_of_a_selection_tells_all_conditions(
    pack: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    dogs = _selected(pack, tmp_path / "dogs.selection")
    packio.select(dogs, "width > 0", out=tmp_path / "wide.selection")
    packio.select(tmp_path / "wide.selection", "height > 0", out=tmp_path / "high.selection")
    with packio.open(tmp_path / "high.selection") as found:
        said = found.metadata["selection"]["expression"]
    assert said == "class = 'dog'; then width > 0; then height > 0"
    packio.select(pack, keys_of=dogs, out=tmp_path / "keys.selection")  # by no condition
    packio.select(tmp_path / "keys.selection", "width > 0", out=tmp_path / "some.selection")
    with packio.open(tmp_path / "some.selection") as found:
        assert found.metadata["selection"]["expression"] == "width > 0"


def test_raw_pixels_are_selected_too(tmp_path: pathlib.Path) -> None:
    given = [{"key": f"{i:03}", "image": np.full((8, 9, 3), i, np.uint8), "label": i % 3}
             for i in range(200)]  # fmt: skip
    packio.pack(given, tmp_path / "x.h5", encode="raw")
    ds = packio.PackDataset(tmp_path / "x.h5")
    ds.where('"index" % 7 = 3').save_selection(tmp_path / "some.selection")
    part = packio.PackDataset(tmp_path / "some.selection")
    images, labels = part.gather(range(len(part)))
    wanted = list(range(3, 200, 7))
    assert images[:, 0, 0, 0].tolist() == wanted
    assert labels.tolist() == [i % 3 for i in wanted]
    assert packio.verify(tmp_path / "some.selection").ok


def test_every_command_takes_a_selection(pack: pathlib.Path, tmp_path: pathlib.Path) -> None:
    shutil.copytree(pack, tmp_path / "p")

    def run(*words: str) -> str:
        done = cli_runs.run(*words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    said = run("select", "p", "class = 'dog'", "-o", "dogs.selection")
    assert said == f"dogs.selection: {len(WANTED)} of 40 samples of p\n"
    keys = [queried.samples()[i].key for i in WANTED]
    lines = run("ls", "dogs.selection", "--json").splitlines()
    assert [json.loads(line)["key"] for line in lines] == keys
    about = json.loads(run("info", "dogs.selection", "--json"))
    assert (about["samples"], about["selection"]["samples"]) == (len(WANTED), 40)
    assert about["selection"]["expression"] == "class = 'dog'"
    assert "40 of p: class = 'dog'" in run("info", "dogs.selection")
    assert "all as they were packed" in run("verify", "dogs.selection")
    for words in (
        ("pack", "dogs.selection", "x.lmdb"), ("convert", "dogs.selection", "x.tar"),
        ("extract", "dogs.selection", "files"), ("export", "dogs.selection", "x.parquet"),
        ("view", "dogs.selection", "-o", "x.html"), ("warm", "dogs.selection"),
        ("cat", "dogs.selection", keys[1]),
        ("merge", "dogs.selection", "cats.tar", "-o", "both.tar"),
        ("select", "dogs.selection", "n > 20", "-o", "few.selection"),
    ):  # fmt: skip
        if words[0] == "merge":
            run("select", "p", "class = 'cat'", "-o", "cats.selection")
            run("convert", "cats.selection", "cats.tar")
        if words[0] != "cat":
            run(*words)
    for out in ("x.lmdb", "x.tar", "files"):
        if out != "files":
            _check(tmp_path / out, pack)
    _check(tmp_path / "few.selection", pack, [i for i in WANTED if i > 23])
    assert len(packio.open(tmp_path / "both.tar")) == 2 * len(WANTED)
    assert len(list((tmp_path / "files").rglob("*.png"))) >= len(WANTED)


def test_commands_that_change_a_pack_refuse_a_selection(
    pack: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = _selected(pack, tmp_path / "x.selection")
    before = out.read_bytes()
    with pytest.raises(OptionError, match="a selection; append to its pack"):
        packio.append(out, pack)
    with pytest.raises(NotAPackError, match="a selection has no index of its own"):
        packio.reindex(out)
    source = packio.convert(pack, tmp_path / "x.lmdb").out
    packio.select(source, "n > 3", out=tmp_path / "l.selection")
    with pytest.raises(OptionError, match="'range' only"):
        packio.open(tmp_path / "l.selection", access="lmdb")
    assert out.read_bytes() == before


def test_workers_and_pickles_read_a_selection(pack: pathlib.Path, tmp_path: pathlib.Path) -> None:
    out = _selected(pack, tmp_path / "x.selection")
    ds = packio.PackDataset(out, fields=("index", "label"))
    assert len(pickle.loads(pickle.dumps(ds))) == len(WANTED)
    for context in ("fork", "spawn"):
        loader = DataLoader(ds, 4, num_workers=2, multiprocessing_context=context)
        found = torch.cat([batch[0] for batch in loader])
        assert found.tolist() == list(range(len(WANTED)))


def test_selections_of_selections_are_of_the_pack(
    pack: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    first = _selected(pack, tmp_path / "a.selection")
    (tmp_path / "deep").mkdir()
    ds = packio.PackDataset(first).where("n % 2 = 0")
    ds.save_selection(tmp_path / "deep" / "b.selection")
    first.unlink()
    _check(tmp_path / "deep" / "b.selection", pack, [i for i in WANTED if (i - 3) % 2 == 0])


def test_a_selection_may_move_with_its_pack_and_without(
    pack: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    shutil.copytree(pack, tmp_path / "a" / "p")
    _selected(tmp_path / "a" / "p", tmp_path / "a" / "x.selection")
    (tmp_path / "a").rename(tmp_path / "b")
    _check(tmp_path / "b" / "x.selection", pack)
    (tmp_path / "b" / "p").rename(tmp_path / "elsewhere")
    with pytest.raises(NoSuchPackError, match="pack=") as raised:
        packio.open(tmp_path / "b" / "x.selection")
    assert "is a selection of it" in str(raised.value)
    found = packio.open(tmp_path / "b" / "x.selection", pack=tmp_path / "elsewhere")
    assert [s.key for s in found] == [queried.samples()[i].key for i in WANTED]
    assert pickle.loads(pickle.dumps(found))[0].key == found[0].key
    packio.PackDataset(found).save_selection(tmp_path / "new.selection")
    _check(tmp_path / "new.selection", pack)


def test_a_changed_pack_is_refused_unless_keys_are_asked_for(
    pack: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    packio.convert(pack, tmp_path / "x.tar")
    out = _selected(tmp_path / "x.tar", tmp_path / "x.selection")
    packio.open(out)
    packio.convert(pack, tmp_path / "x.tar", exclude="é/0*", shuffle=3, overwrite=True)
    with pytest.raises(IntegrityError, match=r"another pack now.*--keys-of"):
        packio.open(out)
    assert not packio.verify(out).ok
    with pytest.raises(KeyNotFoundError, match="lacks samples"):
        packio.open(out, by_key=True)
    packio.convert(pack, tmp_path / "x.tar", shuffle=3, overwrite=True)
    expected = {queried.samples()[i].key for i in WANTED}
    assert {s.key for s in packio.open(out, by_key=True)} == expected
    packio.select(tmp_path / "x.tar", out=tmp_path / "new.selection", keys_of=out)
    found = packio.open(tmp_path / "new.selection")
    assert {s.key for s in found} == expected
    assert [s.label for s in found] == [1] * len(WANTED)


def test_orders_and_doubles_are_told(pack: pathlib.Path, tmp_path: pathlib.Path) -> None:
    ds = packio.PackDataset(pack)
    with pytest.warns(UserWarning, match="order of this dataset is not kept"):
        ds.subset([7, 3, 30]).save_selection(tmp_path / "a.selection")
    _check(tmp_path / "a.selection", pack, [3, 7, 30])
    with pytest.raises(OptionError, match="1 samples are there more than once"):
        ds.subset([7, 3, 7]).save_selection(tmp_path / "b.selection")
    with pytest.raises(OptionError, match="no samples"):
        ds.subset([]).save_selection(tmp_path / "b.selection")
    with pytest.raises(OptionError, match="none of 40 samples"):
        packio.select(pack, "n > 1000", out=tmp_path / "b.selection")
    with pytest.raises(OptionError, match="say what to select"):
        packio.select(pack, out=tmp_path / "b.selection")
    assert os.listdir(tmp_path) == ["a.selection"]


def test_a_folder_of_images_is_no_pack_to_select_of(
    image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    ds = packio.FolderDataset(image_folder).where("width > 100")
    with pytest.raises(OptionError, match="image folder"):
        ds.save_selection(tmp_path / "x.selection")


def test_what_is_there_is_not_replaced(pack: pathlib.Path, tmp_path: pathlib.Path) -> None:
    out = _selected(pack, tmp_path / "x.selection")
    with pytest.raises(OutputExistsError, match="overwrite=True"):
        packio.select(pack, "n > 3", out=out)
    packio.select(pack, "n > 30", out=out, overwrite=True)
    _check(out, pack, list(range(34, 40)))
    (tmp_path / "mine").write_bytes(b"mine")
    with pytest.raises(OutputExistsError, match="is no selection"):
        packio.select(pack, "n > 3", out=tmp_path / "mine", overwrite=True)
    with pytest.raises(CannotCreateError):
        packio.select(pack, "n > 3", out=tmp_path / "nowhere" / "x.selection")
    with pytest.raises(OutputExistsError):
        packio.select(pack, "n > 3", out=pack, overwrite=True)


def test_another_reader_opens_the_file_as_it_is_documented(
    pack: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    data = _selected(pack, tmp_path / "x.selection").read_bytes()
    columns = safetensors.numpy.load(data)
    (size,) = struct.unpack("<Q", data[:8])
    said = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["packio"])
    assert columns["positions"].tolist() == WANTED
    ends, text = columns["key_offsets"].tolist(), columns["key_data"].tobytes()
    assert [text[a:b].decode() for a, b in itertools.pairwise(ends)] == [
        queried.samples()[i].key for i in WANTED
    ]
    assert os.path.normpath(tmp_path / said["pack"]) == str(pack)
    assert (said["selection"], said["samples"]) == (1, 40)
    assert said["digest"] == packio.open(pack).digest
    assert str(pack) not in data.decode("latin-1")


def _written(path: pathlib.Path, columns: dict[str, np.ndarray], said: dict[str, Any]) -> None:
    path.unlink(missing_ok=True)
    indexfile.write(path, columns, said)


def test_forged_selections_are_refused(pack: pathlib.Path, tmp_path: pathlib.Path) -> None:
    out = _selected(pack, tmp_path / "x.selection")
    read = selections.read_selection(out)
    columns = {name: column.array().copy() for name, column in read.columns.items()}
    said = {
        "selection": 1, "pack": read.pack, "digest": read.index_digest, "samples": 40,
        "expression": None, "versions": {},
    }  # fmt: skip
    first, last = np.array([-1, 3]), np.array([3, 40])
    changes: list[tuple[dict[str, Any], type[PackioError]]] = [
        ({"pack": "/" + str(pack)}, NotAPackError), ({"pack": ""}, NotAPackError),
        ({"pack": "x\0"}, NotAPackError), ({"pack": 3}, NotAPackError),
        ({"pack": "."}, NotAPackError), ({"pack": "x.selection"}, NotAPackError),
        ({"pack": "nothing"}, NoSuchPackError), ({"selection": 2}, VersionError),
        ({"selection": "1"}, NotAPackError), ({"samples": 41}, IntegrityError),
        ({"samples": -1}, NotAPackError), ({"samples": 1 << 70}, NotAPackError),
        ({"digest": "00"}, IntegrityError), ({"digest": None}, NotAPackError),
        ({"expression": []}, NotAPackError),
    ]  # fmt: skip
    for changed, error in changes:
        _written(out, columns, {**said, **changed})
        with pytest.raises(error):
            packio.open(out)
    for replaced in [
        {"positions": columns["positions"][::-1].copy()}, {"positions": columns["positions"] * 0},
        {"positions": columns["positions"] + 1}, {"positions": columns["positions"][:-1]},
        {"positions": first}, {"positions": last}, {"positions": columns["positions"] + (1 << 40)},
        {"positions": columns["positions"].astype(np.uint32)},
        {"key_offsets": columns["key_offsets"] + 1}, {"key_offsets": columns["key_offsets"] * -1},
        {"key_data": columns["key_data"][:-1]}, {"key_data": columns["key_data"] ^ 1},
    ]:  # fmt: skip
        _written(out, {**columns, **replaced}, said)
        assert not packio.verify(out).ok
        with pytest.raises(PackioError):
            packio.open(out)
    _written(out, columns, said)
    _check(out, pack)


def test_damaged_bytes_are_found_or_harmless(
    pack: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = _selected(pack, tmp_path / "x.selection")
    good, rng = out.read_bytes(), random.Random(5)
    for i in range(60):
        bad = bytearray(good)
        bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
        out.write_bytes(bad)
        monkeypatch.setenv("PACKIO_CACHE_DIR", str(tmp_path / f"cache-{i}"))
        with pytest.raises(PackioError):
            packio.open(out)
    for size in (0, 7, 8, 100, len(good) - 1):
        out.write_bytes(good[:size])
        with pytest.raises(PackioError):
            packio.open(out)


def test_the_index_is_made_once_and_again_if_lost(
    pack: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACKIO_CACHE_DIR", str(tmp_path / "cache"))
    out = _selected(pack, tmp_path / "x.selection")
    first = packio.open(out)
    (made,) = (tmp_path / "cache" / "selections").glob("*.packio")
    before = made.stat().st_mtime_ns
    assert packio.open(out).digest == first.digest
    assert made.stat().st_mtime_ns == before
    shutil.rmtree(tmp_path / "cache")
    assert packio.open(out).digest == first.digest
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cache").write_bytes(b"")
    with pytest.raises(CannotCreateError, match="PACKIO_CACHE_DIR"):
        packio.open(out)


def test_links_may_lead_to_the_folder_of_a_selection(
    pack: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    shutil.copytree(pack, tmp_path / "p") if pack.is_dir() else shutil.copy(pack, tmp_path / "p")
    index = pack.with_name(f"{pack.name}.packio")
    if index.exists():
        shutil.copy(index, tmp_path / "p.packio")
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "link").symlink_to("deep/er")
    for written, other in (("link", "deep/er"), ("deep/er", "link")):
        out = _selected(tmp_path / "p", tmp_path / written / "x.selection")
        _check(out, tmp_path / "p")
        _check(tmp_path / other / "x.selection", tmp_path / "p")
        again = packio.select(tmp_path / other / "x.selection", "true", out=tmp_path / "y").out
        _check(again, tmp_path / "p")
        out.unlink()
        again.unlink()


def test_small_groups_of_rows_make_the_same_index(
    pack: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sharded = packio.convert(pack, tmp_path / "x.tar", shards=4).out
    monkeypatch.setattr("packio.packs.querying.selections._MOST", 3)
    monkeypatch.setattr("packio.packs.querying.selections._SPAN", 5)
    _check(_selected(sharded, tmp_path / "x.selection"), sharded)


@pytest.mark.parametrize(
    "suffix",
    [".LMDB", ".parquet", *(registry.load("formats", n).caps.suffixes[0] for n in latents.FORMATS)],
)
def test_a_name_that_ends_as_a_pack_or_a_table_is_refused(
    suffix: str, tmp_path: pathlib.Path
) -> None:
    pack = queried.write(tmp_path / "p")
    out = tmp_path / f"x{suffix}"
    with pytest.raises(OptionError, match=r"name it x\.selection, and for a .*: packio"):
        packio.select(pack, "width > 0", out=out)
    with pytest.raises(OptionError, match=r"name it x\.selection"):
        packio.PackDataset(pack).save_selection(out)
    assert not out.exists()
