"""Finding the samples of an HDF5 file, ours or another's; see `packio.formats.hdf5`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from packio import registry
from packio.errors import IntegrityError, NotAPackError, PackioError, ReadError
from packio.formats import Entry
from packio.formats._blob import Columns, check_header, columns_of, entries, one_file

# What blobs, their offsets and their labels are called elsewhere.
_DATA = ("data", "images", "image", "x", "X")
_OFFSETS = ("offsets", "offset", "indptr")
_LABELS = ("label", "labels", "target", "targets", "y", "Y")

_CONVERT = "convert it: h5repack -l CONTI -f NONE old.h5 new.h5"
# Whatever h5py makes of what HDF5 finds wrong in a file.
_H5PY_ERRORS = (
    ArithmeticError, AttributeError, LookupError, MemoryError, OSError, RuntimeError, SystemError,
    TypeError, ValueError,
)  # fmt: skip


def scan(path: Path) -> Iterator[Entry]:
    """Yield an entry for every sample.

    Of what others write: a one-dimensional blob of bytes with N + 1 offsets, and labels if there
    are any, in datasets of usual names; or one dataset of bytes for each image, whose path within
    the file is then the key.

    Raises:
        NotAPackError: no HDF5 file, or one without samples that are ranges of bytes.
        IntegrityError: the file is damaged.
        ReadError: the file cannot be read.
        MissingPackageError: h5py does not load.
    """
    h5py = registry.require("h5py", "hdf5")
    with _opened(h5py, path) as file:
        found: Iterator[Entry]
        if "packio" in file.attrs:
            found = _own(h5py, file, path)
        else:
            datasets = _datasets(h5py, file, path)
            blob = _usual(datasets)
            found = _foreign_blob(datasets, blob, path) if blob else _each(datasets, path)
    yield from found


@contextlib.contextmanager
def _opened(h5py: Any, path: Path) -> Iterator[Any]:
    """Open a file; what h5py raises while it is open is an IntegrityError."""
    try:
        with path.open("rb"):  # for the reasons that h5py does not tell
            pass
    except OSError as error:
        raise ReadError(f"{path}: cannot be opened: {error.strerror}") from error
    try:
        file = h5py.File(os.fsencode(path), "r", locking=False)
    except _H5PY_ERRORS as error:
        raise NotAPackError(f"{path}: h5py does not open it: {_line(error)}") from error
    try:
        yield file
    except PackioError:
        raise
    except _H5PY_ERRORS as error:
        raise IntegrityError(
            f"{path}: damaged, h5py says: {_line(error)}; restore or repack the file"
        ) from error
    finally:
        with contextlib.suppress(*_H5PY_ERRORS):
            file.close()


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _own(h5py: Any, file: Any, path: Path) -> Iterator[Entry]:
    text = file.attrs["packio"]
    if isinstance(text, bytes):  # so h5py gives strings of fixed length
        text = text.decode("ascii")
    check_header(text if isinstance(text, str) else "", "hdf5", path)
    arrays: dict[str, np.ndarray] = {}
    begins, sizes = {"data": 0, "mask_data": 0}, {"data": 0, "mask_data": 0}
    for name in (*Columns._fields, "data", "mask_data"):
        if not isinstance(file.get(name, getlink=True), h5py.HardLink):
            continue
        dataset = file[name]
        if not isinstance(dataset, h5py.Dataset):
            raise IntegrityError(f"{path}: {name} is no dataset; restore or repack the file")
        if name in begins:
            begins[name], sizes[name] = _place(dataset, path)
        else:
            arrays[name] = _contiguous(dataset, path)
    columns = columns_of(arrays, sizes["data"], sizes["mask_data"], path)
    return entries(columns, (path.name,), *one_file(columns, begins["data"], begins["mask_data"]))


def _place(dataset: Any, path: Path) -> tuple[int, int]:
    """Where the bytes of a contiguous dataset lie in the file: offset and size, checked."""
    size = dataset.size
    if size is None:  # of a null dataspace
        size = 0
    size *= dataset.dtype.itemsize
    if size == 0:
        return 0, 0
    offset = dataset.id.get_offset()
    if offset is None or dataset.chunks or dataset.external or dataset.is_virtual:
        raise NotAPackError(
            f"{path}: {dataset.name} is not one range of bytes of this file (it is chunked, "
            f"compressed, compact, external or not written); {_CONVERT}"
        )
    if offset + size > path.stat().st_size:
        raise IntegrityError(
            f"{path}: {dataset.name} lies at {offset} with {size} bytes, beyond the end of the "
            "file; restore or repack the file"
        )
    return offset, size


def _contiguous(dataset: Any, path: Path) -> np.ndarray:
    offset, size = _place(dataset, path)
    if dataset.dtype.hasobject:
        raise IntegrityError(f"{path}: {dataset.name} is of variable length, which it never is")
    with path.open("rb") as file:
        file.seek(offset)
        content = file.read(size)
    if len(content) < size:
        raise IntegrityError(f"{path}: {dataset.name} is cut off; the file shrinks")
    values: np.ndarray = np.frombuffer(content, dataset.dtype).reshape(dataset.shape)
    return values


def _datasets(h5py: Any, file: Any, path: Path) -> dict[str, Any]:
    """All datasets by their paths, in the order of the file; links to other files are not taken."""
    found: dict[str, Any] = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            found[name] = item

    file.visititems(visit)
    if not found:
        raise NotAPackError(f"{path}: has no datasets")
    return found


def _usual(datasets: Mapping[str, Any]) -> str | None:
    """The name of a blob, if there is one with offsets."""
    if not any(name in datasets for name in _OFFSETS):
        return None
    return next((n for n in _DATA if n in datasets and datasets[n].ndim == 1), None)


def _foreign_blob(datasets: Mapping[str, Any], name: str, path: Path) -> Iterator[Entry]:
    data = datasets[name]
    _check_bytes(data, path)
    begin, size = _place(data, path)
    arrays = {}
    for meaning, names in (("offsets", _OFFSETS), ("label", _LABELS)):
        dataset = next((datasets[n] for n in names if n in datasets), None)
        if dataset is None:
            continue
        if dataset.dtype.kind not in "iuf" or dataset.size > path.stat().st_size:
            raise NotAPackError(f"{path}: {dataset.name} is {dataset.dtype} {dataset.shape}")
        values = dataset[()]
        if meaning == "label" and values.ndim == 2 and values.shape[1] == 1:
            values = values[:, 0]
        vectors = meaning == "label" and values.ndim == 2
        if values.dtype.kind == "f" and not vectors:
            raise NotAPackError(f"{path}: {dataset.name} is {values.dtype}, integers are expected")
        arrays[meaning] = values.astype("f4" if vectors else "i8")
    columns = columns_of(arrays, size, 0, path)
    return entries(columns, (path.name,), *one_file(columns, begin, 0))


def _each(datasets: Mapping[str, Any], path: Path) -> Iterator[Entry]:
    """One dataset for each image."""
    found = []
    for name, dataset in datasets.items():
        _check_bytes(dataset, path)
        offset, size = _place(dataset, path)
        key = os.fsencode(name)
        found.append(Entry(key, path.name, offset, size, key=key))
    return iter(found)


def _check_bytes(dataset: Any, path: Path) -> None:
    """Check that a dataset can be the bytes of encoded images."""
    where, dtype = f"{path}: {dataset.name}", dataset.dtype
    if dtype.hasobject:
        raise NotAPackError(
            f"{where} is of variable length, so its values are not ranges of bytes that packio "
            "finds; extract the images with h5py and pack them"
        )
    if dataset.ndim >= 2:
        raise NotAPackError(
            f"{where} is {dtype} {dataset.shape}: raw pixel arrays are not read; encode its images "
            "(as PNG, without loss) and pack them"
        )
    is_bytes = dtype in ("u1", "i1") and dataset.ndim == 1
    if not (is_bytes or (dtype.kind == "V" and dtype.names is None and dataset.ndim == 0)):
        raise NotAPackError(
            f"{where} is {dtype} {dataset.shape}, not the bytes of an image; packio reads a blob "
            f"with offsets ({', '.join(_DATA)}; {', '.join(_OFFSETS)}) or a dataset for each image"
        )
