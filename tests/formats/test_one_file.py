"""HDF5 and .pth, checked against h5py and torch: they read what packio writes, byte for byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import made
import numpy as np
import one_file
import pytest
from one_file import KINDS, SIZES, Kind

from packio import errors

_KINDS = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


@pytest.fixture
def out(tmp_path: Path, kind: Kind) -> Path:
    return tmp_path / f"out{kind.suffixes[0]}"


@_KINDS
@pytest.mark.parametrize("mmap", [False, True])
def test_others_read_what_was_written(out: Path, kind: Kind, mmap: bool) -> None:
    records = made.random_records(SIZES)
    made.write(kind.form, out, records, classes=["a", "b"])
    arrays, text = kind.arrays(out, mmap=mmap)
    assert sorted(arrays) == ["data", "key_data", "key_offsets", "label", "offsets"]
    assert one_file.ragged(arrays, "data") == [r.data for r in records]
    assert one_file.ragged(arrays, "key_data") == [r.key for r in records]
    assert arrays["label"].tolist() == [r.label for r in records]
    assert arrays["label"].dtype == arrays["offsets"].dtype == np.dtype("<i8")
    expected = {"classes": ["a", "b"], "format": kind.header, "samples": 10, "version": 1}
    assert json.loads(text) == expected


@_KINDS
def test_others_read_all_that_a_record_can_have(out: Path, kind: Kind) -> None:
    records = one_file.full(20)
    made.write(kind.form, out, records)
    arrays, _ = kind.arrays(out)
    for name, values in {
        "data": [r.data for r in records], "key_data": [r.key for r in records],
        "mask_data": [r.mask_data for r in records], "meta_data": [r.meta for r in records],
    }.items():  # fmt: skip
        assert one_file.ragged(arrays, name) == values
    assert arrays["label"].tolist() == [[i, 0.5, -i] for i in range(20)]
    assert arrays["label"].dtype == arrays["boxes"].dtype == np.dtype("<f4")
    for i in range(20):
        span = slice(*arrays["box_offsets"][i : i + 2])
        assert arrays["boxes"][span].tolist() == [[i + 0.25] * 4] * (i % 3)
        assert arrays["box_labels"][span].tolist() == [-i] * (i % 3)


@_KINDS
@pytest.mark.parametrize("records", [[], [made.record(b"", None, b"")]], ids=["none", "empty"])
def test_a_file_may_have_no_bytes(out: Path, kind: Kind, records: list[made.Made]) -> None:
    made.write(kind.form, out, records)
    arrays, _ = kind.arrays(out, mmap=True)
    assert one_file.ragged(arrays, "data") == [r.data for r in records]
    assert one_file.data(kind.form, out) == [r.data for r in records]


@_KINDS
def test_a_value_that_reads_back_differently_is_an_error(out: Path, kind: Kind) -> None:
    writer: Any = made.writer(kind.form, out, 3)
    writer.add(made.random_records([10, 9000, 20_000_000, 30]))
    writer._spool.blobs["image"].crc32c[2] ^= 1
    with pytest.raises(errors.OutputError, match=f"{out.name}: record 2 reads back differently"):
        writer.close()
