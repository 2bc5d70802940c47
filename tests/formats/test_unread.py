"""Files of others that packio does not read: the message says what to do."""

from __future__ import annotations

import gzip
import json
import struct
import zipfile
from pathlib import Path

import made
import numpy as np
import pytest

import packio
from packio import errors


@pytest.mark.parametrize(
    ("name", "member", "message"),
    [
        ("a.zip", "cat/1.jpg", "packio pack .*a.zip .*lmdb"),
        ("a.npz", "images.npy", "save its arrays as HDF5 or Zarr"),
        ("a.zarr.zip", "images/zarr.json", "unzip a.zarr.zip -d unpacked.zarr"),
    ],
)
@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_zip_archives_are_not_called_damaged(
    tmp_path: Path, name: str, member: str, message: str, compression: int
) -> None:
    with zipfile.ZipFile(tmp_path / name, "w", compression) as archive:
        archive.writestr(member, bytes(1000))
    with pytest.raises(errors.NotAPackError, match=message):
        packio.open(tmp_path / name)


@pytest.mark.parametrize("name", ["a.tfrecord.gz", "a.tar.gz", "a.mds.zst"])
def test_compressed_files_are_refused_with_the_command(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(gzip.compress(bytes(100)))
    with pytest.raises(errors.NotAPackError, match=f"unpack the file first: .* < .*{name} > "):
        packio.open(tmp_path / name)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("dataset_info.json", "state.json"), "load_from_disk"),
        (("index.json", "chunk-0-0.bin"), "litdata.StreamingDataset"),
    ],
)
def test_datasets_of_others_are_refused_with_a_way(
    tmp_path: Path, names: tuple[str, ...], message: str
) -> None:
    (tmp_path / "a").mkdir()
    for name in names:
        (tmp_path / "a" / name).write_text("{}")
    with pytest.raises(errors.NotAPackError, match=message):
        packio.open(tmp_path / "a")


@pytest.mark.parametrize(("mode", "message"), [(1, "variable length"), (2, "objects")])
def test_blocks_of_n5_in_other_modes_are_not_called_damaged(
    tmp_path: Path, mode: int, message: str
) -> None:
    block = tmp_path / "a.n5/images/0/0/0/0"
    block.parent.mkdir(parents=True)
    (tmp_path / "a.n5/attributes.json").write_text('{"n5": "4.0.0"}')
    (tmp_path / "a.n5/images/attributes.json").write_text(json.dumps({
        "dimensions": [3, 6, 8, 4], "blockSize": [3, 6, 8, 4], "dataType": "uint8",
        "compression": {"type": "raw"},
    }))  # fmt: skip
    block.write_bytes(struct.pack(">HH5I", mode, 4, 3, 6, 8, 4, 576) + bytes(576))
    with pytest.raises(errors.NotAPackError, match=f"mode {mode}, .*{message}"):
        packio.open(tmp_path / "a.n5")


@pytest.mark.parametrize(
    ("version", "compressors"), [(2, None), (3, None), (3, "auto"), (2, "auto")]
)
@pytest.mark.parametrize("fill", [0, 200])
def test_chunks_of_zarr_that_are_left_out_have_the_fill_value(
    tmp_path: Path, version: int, compressors: str | None, fill: int
) -> None:
    zarr = pytest.importorskip("zarr")
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 6, 3), np.uint8)
    pixels[2:4] = fill
    labels = np.array([1, 2, 0, 0, 3, 4, 5, 6])
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w", zarr_format=version)
    for name, values in (("images", pixels), ("label", labels)):
        array = group.create_array(
            name, shape=values.shape, chunks=(2, *values.shape[1:]), dtype=values.dtype,
            compressors=compressors, fill_value=fill if name == "images" else 0,
        )  # fmt: skip
        array[:2], array[4:] = values[:2], values[4:]
    with packio.open(tmp_path / "a.zarr") as pack:
        assert [sample.data for sample in pack] == [image.tobytes() for image in pixels]
        assert made.labels(pack) == labels.tolist()


@pytest.mark.usefixtures("hdf5_indexed_here")
@pytest.mark.parametrize("offset", [0, 4])
@pytest.mark.parametrize("chunks", [None, (2, 8, 6, 3)])
def test_numbers_of_hdf5_that_do_not_fill_their_bytes_are_read(
    tmp_path: Path, offset: int, chunks: tuple[int, ...] | None
) -> None:
    h5py = pytest.importorskip("h5py")
    pixels = np.random.default_rng(0).integers(0, 4096, (4, 8, 6, 3), np.uint16)
    kind = h5py.h5t.STD_U16LE.copy()
    kind.set_precision(12)
    kind.set_offset(offset)
    options = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if chunks:
        options.set_chunk(chunks)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        space = h5py.h5s.create_simple(pixels.shape)
        dataset = h5py.h5d.create(file.id, b"images", kind, space, options)
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, pixels)
    with packio.open(tmp_path / "a.h5") as pack:
        assert [sample.data for sample in pack] == [image.tobytes() for image in pixels]
