"""Lists of images as other programs write them: back-slashes, missing endings, lines of Macs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import made
import pytest

import packio
from packio.errors import SourceError
from packio.sample import fields

if TYPE_CHECKING:
    import pathlib


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder with train/a.png, train/b.png, and masks of the same names."""
    for name in ("train/a.png", "train/b.png", "masks/a.png", "masks/b.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(made.png())
    return tmp_path


def _pack(folder: pathlib.Path, text: str, **options: Any) -> tuple[Any, packio.Pack]:
    (folder / "list.csv").write_bytes(text.encode())
    report = packio.pack(folder / "list.csv", folder / "out.tar", **options)
    return report, packio.open(folder / "out.tar")


def test_back_slashes_in_paths_are_taken_as_slashes_and_told(folder: pathlib.Path) -> None:
    report, pack = _pack(folder, "path,label\ntrain\\a.png,1\ntrain\\b.png,0\n")
    assert [sample.key for sample in pack] == ["train/a.png", "train/b.png"]
    assert any("back-slashes in paths are taken as /" in line for line in report.warnings)


def test_back_slashes_in_paths_of_masks_are_taken_too(folder: pathlib.Path) -> None:
    text = "path,label,m\ntrain\\a.png,1,masks\\a.png\ntrain\\b.png,0,masks\\b.png\n"
    _, pack = _pack(folder, text, fields={"mask": "m"})
    assert all(sample.mask for sample in pack)


def test_a_name_with_a_back_slash_stays_where_the_file_has_it(folder: pathlib.Path) -> None:
    (folder / "x\\y.png").write_bytes(made.png())
    report, pack = _pack(folder, "path,label\nx\\y.png,1\n")
    assert [sample.key for sample in pack] == ["x\\y.png"]
    assert not any("back-slashes" in line for line in report.warnings)


def test_an_ending_is_tried_where_no_file_is_without_one(folder: pathlib.Path) -> None:
    report, pack = _pack(folder, "id,label\na,1\nb,0\n", root=folder / "train")
    assert [sample.key for sample in pack] == ["a.png", "b.png"]
    assert any("took --ext .png" in line for line in report.warnings)


def test_lines_may_end_in_cr_alone(folder: pathlib.Path) -> None:
    _, pack = _pack(folder, 'path,label,note\rtrain/a.png,cat,"x, y"\rtrain/b.png,dog,z\r')
    assert [(s.key, s.label, s.meta) for s in pack] == [
        ("train/a.png", 0, {"note": "x, y"}), ("train/b.png", 1, {"note": "z"}),
    ]  # fmt: skip


def test_captions_lose_byte_order_mark_and_crlf(folder: pathlib.Path) -> None:
    for name in "ab":
        (folder / f"train/{name}.txt").write_bytes(b"\xef\xbb\xbfa dog\r\nruns\r\n")
    packio.pack(folder / "train", folder / "out.tar", fields={"caption": "txt"})
    sample = packio.open(folder / "out.tar")[0]
    assert fields.decode(sample.fields["caption"]) == "a dog\nruns\n"


def test_parquet_shards_that_name_classes_otherwise_are_told_apart(tmp_path: pathlib.Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (tmp_path / "in").mkdir()
    for name, names in (("a", ["cat", "dog"]), ("b", None)):
        table = arrow.table({"image": [{"bytes": made.png(), "path": None}], "label": [0]})
        features = {"label": {"names": names, "_type": "ClassLabel"}} if names else {}
        text = json.dumps({"info": {"features": features}})
        parquet.write_table(
            table.replace_schema_metadata({"huggingface": text}),
            tmp_path / f"in/data-{name}.parquet",
        )
    with pytest.raises(SourceError, match=r"data-b.parquet: column 'label' names no classes; in "
                       r"data-a.parquet it names 2 classes \(cat, dog\)"):  # fmt: skip
        packio.pack(str(tmp_path / "in"), tmp_path / "out.tar")
