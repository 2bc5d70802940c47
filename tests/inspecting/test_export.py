"""`packio.export`: every column against a plain description, and what other readers make of it."""

from __future__ import annotations

import json
import math
import os
import pathlib
from typing import Any

import fielded
import numpy as np
import pytest
import queried
from cli_runs import run
from PIL import Image

import packio
from packio import registry
from packio.errors import OptionError, OutputExistsError, PackioError
from packio.sample.record import Field, Record

pq = pytest.importorskip("pyarrow.parquet")
duckdb = pytest.importorskip("duckdb")


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return queried.write(tmp_path_factory.mktemp("export") / "p")


@pytest.fixture(scope="module")
def rows(pack: pathlib.Path) -> list[dict[str, Any]]:
    packio.export(pack, pack.parent / "all.parquet")
    found: list[dict[str, Any]] = pq.read_table(pack.parent / "all.parquet").to_pylist()
    return found


def _expected(i: int, sample: queried.Described) -> dict[str, Any]:
    meta = sample.meta
    has_depth = "depth" in sample.fields
    return {
        "index": i, "key": sample.key, "label": sample.label, "class": sample.name,
        "split": sample.split, "bytes": sample.fields["image"], "height": 5, "width": 6,
        "orientation": 1, "channels": 3, "encoding": "png",
        "depth_bytes": sample.fields.get("depth"), "depth_height": 5 if has_depth else None,
        "depth_width": 6 if has_depth else None, "depth_orientation": 1 if has_depth else None,
        "depth_channels": 1 if has_depth else None, "depth_encoding": "png" if has_depth else None,
        "caption_bytes": sample.fields.get("caption"), "boxes": sample.boxes,
        "box_labels": sample.box_labels, "box_crowd": sample.crowd,
        "box_classes": [queried.CLASSES[number] for number in sample.box_labels],
        "a b/c~'\"": meta["a b/c~'\""], "city": meta["city"], "n": meta["n"],
        "score": float(meta["score"]), "seen": meta["seen"],
        "mixed": json.dumps(meta["mixed"]), "tags": json.dumps(meta["tags"]).replace(" ", ""),
        "meta_width": meta["width"], "rare": meta.get("rare"),
        "huge": None if meta.get("huge") is None else float(meta["huge"]),
    }  # fmt: skip


def test_each_row_is_what_the_samples_are(rows: list[dict[str, Any]]) -> None:
    assert len(rows) == queried.COUNT
    for i, (row, sample) in enumerate(zip(rows, queried.samples(), strict=True)):
        assert row == _expected(i, sample)


def test_columns_have_a_type_where_all_values_agree(pack: pathlib.Path) -> None:
    packio.export(pack, pack.parent / "types.parquet")
    relation = duckdb.read_parquet(f"{pack.parent}/types.parquet")
    types = dict(zip(relation.columns, map(str, relation.types), strict=True))
    assert [types[n] for n in ("city", "n", "score", "seen", "mixed", "tags", "rare", "huge")] == [
        "VARCHAR", "BIGINT", "DOUBLE", "BOOLEAN", "VARCHAR", "VARCHAR", "BIGINT", "DOUBLE",
    ]  # fmt: skip
    assert (types["boxes"], types["width"], types["class"]) == ("FLOAT[][]", "UINTEGER", "VARCHAR")


@pytest.mark.parametrize("name", [
    n for n in registry.names("formats") if registry.load("formats", n).caps.writes
])  # fmt: skip
def test_a_pack_of_any_format_in_shards_exports_the_same(
    pack: pathlib.Path, tmp_path: pathlib.Path, rows: list[dict[str, Any]], name: str
) -> None:
    suffix = registry.load("formats", name).caps.suffixes[0]
    out = packio.convert(pack, tmp_path / f"x{suffix}", shards=3).out
    packio.export(out, tmp_path / "x.parquet")
    assert pq.read_table(tmp_path / "x.parquet").to_pylist() == rows


def test_small_batches_make_the_same_file(
    pack: pathlib.Path, tmp_path: pathlib.Path, rows: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("packio.inspecting.exporting._ROWS", 7)
    monkeypatch.setattr("packio.packs.querying.columns._CHUNK", 3)
    packio.export(pack, tmp_path / "x.parquet")
    file = pq.ParquetFile(tmp_path / "x.parquet")
    assert file.num_row_groups == math.ceil(queried.COUNT / 7)
    assert file.read().to_pylist() == rows


def test_the_file_tells_of_its_pack(pack: pathlib.Path, tmp_path: pathlib.Path) -> None:
    packio.export(pack, tmp_path / "x.parquet")
    said = json.loads(pq.read_schema(tmp_path / "x.parquet").metadata[b"packio"])
    with packio.open(pack) as opened:
        assert (said["digest"], said["classes"]) == (opened.digest, queried.CLASSES)


def test_label_vectors_are_lists(tmp_path: pathlib.Path) -> None:
    class Vectors(list[Any]):
        classes = ("cat", "dog", "owl")

    given = Vectors(
        {"key": f"{i}.png", "image": np.full((4, 4, 3), i, np.uint8), "label": [i % 2, 0, 1]}
        for i in range(4)
    )
    packio.pack(given, tmp_path / "x.lmdb")
    packio.export(tmp_path / "x.lmdb", tmp_path / "x.parquet")
    found = pq.read_table(tmp_path / "x.parquet", columns=["label", "class"]).to_pylist()
    assert found == [
        {"label": [i % 2, 0, 1], "class": ["dog", "owl"][1:] if not i % 2 else ["cat", "owl"]}
        for i in range(4)
    ]


def test_keys_and_names_need_not_be_utf8(tmp_path: pathlib.Path) -> None:
    pack = fielded.write(tmp_path / "p", classes=["c\udcfft", "dog"])
    packio.export(pack, tmp_path / "x.parquet")
    found = pq.read_table(tmp_path / "x.parquet", columns=["key", "class"]).to_pylist()
    assert found[:2] == [
        {"key": "cat/0\\xff.png", "class": "c\\xfft"}, {"key": "dog/1\\xff.png", "class": "dog"},
    ]  # fmt: skip


def test_many_names_of_metadata_stay_json(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packio.inspecting.exporting._MOST_NAMES", 3)
    given = [Record(b"%d" % i, {"image": Field("image", fielded.png(i))},
                    meta=b'{"name %d": %d}' % (i, i)) for i in range(5)]  # fmt: skip
    packio.export(fielded.write(tmp_path / "p", given), tmp_path / "x.parquet")
    found = pq.read_table(tmp_path / "x.parquet", columns=["meta"]).to_pylist()
    assert [json.loads(row["meta"]) for row in found] == [{f"name {i}": i} for i in range(5)]


@pytest.mark.parametrize("text", [b"no JSON", b"[1]", b'{"a": }', b'{"a":1},{"a":2}', b"\xff\xff"])
def test_damaged_metadata_are_an_error_of_packio(tmp_path: pathlib.Path, text: bytes) -> None:
    given = [Record(b"%d" % i, {"image": Field("image", fielded.png(i))}, meta=text)
             for i in range(2)]  # fmt: skip
    pack = fielded.write(tmp_path / "p", given)
    with pytest.raises(PackioError, match="sample 0"):
        packio.export(pack, tmp_path / "x.parquet")
    assert os.listdir(tmp_path) == ["p"]


def test_what_is_there_is_not_replaced_unless_asked(
    pack: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = tmp_path / "x.parquet"
    out.write_bytes(b"mine")
    with pytest.raises(OutputExistsError, match="exists"):
        packio.export(pack, out)
    assert out.read_bytes() == b"mine"
    report = packio.export(pack, out, overwrite=True)
    assert (report.samples, report.bytes) == (queried.COUNT, out.stat().st_size)
    with pytest.raises(OptionError, match=r"\.parquet"):
        packio.export(pack, tmp_path / "x.csv")
    with pytest.raises(PackioError):
        packio.export(pack, tmp_path / "nowhere" / "x.parquet")
    assert os.listdir(tmp_path) == ["x.parquet"]


def test_the_command_says_what_it_wrote(pack: pathlib.Path, tmp_path: pathlib.Path) -> None:
    done = run("export", pack, tmp_path / "x.parquet")
    assert (done.returncode, done.stderr) == (0, "")
    assert "40 samples" in done.stdout
    assert "box_classes" in done.stdout
    done = run("export", pack, tmp_path / "x.parquet")
    assert done.returncode == OutputExistsError.exit_code
    assert "--overwrite" in done.stderr


def test_levels_of_images_have_no_columns(tmp_path: pathlib.Path) -> None:
    (tmp_path / "s" / "a").mkdir(parents=True)
    Image.new("RGB", (200, 200)).save(tmp_path / "s" / "a" / "x.jpg")
    plain = packio.pack(tmp_path / "s", tmp_path / "plain.tar").out
    levelled = packio.pack(tmp_path / "s", tmp_path / "l.tar", levels=2, levels_crop=32).out
    assert len(packio.open(levelled).levels) == 2
    columns = [packio.export(p, f"{p}.parquet").columns for p in (plain, levelled)]
    assert columns[0] == columns[1]
    with pytest.raises(OptionError, match="image_div2_bytes") as told:
        packio.PackDataset(levelled).where("image_div2_bytes > 1")
    assert "image_div2" not in str(told.value).partition("columns: ")[2]
