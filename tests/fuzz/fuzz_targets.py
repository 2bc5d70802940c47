"""What is fuzzed: every parser of foreign bytes, with good inputs to mutate.

A target takes bytes and either returns or raises one of the errors that its callers expect.
Anything else, a hang, a crash or too much memory is a defect.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import itertools
import json
import os
import pickle
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import msgpack
import numpy as np
import png_parts
import pyarrow as pa
import torch
from hostile_parts import END, PHOTO, example, framed, member, photo
from PIL import Image

import packio
from packio import registry
from packio.errors import PackioError
from packio.formats import Reading
from packio.formats.blobs import ranges
from packio.formats.hdf5 import datasets
from packio.formats.lmdb import values as lmdb_values
from packio.formats.wire import MalformedError, pickles, protobuf
from packio.images import encodings, png
from packio.index import indexfile


@dataclasses.dataclass(frozen=True)
class Target:
    """A parser, good inputs, and the errors that it may raise."""

    seeds: Callable[[], list[bytes]]
    run: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]
    sealed: Callable[[bytes], bytes]  # repairs sums after a mutation, so that it gets further


TARGETS: dict[str, Target] = {}


def target(
    name: str, seeds: Callable[[], list[bytes]], *errors: type[Exception],
    sealed: Callable[[bytes], bytes] = bytes,
) -> Callable[[Callable[[bytes], object]], Callable[[bytes], object]]:  # fmt: skip
    """Add a function to the targets."""

    def add(run: Callable[[bytes], object]) -> Callable[[bytes], object]:
        TARGETS[name] = Target(functools.cache(seeds), run, (PackioError, *errors), sealed)
        return run

    return add


@functools.cache
def _scratch() -> Path:
    """A folder in memory, one for each process."""
    memory = Path("/dev/shm")  # noqa: S108 (files that are rewritten a thousand times a second)
    return Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None, prefix="packio-fuzz-"))


def _scanned(form: str, path: Path, most: int = 1000) -> None:
    """Find every sample of a container, and read the bytes of its fields."""
    found = registry.load("formats", form).scan(path, Reading())
    for number, record in enumerate(found):
        assert all(place.length >= 0 for place in record.fields.values())
        if number >= most:
            break


# ---------------------------------------------------------------------- containers that are files


def _tars() -> list[bytes]:
    pax = member("h", b"31 path=long/name/of/image.jpg\n", kind=b"x")
    label, meta = member("0.cls", b"3"), member("0.json", b'{"a": [1, 2.5, "x"]}')
    array = io.BytesIO()
    np.save(array, np.arange(6.0).reshape(2, 3))
    depth = member("0.depth.npy", array.getvalue())
    return [
        member("0.jpg") + label + meta + depth + END,
        pax + member("1.jpg", photo(1)) + member("2.jpg") + END,
        member("0.jpg") + member("0.txt", "a caption, é".encode()) + END,
    ]


def _recordios() -> list[bytes]:
    out = []
    for flag, labels in ((0, b""), (2, struct.pack("<2f", 1, 2))):
        content = struct.pack("<IfQQ", flag, 3.0, 7, 0) + labels + PHOTO
        out.append(
            struct.pack("<II", 0xCED7230A, len(content)) + content + bytes(-len(content) % 4)
        )
    return [out[0] * 2, out[1] * 2]


def _pths() -> list[bytes]:
    out = []
    for value in (
        {"images": torch.zeros(3, 3, 4, 4, dtype=torch.uint8), "labels": torch.arange(3)},
        [torch.frombuffer(bytearray(PHOTO), dtype=torch.uint8)] * 2,
        {"data": [PHOTO, photo(1)], "targets": [0, 1], "classes": ["a", "b"]},
    ):
        held = io.BytesIO()
        torch.save(value, held)
        out.append(held.getvalue())
    return out


def _betons() -> list[bytes]:
    head = struct.pack("<IHHQQ", 2, 1, 1 << 15, 2, 4096)
    return [head + np.random.default_rng(0).bytes(4096)]


def _shards_of_mds() -> list[bytes]:
    config = json.dumps({
        "column_encodings": ["jpeg", "int"], "column_names": ["image", "label"],
        "column_sizes": [None, 8], "compression": None, "format": "mds", "hashes": [],
        "size_limit": 1 << 26, "version": 2,
    }).encode()  # fmt: skip
    sample = struct.pack("<I", len(PHOTO)) + struct.pack("<q", 5) + PHOTO
    begin = 4 * 4 + len(config)
    offsets = (begin, begin + len(sample), begin + 2 * len(sample))
    return [struct.pack("<4I", 2, *offsets) + config + sample * 2]


def _lmdbs() -> list[bytes]:
    out = []
    versions: list[Any] = [{"lib_version": n} for n in (0, 1)] if lmdb.__version__ >= "3" else [{}]
    for version, (count, size) in itertools.product(versions, ((3, 10), (300, 10), (3, 9000))):
        with tempfile.TemporaryDirectory() as folder:
            opened = lmdb.open(folder, map_size=1 << 24, **version)
            with opened as env, env.begin(write=True) as txn:
                for number in range(count):
                    txn.put(b"%08d" % number, PHOTO[: size // 2] + bytes(size))
            out.append(Path(folder, "data.mdb").read_bytes())
    return out


def _sealed_records(data: bytes) -> bytes:
    """Give every record of a TFRecord right sums again, as far as its lengths make sense."""
    out, at = b"", 0
    while at + 12 <= len(data):
        length = struct.unpack_from("<Q", data, at)[0]
        if at + 16 + length > len(data):
            break
        out += framed(data[at + 12 : at + 12 + length])
        at += 16 + length
    return out + data[at:]


def _file_target(form: str, name: str, seeds: Callable[[], list[bytes]],
                 sealed: Callable[[bytes], bytes] = bytes) -> None:  # fmt: skip
    def run(data: bytes) -> None:
        path = _scratch() / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        _scanned(form, path.parent if form == "lmdb" else path)

    target(form, seeds, sealed=sealed)(run)


_file_target("tar", "x.tar", _tars)
_file_target("tfrecord", "x.tfrecord", lambda: [framed(example()) * 2], _sealed_records)
_file_target("recordio", "x.rec", _recordios)
_file_target("pth", "x.pth", _pths)
_file_target("mds", "x.mds", _shards_of_mds)
_file_target("beton", "x.beton", _betons)
_file_target("lmdb", "x.lmdb/data.mdb", _lmdbs)


def _metadata_target(form: str, make: Callable[[Path], Path]) -> None:
    """Fuzz the metadata of an array in a folder: the file that `make` returns."""

    def run(data: bytes) -> None:
        folder = _scratch() / form
        file = folder / "made"
        if not file.exists():
            folder.mkdir(exist_ok=True)
            file.write_text(str(make(folder)))
        Path(file.read_text()).write_bytes(data)
        _scanned(form, folder / "x")

    def seeds() -> list[bytes]:
        with tempfile.TemporaryDirectory() as folder:
            return [make(Path(folder)).read_bytes()]

    target(form, seeds)(run)


def _n5(folder: Path) -> Path:
    (folder / "x/images/0/0/0").mkdir(parents=True)
    (folder / "x/attributes.json").write_text('{"n5": "2.0.0"}')
    block = struct.pack(">HH4I", 0, 4, 3, 8, 8, 1) + bytes(192)
    for number in range(2):
        (folder / f"x/images/0/0/0/{number}").write_bytes(block)
    attributes = folder / "x/images/attributes.json"
    attributes.write_text(json.dumps({
        "dimensions": [3, 8, 8, 2], "blockSize": [3, 8, 8, 1], "dataType": "uint8",
        "compression": {"type": "raw"}, "axes": ["c", "x", "y", "n"],
    }))  # fmt: skip
    return attributes


def _zarr(folder: Path) -> Path:
    import zarr

    root = zarr.open_group(folder / "x", mode="w", zarr_format=3)
    root.create_array("images", shape=(2, 8, 8, 3), chunks=(1, 8, 8, 3), dtype="u1")[:] = 7
    return folder / "x/images/zarr.json"


_metadata_target("n5", _n5)
_metadata_target("zarr", _zarr)


_SIZES_OF_HDF5 = datasets.Sizes(8, 8, 0)
_REFERENCES = 6


def _heaps() -> list[bytes]:
    """References to values of variable length, and the heaps that hold the values."""
    values = [bytes([i]) * size for i, size in enumerate((3, 8, 500, 40, 0, 9), 1)]
    start, out = _REFERENCES * 16, []
    for step in (1, 3):  # values in a heap
        references, content = b"", b""
        for i in range(0, _REFERENCES, step):
            some = values[i : i + step]
            objects = b"".join(
                struct.pack("<HHIQ", n, 1, 0, len(v)) + v + bytes(-len(v) % 8)
                for n, v in enumerate(some, 1)
            ) + struct.pack("<QQ", 0, 48) + bytes(32)  # fmt: skip
            at = start + len(content)
            references += b"".join(struct.pack("<IQI", len(v), at, n)
                                   for n, v in enumerate(some, 1))  # fmt: skip
            content += b"GCOL\1\0\0\0" + struct.pack("<Q", 16 + len(objects)) + objects
        out.append(references + content)
    return out


@target("hdf5 heaps", _heaps)
def _heap(data: bytes) -> None:
    path = _scratch() / "x.h5"
    path.write_bytes(data)
    content = data[: _REFERENCES * 16].ljust(_REFERENCES * 16, b"\0")
    references = np.frombuffer(content, _SIZES_OF_HDF5.reference)
    with ranges.open_input(path, 4096) as file:
        offsets, lengths = datasets.find_values(file, references, _SIZES_OF_HDF5)
    assert ((offsets >= 0) & (offsets + lengths <= len(data))).all()


# --------------------------------------------------------------------------------------- the index


@functools.cache
def _small_pack() -> Path:
    folder = _scratch() / "pack"
    source = folder / "photos"
    for number in range(4):
        path = source / f"class{number % 2}/{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(photo(number))
    packio.pack(source, folder / "x.tar", num_workers=1, split={"train": 0.5, "val": 0.5})
    return folder / "x.tar.packio"


def _indexes() -> list[bytes]:
    return [_small_pack().read_bytes()]


@target("index", _indexes)
def _index(data: bytes) -> None:
    path = _small_pack().with_name("y.tar.packio")
    path.write_bytes(data)
    index = indexfile.Index(path)
    index.check()
    for name in index.column_names:
        index.column(name).array()
    _ = index.files(), index.fields, index.box_columns


@target("pack", _indexes)
def _pack(data: bytes) -> None:
    """Open and read a pack whose index is damaged and has the sums of a good one."""
    path = _small_pack().with_name("z.tar.packio")
    path.write_bytes(data)
    tar = path.with_suffix("")
    if not tar.exists():
        os.link(_small_pack().with_suffix(""), tar)
        sidecar = _small_pack().with_name("x.tar.idx")
        if sidecar.exists():
            os.link(sidecar, path.with_name("z.tar.idx"))
    with packio.open(tar) as pack:
        for sample in pack:
            _ = sample.data, sample.label, sample.key, sample.fields, sample.meta


# ------------------------------------------------------------------------------------ single values


@target("pickle", lambda: [pickle.dumps(v, p) for p in (0, 2, 4) for v in _VALUES], MalformedError)
def _pickle(data: bytes) -> None:
    pickles.read_pickle(data)


_VALUES: list[object] = [
    {"image": PHOTO[:200], "label": 3, "more": [1, 2.5, None, True, ("a", "b")]},
    [PHOTO[:100], 7],
]


@target("arrow", lambda: [_arrow()], MalformedError)
def _arrow_value(data: bytes) -> None:
    lmdb_values.arrow(data)


def _arrow() -> bytes:
    held = pa.BufferOutputStream()
    batch = pa.record_batch({"image": pa.array([PHOTO[:200]]), "label": pa.array([3], pa.int64())})
    with pa.ipc.new_stream(held, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(held.getvalue().to_pybytes())


@target("protobuf", lambda: [example(), example(b"\x12\x06\x0a\x04\0\0\x80\x3f")], MalformedError)
def _protobuf(data: bytes) -> None:
    found = protobuf.Example(data)
    for key in (b"image/encoded", b"image/class/label"):
        _ = found.lists(key), found.single(key), found.numbers(key)


# ------------------------------------------------------------------------------------------- JPEG


def _jpegs() -> list[bytes]:
    image = Image.open(io.BytesIO(photo(2, 64)))
    out = [photo(0, 64)]
    for options in ({"progressive": True}, {"subsampling": 0}, {"restart_marker_rows": 1}):
        held = io.BytesIO()
        image.save(held, "JPEG", quality=80, **options)
        out.append(held.getvalue())
    held = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(held, "JPEG", exif=exif)
    return [*out, held.getvalue()]


@target("jpeg header", _jpegs)
def _jpeg_header(data: bytes) -> None:
    encodings.parse_jpeg(data)
    encodings.read_facts(data)


# -------------------------------------------------------------------------------------------- PNG


@target("png", png_parts.seeds, sealed=png_parts.sealed)
def _png(data: bytes) -> None:
    """What is taken has Pillow's pixels; all else is left to Pillow."""
    pixels = png.decode(data, png_parts.ALL)
    if pixels is not None:
        np.testing.assert_array_equal(pixels, png_parts.of_pillow(data))


@target("lmdb value", lambda: [msgpack.packb([PHOTO[:200], 3]), pickle.dumps(_VALUES[0])])
def _lmdb_value(data: bytes) -> None:
    path = _scratch() / "v.lmdb"
    with lmdb.open(str(path), map_size=1 << 20, sync=False) as env, env.begin(write=True) as txn:
        txn.put(b"0", data)
    _scanned("lmdb", path)


def each() -> Iterator[tuple[str, Target]]:
    """All targets, by name."""
    yield from sorted(TARGETS.items())
