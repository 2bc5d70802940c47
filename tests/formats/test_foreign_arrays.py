"""Arrays of pixels that others wrote: h5py, zarr, z5py, tensorstore, torch; opened as packs."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pickle
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import chunked
import made
import numpy as np
import pytest
import torch
from cli_runs import run
from torch.utils.data import DataLoader

import packio
from packio import errors
from packio.formats import Reading, hdf5, n5
from packio.formats import zarr as zarr_format
from packio.system import isolation

h5py: Any = pytest.importorskip("h5py")
numcodecs: Any = pytest.importorskip("numcodecs")
tensorstore: Any = pytest.importorskip("tensorstore")
tfrecord: Any = pytest.importorskip("tfrecord")
z5py: Any = pytest.importorskip("z5py")
zarr: Any = pytest.importorskip("zarr")

pytestmark = pytest.mark.usefixtures("hdf5_indexed_here")

_RNG = np.random.default_rng(7)
PIXELS = _RNG.integers(0, 256, (10, 8, 6, 3), np.uint8)
LABELS = np.array([3, 1, 0, 2, 2, 1, 0, 3, 3, 1])
SHAPE = PIXELS.shape[1:]


def _check(path: Path, access: str, expected: np.ndarray = PIXELS, **names: Any) -> None:
    """Compare all samples of a container with an array (N, H, W, C) or (N, H, W)."""
    with packio.open(path, **names) as pack:
        assert pack.access == access
        assert len(pack) == len(expected)
        found = np.stack([sample.decode(mode="UNCHANGED") for sample in pack])
        assert found.dtype == expected.dtype.newbyteorder("=")
        assert np.array_equal(found, expected.reshape(found.shape))
        assert made.labels(pack) == LABELS.tolist()


# HDF5


def _h5(path: Path, images: np.ndarray = PIXELS, name: str = "images", **options: Any) -> Path:
    with h5py.File(path, "w") as file:
        file.create_dataset(name, data=images, **options)
        file["labels"] = LABELS
    return path


@pytest.mark.parametrize(
    ("options", "access"),
    [
        ({}, "range"),
        ({"chunks": (1, *SHAPE)}, "range"),
        ({"chunks": (4, *SHAPE)}, "range"),
        ({"chunks": (4, *SHAPE), "maxshape": (None, *SHAPE)}, "range"),
        ({"chunks": (4, 5, 6, 1)}, "hdf5"),
        ({"chunks": (4, *SHAPE), "compression": "gzip", "shuffle": True}, "hdf5"),
        ({"chunks": (1, *SHAPE), "compression": "lzf"}, "hdf5"),
        ({"chunks": (4, 5, 6, 1), "fletcher32": True}, "hdf5"),
    ],
)
def test_pixels_of_hdf5_are_read(tmp_path: Path, options: dict[str, Any], access: str) -> None:
    _check(_h5(tmp_path / "a.h5", **options), access)


_KINDS = [
    (PIXELS.transpose(0, 3, 1, 2), PIXELS),
    (PIXELS[..., 0], PIXELS[..., 0]),
    (PIXELS[..., :1], PIXELS[..., :1]),
    (PIXELS[:, None, :, :, 0], PIXELS[..., :1]),
    (PIXELS.astype("<u2") * 257, PIXELS.astype("u2") * 257),
    (PIXELS.astype("<f4") / 255, PIXELS.astype("f4") / 255),
]


@pytest.mark.parametrize(("stored", "expected"), _KINDS)
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_every_order_and_type_is_read(
    tmp_path: Path, stored: np.ndarray, expected: np.ndarray, compression: str | None
) -> None:
    path = _h5(tmp_path / "a.h5", stored, compression=compression)
    _check(path, "hdf5" if compression else "range", expected)


@pytest.mark.parametrize("dtype", [">u2", ">f4"])
def test_big_endian_pixels_are_turned(tmp_path: Path, dtype: str) -> None:
    _check(_h5(tmp_path / "a.h5", PIXELS.astype(dtype)), "hdf5", PIXELS.astype(dtype[1:]))


def _encoded(encoding: str = "PNG") -> list[bytes]:
    return [made.saved(pixels, encoding) for pixels in PIXELS]


@pytest.mark.parametrize("compression", [None, "gzip", "lzf"])
def test_values_of_variable_length_are_read(tmp_path: Path, compression: str | None) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        images = file.create_dataset(
            "jpegs", (10,), h5py.vlen_dtype(np.uint8), compression=compression
        )
        for i, value in enumerate(_encoded()):
            images[i] = np.frombuffer(value, np.uint8)
        file["label"] = LABELS
    _check(tmp_path / "a.h5", "hdf5" if compression else "range")


@pytest.mark.parametrize("encoding", ["PNG", "BMP"])
@pytest.mark.parametrize("kind", ["S", "V"])
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_values_of_fixed_length_are_read(
    tmp_path: Path, kind: str, compression: str | None, encoding: str
) -> None:
    values = np.array(_encoded(encoding), f"{kind}700")
    path = _h5(tmp_path / "a.h5", values, compression=compression)
    _check(path, "hdf5" if compression else "range")
    with packio.open(path) as pack:
        if encoding == "PNG":
            assert [s.data for s in pack] == _encoded()  # without the zeros


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_a_compressed_blob_is_read(tmp_path: Path, compression: str | None) -> None:
    values = _encoded()
    path = _h5(tmp_path / "a.h5", np.frombuffer(b"".join(values), "u1"), compression=compression)
    with h5py.File(path, "a") as file:
        file["offsets"] = np.cumsum([0, *map(len, values)])
    _check(path, "hdf5" if compression else "range")


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_a_dataset_for_each_image_may_be_its_pixels(
    tmp_path: Path, compression: str | None
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i, pixels in enumerate(PIXELS):
            size = 4 + i % 4
            file.create_dataset(f"c/{i}", data=pixels[:size], compression=compression)
        file.create_dataset("d/gray", data=PIXELS[0, ..., 0], compression=compression)
    with packio.open(tmp_path / "a.h5") as pack:
        assert list(pack.keys()) == [*(f"c/{i}" for i in range(10)), "d/gray"]
        for i, pixels in enumerate(PIXELS):
            assert np.array_equal(pack[i].decode(), pixels[: 4 + i % 4])
        assert np.array_equal(pack[10].decode(mode="UNCHANGED")[..., 0], PIXELS[0, ..., 0])


def _pack(path: Path) -> Path:
    """A pack of packio's own."""
    samples = [
        packio.Sample(i, f"{i}.png", data, "png", label, *SHAPE[:2])
        for i, (data, label) in enumerate(zip(_encoded(), LABELS.tolist(), strict=True))
    ]
    return packio.pack(samples, path).out


def test_own_packs_are_read_by_h5py_as_well(tmp_path: Path) -> None:
    out = _pack(tmp_path / "a.h5")
    with packio.open(out) as pack, packio.open(out, access="hdf5") as other:
        assert [s.data for s in pack] == [s.data for s in other]


# Zarr and N5


def _zarr(path: Path, images: np.ndarray = PIXELS, **options: Any) -> Path:
    version = options.pop("zarr_format", 3)
    group = zarr.open_group(str(path), mode="w", zarr_format=version)
    array = group.create_array("images", shape=images.shape, dtype=images.dtype, **options)
    array[...] = images
    labels = group.create_array("labels", shape=LABELS.shape, dtype=LABELS.dtype, chunks=(4,))
    labels[...] = LABELS
    return path


_WHOLE: dict[str, Any]
_CUT: dict[str, Any]
_WHOLE, _CUT = {"chunks": (4, *SHAPE)}, {"chunks": (4, 5, 6, 2)}


@pytest.mark.parametrize(
    ("options", "access"),
    [
        ({"compressors": None, **_WHOLE}, "range"),
        ({"compressors": None, **_CUT}, "zarr"),
        ({"compressors": "auto", **_WHOLE}, "zarr"),
        ({"compressors": "auto", **_CUT}, "zarr"),
        ({"compressors": None, **_WHOLE, "zarr_format": 2}, "range"),
        ({"compressors": None, **_CUT, "zarr_format": 2}, "zarr"),
        ({"compressors": "auto", **_CUT, "zarr_format": 2}, "zarr"),
        ({"compressors": numcodecs.Blosc(), **_WHOLE, "zarr_format": 2}, "zarr"),
        (
            {
                "compressors": numcodecs.LZ4(),
                "filters": [numcodecs.Delta("u1")],
                **_WHOLE,
                "zarr_format": 2,
            },
            "zarr",
        ),
        ({"compressors": None, **_WHOLE, "zarr_format": 2, "order": "F"}, "zarr"),
        ({"compressors": zarr.codecs.BloscCodec(), **_WHOLE}, "zarr"),
        ({"compressors": zarr.codecs.GzipCodec(), **_WHOLE}, "zarr"),
        ({"chunks": (1, *SHAPE), "shards": (4, *SHAPE)}, "zarr"),
        ({"compressors": zarr.codecs.Crc32cCodec(), **_WHOLE}, "zarr"),
    ],
)
def test_pixels_of_zarr_are_read(tmp_path: Path, options: dict[str, Any], access: str) -> None:
    path = _zarr(tmp_path / "a.zarr", **options)
    _check(path, access)
    with packio.open(path / "images") as pack:  # an array alone
        assert pack.access == access
        assert np.array_equal(pack[9].decode(), PIXELS[9])
        assert pack.labels is None


@pytest.mark.parametrize(("stored", "expected"), _KINDS)
@pytest.mark.parametrize("version", [2, 3])
def test_every_order_and_type_of_zarr_is_read(
    tmp_path: Path, stored: np.ndarray, expected: np.ndarray, version: int
) -> None:
    for name, compressors, access in (("a", None, "range"), ("b", "auto", "zarr")):
        path = tmp_path / f"{name}.zarr"
        options = {"compressors": compressors, "zarr_format": version}
        _zarr(path, stored, chunks=(3, *stored.shape[1:]), **options)
        _check(path, access, expected)


def _tensorstore(path: Path, driver: str, images: np.ndarray, metadata: dict[str, Any]) -> None:
    store = {"driver": "file", "path": str(path)}
    spec = {"driver": driver, "kvstore": store, "create": True, "metadata": metadata}
    tensorstore.open(spec).result()[...].write(images).result()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("separator", [".", "/"])
def test_tensorstores_zarr_2_is_read(tmp_path: Path, separator: str, order: str) -> None:
    metadata = {
        "shape": PIXELS.shape, "chunks": (4, *SHAPE), "dtype": "|u1", "compressor": None,
        "order": order, "dimension_separator": separator,
    }  # fmt: skip
    _tensorstore(tmp_path / "a.zarr/images", "zarr", PIXELS, metadata)
    metadata |= {"shape": (10,), "chunks": (5,), "dtype": "<i8", "order": "C"}
    _tensorstore(tmp_path / "a.zarr/labels", "zarr", LABELS, metadata)
    _check(tmp_path / "a.zarr", "range" if order == "C" else "zarr")


@pytest.mark.parametrize("chunks", [_WHOLE["chunks"], _CUT["chunks"]])
@pytest.mark.parametrize("compression", ["raw", "gzip", "bzip2", "xz", "blosc", "zstd"])
def test_z5pys_n5_is_read(tmp_path: Path, compression: str, chunks: Any) -> None:
    file = z5py.File(str(tmp_path / "a.n5"), "w")
    file.create_dataset("images", data=PIXELS, chunks=chunks, compression=compression)
    file.create_dataset("labels", data=LABELS, chunks=(3,), compression=compression)
    plain = compression == "raw" and chunks == _WHOLE["chunks"]
    _check(tmp_path / "a.n5", "range" if plain else "n5")


@pytest.mark.parametrize("kind", ["raw", "gzip", "zlib", "bzip2", "xz", "blosc", "zstd"])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_tensorstores_n5_is_read(tmp_path: Path, kind: str, dtype: str) -> None:
    compression = {
        "zlib": {"type": "gzip", "useZlib": True},
        "blosc": {"type": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1},
    }.get(kind, {"type": kind})
    images = PIXELS.astype(dtype)
    for name, values, block in (("images", images, (4, *SHAPE)), ("labels", LABELS, (4,))):
        metadata = {
            "dimensions": values.shape[::-1], "blockSize": block[::-1],
            "dataType": values.dtype.name, "compression": compression,
        }  # fmt: skip
        _tensorstore(tmp_path / f"a.n5/{name}", "n5", values.T, metadata)
    plain = kind == "raw" and dtype == "uint8"  # others are big-endian
    _check(tmp_path / "a.n5", "range" if plain else "n5", images)


# .pth


def _tensor(value: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(value), dtype=torch.uint8)


_IMAGES, _TARGETS = torch.from_numpy(PIXELS), torch.from_numpy(LABELS)
_PLANES = _IMAGES.permute(0, 3, 1, 2).contiguous()


@pytest.mark.parametrize("suffix", [".n5", ".zarr", ".v2.zarr"])
def test_claimed_blocks_are_not_looked_for_one_by_one(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"a{suffix}"
    version = 2 if suffix == ".v2.zarr" else 3
    _by_library(path) if suffix == ".n5" else _zarr(path, **_WHOLE, zarr_format=version)
    key, first = ("dimensions", -1) if suffix == ".n5" else ("shape", 0)
    for name in ("images", "labels"):
        for file in (path / name).glob("*.json" if suffix != ".v2.zarr" else ".zarray"):
            metadata = json.loads(file.read_text())
            metadata[key][first] = 2**32 - 1
            file.write_text(json.dumps(metadata))
    looked: list[object] = []

    def lexists(path: Any) -> bool:
        looked.append(path)
        return os.path.exists(path)

    monkeypatch.setattr(os.path, "lexists", lexists)
    with pytest.raises(errors.IntegrityError, match=r"claims \d+ blocks, and has \d files"):
        packio.open(path)
    assert len(looked) < 2000


@pytest.mark.parametrize(
    "value",
    [
        (_IMAGES, _TARGETS),
        [_PLANES, LABELS.tolist()],
        {"images": _IMAGES, "labels": _TARGETS[:, None]},
        {"data": _PLANES, "targets": LABELS.tolist()},
        {"x": _PLANES.to(memory_format=torch.channels_last), "y": _TARGETS},
        [(image, int(label)) for image, label in zip(_PLANES, LABELS, strict=True)],
        [(i.clone(), t) for i, t in zip(_IMAGES, _TARGETS, strict=True)],
        [(_tensor(b), int(label)) for b, label in zip(_encoded(), LABELS, strict=True)],
        {"images": list(map(_tensor, _encoded())), "labels": LABELS.tolist()},
        {"images": list(_PLANES), "labels": _TARGETS},
        {"images": torch.cat([_IMAGES, _IMAGES])[10:], "labels": _TARGETS},  # a part of a storage
    ],
    ids=range(11),
)
def test_what_torch_saves_is_read(tmp_path: Path, value: Any) -> None:
    torch.save(value, tmp_path / "a.pth")
    _check(tmp_path / "a.pth", "range")


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint16])
def test_wide_tensors_are_read(tmp_path: Path, dtype: torch.dtype) -> None:
    torch.save((_PLANES.to(dtype), _TARGETS), tmp_path / "a.pth")
    _check(tmp_path / "a.pth", "range", PIXELS.astype(str(dtype).removeprefix("torch.")))


_BYTES = [
    [(b, int(label)) for b, label in zip(_encoded(), LABELS, strict=True)],
    (_encoded(), _TARGETS),
    {"images": _encoded(), "labels": LABELS.tolist()},
]


@pytest.mark.parametrize("value", _BYTES, ids=range(3))
def test_bytes_that_torch_saves_are_read(tmp_path: Path, value: Any) -> None:
    torch.save(value, tmp_path / "a.pth")
    _check(tmp_path / "a.pth", "pth")


# Labels


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (LABELS.astype("u1"), LABELS),
        (LABELS[:, None], LABELS),
        (LABELS.astype(bool), (LABELS > 0).astype(int)),
        (LABELS / 2, (LABELS / 2)[:, None]),
        (np.eye(4, dtype="u1")[LABELS], np.eye(4, dtype=int)[LABELS]),
    ],
)
def test_labels_are_ints_or_vectors(
    tmp_path: Path, labels: np.ndarray, expected: np.ndarray
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["images"], file["y"] = PIXELS, labels
    torch.save((_IMAGES, torch.from_numpy(labels)), tmp_path / "a.pth")
    for name in ("a.h5", "a.pth"):
        with packio.open(tmp_path / name) as pack:
            assert pack.labels is not None
            assert pack.labels.dtype == (np.float32 if labels.dtype.kind == "f" else np.int64)
            assert pack.labels.tolist() == expected.tolist()


# Names


def _named_h5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        for name, images in (("train", PIXELS), ("test", PIXELS[:4])):
            file[f"{name}/frames"], file[f"{name}/what"] = images, LABELS[: len(images)]


def _named_zarr(path: Path) -> None:
    for name, images in (("train", PIXELS), ("test", PIXELS[:4])):
        group = zarr.open_group(str(path), mode="a").create_group(name)
        for key, values in (("frames", images), ("what", LABELS[: len(images)])):
            array = group.create_array(key, shape=values.shape, dtype=values.dtype)
            array[...] = values


def _named_n5(path: Path) -> None:
    file = z5py.File(str(path), "w")
    for name, images in (("train", PIXELS), ("test", PIXELS[:4])):
        for key, values in (("frames", images), ("what", LABELS[: len(images)])):
            file.require_group(name).create_dataset(key, data=values, chunks=values.shape)


def _named_pth(path: Path) -> None:
    parts = {"train": (_IMAGES, _TARGETS), "test": (_IMAGES[:4].clone(), _TARGETS[:4].clone())}
    torch.save({k: {"frames": i, "what": t} for k, (i, t) in parts.items()}, path)


_NAMED = {".h5": _named_h5, ".zarr": _named_zarr, ".n5": _named_n5, ".pth": _named_pth}
_EACH_NAMED = pytest.mark.parametrize("suffix", _NAMED)


@_EACH_NAMED
def test_images_and_labels_are_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    _NAMED[suffix](path)
    names: dict[str, Any] = {"image": "train/frames", "label": "train/what"}
    with packio.open(path, **names) as pack:
        access = pack.access
    _check(path, access, **names)
    with packio.open(path, image="/test/frames/", label="") as pack:
        assert len(pack) == 4
        assert pack.labels is None
    packio.reindex(path, **names)
    _check(path, access)
    with pytest.raises(errors.OptionError, match="has an index already"):
        packio.open(path, image="train/frames")


@_EACH_NAMED
@pytest.mark.parametrize("option", ["image", "label"])
def test_a_name_that_is_not_there_lists_what_is(tmp_path: Path, suffix: str, option: str) -> None:
    path = tmp_path / f"a{suffix}"
    _NAMED[suffix](path)
    names: dict[str, Any] = {"image": "train/frames", option: "train/none"}
    with pytest.raises(errors.OptionError, match=rf"{option}='train/none'.*frames.*\(10, 8, 6, 3"):
        packio.open(path, **names)


@pytest.mark.parametrize("suffix", [".h5", ".zarr", ".n5"])
def test_several_arrays_must_be_told_apart(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    _NAMED[suffix](path)
    with pytest.raises(errors.NotAPackError, match=r"test/frames .*train/frames .*image="):
        packio.open(path)


def test_positions_in_a_tuple_are_names(tmp_path: Path) -> None:
    torch.save(("about", _TARGETS, [_IMAGES]), tmp_path / "a.pth")
    _check(tmp_path / "a.pth", "range", image="2/0", label="1")
    with pytest.raises(errors.OptionError, match=r"image='7'.*0 \(str\), 1 \(\(10,\).*, 2 \(list"):
        packio.open(tmp_path / "a.pth", image="7")


def test_features_of_tfrecords_are_names(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    writer = tfrecord.TFRecordWriter(str(path))
    for data, label in zip(_encoded(), LABELS.tolist(), strict=True):
        writer.write({"photo": (data, "byte"), "kind": (label, "int"), "label": (7, "int")})
    writer.close()
    _check(path, "range", image="photo", label="kind")
    with packio.open(path, image="photo", label="") as pack:
        assert pack.labels is None
    wrong: list[dict[str, Any]] = [{"image": "none"}, {"image": "photo", "label": "none"}]
    for names in wrong:
        with pytest.raises(errors.OptionError, match=r"'none' is not in it.*kind, label, photo"):
            packio.open(path, **names)
    with pytest.raises(errors.NotAPackError, match=r"photo.*image="):
        packio.open(path)


def test_a_format_without_names_takes_none(tmp_path: Path) -> None:
    out = _pack(tmp_path / "a.rec")
    Path(f"{out}.packio").unlink()
    with pytest.raises(errors.OptionError, match="image='x' is of no use"):
        packio.open(out, image="x")


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_the_order_of_pixels_can_be_told(tmp_path: Path, compression: str | None) -> None:
    access = "hdf5" if compression else "range"
    bgr = PIXELS[..., ::-1]
    path = _h5(tmp_path / "bgr.h5", bgr, compression=compression)
    _check(path, access, layout="BGR")
    planes = _h5(tmp_path / "planes.h5", bgr.transpose(0, 3, 1, 2), compression=compression)
    _check(planes, access, layout="bgr,CHW")
    wide = _RNG.integers(0, 256, (10, 5, 7, 2), np.uint8)
    path = _h5(tmp_path / "wide.h5", wide, compression=compression)
    with pytest.raises(errors.NotAPackError, match="layout='HWC' or 'CHW'"):
        packio.open(path)
    _check(path, access, wide, layout="HWC")
    _check(path, access, wide.transpose(0, 2, 3, 1), layout="CHW")
    for layout in ("HWC,CHW", "GBR", "HWC,BGR,", ","):
        with pytest.raises(errors.OptionError, match="expected HWC or CHW, RGB or BGR"):
            packio.open(path, layout=layout)


def test_the_command_takes_names(tmp_path: Path) -> None:
    _named_h5(tmp_path / "a.h5")
    command = ["reindex", "a.h5", "--image", "train/frames"]
    wrong = run(*command, "--label", "x", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "--label x is not in it; there are: test/frames" in " ".join(wrong.stderr.split())
    assert run(*command, "--label", "train/what", cwd=tmp_path).returncode == 0
    _check(tmp_path / "a.h5", "range")


# Reading


def _by_library(path: Path) -> Path:
    """A container that is not read by ranges."""
    if path.suffix == ".h5":
        return _h5(path, chunks=(4, *SHAPE), compression="gzip")
    if path.suffix == ".zarr":
        return _zarr(path, **_WHOLE)
    if path.suffix == ".pth":
        torch.save((_encoded(), _TARGETS), path)
        return path
    file = z5py.File(str(path), "w")
    file.create_dataset("images", data=PIXELS, chunks=_WHOLE["chunks"], compression="gzip")
    file.create_dataset("labels", data=LABELS, chunks=(3,), compression="gzip")
    return path


_BY_LIBRARY = pytest.mark.parametrize("suffix", [".h5", ".zarr", ".n5", ".pth"])


@pytest.mark.parametrize(
    ("suffix", "method"),
    [(".h5", "fork"), (".zarr", "fork"), (".n5", "fork"), (".pth", "fork"), (".h5", "spawn")],
)
def test_workers_read_what_has_no_ranges(tmp_path: Path, suffix: str, method: str) -> None:
    ds = packio.PackDataset(_by_library(tmp_path / f"a{suffix}"))
    assert np.array_equal(ds[4][0].permute(1, 2, 0).numpy(), PIXELS[4])  # the parent first
    workers = {"num_workers": 2 if method == "fork" else 1, "multiprocessing_context": method}
    batches = list(DataLoader(ds, batch_size=3, **workers))  # type: ignore[arg-type]  # a mixed dict
    images = torch.cat([images for images, _ in batches]).permute(0, 2, 3, 1).numpy()
    assert np.array_equal(images, PIXELS)
    assert torch.cat([labels for _, labels in batches]).tolist() == LABELS.tolist()
    assert np.array_equal(ds[5][0].permute(1, 2, 0).numpy(), PIXELS[5])


@_BY_LIBRARY
def test_a_pickle_reads_what_has_no_ranges(tmp_path: Path, suffix: str) -> None:
    pack = packio.open(_by_library(tmp_path / f"a{suffix}"))
    assert np.array_equal(pack[1].decode(), PIXELS[1])
    again = pickle.loads(pickle.dumps(pack))
    assert np.array_equal(again[2].decode(), PIXELS[2])


@_BY_LIBRARY
def test_threads_read_what_has_no_ranges(tmp_path: Path, suffix: str) -> None:
    with packio.open(_by_library(tmp_path / f"a{suffix}")) as pack, ThreadPoolExecutor(4) as pool:
        order = _RNG.permutation(np.repeat(np.arange(10), 5)).tolist()
        for i, sample in zip(order, pool.map(pack.__getitem__, order), strict=True):
            assert np.array_equal(sample.decode(), PIXELS[i])


@_BY_LIBRARY
def test_what_has_no_ranges_converts_to_what_has(tmp_path: Path, suffix: str) -> None:
    path = _by_library(tmp_path / f"a{suffix}")
    out = packio.convert(path, tmp_path / "b.lmdb").out
    _check(out, "range")


@_BY_LIBRARY
def test_what_has_no_ranges_is_not_read_by_them(tmp_path: Path, suffix: str) -> None:
    path = _by_library(tmp_path / f"a{suffix}")
    with pytest.raises(errors.OptionError, match="access='range'"):
        packio.open(path, access="range")
    with packio.open(path) as pack, pytest.raises(IndexError):
        pack._readers[0].get(10)


@pytest.mark.filterwarnings("ignore:.*left out")
def test_samples_are_found_by_number_where_some_are_left_out(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        kind = h5py.vlen_dtype(np.uint8)
        images = file.create_dataset("images", (3,), kind, compression="lzf")
        for i, value in enumerate([b"nothing", *_encoded()[1:3]]):
            images[i] = np.frombuffer(value, np.uint8)
    with packio.open(tmp_path / "a.h5") as pack:
        assert pack.metadata["counts"] == {"found": 3, "packed": 2, "skipped": 1}
        assert [sample.data for sample in pack] == _encoded()[1:3]


def test_shards_may_be_read_one_by_ranges_and_one_not(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    _h5(tmp_path / "a/0.h5")
    _h5(tmp_path / "a/1.h5", PIXELS[::-1], compression="gzip")
    with packio.open(tmp_path / "a") as pack:
        assert pack.access == "hdf5"
        found = np.stack([sample.decode() for sample in pack])
    assert np.array_equal(found, np.concatenate([PIXELS, PIXELS[::-1]]))


@_BY_LIBRARY
def test_a_row_of_chunks_too_large_to_keep_is_read_one_by_one(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packio.formats.blobs.by_library._KEPT_BYTES", 1)
    _check(_by_library(tmp_path / f"a{suffix}"), suffix[1:].replace("h5", "hdf5"))


# What cannot be


def test_labels_that_are_not_as_many_are_told(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["images"], file["labels"] = PIXELS, LABELS[:9]
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w")
    for name, values in (("images", PIXELS), ("labels", LABELS[:9])):
        group.create_array(name, shape=values.shape, dtype=values.dtype)[...] = values
    torch.save((_IMAGES, _TARGETS[:9]), tmp_path / "a.pth")
    torch.save((_IMAGES, LABELS[:9].tolist()), tmp_path / "b.pth")
    for name in ("a.h5", "a.zarr", "a.pth", "b.pth"):
        with pytest.raises(errors.IntegrityError, match=r"label.*: 9 labels of 10 images"):
            packio.open(tmp_path / name)


@pytest.mark.parametrize(
    ("images", "labels", "reason"),
    [
        (PIXELS.astype("i8"), LABELS, "int64; expected one of uint8, uint16, float32"),
        (PIXELS.astype("f8"), LABELS, "float64; expected one of uint8, uint16, float32"),
        (PIXELS, np.array([b"cat"] * 10), "no labels.*label=''"),
        (PIXELS, np.zeros((10, 2, 2)), "no labels"),
        (PIXELS, np.full(10, 2**63, "u8"), "do not fit 64 bits"),
        (PIXELS[:0], LABELS[:0], "no images"),
        (np.zeros((3, 0, 5, 3), "u1"), LABELS[:3], "shape"),
    ],
)
def test_what_can_be_no_images_or_labels_is_told(
    tmp_path: Path, images: np.ndarray, labels: np.ndarray, reason: str
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["images"], file["labels"] = images, labels
    with pytest.raises(errors.NotAPackError, match=reason):
        packio.open(tmp_path / "a.h5")


def _lacks_a_chunk(file: Any) -> None:
    file.create_dataset("images", PIXELS.shape, "u1", chunks=(2, *SHAPE))[:6] = PIXELS[:6]


def _lacks_a_chunk_compressed(file: Any) -> None:
    images = file.create_dataset(
        "images", PIXELS.shape, "u1", chunks=(2, *SHAPE), compression="gzip"
    )
    images[:6] = PIXELS[:6]


def _never_written(file: Any) -> None:
    file.create_dataset("images", PIXELS.shape, "u1")


def _claims_much(file: Any) -> None:
    file.create_dataset("images", (2**50, *SHAPE), "u1", chunks=(1, *SHAPE))[0] = PIXELS[0]


def _huge_images(file: Any) -> None:
    file.create_dataset("images", (2, 2**20, 2**20, 3), "u1", chunks=(1, 256, 256, 3))


def _external(file: Any) -> None:
    file.create_dataset("images", (9, 2, 2, 1), "u1", external=[("/etc/hostname", 0, 36)])


def _virtual(file: Any) -> None:
    layout = h5py.VirtualLayout((3, *SHAPE), "u1")
    layout[:] = h5py.VirtualSource("/etc/hostname", "x", (3, *SHAPE))
    file.create_virtual_dataset("images", layout)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (_lacks_a_chunk, "3 of 5 chunks"), (_lacks_a_chunk_compressed, "3 of 5 chunks"),
        (_never_written, "never written"), (_claims_much, "claim"), (_huge_images, "at most"),
        (_external, "external"), (_virtual, "external"),
    ],
)  # fmt: skip
def test_claims_of_hdf5_are_not_believed(
    tmp_path: Path, make: Callable[[Any], None], reason: str
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        make(file)
        file["fill"] = np.zeros(1 << 20, "u1")  # in which a wrong position would be
    with pytest.raises((errors.IntegrityError, errors.NotAPackError), match=reason):
        list(hdf5.FORMAT.scan(tmp_path / "a.h5", Reading(image="images")))


@pytest.mark.parametrize("move", [b"same", b"beyond"])
def test_chunks_that_overlap_or_lie_outside_are_told(tmp_path: Path, move: bytes) -> None:
    path = _h5(tmp_path / "a.h5", chunks=(5, *SHAPE))
    infos: list[Any] = []
    with h5py.File(path) as file:
        file["images"].id.chunk_iter(infos.append)
    first, second = (info.byte_offset.to_bytes(8, "little") for info in infos)
    content = path.read_bytes()
    assert content.count(second) == 1
    new = first if move == b"same" else (len(content) - 5).to_bytes(8, "little")
    path.write_bytes(content.replace(second, new))
    with pytest.raises(errors.IntegrityError, match="chunks that overlap, or that lie outside"):
        list(hdf5.FORMAT.scan(path, Reading()))


def test_an_unknown_filter_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("images", data=PIXELS, chunks=(5, *SHAPE), compression="lzf")
    content = path.read_bytes()
    lzf = (32000).to_bytes(2, "little")
    path.write_bytes(content.replace(lzf, (32777).to_bytes(2, "little")))
    with pytest.raises(errors.NotAPackError, match=r"filter 32777.*hdf5plugin"):
        list(hdf5.FORMAT.scan(path, Reading()))


@pytest.mark.parametrize("suffix", [".zarr", ".n5"])
@pytest.mark.parametrize("damage", ["short", "flipped"])
def test_damaged_blocks_are_told(tmp_path: Path, suffix: str, damage: str) -> None:
    path = _by_library(tmp_path / f"a{suffix}")
    block = path / ("images/c/1/0/0/0" if suffix == ".zarr" else "images/0/0/0/1")
    if damage == "short":
        block.write_bytes(block.read_bytes()[:-9])
    else:
        content = bytearray(block.read_bytes())
        content[len(content) // 2] ^= 0xFF
        content[3] ^= 0xFF
        block.write_bytes(content)
    with pytest.raises(errors.IntegrityError, match=str(path)):
        packio.open(path)


@pytest.mark.parametrize("value", [{"id": "pickle"}, {"id": "json2"}, "pickle", 7])
@pytest.mark.parametrize("key", ["compressor", "filters"])
def test_codecs_that_could_run_code_are_refused(tmp_path: Path, value: Any, key: str) -> None:
    path = _zarr(tmp_path / "a.zarr", **_WHOLE, zarr_format=2)
    metadata = json.loads((path / "images/.zarray").read_text())
    metadata[key] = value if key == "compressor" else [value]
    (path / "images/.zarray").write_text(json.dumps(metadata))
    with pytest.raises(errors.NotAPackError, match="codecs"):
        packio.open(path, image="images")


def test_an_unknown_compression_is_named(tmp_path: Path) -> None:
    path = _by_library(tmp_path / "a.n5")
    file = path / "images/attributes.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"compression": {"type": "lz4"}}))
    with pytest.raises(errors.NotAPackError, match=r"images is compressed \('lz4'\); expected raw"):
        packio.open(path)


def test_codecs_of_shards_are_checked_as_well(tmp_path: Path) -> None:
    path = _zarr(tmp_path / "a.zarr", chunks=(1, *SHAPE), shards=(4, *SHAPE))
    metadata = json.loads((path / "images/zarr.json").read_text())
    metadata["codecs"][0]["configuration"]["codecs"] = [{"name": "numcodecs.pickle"}]
    (path / "images/zarr.json").write_text(json.dumps(metadata))
    with pytest.raises(errors.NotAPackError, match=r"numcodecs\.pickle"):
        packio.open(path, image="images")


_VALUES: list[Any] = [None, -1, 0, 2**31, 2**60, 1.5, "x", [], {}, [2**40] * 4, [1], True, [[1]]]


@pytest.mark.parametrize(
    ("name", "options"),
    [("zarr.json", _WHOLE), (".zarray", {**_WHOLE, "zarr_format": 2}), ("attributes.json", {})],
)
def test_no_value_of_the_metadata_is_believed(
    tmp_path: Path, name: str, options: dict[str, Any]
) -> None:
    suffix = ".n5" if name == "attributes.json" else ".zarr"
    path = tmp_path / f"a{suffix}"
    container = n5.FORMAT if suffix == ".n5" else zarr_format.FORMAT
    _by_library(path) if suffix == ".n5" else _zarr(path, **options)
    file = path / "images" / name
    metadata = json.loads(file.read_text())
    for changed in chunked.mutations(metadata, _VALUES):
        file.write_text(json.dumps(changed))
        reading = Reading(image="images", label="")
        reader = container.reader(path, reading)
        try:
            for i, entry in enumerate(container.scan(path, reading)):
                if entry.image.offset < 0:
                    assert len(reader.get(i)) == entry.image.length < 1 << 20
        except errors.PackioError:
            pass


@pytest.mark.parametrize(
    "value",
    [
        (_IMAGES, _TARGETS),
        {"images": _encoded(), "labels": LABELS.tolist()},
        [(image, int(label)) for image, label in zip(_PLANES, LABELS, strict=True)],
    ],
    ids=range(3),
)
def test_truncated_files_of_torch_are_told(tmp_path: Path, value: Any) -> None:
    torch.save(value, tmp_path / "a.pth")
    content = (tmp_path / "a.pth").read_bytes()
    for size in range(0, len(content), len(content) // 23):
        (tmp_path / "b.pth").write_bytes(content[:size])
        with pytest.raises((errors.IntegrityError, errors.NotAPackError), match=r"b\.pth"):
            packio.open(tmp_path / "b.pth")


def test_a_tensor_that_lies_about_its_size_is_told(tmp_path: Path) -> None:
    """Its shape is changed from 10 to 99 images in the pickle."""
    torch.save((_IMAGES, _TARGETS), tmp_path / "a.pth")
    with (
        zipfile.ZipFile(tmp_path / "a.pth") as old,
        zipfile.ZipFile(tmp_path / "b.pth", "w") as new,
    ):
        for info in old.infolist():
            content = old.read(info)
            if info.filename.endswith("data.pkl"):
                shape = b"K\x0aK\x08K\x06K\x03"
                assert content.count(shape) == 1
                content = content.replace(shape, b"KcK\x08K\x06K\x03")
            new.writestr(info.filename, content)
    with pytest.raises((errors.IntegrityError, errors.NotAPackError), match=r"b\.pth"):
        packio.open(tmp_path / "b.pth")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ((_IMAGES.to(torch.bfloat16), _TARGETS), "bfloat16"),
        ((_IMAGES[:, ::2], _TARGETS), "not a plain, contiguous tensor"),
        (torch.zeros(1, 1, 1, 1, dtype=torch.uint8).expand(2**30, 8, 6, 3), "contiguous"),
        ({"images": _IMAGES, "labels": ["a"] * 10}, "labels are list"),
        ({"images": _IMAGES, "labels": [1, "a"] * 5}, "labels are list"),
        ({"images": _IMAGES, "labels": [10**30] * 10}, "labels are list"),
        ({"weight": _IMAGES}, "holds NoneType"),
        ([_IMAGES[0], "x"], "item 1 is str"),
    ],
    ids=range(8),
)
def test_what_torch_saves_otherwise_is_told(tmp_path: Path, value: Any, reason: str) -> None:
    torch.save(value, tmp_path / "a.pth")
    with pytest.raises(errors.NotAPackError, match=reason):
        packio.open(tmp_path / "a.pth")


# A process of its own


def test_a_file_that_kills_hdf5_is_an_error(tmp_path: Path) -> None:
    """The filter believes how many values a chunk has, as the file says: 2**28 here, not 576."""
    path = _h5(tmp_path / "a.h5", PIXELS // 4, chunks=(4, *SHAPE), scaleoffset=6)
    packio.reindex(path)
    content, values = path.read_bytes(), (4 * math.prod(SHAPE)).to_bytes(4, "little")
    assert content.count(values) == 1
    path.write_bytes(content.replace(values, (1 << 28).to_bytes(4, "little")))
    code = (
        "import packio, sys\n"
        "pack = packio.open(sys.argv[1])\n"
        "for i in (0, 9):\n"
        "    try:\n"
        "        pack[i]\n"
        "    except packio.IntegrityError as error:\n"
        "        print(error)\n"
    )
    said = made.in_a_process(code, path)
    assert [line.startswith(f"{path}: ") for line in said.splitlines()] == [True, True]


def test_a_file_that_has_fewer_images_by_now_does_not_end_a_loop(tmp_path: Path) -> None:
    path = _h5(tmp_path / "a.h5", chunks=(1, *SHAPE), compression="gzip")
    packio.reindex(path)
    size = path.stat().st_size
    with h5py.File(path, "w") as file:
        file.create_dataset("images", data=PIXELS[:9], chunks=(1, *SHAPE), compression="gzip")
        file["labels"] = LABELS[:9]
    with path.open("ab") as shorter:
        shorter.truncate(size)
    with packio.open(path) as pack, pytest.raises(errors.IntegrityError, match="no sample 9"):
        for _ in pack:
            pass


def test_a_library_that_hangs_is_given_up() -> None:
    with pytest.raises(errors.IntegrityError, match=r"a\.h5: not read to its end in 1 seconds"):
        isolation.run("time:sleep", 60, where="a.h5", seconds=1)


def test_a_process_that_hangs_does_not_outlive_its_parent(tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(
        "import ctypes, os, pathlib\n"
        "def hang(path):\n"
        "    pathlib.Path(path).write_text(str(os.getpid()))\n"
        "    ctypes.PyDLL(None).sleep(1000)\n"  # and lets no other Python run
    )
    pid = tmp_path / "pid"
    code = (
        "from packio.system import isolation\n"
        f"isolation.run('hanging:hang', {str(pid)!r}, where='a.h5', seconds=500)"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    parent = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path})
    while not (pid.exists() and pid.read_text()):
        time.sleep(0.02)
    parent.kill()
    parent.wait()
    status = Path(f"/proc/{pid.read_text()}/stat")
    while status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.02)  # until it is gone; pytest has a time limit


def test_errors_come_back_from_the_process_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caps = dataclasses.replace(hdf5.FORMAT.caps, dies_of_damage=True)
    monkeypatch.setattr(hdf5.Hdf5, "caps", caps)
    (tmp_path / "a.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + b"?" * 99)
    with pytest.raises(errors.NotAPackError, match=r"a\.h5: h5py does not open it"):
        packio.open(tmp_path / "a.h5")


def test_a_script_without_a_guard_opens_hdf5(tmp_path: Path) -> None:
    """Its main module is not run again, as multiprocessing would."""
    _h5(tmp_path / "a.h5")
    script = tmp_path / "script.py"
    script.write_text("import packio; print(len(packio.open('a.h5')))")
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert done.stdout == "10\n"


def test_a_name_of_any_bytes_is_indexed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    caps = dataclasses.replace(hdf5.FORMAT.caps, dies_of_damage=True)
    monkeypatch.setattr(hdf5.Hdf5, "caps", caps)
    _check(_h5(tmp_path / "caf\udce9.h5"), "range")


@pytest.mark.parametrize("name", ["masks", "bbox"])
@pytest.mark.parametrize("suffix", [".h5", ".zarr", ".pth"])
def test_arrays_of_masks_and_boxes_are_refused_not_dropped(
    suffix: str, name: str, tmp_path: Path
) -> None:
    path = tmp_path / f"x{suffix}"
    arrays = {"images": np.zeros((3, 8, 9, 3), np.uint8), "labels": np.arange(3),
              name: np.zeros((3, 4), np.float32)}  # fmt: skip
    if suffix == ".h5":
        with h5py.File(path, "w") as file:
            for each, values in arrays.items():
                file[each] = values
    elif suffix == ".zarr":
        group = pytest.importorskip("zarr").open_group(path, mode="w", zarr_format=2)
        for each, values in arrays.items():
            group.create_array(each, data=values, compressors=None)
    else:
        torch.save({n: torch.from_numpy(values) for n, values in arrays.items()}, path)
    with pytest.raises(packio.PackioError, match=f"'{name}' lies beside the images"):
        packio.pack(path, tmp_path / "o.tar")
    packio.reindex(path, image="images", label="labels")
    assert packio.pack(path, tmp_path / "o.tar").packed == 3
