"""Datasets of values of variable length, whose references lie in the file: see ``heaps``."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from packio import registry
from packio.errors import IntegrityError
from packio.formats.blobs import ranges
from packio.formats.blobs.ranges import Input
from packio.formats.hdf5 import heaps

_DEFLATE, _SHUFFLE = 1, 2  # numbers of filters
_WINDOW = 4096  # bytes: as large as most heaps are

_Filter = tuple[int, int]  # its number, and the first of its parameters


def places(dataset: Any, path: Path) -> tuple[np.ndarray, np.ndarray] | None:
    """Tell where the values of a dataset of bytes of variable length lie.

    Returns:
        Offset and length of each value, (N,) int64 bytes; None if references are stored in a way
        that is not known here.
    """
    h5py = registry.require("h5py", "hdf5")
    kind = dataset.id.get_type().get_super()
    if kind not in (h5py.h5t.STD_U8LE, h5py.h5t.STD_I8LE):
        return None
    address, length = dataset.file.id.get_create_plist().get_sizes()
    sizes = heaps.Sizes(address, length, dataset.file.userblock_size)
    with ranges.opened(path, _WINDOW) as file:
        content = _stored(dataset, file, sizes.reference.itemsize)
        if content is None:
            return None
        return heaps.find(file, np.frombuffer(content, sizes.reference), sizes)


def _stored(dataset: Any, file: Input, size: int) -> bytes | None:
    """The bytes of a one-dimensional dataset of items of a size, as they are stored."""
    whole, rows = len(dataset) * size, dataset.chunks[0] if dataset.chunks else 0
    if not rows:
        offset = dataset.id.get_offset()
        if offset is None or dataset.id.get_storage_size() != whole:
            return None
        return file.read(whole, offset)
    filters = _filters(dataset)
    if filters is None:
        return None
    content = bytearray(-(-len(dataset) // rows) * rows * size)
    infos: list[Any] = []
    dataset.id.chunk_iter(infos.append)
    for info in infos:
        at = info.chunk_offset[0] * size
        used = [f for i, f in enumerate(filters) if not info.filter_mask >> i & 1]
        data = _unfiltered(file.read(info.size, info.byte_offset), used, rows * size)
        if data is None or at % (rows * size) or at + rows * size > len(content):
            raise IntegrityError(f"{file.path}: {dataset.name} has a damaged chunk; restore it")
        content[at : at + rows * size] = data
    return bytes(content[:whole])


def _filters(dataset: Any) -> list[_Filter] | None:
    """The filters of a dataset, in the order in which they were applied."""
    properties = dataset.id.get_create_plist()
    found = [properties.get_filter(i) for i in range(properties.get_nfilters())]
    if any(number not in (_DEFLATE, _SHUFFLE) for number, *_ in found):
        return None
    return [(number, values[0] if values else 0) for number, _, values, _ in found]


def _unfiltered(data: bytes, filters: Sequence[_Filter], size: int) -> bytes | None:
    """A chunk of so many bytes, with its filters undone; None if it is damaged."""
    for number, parameter in reversed(filters):
        if number == _DEFLATE:
            try:
                data = zlib.decompressobj().decompress(data, size + 1)
            except zlib.error:
                return None
        elif parameter < 1 or len(data) % parameter:
            return None
        else:
            data = np.frombuffer(data, np.uint8).reshape(parameter, -1).T.tobytes()
    return data if len(data) == size else None
