"""N5 and Zarr for the tests that hold for both: packio's writer, others' readers and writers."""

from __future__ import annotations

import functools
import hashlib
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import made
import numpy as np
import pytest

from packio.formats import Written, n5
from packio.formats import zarr as zarr_format

tensorstore: Any = pytest.importorskip("tensorstore")
z5py: Any = pytest.importorskip("z5py")
zarr: Any = pytest.importorskip("zarr", minversion="3")

SIZES = [0, 10, 600, 500, 0, 999, 1, 0, 1000, 0, 3, 700, 7, 0]


def records(sizes: Iterable[int], **fields: Any) -> list[made.Made]:
    """Records of random bytes; fields are functions of their numbers."""
    rng = random.Random(0)
    found = []
    for i, size in enumerate(sizes):
        values = {name: make(i) for name, make in fields.items()}
        found.append(
            made.record(rng.randbytes(size), **{"label": i % 7, "key": b"%d.jpg" % i, **values})
        )
    return found


def full(sizes: Iterable[int]) -> list[made.Made]:
    """Records that have all there is; 14 of them make no array square."""
    return records(
        sizes,
        label=lambda i: np.array([i, i + 0.5, -i], np.float32),
        key=lambda i: b"\xff\n%d" % i,
        mask=lambda i: bytes([i]) * (i * 37),
        meta=lambda i: b'{"n":%d}' % i,
        boxes=lambda i: np.arange(4 * (i % 3), dtype=np.float32).reshape(-1, 4) + i,
        box_labels=lambda i: np.arange(i % 3) - i,
    )


def read(path: Path, entry: made.Found | tuple[str, int, int]) -> bytes:
    """The bytes of a sample, as the index would have them read."""
    file, offset, length = entry[1:4] if isinstance(entry, made.Found) else entry
    data = (path / file).read_bytes()[offset : offset + length]
    assert len(data) == length
    return data


def digests(path: Path) -> dict[str, str]:
    """Name → SHA-256 of each file in a folder."""
    files = [file for file in path.rglob("*") if file.is_file()]
    return {str(f.relative_to(path)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def mutations(value: Any, odd: list[Any]) -> Iterable[Any]:
    """Copies of a JSON value, each with one part of it left out, or replaced by an odd one."""
    yield from odd
    if isinstance(value, dict):
        for key, part in value.items():
            yield {k: v for k, v in value.items() if k != key}
            yield from ({**value, key: changed} for changed in mutations(part, odd))
    if isinstance(value, list):
        for i, part in enumerate(value):
            yield from ([*value[:i], changed, *value[i + 1 :]] for changed in mutations(part, odd))


def by_z5py(path: Path, name: str) -> Any:
    return z5py.File(str(path), "r")[name][:]


def by_zarr(path: Path, name: str) -> Any:
    return zarr.open_group(str(path), mode="r")[name][...]


def _by_tensorstore(driver: str, path: Path, name: str) -> Any:
    """Of N5, tensorstore shows the axes as they are on disk: in the other order than z5py."""
    store = {"driver": "file", "path": str(path / name)}
    values = tensorstore.open({"driver": driver, "kvstore": store}).result().read().result()
    return values.T if driver == "n5" else values


def n5_z5py(path: Path, name: str, values: Any, block: Any, compression: str = "raw") -> None:
    file = z5py.File(str(path), "a")
    dataset = file.create_dataset(
        name, shape=values.shape, chunks=block, dtype=values.dtype.name, compression=compression
    )
    dataset[:] = values


def _n5_tensorstore(path: Path, name: str, values: Any, block: Any) -> None:
    metadata = {
        "dimensions": values.shape[::-1], "blockSize": block[::-1],
        "dataType": values.dtype.name, "compression": {"type": "raw"},
    }  # fmt: skip
    _write_tensorstore("n5", path / name, metadata, values.T)


def _zarr_tensorstore(path: Path, name: str, values: Any, chunks: Any) -> None:
    metadata = {
        "shape": values.shape, "data_type": values.dtype.name, "codecs": [{"name": "bytes"}],
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
    }  # fmt: skip
    _write_tensorstore("zarr3", path / name, metadata, values)


def _write_tensorstore(driver: str, path: Path, metadata: dict[str, Any], values: Any) -> None:
    store = {"driver": "file", "path": str(path)}
    spec = {"driver": driver, "kvstore": store, "create": True, "metadata": metadata}
    tensorstore.open(spec).result()[...].write(values).result()


def zarr_zarr(path: Path, name: str, values: Any, chunks: Any, **options: Any) -> None:
    group = zarr.open_group(str(path), mode="a", zarr_format=options.pop("zarr_format", 3))
    given = {"compressors": None, **options}
    array = group.create_array(name, shape=values.shape, chunks=chunks, dtype=values.dtype, **given)
    array[...] = values


def _zarr_z5py(path: Path, name: str, values: Any, chunks: Any) -> None:
    z5py.ZarrFile(str(path), "a", zarr_format=3).create_dataset(
        name, shape=values.shape, chunks=chunks, dtype=values.dtype.name, compression="raw"
    )[:] = values


class Kind(NamedTuple):
    """One of the two formats."""

    form: Any
    name: str  # of a container
    metadata: str  # file that describes an array
    blocks: str  # what the names of blocks begin with
    begin: int  # of the values in a block
    header: str  # "format" of the text packio
    peers: dict[str, Callable[[Path, str], Any]]  # others' readers
    creators: dict[str, Callable[..., None]]  # others' writers

    def write(
        self, path: Path, made_records: list[made.Made], step: int = 64, **options: Any
    ) -> Written:
        """Write a container."""
        return made.write(self.form, path, made_records, step, **options)

    def scan(self, path: Path) -> list[made.Found]:
        """Scan a container."""
        return list(made.scanned(self.form, path))


def _named(separator: str, name: str) -> Callable[..., None]:
    return functools.partial(zarr_zarr, chunk_key_encoding={"name": name, "separator": separator})


N5 = Kind(
    n5.FORMAT, "a.n5", "attributes.json", "", 8, "n5",
    {"z5py": by_z5py, "tensorstore": functools.partial(_by_tensorstore, "n5")},
    {"z5py": n5_z5py, "tensorstore": _n5_tensorstore},
)  # fmt: skip
ZARR = Kind(
    zarr_format.FORMAT, "a.zarr", "zarr.json", "c/", 0, "zarr",
    {"zarr": by_zarr, "tensorstore": functools.partial(_by_tensorstore, "zarr3"), "z5py": by_z5py},
    {
        "zarr": zarr_zarr, "dots": _named(".", "default"), "v2 dots": _named(".", "v2"),
        "v2 slashes": _named("/", "v2"),
        "big-endian": functools.partial(zarr_zarr, serializer=zarr.codecs.BytesCodec(endian="big")),
        "tensorstore": _zarr_tensorstore, "z5py": _zarr_z5py,
    },
)  # fmt: skip
KINDS = {"n5": N5, "zarr": ZARR}
