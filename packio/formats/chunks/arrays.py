"""Arrays of pixels in N5 and Zarr, as others write them: of any blocks, compressed or not.

Where blocks are cut between images alone and not compressed, an image is one range of one file.
All others are put together by `Reader`, a row of blocks at a time.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packio.errors import NotAPackError, OptionError, PackioError, ReadError
from packio.formats import Entry
from packio.formats.blobs import by_library as _by_library
from packio.formats.blobs.by_library import Found, Rows
from packio.formats.blobs.pixels import (
    LABELS,
    Label,
    Order,
    check_claim,
    check_labels,
    facts_of,
    holds_many,
    is_as_stored,
    labels_of,
    only,
    order_of,
    size_of,
    unknown,
)
from packio.formats.chunks import scanning
from packio.formats.chunks.blocks import (
    Decode,
    block_shape,
    library_errors,
    missing,
    read_rows,
)
from packio.formats.chunks.layout import Array, Layout, blocks
from packio.formats.chunks.scanning import read_json

Load = Callable[[int, int], np.ndarray]  # rows of an array, from one number up to another


class Stored(NamedTuple):
    """An array, and what has been done to its values."""

    array: Array
    chunk: tuple[int, ...]  # what is decoded at once: the block, or less
    decode: Decode | None = None
    library: Callable[[Path], Load] | None = None  # opens the array at a path

    @property
    def is_plain(self) -> bool:
        """Whether the values lie in the blocks as they are."""
        return self.decode is None and self.library is None

    def plain(self, otherwise: str) -> Array:
        """The array, if it is plain.

        Raises:
            NotAPackError: it is not; the message is given.
        """
        if not self.is_plain:
            raise NotAPackError(otherwise)
        return self.array


class Kind(NamedTuple):
    """What N5 and Zarr, 2 and 3, do differently."""

    layout: Layout
    is_array: Callable[[Mapping[str, Any]], bool]  # by its metadata
    describe: Callable[[dict[str, Any], str], Stored]  # metadata, what to call it


_There = Mapping[str, Stored | PackioError]  # arrays, or why they are not read, by their paths


def scan(
    path: Path, kind: Kind, image: str | None, label: str | None, layout: str
) -> Iterator[Entry]:
    """Yield an entry for every sample, in order; see ``scan`` of n5 and zarr."""
    found = _found(path, kind, image, label, layout)
    yield from scanning.scan(path, kind.layout) if found is None else found.entries


class Reader(_by_library.Reader):
    """Read the images of an array whose blocks are compressed, or cut across images."""

    def find(self) -> Found:
        """Find the images, without a look at their blocks."""
        found = _found(self.path, self.kind(), self.image, "", self.layout, check=False)
        if found is None:
            raise OptionError(f"{self.path}/: holds no pixels; read it with access='range'")
        return found

    def kind(self) -> Kind:
        """What the container is."""
        raise NotImplementedError


def _found(
    path: Path, kind: Kind, image: str | None, label: str | None, layout: str, *, check: bool = True
) -> Found | None:
    """The images of a container; None if it has no array of pixels."""
    order = order_of(layout)
    kind.layout.refuse(path)
    if image is None and scanning.is_blob(path, kind.layout):
        there: _There = {}
    else:
        there = _arrays(path, kind)
    many = {n: _described(n, s) for n, s in there.items() if _may_be_images(s)}
    names = only(many, path) if image is None else [image.strip("/")]
    if names:
        return _images(path, kind, there, names[0], label, order, check=check)
    for error in there.values():
        if isinstance(error, PackioError):  # it may have been the images
            raise error
    if label:
        raise OptionError(f"{path}/: label={label!r} goes with an array of pixels; there is none")
    return None


def _arrays(path: Path, kind: Kind) -> _There:
    """All arrays in a directory; it may be one itself, by the name of ""."""
    found: dict[str, Stored | PackioError] = {}
    for folder, inner, _ in os.walk(path):
        inner.sort()
        metadata = read_json(Path(folder, kind.layout.metadata))
        if metadata is None or not kind.is_array(metadata):
            continue
        inner.clear()  # what is in an array is its blocks
        name = os.path.relpath(folder, path)
        try:
            stored: Stored | PackioError = kind.describe(metadata, folder)
        except NotAPackError as error:
            stored = error
        found["" if name == "." else name] = stored
    return found


def _may_be_images(stored: Stored | PackioError) -> bool:
    return isinstance(stored, Stored) and holds_many(stored.array.shape, stored.array.dtype)


def _described(name: str, stored: Stored | PackioError) -> str:
    if isinstance(stored, PackioError):
        return f"{name} (not read)"
    return f"{name or '.'} {stored.array.shape} {stored.array.dtype}"


def _named(option: str, name: str, there: _There, path: Path) -> Stored:
    stored = there.get(name)
    if stored is None:
        raise unknown(option, name, [_described(*item) for item in there.items()], path)
    if isinstance(stored, PackioError):
        raise stored
    return stored


def _images(
    path: Path,
    kind: Kind,
    there: _There,
    name: str,
    label: str | None,
    order: Order,
    *,
    check: bool,
) -> Found:
    """The images of an array, with their labels."""
    stored, folder = _named("image", name, there, path), path / name
    array = stored.array
    facts = facts_of(array.shape[1:], array.dtype, order, str(folder))
    count, size = array.shape[0], size_of(facts)
    if check:
        _check(stored, folder)
    labels = _labels(path, there, name, label, count)
    whole = array.block[1:] == array.shape[1:]
    ranged = stored.is_plain and whole and is_as_stored(array.dtype)

    def entries() -> Iterator[Entry]:
        zeros, rows = (0,) * (len(array.shape) - 1), array.block[0]
        file, offset = os.path.join(name, kind.layout.metadata), -1
        for i in range(count):
            if ranged:
                file = os.path.join(name, array.block_name(i // rows, *zeros))
                offset = array.header_bytes + i % rows * size
            of = None if labels is None else labels[i]
            yield Entry(b"%08d" % i, file, offset, size, of, facts=facts)

    return Found(count, entries(), Rows(_loader(stored, folder), stored.chunk[0], size))


def _labels(
    path: Path, there: _There, name: str, label: str | None, count: int
) -> list[Label] | None:
    if label is None:
        beside = (os.path.join(os.path.dirname(name), other) for other in LABELS)
        label = next((other for other in beside if other in there), "")
    if not label:
        return None
    folder, stored = path / label.strip("/"), _named("label", label.strip("/"), there, path)
    array = stored.array
    check_labels(array.shape, array.dtype, count, str(folder))
    _check(stored, folder)
    return labels_of(_loader(stored, folder)(0, count), str(folder))


def _check(stored: Stored, folder: Path) -> None:
    """Check that all blocks are there, and can be what the array claims."""
    array = stored.array
    size = math.prod(array.shape[1:]) * array.dtype.itemsize
    total = 0
    for numbers in blocks(array):
        if stored.is_plain:
            shape = block_shape(folder, array, numbers)
            total += math.prod(shape) * array.dtype.itemsize
        else:
            total += _size(folder / array.block_name(*numbers))
    chunk = math.prod(stored.chunk) * array.dtype.itemsize
    check_claim(array.shape[0], size, chunk, total, str(folder))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError as error:
        raise missing(path) from error
    except OSError as error:
        raise ReadError(f"{path}: cannot be read: {error.strerror}") from error


def _loader(stored: Stored, folder: Path) -> Load:
    """What reads some rows of an array."""
    array = stored.array
    opened: list[Load] = []  # by the library, when first used

    def by_library(first: int, stop: int) -> np.ndarray:
        with library_errors(folder):
            if not opened and stored.library is not None:
                opened.append(stored.library(folder))
            return opened[0](first, min(stop, array.shape[0]))

    def by_blocks(first: int, stop: int) -> np.ndarray:
        return read_rows(folder, array, first, stop, stored.decode)

    return by_blocks if stored.library is None else by_library
