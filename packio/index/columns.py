"""Columns of an index, made of Python values, or of those of other indexes.

Tables of keys that have their orders already are merged key by key, so that the memory does not
grow with the number of keys.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import os
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packio.errors import IntegrityError, OptionError
from packio.index.column import Content, Pieces, concatenate, concatenate_offsets
from packio.system import files
from packio.system.pools import ThreadPool

_ROWS = 1 << 16  # of a piece of a merged order


def join_values(values: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Values of different lengths as one uint8 array, and N+1 offsets into it."""
    return np.frombuffer(b"".join(values), np.uint8), offsets(map(len, values))


def offsets(lengths: Iterable[int]) -> np.ndarray:
    """N+1 int64 offsets of N values that lie one behind the other."""
    found = lengths if isinstance(lengths, array) else array("q", lengths)
    counts = np.frombuffer(found, np.int64)
    result = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=result[1:])
    return result


def key_columns(keys: Sequence[bytes]) -> dict[str, np.ndarray]:
    """The columns of keys: their bytes, and their order for lookup by bisection."""
    return joined_key_columns(*join_values(keys))[0]


def joined_key_columns(data: np.ndarray, starts: np.ndarray) -> tuple[dict[str, np.ndarray], bool]:
    """The columns of keys that `join_values` has joined, and whether all keys differ."""
    order, all_differ = key_order(data, starts)
    dtype = np.uint32 if len(order) < 1 << 32 else np.int64
    columns = {"key_data": data, "key_offsets": starts, "key_order": order.astype(dtype)}
    return columns, all_differ


def numbered_key_columns(data: np.ndarray, starts: np.ndarray) -> dict[str, np.ndarray]:
    """The columns of keys that are not all different: the row before each makes them so."""
    return key_columns([b"%08d/%s" % pair for pair in enumerate(split_values(data, starts))])


def file_columns(root: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """The columns of the table of files: paths relative to the root, sizes, SHA-256."""
    with ThreadPool(4, "packio-digest") as pool:
        digests = list(pool.map(lambda name: sha256(root / name), names))
    return object_columns(names, [(root / name).stat().st_size for name in names], digests)


def object_columns(
    names: Sequence[str | bytes], sizes: Sequence[int], digests: Iterable[bytes]
) -> dict[str, np.ndarray]:
    """The columns of the table of files; a SHA-256 of zeros: nobody has read all of the file."""
    data, starts = join_values(list(map(os.fsencode, names)))
    return {
        "file_bytes": np.array(sizes, np.int64),
        "file_digest": np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32),
        "file_path_data": data,
        "file_path_offsets": starts,
    }


# Columns of N+1 offsets → the column of what lies between them.
RAGGED = {
    "key_offsets": "key_data", "meta_offsets": "meta_data", "box_offsets": "boxes",
    "seek_offsets": "seek_data",
}  # fmt: skip


# Columns of the table of files → their types.
OF_FILES = {
    "file_bytes": ("<i8",), "file_digest": ("u1",),
    "file_path_data": ("u1",), "file_path_offsets": ("<i8",),
}  # fmt: skip


def absent(name: str, dtype: np.dtype, tail: Sequence[int], count: int) -> np.ndarray:
    """A column for samples that have no such value: an offset is -1, all else 0 or empty."""
    if name in RAGGED:
        return np.zeros(count + 1, dtype)
    if name in RAGGED.values() or name.startswith("boxes/"):
        return np.zeros((0, *tail), dtype)
    return np.full((count, *tail), -1 if name.endswith("/offset") else 0, dtype)


def alike(
    tables: Sequence[Mapping[str, np.ndarray]], names: Iterable[str], where: object
) -> list[dict[str, np.ndarray]]:
    """The tables with the same columns each, of those named; see `absent`."""
    like = {name: column for table in tables for name, column in table.items()}
    like = {name: like[name] for name in names}
    for name in [n for n in like if n.startswith("boxes/")]:
        if any(t[name].dtype.kind == "f" for t in tables if name in t):
            like[name] = np.zeros(0, np.float32)
    found = []
    for table in tables:
        count, full = len(table["image/offset"]), {}
        for name, column in like.items():
            of_boxes = name.startswith("boxes/")
            if name not in table and of_boxes and len(table.get("boxes", ())):
                raise OptionError(
                    f"{where}: some samples have boxes without the column "
                    f"{name.partition('/')[2]!r}"
                )
            own = table.get(name)
            if own is None:
                own = absent(name, column.dtype, column.shape[1:], count)
            full[name] = own.astype(column.dtype) if of_boxes else own
        found.append(full)
    return found


def join_tables(
    tables: Sequence[Mapping[str, np.ndarray]], files: Sequence[int]
) -> dict[str, Content]:
    """Columns of several indexes, one behind the other; the order of the keys is made anew.

    Columns with a row a sample come in pieces, made while they are written.
    """
    result: dict[str, Content] = {}
    for name in sorted(set().union(*tables) - {*OF_FILES, "key_order"}):
        parts = [table[name] for table in tables]
        if name in RAGGED:
            result[name] = concatenate_offsets(parts)
        elif name.endswith("/file"):
            starts = list(itertools.accumulate(files, initial=0))
            result[name] = concatenate(parts, starts[: len(parts)])
        else:
            result[name] = concatenate(parts)
    keys = [Keys(t["key_data"], t["key_offsets"], t["key_order"]) for t in tables]
    count = len(result["key_offsets"]) - 1
    dtype = np.dtype(np.uint32 if count < 1 << 32 else np.int64)
    result["key_order"] = Pieces(dtype, (count,), lambda: merge_order(keys))
    return result | join_files(tables, files)


def take_files(table: Mapping[str, np.ndarray], rows: Sequence[int]) -> dict[str, np.ndarray]:
    """Some rows of a table of files."""
    paths = list(split_values(table["file_path_data"], table["file_path_offsets"]))
    sizes, digests = table["file_bytes"], table["file_digest"]
    chosen = [paths[i] for i in rows], [sizes[i] for i in rows], [bytes(digests[i]) for i in rows]
    return object_columns(*chosen)


def join_files(tables: Sequence[Mapping[str, Any]], files: Sequence[int]) -> dict[str, Content]:
    """Tables of files as one; ``files`` of each come first, then the sidecars of all."""
    paths = [list(split_values(t["file_path_data"], t["file_path_offsets"])) for t in tables]
    order = [(t, i) for t, n in enumerate(files) for i in range(n)]
    order += [(t, i) for t, n in enumerate(files) for i in range(n, len(paths[t]))]
    return {**object_columns(
        [paths[t][i] for t, i in order], [tables[t]["file_bytes"][i] for t, i in order],
        [bytes(tables[t]["file_digest"][i]) for t, i in order],
    )}  # fmt: skip


def split_values(data: np.ndarray, starts: np.ndarray) -> Iterator[bytes]:
    """What `join_values` joined."""
    values = data.tobytes()
    return (values[a:b] for a, b in itertools.pairwise(starts.tolist()))


def sha256(path: Path) -> bytes:
    """SHA-256 of a file."""
    digest, buffer = hashlib.sha256(), memoryview(bytearray(1 << 20))
    with files.open_file(path) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.digest()


class Keys(NamedTuple):
    """Keys, and their order."""

    data: np.ndarray  # (bytes,) uint8, the keys end to end
    starts: np.ndarray  # (N+1,) int64, where each begins, and the end of the last
    order: np.ndarray  # (N,) rows in the order of their keys

    def iterate_sorted(self, first: int) -> Iterator[tuple[bytes, int]]:
        """The keys in their order, each with its row; ``first`` is added to the rows."""
        before = b""
        for i in range(0, len(self.order), _ROWS):
            rows = self.order[i : i + _ROWS].astype(np.int64)
            begins, ends = self.starts[rows].tolist(), self.starts[rows + 1].tolist()
            for row, begin, end in zip((rows + first).tolist(), begins, ends, strict=True):
                key = self.data[begin:end].tobytes()
                if key < before:
                    raise _disordered()
                before = key
                yield key, row


def merge_order(tables: Sequence[Keys]) -> Iterator[np.ndarray]:
    """Rows of several tables, one behind the other, in the order of their keys.

    Keys that are alike stay in the order of their rows.
    """
    for table in tables:
        _check_order(table)
    firsts = itertools.accumulate((len(table.order) for table in tables), initial=0)
    merged = heapq.merge(
        *(t.iterate_sorted(first) for t, first in zip(tables, firsts, strict=False))
    )
    while rows := [row for _, row in itertools.islice(merged, _ROWS)]:
        yield np.array(rows, np.int64)


def _check_order(table: Keys) -> None:
    """Check that an order has each row once."""
    if not (count := len(table.order)):
        return
    seen = np.zeros(count, bool)
    if 0 <= int(table.order.min()) <= int(table.order.max()) < count:
        seen[table.order] = True
    if not seen.all():
        raise _disordered()


def _disordered() -> IntegrityError:
    return IntegrityError(
        "the order of the keys in an index is wrong; make it anew: packio reindex"
    )


def key_order(data: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, bool]:
    """Rows in the bytewise order of their keys, (N,) int64, and whether no two keys are alike.

    Keys that are alike stay in the order of their rows. The arguments are as of `Keys`.
    """
    keys = list(split_values(data, starts))
    order = sorted(range(len(keys)), key=keys.__getitem__)
    all_differ = all(keys[a] != keys[b] for a, b in itertools.pairwise(order))
    return np.array(order, np.int64), all_differ
