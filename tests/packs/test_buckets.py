"""Containers of others at URLs: indexed in one pass, and read where they are."""

from __future__ import annotations

import contextlib
import email.utils
import functools
import hashlib
import io
import itertools
import json
import os
import pickle
import re
import signal
import struct
import tarfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import killing
import long
import made
import numpy as np
import pytest
import torch
from cli_runs import run
from PIL import Image

import packio
from packio.errors import (
    CannotCreateError,
    IntegrityError,
    NotAPackError,
    OptionError,
    ReadError,
)
from packio.storage import stores
from packio.storage.fsspec_store import FsspecStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from object_store import Proxy
    from web_server import WebServer

pytestmark = pytest.mark.usefixtures("own_cache")


def noise(seed: int, height: int = 40, width: int = 50) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels)


def encoded(image: Image.Image, form: str = "jpeg", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def shard(numbers: Sequence[int], height: int = 40, width: int = 50) -> bytes:
    """A tar as WebDataset has it: image, label and description of each sample."""
    return made.tar_bytes([
        (f"{i:06d}.{ending}", content)
        for i in numbers
        for ending, content in (
            ("cls", b"%d" % (i % 3)),
            ("jpg", encoded(noise(i, height + i % 5, width), quality=95)),
            ("json", json.dumps({"number": i}).encode()),
        )
    ])  # fmt: skip


def shards(count: int = 3, each: int = 6) -> dict[str, bytes]:
    return {f"t-{k:03d}.tar": shard(range(k * each, (k + 1) * each)) for k in range(count)}


def put(s3: Proxy, content: dict[str, bytes], folder: str = "train") -> str:
    fs = fsspec.filesystem("s3")
    for name, data in content.items():
        fs.pipe_file(f"{s3.bucket}/{folder}/{name}", data)
    return f"s3://{s3.bucket}/{folder}"


def by_tarfile(content: dict[str, bytes]) -> list[tuple[str, int, dict[str, Any], bytes]]:
    """Key, label, description and image of each sample, as the standard library reads them."""
    found: dict[str, dict[str, bytes]] = {}
    for data in content.values():
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for entry in archive:
                stem, _, ending = entry.name.partition(".")
                file = archive.extractfile(entry)
                assert file is not None
                found.setdefault(stem, {})[ending] = file.read()
    return [(k, int(v["cls"]), json.loads(v["json"]), v["jpg"]) for k, v in found.items()]


def by_packio(pack: packio.Pack) -> list[tuple[str, int, Any, bytes]]:
    return [(s.key, int(str(s.label)), pack.meta(i), s.data) for i, s in enumerate(pack)]


def read_of(log: Sequence[str], name: str) -> list[tuple[int, int]]:
    """The ranges of an object that were asked for."""
    pattern = re.compile(rf"GET \S*{re.escape(name)}\S* bytes=(\d+)-(\d+)")
    found = [match for line in log if (match := pattern.search(line))]
    return [(int(match[1]), int(match[2]) + 1) for match in found]


def columns(pack: packio.Pack) -> dict[str, np.ndarray]:
    index = pack.index_file
    return {name: index.column(name).array() for name in index.column_names}


def test_shards_in_a_bucket_are_read_where_they_are(s3: Proxy) -> None:
    url = put(s3, content := shards())
    pattern = f"{url}/t-{{000..002}}.tar"
    assert str(packio.reindex(pattern)) == f"{pattern}.packio"
    with packio.open(pattern) as pack:
        assert by_packio(pack) == by_tarfile(content)
    dataset = packio.TarDataset(pattern, output="numpy")
    for i, (_, label, _, data) in enumerate(by_tarfile(content)):
        image, found = dataset[i]
        assert np.array_equal(image, np.asarray(Image.open(io.BytesIO(data))))
        assert found == label


@pytest.mark.parametrize("seek_points", [False, True])
def test_the_index_is_that_of_the_same_files_on_a_disk(
    seek_points: bool, s3: Proxy, tmp_path: Path
) -> None:
    url = put(s3, content := shards(2))
    for name, data in content.items():
        (tmp_path / "here").mkdir(exist_ok=True)
        (tmp_path / "here" / name).write_bytes(data)
    packio.reindex(url, seek_points=seek_points)
    packio.reindex(tmp_path / "here", seek_points=seek_points)
    there, here = columns(packio.open(url)), columns(packio.open(tmp_path / "here"))
    assert there.keys() == here.keys()
    assert ("seek_data" in there) is seek_points
    for name, column in here.items():
        assert np.array_equal(there[name], column), name
    one, other = packio.open(url).metadata, packio.open(tmp_path / "here").metadata
    assert {n: v for n, v in one.items() if n != "objects"} == other


def test_small_samples_are_streamed_once(s3: Proxy) -> None:
    content = shards(1, 40)
    url = put(s3, content) + "/t-000.tar"
    s3.reset()
    told: list[tuple[int, int]] = []
    packio.reindex(url, progress=lambda done, whole: told.append((done, whole)))
    assert told == [(len(content["t-000.tar"]),) * 2]
    ranges = [r for r in read_of(s3.log, "t-000.tar") if r[1] - r[0] > 512]
    assert sorted(ranges) == [(0, len(content["t-000.tar"]))]


@pytest.mark.parametrize("kept", [1, 2, 100])
def test_samples_may_be_larger_than_what_is_kept(
    kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "_PIECE", 1000)
    monkeypatch.setattr(stores, "_KEPT", 1000 * kept)
    content, index = {"x.tar": shard(range(5))}, tmp_path / "x.packio"
    fsspec.filesystem("memory").pipe_file("/pieces/x.tar", content["x.tar"])
    packio.reindex("memory://pieces/x.tar", index=index, seek_points=True)
    pack = packio.open("memory://pieces/x.tar", index=index)
    assert by_packio(pack) == by_tarfile(content)
    ((_, size, digest),) = pack.index_file.files()
    assert (size, digest) == (len(content["x.tar"]), hashlib.sha256(content["x.tar"]).digest())


def test_a_damaged_image_is_left_out_with_its_reason(tmp_path: Path) -> None:
    fs = fsspec.filesystem("memory")
    members = [("0.jpg", encoded(noise(0))), ("1.jpg", b"no image" * 5000)]
    fs.pipe_file("/bad/x.tar", made.tar_bytes(members))
    place = tmp_path / "x.packio"
    with pytest.warns(UserWarning, match=r"1 of 2 records are left out.*1\.jpg"):
        packio.reindex("memory://bad/x.tar", index=place)
    with pytest.warns(UserWarning, match=r"1 of 2 records are left out.*1\.jpg"):
        opened = packio.open("memory://bad/x.tar", index=place)
    assert opened.keys()[:] == ["0.jpg"]


@pytest.mark.filterwarnings("ignore:.*left out")
def test_samples_without_a_label_beside_labelled_ones_are_left_out(
    tmp_path: Path,
) -> None:
    """One within a shard, and a whole shard."""
    fs = fsspec.filesystem("memory")
    image = encoded(noise(0))
    members = [("a.jpg", image), ("b.cls", b"1"), ("b.jpg", image)]
    fs.pipe_file("/few/0.tar", made.tar_bytes(members))
    fs.pipe_file("/few/1.tar", made.tar_bytes([("c.jpg", image), ("c.txt", b"text")]))
    index = tmp_path / "few.packio"
    packio.reindex("memory://few/{0..1}.tar", index=index)
    pack = packio.open("memory://few/{0..1}.tar", index=index)
    assert pack.labels is not None
    assert (pack.keys()[:], pack.labels.tolist()) == (["b"], [1])
    assert pack.metadata["counts"] == {"found": 3, "packed": 1, "skipped": 2}
    assert [key for key, _ in pack.metadata["left_out"]] == ["a.jpg", "c"]


def test_a_web_server_needs_an_index_elsewhere(web: WebServer, tmp_path: Path) -> None:
    content = shards()
    web.objects = {f"/train/{name}": data for name, data in content.items()}
    pattern = f"{web.url}/train/t-{{000..002}}.tar"
    with pytest.raises(NotAPackError, match=r"packio reindex 'http://\S+' \(with --index FILE"):
        packio.open(pattern)
    with pytest.raises(CannotCreateError, match=r"packio reindex http://\S+ --index FILE"):
        packio.reindex(pattern)
    index = tmp_path / "x.packio"
    with pytest.raises(NotAPackError, match="no such index; make it: packio reindex 'http"):
        packio.TarDataset(pattern, index=index)
    done = run("reindex", pattern, "--index", index)
    assert "18 samples, 0 skipped" in done.stdout
    dataset = packio.TarDataset(pattern, index=index, output="numpy")
    again = pickle.loads(pickle.dumps(dataset))
    expected = by_tarfile(content)
    assert by_packio(again.pack) == expected
    for i in (0, 7, 17):
        image, label = again[i]
        assert np.array_equal(image, np.asarray(Image.open(io.BytesIO(expected[i][3]))))
        assert label == expected[i][1]


@pytest.mark.parametrize("name", ["t-000.tar", "t-{000..001}.tar", "z-{000..002}.tar", "z.tar"])
def test_an_index_of_other_objects_is_refused(name: str, web: WebServer, tmp_path: Path) -> None:
    web.objects = {f"/{name}": data for name, data in shards().items()}
    index = tmp_path / "x.packio"
    packio.reindex(f"{web.url}/t-{{000..002}}.tar", index=index)
    with pytest.raises((OptionError, ReadError, IntegrityError), match=r"lists|list"):
        packio.TarDataset(f"{web.url}/{name}", index=index)


def test_a_server_that_does_not_answer_is_no_missing_pack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packio.storage.urls, "_WAITS", (0.01,))
    (tmp_path / "x.packio").write_bytes(b"")
    with pytest.raises(ReadError, match="Connect"):
        packio.open("http://127.0.0.1:1/x.tar")
    with pytest.raises(ReadError, match="Connect"):
        packio.reindex("http://127.0.0.1:1/x.tar", index=tmp_path / "y.packio")


def test_a_pack_at_a_url_is_not_verified() -> None:
    with pytest.raises(OptionError, match=r"^s3://bucket/x\.tar: a pack at a URL is not verified"):
        packio.verify("s3://bucket/x.tar")


def test_workers_that_are_spawned_find_the_index(web: WebServer, tmp_path: Path) -> None:
    web.objects = {f"/{name}": data for name, data in shards(1).items()}
    url, index = f"{web.url}/t-000.tar", tmp_path / "x.packio"
    packio.reindex(url, index=index)
    dataset = packio.TarDataset(url, index=index, crop=packio.CenterCrop(8))
    loader = torch.utils.data.DataLoader(
        dataset, 3, num_workers=1, multiprocessing_context="spawn", collate_fn=packio.collate
    )
    labels = torch.cat([labels for _, labels in loader])
    assert labels.tolist() == [i % 3 for i in range(6)]


def test_a_shard_without_samples_adds_none(web: WebServer, tmp_path: Path) -> None:
    content = {**shards(2), "t-002.tar": made.tar_bytes([])}
    web.objects = {f"/{name}": data for name, data in content.items()}
    index = tmp_path / "x.packio"
    url = f"{web.url}/t-{{000..002}}.tar"
    packio.reindex(url, index=index)
    assert by_packio(packio.open(url, index=index)) == by_tarfile(content)
    with pytest.raises(NotAPackError, match="no images"):
        packio.reindex(f"{web.url}/t-002.tar", index=tmp_path / "y.packio")


def _indexed(web: WebServer, content: dict[str, bytes], tmp_path: Path) -> tuple[str, Path]:
    """Serve tars, and index them: their URL, and the index."""
    web.objects = {f"/{name}": data for name, data in content.items()}
    url, index = f"{web.url}/t-{{000..{len(content) - 1:03d}}}.tar", tmp_path / "x.packio"
    packio.reindex(url, index=index)
    return url, index


def test_an_object_replaced_before_it_is_first_read_is_an_error(
    web: WebServer, tmp_path: Path
) -> None:
    content = shards(6)
    url, index = _indexed(web, content, tmp_path)
    pack = packio.open(url, index=index)
    web.objects["/t-003.tar"] = bytes(reversed(content["t-003.tar"]))
    with pytest.raises(IntegrityError, match="was replaced"):
        pack.read_many(range(len(pack)))


def test_an_object_replaced_though_nobody_tells_versions_is_an_error(
    web: WebServer, tmp_path: Path
) -> None:
    images = [(f"{i}.jpg", encoded(noise(i))) for i in range(3)]
    web.objects["/x.tar"] = made.tar_bytes(images)
    web.version = lambda _: {}
    url, index = f"{web.url}/x.tar", tmp_path / "x.packio"
    packio.reindex(url, index=index)
    pack = packio.open(url, index=index)
    web.objects["/x.tar"] = web.objects["/x.tar"].replace(images[1][1], bytes(len(images[1][1])))
    with pytest.raises(IntegrityError, match="CRC32C"):
        pack.read_many(range(len(pack)))


_VERSIONS: dict[str, Callable[[bytes], dict[str, str]]] = {
    "strong": lambda body: {"ETag": f'"{zlib.crc32(body)}"'},
    "weak": lambda body: {"ETag": f'W/"{zlib.crc32(body)}"'},
    "date": lambda body: {"Last-Modified": email.utils.formatdate(zlib.crc32(body), usegmt=True)},
}


@pytest.mark.parametrize("is_plain", [True, False])
@pytest.mark.parametrize("told", _VERSIONS)
def test_an_object_replaced_while_it_is_open_is_an_error(
    told: str, is_plain: bool, web: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_plain:  # as behind a proxy
        monkeypatch.setattr(stores, "_kind", lambda _: FsspecStore)
    content, web.version = shards(6), _VERSIONS[told]
    url, index = _indexed(web, content, tmp_path)
    pack = packio.open(url, index=index)
    assert by_packio(pack) == by_tarfile(content)
    other = pickle.loads(pickle.dumps(pack))
    web.objects = {name: bytes(reversed(data)) for name, data in web.objects.items()}
    for each in (pack, other):
        for chosen in ([0], range(len(pack))):
            with pytest.raises(IntegrityError, match=r"was replaced|CRC32C|cut off"):
                each.read_many(chosen)


def test_a_weak_tag_and_a_strong_one_may_be_of_one_version(web: WebServer, tmp_path: Path) -> None:
    content, web.version = shards(2), _VERSIONS["weak"]
    url, index = _indexed(web, content, tmp_path)
    pack = packio.open(url, index=index)
    web.version = _VERSIONS["strong"]
    assert by_packio(pack) == by_tarfile(content)


def test_a_weak_tag_that_becomes_strong_is_the_same_version(web: WebServer, tmp_path: Path) -> None:
    content = shards(2)
    for first, then in (("strong", "weak"), ("weak", "strong")):
        web.version = _VERSIONS[first]
        url, index = _indexed(web, content, tmp_path)
        web.version = _VERSIONS[then]
        assert by_packio(packio.open(url, index=index)) == by_tarfile(content)


def test_an_index_may_lie_at_a_url_of_its_own(s3: Proxy, web: WebServer) -> None:
    content = shards(2)
    web.objects = {f"/{name}": data for name, data in content.items()}
    url, index = f"{web.url}/t-{{000,001}}.tar", f"s3://{s3.bucket}/mine/theirs.packio"
    packio.reindex(url, index=index)
    assert by_packio(packio.open(url, index=index)) == by_tarfile(content)


def test_a_server_without_ranges_is_told(web: WebServer, tmp_path: Path) -> None:
    web.objects, web.ranges = {"/x.tar": shard(range(100))}, False
    with pytest.raises(ReadError, match="sends no byte ranges"):
        packio.reindex(f"{web.url}/x.tar", index=tmp_path / "x.packio")
    assert len([line for line in web.log if line.startswith("GET")]) < 20


def test_folders_of_braces_need_a_place_for_the_index(s3: Proxy, tmp_path: Path) -> None:
    content = shards(2)
    for folder, (name, data) in zip(("a", "b"), content.items(), strict=True):
        put(s3, {name: data}, folder)
    pattern = f"s3://{s3.bucket}/{{a/t-000,b/t-001}}.tar"
    with pytest.raises(OptionError, match=r"in several folders.*--index"):
        packio.reindex(pattern)
    packio.reindex(pattern, index=tmp_path / "x.packio")
    assert by_packio(packio.open(pattern, index=tmp_path / "x.packio")) == by_tarfile(content)


@pytest.mark.parametrize("where", ["s3", "http"])
def test_a_replaced_object_is_an_error(
    where: str, s3: Proxy, web: WebServer, tmp_path: Path
) -> None:
    content, index = shards(2), tmp_path / "x.packio"
    changed = bytearray(content["t-001.tar"])
    changed[700] ^= 1  # as long as before
    web.objects = {f"/{name}": data for name, data in content.items()}
    url = put(s3, content) if where == "s3" else f"{web.url}/t-{{000,001}}.tar"
    packio.reindex(url, index=index)
    assert len(packio.open(url, index=index)) == 12
    put(s3, {"t-001.tar": bytes(changed)})
    web.objects["/t-001.tar"] = bytes(changed)
    with pytest.raises(IntegrityError, match=r"t-001\.tar: was replaced.*packio reindex"):
        packio.open(url, index=index)


def test_an_object_replaced_while_it_is_read_is_an_error(
    web: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    web.objects = {f"/{name}": data for name, data in shards(1).items()}
    url, index = f"{web.url}/t-000.tar", tmp_path / "x.packio"
    original = stores.StreamedObject.digest

    def replace(found: stores.StreamedObject) -> bytes:  # called at the object's end
        web.objects["/t-000.tar"] = shard(range(6, 12))
        return original(found)

    with monkeypatch.context() as patched:
        patched.setattr(stores.StreamedObject, "digest", replace)
        with pytest.raises(IntegrityError, match="was replaced while it was read"):
            packio.reindex(url, index=index)
    assert not index.exists()
    packio.reindex(url, index=index)
    assert packio.open(url, index=index).keys()[0] == "000006"


def test_a_killed_run_goes_on_where_it_stopped(web: WebServer, tmp_path: Path) -> None:
    content = shards(6)
    web.objects = {f"/{name}": data for name, data in content.items()}
    url, index = f"{web.url}/t-{{000..005}}.tar", tmp_path / "x.packio"
    parts = tmp_path / "cache" / "reindex"
    web.objects["/t-004.tar"] = content["t-004.tar"][:2000]  # at which the first run ends
    child = os.fork()
    if child == 0:
        try:
            packio.reindex(url, index=index, num_workers=1)
        except IntegrityError:
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert not index.exists()
    done = {int(part.stem) for part in parts.glob("*/*.packio")}
    assert {0, 1, 2, 3} <= done <= {0, 1, 2, 3, 5}  # it may have gone on until it was killed
    web.objects["/t-004.tar"] = content["t-004.tar"]
    web.log.clear()
    packio.reindex(url, index=index, num_workers=2)
    for number, (name, data) in enumerate(content.items()):
        whole = [r for r in read_of(web.log, name) if r[1] - r[0] == len(data)]
        assert len(whole) == (number not in done)
    assert by_packio(packio.open(url, index=index)) == by_tarfile(content)
    assert not list(parts.glob("*/*"))


@pytest.mark.parametrize("step", long.after(1, (3, 1)))
def test_a_run_may_be_killed_at_any_change_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    fs = fsspec.filesystem("memory")
    for name, data in shards(2, 2).items():
        fs.pipe_file(f"/killed/{name}", data)
    packio.reindex("memory://killed", index=tmp_path / "calm.packio")
    expected = (tmp_path / "calm.packio").read_bytes()
    for at in itertools.count(1, step):
        monkeypatch.setenv("PACKIO_CACHE_DIR", str(tmp_path / f"cache-{at}"))
        index = tmp_path / f"{at}.packio"
        again = functools.partial(packio.reindex, "memory://killed", index=index)
        was_killed = killing.killed(again, at)
        assert not index.exists() or index.read_bytes() == expected
        again()
        assert index.read_bytes() == expected
        if not was_killed:
            break
    assert at > 10


def test_a_run_goes_on_only_with_the_same_objects(web: WebServer, tmp_path: Path) -> None:
    content = shards(2)
    web.objects = {f"/{name}": data for name, data in content.items()}
    url, index = f"{web.url}/t-{{000,001}}.tar", tmp_path / "x.packio"
    web.objects["/t-001.tar"] = content["t-001.tar"][:2000]
    with pytest.raises(IntegrityError, match="cut off"):
        packio.reindex(url, index=index, num_workers=1)
    new = {"t-000.tar": shard(range(50, 56)), "t-001.tar": content["t-001.tar"]}
    web.objects = {f"/{name}": data for name, data in new.items()}
    packio.reindex(url, index=index)
    assert by_packio(packio.open(url, index=index)) == by_tarfile(new)


def test_faults_of_the_service_change_nothing(s3: Proxy, tmp_path: Path) -> None:
    url = put(s3, content := shards(3))
    packio.reindex(url, index=tmp_path / "calm.packio")
    s3.reset(rate=0.3)
    packio.reindex(url, index=tmp_path / "stormy.packio")
    assert s3.failed
    s3.reset()
    calm, stormy = (tmp_path / f"{n}.packio" for n in ("calm", "stormy"))
    assert calm.read_bytes() == stormy.read_bytes()
    assert by_packio(packio.open(url, index=stormy)) == by_tarfile(content)


def test_a_dead_object_ends_the_run_with_its_name(s3: Proxy, tmp_path: Path) -> None:
    url = put(s3, shards(3))
    s3.outage = lambda request: "500" if re.search(r"t-001\.tar.* bytes", request) else None
    with pytest.raises(ReadError, match=r"t-001\.tar"):
        packio.reindex(url, index=tmp_path / "x.packio")


def test_tfrecords_in_a_bucket_are_read_where_they_are(s3: Proxy, tmp_path: Path) -> None:
    writer = pytest.importorskip("tfrecord.writer")
    content = {}
    for k in range(2):
        path = tmp_path / f"t-{k}.tfrecord"
        with contextlib.closing(writer.TFRecordWriter(str(path))) as out:
            for i in range(5):
                out.write({
                    "image": (encoded(noise(10 * k + i)), "byte"), "label": (i, "int"),
                    "filename": (f"{k}/{i}.jpg".encode(), "byte"),
                })  # fmt: skip
        content[path.name] = path.read_bytes()
    url = put(s3, content)
    packio.reindex(f"{url}/t-{{0,1}}.tfrecord")
    dataset = packio.TFRecordDataset(f"{url}/t-{{0,1}}.tfrecord", output="numpy")
    read = pytest.importorskip("tfrecord.reader").tfrecord_loader
    kinds = {"image": "byte", "label": "int", "filename": "byte"}
    theirs = [record for name in content for record in read(str(tmp_path / name), None, kinds)]
    assert len(dataset) == len(theirs) == 10
    for i, record in enumerate(theirs):
        image, label = dataset[i]
        data = bytes(record["image"])
        assert np.array_equal(image, np.asarray(Image.open(io.BytesIO(data))))
        assert label == record["label"][0]
        assert dataset.pack[i].key == bytes(record["filename"]).decode()


def _mds(first: int, count: int, height: int = 40) -> bytes:
    """A shard of MDS with labels and images; the image comes first."""
    names, kinds, sizes = ["image", "label"], ["jpeg", "int"], [None, 8]
    config = json.dumps({
        "version": 2, "format": "mds", "compression": None, "hashes": [], "size_limit": 1 << 26,
        "column_names": names, "column_encodings": kinds, "column_sizes": sizes,
    }).encode()  # fmt: skip
    bodies = []
    for i in range(first, first + count):
        data = encoded(noise(i, height, 1000), quality=95)
        bodies.append(struct.pack("<I", len(data)) + data + struct.pack("<q", i % 3))
    start = 4 * (count + 2) + len(config)
    ends = itertools.accumulate(map(len, bodies), initial=start)
    return struct.pack(f"<{count + 2}I", count, *ends) + config + b"".join(bodies)


def test_mds_in_a_bucket_is_read_as_its_index_says(s3: Proxy) -> None:
    content = {f"shard.{k:05d}.mds": _mds(5 * k, 5) for k in range(3)}
    listed: list[dict[str, Any]] = [
        {
            "version": 2, "format": "mds", "samples": 5, "zip_data": None,
            "raw_data": {"basename": name, "bytes": len(content[name]), "hashes": {}},
        }
        for name in ("shard.00001.mds", "shard.00000.mds")
    ]  # fmt: skip
    index = json.dumps({"version": 2, "shards": listed}).encode()
    url = put(s3, {**content, "index.json": index})
    packio.reindex(url)
    with packio.open(url) as pack:  # in the order of index.json, and no other shard
        numbers = [*range(5, 10), *range(5)]
        assert [int(str(s.label)) for s in pack] == [i % 3 for i in numbers]
        assert [s.data for s in pack] == [
            encoded(noise(i, 40, 1000), quality=95) for i in numbers
        ]  # fmt: skip


def test_many_objects_are_asked_for_by_a_list_of_their_folder(s3: Proxy) -> None:
    content = {f"t-{k:03d}.tar": shard([k]) for k in range(12)}
    url = put(s3, content)
    s3.reset()
    packio.reindex(f"{url}/t-{{000..011}}.tar")
    assert by_packio(packio.open(f"{url}/t-{{000..011}}.tar")) == by_tarfile(content)
    asked = [line for line in s3.log if line.startswith("HEAD") and ".tar.packio" not in line]
    assert len(asked) <= 12 + 4  # one each after reading, and the pattern's own
    changed = bytearray(content["t-011.tar"])
    changed[700] ^= 1
    put(s3, {"t-011.tar": bytes(changed)})
    with pytest.raises(IntegrityError, match=r"t-011\.tar: was replaced"):
        packio.open(f"{url}/t-{{000..011}}.tar")


def test_several_formats_and_formats_of_disks_are_refused(s3: Proxy) -> None:
    url = put(s3, {"a.tar": shard([0]), "b.tfrecord": b"x" * 100})
    with pytest.raises(OptionError, match=r"several formats.*a\.tar.*b\.tfrecord"):
        packio.reindex(url)
    url = put(s3, {"x.h5": b"\x89HDF\r\n\x1a\n" + bytes(600)}, "other")
    with pytest.raises(NotAPackError, match="hdf5, which packio indexes on a disk only"):
        packio.reindex(f"{url}/x.h5")
    with pytest.raises(NotAPackError, match="nothing is there"):
        packio.reindex(f"{url}/no.tar")


@pytest.fixture
def hub(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> WebServer:
    """A server that speaks as the Hugging Face Hub, with nothing in its repository yet."""
    pytest.importorskip("huggingface_hub")
    web.is_hub = True
    monkeypatch.setitem(fsspec.config.conf, "hf", {"endpoint": web.url, "token": False})
    return web


def test_shards_on_a_hub_are_read_where_they_are(hub: WebServer, tmp_path: Path) -> None:
    content, index = shards(2), tmp_path / "x.packio"
    folder = "/datasets/they/data/resolve/main/train"
    hub.objects = {f"{folder}/{name}": data for name, data in content.items()}
    for url in ("hf://datasets/they/data/train/t-{000,001}.tar", "hf://datasets/they/data/train"):
        packio.reindex(url, index=index)
        assert by_packio(packio.open(url, index=index)) == by_tarfile(content)
    hub.log.clear()
    pack = packio.open(url, index=index)
    row = pack.row(7)
    pack.read(row)
    assert read_of(hub.log, "t-001.tar") == [(row.offset, row.offset + row.length)]
    changed = bytearray(content["t-001.tar"])
    changed[700] ^= 1
    hub.objects[f"{folder}/t-001.tar"] = bytes(changed)
    with pytest.raises(IntegrityError, match=r"t-001\.tar: was replaced"):
        packio.open(url, index=index)
