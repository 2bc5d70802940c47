"""The columns that hdf5, pth, n5 and zarr share, beside the blob in which samples lie end to end.

The names are the same in all of these containers, N is the number of samples, and what a pack does
not have is not there::

    data        u8[bytes]           the samples, end to end
    offsets     i64[N+1]            sample i begins at offsets[i] of data, and ends at offsets[i+1]
                                    or, where `length` is there, after length[i] bytes
    length      i64[N]              only where samples are not end to end (n5, zarr)
    label       i64[N] or f32[N,k]
    key_data    u8[bytes], key_offsets   i64[N+1]   the paths in the source, end to end
    mask_data   u8[bytes], mask_offsets  i64[N+1]   (and mask_length), as data
    meta_data   u8[bytes], meta_offsets  i64[N+1]   JSON objects, UTF-8
    boxes       f32[M,4], box_labels i64[M], box_offsets i64[N+1]   XYXY in pixels

Where all samples are raw pixels of one shape, ``data`` is an array of them instead, u8, u16 or f32
[N,C,H,W], and there are neither ``offsets`` nor ``length``.

Beside these there is a text named ``packio``: canonical JSON, see `header`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from packio.errors import IntegrityError, NotAPackError, VersionError
from packio.formats import Entry, Ranges
from packio.images.encodings import DTYPES, raw_facts
from packio.sample.facts import Facts

VERSION = 1


class Columns(NamedTuple):
    """All of a shard but its data and masks; None where it has none. `arrays` has the names."""

    offsets: np.ndarray  # (N+1,) int64 bytes, from the start of the blob
    length: np.ndarray  # (N,) int64 bytes
    label: np.ndarray | None  # (N,) int64 or (N, k) float32
    key_data: np.ndarray | None  # (bytes,) uint8
    key_offsets: np.ndarray | None  # (N+1,) int64
    mask_offsets: np.ndarray | None = None  # (N+1,) int64
    mask_length: np.ndarray | None = None  # (N,) int64
    meta_data: np.ndarray | None = None  # (bytes,) uint8
    meta_offsets: np.ndarray | None = None  # (N+1,) int64
    boxes: np.ndarray | None = None  # (M, 4) float32
    box_labels: np.ndarray | None = None  # (M,) int64
    box_offsets: np.ndarray | None = None  # (N+1,) int64

    def arrays(self) -> dict[str, np.ndarray]:
        """Those there are, by name, in order, without ``length`` and ``mask_length``."""
        hidden = ("length", "mask_length")
        return {n: a for n, a in self._asdict().items() if a is not None and n not in hidden}


def header(container: str, count: int, classes: Sequence[str]) -> str:
    """Make the text ``packio`` of a container: canonical JSON of its kind, version and classes."""
    value = {"classes": list(classes), "format": container, "samples": count, "version": VERSION}
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def check_header(text: str, container: str, where: object) -> None:
    """Check the text ``packio``.

    Raises:
        NotAPackError, VersionError: it is not that of this container, or of a newer version.
    """
    try:
        value = json.loads(text)
        found, version = value["format"], value["version"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise NotAPackError(f"{where}: what is named packio is not its header") from error
    if found != container or type(version) is not int:
        raise NotAPackError(f"{where}: the header is of {found!r}, not {container!r}")
    if version > VERSION:
        raise VersionError(f"{where}: written by a newer packio (version {version}); update packio")


_KINDS = {  # name → dtype kind and size, dimensions
    "offsets": ("i8", 1), "length": ("i8", 1), "key_data": ("u1", 1), "key_offsets": ("i8", 1),
    "mask_offsets": ("i8", 1), "mask_length": ("i8", 1), "meta_data": ("u1", 1),
    "meta_offsets": ("i8", 1), "boxes": ("f4", 2), "box_labels": ("i8", 1),
    "box_offsets": ("i8", 1),
}  # fmt: skip


def columns_of(
    arrays: Mapping[str, np.ndarray], data_bytes: int, mask_bytes: int, where: object
) -> Columns:
    """Make columns of arrays read from a container, after checking them; others are ignored.

    Args:
        arrays: By name, as in a container; ``length`` is made from ``offsets`` if it is not there.
        data_bytes: Size of the blob ``data``.
        mask_bytes: Size of the blob ``mask_data``.
        where: The shard, for messages.

    Raises:
        IntegrityError: an array is missing, has another type or shape, or points outside.
    """
    given = {n: arrays[n] for n in Columns._fields if n in arrays}
    for name, found in given.items():
        code, dimensions = _KINDS.get(name, (found.dtype.str[1:], found.ndim))
        if found.dtype != np.dtype(code) or found.ndim != dimensions:
            raise _damaged(where, f"{name} is {found.dtype} {found.shape}")
    count = _checked_ragged(given, "offsets", data_bytes, None, where, "length")
    _checked_ragged(given, "mask_offsets", mask_bytes, count, where, "mask_length")
    for name, values in (("key", "key_data"), ("meta", "meta_data"), ("box", "boxes")):
        if (values in given) != (f"{name}_offsets" in given):
            raise _damaged(where, f"has only one of {values} and {name}_offsets")
        if values in given:
            size = len(given[values])
            _checked_ragged(given, f"{name}_offsets", size, count, where)
    _check_shapes(given, count, where)
    optional = {n: given.get(n) for n in ("label", "key_data", "key_offsets")}
    return Columns(**{**optional, **given})  # type: ignore[arg-type]  # required ones are checked


def _check_shapes(given: Mapping[str, np.ndarray], count: int, where: object) -> None:
    label, boxes = given.get("label"), given.get("boxes")
    if label is not None and (
        len(label.shape) not in (1, 2)
        or len(label) != count
        or label.dtype != np.dtype("i8" if label.ndim == 1 else "f4")
    ):
        raise _damaged(where, f"label is {label.dtype} {label.shape}, of {count} samples")
    if boxes is not None and boxes.shape[1] != 4:
        raise _damaged(where, f"boxes is {boxes.dtype} {boxes.shape}")
    if "box_labels" in given and (boxes is None or len(given["box_labels"]) != len(boxes)):
        raise _damaged(where, "has not as many box_labels as boxes")


def _checked_ragged(
    given: dict[str, np.ndarray], name: str, size: int, count: int | None, where: object,
    length_name: str | None = None,
) -> int:  # fmt: skip
    """Check offsets, add the lengths if they are asked for; return the number of values."""
    if name not in given:
        if count is None:
            raise _damaged(where, f"has no {name}")
        return count
    offsets = given[name]
    if len(offsets) == 0 or (count is not None and len(offsets) != count + 1):
        raise _damaged(where, f"has {len(offsets)} {name}, of {count} samples")
    length = np.diff(offsets)
    if offsets[0] < 0 or offsets[-1] > size or (length < 0).any() or (offsets > size).any():
        raise _damaged(where, f"{name} do not ascend within 0..{size}")
    if length_name in given:
        stated = given[length_name]
        if len(stated) != len(length) or (stated < 0).any() or (stated > length).any():
            raise _damaged(where, f"{length_name} does not fit {name}")
    elif length_name:
        given[length_name] = length
    return len(length)


def pixel_columns(
    shape: Sequence[int], dtype: str, where: object
) -> tuple[dict[str, np.ndarray], Facts]:
    """Make ``offsets`` and ``length`` of an array of pixels, and the facts of a sample.

    Args:
        shape: Of the array, whose bytes are all there.
        dtype: Of the array, as str() gives it.
        where: The shard, for the message.

    Raises:
        IntegrityError: it is no (N, C, H, W) of little-endian pixels.
    """
    if dtype not in DTYPES or len(shape) != 4 or min(shape) < 1 or shape[1] > 255:
        raise _damaged(where, f"data is {dtype} {tuple(shape)}")
    count, channels, height, width = shape
    size = math.prod(shape[1:]) * np.dtype(dtype).itemsize
    offsets = np.arange(count + 1, dtype="i8") * size
    columns = {"offsets": offsets, "length": np.diff(offsets)}
    return columns, raw_facts(height, width, channels, dtype)


def _damaged(where: object, what: str) -> IntegrityError:
    return IntegrityError(f"{where}: {what}; restore or repack the file")


def entries(
    columns: Columns, files: Sequence[str], data: Ranges, masks: Ranges | None = None,
    facts: Facts | None = None,
) -> Iterator[Entry]:  # fmt: skip
    """Yield the entry of every sample.

    Args:
        columns: As `columns_of` checked them.
        files: Of the shard, as `Entry` wants their names.
        data: Where the samples lie.
        masks: Where the masks lie.
        facts: Of the samples, where they are raw pixels.
    """
    keys = _texts(columns.key_data, columns.key_offsets)
    metas = _texts(columns.meta_data, columns.meta_offsets)
    for i, (file, offset, length) in enumerate(_rows(data)):
        name, key, meta = b"%08d" % i, next(keys), next(metas)
        entry = Entry(name, files[file], offset, length, key=key, meta=meta, facts=facts)
        if columns.label is not None:
            label = columns.label[i].tolist()
            entry = entry._replace(label=label if columns.label.ndim == 1 else tuple(label))
        if masks is not None:
            of, at, size = masks.file.item(i), masks.offset.item(i), masks.length.item(i)
            entry = entry._replace(mask=(files[of], at, size))
        if columns.boxes is not None and columns.box_offsets is not None:
            span = slice(*columns.box_offsets[i : i + 2].tolist())
            boxes = tuple(map(tuple, columns.boxes[span].tolist()))
            entry = entry._replace(boxes=boxes)
            if columns.box_labels is not None:
                entry = entry._replace(box_labels=tuple(columns.box_labels[span].tolist()))
        yield entry


def one_file(columns: Columns, data: int, masks: int) -> tuple[Ranges, Ranges | None]:
    """Tell where samples and masks lie if the blobs begin at these bytes of one file."""
    zeros = np.zeros(len(columns.length), np.uint32)
    ranges = Ranges(zeros, columns.offsets[:-1] + data, columns.length)
    if columns.mask_offsets is None or columns.mask_length is None:
        return ranges, None
    return ranges, Ranges(zeros, columns.mask_offsets[:-1] + masks, columns.mask_length)


def _rows(ranges: Ranges) -> Iterator[tuple[int, int, int]]:
    for start in range(0, len(ranges.file), 4096):
        part = slice(start, start + 4096)
        lists = (ranges.file[part], ranges.offset[part], ranges.length[part])
        yield from zip(*(a.tolist() for a in lists), strict=True)


def _texts(data: np.ndarray | None, offsets: np.ndarray | None) -> Iterator[bytes | None]:
    while data is None or offsets is None:
        yield None
    for i in range(len(offsets) - 1):
        yield data[offsets.item(i) : offsets.item(i + 1)].tobytes()
