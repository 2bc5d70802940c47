"""HDF5 files opened by h5py, and where the bytes of their datasets lie.

pyfive, which reads HDF5 without the HDF5 library, cannot take h5py's place: pyfive 1.3.0 fails on
chunked datasets of libver="latest", null dataspaces and links to other files, does not read
sequences of variable length, gives wrong offsets in files with a user block, and wrong values for
virtual datasets. Listing 4,000 chunks takes 230 ms instead of 2 ms.

A dataset of values of variable length holds a reference to each: u32 how many items the value has,
the address of a global heap collection, u32 the number of an object in the collection. The value is
that object, which is one range of bytes. A collection is, all of it little-endian, A and L bytes
being the sizes of addresses and lengths that the superblock names (8 and 8)::

    "GCOL"   u8 version 1   3 bytes unused   uL bytes of the collection, with all of this
    and objects: u16 number   u16 references   4 bytes unused   uL bytes of the value   the value

Each of the two headers, and each value, is filled up to a multiple of 8 bytes. Object 0 is the room
that is left. Addresses count from where the superblock says, the end of a user block.

Source: HDF5 File Format Specification, version 3.0, III.E "Global Heap" and IV.A.2.d "Datatype
Message", variable-length types.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packio import registry
from packio.errors import IntegrityError, NotAPackError, PackioError, ReadError
from packio.formats import damage_error
from packio.formats.blobs import ranges
from packio.formats.blobs.columns import BlobValues
from packio.formats.blobs.pixels import check_claim
from packio.formats.blobs.ranges import Input
from packio.system import files

# What h5py raises for damaged files.
_H5PY_ERRORS = (
    ArithmeticError, AttributeError, LookupError, MemoryError, OSError, RuntimeError, SystemError,
    TypeError, ValueError,
)  # fmt: skip
_GAP = 8  # bytes: a multiple of it is where headers and values begin
_WINDOW = 4096  # bytes: as large as most heaps are


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


def chunk_offsets(dataset: Any, path: Path, itemsize: int | None = None) -> np.ndarray | None:
    """Where chunks lie, (chunks,) int64 bytes; None: they are filtered, or are no whole rows."""
    filters = dataset.id.get_create_plist().get_nfilters()
    whole = dataset.chunks is not None and dataset.chunks[1:] == dataset.shape[1:]
    if not whole or filters or not is_plain(dataset):
        return None
    size = math.prod(dataset.chunks) * (itemsize or dataset.dtype.itemsize)
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


class Sizes(NamedTuple):
    address: int  # bytes
    length: int  # bytes
    base: int  # where addresses count from

    @property
    def reference(self) -> np.dtype:
        return np.dtype([("items", "<u4"), ("heap", f"<u{self.address}"), ("number", "<u4")])


def find_values(file: Input, references: np.ndarray, sizes: Sizes) -> tuple[np.ndarray, np.ndarray]:
    """Offset and length of each value, (N,) int64 bytes. An empty value is at 0.

    Each collection is read once, and no two may overlap, so that the work is bounded by the file.
    """
    offsets = np.zeros(len(references), np.int64)
    lengths = references["items"].astype(np.int64)
    heaps = references["heap"]
    order = np.argsort(heaps, kind="stable")
    order = order[lengths[order] > 0]
    end = 0
    for some in np.split(order, np.flatnonzero(np.diff(heaps[order])) + 1) if len(order) else []:
        at = sizes.base + heaps.item(some[0])
        if at < end:
            raise _damaged(file, at, "overlaps another")
        found, end = _objects(file, at, {*references["number"][some].tolist()}, sizes)
        for row, number in zip(some.tolist(), references["number"][some].tolist(), strict=True):
            place = found.get(number)
            if place is None or place[1] != lengths[row]:
                raise _damaged(file, at, f"has no object {number} of {lengths[row]} bytes")
            offsets[row] = place[0]
    return offsets, lengths


def _objects(
    file: Input, at: int, wanted: set[int], sizes: Sizes
) -> tuple[dict[int, tuple[int, int]], int]:
    """Where some objects of a collection lie, and where the collection ends."""
    header = _whole(8 + sizes.length)  # of the collection, and of each object
    content = file.read(header, at) if at + header <= file.size else b""
    size = int.from_bytes(content[8 : 8 + sizes.length], "little")
    end = at + size
    if content[:5] != b"GCOL\x01" or not header <= size <= file.size - at:
        raise _damaged(file, at, f"begins {content.hex() or 'outside the file'}")
    found: dict[int, tuple[int, int]] = {}
    place = at + header
    while len(found) < len(wanted) and place + header <= end:
        content = file.read(header, place)
        number = int.from_bytes(content[:2], "little")
        size = int.from_bytes(content[8 : 8 + sizes.length], "little")
        if number == 0:  # the room that is left: its size includes its header
            place += max(size, header)
            continue
        place += header
        if size > end - place or number in found:
            raise _damaged(file, at, f"has an object {number} of {size} bytes")
        if number in wanted:
            found[number] = place, size
        place += _whole(size)
    return found, end


def _whole(size: int) -> int:
    return -(-size // _GAP) * _GAP


def _damaged(file: Input, at: int, what: str) -> IntegrityError:
    return damage_error(file.path, f"the heap at {at} {what}")


def value_ranges(dataset: Any, path: Path) -> tuple[np.ndarray, np.ndarray] | None:
    """Offset and length of each value of a dataset of bytes of variable length, (N,) int64 bytes.

    None if references are compressed, or stored in a way that is not known here: h5py reads them.
    """
    h5py = registry.require("h5py", "hdf5")
    kind = dataset.id.get_type().get_super()
    if kind not in (h5py.h5t.STD_U8LE, h5py.h5t.STD_I8LE):
        return None
    address, length = dataset.file.id.get_create_plist().get_sizes()
    sizes = Sizes(address, length, dataset.file.userblock_size)
    with ranges.open_input(path, _WINDOW) as file:
        content = _stored(dataset, file, sizes.reference.itemsize)
        if content is None:
            return None
        return find_values(file, np.frombuffer(content, sizes.reference), sizes)


def _stored(dataset: Any, file: Input, size: int) -> bytes | None:
    """The bytes of a one-dimensional dataset of items of a size, if it is not filtered."""
    whole = len(dataset) * size
    if not dataset.chunks:
        offset = dataset.id.get_offset()
        if offset is None or dataset.id.get_storage_size() != whole:
            return None
        return file.read(whole, offset)
    offsets = chunk_offsets(dataset, file.path, size) if whole else np.zeros(0, np.int64)
    if offsets is None:
        return None
    chunk = dataset.chunks[0] * size
    return b"".join(file.read(chunk, offset) for offset in offsets.tolist())[:whole]
