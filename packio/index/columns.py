"""Columns of an index, made of Python values."""

from __future__ import annotations

import hashlib
import itertools
import os
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from packio.errors import OptionError
from packio.index.column import Content, Pieces, concatenate, concatenate_offsets
from packio.index.sorting import Keys, key_order, merged_order
from packio.system import files
from packio.system.pools import ThreadPool


def ragged(values: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Values of different lengths as one uint8 array, and N+1 offsets into it."""
    return np.frombuffer(b"".join(values), np.uint8), offsets(map(len, values))


def offsets(lengths: Iterable[int]) -> np.ndarray:
    """N+1 int64 offsets of N values that lie one behind the other."""
    found = lengths if isinstance(lengths, array) else array("q", lengths)
    counts = np.frombuffer(found, np.int64)
    result = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=result[1:])
    return result


def of_keys(keys: Sequence[bytes]) -> dict[str, np.ndarray]:
    """The columns of keys: their bytes, and their order for lookup by bisection."""
    return of_joined_keys(*ragged(keys))[0]


def of_joined_keys(data: np.ndarray, starts: np.ndarray) -> tuple[dict[str, np.ndarray], bool]:
    """The columns of keys that `ragged` has joined, and whether all keys differ."""
    order, all_differ = key_order(data, starts)
    dtype = np.uint32 if len(order) < 1 << 32 else np.int64
    columns = {"key_data": data, "key_offsets": starts, "key_order": order.astype(dtype)}
    return columns, all_differ


def of_numbered_keys(data: np.ndarray, starts: np.ndarray) -> dict[str, np.ndarray]:
    """The columns of keys that are not all different: the row before each makes them so."""
    text, lengths = bytearray(), array("q")
    for row in range(len(starts) - 1):
        key = b"%08d/%s" % (row, data[starts[row] : starts[row + 1]].tobytes())
        text += key
        lengths.append(len(key))
    return of_joined_keys(np.frombuffer(text, np.uint8), offsets(lengths))[0]


def of_files(root: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """The columns of the table of files: paths relative to the root, sizes, SHA-256."""
    with ThreadPool(4, "packio-digest") as pool:
        digests = list(pool.map(lambda name: sha256(root / name), names))
    return of_objects(names, [(root / name).stat().st_size for name in names], digests)


def of_objects(
    names: Sequence[str], sizes: Sequence[int], digests: Sequence[bytes]
) -> dict[str, np.ndarray]:
    """The columns of the table of files; a SHA-256 of zeros: nobody has read all of the file."""
    data, starts = ragged([os.fsencode(name) for name in names])
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


def joined(tables: Sequence[Mapping[str, np.ndarray]], files: Sequence[int]) -> dict[str, Content]:
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
    result["key_order"] = Pieces(dtype, (count,), lambda: merged_order(keys))
    return result | joined_files(tables, files)


def chosen_files(table: Mapping[str, np.ndarray], rows: Sequence[int]) -> dict[str, np.ndarray]:
    """Some rows of a table of files."""
    paths = _split(table["file_path_data"], table["file_path_offsets"])
    data, starts = ragged([paths[i] for i in rows])
    return {
        "file_bytes": table["file_bytes"][list(rows)],
        "file_digest": table["file_digest"][list(rows)],
        "file_path_data": data,
        "file_path_offsets": starts,
    }


def joined_files(tables: Sequence[Mapping[str, Any]], files: Sequence[int]) -> dict[str, Content]:
    """Tables of files as one; ``files`` of each come first, then the sidecars of all."""
    paths = [_split(t["file_path_data"], t["file_path_offsets"]) for t in tables]
    order = [(t, i) for t, n in enumerate(files) for i in range(n)]
    order += [(t, i) for t, n in enumerate(files) for i in range(n, len(paths[t]))]
    data, starts = ragged([paths[t][i] for t, i in order])
    return {
        "file_bytes": np.array([tables[t]["file_bytes"][i] for t, i in order], np.int64),
        "file_digest": np.array(
            [tables[t]["file_digest"][i] for t, i in order], np.uint8
        ).reshape(-1, 32),
        "file_path_data": data,
        "file_path_offsets": starts,
    }  # fmt: skip


def _split(data: np.ndarray, starts: np.ndarray) -> list[bytes]:
    """What `ragged` joined."""
    values = data.tobytes()
    return [values[a:b] for a, b in itertools.pairwise(starts.tolist())]


def sha256(path: Path) -> bytes:
    """SHA-256 of a file."""
    digest, buffer = hashlib.sha256(), memoryview(bytearray(1 << 20))
    with files.opened(path) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.digest()
