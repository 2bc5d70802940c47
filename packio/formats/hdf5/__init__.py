"""HDF5: one file, the samples in a single contiguous dataset of bytes, which any HDF5 tool opens.

What packio writes, at the root, is what `packio.formats.blobs.columns` describes: ``data``,
``offsets``, ``label``, ``key_data``, ``key_offsets``; ``mask_data``, ``mask_offsets``,
``meta_data``, ``meta_offsets``, ``boxes``, ``box_labels`` and ``box_offsets`` where the pack has
them; and an attribute ``packio`` of the root, an ASCII string (of fixed length up to 60,000
characters, else of variable length). All datasets are contiguous and unfiltered, so sample i is
``offsets[i]`` to ``offsets[i + 1]`` of the bytes that begin where H5Dget_offset says ``data`` does,
a multiple of 4,096. Everything is in the oldest form of the format (superblock version 0, as HDF5
1.0 to 2.0 read it), without time stamps. With h5py, sample i is::

    file["data"][file["offsets"][i] : file["offsets"][i + 1]].tobytes()

or, where ``data`` is an array of pixels, ``file["data"][i]``.

h5py makes the file's metadata in memory. The blob is written past it, with plain system calls: what
fails on a full disk is ours then, while HDF5 would crash the process.

What others write is read as well: `scan` points at what is a range of bytes, h5py reads the rest
(compressed, cut across the images, of variable length) through `Reader`.

Source: HDF5 File Format Specification, version 3.0,
https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np

from packio import registry
from packio.formats.blobs import one_file
from packio.formats.blobs.blob import Blob
from packio.formats.blobs.spool import Pixels
from packio.formats.hdf5.scanning import Reader, scan

__all__ = [
    "CRASHES", "EXTRA", "IS_DIRECTORY", "PACKAGE", "SUFFIXES", "Reader", "Writer", "scan",
]  # fmt: skip

SUFFIXES = (".h5", ".hdf5")
IS_DIRECTORY = False
PACKAGE = "h5py"
EXTRA = "hdf5"
CRASHES = True  # HDF5 dies of some damaged files: they are indexed in a process of their own

_ALIGNMENT = 4096  # bytes, of every dataset at least as large; there are only a few
_MOST_FIXED = 60_000  # bytes of an attribute in an object header, which has 64 KiB at most
_PAGE = 1 << 16  # bytes that `_Memory` holds in one piece

_Kind = tuple[tuple[int, ...], np.dtype]  # shape and type of a dataset


class Writer(one_file.Writer):
    """Write records into a new file; the same records give the same bytes."""

    container: ClassVar[str] = "hdf5"

    def __init__(self, path: Path, *, count: int, size: int, classes: Sequence[str] = ()) -> None:
        """Create the temporary files; see `packio.formats.blobs.one_file`."""
        self._h5py = registry.require(PACKAGE, EXTRA)
        super().__init__(path, count=count, size=size, classes=classes)

    def fill(
        self, file: IO[bytes], blobs: Mapping[str, Blob], arrays: Mapping[str, np.ndarray],
        pixels: Pixels | None, text: str,
    ) -> Mapping[str, int]:  # fmt: skip
        """Write the file; see `packio.formats.blobs.one_file`."""
        room: dict[str, _Kind] = {n: ((blob.size,), np.dtype("u1")) for n, blob in blobs.items()}
        if pixels is not None:
            room["data"] = pixels
        memory = _Memory()
        begins = _lay_out(self._h5py, memory, arrays, room, text)
        memory.save(file.fileno())
        for name, blob in blobs.items():
            blob.copy(file.fileno(), begins[name])
        return begins


def _lay_out(
    h5py: Any,
    memory: _Memory,
    arrays: Mapping[str, np.ndarray],
    room: Mapping[str, _Kind],
    text: str,
) -> dict[str, int]:
    """Make a file in memory, with room for further datasets; return where these begin."""
    begins = {}
    with h5py.File(
        memory, "w", alignment_threshold=_ALIGNMENT, alignment_interval=_ALIGNMENT
    ) as file:
        # Of variable length where it must: HDF5 2.0 can hang in a damaged heap of such values.
        fixed = h5py.string_dtype("utf-8", len(text)) if len(text) <= _MOST_FIXED else None
        file.attrs.create("packio", text, dtype=fixed or h5py.string_dtype())
        for name, array in arrays.items():
            dataset = _create(h5py, file, name, array.dtype, array.shape)
            if array.size:
                dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, np.ascontiguousarray(array))
        for name, (shape, dtype) in room.items():
            dataset = _create(h5py, file, name, dtype, shape)
            begins[name] = dataset.get_offset() or 0  # None: it has no bytes
    return begins


def _create(h5py: Any, file: Any, name: str, dtype: np.dtype, shape: tuple[int, ...]) -> Any:
    options = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    options.set_layout(h5py.h5d.CONTIGUOUS)
    options.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    options.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    options.set_obj_track_times(False)
    kind = h5py.h5t.py_create(dtype.newbyteorder("<"))
    space = h5py.h5s.create_simple(shape)
    return h5py.h5d.create(file.id, name.encode(), kind, space, options)


class _Memory:
    """A file in memory with holes, for h5py, which cannot run out of disk in it."""

    def __init__(self) -> None:
        self._pages: dict[int, bytearray] = {}
        self._position = self._size = 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = start + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def truncate(self, size: int) -> int:
        self._size = size
        return size

    def flush(self) -> None:
        pass

    def read(self, size: int) -> bytes:
        buffer = bytearray(size)
        self.readinto(buffer)
        return bytes(buffer)

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        for page, at, done, count in self._pieces(len(view)):
            piece = self._pages.get(page, bytes(_PAGE))
            view[done : done + count] = piece[at : at + count]
        self._position += len(view)
        return len(view)

    def write(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        for page, at, done, count in self._pieces(len(view)):
            piece = self._pages.setdefault(page, bytearray(_PAGE))
            piece[at : at + count] = view[done : done + count]
        self._position += len(view)
        self._size = max(self._size, self._position)
        return len(view)

    def _pieces(self, length: int) -> list[tuple[int, int, int, int]]:
        """Page, position in it, bytes done before, bytes; of a range at the position."""
        pieces, done = [], 0
        while done < length:
            page, at = divmod(self._position + done, _PAGE)
            count = min(_PAGE - at, length - done)
            pieces.append((page, at, done, count))
            done += count
        return pieces

    def save(self, descriptor: int) -> None:
        """Write it to an empty file, holes as holes."""
        os.ftruncate(descriptor, self._size)
        for page, content in sorted(self._pages.items()):
            begin = page * _PAGE
            view = memoryview(content)[: max(0, self._size - begin)]
            while view:
                count = os.pwrite(descriptor, view, begin)
                view, begin = view[count:], begin + count
