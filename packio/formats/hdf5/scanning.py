"""Find the samples of an HDF5 file, by packio or by others; see `packio.formats.hdf5`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from packio import registry
from packio.errors import IntegrityError, NotAPackError
from packio.formats import Entry
from packio.formats.blobs import by_library, one_file
from packio.formats.blobs.by_library import Found
from packio.formats.blobs.columns import Columns, check_header
from packio.formats.hdf5 import foreign
from packio.formats.hdf5.datasets import h5py_errors, open_file, opened, place, rows, slices

_CONVERT = "convert it: h5repack -l CONTI -f NONE old.h5 new.h5"


def scan(
    path: Path, *, image: str | None = None, label: str | None = None, layout: str = ""
) -> Iterator[Entry]:
    """Yield an entry for every sample.

    `packio.formats.hdf5.foreign` says which files of others are read.

    Args:
        path: Of the file.
        image: Path within the file of the dataset of images, or of the group that has one for each.
        label: Path within the file of the labels; "" takes none.
        layout: Order of pixels; see `packio.formats.blobs.pixels`.

    Raises:
        NotAPackError: the file is not HDF5, or has no samples.
        IntegrityError: the file is damaged.
        OptionError: the file has no dataset of a given name.
        ReadError: the file cannot be read.
        MissingPackageError: h5py does not load.
    """
    with opened(path) as file:
        yield from _found(file, path, image, label, layout).entries


class Reader(by_library.Reader):
    """Read samples that are no byte range: compressed, of variable length, or in several chunks."""

    def find(self) -> Found:
        """Open the file."""
        file = open_file(self.path)
        with h5py_errors(self.path):
            found = _found(file, self.path, self.image, "", self.layout)
        return found._replace(read=functools.partial(_read, file, self.path, found.read))


def _read(_: Any, path: Path, read: Callable[[int], bytes], number: int) -> bytes:
    """Read a sample; the first argument keeps the file open."""
    with h5py_errors(f"{path}: sample {number}"):
        return read(number)


def _found(file: Any, path: Path, image: str | None, label: str | None, layout: str) -> Found:
    if "packio" in file.attrs and image is None:
        return _own(file, path)
    return foreign.found(file, path, image, label, layout)


def _own(file: Any, path: Path) -> Found:
    h5py = registry.require("h5py", "hdf5")
    text = file.attrs["packio"]
    if isinstance(text, bytes):  # so h5py gives strings of fixed length
        text = text.decode("ascii")
    check_header(text if isinstance(text, str) else "", "hdf5", path)
    arrays: dict[str, np.ndarray] = {}
    blobs: dict[str, tuple[int, int]] = {}
    for name in (*Columns._fields, *one_file.BLOBS):
        if not isinstance(file.get(name, getlink=True), h5py.HardLink):
            continue
        dataset = file[name]
        if not isinstance(dataset, h5py.Dataset):
            raise IntegrityError(f"{path}: {name} is no dataset; restore or repack the file")
        if name in one_file.BLOBS:
            blobs[name] = _one_range(dataset, path)
        else:
            arrays[name] = _contiguous(dataset, path)
    pixels = None
    if "data" in file and len(file["data"].shape or ()) > 1:
        pixels = file["data"].shape, str(file["data"].dtype)
    found = one_file.find(path, arrays, blobs, pixels)
    read = rows(file["data"]) if found.are_pixels else slices(file["data"], found.columns)
    return Found(len(found.columns.length), found.entries, read)


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
    with path.open("rb") as file:
        file.seek(offset)
        content = file.read(size)
    if len(content) < size:
        raise IntegrityError(f"{path}: {dataset.name} is cut off; the file shrinks")
    values: np.ndarray = np.frombuffer(content, dataset.dtype).reshape(dataset.shape)
    return values
