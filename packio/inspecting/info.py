"""Describe a pack: samples, classes, sizes, encodings, and how the pack was made."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from packio import registry
from packio.datasets.selection import iterate_selected
from packio.errors import MissingPackageError
from packio.images import bucketing, encodings, native
from packio.index.indexfile import PROGRESSIVE
from packio.packs.opening import Pack
from packio.packs.table import Row
from packio.sample.fields import PIXELS
from packio.sample.record import IMAGE
from packio.system import processors

_MOST_CLASSES = 1 << 24  # that are counted where labels have no names
_NEIGHBOURS = 200  # keys before and after an unknown key, in sorted order, that are compared
_SEARCHED = 1_000_000  # samples whose keys are searched for the file name of an unknown key
_SUGGESTED = 5


def describe(pack: Pack) -> dict[str, Any]:
    """Describe a pack by its index alone, in values that JSON takes; no sample is read."""
    metadata, index = pack.metadata, pack.index_file
    length = index.column("image/length").array()
    per_sample = round(index.nbytes / max(len(pack), 1), 1)
    return {
        "path": str(pack.path), "format": metadata["format"],
        "selection": metadata.get("selection"), "access": metadata.get("access", "range"),
        "samples": len(pack), "bytes": int(length.sum()), "counts": metadata.get("counts", {}),
        "files": [{"path": name, "bytes": size} for name, size, _ in index.files()],
        "index": {"bytes": index.nbytes, "bytes_per_sample": per_sample},
        "classes": {"count": len(pack.classes), "names": pack.classes},
        "labels": _labels(pack.labels, len(pack.classes)),
        "sizes": {
            "height": _spread(index.column("image/height").array()),
            "width": _spread(index.column("image/width").array()), "bytes": _spread(length),
        },
        "fields": {name: _field(pack, name) for name in pack.fields},
        **_ragged(pack), **_kinds(pack),
        "splits": _splits(pack), "statistics": metadata.get("statistics"),
        "source": metadata.get("source"),
        "recipe": metadata.get("recipe") or metadata.get("options"),
        "versions": {"index": metadata["version"], **metadata.get("versions", {})},
        "digest": pack.digest,
    }  # fmt: skip


def summarize_buckets(pack: Pack, buckets: str) -> dict[str, Any]:
    """What aspect-ratio buckets get of a pack, by its index alone, in values that JSON takes.

    "sizes" has of each "size" (height, width) what `packio.Bucket` tells; "all" is of all together.
    """
    from packio.datasets.sizes import count_buckets, sum_buckets  # imports torch

    found = count_buckets(pack, bucketing.parse_buckets(buckets))
    return {"sizes": list(map(dataclasses.asdict, found)), "all": sum_buckets(found)}


def _spread(values: np.ndarray) -> dict[str, float] | None:
    if not len(values):
        return None
    middle = float(np.median(values))
    middle = int(middle) if middle.is_integer() else middle
    return {"min": int(values.min()), "median": middle, "max": int(values.max())}


def _field(pack: Pack, name: str) -> dict[str, Any]:
    """Kind of a field, how many samples have the field and lack it, bytes, encodings of pixels."""
    column, by_number = pack.index_file.column, name == IMAGE and pack.access != "range"
    offsets = column(f"{name}/offset")
    there = sum(int(np.count_nonzero(chunk >= 0)) for chunk in offsets.chunks())
    have = len(pack) if by_number else there
    found = {"kind": pack.fields[name], "samples": have, "lacking": len(pack) - have,
             "bytes": column(f"{name}/length").total()}  # fmt: skip
    if pack.fields[name] in PIXELS:
        each = zip(column(f"{name}/encoding").chunks(), offsets.chunks(), strict=True)
        found["encodings"] = _name_codes(
            _count_codes(code[offset >= 0] for code, offset in each), encodings.NAMES
        )
    return found


def _count_codes(chunks: Iterable[np.ndarray]) -> np.ndarray:
    counts = np.zeros(256, np.int64)
    for chunk in chunks:
        counts += np.bincount(chunk, minlength=256)
    return counts


def _ragged(pack: Pack) -> dict[str, Any]:
    """Count boxes and bytes of metadata, and the samples that have some."""
    boxes, meta = _lengths(pack, "box_offsets"), _lengths(pack, "meta_offsets")
    found = {
        "boxes": {"count": int(boxes.sum()), "samples": int(np.count_nonzero(boxes)),
                  "columns": list(pack.index_file.box_columns)},
        "metadata": {"samples": int(np.count_nonzero(meta)), "bytes": int(meta.sum())},
    }  # fmt: skip
    columns = {"boxes": "boxes", "metadata": "meta_data"}
    return {n: found[n] if c in pack.index_file else None for n, c in columns.items()}


def _kinds(pack: Pack) -> dict[str, Any]:
    """Count the samples of each encoding, pixel type and orientation."""

    def count(column: str) -> np.ndarray:
        return _count_codes(pack.index_file.column(f"image/{column}").chunks())

    flags = count("flags")
    return {
        "encodings": _name_codes(count("encoding"), encodings.NAMES),
        "channels": _name_codes(count("channels"), {}),
        "dtypes": _name_codes(count("dtype"), dict(enumerate(encodings.DTYPES))),
        "oriented": int(len(pack) - count("orientation")[:2].sum()),  # 1 is upright, 0 is unset
        "progressive": int(flags[[code for code in range(256) if code & PROGRESSIVE]].sum()),
        "seek_points": int(np.count_nonzero(_lengths(pack, "seek_offsets"))),
    }


def _lengths(pack: Pack, offsets: str) -> np.ndarray:
    """Number of values of each sample, by a column of offsets; (0,) without the column."""
    index = pack.index_file
    return np.diff(index.column(offsets).array()) if offsets in index else np.zeros(0, np.int64)


def system() -> dict[str, str]:
    """What of packio runs on this machine: name → version, or why it does not."""
    found = {"processors": str(processors.usable())}
    reason = native.why_not()
    found["native core"] = f"no: {reason}" if reason else f"yes, {native.kernels()}"
    for name, plugin in registry.load_all("decoders").items():
        try:
            found[f"decoder {name}"] = plugin.version()
        except MissingPackageError as error:
            found[f"decoder {name}"] = f"no: {error}"
    return found


def _name_codes(counts: np.ndarray, names: dict[int, str]) -> dict[str, int]:
    found = {names.get(i, str(i)): n for i, n in enumerate(counts.tolist()) if n}
    return dict(sorted(found.items(), key=lambda entry: -entry[1]))


def _splits(pack: Pack) -> dict[str, int] | None:
    names = pack.metadata.get("splits")
    if names is None or "split" not in pack.index_file:
        return None
    counts = _count_codes(pack.index_file.column("split").chunks())
    return dict(zip(names, counts.tolist(), strict=False))


def _labels(labels: np.ndarray | None, classes: int) -> dict[str, Any] | None:
    if labels is None:
        return None
    if labels.ndim == 2:
        per_class = (labels > 0).sum(axis=0)
        kind, outside = f"{labels.dtype.name} vector of {labels.shape[1]}", 0
    else:
        inside = (labels >= 0) & (labels < (classes or _MOST_CLASSES))
        per_class = np.bincount(labels[inside], minlength=classes)
        kind, outside = "int", int(len(labels) - np.count_nonzero(inside))
    return {
        "kind": kind, "samples_per_class": _spread(per_class), "counts": per_class.tolist(),
        "empty_classes": int(np.count_nonzero(per_class == 0)), "outside_classes": outside,
    }  # fmt: skip


class Line(NamedTuple):
    """One sample of a pack."""

    row: Row
    key: bytes
    label: Any  # int, list of float, or None without labels


def list_samples(
    pack: Pack, classes: Iterable[str] | None = None, split: str | None = None
) -> Iterator[Line]:
    """Go through the samples of a pack, or of some classes or a split, in bounded memory."""
    for indices in iterate_selected(pack, classes, split):
        unlabelled: list[Any] = [None] * len(indices)
        labels = pack.take_labels(indices).tolist() if "label" in pack.index_file else unlabelled
        columns = (pack.rows(indices), _keys(pack, indices), labels)
        yield from map(Line._make, zip(*columns, strict=True))


def _keys(pack: Pack, indices: np.ndarray) -> list[bytes]:
    """Read the keys of ascending indices that lie close together at once: half the time of `ls`."""
    first, last = int(indices[0]), int(indices[-1])
    offsets = pack.index_file.column("key_offsets").span(first, last + 2).tolist()
    data = pack.index_file.column("key_data").span(offsets[0], offsets[-1]).tobytes()
    starts = [o - offsets[0] for o in offsets]
    return [data[starts[i - first] : starts[i - first + 1]] for i in indices.tolist()]


def find_similar_keys(pack: Pack, key: bytes) -> list[tuple[int, bytes]]:
    """Find up to five keys that resemble an unknown one: index and key, the most similar first.

    The candidates are the key's neighbours in sorted order, and keys that contain its file name.
    """
    rank = pack.index_file.rank(key)
    first, last = max(0, rank - _NEIGHBOURS), min(len(pack), rank + _NEIGHBOURS)
    near_rows: list[int] = pack.index_file.column("key_order").span(first, last).tolist()
    rows = sorted({*near_rows, *_with_name(pack, key)})
    texts = {os.fsdecode(pack.key_bytes(row)).lower(): row for row in reversed(rows)}
    target = os.fsdecode(key).lower()
    alike = [text for text in texts if os.path.basename(text) == os.path.basename(target)]
    near = dict.fromkeys([*reversed(alike), *difflib.get_close_matches(target, texts, _SUGGESTED)])
    return [(texts[text], pack.key_bytes(texts[text])) for text in [*near][:_SUGGESTED]]


def _with_name(pack: Pack, key: bytes) -> list[int]:
    """Find the first samples whose keys contain the file name of a key, in upper or lower case."""
    name = os.path.basename(key).lower()
    offsets = pack.index_file.column("key_offsets").span(0, min(len(pack), _SEARCHED) + 1)
    data = pack.index_file.column("key_data").span(0, int(offsets[-1])).tobytes().lower()
    rows: list[int] = []
    at = data.find(name) if name else -1
    while at >= 0 and len(rows) < _NEIGHBOURS:
        row = int(np.searchsorted(offsets, at, "right")) - 1
        rows.append(row)
        at = data.find(name, int(offsets[row + 1]))
    return rows
