"""Adding fields under odd names, of odd values, and in odd orders: each sample keeps its values."""

from __future__ import annotations

import functools
import io
import json
import os
import pathlib
import re
import tempfile
from collections.abc import Callable
from typing import Any

import latents
import made
import numpy as np
import pytest
import torch
from cli_runs import run
from PIL import Image

import packio
from packio.errors import (
    BadImagesError,
    IntegrityError,
    LockedError,
    OptionError,
    OutputExistsError,
    SourceError,
)
from packio.system import locks


@pytest.mark.parametrize("name", ["shard_id", "file_caption", "seek_x", "seek_data", "key_data"])
def test_a_field_named_like_columns_of_an_index_stays_when_the_index_is_made_anew(
    name: str,
    image_folder: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PACKIO_CACHE_DIR", str(tmp_path / "cache"))
    out = tmp_path / "x"
    packio.pack(image_folder, out, shards=2, format="tar")
    keys = latents.keys(out)
    texts = {key: f"words {i} of {key}" for i, key in enumerate(keys)}
    packio.add_field(out, name, texts)
    packio.add_field(out, "other", texts)
    packio.drop_field(out, "other")
    packio.reindex(out, seek_points=True)
    packio.reindex(out, seek_points=False)
    packio.select(out, f"key = '{keys[5]}' or key = '{keys[2]}'", out=tmp_path / "s.packio")
    for path, expected in ((out, keys), (tmp_path / "s.packio", [keys[2], keys[5]])):
        with packio.open(path) as pack:
            assert [pack.key(i) for i in range(len(pack))] == expected
            found = [pack.read_field(name, i) for i in range(len(pack))]
        assert found == [texts[key].encode() for key in expected]


@pytest.fixture
def pack(image_folder: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """A pack without fields."""
    out = tmp_path / "x.tar"
    packio.pack(image_folder, out)
    return out


@pytest.mark.parametrize(
    ("lists", "dtype"),
    [
        ([[1, 16_777_217], [2**40 + 1]], np.int64),
        ([[2**64 - 1], [1]], None),
        ([[True, False], [False]], np.bool_),
        ([[1, 2], [0.5]], np.float32),
        ([[], [7]], np.int64),
        ([[[1, 2], [3, 4]], [[5, 6]]], np.int64),
    ],
)
def test_lists_of_a_table_are_arrays_of_the_same_numbers(
    lists: list[list[Any]], dtype: Any, pack: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    keys, table = latents.keys(pack), tmp_path / "t.jsonl"
    wanted = {key: lists[i % len(lists)] for i, key in enumerate(keys)}
    table.write_text("".join(json.dumps({"key": k, "ids": v}) + "\n" for k, v in wanted.items()))
    if dtype is None:  # no type of whole numbers holds both
        wanted = {key: [float(n) for n in value] for key, value in wanted.items()}
        dtype = np.float32
    packio.add_field(pack, "ids", table)
    found = latents.arrays(pack, "ids")
    assert {key: array.tolist() for key, array in found.items()} == wanted
    assert {array.dtype for array in found.values()} == {np.dtype(dtype)}


@pytest.mark.parametrize("dtype", [np.int32, np.uint64, np.float64, np.float16])
def test_lists_of_a_parquet_table_keep_their_type(
    dtype: Any, pack: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    keys, table = latents.keys(pack), tmp_path / "t.parquet"
    values = [np.array([i, 1.1, 3], dtype) for i, _ in enumerate(keys)]
    column = pa.array([value.tolist() for value in values], pa.list_(pa.from_numpy_dtype(dtype)))
    parquet.write_table(pa.table({"key": keys, "ids": column, "other": keys}), table)
    packio.add_field(pack, "ids", table)
    found = latents.arrays(pack, "ids")
    assert {array.dtype for array in found.values()} == {np.dtype(dtype)}
    assert all(np.array_equal(found[key], value) for key, value in zip(keys, values, strict=True))


def test_text_of_a_table_may_hold_separators_of_lines(
    pack: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    texts = {key: f"{key}\u2028of\x85two\x0bor three" for key in latents.keys(pack)}
    rows = [json.dumps({"key": k, "f": v}, ensure_ascii=False) for k, v in texts.items()]
    (tmp_path / "t.jsonl").write_text("\n".join(rows), "utf-8")
    packio.add_field(pack, "f", tmp_path / "t.jsonl")
    assert latents.texts(pack, "f") == texts


def test_keys_of_a_mapping_are_text_and_differ(pack: pathlib.Path) -> None:
    first = latents.keys(pack)[0]
    for values, why in (({7: "x"}, "7 as key"), ({first: "x", first.encode(): "y"}, "twice")):
        with pytest.raises(SourceError, match=why):
            packio.add_field(pack, "f", values, missing=True)


def _first(value: object, _sample: packio.Sample) -> object:
    return value


def test_arrays_that_numpy_cannot_hold_are_refused(pack: pathlib.Path) -> None:
    values = [
        torch.zeros(3, dtype=torch.bfloat16), torch.eye(3).to_sparse(), [[1], [1, 2]],
        np.ma.array([1, 2], mask=[False, True]),
    ]  # fmt: skip
    for value in values:
        with pytest.raises(SourceError, match="the value of"):
            packio.add_field(pack, "f", dict.fromkeys(latents.keys(pack), value))
        with pytest.raises(BadImagesError, match="f is not added"):
            packio.add_field(pack, "f", functools.partial(_first, value))


def _png(height: int, width: int) -> bytes:
    return made.saved(np.zeros((height, width), np.uint8))


@pytest.mark.parametrize("name", ["mask", "parts"])
def test_a_mask_of_another_size_than_its_image_is_refused(name: str, pack: pathlib.Path) -> None:
    with packio.open(pack) as opened:
        right = {sample.key: _png(sample.height, sample.width) for sample in opened}
        wrong = {sample.key: _png(sample.width + 1, sample.height) for sample in opened}
    with pytest.raises(BadImagesError, match="its image has"):
        packio.add_field(pack, name, wrong, kind="mask")
    assert packio.add_field(pack, name, right, kind="mask").samples == len(right)
    packio.convert(pack, pack.with_name("y.lmdb"))


def test_a_file_that_two_samples_may_mean_is_the_value_of_neither(tmp_path: pathlib.Path) -> None:
    for name in ("1.jpg", "1.png"):
        (tmp_path / "images" / "a").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(tmp_path / "images" / "a" / name)
    packio.pack(tmp_path / "images", tmp_path / "x.tar")
    for name in ("1.jpg.npy", "1.npy"):
        (tmp_path / "f" / "a").mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / "f" / "a" / name, np.zeros(2))
    with pytest.raises(SourceError, match=r"'a/1' may be the value of several"):
        packio.add_field(tmp_path / "x.tar", "f", tmp_path / "f")
    (tmp_path / "f" / "a" / "1.npy").rename(tmp_path / "f" / "a" / "1.png.npy")
    assert packio.add_field(tmp_path / "x.tar", "f", tmp_path / "f").samples == 2


def test_a_link_that_leads_nowhere_is_named(pack: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "a.npy").symlink_to("nowhere")
    with pytest.raises(SourceError, match=r"f/a.npy: cannot be looked at"):
        packio.add_field(pack, "f", tmp_path / "f")


def test_values_made_of_other_captions_are_not_taken_over(
    image_folder: pathlib.Path, pack: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    keys, out = latents.keys(pack), tmp_path / "captioned.tar"

    def packed(word: str) -> None:
        rows = [json.dumps({"path": key, "caption": f"{word} {key}"}) + "\n" for key in keys]
        (tmp_path / "t.jsonl").write_text("".join(rows))
        packio.pack(
            tmp_path / "t.jsonl", out, root=image_folder, fields={"caption": ("caption", "text")},
            overwrite=True,
        )  # fmt: skip

    last = [keys[-1]]

    def made(sample: packio.Sample) -> str:
        if sample.key in last:
            raise RuntimeError("the GPU is busy")
        return sample.fields["caption"].data.decode().upper()

    packed("old")
    with pytest.raises(BadImagesError, match="busy"):
        packio.add_field(out, "f", made)
    last.clear()
    packed("new")
    with pytest.raises(OutputExistsError, match=r"cut short.*have changed since"):
        packio.add_field(out, "f", made)
    assert packio.add_field(out, "f", made, resume=False).resumed == 0
    assert latents.texts(out, "f") == {key: f"new {key}".upper() for key in keys}


def test_files_of_another_folder_are_not_taken_for_those_of_the_first(
    pack: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    keys = latents.keys(pack)
    for number in (1, 2):  # as unpacked from archives: sizes and times are the same
        for key in keys:
            path = tmp_path / str(number) / f"{key}.npy"
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, np.full(3, number))
            os.utime(path, ns=(0, 0))
    bad = tmp_path / "1" / f"{keys[-1]}.npy"
    content = bad.read_bytes()
    bad.write_bytes(b"x" * len(content))
    os.utime(bad, ns=(0, 0))
    with pytest.raises(BadImagesError):
        packio.add_field(pack, "f", tmp_path / "1")
    packio.add_field(pack, "f", tmp_path / "2")
    assert {array.tolist() == [2, 2, 2] for array in latents.arrays(pack, "f").values()} == {True}


@pytest.mark.parametrize("shards", [1, 2])
def test_a_lock_that_another_reader_left_hinders_nothing(
    shards: int, image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    lmdb, out = pytest.importorskip("lmdb"), tmp_path / "x.lmdb"
    packio.pack(image_folder, out, shards=shards)
    keys = latents.keys(out)
    before = {str(path) for path in out.rglob("*")}
    for overwrite in (False, True):
        texts = {key: f"{key} {overwrite}" for key in keys}
        packio.add_field(out, "f", texts, overwrite=overwrite)
        with packio.open(out) as opened:
            assert {s.key: s.fields["f"].data.decode() for s in opened} == texts
        for folder in out.rglob("f.text"):
            lmdb.open(str(folder)).close()
            assert (folder / "lock.mdb").exists()
    packio.drop_field(out, "f")
    assert {str(path) for path in out.rglob("*")} == before


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    ("suffix", "strange"),
    [
        (".tar", "x.f.text.tar"), (".tar", "x.f.text.tar.idx"), (".rec", "x.f.text.idx"),
        (".lmdb", "x.lmdb/f.text/thesis.txt"), (".zarr", "x.zarr/f.text/a/thesis.txt"),
    ],
)  # fmt: skip
def test_files_of_others_stay_and_an_old_field_too(
    suffix: str, strange: str, overwrite: bool, image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = tmp_path / f"x{suffix}"
    packio.pack(image_folder, out)
    keys = latents.keys(out)
    if overwrite:  # of another kind, so that its containers have other names
        packio.add_field(out, "f", {key: key.encode() for key in keys})
    path = tmp_path / strange
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("years of work")
    with pytest.raises(OutputExistsError, match="is no part of"):
        packio.add_field(out, "f", dict.fromkeys(keys, "new"), overwrite=overwrite)
    assert path.read_text() == "years of work"
    with packio.open(out) as opened:
        assert opened.fields == {"image": "image", **({"f": "bytes"} if overwrite else {})}
        if overwrite:
            assert {s.key: bytes(s.fields["f"].data).decode() for s in opened} == {
                key: key for key in keys
            }


@pytest.mark.parametrize("change", ["drop", "overwrite"])
def test_a_reader_whose_files_are_gone_says_that_the_pack_has_changed(
    change: str, pack: pathlib.Path
) -> None:
    keys = latents.keys(pack)
    old = {key: np.full(8, i) for i, key in enumerate(keys)}
    packio.add_field(pack, "f", old)
    fresh, warm = packio.open(pack), packio.open(pack)
    data = packio.PackDataset(pack, fields=("key", "f"))
    assert np.load(io.BytesIO(warm.read_field("f", 0) or b"")).tolist() == [0] * 8
    if change == "drop":
        packio.drop_field(pack, "f")
    else:
        packio.add_field(pack, "f", {key: value + 1 for key, value in old.items()}, overwrite=True)
    assert np.load(io.BytesIO(warm.read_field("f", 3) or b"")).tolist() == [3] * 8
    for read in (lambda: fresh.read_field("f", 3), lambda: data[3]):
        with pytest.raises(IntegrityError, match="has changed since it was opened"):
            read()


@pytest.mark.parametrize("shards", [1, 2])
def test_what_would_replace_the_index_meanwhile_is_refused(
    shards: int, image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out, refused = tmp_path / "x.tar", list[str]()
    packio.pack(image_folder, out, shards=shards)
    keys = latents.keys(out)
    packio.add_field(out, "old", dict.fromkeys(keys, "old"))
    verbs: dict[str, Callable[[], object]] = {
        "reindex": lambda: packio.reindex(out),
        "pack": lambda: packio.pack(image_folder, out, overwrite=True, shards=shards),
        "drop": lambda: packio.drop_field(out, "old"),
        **({"append": lambda: packio.append(out, image_folder)} if shards > 1 else {}),
        "add": lambda: packio.add_field(out, "g", dict.fromkeys(keys, "x")),
    }

    def made(sample: packio.Sample) -> str:
        if sample.key == keys[3]:
            for name, verb in verbs.items():
                with pytest.raises(LockedError):
                    verb()
                refused.append(name)
        return sample.key

    packio.add_field(out, "f", made)
    assert refused == [*verbs]
    for name in ("reindex", "drop"):  # nobody holds a lock by now
        verbs[name]()
    assert latents.texts(out, "f") == dict(zip(keys, keys, strict=True))
    assert packio.verify(out).ok
    with locks.changing(out / "index.packio" if shards > 1 else tmp_path / "x.tar.packio"):
        for verb in verbs.values():
            with pytest.raises(LockedError):
                verb()
        assert run("add", out, "--field", f"b={image_folder}").returncode == 75


@pytest.mark.parametrize("error", [SystemExit(0), SystemExit("done"), GeneratorExit()])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_function_that_ends_the_process_ends_the_run_with_an_error(
    on_error: str, error: BaseException, pack: pathlib.Path
) -> None:
    keys = latents.keys(pack)
    last = [keys[-1]]

    def made(sample: packio.Sample) -> str:
        if sample.key in last:
            raise error
        return sample.key

    with pytest.raises(BadImagesError, match=f"{re.escape(repr(keys[-1]))}: the function ended"):
        packio.add_field(pack, "f", made, on_error=on_error, missing=True)
    last.clear()
    assert packio.add_field(pack, "f", made, on_error=on_error, missing=True).resumed > 0
    assert latents.texts(pack, "f") == dict(zip(keys, keys, strict=True))


def test_a_link_on_another_file_system_leads_to_the_pack(
    image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    other = pathlib.Path("/dev/shm")  # noqa: S108 (a folder in it has a random name)
    if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs a second file system")
    out = tmp_path / "x"
    packio.pack(image_folder, out, shards=2, format="tar")
    texts = {key: f"of {key}" for key in latents.keys(out)}
    (tmp_path / "more" / "new").mkdir(parents=True)
    Image.new("RGB", (4, 4)).save(tmp_path / "more" / "new" / "1.png")
    with tempfile.TemporaryDirectory(dir=other) as folder:
        link = pathlib.Path(folder) / "l"
        link.symlink_to(out)
        packio.add_field(link, "f", texts)
        assert packio.append(link, tmp_path / "more").added == 1
        assert os.listdir(folder) == ["l"]
    with packio.open(out) as opened:
        found = {s.key: s.fields["f"].data.decode() for s in opened if "f" in s.fields}
        assert (found, len(opened)) == (texts, len(texts) + 1)


Step = Callable[[pathlib.Path, pathlib.Path], pathlib.Path]


def _converted(out: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    return packio.convert(out, folder / "y", format="lmdb", shards=2).out


def _merged(out: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    one = folder / "other.tar"
    (folder / "o/class").mkdir(parents=True)
    Image.new("RGB", (9, 7)).save(folder / "o/class/zz.png")
    packio.pack(folder / "o", one)
    return packio.merge(folder / "m.tar", [out, one], shards=2).out


def _reindexed(out: pathlib.Path, _: pathlib.Path) -> pathlib.Path:
    packio.reindex(out)
    return out


def _appended(out: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    (folder / "n/class").mkdir(parents=True)
    Image.new("RGB", (9, 7)).save(folder / "n/class/new.png")
    packio.append(out, folder / "n")
    return out


def _dropped(out: pathlib.Path, _: pathlib.Path) -> pathlib.Path:
    packio.drop_field(out, "later")
    return out


_STEPS: dict[str, Step] = {
    "nothing": lambda out, _: out,
    "convert": _converted,
    "merge": _merged,
    "reindex": _reindexed,
    "append": _appended,
    "drop": _dropped,
}


@pytest.mark.parametrize("step", _STEPS)
def test_a_field_that_came_later_is_no_change_of_the_source(
    step: str,
    image_folder: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "x"
    packio.pack(image_folder, out, shards=2, format="tar")
    keys = latents.keys(out)
    packio.add_field(out, "later", {key: f"words of {key}" for key in keys})
    made = _STEPS[step](out, tmp_path)
    monkeypatch.setenv("PACKIO_CACHE_DIR", str(tmp_path / "empty"))  # nothing is known of files
    found = packio.append(made, image_folder, compare=True)
    assert (found.changed, found.known) == ((), len(keys))
    assert packio.append(made, image_folder).added == 0
    if step in ("nothing", "reindex", "drop"):
        assert packio.pack(image_folder, out, shards=2, format="tar").up_to_date


def test_replacing_a_pack_says_which_added_fields_are_lost(
    image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = tmp_path / "x.tar"
    packio.pack(image_folder, out)
    assert not packio.pack(image_folder, out, limit=2, overwrite=True).warnings
    for name in ("words", "more"):
        packio.add_field(out, name, dict.fromkeys(latents.keys(out), "some"))
    packio.drop_field(out, "more")
    with pytest.raises(OutputExistsError, match=r"--overwrite, which loses what .*: words$"):
        packio.pack(image_folder, out, limit=3)
    (warning,) = packio.pack(image_folder, out, limit=3, overwrite=True).warnings
    assert re.search(r"replaced had fields from packio add: words;", warning)
    with packio.open(out) as pack:
        assert len(pack) == 3
        assert "words" not in pack.fields


def test_replacing_a_pack_by_one_that_has_its_added_fields_loses_none(
    image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    first, out = tmp_path / "x.tar", tmp_path / "y.lmdb"
    packio.pack(image_folder, first)
    packio.add_field(first, "words", dict.fromkeys(latents.keys(first), "some"))
    packio.convert(first, out)
    assert not packio.pack(first, out, limit=2, overwrite=True).warnings
    with packio.open(out) as pack:
        assert [pack.read_field("words", i) for i in range(len(pack))] == [b"some"] * 2


def _texts(folder: pathlib.Path, numbers: range) -> pathlib.Path:
    """A folder of images with a text beside each."""
    for i in numbers:
        place = folder / "ab"[i % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((20, 20, 3), 7 * i, np.uint8)).save(place / f"{i}.png")
        (place / f"{i}.txt").write_text(f"text {i}")
    return folder


def test_fields_of_a_split_are_renamed(tmp_path: pathlib.Path) -> None:
    source, first, out = _texts(tmp_path / "s", range(9)), tmp_path / "p.tar", tmp_path / "q.tar"
    shares = {"train": 0.5, "val": 0.5}
    packio.pack(source, first, split=shares, fields={"txt": ".txt"})
    packio.convert(first, out, split="train", fields={"caption": "txt"})
    with packio.open(first) as pack:
        train = {pack.key(i) for i in pack.split("train").tolist()}
    wanted = {key: value for key, value in latents.values(first, "txt").items() if key in train}
    assert 0 < len(train) < 9
    assert latents.values(out, "caption") == wanted


def test_two_fields_do_not_get_one_name(tmp_path: pathlib.Path) -> None:
    source, first, out = _texts(tmp_path / "s", range(4)), tmp_path / "p.tar", tmp_path / "q.tar"
    packio.pack(source, first, fields={"txt": ".txt"})
    packio.add_field(first, "caption", dict.fromkeys(latents.keys(first), "some"))
    for split in ({}, {"split": "train"}):
        if split:
            packio.pack(first, tmp_path / "t.tar", split={"train": 1.0})
            first = tmp_path / "t.tar"
        with pytest.raises(OptionError, match="the pack has a field 'caption' too"):
            packio.convert(first, out, fields={"caption": "txt"}, **split)
        with pytest.raises(OptionError, match="under two names"):
            packio.convert(first, out, fields={"a": "txt", "b": "txt"}, **split)
    packio.convert(first, out, fields={"caption": "txt", "txt": "caption"})
    assert latents.values(out, "caption") == latents.values(first, "txt")
    assert latents.values(out, "txt") == latents.values(first, "caption")
