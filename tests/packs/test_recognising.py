"""Containers recognised by their content and their names, as files and as folders of shards."""

from __future__ import annotations

import shutil
from pathlib import Path

import made
import pytest

import packio
from packio import registry
from packio.errors import OptionError
from packio.packs import indexing, locating
from packio.sample.record import Field


def write(name: str, path: Path) -> Path:
    form = registry.load("formats", name)
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = made.writer(form, path, 2)
    writer.add(
        [made.record(made.png(), 3, b"a.png", "png"), made.record(made.png(), 4, b"b.png", "png")]
    )
    writer.close()
    return path


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACKIO_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    "name", ["train-00000-of-00001", "x.tfrecord-00000-of-00001", "x.tfrec", "x.tfrecords", "x"]
)
def test_tfrecords_under_the_names_of_tensorflow_are_known(name: str, tmp_path: Path) -> None:
    path = write("tfrecord", tmp_path / "d" / name)
    assert packio.open(path).labels is not None
    assert locating.is_container(path)


@pytest.mark.parametrize("stem", ["train", "x.tfrecord"])
def test_a_folder_of_the_shards_of_tensorflow_is_one_pack(stem: str, tmp_path: Path) -> None:
    for i in range(3):
        write("tfrecord", tmp_path / "d" / f"{stem}-{i:05d}-of-00003")
    (tmp_path / "d" / "dataset_info.json").write_text("{}")
    assert len(packio.open(tmp_path / "d")) == 6
    assert len(packio.open(tmp_path / "d" / f"{stem}-{{00000..00001}}-of-00003")) == 4


def test_a_folder_of_several_formats_is_refused(tmp_path: Path) -> None:
    write("tar", tmp_path / "d/a.tar")
    write("tfrecord", tmp_path / "d/b.tfrecord")
    with pytest.raises(OptionError, match=r"a\.tar \(tar\), b\.tfrecord \(tfrecord\)"):
        packio.open(tmp_path / "d")


def test_suffixes_in_capitals_are_seen_in_a_folder(tmp_path: Path) -> None:
    write("tar", tmp_path / "d/A.TAR")
    assert len(packio.open(tmp_path / "d")) == 2


def test_the_content_counts_more_than_the_name(tmp_path: Path) -> None:
    write("tar", tmp_path / "d/a.tar").rename(tmp_path / "d/a.tfrecord")
    assert packio.open(tmp_path / "d/a.tfrecord").metadata["format"] == "tar"


def test_files_of_masks_and_fields_are_no_shards(tmp_path: Path) -> None:
    form = registry.load("formats", "recordio")
    for i in range(2):
        path = tmp_path / f"d/p-{i}.rec"
        path.parent.mkdir(exist_ok=True)
        fields = {"caption": Field("text", b"a"), "view": Field("image", made.png())}
        writer = made.writer(form, path)
        writer.add([made.record(made.png(), 1, mask=made.png(), fields=fields)])
        writer.close()
    found = indexing.find(tmp_path / "d")
    assert found is not None
    assert found.shards == ("p-0.rec", "p-1.rec")
    with packio.open(tmp_path / "d") as pack:
        assert pack.fields == {"image": "image", "mask": "mask", "caption": "text", "view": "image"}


def test_an_lmdb_of_a_single_file_is_known_by_its_pages(tmp_path: Path) -> None:
    write("lmdb", tmp_path / "d/x.lmdb")
    shutil.move(tmp_path / "d/x.lmdb/data.mdb", tmp_path / "single")
    assert len(packio.open(tmp_path / "single")) == 2
