"""What Zarr alone has; test_chunked has what N5 and Zarr share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import chunked
import numpy as np
import pytest
from chunked import SIZES, ZARR, zarr, zarr_zarr

from packio import errors
from packio.formats.chunks import layout


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "_BLOCK_BYTES", 1000)


def test_the_metadata_say_what_it_is(tmp_path: Path) -> None:
    ZARR.write(tmp_path / "a.zarr", chunked.records(SIZES), classes=["cat", "\udcff"])
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="r")
    assert json.loads(group.attrs["packio"])["classes"] == ["cat", "\udcff"]
    assert sorted(group) == ["data", "key_data", "key_offsets", "label", "length", "offsets"]
    assert (group["data"].shape, group["data"].chunks) == ((4710,), (1000,))
    assert group["data"].compressors == ()


def test_chunks_are_all_whole(tmp_path: Path) -> None:
    written = ZARR.write(tmp_path / "a.zarr", chunked.records([600, 600, 400, 5]))
    chunks = [(tmp_path / "a.zarr" / name).read_bytes() for name in written.files]
    assert list(map(len, chunks)) == [1000] * 3
    assert chunks[2][5:] == bytes(995)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"compressors": "auto"}, "'bytes', 'zstd'"),
        ({"compressors": zarr.codecs.Crc32cCodec()}, "'bytes', 'crc32c'"),
        ({"shards": (80,)}, "'sharding_indexed'"),
    ],
)
def test_other_codecs_are_refused_with_the_way_out(
    tmp_path: Path, options: dict[str, Any], names: str
) -> None:
    zarr_zarr(tmp_path / "a.zarr", "data", np.ones(100, np.uint8), (40,), **options)
    with pytest.raises(errors.NotAPackError, match=rf"\[{names}\].*compressors=None"):
        ZARR.scan(tmp_path / "a.zarr")


def test_chunks_of_a_blob_must_not_be_left_out(tmp_path: Path) -> None:
    zarr_zarr(tmp_path / "a.zarr", "data", np.zeros(100, np.uint8), (40,))
    zarr_zarr(tmp_path / "a.zarr", "offsets", np.array([0, 40]), (2,))
    with pytest.raises(errors.IntegrityError, match=r"data/c/0: missing.*told to write them"):
        ZARR.scan(tmp_path / "a.zarr")


def test_a_blob_of_version_2_is_read(tmp_path: Path) -> None:
    values, path = np.arange(100, dtype=np.uint8), tmp_path / "a.zarr"
    zarr_zarr(path, "data", values, (100,), zarr_format=2)
    zarr_zarr(path, "offsets", np.array([0, 40, 100]), (3,), zarr_format=2)
    assert [chunked.read(path, e) for e in ZARR.scan(path)] == [
        values[:40].tobytes(), values[40:].tobytes(),
    ]  # fmt: skip
