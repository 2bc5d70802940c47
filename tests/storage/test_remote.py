"""Packs and sources at URLs: in memory, and on an S3 server behind a proxy with faults."""

from __future__ import annotations

import os
import pathlib
import pickle
import shutil
import sys
from typing import TYPE_CHECKING, Any

import coordinates
import fsspec
import numpy as np
import pytest
import s3fs
import torch
from object_store import Proxy

import packio
from packio import registry
from packio.errors import (
    BadImagesError,
    CannotCreateError,
    IntegrityError,
    LockedError,
    MissingPackageError,
    NoSuchPackError,
    NotAPackError,
    OptionError,
    OutputError,
    OutputExistsError,
    ReadError,
    SourceError,
    UnfinishedPackError,
)
from packio.storage import s3_store, stores, uploading, urls

if TYPE_CHECKING:
    from collections.abc import Callable

FORMATS = [n for n in registry.names("formats") if registry.load("formats", n).caps.writes]


@pytest.fixture
def memory() -> Any:
    """The file system in memory, empty."""
    fs = fsspec.filesystem("memory")
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]
    return fs


def _files(folder: pathlib.Path) -> dict[str, bytes]:
    """What is below a folder, by relative path."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def _same(one: packio.Pack, other: packio.Pack) -> bool:
    everything = range(len(one))
    return (
        list(one.keys()) == list(other.keys())
        and list(map(one.label, everything)) == list(map(other.label, everything))
        and one.read_many(everything) == other.read_many(everything)
    )


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("s3://bucket/x.tar", "s3://bucket/x.tar"),
        ("s3:/bucket/x.tar", "s3://bucket/x.tar"),  # as pathlib writes it
        ("memory:///x.tar", "memory://x.tar"),
        ("filecache::s3://bucket/x.tar", "filecache::s3://bucket/x.tar"),
        ("file:///data/x.tar", None),
        ("data/x.tar", None),
        ("/data/s3://bucket", None),
    ],
)
def test_urls_are_told_from_paths(text: str, url: str | None) -> None:
    found = urls.place(text)
    assert (str(found) if isinstance(found, urls.Url) else None) == url


def test_a_url_behaves_as_a_path_and_survives_pickling() -> None:
    url = urls.Url("s3://bucket/a/x.tar")
    assert str(url.parent / "y") == str(url.with_name("y")) == "s3://bucket/a/y"
    assert str(pickle.loads(pickle.dumps(url))) == os.fspath(url) == "s3://bucket/a/x.tar"
    assert urls.place(pathlib.Path("s3://bucket/a/x.tar")) == url


def test_a_file_url_is_a_path(image_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    report = packio.pack(image_folder, f"file://{tmp_path}/x.tar")
    assert report.out == tmp_path / "x.tar"
    assert len(packio.open(f"file://{tmp_path}/x.tar")) == report.packed


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("shards", [1, 3])
def test_what_is_at_a_url_is_what_would_be_on_disk(
    name: str, shards: int, memory: Any, image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = "x" + registry.load("formats", name).caps.suffixes[0]
    local = tmp_path / "local"
    local.mkdir()
    packio.pack(image_folder, local / out, shards=shards)
    report = packio.pack(image_folder, f"memory://here/{out}", shards=shards)
    assert str(report.out) == f"memory://here/{out}"
    found = {path[len("/here/") :]: memory.cat(path) for path in memory.find("/here")}
    assert found == _files(local)
    assert _same(packio.open(report.out), packio.open(local / out))
    assert not os.listdir(os.path.join(os.environ["PACKIO_CACHE_DIR"], "uploads"))


@pytest.mark.parametrize("elsewhere", [False, True])
def test_packing_again_is_up_to_date_until_a_file_changes(
    elsewhere: bool, memory: Any, image_folder: pathlib.Path, tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    source = tmp_path / "source"
    shutil.copytree(image_folder, source)
    packio.pack(source, "memory://x.tar")
    if elsewhere:
        monkeypatch.setenv("PACKIO_CACHE_DIR", str(tmp_path / "another machine's"))
    before = memory.info("/x.tar")
    assert packio.pack(source, "memory://x.tar").up_to_date
    assert memory.info("/x.tar") == before
    looked_at = packio.open("memory://x.tar").index_file.path.stat().st_mtime_ns
    assert (looked_at == 0) is elsewhere  # when its source was is known here only
    path = source / "nature" / "tiny.jpg"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")  # as long as before
    with pytest.raises(OutputExistsError, match="other files"):
        packio.pack(source, "memory://x.tar")


@pytest.mark.usefixtures("memory")
def test_another_pack_is_replaced_only_when_told(image_folder: pathlib.Path) -> None:
    packio.pack(image_folder, "memory://x.tar")
    with pytest.raises(OutputExistsError, match="--overwrite"):
        packio.pack(image_folder, "memory://x.tar", shuffle=1)
    opened = packio.open("memory://x.tar")
    report = packio.pack(image_folder, "memory://x.tar", shuffle=1, overwrite=True)
    assert packio.open("memory://x.tar").digest == report.digest != opened.digest
    with pytest.raises(IntegrityError, match="changed"):
        pickle.loads(pickle.dumps(opened))


@pytest.mark.parametrize("there", ["/x.tar", "/x.tar/notes.txt", "/x.tar.idx"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_objects_of_no_pack_stay(
    there: str, overwrite: bool, memory: Any, image_folder: pathlib.Path
) -> None:
    memory.pipe(there, b"mine")
    if overwrite and there != "/x.tar/notes.txt":  # a file, as on disk
        packio.pack(image_folder, "memory://x.tar", overwrite=True)
        assert len(packio.open("memory://x.tar")) == 25
        return
    with pytest.raises(OutputExistsError):
        packio.pack(image_folder, "memory://x.tar", overwrite=overwrite)
    assert memory.find("/") == [there]
    assert memory.cat(there) == b"mine"


@pytest.mark.usefixtures("memory")
def test_skipped_images_are_listed_beside_the_pack(
    image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    source = tmp_path / "source"
    shutil.copytree(image_folder, source)
    (source / "nature" / "bad.jpg").write_bytes(b"no image")
    with pytest.raises(BadImagesError):
        packio.pack(source, "memory://x.tar")
    with pytest.raises(NotAPackError):
        packio.open("memory://x.tar")
    report = packio.pack(source, "memory://x.tar", on_error="skip")
    assert [skip.key for skip in report.skipped] == [b"nature/bad.jpg"]
    assert str(report.skipped_file) == "memory://x.tar.skipped.jsonl"
    assert b"bad.jpg" in fsspec.filesystem("memory").cat("/x.tar.skipped.jsonl")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(MissingPackageError, match="gcsfs"):
        packio.open("gs://bucket/x.tar")
    with pytest.raises(OptionError, match="nosuch"):
        packio.open("nosuch://bucket/x.tar")


def test_a_bucket_that_is_not_there_is_told_before_packing(
    s3: Proxy, image_folder: pathlib.Path
) -> None:
    with pytest.raises(CannotCreateError, match="bucket does not exist"):
        packio.pack(image_folder, f"s3://{s3.bucket}-no/x.tar")
    assert not os.path.exists(os.path.join(os.environ["PACKIO_CACHE_DIR"], "uploads"))


@pytest.mark.usefixtures("memory")
def test_objects_are_packed_to_a_url() -> None:
    samples = [{"image": np.full((3, 4, 3), i, np.uint8), "label": i} for i in range(5)]
    packio.pack(samples, "memory://objects.tar")
    with packio.open("memory://objects.tar") as pack:
        assert [int(sample.decode().max()) for sample in pack] == list(range(5))


def test_parts_and_libraries_need_a_disk(memory: Any, image_folder: pathlib.Path) -> None:
    with pytest.raises(OptionError, match="parts"):
        packio.pack(image_folder, "memory://x.tar", shards=4, part=(1, 2))
    packio.pack(image_folder, "memory://x.lmdb")
    with pytest.raises(OptionError, match="'range' only"):
        packio.open("memory://x.lmdb", access="lmdb")
    memory.pipe("/x.lmdb/data.mdb", b"cut off")
    with pytest.raises(IntegrityError, match="7 bytes"):
        packio.open("memory://x.lmdb")


def test_a_folder_at_a_url_is_listed_as_one_on_disk(
    memory: Any, image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    source = tmp_path / "source"
    shutil.copytree(image_folder, source)
    for name in ("nature/b/1.jpg", "nature/b.jpg", "nature/a-b/2.jpg", "nature/notes.txt"):
        (source / name).parent.mkdir(exist_ok=True)
        shutil.copy(source / "nature" / "tiny.jpg", source / name)
    memory.put(str(source), "/train", recursive=True)
    packio.pack(source, tmp_path / "local.tar")
    report = packio.pack("memory://train", tmp_path / "x.tar")
    assert _same(packio.open(tmp_path / "x.tar"), packio.open(tmp_path / "local.tar"))
    assert "notes" not in report.warnings
    assert any(".txt" in warning for warning in report.warnings)
    assert packio.pack("memory://train", tmp_path / "x.tar").up_to_date
    memory.pipe("/train/nature/b.jpg", memory.cat("/train/nature/b.jpg"))  # written again
    with pytest.raises(OutputExistsError):
        packio.pack("memory://train", tmp_path / "x.tar")


def test_a_folder_at_a_url_without_classes_is_refused(memory: Any, tmp_path: pathlib.Path) -> None:
    with pytest.raises(SourceError, match="nothing there"):
        packio.pack("memory://train", tmp_path / "x.tar")
    memory.pipe("/train/1.jpg", b"")
    with pytest.raises(SourceError, match="no images in class folders"):
        packio.pack("memory://train", tmp_path / "x.tar")
    memory.pipe({"/all/train/a/1.jpg": b"", "/all/val/a/2.jpg": b""})
    with pytest.raises(SourceError, match="splits"):
        packio.pack("memory://all", tmp_path / "x.tar")
    memory.pipe({"/some/cats/1.jpg": b"", "/some/dogs/readme": b""})
    with pytest.raises(SourceError, match="dogs/: a class folder that has no images"):
        packio.pack("memory://some", tmp_path / "x.tar")


def _watch(s3: Proxy, local: pathlib.Path, wrong: list[str]) -> Callable[[], None]:
    """Look at every object whenever something may have changed."""
    sizes = {f"packs/{name}": len(data) for name, data in _files(local).items()}

    def watch() -> None:
        for name, size in s3.objects().items():
            if not name.endswith(".packio-tmp") and size != sizes.get(name):
                wrong.append(f"{name}: {size} bytes, expected {sizes.get(name)}")

    return watch


def test_faults_truncate_nothing_and_all_is_read(
    s3: Proxy, image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    local, url = tmp_path / "local", f"s3://{s3.bucket}/packs/x.tar"
    local.mkdir()
    packio.pack(image_folder, local / "x.tar", shards=2)
    wrong: list[str] = []
    s3.reset(rate=0.4)
    s3.watch = _watch(s3, local, wrong)
    report = packio.pack(image_folder, url, shards=2)
    assert wrong == []
    assert s3.objects() == {f"packs/{n}": len(d) for n, d in _files(local).items()}
    here, there = packio.open(local / "x.tar"), packio.open(url)
    assert there.digest == here.digest == report.digest
    assert _same(there, here)
    assert [sample.data for sample in there] == [sample.data for sample in here]
    assert packio.pack(image_folder, url, shards=2).up_to_date
    assert set(s3.failed) == set(Proxy.faults)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_read_a_url(
    method: str, s3: Proxy, image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    packio.pack(image_folder, tmp_path / "x.tar")
    packio.pack(image_folder, f"s3://{s3.bucket}/x.tar")
    options: dict[str, Any] = {"crop": packio.CenterCrop(32), "fields": ("image", "index")}
    expected = packio.PackDataset(tmp_path / "x.tar", **options)
    ds = packio.PackDataset(f"s3://{s3.bucket}/x.tar", **options)
    assert torch.equal(ds[3][0], expected[3][0])  # connected before the workers start
    s3.reset(rate=0.2)
    loader = torch.utils.data.DataLoader(
        ds, batch_size=8, num_workers=2, multiprocessing_context=method
    )
    images, indices = (torch.cat(parts) for parts in zip(*loader, strict=True))
    assert indices.tolist() == list(range(len(expected)))
    assert torch.equal(images, torch.stack([expected[i][0] for i in range(len(expected))]))


def test_masks_come_with_their_images_in_one_round_trip(s3: Proxy, tmp_path: pathlib.Path) -> None:
    packio.pack(coordinates.samples(), tmp_path / "x.tar", boxes_frame="stored")
    packio.convert(tmp_path / "x.tar", f"s3://{s3.bucket}/x.tar")
    options: dict[str, Any] = {"crop": packio.CenterCrop(20), "fields": ("image", "mask", "boxes")}
    expected = packio.PackDataset(tmp_path / "x.tar", **options).gather(range(16))
    ds = packio.PackDataset(f"s3://{s3.bucket}/x.tar", **options)
    s3.reset()
    images, masks, boxes = ds.gather(range(16))
    assert len(s3.log) == 1
    assert torch.equal(images, expected[0])
    assert torch.equal(masks, expected[1])
    assert all(torch.equal(a, b) for a, b in zip(boxes, expected[2], strict=True))


def test_an_upload_cut_short_is_no_pack_and_goes_on(
    s3: Proxy, image_folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local, url = tmp_path / "local", f"s3://{s3.bucket}/packs/x.tar"
    local.mkdir()
    packio.pack(image_folder, local / "x.tar", shards=6)
    monkeypatch.setattr(uploading, "_UPLOADS", 1)
    wrong: list[str] = []
    s3.watch = _watch(s3, local, wrong)
    s3.outage = lambda request: "reset" if "00003.tar" in request else None
    with pytest.raises(OutputError, match="run it again"):
        packio.pack(image_folder, url, shards=6)
    arrived = {name for name in s3.objects() if name.endswith(".tar")}
    assert 0 < len(arrived) < 6
    with pytest.raises(UnfinishedPackError, match="run the same"):
        packio.open(url)
    s3.reset()
    s3.watch = _watch(s3, local, wrong)
    packio.pack(image_folder, url, shards=6)
    sent = {line.split()[1] for line in s3.log if line.startswith("PUT")}
    assert not sent & {f"/{s3.bucket}/{name}" for name in arrived}
    assert wrong == []
    assert s3.objects() == {f"packs/{n}": len(d) for n, d in _files(local).items()}
    assert _same(packio.open(url), packio.open(local / "x.tar"))


def test_what_another_upload_left_is_not_taken_over(s3: Proxy, image_folder: pathlib.Path) -> None:
    s3.outage = lambda request: "reset" if request.startswith("PUT") and ".idx" in request else None
    url = f"s3://{s3.bucket}/x.tar"
    with pytest.raises(OutputError):
        packio.pack(image_folder, url, shuffle=1)
    assert "x.tar" in s3.objects()
    s3.reset()
    with pytest.raises(OutputExistsError, match="cut short"):
        packio.pack(image_folder, url, shuffle=2)
    packio.pack(image_folder, url, shuffle=2, overwrite=True)  # its files are as long as those
    pack = packio.open(url)
    assert len([pack[i] for i in range(len(pack))]) == 25
    assert set(s3.objects()) == {"x.tar", "x.tar.idx", "x.tar.packio"}


@pytest.mark.parametrize("last", ["x.tar.idx", "x.tar.packio"])
def test_two_uploads_to_one_url_do_not_mix(
    last: str, s3: Proxy, image_folder: pathlib.Path
) -> None:
    sent = f"PUT /{s3.bucket}/{last}"
    mark, who = f"/{s3.bucket}/x.tar.packio-tmp", {"Authorization": "AWS a:b"}

    def take_over() -> None:
        if sent in s3.log:
            s3.forward("PUT", mark, who, b"of another machine")

    s3.watch = take_over
    with pytest.raises(LockedError, match="another packio"):
        packio.pack(image_folder, f"s3://{s3.bucket}/x.tar")
    assert "x.tar.packio" not in s3.objects()
    assert (f"PUT /{s3.bucket}/x.tar.packio" in s3.log) == (last == "x.tar.packio")


def test_an_upload_in_parts_is_given_up_whole(
    s3: Proxy, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 5 << 20  # the least that S3 takes as a part
    monkeypatch.setattr(s3fs.core, "calculate_chunksize", lambda *_, **__: size)
    path, url = tmp_path / "large", urls.Url(f"s3://{s3.bucket}/large")
    path.write_bytes(bytes(2 * size + 1))
    s3.outage = lambda request: "reset" if "partNumber=2" in request else None
    with pytest.raises(Exception, match="Connection"):
        stores.write_object(url, path)
    assert s3.objects() == {}
    assert b"<Upload>" not in s3.forward("GET", f"/{s3.bucket}?uploads", {}, b"")[2]
    s3.reset()
    stores.write_object(url, path)
    assert s3.objects() == {"large": 2 * size + 1}


@pytest.mark.parametrize("fault", ["short", "shorter", "500"])
def test_what_never_comes_whole_is_an_error(
    fault: str, s3: Proxy, image_folder: pathlib.Path
) -> None:
    packio.pack(image_folder, f"s3://{s3.bucket}/x.tar")
    pack = packio.open(f"s3://{s3.bucket}/x.tar")
    s3.outage = lambda _: fault
    with pytest.raises(ReadError, match=r"/x\.tar, byte"):
        pack.read_many([0, 1])


def test_a_source_behind_faults_is_packed_whole_or_not_at_all(
    s3: Proxy, image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    for name, data in _files(image_folder).items():
        s3.forward("PUT", f"/{s3.bucket}/train/{name}", {}, data)
    packio.pack(image_folder, tmp_path / "local.tar")
    s3.reset(rate=0.3)
    packio.pack(f"s3://{s3.bucket}/train", tmp_path / "x.tar")
    assert _same(packio.open(tmp_path / "x.tar"), packio.open(tmp_path / "local.tar"))
    s3.reset()
    s3.outage = lambda request: "500" if "/people/" in request else None
    with pytest.raises(ReadError, match="cannot be read"):
        packio.pack(f"s3://{s3.bucket}/train", tmp_path / "y.tar", on_error="skip")
    assert not (tmp_path / "y.tar").exists()


@pytest.mark.parametrize("url", ["memory://nowhere/x.tar", "memory://nowhere/{000..002}.tar"])
def test_a_url_with_nothing_at_it_says_so_first(url: str, memory: Any) -> None:
    memory.pipe_file("/somewhere/x.tar", b"no pack")
    with pytest.raises(NoSuchPackError, match=r"x?\.tar: nothing is there.*check the URL"):
        packio.open(url)
    with pytest.raises(NotAPackError, match=r"no pack.*packio reindex memory://somewhere/x\.tar"):
        packio.open("memory://somewhere/x.tar")


def test_missing_credentials_are_told_at_once_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exceptions = pytest.importorskip("botocore.exceptions")
    asked = []

    def refuse(*_: object) -> None:
        asked.append(1)
        raise exceptions.NoCredentialsError

    monkeypatch.setattr(s3_store, "_made", refuse)
    with pytest.raises(ReadError, match=r"AWS_PROFILE.*FSSPEC_S3='\{\"anon\": true\}'"):
        packio.open("s3://bucket/x.tar")
    assert len(asked) == 1
