"""HDF5 files opened by h5py, and where the bytes of their datasets lie.

pyfive, which reads HDF5 without the HDF5 library, cannot take h5py's place: pyfive 1.3.0 fails on
chunked datasets of libver="latest", null dataspaces and links to other files, does not read
sequences of variable length, gives wrong offsets in files with a user block, and wrong values for
virtual datasets. Listing 4,000 chunks takes 230 ms instead of 2 ms.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from packio import registry
from packio.errors import IntegrityError, NotAPackError, PackioError, ReadError
from packio.formats import damage_error
from packio.formats.blobs.columns import BlobValues
from packio.formats.blobs.pixels import check_claim
from packio.system import files

# What h5py raises for damaged files.
_H5PY_ERRORS = (
    ArithmeticError, AttributeError, LookupError, MemoryError, OSError, RuntimeError, SystemError,
    TypeError, ValueError,
)  # fmt: skip


@contextlib.contextmanager
def open_checked(path: Path) -> Iterator[Any]:
    """Open a file; turn the errors of h5py into an IntegrityError until it is closed."""
    file = open_file(path)
    try:
        with h5py_errors(path):
            yield file
    finally:
        with contextlib.suppress(*_H5PY_ERRORS):
            file.close()


def open_file(path: Path) -> Any:
    h5py = registry.require("h5py", "hdf5")
    try:
        with files.open_file(path):  # its error says why; h5py's does not
            pass
    except OSError as error:
        raise ReadError(f"{path}: cannot be opened: {error.strerror}") from error
    try:
        return h5py.File(os.fsencode(path), "r", locking=False)
    except _H5PY_ERRORS as error:
        raise NotAPackError(f"{path}: h5py does not open it: {_line(error)}") from error


@contextlib.contextmanager
def h5py_errors(where: object) -> Iterator[None]:
    try:
        yield
    except PackioError:
        raise
    except _H5PY_ERRORS as error:
        raise damage_error(where, f"damaged, h5py says: {_line(error)}") from error


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def datasets(file: Any, path: Path) -> dict[str, Any]:
    """List all datasets by their paths, in the order of the file, without links to other files."""
    h5py = registry.require("h5py", "hdf5")
    found: dict[str, Any] = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            found[name] = item

    file.visititems(visit)
    if not found:
        raise NotAPackError(f"{path}: has no datasets")
    return found


def describe(dataset: Any) -> str:
    return f"{dataset.name.lstrip('/')} {dataset.shape} {dataset.dtype}"


def bytes_of(dataset: Any) -> int:
    """Bytes of the values of a dataset; for values of variable length, of the references."""
    if dataset.shape is None:  # of a null dataspace
        return 0
    return int(math.prod(dataset.shape) * dataset.dtype.itemsize)


def place(dataset: Any, path: Path) -> tuple[int, int] | None:
    """Tell where the bytes of a dataset lie: offset and size; None if they are not one range.

    The description of the dataset is checked, so that h5py may read its values afterwards.
    """
    size, end = bytes_of(dataset), path.stat().st_size
    if size == 0:
        return 0, 0
    where = f"{path}: {dataset.name}"
    if dataset.external or dataset.is_virtual:
        raise NotAPackError(
            f"{where} is external, its values lie in other files; copy them into it"
        )
    stored = dataset.id.get_storage_size()
    if stored > end:
        raise IntegrityError(f"{where} claims {stored} bytes of the {end} of the file")
    if dataset.chunks:
        _check_chunks(dataset, stored, where)
        return None
    if stored < size:
        raise IntegrityError(f"{where} has {stored} bytes of {size}; it was never written whole")
    offset = dataset.id.get_offset()
    if offset is None or not is_plain(dataset):  # None: they lie in the dataset's description
        return None
    if offset + size > end:
        raise damage_error(where, f"{size} bytes at {offset} end beyond the end of the file")
    return offset, size


def is_plain(dataset: Any) -> bool:
    """Tell whether numbers fill their bytes: HDF5 may keep 12 bits of 16, at any offset."""
    if dataset.dtype.kind not in "iuf":
        return True
    h5py = registry.require("h5py", "hdf5")
    return bool(dataset.id.get_type() == h5py.h5t.py_create(dataset.dtype))


def _check_chunks(dataset: Any, stored: int, where: str) -> None:
    rows = dataset.shape[0] if dataset.shape else 1
    expected = math.prod(-(-n // c) for n, c in zip(dataset.shape, dataset.chunks, strict=True))
    chunk = math.prod(dataset.chunks) * dataset.dtype.itemsize
    check_claim(rows, bytes_of(dataset) // rows, chunk, stored, where)
    count = dataset.id.get_num_chunks()
    if count != expected:
        raise IntegrityError(
            f"{where} has {count} of {expected} chunks; it was never written whole"
        )
    h5py = registry.require("h5py", "hdf5")
    filters = dataset.id.get_create_plist()
    for i in range(filters.get_nfilters()):
        number, _, _, name = filters.get_filter(i)
        if not h5py.h5z.filter_avail(number) and registry.is_installed("hdf5plugin"):
            registry.require("hdf5plugin")  # makes its filters known to HDF5
        if not h5py.h5z.filter_avail(number):
            raise NotAPackError(
                f"{where} is compressed by {name.decode(errors='replace')!r} (filter {number}), "
                "which h5py cannot undo here; try: pip install hdf5plugin"
            )


def chunk_offsets(dataset: Any, path: Path) -> np.ndarray | None:
    """Where chunks lie, (chunks,) int64 bytes; None: they are filtered, or are no whole rows."""
    filters = dataset.id.get_create_plist().get_nfilters()
    whole = dataset.chunks is not None and dataset.chunks[1:] == dataset.shape[1:]
    if not whole or filters or not is_plain(dataset):
        return None
    size = math.prod(dataset.chunks) * dataset.dtype.itemsize
    rows = dataset.chunks[0]
    infos: list[Any] = []
    dataset.id.chunk_iter(infos.append)
    infos.sort(key=lambda info: info.chunk_offset)
    found = np.array([info.byte_offset for info in infos], np.int64)
    begins = [info.chunk_offset[0] for info in infos]
    ordered = np.sort(found)
    if (
        begins != list(range(0, dataset.shape[0], rows))
        or any(info.size != size for info in infos)
        or ordered[0] < 0
        or ordered[-1] + size > path.stat().st_size
        or (np.diff(ordered) < size).any()
    ):
        raise damage_error(path, f"{dataset.name} has chunks that overlap, or that lie outside")
    return found


def slices(data: Any, values: BlobValues) -> Callable[[int], bytes]:
    def read(number: int) -> bytes:
        begin = values.offsets.item(number)
        return bytes(data[begin : begin + values.length.item(number)].tobytes())

    return read
