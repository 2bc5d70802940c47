"""Find the samples of an HDF5 file, by packio or by others; see `packio.formats.hdf5`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from packio import registry
from packio.errors import IntegrityError, NotAPackError
from packio.formats import Reading
from packio.formats.blobs import one_file
from packio.formats.blobs.by_library import FoundSamples
from packio.formats.blobs.columns import prefix, read_header
from packio.formats.hdf5 import foreign
from packio.formats.hdf5.datasets import h5py_errors, open_file, opened, place, slices
from packio.sample.record import IMAGE, Place, Record
from packio.system import files

_CONVERT = "convert it: h5repack -l CONTI -f NONE old.h5 new.h5"


def scan(path: Path, reading: Reading) -> Iterator[Record[Place]]:
    """Yield the record of every sample; see `packio.formats.Format.scan`."""
    with opened(path) as file:
        yield from _found(file, path, reading).records


def find(path: Path, reading: Reading) -> FoundSamples:
    """Open a file for reading images that are no range of bytes."""
    file = open_file(path)
    with h5py_errors(path):
        found = _found(file, path, reading)
    return found._replace(read=functools.partial(_read, file, path, found.read))


def _read(_: Any, path: Path, read: Callable[[int], bytes], number: int) -> bytes:
    """Read an image; the first argument keeps the file open."""
    with h5py_errors(f"{path}: sample {number}"):
        return read(number)


def _found(file: Any, path: Path, reading: Reading) -> FoundSamples:
    if "packio" in file.attrs and reading.image is None:
        return _own(file, path)
    return foreign.found(file, path, reading)


def _own(file: Any, path: Path) -> FoundSamples:
    text = file.attrs["packio"]
    if isinstance(text, bytes):  # so h5py gives strings of fixed length
        text = text.decode("ascii")
    header = read_header(text, "hdf5", path)
    arrays = {name: _contiguous(file[name], path) for name in _there(file, header.arrays, path)}
    blob_names = {f"{prefix(name)}data": name for name in header.kinds}
    there = _there(file, blob_names, path)
    blobs = {blob_names[name]: _one_range(file[name], path) for name in there}
    pixels = None
    if IMAGE in blobs and len(file["data"].shape or ()) > 1:
        pixels = file["data"].shape, str(file["data"].dtype)
    columns, found = one_file.find(path, header, arrays, blobs, pixels)
    if pixels is None:
        return FoundSamples(len(columns), found, slices(file["data"], columns.values[IMAGE]))
    return FoundSamples(len(columns), found, lambda number: file["data"][number].tobytes())


def _there(file: Any, names: Any, path: Path) -> Iterator[str]:
    """Yield the names at the root that are datasets of this file."""
    h5py = registry.require("h5py", "hdf5")
    for name in names:
        if isinstance(file.get(name, getlink=True), h5py.HardLink):
            if not isinstance(file[name], h5py.Dataset):
                raise IntegrityError(f"{path}: {name} is no dataset; restore or repack the file")
            yield name


def _one_range(dataset: Any, path: Path) -> tuple[int, int]:
    placed = place(dataset, path)
    if placed is None:
        raise NotAPackError(
            f"{path}: {dataset.name} is not one range of bytes of this file (it is chunked, "
            f"compressed or compact); {_CONVERT}"
        )
    return placed


def _contiguous(dataset: Any, path: Path) -> np.ndarray:
    offset, size = _one_range(dataset, path)
    if dataset.dtype.hasobject:
        raise IntegrityError(f"{path}: {dataset.name} is of variable length, which it never is")
    with files.opened(path) as file:
        file.seek(offset)
        content = file.read(size)
    if len(content) < size:
        raise IntegrityError(f"{path}: {dataset.name} is cut off; the file shrinks")
    values: np.ndarray = np.frombuffer(content, dataset.dtype).reshape(dataset.shape)
    return values
