"""Containers recognised by their content and their names, as files and as folders of shards."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import shutil
import tarfile
import threading
from pathlib import Path
from typing import Any

import made
import pytest

import packio
from packio import registry
from packio.errors import CannotCreateError, OptionError, PackioError
from packio.index import indexfile
from packio.packs import locating, recognising
from packio.sample.record import Field

pytestmark = pytest.mark.usefixtures("own_cache")


def write(name: str, path: Path) -> Path:
    form = registry.load("formats", name)
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = made.writer(form, path, 2)
    writer.add(
        [made.record(made.png(), 3, b"a.png", "png"), made.record(made.png(), 4, b"b.png", "png")]
    )
    writer.close()
    return path


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
    found = recognising.find(tmp_path / "d")
    assert found is not None
    assert found.shards == ("p-0.rec", "p-1.rec")
    with packio.open(tmp_path / "d") as pack:
        assert pack.fields == {"image": "image", "mask": "mask", "caption": "text", "view": "image"}


def test_a_container_without_images_is_named(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "notes.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("notes.txt"))
    with pytest.raises(PackioError, match=r"notes\.tar: no images in this tar container"):
        packio.open(tmp_path / "notes.tar")


def test_an_lmdb_of_a_single_file_is_known_by_its_pages(tmp_path: Path) -> None:
    write("lmdb", tmp_path / "d/x.lmdb")
    shutil.move(tmp_path / "d/x.lmdb/data.mdb", tmp_path / "single")
    assert len(packio.open(tmp_path / "single")) == 2


def test_threads_and_processes_that_open_one_bare_tar_make_one_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = _bare(tmp_path, b"x" * 9)
    written, write = [], indexfile.write

    def count(*arguments: Any) -> str:
        written.append(arguments[0])
        return write(*arguments)

    monkeypatch.setattr(indexfile, "write", count)
    barrier = threading.Barrier(4)

    def opened(_: int) -> int:
        barrier.wait()
        with packio.open(bare) as pack:
            return len(pack)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(opened, range(4))) == [3] * 4
    assert len(written) == 1
    assert not list((tmp_path / "cache").rglob("*.tmp-*"))


def test_a_bare_tar_that_is_written_anew_at_the_same_time_is_indexed_anew(tmp_path: Path) -> None:
    bare = _bare(tmp_path, b"x" * 9)
    with packio.open(bare) as pack:
        assert pack[0].data.endswith(b"x" * 9)
    status = bare.stat()
    with bare.open("r+b") as file:
        file.write(_bare(tmp_path / "other", b"y" * 9).read_bytes())
    os.utime(bare, ns=(status.st_atime_ns, status.st_mtime_ns))
    with packio.open(bare) as pack:
        assert pack[0].data.endswith(b"y" * 9)


def test_a_cache_that_cannot_be_written_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_bytes(b"no folder")
    monkeypatch.setenv("PACKIO_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(CannotCreateError, match="PACKIO_CACHE_DIR"):
        packio.open(_bare(tmp_path, b""))


@pytest.mark.parametrize("labels", [(0, None, 1), (None, 0, 0), (None, None, None)])
def test_a_sample_without_a_label_beside_labelled_ones_is_left_out(
    labels: tuple[int | None, ...], tmp_path: Path
) -> None:
    few = pytest.warns(UserWarning, match="1 of 3 records are left out; .*no label")
    with few if 0 in labels else contextlib.nullcontext():
        pack = packio.open(_bare(tmp_path, b"", labels))
    with pack:
        expected = None if set(labels) == {None} else [x for x in labels if x is not None]
        assert (None if pack.labels is None else pack.labels.tolist()) == expected


def test_a_pack_without_its_sidecar_opens_with_a_warning(tmp_path: Path) -> None:
    for i in range(3):
        (tmp_path / "src/cat").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"src/cat/{i}.png").write_bytes(made.png(width=4 + i))
    packio.pack(tmp_path / "src", tmp_path / "p.tar")
    (tmp_path / "p.tar.idx").unlink()
    with pytest.warns(UserWarning, match=r"p\.tar\.idx: missing.*other readers"):
        pack = packio.open(tmp_path / "p.tar")
    assert len(pack.read_many([0, 1, 2])) == 3
    assert not packio.verify(tmp_path / "p.tar").ok
    (tmp_path / "p.tar.idx").write_text("of another size")  # as while an append publishes
    assert len(packio.open(tmp_path / "p.tar").read_many([0, 1, 2])) == 3
    assert not packio.verify(tmp_path / "p.tar").ok
    (tmp_path / "p.tar").unlink()
    with pytest.raises(PackioError):
        packio.open(tmp_path / "p.tar")


def _bare(folder: Path, more: bytes, labels: tuple[int | None, ...] = (0, 1, 1)) -> Path:
    """A tar as others write them: three images, and their labels."""
    folder.mkdir(exist_ok=True)
    members = []
    for i, label in enumerate(labels):
        members.append((f"{i}.png", made.png() + more))
        if label is not None:
            members.append((f"{i}.cls", b"%d" % label))
    (folder / "bare.tar").write_bytes(made.tar_bytes(members))
    return folder / "bare.tar"
