"""Parquet files of images are listed and read back, row for row, as pyarrow has them."""

from __future__ import annotations

import concurrent.futures
import contextlib
import datetime as dt
import decimal
import json
import os
import threading
from typing import TYPE_CHECKING, Any

import made
import numpy as np
import pytest

from packio.errors import DecodeError, OptionError, SourceError
from packio.sample.record import Field
from packio.sources.tables import parquet_files

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Sequence


parquet = made.Asked("parquet")


pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def _data(i: int) -> bytes:
    return np.random.default_rng(i).bytes(50 + i % 7)


def _images(numbers: Sequence[int], *, paths: bool = True) -> Any:
    values = [{"bytes": _data(i), "path": f"{i}.jpg" if paths else None} for i in numbers]
    return pa.array(values, IMAGE)


def _write(path: pathlib.Path, columns: dict[str, Any], **options: Any) -> pathlib.Path:
    features = options.pop("features", None)
    table = pa.table(columns)
    if features is not None:
        text = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": text})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **{"row_group_size": 10, **options})
    assert parquet.recognise(path)
    return path


def test_a_dataset_as_the_hub_has_it(tmp_path: pathlib.Path) -> None:
    features = {
        "image": {"_type": "Image"},
        "label": {"names": ["zebra", "ant"], "_type": "ClassLabel"},
        "note": {"dtype": "string", "_type": "Value"},
    }
    for part in range(2):
        rows = range(25 * part, 25 * part + 25)
        columns = {
            "note": [f"note {i}" if i % 3 else None for i in rows],
            "image": _images(rows),
            "label": pa.array([i % 2 for i in rows], pa.int64()),
        }
        path = tmp_path / f"hub/data/train-{part:05d}-of-00002.parquet"
        _write(path, columns, features=features)
    assert parquet.recognise(tmp_path / "hub")
    listing = parquet.listing(tmp_path / "hub")
    assert listing.keys == [b"%d.jpg" % i for i in range(50)]
    assert listing.classes == ["zebra", "ant"]
    assert listing.labels == [i % 2 for i in range(50)]
    told = "hub: took column 'image' as image, 'label' as label (2 classes), 'note' as meta; "
    assert listing.warnings == [told + "--image-col and --label-col say otherwise"]
    for i, item in enumerate(made.read(listing)):
        assert item.data == _data(i)
        assert json.loads(item.meta or b"") == {"note": f"note {i}" if i % 3 else None}
    again = parquet.listing(tmp_path / "hub", classes=["x", "ant", "zebra"])
    assert again.labels == [2 - i % 2 for i in range(50)]
    with pytest.raises(SourceError, match=r"1 class\(es\) that --classes-from does not name: ant"):
        parquet.listing(tmp_path / "hub", classes=["zebra"])


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary(50)])
def test_a_binary_column_is_of_images(kind: Any, tmp_path: pathlib.Path) -> None:
    rows = range(0, 49, 7)
    data = pa.array([_data(i) for i in rows], kind)
    path = _write(tmp_path / "a.parquet", {"id": list(rows), "content": data})
    listing = parquet.listing(path)
    assert listing.keys == [b"a/%08d" % i for i in range(7)]
    assert (listing.labels, listing.classes) == (None, [])
    assert [item.data for item in made.read(listing)] == [_data(i) for i in rows]


def test_paths_that_repeat_or_lead_away_are_no_keys(tmp_path: pathlib.Path) -> None:
    for path in ("same.jpg", "../{}.jpg", "a/../../{}.jpg", "", None):
        paths = [path and path.format(i) for i in range(3)]
        values = [{"bytes": b"x", "path": p} for p in paths]
        file = _write(tmp_path / "a.parquet", {"image": pa.array(values, IMAGE)})
        assert parquet.listing(file).keys == [b"a/%08d" % i for i in range(3)]


def test_a_second_image_column_is_the_mask(tmp_path: pathlib.Path) -> None:
    masks = [made.png(1 + i) for i in range(12)]
    columns = {
        "annotation": pa.array([{"bytes": mask, "path": None} for mask in masks], IMAGE),
        "image": _images(range(12)),
        "depth": _images(range(12)),
        "thumbnails": pa.array([[b"x"]] * 12),
        "tag": ["t"] * 12,
    }
    listing = parquet.listing(_write(tmp_path / "a.parquet", columns))
    assert listing.warnings[1:] == [
        "column 'thumbnails' holds bytes in a list or a struct: left out"
    ]
    for i, item in enumerate(made.read(listing)):
        assert (item.data, item.mask_data) == (_data(i), masks[i])
        assert item.fields["depth"] == Field("image", _data(i))
        assert item.meta == b'{"tag":"t"}'


@pytest.mark.parametrize("kind", [IMAGE, pa.binary()])
def test_a_null_mask_is_no_mask(kind: Any, tmp_path: pathlib.Path) -> None:
    masks = [made.png(1 + i) if i % 2 else None for i in range(4)]
    cells = [m and {"bytes": m, "path": None} for m in masks] if kind is IMAGE else masks
    columns = {"image": _images(range(4)), "mask": pa.array(cells, kind)}
    listing = parquet.listing(_write(tmp_path / "a.parquet", columns))
    assert [item.mask_data for item in made.read(listing)] == masks


@pytest.mark.parametrize(
    ("captions", "kind"),
    [((None, " ", "a cat", "see b.png"), "text"), (("see b.png", "see c.png"), "image")],
)
def test_the_first_text_tells_for_all_whether_texts_are_paths(
    captions: tuple[str | None, ...], kind: str, tmp_path: pathlib.Path
) -> None:
    for name in ("see b.png", "see c.png"):
        (tmp_path / name).write_bytes(f"file {name}".encode())
    rows = range(len(captions))
    path = _write(tmp_path / "a.parquet", {"image": _images(rows), "caption": pa.array(captions)})
    listing = parquet.listing(path, fields={"caption": ("caption", None)})
    values = [text and Field(kind, (("file " if kind == "image" else "") + text).encode())
              for text in captions]  # fmt: skip
    assert [item.fields.get("caption") for item in made.read(listing)] == values


def test_columns_can_be_chosen(tmp_path: pathlib.Path) -> None:
    columns = {
        "image": _images(range(3)), "other": _images(range(3, 6)), "label": [1, 2, 3],
        "kind": ["b", "a", "b"],
    }  # fmt: skip
    path = _write(tmp_path / "a.parquet", columns)
    listing = parquet.listing(path, image_col="other", label_col="kind")
    assert (listing.labels, listing.classes) == ([1, 0, 1], ["a", "b"])
    assert [item.data for item in made.read(listing)] == [_data(i) for i in (3, 4, 5)]
    assert parquet.listing(path, label_col="").labels is None
    with pytest.raises(OptionError, match=r"image_col='kind'; expected .*; found image: struct"):
        parquet.listing(path, image_col="kind")
    with pytest.raises(OptionError, match=r"label_col='image'; there are \['label', 'kind'\]"):
        parquet.listing(path, label_col="image")


@pytest.mark.parametrize(
    ("labels", "expected"),
    [([-1, -1, -1], None), ([0, 1, 1], [0, 1, 1]), ([[0, 1], [], [1]], [[1, 1], [0, 0], [0, 1]])],
)
def test_class_labels_of_hugging_face(labels: Any, expected: Any, tmp_path: pathlib.Path) -> None:
    names = {"names": ["p", "q"], "_type": "ClassLabel"}
    features = {"fine": [names] if isinstance(labels[0], list) else names}
    columns = {"image": _images(range(3)), "fine": labels}
    listing = parquet.listing(_write(tmp_path / "a.parquet", columns, features=features))
    found = None if listing.labels is None else np.asarray(listing.labels).tolist()
    assert found == expected
    assert listing.classes == ([] if expected is None else ["p", "q"])


def test_labels_that_make_no_sense_are_named(tmp_path: pathlib.Path) -> None:
    features = {"label": {"names": ["p", "q"], "_type": "ClassLabel"}}
    columns = {"image": _images(range(3)), "label": [0, 2, 1]}
    path = _write(tmp_path / "a.parquet", columns, features=features)
    with pytest.raises(SourceError, match=r"a.parquet: row 1: the label is 2; expected 0..1"):
        parquet.listing(path)


@pytest.mark.parametrize("text", [b"{", b"[]", b'{"info": 3}', b'{"info": {"features": []}}'])
def test_odd_metadata_is_no_metadata(text: bytes, tmp_path: pathlib.Path) -> None:
    table = pa.table({"image": _images(range(2)), "label": [4, 5]})
    table = table.replace_schema_metadata({"huggingface": text})
    pq.write_table(table, tmp_path / "a.parquet")
    assert parquet.listing(tmp_path / "a.parquet").labels == [4, 5]


def test_what_json_can_hold_is_meta(tmp_path: pathlib.Path) -> None:
    time = dt.datetime(2024, 5, 6, 7, 8, 9, tzinfo=dt.timezone.utc)
    columns = {
        "image": _images([0]),
        "number": [1.5],
        "nan": [float("nan")],
        "deep": [{"list": [[1], []], "text": "ä"}],
        "map": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int8())),
        "time": pa.array([time], pa.timestamp("us", "UTC")),
        "nanoseconds": pa.array([1], pa.timestamp("ns")),
        "price": [decimal.Decimal("1.20")],
        "nothing": pa.nulls(1),
    }
    (item,) = made.read(parquet.listing(_write(tmp_path / "a.parquet", columns)))
    assert json.loads(item.meta or b"") == {
        "number": 1.5, "nan": None, "deep": {"list": [[1], []], "text": "ä"}, "map": [["k", 1]],
        "time": "2024-05-06 07:08:09+00:00", "nanoseconds": "1970-01-01 00:00:00.000000001",
        "price": "1.20", "nothing": None,
    }  # fmt: skip


def test_images_without_bytes_are_files(tmp_path: pathlib.Path) -> None:
    """As `datasets` writes what it has from local files."""
    (tmp_path / "images").mkdir()
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / "images" / name).write_bytes(name.encode())
    values = [{"bytes": None, "path": "images/a.jpg"}, {"bytes": None, "path": "images/none.jpg"}]
    path = _write(tmp_path / "a.parquet", {"image": pa.array(values, IMAGE)})
    with parquet.listing(path).open_records() as read:
        assert read(0).image.data == b"a.jpg"
        with pytest.raises(FileNotFoundError):
            read(1)
    values = [{"bytes": None, "path": f"{tmp_path}/images/{name}.jpg"} for name in "ab"]
    path = _write(tmp_path / "a.parquet", {"image": pa.array(values, IMAGE)})
    listing = parquet.listing(path)
    assert listing.keys == [b"a.jpg", b"b.jpg"]
    assert [item.data for item in made.read(listing)] == listing.keys


def test_rows_without_anything_are_bad_images(tmp_path: pathlib.Path) -> None:
    values = [{"bytes": b"x", "path": "a"}, {"bytes": None, "path": None}, None]
    path = _write(tmp_path / "a.parquet", {"image": pa.array(values, IMAGE)})
    with parquet.listing(path).open_records() as read:
        assert read(0).image.data == b"x"
        for i in (1, 2):
            with pytest.raises(DecodeError, match="column 'image' is empty"):
                read(i)


def test_splits_are_packed_one_by_one(tmp_path: pathlib.Path) -> None:
    for i, name in enumerate(("train-0", "train-1", "test-0")):
        _write(tmp_path / f"{name}.parquet", {"image": _images([i])})
    with pytest.raises(SourceError, match=r"several splits; .* files='test\*', files='train\*'"):
        parquet.listing(tmp_path)
    assert parquet.listing(tmp_path, files="train-*").keys == [b"0.jpg", b"1.jpg"]
    with pytest.raises(OptionError, match=r"files='val\*': none of 3 files in .*: test-0.parquet"):
        parquet.listing(tmp_path, files="val*")


def test_files_that_differ_are_refused(tmp_path: pathlib.Path) -> None:
    _write(tmp_path / "a.parquet", {"image": _images([0]), "label": [1]})
    for columns in ({"image": _images([0]), "label": ["x"]}, {"image": _images([0])}):
        _write(tmp_path / "b.parquet", columns)
        with pytest.raises(SourceError, match=r"b.parquet: column 'label' is (string|not there); "):
            parquet.listing(tmp_path)


def test_only_files_with_rows_and_images_are_taken(tmp_path: pathlib.Path) -> None:
    assert not parquet.recognise(tmp_path)
    (tmp_path / "a.parquet").mkdir()
    assert not parquet.recognise(tmp_path)
    assert not parquet.recognise(tmp_path / "b.parquet")
    with pytest.raises(SourceError, match="no rows"):
        parquet.listing(_write(tmp_path / "c.parquet", {"image": _images([])}))
    with pytest.raises(OptionError, match=r"no column of images; .*; found label: int64"):
        parquet.listing(_write(tmp_path / "c.parquet", {"label": [1]}))


@pytest.mark.parametrize("group", [7, 100, 1000])
def test_rows_are_read_in_any_order_and_by_threads(group: int, tmp_path: pathlib.Path) -> None:
    for part in range(3):
        rows = range(200 * part, 200 * part + 200)
        _write(tmp_path / f"{part}.parquet", {"image": _images(rows)}, row_group_size=group)
    listing = parquet.listing(tmp_path)
    positions = np.random.default_rng(0).permutation(600).tolist()
    with listing.open_records() as read:
        assert [read(i).image.data for i in positions] == [_data(i) for i in positions]

    def chunk(start: int) -> list[bytes]:
        with listing.open_records() as read:
            return [read(i).image.data for i in range(start, start + 20)]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        chunks = list(pool.map(chunk, range(0, 600, 20)))
    assert [data for found in chunks for data in found] == [_data(i) for i in range(600)]


def test_a_giant_row_group_takes_little_memory(tmp_path: pathlib.Path) -> None:
    rng, size, count = np.random.default_rng(0), 1 << 13, 4000
    data = pa.array([rng.bytes(size) for _ in range(count)])
    path = _write(
        tmp_path / "a.parquet", {"image": data}, row_group_size=count, use_dictionary=False,
        write_batch_size=16, data_page_size=1 << 18,
    )  # fmt: skip
    del data
    listing = parquet.listing(path)
    assert sum(listing.sizes) == pytest.approx(count * size, rel=0.01)
    before, peak = pa.total_allocated_bytes(), 0
    with listing.open_records() as read:
        for i in range(count):
            read(i)
            peak = max(peak, pa.total_allocated_bytes() - before)
    assert peak < count * size * 0.5


def test_a_damaged_row_group_is_bad_and_the_others_are_not(tmp_path: pathlib.Path) -> None:
    path = _write(
        tmp_path / "a.parquet", {"image": _images(range(40))}, use_dictionary=False,
        compression="snappy",
    )  # fmt: skip
    listing = parquet.listing(path)
    chunk = pq.ParquetFile(path).metadata.row_group(1).column(0)
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(chunk.data_page_offset)
        file.write(b"\xff" * chunk.total_compressed_size)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    good = []
    with listing.open_records() as read:
        for i in range(40):
            with contextlib.suppress(DecodeError):
                assert read(i).image.data == _data(i)
                good.append(i)
        with pytest.raises(DecodeError, match=r"a.parquet: row group 1: "):
            read(15)
    assert good == [*range(10), *range(20, 40)]


def test_a_file_that_changes_is_not_believed(tmp_path: pathlib.Path) -> None:
    path = _write(tmp_path / "a.parquet", {"image": _images(range(3))})
    listing = parquet.listing(path)
    _write(path, {"image": _images(range(5))})
    again = parquet.listing(path)
    assert listing.version != again.version
    with (
        listing.open_records() as read,
        pytest.raises(SourceError, match="changed after it was listed"),
    ):
        read(0)
    os.utime(path)
    assert parquet.listing(path).version == again.version


def test_no_damage_does_worse_than_an_error(tmp_path: pathlib.Path) -> None:
    path = _write(tmp_path / "a.parquet", {"image": _images(range(20)), "label": [1] * 20})
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for i in range(60):
        damaged = bytearray(whole if i >= 20 else whole[: i * len(whole) // 20])
        if i >= 20:
            damaged[int(rng.integers(len(whole) - 900, len(whole)))] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        try:
            listing = parquet.listing(path)
        except (SourceError, OptionError):
            continue
        assert i >= 20
        with listing.open_records() as read:
            for row in range(min(20, len(listing.keys))):
                with contextlib.suppress(DecodeError, SourceError):
                    read(row)


def test_threads_share_what_is_read(tmp_path: pathlib.Path, monkeypatch: Any) -> None:
    """However many threads read their chunks, a row group is read about once."""
    path = _write(tmp_path / "a.parquet", {"image": _images(range(640))}, row_group_size=640)
    listing, begun, lock = parquet.listing(path), [], threading.Lock()
    begin = parquet_files._Cursor.__init__

    def counted(cursor: Any, file: Any, group: int, *rest: Any) -> None:
        with lock:
            begun.append(group)
        begin(cursor, file, group, *rest)

    monkeypatch.setattr(parquet_files._Cursor, "__init__", counted)

    def chunk(start: int) -> int:
        with listing.open_records() as read:
            return sum(len(read(i).image.data) for i in range(start, start + 32))

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        list(pool.map(chunk, range(0, 640, 32)))
    assert begun == [0]
