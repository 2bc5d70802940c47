"""Raw pixels of one shape in containers: one array that everybody's tools read, and its index."""

from __future__ import annotations

import dataclasses
import functools
import math
import struct
from pathlib import Path
from typing import Any

import chunked
import coordinates
import google_crc32c
import h5py
import numpy as np
import one_file
import pytest

import packio
from packio.formats.chunks import layout as chunks_layout
from packio.index import building

_DTYPES = ("uint8", "uint16", "float32")


def pixels_of(count: int, shape: tuple[int, int, int], dtype: str = "uint8") -> np.ndarray:
    """Random pixels, (N, C, H, W)."""
    return np.random.default_rng(count).integers(0, 256, (count, *shape)).astype(dtype)


def samples_of(pixels: np.ndarray) -> list[packio.Sample]:
    """Raw samples of pixels (N, C, H, W), with labels."""
    _, channels, height, width = pixels.shape
    return [
        packio.Sample(
            i, f"{i:04d}", image.tobytes(), "raw", i % 7, height, width, 1, channels,
            pixels.dtype.name,
        )
        for i, image in enumerate(pixels)
    ]  # fmt: skip


def _of_one_file(name: str, path: Path, _: str) -> Any:
    arrays, _ = one_file.KINDS[name].arrays(path, mmap=True)
    assert set(arrays) == {"data", "label", "key_data", "key_offsets"}
    return arrays["data"]


_READERS = [
    *((kind.suffixes[0], functools.partial(_of_one_file, n)) for n, kind in one_file.KINDS.items()),
    *((f".{n}", peer) for n, kind in chunked.KINDS.items() for peer in kind.peers.values()),
]


@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize(("suffix", "read"), _READERS)
def test_others_read_one_array(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, read: Any, dtype: str
) -> None:
    pixels = pixels_of(17, (3, 5, 7), dtype)
    monkeypatch.setattr(chunks_layout, "_BLOCK_BYTES", 4 * pixels[0].nbytes + 3)  # four to a chunk
    out = tmp_path / f"a{suffix}"
    packio.pack(samples_of(pixels), out)
    pack = packio.open(out)
    as_array = suffix != ".n5" or dtype == "uint8"  # N5 is big-endian, raw pixels are not
    assert ("raw" in pack.metadata["shards"][0]) == as_array
    if as_array:
        assert pack.metadata["shards"][0]["raw"] == {"shape": [3, 5, 7], "dtype": dtype}
        assert not {"offsets", "length"} & {path.name for path in out.glob("*")}
        found = read(out, "data")
        assert found.dtype == dtype
        assert np.array_equal(found, pixels)
    assert [s.data for s in pack] == [image.tobytes() for image in pixels]


@pytest.mark.parametrize("suffix", [".h5", ".pth", ".zarr", ".n5"])
@pytest.mark.parametrize("shards", [1, 3])
def test_an_index_made_again_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, shards: int
) -> None:
    monkeypatch.setattr(chunks_layout, "_BLOCK_BYTES", 1 << 20)
    out = tmp_path / f"a{suffix}"
    packio.pack(samples_of(pixels_of(23, (3, 180, 190))), out, shards=shards)
    before = packio.open(out).index_file
    assert len(before.column("raw_crc32c")) == 3  # ten rows, or the shard's eight, each
    packio.reindex(out)
    after = packio.open(out).index_file
    assert set(after.column_names) == set(before.column_names)
    same = [
        n for n in before.column_names if not n.startswith("file") and n != "image/file"
    ]  # listed in another order
    for name in same:
        np.testing.assert_array_equal(after.column(name).array(), before.column(name).array())
    assert packio.verify(out).ok


@pytest.mark.parametrize("suffix", [".h5", ".pth", ".zarr", ".n5"])
def test_masks_and_the_rest_go_with_pixels(tmp_path: Path, suffix: str) -> None:
    samples = [
        dataclasses.replace(
            sample, mask=coordinates.png(np.full((4, 6), i, np.uint8)), meta={"n": i}
        )
        for i, sample in enumerate(samples_of(pixels_of(5, (1, 4, 6))))
    ]
    out = tmp_path / f"a{suffix}"
    packio.pack(samples, out)
    packio.reindex(out)
    pack = packio.open(out)
    assert [s.mask for s in pack] == [s.mask for s in samples]
    assert [s.meta for s in pack] == [s.meta for s in samples]
    assert [s.data for s in pack] == [s.data for s in samples]


@pytest.mark.parametrize("suffix", [".h5", ".pth", ".zarr", ".n5"])
def test_other_shapes_make_a_blob(tmp_path: Path, suffix: str) -> None:
    turned = packio.Sample(9, "turned", bytes(72), "raw", 0, 6, 4, 1, 3)  # as many bytes
    samples = [*samples_of(pixels_of(3, (3, 4, 6))), turned]
    out = tmp_path / f"a{suffix}"
    packio.pack(samples, out)
    pack = packio.open(out)
    assert "raw" not in pack.metadata["shards"][0]
    assert building.RAW_CRCS not in pack.index_file
    assert pack.raw_rows is None
    assert [s.data for s in pack] == [s.data for s in samples]


def test_the_last_zarr_chunk_is_filled_with_zeros(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels = pixels_of(5, (3, 4, 6))
    monkeypatch.setattr(chunks_layout, "_BLOCK_BYTES", 2 * 72)
    packio.pack(samples_of(pixels), tmp_path / "a.zarr")
    packio.pack(samples_of(pixels), tmp_path / "a.n5")
    chunks = [(tmp_path / f"a.zarr/data/c/{i}/0/0/0").read_bytes() for i in range(3)]
    assert b"".join(chunks) == pixels.tobytes() + bytes(72)
    block = (tmp_path / "a.n5/data/0/0/0/2").read_bytes()  # not filled, axes reversed
    assert block == struct.pack(">HH4I", 0, 4, 6, 4, 3, 1) + pixels[4].tobytes()


def test_images_larger_than_a_chunk_have_one_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks_layout, "_BLOCK_BYTES", 10)
    pixels = pixels_of(3, (3, 4, 6))
    packio.pack(samples_of(pixels), tmp_path / "a.zarr")
    assert np.array_equal(chunked.by_zarr(tmp_path / "a.zarr", "data"), pixels)
    assert len(list((tmp_path / "a.zarr/data/c").iterdir())) == 3


@pytest.mark.parametrize("suffix", [".h5", ".lmdb", ".tfrecord"])
def test_blocks_of_rows_have_checksums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    pixels = pixels_of(20, (1, 5, 7))
    monkeypatch.setattr(building, "_RAW_BYTES", 110)  # three rows
    out = tmp_path / f"a{suffix}"
    packio.pack(samples_of(pixels), out, shards=3)
    pack = packio.open(out)
    expected = []
    first = 0
    for shard in pack.metadata["shards"]:
        end = first + shard["samples"]
        parts = [pixels[i : min(i + 3, end)].tobytes() for i in range(first, end, 3)]
        expected += [google_crc32c.value(part) for part in parts]
        first = end
    assert first == 20
    found = pack.index_file.column("raw_crc32c").array()
    assert found.dtype == np.uint32
    assert found.tolist() == expected


def test_encoded_images_have_no_blocks(tmp_path: Path, image_folder: Path) -> None:
    packio.pack(image_folder, tmp_path / "a.lmdb")
    pack = packio.open(tmp_path / "a.lmdb")
    assert "raw_crc32c" not in pack.index_file
    assert pack.raw_rows is None


@pytest.mark.parametrize("change", ["wide", "flat", "short"])
def test_an_array_that_cannot_be_is_refused(tmp_path: Path, change: str) -> None:
    packio.pack(samples_of(pixels_of(4, (3, 4, 6))), tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        data = file["data"][()]
        del file["data"]
        changed = {"wide": data.astype("i8"), "flat": data.reshape(12, 24), "short": data[:3]}
        file.create_dataset("data", data=changed[change])
    with pytest.raises(packio.IntegrityError):
        packio.reindex(tmp_path / "a.h5")


def test_rows_lie_end_to_end(tmp_path: Path) -> None:
    pixels = pixels_of(6, (3, 4, 6))
    for suffix in (".h5", ".pth", ".zarr", ".n5"):
        packio.pack(samples_of(pixels), tmp_path / f"a{suffix}")
        index = packio.open(tmp_path / f"a{suffix}").index_file
        assert np.diff(index.column("image/offset").array()).tolist() == [math.prod((3, 4, 6))] * 5
