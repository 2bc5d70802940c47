"""HDF5: one file, the images in a single contiguous dataset of bytes, which any HDF5 tool opens.

What packio writes, at the root, are datasets of the names in `packio.formats.blobs.columns`, as
``data``, ``offsets``, ``label``, ``mask_data`` and ``mask_offsets``; and an attribute ``packio`` of
the root, an ASCII string (of fixed length up to 60,000 characters, else of variable length). All
datasets are contiguous and unfiltered. Image i is ``offsets[i]`` to ``offsets[i + 1]`` of the bytes
that begin where H5Dget_offset says ``data`` does, a multiple of 4,096. Everything is in the oldest
form of the format (superblock version 0, as HDF5 1.0 to 2.0 read it), without time stamps. With
h5py, image i, and the value of the named field ``depth`` of the same sample, are::

    file["data"][file["offsets"][i] : file["offsets"][i + 1]].tobytes()
    file["depth_data"][file["depth_offsets"][i] : file["depth_offsets"][i + 1]].tobytes()

or, where ``data`` is an array of pixels, ``file["data"][i]``. If some samples have no ``depth``,
``file["depth_present"][i]`` says whether sample i has one.

h5py makes the file's metadata in memory. packio then writes the blobs itself, with plain system
calls: a full disk is an error of packio's, while HDF5 would crash the process.

Files of others are read too. An image that is a range of bytes is read as such; so are values of
variable length, which `packio.formats.hdf5.heaps` finds. h5py reads all other images (compressed,
cut across the images), in a process of its own, as a damaged file can crash HDF5.

Source: HDF5 File Format Specification, version 3.0,
https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np

from packio import registry
from packio.formats import Caps, Format, Reading
from packio.formats.blobs import one_file
from packio.formats.blobs.blob import Blob
from packio.formats.blobs.by_library import ReaderApart
from packio.formats.blobs.spool import Pixels
from packio.formats.hdf5 import scanning
from packio.sample.record import Place, Record

_ALIGNMENT = 4096  # bytes, of every dataset at least as large; there are only a few
_MOST_FIXED = 60_000  # bytes of an attribute in an object header, which has 64 KiB at most
_PAGE = 1 << 16  # bytes that `_Memory` holds in one piece

_Kind = tuple[tuple[int, ...], np.dtype]  # shape and type of a dataset


class Hdf5(Format):
    """HDF5 files."""

    caps: Caps = Caps(
        suffixes=(".h5", ".hdf5"), package="h5py", extra="hdf5", dies_of_damage=True,
        reads_by_library=True, keeps=frozenset(("key", "label", "meta", "boxes")), spooled=True,
    )  # fmt: skip

    def recognise(self, head: bytes, name: str) -> bool:
        """Tell whether a file is HDF5, by its signature or its suffix."""
        return head.startswith(b"\x89HDF\r\n\x1a\n") or super().recognise(head, name)

    def scan(self, path: Path, reading: Reading) -> Iterator[Record[Place]]:
        """Yield every sample; `packio.formats.hdf5.foreign` says which files of others are read.

        Args:
            reading: ``image`` is the path within the file of the dataset of images, or of the group
                that has a dataset for each image; ``label`` that of the labels.
        """
        return scanning.scan(path, reading)

    def writer(
        self, path: Path, *, count: int = 0, size: int = 0, classes: Sequence[str] = (),
        **options: Any,
    ) -> Writer:  # fmt: skip
        """Begin one shard; see `packio.formats.Format.writer`."""
        return Writer(registry.require("h5py", "hdf5"), path, classes)

    def reader(self, path: Path, reading: Reading) -> ReaderApart:
        """What reads images that are no range of bytes."""
        return ReaderApart(path, reading, f"{scanning.__name__}:{scanning.find.__name__}")


class Writer(one_file.Writer):
    """Write records into a new file; the same records give the same bytes."""

    container: ClassVar[str] = "hdf5"

    def __init__(self, h5py: Any, path: Path, classes: Sequence[str]) -> None:
        """Create the temporary files; see `packio.formats.blobs.one_file`."""
        self._h5py = h5py
        super().__init__(path, classes)

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
    """A file in memory with holes, in which h5py cannot run out of disk."""

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
        """Write the content to an empty file, holes as holes."""
        os.ftruncate(descriptor, self._size)
        for page, content in sorted(self._pages.items()):
            begin = page * _PAGE
            view = memoryview(content)[: max(0, self._size - begin)]
            while view:
                count = os.pwrite(descriptor, view, begin)
                view, begin = view[count:], begin + count


FORMAT = Hdf5()
