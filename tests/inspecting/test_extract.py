"""Extracting gives back the very files, in one step, and never writes anywhere else."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import fielded
import numpy as np
import pytest
from cli_runs import run
from made import damage
from PIL import Image

import packio
from packio.errors import (
    CannotCreateError,
    IntegrityError,
    LockedError,
    OptionError,
    OutputError,
    OutputExistsError,
)
from packio.index import indexfile
from packio.index.columns import join_values
from packio.inspecting.extracting import extract
from packio.sample.fields import decode
from packio.storage import workshop

if TYPE_CHECKING:
    from packio.system.progress import Progress

NAMES = (
    b"new\nline.png", b"tab\there.png", b"back\\slash.png", b"latin-\xe9\xff.png",
    "é.png".encode(), "e\u0301.png".encode(), b"x" * 251 + b".png", "👩\u200d🔬🎉.png".encode(),
    b"-rf.png", b"x...png", b" .png",
)  # fmt: skip


def _png(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (4, 6, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def _write(root: pathlib.Path, key: bytes, data: bytes) -> None:
    path = os.path.join(os.fsencode(root), key)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)


def _tree(root: pathlib.Path) -> dict[bytes, bytes | None]:
    """Every file below a folder with its bytes, every folder with None."""
    top = os.fsencode(root)
    found: dict[bytes, bytes | None] = {}
    for folder, folders, files in os.walk(top):
        found |= {os.path.relpath(os.path.join(folder, name), top): None for name in folders}
        for name in files:
            path = os.path.join(folder, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, top)] = file.read()
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    root = tmp_path_factory.mktemp("made")
    for i, name in enumerate(NAMES):
        _write(root / "source", b"odd/" + name, _png(i))
    for i in range(5):
        _write(root / "source", b"plain/deep/%d/er/%d.png" % (i % 2, i), _png(100 + i))
    (root / "source" / "none").mkdir()
    packio.pack(root / "source", root / "made.lmdb", on_error="skip")
    return root


@pytest.fixture
def pack(made: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of the pack, to be changed."""
    return pathlib.Path(shutil.copytree(made / "made.lmdb", tmp_path / "made.lmdb"))


def _rename(pack: pathlib.Path, names: dict[int, bytes]) -> None:
    """Give some samples other keys, as a forged index would."""
    with packio.open(pack) as opened:
        index, metadata = opened.index_file, opened.metadata
        keys = [names.get(i, opened.key_bytes(i)) for i in range(len(opened))]
        columns = {name: index.column(name).array() for name in index.column_names}
    columns["key_data"], columns["key_offsets"] = join_values(keys)
    columns["key_order"] = np.array(sorted(range(len(keys)), key=keys.__getitem__), np.uint32)
    indexfile.write(pack / "index.packio", columns, metadata)


def test_extracting_gives_back_the_source_byte_for_byte(
    made: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    report = extract(made / "made.lmdb", tmp_path / "out")
    tree = _tree(made / "source")
    assert _tree(tmp_path / "out") == tree
    assert report.samples == sum(data is not None for data in tree.values())
    assert report.bytes == sum(len(data) for data in tree.values() if data is not None)
    assert report.empty_classes == 1
    assert os.listdir(tmp_path) == ["out"]
    again = packio.pack(tmp_path / "out", tmp_path / "again.lmdb", on_error="skip")
    with packio.open(made / "made.lmdb") as pack:
        assert again.digest == pack.digest


def test_the_command_extracts_and_counts(made: pathlib.Path, tmp_path: pathlib.Path) -> None:
    done = run("extract", made / "made.lmdb", tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, "")
    assert "16 files, empty classes: 1" in done.stdout
    assert _tree(tmp_path / "out") == _tree(made / "source")


@pytest.fixture
def rich(tmp_path: pathlib.Path) -> pathlib.Path:
    """A pack with fields of every kind, labels, splits, boxes and metadata."""
    return fielded.write(tmp_path / "rich")


def _lines(out: pathlib.Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "packio.jsonl").read_text().splitlines()]


def test_each_field_is_a_file_beside_the_image(rich: pathlib.Path, tmp_path: pathlib.Path) -> None:
    report = extract(rich, tmp_path / "out")
    tree = _tree(tmp_path / "out")
    endings = {
        "image": b".png", "mask": b".mask.png", "depth": b".depth.png", "caption": b".caption.txt",
        "latent": b".latent.npy", "blob": b".blob.bin",
    }  # fmt: skip
    expected = {
        record.key.removesuffix(b".png") + endings[name]: field.data
        for record in fielded.records() for name, field in record.fields.items()
    }  # fmt: skip
    found = {n: d for n, d in tree.items() if d is not None and not n.startswith(b"packio.")}
    assert found == expected
    assert report.fields == {n: 6 - (n in ("mask", "caption")) for n in endings}
    assert report.bytes == sum(map(len, expected.values()))


def test_the_table_says_what_no_file_says(rich: pathlib.Path, tmp_path: pathlib.Path) -> None:
    report = extract(rich, tmp_path / "out")
    assert report.annotations == ("label", "split", "boxes", "meta")
    assert (tmp_path / "out" / "packio.classes.txt").read_text() == "cat\ndog\n"
    lines = _lines(tmp_path / "out")
    for line, record in zip(lines, fielded.records(), strict=True):
        assert os.fsencode(line["key"]) == record.key
        assert isinstance(record.label, int)
        assert record.split is not None
        assert record.boxes is not None
        assert line["label"] == fielded.CLASSES[record.label]
        assert line["split"] == fielded.SPLITS[record.split]
        assert np.array_equal(np.float32(line["boxes"]).reshape(-1, 4), record.boxes)
        named = [fielded.CLASSES[label] for label in record.box_columns["labels"]]
        assert line["boxes/labels"] == named
        assert line["boxes/crowd"] == record.box_columns["crowd"].tolist()
        assert np.array_equal(np.float32(line["boxes/area"]), record.box_columns["area"])
        assert line["meta"] == json.loads(record.meta or b"")
        assert line.keys() & fielded.records()[0].fields.keys() == record.fields.keys() - {"image"}
        if "caption" in record.fields:
            assert line["caption"] == decode(record.fields["caption"])
        for name in record.fields.keys() - {"image", "caption"}:
            path = tmp_path / "out" / line[name]
            assert path.read_bytes() == record.fields[name].data


def test_only_the_fields_asked_for_are_extracted(
    rich: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    report = extract(rich, tmp_path / "images", fields=["image"])
    files = {n for n, data in _tree(tmp_path / "images").items() if data is not None}
    assert files == {record.key for record in fielded.records()}
    assert (report.table, report.command, report.annotations) == (None, None, ())
    extract(rich, tmp_path / "some", fields=["mask", "split"])
    assert _lines(tmp_path / "some")[1].keys() == {"key", "mask", "split"}
    assert len(_tree(tmp_path / "some")) == 2 + 5 + 2  # folders, masks, the table and its head
    with pytest.raises(OptionError, match="latent"):
        extract(rich, tmp_path / "none", fields=["latents"])


def test_fields_of_images_that_differ_in_their_ending_only_are_kept_apart(
    tmp_path: pathlib.Path,
) -> None:
    a, b, c, *_ = fielded.records()
    keys = (b"a.png", b"a.jpg", b"a.caption.txt")
    given = [dataclasses.replace(r, key=k) for r, k in zip((a, b, c), keys, strict=True)]
    extract(fielded.write(tmp_path / "pack", given), tmp_path / "out")
    lines = _lines(tmp_path / "out")
    assert [line["latent"] for line in lines] == [
        "a.latent.npy", "a.jpg.latent.npy", "a.caption.latent.npy",
    ]  # fmt: skip
    for line, record in zip(lines, given, strict=True):
        assert (tmp_path / "out" / line["key"]).read_bytes() == record.image.data
        assert (tmp_path / "out" / line["latent"]).read_bytes() == record.fields["latent"].data


def test_the_command_says_what_was_written_and_how_to_pack_it_again(
    rich: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    done = run("extract", rich, tmp_path / "out dir")
    assert (done.returncode, done.stderr) == (0, "")
    assert "34 files" in done.stdout
    assert "mask 5" in done.stdout
    assert "packio.jsonl: keys, label, split, boxes, meta, blob, caption" in done.stdout
    command = shlex.split(done.stdout.partition("pack it again: ")[2])
    assert command == ["packio", "pack", str(tmp_path / "out dir"), "NEW.tar"]


def test_labels_that_no_folder_says_are_in_the_table(
    made: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    pairs = [(made / "source" / "plain" / "deep" / "0" / "er" / f"{i}.png", i) for i in (0, 2, 4)]
    (tmp_path / "list.csv").write_text("path,label\n" + "".join(f"{p},{n}\n" for p, n in pairs))
    packio.pack(tmp_path / "list.csv", tmp_path / "x.tar")
    assert extract(tmp_path / "x.tar", tmp_path / "out").annotations == ("label",)
    assert [line["label"] for line in _lines(tmp_path / "out")] == [0, 2, 4]


def test_only_the_classes_asked_for_are_extracted(
    made: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    extract(made / "made.lmdb", tmp_path / "out", classes=["plain", "none"])
    tree = _tree(made / "source")
    wanted = {k: v for k, v in tree.items() if k.split(b"/")[0] in (b"plain", b"none")}
    assert _tree(tmp_path / "out") == wanted
    with pytest.raises(OptionError, match="plain"):
        extract(made / "made.lmdb", tmp_path / "none", classes=["plane"])
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize(
    "key",
    [b"../outside.png", b"odd/../../outside.png", b"..", b"/outside.png", b"//outside.png",
     b"odd/nul\0.png", b"odd//double.png", b"./odd.png", b"odd/.", b"odd/", b""],
)  # fmt: skip
def test_a_key_that_is_no_path_below_the_folder_is_refused(
    pack: pathlib.Path, tmp_path: pathlib.Path, key: bytes
) -> None:
    _rename(pack, {3: key})
    before = _tree(tmp_path)
    (tmp_path / "a").mkdir()
    with pytest.raises(IntegrityError, match="key"):
        extract(pack, tmp_path / "a" / "out")
    (tmp_path / "a").rmdir()  # nothing is in it
    assert _tree(tmp_path) == before


@pytest.mark.parametrize("names", [{2: b"same", 3: b"same/below"}, {2: b"same/below", 3: b"same"}])
def test_keys_that_cannot_both_be_files_are_an_error(
    pack: pathlib.Path, tmp_path: pathlib.Path, names: dict[int, bytes]
) -> None:
    _rename(pack, names)
    with pytest.raises(OutputError, match="same"):
        extract(pack, tmp_path / "out")
    assert os.listdir(tmp_path) == ["made.lmdb"]


def test_a_folder_that_is_not_empty_stays_as_it_is(
    made: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    _write(tmp_path, b"out/mine.txt", b"mine")
    with pytest.raises(OutputExistsError, match="--overwrite"):
        extract(made / "made.lmdb", tmp_path / "out")
    assert run("extract", made / "made.lmdb", tmp_path / "out").returncode == 73
    assert _tree(tmp_path) == {b"out": None, b"out/mine.txt": b"mine"}


def test_overwrite_replaces_the_folder(made: pathlib.Path, tmp_path: pathlib.Path) -> None:
    _write(tmp_path, b"out/mine.txt", b"mine")
    extract(made / "made.lmdb", tmp_path / "out", overwrite=True)
    assert _tree(tmp_path / "out") == _tree(made / "source")
    assert os.listdir(tmp_path) == ["out"]


def test_a_link_to_an_empty_folder_is_followed(made: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    extract(made / "made.lmdb", tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert _tree(tmp_path / "real") == _tree(made / "source")


@pytest.mark.parametrize("place", ["made.lmdb", "made.lmdb/below", "."])
def test_the_pack_itself_is_never_written_over(
    pack: pathlib.Path, tmp_path: pathlib.Path, place: str
) -> None:
    before = _tree(pack)
    with pytest.raises(OptionError, match=r"made\.lmdb"):
        extract(pack, tmp_path / place, overwrite=True)
    assert _tree(pack) == before


def test_no_folder_is_made_where_none_can_be(
    made: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").write_text("mine")
    for out, words in (("out", "file"), ("no/out", "mkdir")):
        with pytest.raises(CannotCreateError, match=words):
            extract(made / "made.lmdb", tmp_path / out, overwrite=True)
    assert (tmp_path / "out").read_text() == "mine"
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError, match="folder"):
        extract(made / "made.lmdb", ".", overwrite=True)


def test_a_damaged_sample_stops_it_and_leaves_nothing(
    pack: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    damage(pack, 7)
    with pytest.raises(IntegrityError, match="CRC32C"):
        extract(pack, tmp_path / "out")
    assert os.listdir(tmp_path) == ["made.lmdb"]


def test_a_write_that_fails_is_an_error_and_leaves_nothing(
    made: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)); "
        "from packio.cli import main; main()"
    )
    words = ["extract", str(made / "made.lmdb"), str(tmp_path / "out")]
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 74
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert os.listdir(tmp_path) == []


def test_two_at_once_into_one_place_are_refused(made: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with workshop.open_workshop(tmp_path / "out"), pytest.raises(LockedError):
        extract(made / "made.lmdb", tmp_path / "out")
    extract(made / "made.lmdb", tmp_path / "out")
    assert os.listdir(tmp_path) == ["out"]


def test_progress_ends_with_everything_done(made: pathlib.Path, tmp_path: pathlib.Path) -> None:
    seen: list[Progress] = []
    report = extract(made / "made.lmdb", tmp_path / "out", progress=seen.append)
    assert seen[-1].done == seen[-1].total == report.samples
    assert seen[-1].done_bytes == seen[-1].total_bytes == report.bytes
