"""Is every image of a folder in a pack, once, whole, with its label? Told without packio's readers.

Containers are read with others' libraries (py-lmdb, h5py, tarfile, torch, zarr, z5py, protobuf) or
by walking their frames as their specifications say; the index with the package safetensors.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import itertools
import json
import os
import re
import struct
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import numpy as np


class Sample(NamedTuple):
    """One sample, as it is in a container or should be."""

    key: bytes
    label: int
    data: bytes


class Verdict(NamedTuple):
    """What is wrong with a pack; nothing if all is zero and empty."""

    lost: int = 0
    duplicated: int = 0
    wrong: int = 0  # other bytes or label, or nothing that was in the folder
    in_index: tuple[str, ...] = ()  # what is wrong there

    @property
    def good(self) -> bool:
        """Nothing is wrong."""
        return self == Verdict()


def folder(root: Path) -> list[Sample]:
    """What an image folder holds, labels by the order of its class names."""
    top = os.fsencode(root)
    classes = sorted(name for name in os.listdir(top) if os.path.isdir(os.path.join(top, name)))
    samples = []
    for label, name in enumerate(classes):
        for here, _, files in os.walk(os.path.join(top, name)):
            for file in files:
                path = os.path.join(here, file)
                with open(path, "rb") as opened:
                    samples.append(Sample(os.path.relpath(path, top), label, opened.read()))
    return sorted(samples)


def check(
    out: Path, expected: Sequence[Sample], versions: Mapping[bytes, Sequence[bytes]] | None = None
) -> Verdict:
    """Compare a pack with what should be in it.

    Args:
        out: The pack.
        expected: Its samples.
        versions: What else a sample may be: files changed while they were packed.
    """
    samples = [sample for shard in _shards(out) for sample in _READERS[out.suffix](shard)]
    allowed = {
        (s.key, s.label, data)
        for s in expected
        for data in (s.data, *(versions or {}).get(s.key, ()))
    }
    found = collections.Counter(s.key for s in samples)
    return Verdict(
        lost=sum(s.key not in found for s in expected),
        duplicated=sum(count - 1 for count in found.values()),
        wrong=sum(tuple(s) not in allowed for s in samples),
        in_index=tuple(_wrong_in_index(out, samples)),
    )


def _shards(out: Path) -> list[Path]:
    if not out.is_dir():
        return [out]
    found = sorted(p for p in out.iterdir() if re.search(r"-\d{5}$", p.stem) and
                   p.suffix == out.suffix)  # fmt: skip
    return [p for p in found if not p.stem.endswith(".mask")] or [out]


def _wrong_in_index(out: Path, samples: Sequence[Sample]) -> Iterator[str]:
    """Follow the index to the bytes of each sample; digest all files that it lists."""
    import safetensors

    path = out / "index.packio" if out.is_dir() else out.with_name(out.name + ".packio")
    with safetensors.safe_open(path, "np") as opened:
        column = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (no dict)
        counts = json.loads(opened.metadata()["packio"])["counts"]
    files = _texts(column["file_path_data"], column["file_path_offsets"])
    paths = [path.parent / os.fsdecode(name) for name in files]
    for file, size, digest in zip(paths, column["file_bytes"], column["file_digest"], strict=True):
        data = file.read_bytes()
        if len(data) != size or hashlib.sha256(data).digest() != digest.tobytes():
            yield f"{file.name}: another size or digest"
    keys = _texts(column["key_data"], column["key_offsets"])
    if counts["packed"] != len(keys) or len(keys) != len(samples):
        yield f"{counts} and {len(keys)} rows for {len(samples)} samples"
    column |= {n.partition("/")[2]: c for n, c in column.items() if n.startswith("image/")}
    split = column["flags"] & 2  # a RecordIO record with its magic in it lies in several ranges
    for row, sample in enumerate(samples[: len(keys)]):
        with paths[column["file"][row]].open("rb") as file_:
            data = os.pread(file_.fileno(), column["length"][row], column["offset"][row])
        if not split[row] and data != sample.data:
            yield f"row {row}: other bytes than the container's record"
        if google_crc32c.value(sample.data) != column["crc32c"][row]:
            yield f"row {row}: another CRC32C"
        if (keys[row], column["label"][row]) != (sample.key, sample.label):
            yield f"row {row}: another key or label"


def _texts(data: np.ndarray, offsets: np.ndarray) -> list[bytes]:
    whole = data.tobytes()
    return [whole[a:b] for a, b in itertools.pairwise(offsets.tolist())]


def _lmdb(path: Path) -> Iterator[Sample]:
    import lmdb

    with lmdb.open(os.fspath(path), readonly=True, lock=False) as env, env.begin() as txn:
        records = dict(txn.cursor())
    lines = (path / "labels.tsv").read_bytes().split(b"\n")[:-1]
    rows = [line.split(b"\t") for line in lines]
    if len(rows) != len(records):
        raise ValueError(f"{path}: {len(records)} records, {len(rows)} lines of labels")
    width = max(8, len(str(len(rows) - 1)))
    for number, label, key in rows:
        yield Sample(_unescaped(key), int(label), records[number.rjust(width, b"0")])


def _unescaped(key: bytes) -> bytes:
    escapes = {b"t": b"\t", b"n": b"\n", b"r": b"\r", b"\\": b"\\"}
    return re.sub(rb"\\(.)", lambda m: escapes[m[1]], key)


def _blobs(arrays: Callable[[str], Any]) -> Iterator[Sample]:
    """Samples of the formats that keep arrays: hdf5, pth, zarr, n5."""
    data, offsets, labels = (np.asarray(arrays(n)) for n in ("data", "offsets", "label"))
    lengths = np.diff(offsets)
    keys = _texts(np.asarray(arrays("key_data")), np.asarray(arrays("key_offsets")))
    with contextlib.suppress(KeyError):
        lengths = np.asarray(arrays("length"))  # zarr and n5 have gaps
    for key, label, start, length in zip(keys, labels, offsets[:-1], lengths, strict=True):
        yield Sample(key, int(label), data[start : start + length].tobytes())


def _hdf5(path: Path) -> Iterator[Sample]:
    import h5py

    with h5py.File(path, "r") as file:
        yield from _blobs(lambda name: file[name][()])


def _pth(path: Path) -> Iterator[Sample]:
    import torch

    tensors = torch.load(path, weights_only=True)
    yield from _blobs(lambda name: tensors[name].numpy())


def _zarr(path: Path) -> Iterator[Sample]:
    import zarr

    group: Any = zarr.open_group(path, mode="r")
    yield from _blobs(lambda name: group[name][:])


def _n5(path: Path) -> Iterator[Sample]:
    import z5py  # type: ignore[import-untyped]  # it has no types

    with z5py.File(os.fspath(path), "r") as file:
        yield from _blobs(lambda name: file[name][:])


def _tar(path: Path) -> Iterator[Sample]:
    import tarfile

    records: dict[str, dict[str, bytes]] = {}
    with tarfile.open(path) as archive:
        for member in archive:
            stem, _, suffix = member.name.partition(".")
            opened = archive.extractfile(member)
            if opened is None or suffix in records.get(stem, {}):
                raise ValueError(f"{path}: {member.name} is no file, or there twice")
            records.setdefault(stem, {})[suffix] = opened.read()
    for record in records.values():
        facts = json.loads(record.pop("json"))
        label = int(record.pop("cls"))
        (data,) = record.values()
        key = b64decode(facts["key_base64"]) if "key_base64" in facts else facts["key"].encode()
        yield Sample(key, label, data)


def _tfrecord(path: Path) -> Iterator[Sample]:
    from tfrecord import example_pb2

    whole = path.read_bytes()
    position = 0
    while position < len(whole):
        length, crc = struct.unpack_from("<QI", whole, position)
        data = whole[position + 12 : position + 12 + length]
        (end,) = struct.unpack_from("<I", whole, position + 12 + length)
        if (crc, end) != (_masked(whole[position : position + 8]), _masked(data)):
            raise ValueError(f"{path}: a CRC at {position} is wrong")
        feature = example_pb2.Example.FromString(data).features.feature
        yield Sample(
            feature["packio/key"].bytes_list.value[0],
            feature["image/class/label"].int64_list.value[0],
            feature["image/encoded"].bytes_list.value[0],
        )
        position += 16 + length


def _masked(data: bytes) -> int:
    crc = google_crc32c.value(data)
    return int(((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _recordio(path: Path) -> Iterator[Sample]:
    whole = path.read_bytes()
    records: list[bytes] = []
    position = 0
    while position < len(whole):
        magic, word = struct.unpack_from("<II", whole, position)
        part, length = word >> 29, word & (1 << 29) - 1
        if magic != 0xCED7230A:
            raise ValueError(f"{path}: no frame at {position}")
        data = whole[position + 8 : position + 8 + length]
        if part in (0, 1):
            records.append(data)
        else:
            records[-1] += struct.pack("<I", magic) + data
        position += 8 + length + -length % 4
    lines = path.with_suffix(".lst").read_bytes().split(b"\n")[:-1]
    for (number, label, key), record in zip((x.split(b"\t") for x in lines), records, strict=True):
        labels, in_record, identity = struct.unpack_from("<IfQ", record)
        if labels or identity != int(number) or in_record != float(label):
            raise ValueError(f"{path}: record {number!r} has another id or label")
        yield Sample(_unescaped(key), int(float(label)), record[24:])


_READERS: dict[str, Callable[[Path], Iterator[Sample]]] = {
    ".lmdb": _lmdb, ".h5": _hdf5, ".tfrecord": _tfrecord, ".pth": _pth, ".rec": _recordio,
    ".n5": _n5, ".zarr": _zarr, ".tar": _tar,
}  # fmt: skip
SUFFIXES = tuple(_READERS)
