"""Finding the samples of an HDF5 file that others wrote.

* a one-dimensional blob of bytes with N + 1 offsets, in datasets of usual names;
* one dataset of images: pixels (`packio.formats.blobs.pixels`), or encoded images of variable or of
  fixed length; either the only one there is, or the only one of a usual name;
* one dataset for each image, of its bytes or its pixels; its path is then the key.

Labels are the dataset of a usual name beside that of the images.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from packio import registry
from packio.errors import NotAPackError, OptionError
from packio.formats import Reading, unknown_error
from packio.formats.blobs import pixels, ranges
from packio.formats.blobs.by_library import FoundSamples, RowCache
from packio.formats.hdf5 import datasets as h5
from packio.sample.record import Place, Record


def find_samples(file: Any, path: Path, reading: Reading) -> FoundSamples:
    order, there = pixels.order_of(reading.layout), h5.datasets(file, path)
    names = _names_of_images(there, reading.image, path)
    name, first = names[0], there[names[0]]
    pixels.refuse_others(there, name[: name.rfind("/") + 1], reading.image, path)
    is_blob = _is_bytes(first) and _beside(there, name, pixels.OFFSETS) is not None
    if len(names) > 1 or not (is_blob or _holds_many(first)):
        if reading.label:
            raise OptionError(
                f"{path}: label={reading.label!r} goes with one dataset of images, not with many"
            )
        return _each({name: there[name] for name in names}, order, path)
    found = _blob(there, name, path) if is_blob else _array(first, order, path)
    labels = _labels(there, name, reading.label, found.total, path)
    return found._replace(records=pixels.attach_labels(found.records, labels))


def _names_of_images(there: Mapping[str, Any], image: str | None, path: Path) -> list[str]:
    """The dataset of all images, or the datasets that have one each."""
    if image is not None:
        wanted = image.strip("/")
        names = [n for n in there if wanted in ("", n) or n.startswith(f"{wanted}/")]
        if not names:
            raise unknown_error("image", image, map(h5.describe, there.values()), path)
        return names
    blob = [
        n
        for n in pixels.IMAGES
        if n in there and _is_bytes(there[n]) and _beside(there, n, pixels.OFFSETS)
    ]
    many = {
        n: h5.describe(d)
        for n, d in there.items()
        if _holds_many(d) and (d.dtype.kind not in "SV" or n.rpartition("/")[2] in pixels.IMAGES)
    }
    return blob[:1] or pixels.only(many, path) or list(there)


def _is_bytes(dataset: Any) -> bool:
    return dataset.dtype in ("u1", "i1") and dataset.ndim == 1


def _holds_many(dataset: Any) -> bool:
    """Whether a dataset is of many images: pixels, or values of bytes, one each."""
    shape, dtype = dataset.shape or (), dataset.dtype
    if len(shape) != 1:
        return pixels.holds_many(shape, dtype)
    of_bytes = dtype.kind in "SV" and dtype.names is None
    return of_bytes or registry.require("h5py", "hdf5").check_vlen_dtype(dtype) in (
        np.uint8,
        np.int8,
    )


def _beside(there: Mapping[str, Any], name: str, others: Sequence[str]) -> str | None:
    """Path of a dataset that is in the same group, by the first name that is there."""
    group, slash, _ = name.rpartition("/")
    return next((group + slash + n for n in others if group + slash + n in there), None)


def _labels(
    there: Mapping[str, Any], name: str, label: str | None, count: int, path: Path
) -> list[pixels.Label] | None:
    wanted = pixels.label_beside(there, name[: name.rfind("/") + 1], label, path)
    if wanted is None:
        return None
    if wanted not in there:
        raise unknown_error("label", wanted, map(h5.describe, there.values()), path)
    dataset, where = there[wanted], f"{path}: {there[wanted].name}"
    pixels.check_labels(dataset.shape, dataset.dtype, count, where)
    h5.place(dataset, path)  # its claims are true
    return pixels.labels_of(dataset[()], where)


def _blob(there: Mapping[str, Any], name: str, path: Path) -> FoundSamples:
    data, offsets = there[name], there[str(_beside(there, name, pixels.OFFSETS))]
    placed = h5.place(data, path)
    h5.place(offsets, path)
    begin = None if placed is None else placed[0]
    values, found = pixels.blob_of(offsets[()], begin, h5.bytes_of(data), path, offsets.name)
    return FoundSamples(len(values.length), found, h5.slices(data, values))


def _array(dataset: Any, order: pixels.Order, path: Path) -> FoundSamples:
    count, where = len(dataset), f"{path}: {dataset.name}"
    h5.place(dataset, path)  # its claims are true
    if dataset.ndim == 1:
        found, read = _encoded(dataset, path)
        return FoundSamples(count, found, read)
    facts = pixels.facts_of(dataset.shape[1:], dataset.dtype, order, where)
    size = pixels.size_of(facts)
    at = _positions(dataset, size, path)
    found = (pixels.image_at(b"%08d" % i, path.name, at(i), size, facts) for i in range(count))
    rows = dataset.chunks[0] if dataset.chunks else 1
    return FoundSamples(count, found, RowCache(lambda first, stop: dataset[first:stop], rows, size))


def _encoded(dataset: Any, path: Path) -> tuple[Iterator[Record[Place]], Callable[[int], bytes]]:
    def of_any_length(number: int) -> bytes:
        return np.asarray(dataset[number]).tobytes()

    def fixed(number: int) -> bytes:
        return pixels.strip_padding(dataset[number : number + 1].tobytes())

    numbers = [(i, b"%08d" % i) for i in range(len(dataset))]
    if dataset.dtype.hasobject:
        return _compared(dataset, path, of_any_length), of_any_length
    at = _positions(dataset, dataset.dtype.itemsize, path)
    return (pixels.image_at(key, path.name, at(i), len(fixed(i))) for i, key in numbers), fixed


def _compared(dataset: Any, path: Path, read: Callable[[int], bytes]) -> Iterator[Record[Place]]:
    """Images of variable length: where they lie, if h5py finds the same bytes there."""
    places = h5.value_ranges(dataset, path)
    with ranges.open_input(path, window=0) as file:
        for number in range(len(dataset)):
            offset, length = (-1, 0) if places is None else (a.item(number) for a in places)
            if offset >= 0 and file.read(length, offset) != read(number):
                offset, length = -1, 0
            yield pixels.image_at(b"%08d" % number, path.name, offset, length)


def _positions(dataset: Any, size: int, path: Path) -> Callable[[int], int]:
    """Where the values of a dataset lie, by their numbers; -1: not in one range each."""
    placed = h5.place(dataset, path)
    if not pixels.is_as_stored(dataset.dtype):
        return lambda _: -1
    if placed is not None:
        return lambda number: placed[0] + number * size
    chunks = h5.chunk_offsets(dataset, path)
    if chunks is None:
        return lambda _: -1
    rows = dataset.chunks[0]
    return lambda number: chunks.item(number // rows) + number % rows * size


def _each(there: Mapping[str, Any], order: pixels.Order, path: Path) -> FoundSamples:
    found, values = [], list(there.values())
    for name, dataset in there.items():
        facts, dtype, where = None, dataset.dtype, f"{path}: {dataset.name}"
        opaque = dtype.kind == "V" and dtype.names is None and dataset.ndim == 0
        if dataset.ndim in (2, 3) and dtype.kind in "biuf":
            facts = pixels.facts_of(dataset.shape, dtype, order, where)
        elif not (_is_bytes(dataset) or opaque):
            raise NotAPackError(
                f"{where} is {dtype} {dataset.shape}, not an image or its bytes; packio reads an "
                "array of images, a blob with offsets, or a dataset for each image; name the "
                "images with image=…"
            )
        placed, size = h5.place(dataset, path), h5.bytes_of(dataset)
        offset = placed[0] if placed is not None and pixels.is_as_stored(dtype) else -1
        found.append(pixels.image_at(os.fsencode(name), path.name, offset, size, facts))

    def read(number: int) -> bytes:
        value = np.asarray(values[number][()])
        return value.astype(value.dtype.newbyteorder("<"), copy=False).tobytes()

    return FoundSamples(len(found), iter(found), read)
