"""Values of variable length in HDF5 files: as h5py writes them, and heaps that are damaged."""

from __future__ import annotations

import functools
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import made
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import packio
from packio import errors
from packio.formats import Reading, hdf5
from packio.formats.blobs import ranges
from packio.formats.hdf5 import datasets, foreign

h5py: Any = pytest.importorskip("h5py")

pytestmark = pytest.mark.usefixtures("hdf5_indexed_here")

_COUNT = 30
_BYTES = h5py.vlen_dtype(np.uint8)
_PIXELS = np.random.default_rng(5).integers(0, 256, (_COUNT, 8, 6, 3), np.uint8)


@functools.cache
def _values() -> list[bytes]:
    """PNGs of very different lengths: bytes behind the end of one are ignored."""
    draw = random.Random(3)
    sizes = draw.choices((0, 1, 8, 100, 5000, 70_000), k=len(_PIXELS))
    return [
        made.saved(pixels) + draw.randbytes(size)
        for pixels, size in zip(_PIXELS, sizes, strict=True)
    ]


def _fill(file: Any, **options: Any) -> None:
    images = file.create_dataset("images", (_COUNT,), _BYTES, **options)
    for i, value in enumerate(_values()):
        images[i] = np.frombuffer(value, np.uint8)
    file["labels"] = np.arange(_COUNT)


def _made(path: Path, *, chunked: dict[str, Any] | None = None, **options: Any) -> Path:
    with h5py.File(path, "w", **options) as file:
        _fill(file, **(chunked or {}))
    return path


def _rewritten(path: Path) -> Path:
    """Values that were replaced by longer and shorter ones, so that the heaps have holes."""
    with h5py.File(_made(path), "a") as file:
        for i in (*range(0, _COUNT, 2), *range(0, _COUNT, 5)):
            file["images"][i] = np.frombuffer(_values()[i - 1], np.uint8)
        for i in range(_COUNT):
            file["images"][i] = np.frombuffer(_values()[i], np.uint8)
    return path


def _of_small_addresses(path: Path) -> Path:
    properties = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    properties.set_sizes(4, 4)
    made = h5py.h5f.create(bytes(path), h5py.h5f.ACC_TRUNC, properties)
    with h5py.File(made) as file:
        _fill(file)
    return path


def _signed(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        images = file.create_dataset("images", (_COUNT,), h5py.vlen_dtype(np.int8))
        for i, value in enumerate(_values()):
            images[i] = np.frombuffer(value, np.int8)
        file["labels"] = np.arange(_COUNT)
    return path


_GROWING = {"chunks": (7,), "maxshape": (None,)}
_GZIP = {"chunks": (7,), "compression": "gzip"}
_FILES: dict[str, Callable[[Path], Path]] = {
    "plain": _made,
    "growing": functools.partial(_made, chunked=_GROWING),
    "latest": functools.partial(_made, libver="latest"),
    "latest, growing": functools.partial(_made, libver="latest", chunked=_GROWING),
    "user block": functools.partial(_made, userblock_size=1024),
    "rewritten": _rewritten,
    "small addresses": _of_small_addresses,
    "signed": _signed,
}


_COMPRESSED: dict[str, Callable[[Path], Path]] = {
    "gzip": functools.partial(_made, chunked=_GZIP),
    "gzip and shuffle": functools.partial(_made, chunked={**_GZIP, "shuffle": True}),
    "user block, gzip": functools.partial(_made, userblock_size=1024, chunked=_GZIP),
}


@pytest.mark.parametrize("name", _FILES)
def test_values_are_ranges_of_the_file(tmp_path: Path, name: str) -> None:
    path = _FILES[name](tmp_path / "a.h5")
    content = path.read_bytes()
    places = [record.image for record in hdf5.FORMAT.scan(path, Reading())]
    assert [content[p.offset : p.offset + p.length] for p in places] == _values()
    with h5py.File(path) as file:
        assert [value.tobytes() for value in file["images"]] == _values()


@pytest.mark.parametrize("name", _COMPRESSED)
def test_h5py_reads_values_whose_references_are_compressed(tmp_path: Path, name: str) -> None:
    path = _COMPRESSED[name](tmp_path / "a.h5")
    assert {record.image.offset for record in hdf5.FORMAT.scan(path, Reading())} == {-1}
    with packio.open(path) as pack:
        assert [sample.data for sample in pack] == _values()


def test_they_are_read_without_h5py(tmp_path: Path) -> None:
    path = _made(tmp_path / "a.h5")
    packio.reindex(path)
    code = (
        "import sys; sys.modules['h5py'] = None\n"
        "import packio\n"
        "pack = packio.open(sys.argv[1])\n"
        "print(pack.access, sum(len(sample.data) for sample in pack))"
    )
    assert made.in_a_process(code, path) == f"range {sum(map(len, _values()))}\n"


def test_a_changed_value_is_refused_by_its_checksum(tmp_path: Path) -> None:
    path = _made(tmp_path / "a.h5")
    packio.reindex(path)
    content = bytearray(path.read_bytes())
    content[content.index(_values()[3]) + 50] ^= 1
    path.write_bytes(content)
    with packio.open(path) as pack:
        assert pack[2].data == _values()[2]
        with pytest.raises(errors.IntegrityError, match=r"record 3 .*CRC32C differs"):
            pack[3]


@pytest.mark.parametrize("name", ["plain", "gzip"])
def test_they_convert_and_verify(tmp_path: Path, name: str) -> None:
    path = {**_FILES, **_COMPRESSED}[name](tmp_path / "a.h5")
    out = packio.convert(path, tmp_path / "b.lmdb").out
    packio.reindex(path)
    for pack in (path, out):
        assert packio.verify(pack, decode=True).ok
        with packio.open(pack) as opened:
            assert [sample.data for sample in opened] == _values()
            assert [sample.label for sample in opened] == list(range(_COUNT))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_read_them(tmp_path: Path, method: str) -> None:
    ds = packio.PackDataset(_made(tmp_path / "a.h5"))
    loader: DataLoader[Any] = DataLoader(
        ds, batch_size=7, num_workers=1, multiprocessing_context=method
    )
    batches = list(loader)
    found = torch.cat([images for images, _ in batches]).permute(0, 2, 3, 1)
    assert np.array_equal(found.numpy(), _PIXELS)
    assert torch.cat([labels for _, labels in batches]).tolist() == list(range(_COUNT))


def test_where_h5py_finds_other_bytes_it_reads_them(tmp_path: Path) -> None:
    path = _made(tmp_path / "a.h5")
    with h5py.File(path) as file:
        others = {4: b"other", 9: b""}
        found = foreign._compared(
            file["images"], path, lambda number: others.get(number, _values()[number])
        )
        places = [record.image for record in found]
    assert [i for i, place in enumerate(places) if place.offset < 0] == [4, 9]


# Heaps made here, from the specification

_SIZES = datasets.Sizes(8, 8, 0)


def _object(number: int, value: bytes, size: int | None = None) -> bytes:
    header = struct.pack("<HHIQ", number, 1, 0, len(value) if size is None else size)
    return header + value + bytes(-len(value) % 8)


def _collection(*objects: bytes, size: int | None = None, start: bytes = b"GCOL\1\0\0\0") -> bytes:
    content = b"".join(objects)
    return start + struct.pack("<Q", 16 + len(content) if size is None else size) + content


def _found(path: Path, content: bytes, *references: tuple[int, int, int]) -> list[bytes]:
    path.write_bytes(content)
    with ranges.open_input(path, 4096) as file:
        offsets, lengths = datasets.find_values(
            file, np.array([*references], _SIZES.reference), _SIZES
        )
    return [content[o : o + n] for o, n in zip(offsets.tolist(), lengths.tolist(), strict=True)]


def test_objects_are_found_by_their_numbers(tmp_path: Path) -> None:
    first = _collection(_object(7, b"seven"), _object(2, b"two"), _object(0, b"", 48), bytes(32))
    second = _collection(_object(0, b"", 16), _object(1, b"x" * 5000), bytes(8))
    at = len(first)
    found = _found(
        tmp_path / "a", first + second,
        (3, 0, 2), (5000, at, 1), (0, 0, 0), (5, 0, 7), (3, 0, 2), (0, 2**64 - 1, 9),
    )  # fmt: skip
    assert found == [b"two", b"x" * 5000, b"", b"seven", b"two", b""]


_GOOD = _collection(_object(1, b"one"), _object(2, b"second"))


@pytest.mark.parametrize(
    ("content", "references"),
    [
        (_GOOD, [(3, 8, 1)]),
        (_GOOD, [(3, len(_GOOD), 1)]),
        (_GOOD, [(3, 2**64 - 8, 1)]),
        (_GOOD, [(3, 0, 3)]),
        (_GOOD, [(3, 0, 2**32 - 1)]),
        (_GOOD, [(4, 0, 1)]),
        (_GOOD, [(2**32 - 1, 0, 1)]),
        (_GOOD[:-9], [(3, 0, 1)]),
        (_collection(_object(1, b"one"), start=b"GCOL\2\0\0\0"), [(3, 0, 1)]),
        (_collection(_object(1, b"one"), start=b"HCOL\1\0\0\0"), [(3, 0, 1)]),
        (_collection(_object(1, b"one"), size=15), [(3, 0, 1)]),
        (_collection(_object(1, b"one"), size=2**64 - 1), [(3, 0, 1)]),
        (_collection(_object(1, b"one"), size=32), [(3, 0, 1)]),
        (_collection(_object(1, b"one", 2**64 - 1)), [(3, 0, 1)]),
        (_collection(_object(0, b"one", 0), _object(1, b"one")), [(3, 0, 1)]),
        (_collection(_object(0, b"", 2**64 - 1), _object(1, b"one")), [(3, 0, 1)]),
        (_collection(_object(2, b"a"), _object(2, b"b")), [(1, 0, 2), (1, 0, 1)]),
        (_collection(_collection(_object(1, b"one")), size=40), [(3, 16, 1), (3, 0, 1)]),
    ],
    ids=range(18),
)  # fmt: skip
def test_a_damaged_heap_is_refused(
    tmp_path: Path, content: bytes, references: list[tuple[int, int, int]]
) -> None:
    with pytest.raises(errors.IntegrityError, match=r"a: the heap at \d+ "):
        _found(tmp_path / "a", content, *references)


def test_heaps_that_overlap_are_refused(tmp_path: Path) -> None:
    """Many that overlap would take for ever: each is walked from its begin to its end."""
    inner = _collection(_object(1, b"one"))
    outer = _collection(_object(3, b"three"), _object(5, inner))
    at = outer.index(inner)
    assert _found(tmp_path / "a", outer, (3, at, 1)) == [b"one"]
    with pytest.raises(errors.IntegrityError, match="overlaps another"):
        _found(tmp_path / "a", outer, (3, at, 1), (5, 0, 3))
