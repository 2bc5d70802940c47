"""Labels of containers that others wrote, and of metadata: by the same rules as those of tables."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import made
import numpy as np
import pytest
from mds_shards import shard

import packio
from packio.errors import BadImagesError, NotAPackError, OptionError, PackioError, SourceError
from packio.formats.wire.protobuf import varint
from packio.inspecting.extracting import extract
from packio.inspecting.verifying import verify

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Sequence

    from packio.sample.packed import Sample


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACKIO_CACHE_DIR", str(tmp_path / "cache"))


def _tar(path: pathlib.Path, *metas: Any, **cls: int) -> pathlib.Path:
    """A WebDataset: 0.png and 0.json, …; `cls` are labels of some, as ``_0=7``."""
    members: dict[str, bytes] = {}
    for i, meta in enumerate(metas):
        members |= {f"{i}.png": made.png(), f"{i}.json": json.dumps(meta).encode()}
        if f"_{i}" in cls:
            members[f"{i}.cls"] = b"%d" % cls[f"_{i}"]
    return made.tar(path, members)


_METAS = {"author": "eve", "n": 7}, {"author": "bob", "n": 16777217}, {"author": "eve", "n": 7}


def _said(pack: Sequence[Sample]) -> list[Any]:
    return [s.label.tolist() if isinstance(s.label, np.ndarray) else s.label for s in pack]


def test_a_member_of_the_json_becomes_the_label(tmp_path: pathlib.Path) -> None:
    tar = _tar(tmp_path / "w.tar", *_METAS, _0=1, _1=1, _2=1)
    packio.pack(tar, tmp_path / "out.lmdb", label_col="author")
    pack = packio.open(tmp_path / "out.lmdb")
    assert (pack.classes, _said(pack)) == (["bob", "eve"], [1, 0, 1])
    packio.pack(tar, tmp_path / "n.lmdb", label_col="n")
    assert _said(packio.open(tmp_path / "n.lmdb")) == [7, 16777217, 7]


def test_open_and_reindex_take_a_member_of_the_json(tmp_path: pathlib.Path) -> None:
    tar = _tar(tmp_path / "w.tar", *_METAS)
    pack = packio.open(tar, label="author")
    assert (pack.classes, _said(pack)) == (["bob", "eve"], [1, 0, 1])
    packio.reindex(tar, label_col="author")
    pack = packio.open(tar)
    assert (pack.classes, _said(pack)) == (["bob", "eve"], [1, 0, 1])
    assert not verify(tar).damages
    packio.reindex(tar, label="n")
    assert _said(packio.open(tar)) == [7, 16777217, 7]
    packio.pack(tar, tmp_path / "out.tar", label_col="author")
    assert packio.open(tmp_path / "out.tar").classes == ["bob", "eve"]


def test_an_empty_name_takes_no_labels(tmp_path: pathlib.Path) -> None:
    tar = _tar(tmp_path / "w.tar", *_METAS, _0=1, _1=1, _2=1)
    assert packio.open(tar, label="").labels is None
    packio.pack(tar, tmp_path / "out.tar", label_col="")
    assert packio.open(tmp_path / "out.tar").labels is None


def test_a_member_that_is_in_no_json_is_refused_with_those_that_are(tmp_path: pathlib.Path) -> None:
    tar = _tar(tmp_path / "w.tar", *_METAS)
    with pytest.raises(OptionError, match="label='x' is in no metadata; there is author, n"):
        packio.pack(tar, tmp_path / "out.tar", label_col="x")
    with pytest.raises(OptionError, match="one option"):
        packio.reindex(tar, label="n", label_col="n")


def test_metadata_of_a_pack_become_its_labels(tmp_path: pathlib.Path) -> None:
    items = [{"image": made.png(), "label": i, **meta} for i, meta in enumerate(_METAS)]
    packio.pack(items, tmp_path / "a.lmdb")
    packio.pack(tmp_path / "a.lmdb", tmp_path / "b.tar", label_col="author")
    pack = packio.open(tmp_path / "b.tar")
    assert (pack.classes, _said(pack)) == (["bob", "eve"], [1, 0, 1])
    packio.pack(tmp_path / "a.lmdb", tmp_path / "c.tar", label_col="author",
                classes_from=["eve", "bob"])  # fmt: skip
    assert _said(packio.open(tmp_path / "c.tar")) == [0, 1, 0]
    with pytest.raises(OptionError, match="label_col='x' is not in the metadata"):
        packio.pack(tmp_path / "a.lmdb", tmp_path / "d.tar", label_col="x")


def test_reindex_makes_metadata_of_a_pack_its_labels(tmp_path: pathlib.Path) -> None:
    items = [{"image": made.png(), "label": i, "key": f"k{i}", **m} for i, m in enumerate(_METAS)]
    packio.pack(items, tmp_path / "a.lmdb")
    packio.reindex(tmp_path / "a.lmdb", label="author")
    pack = packio.open(tmp_path / "a.lmdb")
    assert (pack.classes, _said(pack)) == (["bob", "eve"], [1, 0, 1])
    assert [sample.key for sample in pack] == ["k0", "k1", "k2"]
    assert not verify(tmp_path / "a.lmdb").damages
    packio.reindex(tmp_path / "a.lmdb")
    assert _said(packio.open(tmp_path / "a.lmdb")) == [1, 0, 1]


def test_reindex_refuses_a_pack_that_lacks_some_labels(tmp_path: pathlib.Path) -> None:
    items = [{"image": made.png(), "author": a} for a in ("eve", None, "bob")]
    packio.pack(items, tmp_path / "a.lmdb")
    with pytest.raises(OptionError, match=r"no label.*--label-col author --on-error skip"):
        packio.reindex(tmp_path / "a.lmdb", label="author")


def test_metadata_of_an_extracted_folder_become_labels(tmp_path: pathlib.Path) -> None:
    items = [{"image": made.png(), "label": i, **meta} for i, meta in enumerate(_METAS)]
    packio.pack(items, tmp_path / "a.tar")
    extract(tmp_path / "a.tar", tmp_path / "files")
    packio.pack(tmp_path / "files", tmp_path / "b.tar", label_col="author")
    pack = packio.open(tmp_path / "b.tar")
    assert (pack.classes, _said(pack)) == (["bob", "eve"], [1, 0, 1])


@pytest.mark.parametrize("make", [
    lambda i, meta: {"image": made.png(), "label": i, **meta},
    lambda i, meta: {"image": made.png(), "label": i, "meta": meta},
    lambda i, meta: (made.png(), i, meta),
])  # fmt: skip
def test_a_member_of_items_becomes_the_label(make: Any, tmp_path: pathlib.Path) -> None:
    items = [make(i, meta) for i, meta in enumerate(_METAS)]
    packio.pack(items, tmp_path / "a.tar", label_col="author")
    pack = packio.open(tmp_path / "a.tar")
    assert (pack.classes, _said(pack)) == (["bob", "eve"], [1, 0, 1])
    with pytest.raises(OptionError, match="no item has a label 'x'"):
        packio.pack(items, tmp_path / "b.tar", label_col="x")


def test_a_member_that_some_json_lack_makes_bad_samples(tmp_path: pathlib.Path) -> None:
    tar = _tar(tmp_path / "w.tar", {"a": "x"}, {"b": 1}, {"a": "nan"}, {"a": "y"})
    with pytest.raises(BadImagesError, match="no label"):
        packio.pack(tar, tmp_path / "out.tar", label_col="a")
    report = packio.pack(tar, tmp_path / "out.tar", label_col="a", on_error="skip")
    assert (report.packed, len(report.skipped)) == (2, 2)
    assert packio.open(tmp_path / "out.tar").classes == ["x", "y"]


def _tfrecord(path: pathlib.Path, *labels: bytes | float) -> pathlib.Path:
    writer = pytest.importorskip("tfrecord").TFRecordWriter(str(path))
    for label in labels:
        kind = "byte" if isinstance(label, bytes) else "float"
        writer.write({"image": (made.png(), "byte"), "label": (label, kind)})
    writer.close()
    return path


def test_texts_of_a_container_are_classes(tmp_path: pathlib.Path) -> None:
    packio.reindex(_tfrecord(tmp_path / "a.tfrecord", b"dog", b"cat", b"dog"))
    pack = packio.open(tmp_path / "a.tfrecord")
    assert (pack.classes, _said(pack)) == (["cat", "dog"], [1, 0, 1])
    assert not verify(tmp_path / "a.tfrecord").damages


def test_whole_floats_of_a_container_are_class_numbers(tmp_path: pathlib.Path) -> None:
    path = _tfrecord(tmp_path / "a.tfrecord", 1, 0, 2)
    packio.reindex(path)
    assert _said(packio.open(path)) == [1, 0, 2]
    assert not verify(path).damages
    path = _tfrecord(tmp_path / "b.tfrecord", 1, 0.5, 2)
    packio.reindex(path)
    assert _said(packio.open(path)) == [[1.0], [0.5], [2.0]]
    assert not verify(path).damages


def test_an_offset_moves_whole_floats_too(tmp_path: pathlib.Path) -> None:
    path = _tfrecord(tmp_path / "a.tfrecord", 1, 3, 2)
    packio.reindex(path, label_offset=-1)
    assert _said(packio.open(path)) == [0, 2, 1]
    assert not verify(path).damages


@pytest.mark.filterwarnings("ignore:.*records are left out")
def test_nan_of_a_container_is_a_bad_sample(tmp_path: pathlib.Path) -> None:
    path = _tfrecord(tmp_path / "a.tfrecord", 1, float("nan"), 2)
    with pytest.raises(BadImagesError, match="no label"):
        packio.pack(path, tmp_path / "out.tar")
    assert _said(packio.open(path)) == [1, 2]


def test_labels_of_hdf5_that_float32_would_change_stay(tmp_path: pathlib.Path) -> None:
    h5py = pytest.importorskip("h5py")
    for name, labels in (("a", [16777217.0, 3.0]), ("b", [[16777217, 1], [3, 4]])):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["image"] = np.zeros((2, 4, 5, 3), np.uint8)
            file["label"] = np.array(labels)
        found = packio.open(tmp_path / f"{name}.h5").labels
        assert found is not None
        assert found.dtype == np.int64
        assert found.tolist() == labels


def _mds(path: pathlib.Path, **columns: list[Any]) -> pathlib.Path:
    kinds = {
        name: "str" if isinstance(values[0], str) else "int" for name, values in columns.items()
    }
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    path.write_bytes(shard({"image": "png", **kinds}, [{"image": made.png(), **r} for r in rows]))
    return path


def test_a_column_of_mds_is_the_label_that_is_named(tmp_path: pathlib.Path) -> None:
    path = _mds(tmp_path / "a.mds", label=[5, 6], breed=["pug", "boxer"], n=[16777217, 2])
    assert _said(packio.open(path)) == [5, 6]
    pack = packio.open(path, label="breed")
    assert (pack.classes, _said(pack)) == (["boxer", "pug"], [1, 0])
    assert _said(packio.open(path, label="n")) == [16777217, 2]
    with pytest.raises(OptionError, match="label='x' is not in it; there are: breed, label, n"):
        packio.open(path, label="x")


def _arrays(form: str, path: pathlib.Path, arrays: dict[str, np.ndarray]) -> pathlib.Path:
    if form == "hdf5":
        with pytest.importorskip("h5py").File(path / "a.h5", "w") as file:
            file.update(arrays)
        return path / "a.h5"
    if form == "pth":
        torch = pytest.importorskip("torch")
        torch.save({n: torch.from_numpy(array) for n, array in arrays.items()}, path / "a.pth")
        return path / "a.pth"
    group = pytest.importorskip("zarr").open_group(path / "a.zarr", mode="w")
    for name, array in arrays.items():
        group.create_array(name, data=array)
    return path / "a.zarr"


@pytest.mark.parametrize("form", ["hdf5", "pth", "zarr"])
def test_two_arrays_of_labels_are_refused_until_one_is_named(
    form: str, tmp_path: pathlib.Path
) -> None:
    pixels = np.zeros((2, 4, 5, 3), np.uint8)
    arrays = {"image": pixels, "label": np.array([5, 6]), "target": np.array([7, 8])}
    path = _arrays(form, tmp_path, arrays)
    with pytest.raises(NotAPackError, match="'label' and 'target' can be the labels"):
        packio.pack(path, tmp_path / "out.tar")
    packio.pack(path, tmp_path / "out.tar", label_col="target")
    assert _said(packio.open(tmp_path / "out.tar")) == [7, 8]


def test_a_list_in_the_json_of_a_foreign_tar_is_metadata(tmp_path: pathlib.Path) -> None:
    text = b'[{"bbox": [1, 2, 3, 4]}]'
    made.tar(tmp_path / "a.tar", {"a.png": made.png(), "a.json": text})
    (sample,) = packio.open(tmp_path / "a.tar")
    assert sample.meta == {"json": [{"bbox": [1, 2, 3, 4]}]}


def _lmdb(path: pathlib.Path, values: Sequence[Any]) -> pathlib.Path:
    lmdb, msgpack = pytest.importorskip("lmdb"), pytest.importorskip("msgpack")
    with lmdb.open(str(path), subdir=False) as env, env.begin(write=True) as records:
        for i, value in enumerate(values):
            records.put(b"%d" % i, msgpack.packb(value))
    return path


@pytest.mark.parametrize("label", [["b", "a"], [b"b", b"a"], [True, False], [1.0, 0.0]])
def test_named_labels_in_values_of_lmdb_need_not_be_ints(
    tmp_path: pathlib.Path, label: list[Any]
) -> None:
    values = [{"image": made.png(), "label": one} for one in label]
    pack = packio.open(_lmdb(tmp_path / "l.lmdb", values))
    assert _said(pack) == [1, 0]
    assert pack.classes == (["a", "b"] if label[0] in ("b", b"b") else [])


@pytest.mark.parametrize(("label", "said"), [([True, False], [1, 0]), ([1.5, 0.5], [1.5, 0.5])])
def test_the_only_number_beside_an_image_in_lmdb_is_its_label(
    tmp_path: pathlib.Path, label: list[Any], said: list[Any]
) -> None:
    path = _lmdb(tmp_path / "l.lmdb", [[made.png(), one] for one in label])
    labels = packio.open(path).labels
    assert labels is not None
    assert labels.reshape(-1).tolist() == said


@pytest.mark.parametrize("label", ["cat", b"cat", [0, 1], {"a": 1}, 2**63])
def test_values_of_lmdb_that_may_be_labels_are_not_dropped(
    tmp_path: pathlib.Path, label: Any
) -> None:
    path = _lmdb(tmp_path / "l.lmdb", [[made.png(), label]] * 2)
    with pytest.raises(NotAPackError, match=r"say label='1' .* or label='' .* for no label"):
        packio.open(path)
    assert packio.open(path, label="").labels is None


def test_a_named_label_of_lmdb_that_is_a_list_is_refused(tmp_path: pathlib.Path) -> None:
    path = _lmdb(tmp_path / "l.lmdb", [{"image": made.png(), "label": [0, 1]}] * 2)
    with pytest.raises(NotAPackError, match=r"the label \[0, 1\], which packio does not take"):
        packio.open(path)


def test_text_beside_an_image_in_lmdb_is_the_label_if_its_place_is_said(
    tmp_path: pathlib.Path,
) -> None:
    path = _lmdb(tmp_path / "l.lmdb", [[made.png(), "b"], [made.png(), b"a"]])
    pack = packio.open(path, label="1")
    assert (pack.classes, _said(pack)) == (["a", "b"], [1, 0])


def _webdataset(path: pathlib.Path, *labels: bytes | None) -> pathlib.Path:
    images = {f"{i}.png": made.png() for i in range(len(labels))}
    given = {f"{i}.cls": label for i, label in enumerate(labels) if label is not None}
    return made.tar(path, dict(sorted((images | given).items(), key=lambda member: member[0])))


def test_text_in_cls_is_the_name_of_a_class(tmp_path: pathlib.Path) -> None:
    long = "n01440764 tench, Tinca tinca, a freshwater fish of Europe"
    tar = _webdataset(tmp_path / "w.tar", b"dog", "Käse\n".encode(), b"dog", long.encode())
    pack = packio.open(tar)
    assert (pack.classes, _said(pack)) == (["Käse", "dog", long], [1, 0, 1, 2])
    packio.pack(tar, tmp_path / "out.tar", classes_from=["dog", "Käse", long])
    assert _said(packio.open(tmp_path / "out.tar")) == [0, 1, 0, 2]
    packio.reindex(tar)
    assert not verify(tar).damages


def test_names_in_cls_of_several_shards_are_one_list(tmp_path: pathlib.Path) -> None:
    (tmp_path / "s").mkdir()
    _webdataset(tmp_path / "s" / "0.tar", b"dog", b"cow")
    _webdataset(tmp_path / "s" / "1.tar", b"cat", b"dog")
    pack = packio.open(tmp_path / "s")
    assert (pack.classes, _said(pack)) == (["cat", "cow", "dog"], [2, 1, 0, 2])


@pytest.mark.filterwarnings("ignore:.*records are left out")
@pytest.mark.parametrize("missing", [b"", b" \n", b"none", b"NaN", b"N/A", b"<NA>"])
@pytest.mark.parametrize("others", [(b"0", b"1"), (b"a", b"b"), (b"0.5", b"1.5")])
def test_a_missing_label_in_cls_is_a_bad_sample(
    missing: bytes, others: tuple[bytes, bytes], tmp_path: pathlib.Path
) -> None:
    tar = _webdataset(tmp_path / "w.tar", others[0], missing, others[1])
    assert [sample.key for sample in packio.open(tar)] == ["0", "2"]
    with pytest.raises(BadImagesError, match="1: no label"):
        packio.pack(tar, tmp_path / "out.tar")
    report = packio.pack(tar, tmp_path / "out.tar", on_error="skip")
    assert (report.packed, [skip.key for skip in report.skipped]) == (2, [b"1"])


def test_truth_and_floats_in_cls_follow_the_one_rule(tmp_path: pathlib.Path) -> None:
    assert _said(packio.open(_webdataset(tmp_path / "a.tar", b"true", b"False"))) == [1, 0]
    assert _said(packio.open(_webdataset(tmp_path / "b.tar", b"3.0", b"7"))) == [3, 7]
    assert _said(packio.open(_webdataset(tmp_path / "c.tar", b"0.5", b"7"))) == [[0.5], [7.0]]


@pytest.mark.parametrize("labels", [(b"7", b"cat"), (b"cat", b"7"), (b"cat", b"0.5")])
def test_names_and_numbers_in_cls_are_refused(
    labels: tuple[bytes, ...], tmp_path: pathlib.Path
) -> None:
    tar = _webdataset(tmp_path / "w.tar", *labels)
    with pytest.raises(SourceError, match=r"'cat' at .*: record \d.*all alike"):
        packio.open(tar)
    with pytest.raises(SourceError, match="all alike"):
        packio.pack(tar, tmp_path / "out.tar", on_error="skip")


def _database(path: pathlib.Path, records: dict[bytes, bytes]) -> pathlib.Path:
    lmdb = pytest.importorskip("lmdb")
    with lmdb.open(str(path), map_size=1 << 22) as env, env.begin(write=True) as txn:
        for key, value in records.items():
            txn.put(key, value)
    return path


def _texts(path: pathlib.Path, *texts: bytes | None) -> pathlib.Path:
    records = {b"num-samples": b"%d" % len(texts)}
    for i, text in enumerate(texts, 1):
        records[b"image-%09d" % i] = made.png()
        if text is not None:
            records[b"label-%09d" % i] = text
    return _database(path, records)


def test_texts_of_text_recognition_become_labels(tmp_path: pathlib.Path) -> None:
    path = _texts(tmp_path / "l.lmdb", b"stop", b"go", b"stop")
    assert packio.open(path).labels is None
    packio.pack(path, tmp_path / "o.tar", label_col="text")
    pack = packio.open(tmp_path / "o.tar")
    assert (pack.classes, _said(pack)) == (["go", "stop"], [1, 0, 1])
    packio.reindex(path, label_col="text")
    pack = packio.open(path)
    assert (pack.classes, _said(pack)) == (["go", "stop"], [1, 0, 1])
    assert not verify(path).damages


def test_an_image_without_text_is_a_bad_sample_once_texts_are_labels(
    tmp_path: pathlib.Path,
) -> None:
    path = _texts(tmp_path / "l.lmdb", b"stop", None, b"go")
    with pytest.raises(BadImagesError, match="image-000000002: no label"):
        packio.pack(path, tmp_path / "o.tar", label_col="text")


def _datum(label: int) -> bytes:
    image = made.png()
    return b"\x22" + varint(len(image)) + image + b"\x28" + varint(label) + b"\x38\x01"


def _foreign(form: str, path: pathlib.Path) -> Any:
    """A container of others, or another source, without anything that is called nonsense."""
    pixels, two = np.zeros((2, 4, 5, 3), np.uint8), {"label": np.array([5, 6])}
    if form in ("hdf5", "pth", "zarr"):
        return _arrays(form, path, {"image": pixels, **two})
    items = [{"image": made.png(), "label": i, "n": i} for i in range(2)]
    if form == "extracted":
        packio.pack(items, path / "a.tar")
        extract(path / "a.tar", path / "files")
    made_by: dict[str, Any] = {
        "texts": lambda: _texts(path / "l.lmdb", b"stop", b"go"),
        "datum": lambda: _database(path / "l.lmdb", {b"%08d" % i: _datum(i) for i in range(2)}),
        "images": lambda: _database(path / "l.lmdb", {b"%08d" % i: made.png() for i in range(2)}),
        "sizes": lambda: _database(
            path / "l.lmdb", {b"8-00000": made.png(), b"8-00001": made.png(), b"length": b"2"}
        ),
        "tar": lambda: _tar(path / "w.tar", *_METAS),
        "plain tar": lambda: _webdataset(path / "w.tar", b"1", b"2"),
        "mds": lambda: _mds(path / "a.mds", label=[5, 6]),
        "tfrecord": lambda: _tfrecord(path / "a.tfrecord", b"dog", b"cat"),
        "items": lambda: items,
        "pairs": lambda: [(made.png(), 1)],
        "dicts": lambda: [{"image": made.png()}],
        "extracted": lambda: path / "files",
    }
    return made_by[form]()


@pytest.mark.parametrize("form", [
    "texts", "datum", "images", "sizes", "tar", "plain tar", "mds", "tfrecord", "hdf5", "pth",
    "zarr", "items", "pairs", "dicts", "extracted",
])  # fmt: skip
def test_a_name_that_is_nowhere_in_the_source_is_refused(form: str, tmp_path: pathlib.Path) -> None:
    source = _foreign(form, tmp_path)
    with pytest.raises(PackioError, match="nonsense"):
        packio.pack(source, tmp_path / "out.tar", label_col="nonsense")
    if not isinstance(source, list) and form != "extracted":
        with pytest.raises(PackioError, match="nonsense"):
            packio.reindex(source, label_col="nonsense")
