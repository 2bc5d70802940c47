"""HDF5 and .pth, checked against h5py and torch: they read what packio writes, byte for byte."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import made
import numpy as np
import one_file
import pytest
from one_file import KINDS, SIZES, Kind

import packio
from packio import errors

_KINDS = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


@pytest.fixture
def out(tmp_path: Path, kind: Kind) -> Path:
    return tmp_path / f"out{kind.suffixes[0]}"


@_KINDS
@pytest.mark.parametrize("mmap", [False, True])
def test_others_read_what_was_written(out: Path, kind: Kind, mmap: bool) -> None:
    records = one_file.records(SIZES)
    one_file.write(kind.form, out, records)
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
    one_file.write(kind.form, out, records)
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
    one_file.write(kind.form, out, records)
    arrays, _ = kind.arrays(out, mmap=True)
    assert one_file.ragged(arrays, "data") == [r.data for r in records]
    assert one_file.data(kind.form, out) == [r.data for r in records]


_WRITES = """
for name, kind in one_file.KINDS.items():
    one_file.write(kind.form, folder / f"{name}-full", one_file.full(500))
    one_file.write(kind.form, folder / f"{name}-large", one_file.records([9000] * 500))
"""


def test_two_processes_write_the_same_bytes_at_different_times(tmp_path: Path) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    exec(_WRITES, {"one_file": one_file, "folder": tmp_path / "here"})  # noqa: S102 (our own code)
    time.sleep(1.1)  # time stamps would be of seconds
    one_file.in_a_process(
        f"import one_file, pathlib, sys\nfolder = pathlib.Path(sys.argv[1])\n{_WRITES}",
        tmp_path / "there", PYTHONHASHSEED="1",
        MALLOC_PERTURB_="170",  # glibc fills what malloc gives, and frees, with it
        PYTHONPATH=":".join([*made.FOLDERS, str(Path(packio.__file__).parents[1])]),
    )  # fmt: skip
    for name in os.listdir(tmp_path / "here"):
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes()
    assert len(os.listdir(tmp_path / "there")) == 4


@_KINDS
def test_a_value_that_reads_back_differently_is_an_error(out: Path, kind: Kind) -> None:
    writer: Any = made.writer(kind.form, out, 3)
    writer.add(one_file.records([10, 9000, 20_000_000, 30]))
    writer._spool.blobs["image"].crc32c[2] ^= 1
    with pytest.raises(errors.OutputError, match=f"{out.name}: record 2 reads back differently"):
        writer.close()


@_KINDS
@pytest.mark.parametrize("stem", ["out", "caf\udce9"])
def test_scan_finds_what_the_writer_wrote(tmp_path: Path, kind: Kind, stem: str) -> None:
    records, path = one_file.full(30), tmp_path / f"{stem}{kind.suffixes[1]}"
    one_file.write(kind.form, path, records)
    found = list(made.scanned(kind.form, path))
    assert one_file.data(kind.form, path) == [r.data for r in records]
    assert one_file.at(path, [e.mask for e in found if e.mask]) == [r.mask_data for r in records]
    assert [(e.key, e.meta) for e in found] == [(r.key, r.meta) for r in records]
    one, record = found[2], records[2]
    assert one[:1] + one[3:5] == (record.key, len(record.data), (2.0, 0.5, -2.0))
    assert one[6:9] == (b"{}", ((2.25,) * 4,) * 2, (-2, -2))


@_KINDS
def test_scan_finds_labels_that_are_ints_or_none(tmp_path: Path, kind: Kind) -> None:
    one_file.write(kind.form, tmp_path / "ints", one_file.records(SIZES))
    assert [e.label for e in made.scanned(kind.form, tmp_path / "ints")] == [
        i % 7 for i in range(10)
    ]
    one_file.write(kind.form, tmp_path / "none", [made.record(b"x", None, b"x")] * 3)
    assert [e.label for e in made.scanned(kind.form, tmp_path / "none")] == [None] * 3
