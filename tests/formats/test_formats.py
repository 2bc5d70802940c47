"""Every format alike: what goes in comes out, from every container, into every other."""

from __future__ import annotations

import itertools
import os
import pickle
from pathlib import Path
from typing import Any

import made
import numpy as np
import pytest

import packio
from packio import registry
from packio.errors import IntegrityError, MissingPackageError, NotAPackError, OutputExistsError
from packio.sample.packed import Sample

FORMATS = [n for n in registry.names("formats") if registry.load("formats", n).caps.writes]
OF_PACKIO = [n for n in FORMATS if n in registry.list_built_in("formats")]


def samples(label: str, *, extras: bool, count: int = 17) -> list[Sample]:
    """Images of several encodings, under keys of any bytes, with labels of one kind."""
    r = np.random.default_rng(3)
    found = []
    for i in range(count):
        pixels = r.integers(0, 256, (9 + i, 40 - i, 3), np.uint8)
        encoding = ("JPEG", "PNG", "WEBP", "BMP")[i % 4]
        data = made.saved(pixels, encoding, **({"lossless": True} if encoding == "WEBP" else {}))
        labels = {"int": i % 3, "vector": r.random(4, np.float32), "none": None}
        fields: dict[str, Any] = {}
        if extras:
            mask = r.integers(0, 5, pixels.shape[:2], np.uint8)
            fields["mask"] = made.saved(mask, "PNG")
            fields["meta"] = {"i": i, "text": "grün\n\u2028", "nested": {"a": [1, None, 2.5]}}
            fields["boxes"] = r.random((i % 4, 4), np.float32) * 30
            fields["box_labels"] = np.arange(i % 4)
        key = f"c{i % 3}/{'ü' * (i % 3)} {i}\udcff\t\n.x.jpg"
        size = pixels.shape[:2]
        value: Any = labels[label]
        found.append(Sample(i, key, data, encoding.lower(), value, *size, **fields))
    return found


def write(given: list[Sample], out: Path, **options: Any) -> packio.PackReport:
    try:
        return packio.pack(given, out, **options)
    except MissingPackageError as error:
        pytest.skip(str(error))


def path_of(name: str, folder: Path, stem: str = "pack") -> Path:
    return folder / f"{stem}{registry.load('formats', name).caps.suffixes[0]}"


ALL = frozenset({"key", "label", "meta", "boxes"})


def check(pack: packio.Pack, expected: list[Sample], keeps: frozenset[str] = ALL) -> None:
    assert len(pack) == len(expected)
    for got, sample in zip(pack, expected, strict=True):
        assert got.data == sample.data
        assert got.encoding == sample.encoding
        assert got.mask == sample.mask
        if "key" in keeps:
            assert got.key == sample.key
        if "label" in keeps:
            np.testing.assert_array_equal(got.label, sample.label)
            assert (got.label is None) == (sample.label is None)
        if "meta" in keeps:
            assert got.meta == sample.meta
        if "boxes" in keeps:
            np.testing.assert_array_equal(got.boxes, sample.boxes)
            np.testing.assert_array_equal(got.box_labels, sample.box_labels)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    ("label", "sharding"),
    [("int", {}), ("vector", {}), ("vector", {"shards": 3}), ("none", {"shard_size": 6000})],
)
def test_everything_comes_back(
    name: str, label: str, sharding: dict[str, int], tmp_path: Path
) -> None:
    given, out = samples(label, extras=True), path_of(name, tmp_path)
    report = write(given, out, **sharding)
    assert (report.found, report.packed) == (17, 17)
    with packio.open(out) as pack:
        check(pack, given)
        check(pickle.loads(pickle.dumps(pack)), given)
        assert pack.by_key(given[5].key).data == given[5].data
        assert pack.metadata["format"] == name
    assert write(given, out, **sharding).up_to_date
    assert write(given, out, overwrite=True, **sharding).digest == report.digest
    is_folder = bool(sharding) or registry.load("formats", name).caps.is_directory
    assert out.is_dir() == is_folder
    assert (out / "index.packio" if is_folder else Path(f"{out}.packio")).is_file()


@pytest.mark.parametrize("name", FORMATS)
def test_fields_that_are_absent_stay_absent(name: str, tmp_path: Path) -> None:
    given, out = samples("int", extras=False), path_of(name, tmp_path)
    write(given, out)
    with packio.open(out) as pack:
        check(pack, given)
        assert "mask/offset" not in pack.index_file
        assert "boxes" not in pack.index_file


@pytest.mark.parametrize(("first", "second"), [*itertools.pairwise([*FORMATS, FORMATS[0]])])
def test_there_and_back_keeps_everything(first: str, second: str, tmp_path: Path) -> None:
    given = samples("int", extras=True, count=5)
    a, b, c = (path_of(n, tmp_path, s) for n, s in ((first, "a"), (second, "b"), (first, "c")))
    write(given, a)
    try:
        packio.convert(a, b, shards=2)
        packio.convert(b, c)
    except MissingPackageError as error:
        pytest.skip(str(error))
    check(packio.open(b), given)
    check(packio.open(c), given)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("label", "sharding"), [("int", {}), ("vector", {"shards": 3})])
def test_a_lost_index_is_made_again(
    name: str, sharding: dict[str, int], label: str, tmp_path: Path, own_cache: Path
) -> None:
    given, out = samples(label, extras=True), path_of(name, tmp_path)
    write(given, out, **sharding)
    index = out / "index.packio" if out.is_dir() else Path(f"{out}.packio")
    index.unlink()
    before = sorted(p for p in tmp_path.rglob("*") if own_cache not in (p, *p.parents))
    with packio.open(out) as pack:
        check(pack, given, registry.load("formats", name).caps.keeps)
    after = sorted(p for p in tmp_path.rglob("*") if own_cache not in (p, *p.parents))
    assert before == after  # nothing is written beside the data
    assert len(list(own_cache.rglob("*.packio"))) == 1
    assert packio.reindex(out) == index
    with packio.open(out) as pack:
        assert [s.data for s in pack] == [s.data for s in given]


@pytest.mark.parametrize("name", FORMATS)
def test_reading_imports_no_container_library(name: str, tmp_path: Path) -> None:
    out = path_of(name, tmp_path)
    write(samples("int", extras=True), out)
    code = (
        "import sys, packio; p = packio.open(sys.argv[1]); n = sum(len(s.data) for s in p);"
        "bad = {'h5py', 'zarr', 'tensorstore', 'lmdb', 'z5py', 'tfrecord'} & set(sys.modules);"
        "assert n and not bad, bad"
    )
    made.in_a_process(code, out)


@pytest.mark.parametrize("name", FORMATS)
def test_a_flipped_payload_is_an_error_that_names_it(name: str, tmp_path: Path) -> None:
    out = path_of(name, tmp_path)
    write(samples("int", extras=False), out)
    with packio.open(out) as pack:
        row = pack.row(7)
        path = pack._files.path(row.file)
    with path.open("r+b") as file:
        file.seek(row.offset + row.length // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 4]))
    with packio.open(out) as pack:
        with pytest.raises(IntegrityError, match=r"record 7 "):
            pack[7]
        assert pack[6].data
        assert pack[8].data


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("cut", ["short", "long", "gone"])
def test_a_file_of_another_size_is_refused_at_opening(name: str, cut: str, tmp_path: Path) -> None:
    out = path_of(name, tmp_path)
    write(samples("int", extras=False), out)
    with packio.open(out) as pack:
        path = pack._files.path(pack.row(0).file)
    if cut == "gone":
        path.unlink()
    else:
        os.truncate(path, path.stat().st_size + (1 if cut == "long" else -1))
    with pytest.raises(packio.PackioError):
        packio.open(out)


@pytest.mark.parametrize("name", OF_PACKIO)
def test_its_dataset_reads_it_and_no_other(name: str, tmp_path: Path) -> None:
    out = path_of(name, tmp_path)
    write(samples("int", extras=False), out)
    public = [getattr(packio, n) for n in packio.__all__ if n.endswith("Dataset")]
    (kind,) = [c for c in public if c.format == name]
    ds = kind(out, crop=packio.CenterCrop(8))
    images, labels = packio.collate(ds.__getitems__([3, 1, 16]))
    assert images.shape == (3, 3, 8, 8)
    assert labels.tolist() == [0, 1, 1]
    other = packio.LmdbDataset if name != "lmdb" else packio.TarDataset
    with pytest.raises(ValueError, match="reads"):
        other(out)


@pytest.mark.parametrize("name", FORMATS)
def test_the_index_of_another_pack_is_refused(name: str, tmp_path: Path) -> None:
    one, other = path_of(name, tmp_path, "one"), path_of(name, tmp_path, "other")
    write(samples("int", extras=False), one)
    write(samples("int", extras=False, count=9), other)
    if one.is_dir():
        (other / "index.packio").replace(one / "index.packio")
    else:
        Path(f"{other}.packio").replace(f"{one}.packio")
    with pytest.raises(IntegrityError):
        packio.open(one)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_of_the_users_is_no_sidecar_to_replace(tmp_path: Path, overwrite: bool) -> None:
    """im2rec's list of images has the name of RecordIO's sidecar. Once it is gone, a rerun ends."""
    (tmp_path / "pack.lst").write_text("mine")
    with pytest.raises(OutputExistsError, match=r"pack\.lst beside it exists"):
        packio.pack(samples("int", extras=False), tmp_path / "pack.rec", overwrite=overwrite)
    assert (tmp_path / "pack.lst").read_text() == "mine"
    assert not (tmp_path / "pack.rec").exists()
    (tmp_path / "pack.lst").rename(tmp_path / "mine.lst")
    report = packio.pack(samples("int", extras=False), tmp_path / "pack.rec", overwrite=overwrite)
    assert report.resumed == 1  # the only shard
    assert not list(tmp_path.glob("*packio-tmp"))


def test_reindexing_nothing_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotAPackError, match="does not exist"):
        packio.reindex(tmp_path / "nowhere.tar")


def test_a_folder_that_is_no_container_is_no_pack(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x/readme.md").write_text("nothing")
    with pytest.raises(NotAPackError, match="no container that packio knows"):
        packio.open(tmp_path / "x")
