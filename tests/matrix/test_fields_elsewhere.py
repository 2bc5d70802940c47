"""Every kind of field, packed by a command, as the format's own library or a plain parser has it.

tests/formats does the same for what formats' writers write; here whole packs are looked at.
"""

from __future__ import annotations

import itertools
import pathlib
import struct
import tarfile
from typing import TYPE_CHECKING

import numpy as np
import pytest
from trials import Cell, Trial

if TYPE_CHECKING:
    from collections.abc import Callable

    from commands import Commands

Found = dict[int, bytes]  # position of a sample → its value
_KINDS = {"caption": "text", "depth": "image", "latent": "array", "blob": "bytes", "mask": "mask"}
_ANNOTATIONS = (("fields", "some"), ("mask", "some"))


def _by_lmdb(pack: pathlib.Path, name: str) -> Found:
    import lmdb

    folder = "mask" if name == "mask" else f"{name}.{_KINDS[name]}"
    with lmdb.open(str(pack / folder), readonly=True, lock=False) as env, env.begin() as txn:
        return {int(key): value for key, value in txn.cursor()}


def _by_frames(pack: pathlib.Path, name: str) -> Found:
    """Records of RecordIO: a magic, a length, a header with the number, and the value."""
    middle = "mask" if name == "mask" else f"{name}.{_KINDS[name]}"
    found, rest = {}, pack.with_suffix(f".{middle}.rec").read_bytes()
    while rest:
        _, length = struct.unpack("<II", rest[:8])
        record = rest[8 : 8 + length]
        found[struct.unpack("<IfQQ", record[:24])[2]] = record[24:]
        rest = rest[8 + length + -length % 4 :]
    return found


def _by_tarfile(pack: pathlib.Path, name: str) -> Found:
    ending = {"caption": "txt", "latent": "npy", "blob": "bin"}.get(name, "png")
    found = {}
    with tarfile.open(pack) as archive:
        for member in archive:
            stem, _, suffix = member.name.partition(".")
            if suffix == f"{name}.{ending}":
                file = archive.extractfile(member)
                assert file is not None
                found[int(stem)] = file.read()
    return found


def _by_tfrecord(pack: pathlib.Path, name: str) -> Found:
    reader = pytest.importorskip("tfrecord.reader")
    key = "image/segmentation/class/encoded" if name == "mask" else f"{name}/encoded"
    samples = list(reader.tfrecord_loader(str(pack), None))
    return {i: bytes(s[key]) for i, s in enumerate(samples) if key in s and len(s[key])}


def _by_h5py(pack: pathlib.Path, name: str) -> Found:
    import h5py

    with h5py.File(pack) as file:
        return _cut(file[f"{name}_data"][()], file[f"{name}_offsets"][()])


def _by_torch(pack: pathlib.Path, name: str) -> Found:
    import torch

    tensors = torch.load(pack, weights_only=True)
    return _cut(tensors[f"{name}_data"].numpy(), tensors[f"{name}_offsets"].numpy())


def _cut(data: np.ndarray, offsets: np.ndarray) -> Found:
    values = [data[a:b].tobytes() for a, b in itertools.pairwise(offsets.tolist())]
    return {i: value for i, value in enumerate(values) if value}


def _by_arrays(read: Callable[[pathlib.Path, str], bytes]) -> Callable[[pathlib.Path, str], Found]:
    """Blobs of Zarr and N5, which have gaps: a length beside each offset."""

    def values(pack: pathlib.Path, name: str) -> Found:
        blob = read(pack, f"{name}_data")
        starts, lengths = (
            np.frombuffer(read(pack, f"{name}_{n}"), "<i8").tolist() for n in ("offsets", "length")
        )
        spans = zip(starts, lengths, strict=False)
        return {i: blob[a : a + n] for i, (a, n) in enumerate(spans) if n}

    return values


def _zarr_array(pack: pathlib.Path, name: str) -> bytes:
    zarr = pytest.importorskip("zarr")
    array = zarr.open_group(str(pack), mode="r")[name][...]
    return bytes(array.astype("u1" if array.itemsize == 1 else "<i8").tobytes())


def _n5_array(pack: pathlib.Path, name: str) -> bytes:
    z5py = pytest.importorskip("z5py")
    array = z5py.File(str(pack), "r")[name][:]
    return bytes(array.astype("u1" if array.itemsize == 1 else "<i8").tobytes())


_READERS: dict[str, Callable[[pathlib.Path, str], Found]] = {
    ".lmdb": _by_lmdb, ".rec": _by_frames, ".tar": _by_tarfile, ".tfrecord": _by_tfrecord,
    ".h5": _by_h5py, ".pth": _by_torch, ".zarr": _by_arrays(_zarr_array),
    ".n5": _by_arrays(_n5_array),
}  # fmt: skip


@pytest.mark.parametrize("suffix", _READERS)
def test_others_see_every_field(suffix: str, tmp_path: pathlib.Path, commands: Commands) -> None:
    trial = Trial(Cell("extracted", _ANNOTATIONS, "pack", suffix, ""), tmp_path, commands)
    for i, sample in enumerate(trial.samples):
        if "fields" in sample:
            sample["fields"]["blob"] = ("bytes", bytes(range(i + 1)) * 9)
    out, source = trial.packed(trial.samples)
    for name in _KINDS:
        wanted: Found = {}
        for i, sample in enumerate(source.samples):
            fields = {n: data for n, (_, data) in sample.get("fields", {}).items()}
            fields |= {"mask": sample["mask"]} if "mask" in sample else {}
            wanted |= {i: fields[name]} if name in fields else {}
        found = _READERS[suffix](pathlib.Path(out), name)
        assert {i: value.hex() for i, value in found.items()} == {
            i: value.hex() for i, value in wanted.items()
        }, name
