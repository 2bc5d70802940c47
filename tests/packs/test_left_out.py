"""Bad records of containers that others wrote are counted, named, and told each time."""

from __future__ import annotations

import io
import json
import pickle
from typing import TYPE_CHECKING, Any

import h5py
import lmdb
import made
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import tfrecord
import webdataset as wds

import packio
from packio import errors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("own_cache")

HTML = b"<html>404 Not Found</html>"


def jpeg(seed: int = 0) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (30, 40, 3), np.uint8)
    return made.saved(pixels, "JPEG")


IMAGES = [jpeg(0), HTML, jpeg(2)]


def by_webdataset(path: Path, samples: Sequence[Mapping[str, Any]]) -> Path:
    """A tar by webdataset's own writer."""
    with wds.TarWriter(str(path)) as sink:
        for sample in samples:
            sink.write(sample)
    return path


def labels_of(pack: packio.Pack) -> list[Any]:
    assert pack.labels is not None
    return list(pack.labels.tolist())


def _tar(path: Path, images: Sequence[bytes]) -> Path:
    return by_webdataset(
        path, [{"__key__": f"k{i}", "jpg": image, "cls": i} for i, image in enumerate(images)]
    )


def _lmdb(path: Path, images: Sequence[bytes]) -> Path:
    with lmdb.open(str(path), map_size=1 << 22) as env, env.begin(write=True) as txn:
        for i, image in enumerate(images):
            txn.put(b"k%d" % i, image)
    return path


def _tfrecord(path: Path, images: Sequence[bytes]) -> Path:
    writer = tfrecord.TFRecordWriter(str(path))
    for i, image in enumerate(images):
        writer.write({"image/encoded": (image, "byte"), "image/class/label": (i, "int")})
    writer.close()
    return path


def _hdf5(path: Path, images: Sequence[bytes]) -> Path:
    with h5py.File(path, "w") as file:
        kind = h5py.vlen_dtype(np.uint8)
        column = file.create_dataset("images", (len(images),), kind)
        for i, image in enumerate(images):
            column[i] = np.frombuffer(image, np.uint8)
    return path


WRITERS = {"w.tar": _tar, "w.lmdb": _lmdb, "w.tfrecord": _tfrecord, "w.h5": _hdf5}
each_container = pytest.mark.parametrize("name", WRITERS)


@each_container
def test_each_opening_says_what_was_left_out(tmp_path: Path, name: str) -> None:
    path = WRITERS[name](tmp_path / name, IMAGES)
    for _ in range(2):
        with pytest.warns(UserWarning, match="1 of 3 records are left out") as told:
            assert len(packio.open(path)) == 2
        assert len(told) == 1


@each_container
def test_packing_lists_and_refuses_bad_records_each_time(tmp_path: Path, name: str) -> None:
    path = WRITERS[name](tmp_path / name, IMAGES)
    for _ in range(2):
        with pytest.raises(errors.BadImagesError, match="bad samples: 1") as caught:
            packio.pack(path, tmp_path / "out.pth")
        assert len(caught.value.skipped) == 1
    assert not (tmp_path / "out.pth").exists()


@each_container
def test_a_pack_without_bad_records_counts_them_each_time(tmp_path: Path, name: str) -> None:
    path = WRITERS[name](tmp_path / name, IMAGES)
    for out in ("a.pth", "b.pth"):
        report = packio.pack(path, tmp_path / out, on_error="skip")
        assert (report.found, report.packed, len(report.skipped)) == (3, 2, 1)
        assert report.skipped_file is not None
        assert len(report.skipped_file.read_text().splitlines()) == 1
        with packio.open(tmp_path / out) as pack:
            assert pack.metadata["counts"] == {"found": 3, "packed": 2, "skipped": 1}


def test_the_bad_record_is_named_by_its_key(tmp_path: Path) -> None:
    path = _tar(tmp_path / "w.tar", IMAGES)
    report = packio.pack(path, tmp_path / "o.lmdb", on_error="skip")
    assert [skip.key for skip in report.skipped] == [b"k1"]
    assert "no image" in report.skipped[0].reason


@pytest.mark.filterwarnings("ignore:.*left out")
def test_a_dataset_says_it_as_open_does(tmp_path: Path) -> None:
    path = _tar(tmp_path / "w.tar", IMAGES)
    packio.open(path)
    with pytest.warns(UserWarning, match="1 of 3 records are left out"):
        dataset = packio.TarDataset(path)
    pickle.loads(pickle.dumps(dataset))


def test_an_index_beside_the_container_says_it_too(tmp_path: Path) -> None:
    path = _tar(tmp_path / "w.tar", IMAGES)
    with pytest.warns(UserWarning, match="left out"):
        packio.reindex(path)
    with pytest.warns(UserWarning, match="1 of 3 records are left out"):
        packio.open(path)
    with pytest.raises(errors.BadImagesError, match="bad samples: 1"):
        packio.pack(path, tmp_path / "o.lmdb")


@pytest.mark.filterwarnings("ignore:.*left out")
def test_convert_merge_and_append_count_bad_records(tmp_path: Path) -> None:
    one, two = _tar(tmp_path / "1.tar", IMAGES), _tar(tmp_path / "2.tar", IMAGES[:1])
    with pytest.raises(errors.BadImagesError):
        packio.convert(one, tmp_path / "c.lmdb")
    assert len(packio.convert(one, tmp_path / "c.lmdb", on_error="skip").skipped) == 1
    with pytest.raises(errors.BadImagesError):
        packio.merge(tmp_path / "m.lmdb", [one, two], prefix=True)
    merged = packio.merge(tmp_path / "m.lmdb", [one, two], prefix=True, on_error="skip")
    assert (merged.found, merged.packed, len(merged.skipped)) == (4, 3, 1)
    packio.pack(two, tmp_path / "a.lmdb", shard_size=1 << 20)
    with pytest.raises(errors.BadImagesError):
        packio.append(tmp_path / "a.lmdb", one)


def test_many_bad_records_are_all_counted(tmp_path: Path) -> None:
    path = _lmdb(tmp_path / "w.lmdb", [jpeg()] + 1500 * [HTML])
    report = packio.pack(path, tmp_path / "o.tar", on_error="skip")
    assert (report.found, report.packed, len(report.skipped)) == (1501, 1, 1500)


@pytest.mark.filterwarnings("ignore:.*left out")
def test_records_of_several_shards_are_told_with_their_shard(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    _tar(tmp_path / "s" / "0.tar", [jpeg(), jpeg(1)])
    by_webdataset(tmp_path / "s" / "1.tar", [{"__key__": "x", "jpg": HTML, "cls": 1}])
    with pytest.warns(UserWarning, match="1 of 3 records are left out"):
        pack = packio.open(tmp_path / "s")
    assert len(pack) == 2
    report = packio.convert(tmp_path / "s", tmp_path / "o.lmdb", on_error="skip")
    assert "1.tar" in report.skipped[0].reason


# What has no label beside labelled samples


@pytest.mark.filterwarnings("ignore:.*left out")
def test_a_sample_without_label_beside_labelled_ones_is_bad(tmp_path: Path) -> None:
    samples: list[dict[str, Any]] = [
        {"__key__": "a", "jpg": jpeg(0), "cls": 0}, {"__key__": "b", "jpg": jpeg(1)},
               {"__key__": "c", "jpg": jpeg(2), "cls": 1}]  # fmt: skip
    path = by_webdataset(tmp_path / "w.tar", samples)
    pack = packio.open(path)
    assert ([*pack.keys()], labels_of(pack)) == (["a", "c"], [0, 1])
    with pytest.raises(errors.BadImagesError, match=r"b(\.jpg)?: no label"):
        packio.pack(path, tmp_path / "o.lmdb")
    report = packio.pack(path, tmp_path / "o.lmdb", on_error="skip")
    assert (report.found, report.packed) == (3, 2)


@pytest.mark.filterwarnings("ignore:.*left out")
def test_a_shard_without_labels_beside_labelled_ones_is_bad(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    by_webdataset(tmp_path / "s" / "0.tar", [{"__key__": "a", "jpg": jpeg(), "cls": 1}])
    by_webdataset(tmp_path / "s" / "1.tar", [{"__key__": "b", "jpg": jpeg(), "txt": "hello"}])
    assert labels_of(packio.open(tmp_path / "s")) == [1]
    with pytest.raises(errors.BadImagesError, match="b: no label"):
        packio.convert(tmp_path / "s", tmp_path / "o.lmdb")


def test_samples_of_which_none_has_a_label_are_all_taken(tmp_path: Path) -> None:
    samples = [{"__key__": f"k{i}", "jpg": jpeg(i), "txt": "a"} for i in range(2)]
    pack = packio.open(by_webdataset(tmp_path / "w.tar", samples))
    assert (len(pack), pack.labels) == (2, None)


def test_tfrecords_of_which_some_lack_a_label(tmp_path: Path) -> None:
    writer = tfrecord.TFRecordWriter(str(tmp_path / "w.tfrecord"))
    writer.write({"image/encoded": (jpeg(0), "byte"), "image/class/label": (3, "int")})
    writer.write({"image/encoded": (jpeg(1), "byte")})
    writer.close()
    with pytest.warns(UserWarning, match="1 of 2 records are left out"):
        pack = packio.open(tmp_path / "w.tfrecord")
    assert labels_of(pack) == [3]


# Which members of a tar are one sample


def _members(path: Path, members: dict[str, bytes]) -> Path:
    """A tar of these members, in order, by Python's tarfile as `tar` would write it."""
    import tarfile

    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(content), 1_700_000_000
            archive.addfile(info, io.BytesIO(content))
    return path


def _of_webdataset(path: Path) -> list[tuple[str, int]]:
    """Key and label of each sample, as webdataset groups them."""
    found = []
    for sample in wds.WebDataset(str(path), shardshuffle=False):
        labels = [int(v) for n, v in sample.items() if n.endswith("cls")]
        found.append((sample["__key__"], *labels))
    return found


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # webdataset's
def test_a_dotted_name_keeps_its_label_and_webdatasets_key(tmp_path: Path) -> None:
    path = _members(tmp_path / "w.tar", {
        "a.jpg": jpeg(0), "a.cls": b"0", "b.v2.jpg": jpeg(1), "b.v2.cls": b"1",
        "c.jpg": jpeg(2), "c.cls": b"2",
    })  # fmt: skip
    pack = packio.open(path)
    found = [*zip(pack.keys(), labels_of(pack), strict=True)]
    assert found == _of_webdataset(path) == [("a", 0), ("b", 1), ("c", 2)]


def test_names_that_share_a_first_dot_are_told_apart_by_the_whole_stem(tmp_path: Path) -> None:
    path = _members(tmp_path / "w.tar", {
        "22.05.jpg": jpeg(0), "22.05.cls": b"3", "22.06.jpg": jpeg(1), "22.06.cls": b"4",
    })  # fmt: skip
    report = packio.pack(path, tmp_path / "o.lmdb")
    assert (report.packed, report.skipped) == (2, ())
    with packio.open(tmp_path / "o.lmdb") as pack:
        assert ([*pack.keys()], labels_of(pack)) == (["22.05", "22.06"], [3, 4])


def test_masks_and_fields_follow_dotted_names(tmp_path: Path) -> None:
    members: dict[str, bytes] = {}
    for i, name in enumerate(("x.1", "x.2")):
        members |= {f"{name}.cls": b"%d" % i, f"{name}.jpg": jpeg(i),
                    f"{name}.json": json.dumps({"n": i}).encode(),
                    f"{name}.txt": name.encode()}  # fmt: skip
    pack = packio.open(_members(tmp_path / "w.tar", members))
    assert ([*pack.keys()], labels_of(pack)) == (["x.1", "x.2"], [0, 1])
    assert [s.fields["txt"].data for s in pack] == [b"x.1", b"x.2"]
    assert [s.meta for s in pack] == [{"n": 0}, {"n": 1}]


def test_a_label_of_two_images_is_refused_by_name(tmp_path: Path) -> None:
    path = _members(tmp_path / "w.tar", {
        "a.left.jpg": jpeg(0), "a.right.jpg": jpeg(1), "a.cls": b"0",
        "b.left.jpg": jpeg(2), "b.right.jpg": jpeg(3), "b.cls": b"1",
    })  # fmt: skip
    with pytest.raises(errors.NotAPackError, match=r"a\.cls.*a\.left\.jpg.*a\.right\.jpg"):
        packio.pack(path, tmp_path / "o.lmdb")


@pytest.mark.parametrize("label", [{"x.cls": b"1"}, {"x.json": b'{"label": 1}'}])
def test_a_label_without_an_image_is_told(tmp_path: Path, label: dict[str, bytes]) -> None:
    more = {"y.cls": b"0"} if "x.cls" in label else {"y.json": b'{"label": 0}'}
    path = _members(tmp_path / "w.tar", {**label, "y.jpg": jpeg(), **more})
    with pytest.warns(UserWarning, match=r"1 of 2 records are left out.*x.*no image"):
        assert [*packio.open(path).keys()] == ["y"]
    with pytest.raises(errors.BadImagesError, match="x: "):
        packio.pack(path, tmp_path / "o.lmdb")


def test_labels_far_from_their_images_are_told(tmp_path: Path) -> None:
    """An archive that is sorted by endings: no image follows its label."""
    path = _members(tmp_path / "w.tar", {
        "a.cls": b"0", "b.cls": b"1", "a.jpg": jpeg(0), "b.jpg": jpeg(1),
    })  # fmt: skip
    with pytest.raises(errors.BadImagesError, match="bad samples: 2"):
        packio.pack(path, tmp_path / "o.lmdb")


def test_labels_in_an_archive_of_class_folders_are_not_overlooked(tmp_path: Path) -> None:
    """More images than packio looks at to recognise the archive, then a label."""
    members = {f"cats/{i}.jpg": jpeg() for i in range(300)} | {"cats/300.cls": b"0"}
    with pytest.raises(errors.PackioError, match=r"300\.cls"):
        packio.pack(_members(tmp_path / "w.tar", members), tmp_path / "o.lmdb")


# Keys


@pytest.mark.parametrize("described", [{"key": "same"}, {"key": "same", "caption": "x"}])
def test_a_key_in_the_json_of_others_is_no_key(tmp_path: Path, described: dict[str, str]) -> None:
    samples = [{"__key__": f"{i:08d}", "jpg": jpeg(i), "json": described} for i in range(2)]
    pack = packio.open(by_webdataset(tmp_path / "w.tar", samples))
    assert [*pack.keys()] == ["00000000", "00000001"]
    assert pack.by_key("00000001").meta == described


def test_packios_own_tar_keeps_its_keys_without_an_index(
    tmp_path: Path, image_folder: Path
) -> None:
    packio.pack(image_folder, tmp_path / "o.tar")
    keys = [*packio.open(tmp_path / "o.tar").keys()]
    (tmp_path / "o.tar.packio").unlink()
    assert [*packio.open(tmp_path / "o.tar").keys()] == keys


def _parquet(path: Path) -> None:
    table = pa.table({"image": [{"bytes": b, "path": None} for b in IMAGES], "label": [0, 1, 2]})
    pyarrow.parquet.write_table(table, path)


def test_parquet_rows_that_are_no_image_are_bad(tmp_path: Path) -> None:
    _parquet(tmp_path / "w.parquet")
    for _ in range(2):
        with pytest.raises(errors.BadImagesError, match="bad samples: 1"):
            packio.pack(tmp_path / "w.parquet", tmp_path / "o.lmdb")
