"""Fields in containers, as each format's own library or a plain parser reads them."""

from __future__ import annotations

import itertools
import struct
import tarfile
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable

Found = dict[int, bytes]  # position of a sample → its value
ENDINGS = {"text": "txt", "array": "npy", "bytes": "bin", "image": "png", "mask": "png"}


def _by_lmdb(place: pathlib.Path, _name: str, _kind: str) -> Found:
    import lmdb

    with lmdb.open(str(place), readonly=True, lock=False) as env, env.begin() as txn:
        return {int(key): value for key, value in txn.cursor()}


def _by_frames(place: pathlib.Path, _name: str, _kind: str) -> Found:
    """Records of RecordIO: a magic, a length, a header with the number, and the value."""
    found, rest = {}, place.read_bytes()
    while rest:
        _, length = struct.unpack("<II", rest[:8])
        record = rest[8 : 8 + length]
        found[struct.unpack("<IfQQ", record[:24])[2]] = record[24:]
        rest = rest[8 + length + -length % 4 :]
    return found


def _by_tarfile(place: pathlib.Path, name: str, kind: str) -> Found:
    found = {}
    with tarfile.open(place) as archive:
        for member in archive:
            stem, _, suffix = member.name.partition(".")
            if suffix == f"{name}.{ENDINGS[kind]}":
                file = archive.extractfile(member)
                assert file is not None
                found[int(stem)] = file.read()
    return found


def _by_tfrecord(place: pathlib.Path, name: str, kind: str) -> Found:
    reader = pytest.importorskip("tfrecord.reader")
    key = "image/segmentation/class/encoded" if kind == "mask" else f"{name}/encoded"
    samples = list(reader.tfrecord_loader(str(place), None))
    return {i: bytes(s[key]) for i, s in enumerate(samples) if key in s and len(s[key])}


def _by_h5py(place: pathlib.Path, name: str, _kind: str) -> Found:
    import h5py

    with h5py.File(place) as file:
        return _cut(file[f"{name}_data"][()], file[f"{name}_offsets"][()])


def _by_torch(place: pathlib.Path, name: str, _kind: str) -> Found:
    import torch

    tensors = torch.load(place, weights_only=True)
    return _cut(tensors[f"{name}_data"].numpy(), tensors[f"{name}_offsets"].numpy())


def _cut(data: np.ndarray, offsets: np.ndarray) -> Found:
    values = [data[a:b].tobytes() for a, b in itertools.pairwise(offsets.tolist())]
    return {i: value for i, value in enumerate(values) if value}


def _by_arrays(
    read: Callable[[pathlib.Path, str], bytes],
) -> Callable[[pathlib.Path, str, str], Found]:
    """Blobs of Zarr and N5, which have gaps: a length beside each offset."""

    def values(place: pathlib.Path, name: str, _kind: str) -> Found:
        blob = read(place, f"{name}_data")
        starts, lengths = (
            np.frombuffer(read(place, f"{name}_{n}"), "<i8").tolist() for n in ("offsets", "length")
        )
        spans = zip(starts, lengths, strict=False)
        return {i: blob[a : a + n] for i, (a, n) in enumerate(spans) if n}

    return values


def _plain(array: np.ndarray) -> bytes:
    return bytes(array.astype("u1" if array.itemsize == 1 else "<i8").tobytes())


def _zarr_array(place: pathlib.Path, name: str) -> bytes:
    zarr = pytest.importorskip("zarr")
    return _plain(zarr.open_group(str(place), mode="r")[name][...])


def _n5_array(place: pathlib.Path, name: str) -> bytes:
    tensorstore = pytest.importorskip("tensorstore")
    spec = {"driver": "n5", "kvstore": {"driver": "file", "path": f"{place}/{name}"}}
    return _plain(tensorstore.open(spec, open=True).result().read().result())


# A place is a container; of LMDB and RecordIO, what beside the images holds the field.
READERS: dict[str, Callable[[pathlib.Path, str, str], Found]] = {
    ".lmdb": _by_lmdb, ".rec": _by_frames, ".tar": _by_tarfile, ".tfrecord": _by_tfrecord,
    ".h5": _by_h5py, ".pth": _by_torch, ".zarr": _by_arrays(_zarr_array),
    ".n5": _by_arrays(_n5_array),
}  # fmt: skip
