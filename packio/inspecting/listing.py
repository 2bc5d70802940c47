"""List the samples of a pack, and find the keys that resemble an unknown one."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from packio.datasets.selection import selected
from packio.packs.opening import Pack
from packio.packs.rows import Row

_NEIGHBOURS = 200  # keys before and after an unknown key, in sorted order, that are compared
_SEARCHED = 1_000_000  # samples whose keys are searched for the file name of an unknown key
_SUGGESTED = 5
_NEAR = 0.6  # difflib's ratio


class Line(NamedTuple):
    """One sample of a pack."""

    row: Row
    key: bytes
    label: Any  # int, list of float, or None without labels


def list_samples(
    pack: Pack, classes: Iterable[str] | None = None, split: str | None = None
) -> Iterator[Line]:
    """Go through the samples of a pack, or of some classes or a split, in bounded memory."""
    for indices in selected(pack, classes, split):
        unlabelled: list[Any] = [None] * len(indices)
        labels = pack.take_labels(indices).tolist() if "label" in pack.index_file else unlabelled
        columns = (pack.rows(indices), _keys(pack, indices), labels)
        yield from map(Line._make, zip(*columns, strict=True))


def _keys(pack: Pack, indices: np.ndarray) -> list[bytes]:
    """Read the keys of ascending indices that lie close together at once."""
    first, last = int(indices[0]), int(indices[-1])
    offsets = pack.index_file.column("key_offsets").span(first, last + 2).tolist()
    data = pack.index_file.column("key_data").span(offsets[0], offsets[-1]).tobytes()
    starts = [o - offsets[0] for o in offsets]
    return [data[starts[i - first] : starts[i - first + 1]] for i in indices.tolist()]


def find_similar_keys(pack: Pack, key: bytes) -> list[tuple[int, bytes]]:
    """Find up to five keys that resemble an unknown one: index and key, the most similar first.

    The candidates are the key's neighbours in sorted order, and keys that contain its file name.
    """
    found = {row: pack.key_bytes(row) for row in [*_neighbours(pack, key), *_with_name(pack, key)]}
    target = os.fsdecode(key).lower()
    name = os.path.basename(target)

    def likeness(row: int) -> float:
        other = os.fsdecode(found[row]).lower()
        ratio = difflib.SequenceMatcher(None, other, target).ratio()
        return ratio + (os.path.basename(other) == name)

    near = sorted(((likeness(row), -row) for row in found), reverse=True)[:_SUGGESTED]
    return [(-row, found[-row]) for ratio, row in near if ratio >= _NEAR]


def _neighbours(pack: Pack, key: bytes) -> list[int]:
    rank = pack.index_file.rank(key)
    first, last = max(0, rank - _NEIGHBOURS), min(len(pack), rank + _NEIGHBOURS)
    rows: list[int] = pack.index_file.column("key_order").span(first, last).tolist()
    return rows


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
