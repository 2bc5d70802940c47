"""Values of variable length: where each lies, found in the heaps of an HDF5 file without HDF5.

A dataset of such values holds a reference to each: u32 how many items the value has, the address of
a global heap collection, u32 the number of an object in the collection. The value is that object,
which is one range of bytes. A collection is, all of it little-endian, A and L bytes being the sizes
of addresses and lengths that the superblock names (8 and 8)::

    "GCOL"   u8 version 1   3 bytes unused   uL bytes of the collection, with all of this
    and objects: u16 number   u16 references   4 bytes unused   uL bytes of the value   the value

Each of the two headers, and each value, is filled up to a multiple of 8 bytes. Object 0 is the room
that is left. Addresses count from where the superblock says, the end of a user block.

Source: HDF5 File Format Specification, version 3.0, III.E "Global Heap" and IV.A.2.d "Datatype
Message", variable-length types.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packio import registry
from packio.errors import IntegrityError
from packio.formats.blobs import ranges
from packio.formats.blobs.ranges import Input

_GAP = 8  # bytes: a multiple of it is where headers and values begin
_WINDOW = 4096  # bytes: as large as most heaps are


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
    return IntegrityError(
        f"{file.path}: the heap at {at} {what}; restore the file, or write its images anew"
    )


def places(dataset: Any, path: Path) -> tuple[np.ndarray, np.ndarray] | None:
    """Offset and length of each value of a dataset of bytes of variable length, (N,) int64 bytes.

    None if references are compressed, or stored in a way that is not known here: h5py reads them.
    """
    h5py = registry.require("h5py", "hdf5")
    kind = dataset.id.get_type().get_super()
    if kind not in (h5py.h5t.STD_U8LE, h5py.h5t.STD_I8LE):
        return None
    address, length = dataset.file.id.get_create_plist().get_sizes()
    sizes = Sizes(address, length, dataset.file.userblock_size)
    with ranges.opened(path, _WINDOW) as file:
        content = _stored(dataset, file, sizes.reference.itemsize)
        if content is None:
            return None
        return find_values(file, np.frombuffer(content, sizes.reference), sizes)


def _stored(dataset: Any, file: Input, size: int) -> bytes | None:
    """The bytes of a one-dimensional dataset of items of a size, if it is not filtered."""
    whole, rows = len(dataset) * size, dataset.chunks[0] if dataset.chunks else 0
    if not rows:
        offset = dataset.id.get_offset()
        if offset is None or dataset.id.get_storage_size() != whole:
            return None
        return file.read(whole, offset)
    if dataset.id.get_create_plist().get_nfilters():
        return None
    content = bytearray(-(-len(dataset) // rows) * rows * size)
    infos: list[Any] = []
    dataset.id.chunk_iter(infos.append)
    for info in infos:
        at = info.chunk_offset[0] * size
        if info.size != rows * size or at % info.size or at + info.size > len(content):
            raise IntegrityError(f"{file.path}: {dataset.name} has a damaged chunk; restore it")
        content[at : at + info.size] = file.read(info.size, info.byte_offset)
    return bytes(content[:whole])
