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
variable length, which `packio.formats.hdf5.datasets` finds. h5py reads all other images
(compressed, cut across the images), in a process of its own, as a damaged file can crash HDF5.

Source: HDF5 File Format Specification, version 3.0,
https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html
"""

from __future__ import annotations

import errno
import functools
import os
import resource
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from packio import registry
from packio.errors import NotAPackError
from packio.formats import Caps, Format, Reading, damage_error
from packio.formats.blobs.by_library import FoundSamples, ReaderApart
from packio.formats.blobs.columns import find_in_file, read_header
from packio.formats.blobs.spool import FileContents, FileWriter, Pixels
from packio.formats.hdf5 import foreign
from packio.formats.hdf5.datasets import h5py_errors, open_checked, open_file, place, slices
from packio.sample.record import IMAGE, Place, Record

_ALIGNMENT = 4096  # bytes, of every dataset at least as large; there are only a few
_MOST_ADDED = 1 << 20  # bytes that HDF5 adds to the data of a file
_MOST_FIXED = 60_000  # bytes of an attribute in an object header, which has 64 KiB at most
_PIECE = 1 << 20  # bytes copied at a time
_CONVERT = "convert it: h5repack -l CONTI -f NONE old.h5 new.h5"


class Hdf5(Format):
    caps: Caps = Caps(
        suffixes=(".h5", ".hdf5"), magic=(b"\x89HDF\r\n\x1a\n",), package="h5py", extra="hdf5",
        dies_of_damage=True, reads_by_library=True, spooled=True,
        keeps=frozenset(("key", "label", "meta", "boxes")),
    )  # fmt: skip

    def scan(self, path: Path, reading: Reading) -> Iterator[Record[Place]]:
        """Yield every sample; `packio.formats.hdf5.foreign` says which files of others are read.

        ``reading.image`` is the path of the dataset of images, or of the group that has a dataset
        for each image; ``reading.label`` that of the labels.
        """
        with open_checked(path) as file:
            yield from _found(file, path, reading).records

    def writer(self, path: Path, *, classes: Sequence[str], **_: Any) -> FileWriter:
        h5py = registry.require("h5py", "hdf5")
        return FileWriter(path, classes, "hdf5", functools.partial(_fill, h5py))

    def reader(self, path: Path, reading: Reading) -> ReaderApart:
        return ReaderApart(path, reading, f"{__name__}:{find.__name__}")


def _fill(h5py: Any, file: IO[bytes], contents: FileContents) -> Mapping[str, int]:
    # In memory, with holes, h5py cannot run out of disk. A limit of the size of files holds there,
    # too: h5py, which may not grow a file, would close it with any error.
    sizes = [b.size for b in contents.blobs.values()] + [a.nbytes for a in contents.arrays.values()]
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if limit != resource.RLIM_INFINITY and sum(sizes) + _MOST_ADDED > limit:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    with open(os.memfd_create("packio-hdf5"), "w+b", buffering=0) as memory:
        begins = _lay_out(h5py, memory, contents)
        _copy_data(memory.fileno(), file.fileno())
    for name, blob in contents.blobs.items():
        blob.copy(file.fileno(), begins[name])
    return begins


def _lay_out(h5py: Any, memory: IO[bytes], contents: FileContents) -> dict[str, int]:
    """Make a file in memory, with room for the blobs; return where these begin."""
    text, pixels = contents.text, contents.pixels
    begins = {}
    with h5py.File(
        memory, "w", alignment_threshold=_ALIGNMENT, alignment_interval=_ALIGNMENT
    ) as file:
        # Of variable length where it must: HDF5 2.0 can hang in a damaged heap of such values.
        fixed = h5py.string_dtype("utf-8", len(text)) if len(text) <= _MOST_FIXED else None
        file.attrs.create("packio", text, dtype=fixed or h5py.string_dtype())
        for name, array in contents.arrays.items():
            dataset = _create(h5py, file, name, array.dtype, array.shape)
            if array.size:
                dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, np.ascontiguousarray(array))
        for name, blob in contents.blobs.items():
            kind = pixels if name == "data" else None
            shape, dtype = kind or Pixels((blob.size,), np.dtype("u1"))
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


def _copy_data(source: int, target: int) -> None:
    """Copy a file in memory to an empty file, holes as holes."""
    size, start = os.fstat(source).st_size, 0
    os.ftruncate(target, size)
    while start < size:
        try:
            start = os.lseek(source, start, os.SEEK_DATA)
        except OSError:  # there is only a hole left
            return
        stop = os.lseek(source, start, os.SEEK_HOLE)
        while start < stop:
            piece = os.pread(source, min(_PIECE, stop - start), start)
            start += os.pwrite(target, piece, start)


def find(path: Path, reading: Reading) -> FoundSamples:
    file = open_file(path)
    with h5py_errors(path):
        found = _found(file, path, reading)

    def read(number: int, _file: Any = file) -> bytes:  # which keeps the file open
        with h5py_errors(f"{path}: sample {number}"):
            return found.read(number)

    return found._replace(read=read)


def _found(file: Any, path: Path, reading: Reading) -> FoundSamples:
    if "packio" in file.attrs and reading.image is None:
        return _own(file, path)
    return foreign.find_samples(file, path, reading)


def _own(file: Any, path: Path) -> FoundSamples:
    text = file.attrs["packio"]
    if isinstance(text, bytes):  # so h5py gives strings of fixed length
        text = text.decode("ascii")
    h5py = registry.require("h5py", "hdf5")

    def get(name: str) -> Any:
        if not isinstance(file.get(name, getlink=True), h5py.HardLink):
            return None
        if isinstance(file[name], h5py.Dataset):
            return file[name]
        raise damage_error(path, f"{name} is no dataset")

    def array_of(dataset: Any, _: str) -> np.ndarray:
        _one_range(dataset, path)  # its claims are true
        values: np.ndarray = dataset[()]
        return values

    header = read_header(text, "hdf5", path)
    columns, found = find_in_file(path, header, get, array_of, lambda d, _: _one_range(d, path))
    if columns.values[IMAGE].facts is None:
        return FoundSamples(len(columns), found, slices(file["data"], columns.values[IMAGE]))
    return FoundSamples(len(columns), found, lambda number: file["data"][number].tobytes())


def _one_range(dataset: Any, path: Path) -> tuple[int, int]:
    placed = None if dataset.dtype.hasobject else place(dataset, path)
    if placed is None:
        raise NotAPackError(
            f"{path}: {dataset.name} is not one range of bytes of this file (it is chunked, "
            f"compressed, compact or of variable length); {_CONVERT}"
        )
    return placed


FORMAT = Hdf5()
