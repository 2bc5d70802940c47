"""The table of docs/guides/annotations.md: each source has a row, and each row is true."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import made
import pytest

import packio
from packio import registry
from packio.errors import BadImagesError

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable

_PAGE = Path(__file__).parents[2] / "docs/guides/annotations.md"


def _rows() -> dict[str, dict[str, str]]:
    lines = [line for line in _PAGE.read_text().splitlines() if line.startswith("|")]
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return {row[0].strip("`"): dict(zip(head, row, strict=True)) for row in rows}


_ROWS = _rows()


def _files(folder: pathlib.Path, *names: str) -> pathlib.Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(made.png())
    return folder


def _image_folder(folder: pathlib.Path) -> tuple[Any, dict[str, Any]]:
    _files(folder / "in", "x/cat_1.png", "x/odd.png", "y/dog_2.png")
    return folder / "in", {"label_regex": r"([a-z]+)_\d"}


def _flat_folder(folder: pathlib.Path) -> tuple[Any, dict[str, Any]]:
    (folder / "labels.txt").write_text("a.png 0\nb.png nan\nc.png 1\n")
    return _files(folder / "in", "a.png", "b.png", "c.png"), {"labels": str(folder / "labels.txt")}


def _archive(folder: pathlib.Path) -> tuple[Any, dict[str, Any]]:
    _, options = _flat_folder(folder)
    with tarfile.open(folder / "a.tar.gz", "w:gz") as file:
        file.add(folder / "in", "in")
    return folder / "a.tar.gz", options


def _manifest(folder: pathlib.Path) -> tuple[Any, dict[str, Any]]:
    _files(folder, "a.png", "b.png", "c.png")
    (folder / "list.csv").write_text("path,label\na.png,cat\nb.png,NaN\nc.png,dog\n")
    return folder / "list.csv", {}


def _parquet(folder: pathlib.Path) -> tuple[Any, dict[str, Any]]:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = {"image": [{"bytes": made.png(), "path": None}] * 3, "label": [0.0, float("nan"), 1.0]}
    parquet.write_table(arrow.table(table), folder / "t.parquet")
    return folder / "t.parquet", {}


def _coco(folder: pathlib.Path) -> tuple[Any, dict[str, Any]]:
    images = [{"id": i, "file_name": name} for i, name in enumerate(("a.png", "b.png", "c.png"))]
    classes = [{"id": 7, "name": "cat"}, {"id": 9, "name": "dog"}]
    labels = [{"image_id": 0, "category_id": 7}, {"image_id": 2, "category_id": 9}]
    data = {"images": images, "annotations": labels, "categories": classes}
    (folder / "c.json").write_text(json.dumps(data))
    _files(folder, "a.png", "b.png", "c.png")
    return folder / "c.json", {}


def _torch_dataset(_: pathlib.Path) -> tuple[Any, dict[str, Any]]:
    return [(made.png(), label) for label in ("cat", None, "dog")], {}


def _webdataset(folder: pathlib.Path) -> tuple[Any, dict[str, Any]]:
    members = {"a.png": made.png(), "a.cls": b"0", "b.png": made.png(), "b.json": b"{}",
               "c.png": made.png(), "c.cls": b"1"}  # fmt: skip
    with tarfile.open(folder / "w.tar", "w") as file:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
    return folder / "w.tar", {}


def _remote_folder(folder: pathlib.Path) -> tuple[Any, dict[str, Any]]:
    fsspec = pytest.importorskip("fsspec")
    source, options = _image_folder(folder)
    memory = fsspec.filesystem("memory")
    memory.put(str(source), f"/{folder.name}/in", recursive=True)
    return f"memory://{folder.name}/in", options


_MAKERS: dict[str, Callable[[pathlib.Path], tuple[Any, dict[str, Any]]]] = {
    "image_folder": _image_folder, "flat_folder": _flat_folder, "remote_folder": _remote_folder,
    "archive": _archive, "manifest": _manifest, "parquet": _parquet, "coco": _coco,
    "torch_dataset": _torch_dataset, "foreign containers": _webdataset,
}  # fmt: skip


def test_every_source_has_a_row() -> None:
    assert {*registry.list_built_in("sources"), "foreign containers"} == set(_ROWS)


def test_every_row_says_what_a_missing_label_is() -> None:
    said = {name: row["missing label"] for name, row in _ROWS.items()}
    assert all(said.values())
    assert {name for name, cell in said.items() if cell == "bad sample"} == set(_MAKERS)


@pytest.mark.parametrize("name", _MAKERS)
def test_a_missing_label_is_a_bad_sample(
    name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACKIO_CACHE_DIR", str(tmp_path / "cache"))
    source, options = _MAKERS[name](tmp_path)
    out = tmp_path / "packs" / "out.tar"
    out.parent.mkdir()
    with pytest.raises(BadImagesError, match="no label") as refused:
        packio.pack(source, out, **options)
    assert refused.value.exit_code == 65
    report = packio.pack(source, out, on_error="skip", **options)
    assert (report.packed, len(report.skipped)) == (2, 1)
    assert "no label" in report.skipped[0].reason
    labels = packio.open(out).labels
    assert labels is not None
    assert labels.tolist() == [0, 1]
