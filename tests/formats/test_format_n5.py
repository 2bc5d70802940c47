"""What N5 alone has; test_chunked has what N5 and Zarr share."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import chunked
import numpy as np
import pytest
from chunked import N5, SIZES, z5py

from packio import errors
from packio.formats import n5
from packio.formats.chunks import layout


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "_BLOCK_BYTES", 1000)


def test_the_attributes_say_what_it_is(tmp_path: Path) -> None:
    N5.write(tmp_path / "a.n5", chunked.records(SIZES), classes=["cat", "\udcff"])
    attributes = dict(z5py.File(str(tmp_path / "a.n5"), "r").attrs)
    assert attributes.pop("n5") == "4.0.0"
    assert json.loads(attributes.pop("packio"))["classes"] == ["cat", "\udcff"]
    assert attributes == {}
    assert json.loads((tmp_path / "a.n5/data/attributes.json").read_text()) == {
        "dimensions": [4710], "blockSize": [1000], "dataType": "uint8",
        "compression": {"type": "raw"},
    }  # fmt: skip


def test_blocks_are_whole_but_for_the_last(tmp_path: Path) -> None:
    written = N5.write(tmp_path / "a.n5", chunked.records([600, 600, 400, 5]))
    blocks = [(tmp_path / "a.n5" / name).read_bytes() for name in written.files]
    assert [block[:8] for block in blocks] == [
        struct.pack(">HHI", 0, 1, n) for n in (1000, 1000, 5)
    ]
    assert list(map(len, blocks)) == [1008, 1008, 13]


def test_a_blob_smaller_than_a_block_is_one_block_of_its_size(tmp_path: Path) -> None:
    N5.write(tmp_path / "a.n5", chunked.records([30, 40]))
    assert z5py.File(str(tmp_path / "a.n5"), "r")["data"].chunks == (70,)


def test_a_sample_too_large_for_the_format_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(n5._N5Layout, "largest", 50)
    with pytest.raises(errors.OutputError, match=r"b'1\.jpg' has over 50 bytes"):
        N5.write(tmp_path / "a.n5", chunked.records([50, 51]))


def test_compressed_data_is_refused_with_the_way_out(tmp_path: Path) -> None:
    chunked.n5_z5py(tmp_path / "a.n5", "data", np.ones(100, np.uint8), (40,), "gzip")
    with pytest.raises(errors.NotAPackError, match=r"compressed \('gzip'\).*the compression 'raw'"):
        N5.scan(tmp_path / "a.n5")


def test_zarr_is_no_n5(tmp_path: Path) -> None:
    (tmp_path / "b.n5").mkdir()
    (tmp_path / "b.n5/zarr.json").touch()
    with pytest.raises(errors.NotAPackError, match="is Zarr, not N5"):
        N5.scan(tmp_path / "b.n5")
