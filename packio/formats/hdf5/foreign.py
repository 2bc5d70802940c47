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
from packio.formats import Entry
from packio.formats.blobs.by_library import Found, Rows
from packio.formats.blobs.columns import columns_of, entries, one_file
from packio.formats.blobs.pixels import (
    IMAGES,
    LABELS,
    Label,
    Order,
    check_labels,
    facts_of,
    holds_many,
    is_as_stored,
    labels_of,
    only,
    order_of,
    size_of,
    unknown,
    without_padding,
)
from packio.formats.hdf5.datasets import bytes_of, chunk_offsets, datasets, described, place, slices

_OFFSETS = ("offsets", "offset", "indptr")  # so the positions in a blob are called


def found(file: Any, path: Path, image: str | None, label: str | None, layout: str) -> Found:
    """Find the samples of a file; see ``scan``.

    Raises:
        NotAPackError: there are none.
        IntegrityError: the file is damaged.
        OptionError: there is nothing of a name given.
    """
    order, there = order_of(layout), datasets(file, path)
    names = _names_of_images(there, image, path)
    first = there[names[0]]
    if len(names) == 1 and _beside(there, names[0], _OFFSETS) and _is_bytes(first):
        return _blob(there, names[0], label, path)
    if len(names) == 1 and _holds_many(first):
        return _array(there, names[0], label, order, path)
    if label:
        raise OptionError(f"{path}: label={label!r} goes with one dataset of images, not with many")
    return _each({name: there[name] for name in names}, order, path)


def _names_of_images(there: Mapping[str, Any], image: str | None, path: Path) -> list[str]:
    """The dataset of all images, or the datasets that have one each."""
    if image is not None:
        wanted = image.strip("/")
        names = [n for n in there if wanted in ("", n) or n.startswith(f"{wanted}/")]
        if not names:
            raise unknown("image", image, map(described, there.values()), path)
        return names
    blob = [n for n in IMAGES if n in there and _is_bytes(there[n]) and _beside(there, n, _OFFSETS)]
    many = {
        n: described(d)
        for n, d in there.items()
        if _holds_many(d) and (d.dtype.kind not in "SV" or n.rpartition("/")[2] in IMAGES)
    }
    return blob[:1] or only(many, path) or list(there)


def _is_bytes(dataset: Any) -> bool:
    return dataset.dtype in ("u1", "i1") and dataset.ndim == 1


def _holds_many(dataset: Any) -> bool:
    """Whether a dataset is of many images: pixels, or values of bytes, one each."""
    shape, dtype = dataset.shape or (), dataset.dtype
    if len(shape) != 1:
        return holds_many(shape, dtype)
    of_bytes = dtype.kind in "SV" and dtype.names is None
    return of_bytes or registry.require("h5py").check_vlen_dtype(dtype) in (np.uint8, np.int8)


def _beside(there: Mapping[str, Any], name: str, others: Sequence[str]) -> str | None:
    """Path of a dataset that is in the same group, by the first name that is there."""
    group, slash, _ = name.rpartition("/")
    return next((group + slash + n for n in others if group + slash + n in there), None)


def _labels(
    there: Mapping[str, Any], name: str, label: str | None, count: int, path: Path
) -> list[Label] | None:
    """Labels of the images of a dataset."""
    wanted = _beside(there, name, LABELS) if label is None else label.strip("/")
    if not wanted:
        return None
    if wanted not in there:
        raise unknown("label", wanted, map(described, there.values()), path)
    dataset, where = there[wanted], f"{path}: {there[wanted].name}"
    check_labels(dataset.shape, dataset.dtype, count, where)
    place(dataset, path)  # its claims are true
    return labels_of(dataset[()], where)


def _with_label(entry: Entry, label: Label) -> Entry:
    return entry._replace(label=label)


def _labelled(found: Iterator[Entry], labels: list[Label] | None) -> Iterator[Entry]:
    return found if labels is None else map(_with_label, found, labels)


def _blob(there: Mapping[str, Any], name: str, label: str | None, path: Path) -> Found:
    data, offsets = there[name], there[str(_beside(there, name, _OFFSETS))]
    placed = place(data, path)
    place(offsets, path)
    if offsets.dtype.kind not in "iu":
        raise NotAPackError(f"{path}: {offsets.name} is {offsets.dtype}, integers are expected")
    columns = columns_of({"offsets": offsets[()].astype("i8")}, bytes_of(data), 0, path)
    found = entries(columns, (path.name,), *one_file(columns, placed[0] if placed else 0, 0))
    if placed is None:
        found = (entry._replace(offset=-1) for entry in found)
    count = len(columns.length)
    labels = _labels(there, name, label, count, path)
    return Found(count, _labelled(found, labels), slices(data, columns))


def _array(
    there: Mapping[str, Any], name: str, label: str | None, order: Order, path: Path
) -> Found:
    """One dataset of many images."""
    dataset = there[name]
    count, where = len(dataset), f"{path}: {dataset.name}"
    place(dataset, path)  # its claims are true
    if dataset.ndim == 1:
        found, read = _encoded(dataset, path)
    else:
        facts = facts_of(dataset.shape[1:], dataset.dtype, order, where)
        size = size_of(facts)
        at = _positions(dataset, size, path)
        found = (Entry(b"%08d" % i, path.name, at(i), size, facts=facts) for i in range(count))
        rows = dataset.chunks[0] if dataset.chunks else 1
        read = Rows(lambda first, stop: dataset[first:stop], rows, size)
    return Found(count, _labelled(found, _labels(there, name, label, count, path)), read)


def _encoded(dataset: Any, path: Path) -> tuple[Iterator[Entry], Callable[[int], bytes]]:
    """Encoded images, of variable or of fixed length."""
    if dataset.dtype.hasobject:

        def read(number: int) -> bytes:
            value: bytes = np.asarray(dataset[number]).tobytes()
            return value

        return (Entry(b"%08d" % i, path.name, -1, 0) for i in range(len(dataset))), read

    def fixed(number: int) -> bytes:
        return without_padding(dataset[number : number + 1].tobytes())

    at = _positions(dataset, dataset.dtype.itemsize, path)
    found = (Entry(b"%08d" % i, path.name, at(i), len(fixed(i))) for i in range(len(dataset)))
    return found, fixed


def _positions(dataset: Any, size: int, path: Path) -> Callable[[int], int]:
    """Where the values of a dataset lie, by their numbers; -1: not in one range each."""
    placed = place(dataset, path)
    if not is_as_stored(dataset.dtype):
        return lambda _: -1
    if placed is not None:
        return lambda number: placed[0] + number * size
    chunks = chunk_offsets(dataset, path)
    if chunks is None:
        return lambda _: -1
    rows = dataset.chunks[0]
    return lambda number: chunks.item(number // rows) + number % rows * size


def _each(there: Mapping[str, Any], order: Order, path: Path) -> Found:
    """One dataset for each image."""
    found, values = [], list(there.values())
    for name, dataset in there.items():
        facts, dtype, where = None, dataset.dtype, f"{path}: {dataset.name}"
        opaque = dtype.kind == "V" and dtype.names is None and dataset.ndim == 0
        if dataset.ndim in (2, 3) and dtype.kind in "biuf":
            facts = facts_of(dataset.shape, dtype, order, where)
        elif not (_is_bytes(dataset) or opaque):
            raise NotAPackError(
                f"{where} is {dtype} {dataset.shape}, not an image or its bytes; packio reads an "
                "array of images, a blob with offsets, or a dataset for each image; name what is "
                "the images with image=…"
            )
        placed, key = place(dataset, path), os.fsencode(name)
        offset = placed[0] if placed is not None and is_as_stored(dtype) else -1
        size = bytes_of(dataset)
        found.append(Entry(key, path.name, offset, size, key=key, facts=facts))

    def read(number: int) -> bytes:
        value = np.asarray(values[number][()])
        return value.astype(value.dtype.newbyteorder("<"), copy=False).tobytes()

    return Found(len(found), iter(found), read)
