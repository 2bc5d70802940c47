"""What is extracted and packed again is what it was: fields of every kind, in every format."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import latents
import made
import numpy as np
import pytest

import packio
from packio.errors import PackioError, SourceError
from packio.inspecting.extracting import extract
from packio.sample.record import Field

if TYPE_CHECKING:
    import pathlib

CLASSES = ["cat", "dog"]


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _samples() -> list[packio.Sample]:
    """Six samples; the third lacks all further fields, the fourth has no boxes."""
    found = []
    for i in range(6):
        fields = {
            "depth": Field("image", made.png(4, 3, padding=i)),
            "parts": Field("mask", made.png(4, 3)),
            "latent": Field("array", _npy(np.arange(i, dtype=np.float32))),
            "caption": Field("text", f"line {i}\nnext, 猫".encode()),
            "raw": Field("bytes", bytes(range(i))),
        }
        count = 0 if i == 3 else i % 3
        found.append(packio.Sample(
            i, f"a/{i}.png", made.png(4, 3, padding=i), "png", i % 2, 3, 4,
            mask=None if i == 2 else made.png(4, 3), boxes=np.full((count, 4), i, np.float32),
            box_labels=np.arange(count) % 2, meta={"n": i, "text": "é"},
            split="train" if i < 4 else "val",
            box_columns={"crowd": np.arange(count), "area": np.full(count, 0.5, np.float32)},
            fields={} if i == 2 else fields,
        ))  # fmt: skip
    return found


def _told(pack: packio.Pack) -> list[Any]:
    """All of every sample, in plain Python."""
    told = []
    for i in range(len(pack)):
        record = pack.record(i)
        columns = {n: (c.dtype.str, c.tolist()) for n, c in sorted(record.box_columns.items())}
        told.append([
            record.key, record.label, pack.split_of(i), pack.meta(i),
            None if record.boxes is None else record.boxes.tolist(), columns,
            {n: (f.kind, f.data) for n, f in sorted(record.fields.items())},
        ])  # fmt: skip
    return told


@pytest.mark.parametrize("name", latents.FORMATS)
def test_everything_comes_back(name: str, tmp_path: pathlib.Path) -> None:
    suffix = latents.suffix(name)
    packio.pack(_samples(), tmp_path / f"a{suffix}", classes_from=CLASSES)
    before = packio.open(tmp_path / f"a{suffix}")
    assert before.fields.keys() == {
        "image", "mask", "depth", "parts", "latent", "caption", "raw"
    }  # fmt: skip
    extract(before, tmp_path / "folder")
    packio.pack(tmp_path / "folder", tmp_path / f"b{suffix}")
    after = packio.open(tmp_path / f"b{suffix}")
    assert _told(after) == _told(before)
    assert (after.classes, after.fields) == (CLASSES, before.fields)
    packio.pack(tmp_path / "folder" / "packio.jsonl", tmp_path / f"c{suffix}")
    assert _told(packio.open(tmp_path / f"c{suffix}")) == _told(before)


def test_raw_pixels_come_back(tmp_path: pathlib.Path) -> None:
    pixels = [np.full((4, 5, 3), i, np.uint8) for i in range(3)]
    packio.pack([{"image": p, "caption": "x"} for p in pixels], tmp_path / "a.tar",
                fields={"caption": "caption"})  # fmt: skip
    extract(tmp_path / "a.tar", tmp_path / "folder")
    packio.pack(tmp_path / "folder", tmp_path / "b.tar")
    found = packio.open(tmp_path / "b.tar")
    assert [np.array_equal(found[i].decode(), pixels[i]) for i in range(3)] == [True] * 3


@pytest.mark.parametrize("text", ["{", "[]", '{"fields": {"a": "b"}}', '{"fields": 3}'])
def test_a_table_that_does_not_parse_is_refused(tmp_path: pathlib.Path, text: str) -> None:
    (tmp_path / "packio.jsonl").write_text(json.dumps({"key": "a.png"}) + "\n")
    (tmp_path / "packio.json").write_text(text)
    with pytest.raises((SourceError, PackioError), match=r"parse|kind"):
        packio.pack(tmp_path, tmp_path.with_suffix(".tar"))
