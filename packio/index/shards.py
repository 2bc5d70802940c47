"""The index of a pack of shards: a small manifest, and one index file for each shard.

The manifest is an index file, too (`packio.index.indexfile`). Instead of columns with a row a
sample it has the table of all files, and columns with a row a shard:

* ``shard_samples`` int64: samples of the shard;
* ``shard_first_file`` int64: the number that the shard's file 0 has in the table of files;
* ``shard_digest`` (S, 32) uint8: the digest of the shard's index, `Index.digest`;
* ``shard_index_data`` uint8, ``shard_index_offsets`` int64: paths of the shards' indexes, relative
  to the manifest;
* ``shard_lengths`` (S, C) int64: lengths of the C columns that the metadata list as ``columns``,
  each as [name, dtype, further axes];
* optional ``shard_keys_data`` uint8, ``shard_keys_offsets`` (2S+1) int64: the least and the
  greatest key of each shard, empty in a shard without samples. A key is looked for in the shards
  that may have it: in one of them if the samples were packed in the order of their keys.

`joined` makes of them the columns of the whole pack. A shard's index is mapped when a row of it is
first touched, so that a pack of any size opens at once.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from packio.errors import IntegrityError, NotAPackError
from packio.index import columns
from packio.index.column import Column
from packio.index.columns import OF_FILES, RAGGED
from packio.index.joined import JoinedColumn, JoinedKeyOrder, JoinedOffsets
from packio.system import files
from packio.system.caching import cached_property

if TYPE_CHECKING:
    from packio.index.indexfile import Index

MARK = "shard_samples"  # the column that tells a manifest from the index of one shard
_PER_SHARD = {
    MARK: "<i8", "shard_first_file": "<i8", "shard_digest": "u1", "shard_index_offsets": "<i8",
    "shard_index_data": "u1", "shard_lengths": "<i8",
}  # fmt: skip


class Shards:
    """The indexes of the shards of a pack, opened when they are needed.

    Args:
        table: The manifest's own columns.
        metadata: Of the manifest.
        where: What an error message names.
        opened: Opens the index of a shard by its path, relative to the manifest.

    Raises:
        NotAPackError: the manifest does not add up.
    """

    def __init__(
        self, table: Mapping[str, Column], metadata: Mapping[str, Any], where: str,
        opened: Callable[[str, bool], Index],
    ) -> None:  # fmt: skip
        self.where: str = where
        self._opened = opened
        _check(table, metadata, where)
        arrays = {name: table[name].array() for name in _PER_SHARD}
        self.paths: Sequence[str] = _Paths(
            arrays["shard_index_data"], arrays["shard_index_offsets"], where
        )
        self.samples: np.ndarray = _edges(arrays[MARK])
        self.starts: list[int] = self.samples[:-1].tolist()
        self.first_files: np.ndarray = arrays["shard_first_file"]
        self._digests = arrays["shard_digest"]
        self._kinds = {name: (np.dtype(code), tuple(tail)) for name, code, *tail in
                       metadata["columns"]}  # fmt: skip
        lengths = arrays["shard_lengths"]
        self._edges = {}
        for i, name in enumerate(self._kinds):
            is_by_sample = np.array_equal(lengths[:, i], arrays[MARK])
            self._edges[name] = self.samples if is_by_sample else _edges(lengths[:, i])
        self._indexes: list[Index | None] = [None] * len(self.paths)
        self._keys = _keys_of_shards(table, len(self.paths), where)
        self._most_open = files.spare_descriptors() // 4  # indexes that keep a descriptor each

    def __len__(self) -> int:
        return len(self._indexes)

    def shard_of(self, row: int) -> int:
        """Number of the shard that has a row, which is in range."""
        return bisect.bisect_right(self.starts, row) - 1

    def index(self, number: int) -> Index:
        """The index of a shard.

        Raises:
            IntegrityError: the file is not the one that the manifest was made with, or it was
                truncated while it was open.
        """
        found = self._indexes[number]
        if found is None:  # two threads may open the same one
            found = self._opened(self.paths[number], len(self) <= self._most_open)
            if found.digest != self._digests[number].tobytes().hex():
                raise IntegrityError(
                    f"{found.path}: not the index that {self.where} was made with; restore it, "
                    "or pack again"
                )
            self._indexes[number] = found
        elif found.length is not None:
            found.length.check()
        return found

    def check_length(self, row: int) -> None:
        """Check that the index that has a row was not truncated while it was open."""
        self.check_shard(self.shard_of(row))

    def check_shard(self, number: int) -> None:
        """Check that the index of a shard was not truncated while it was open."""
        found = self._indexes[number]
        if found is not None and found.length is not None:
            found.length.check()

    def columns(self) -> dict[str, Column]:
        """The columns of the whole pack."""
        made: dict[str, Column] = {}
        for name, (dtype, tail) in self._kinds.items():
            edges = self._edges[name]
            bases = self.first_files if name.endswith("/file") else None
            if name in RAGGED:
                bases, edges = self._edges[RAGGED[name]], self.samples
                made[name] = JoinedOffsets(self, name, dtype, tail, edges, bases)
            elif name == "key_order":
                made[name] = JoinedKeyOrder(self, name, np.dtype(np.int64), tail, edges, bases)
            else:
                made[name] = JoinedColumn(self, name, dtype, tail, edges, bases)
        return made

    @cached_property
    def _ranges(self) -> list[tuple[bytes, bytes] | None]:
        """The least and the greatest key of each shard; None of a shard without samples."""
        counts = np.diff(self.samples).tolist()
        if self._keys is not None:
            data, starts = self._keys[0].tobytes(), self._keys[1].tolist()
            keys = [data[a:b] for a, b in itertools.pairwise(starts)]
            pairs = zip(keys[::2], keys[1::2], strict=True)
            return [pair if n else None for n, pair in zip(counts, pairs, strict=True)]
        return [_least_and_greatest(self.index(i)) if n else None for i, n in enumerate(counts)]

    def find(self, key: bytes) -> int | None:
        """Row of the sample with this key; None if there is none."""
        may_have = [i for i, r in enumerate(self._ranges) if r and r[0] <= key <= r[1]]
        for number in may_have:
            shard = self.index(number)
            rank = shard.rank(key)
            if rank < len(shard):
                row = shard.column("key_order").item(rank)
                if shard.key(row) == key:
                    return int(self.samples[number]) + row
        return None

    def rank(self, key: bytes) -> int:
        """How many keys come before this one in bytewise order."""
        total = 0
        for number, (found, count) in enumerate(
            zip(self._ranges, np.diff(self.samples).tolist(), strict=True)
        ):
            if found is None or key <= found[0]:
                continue
            total += count if key > found[1] else self.index(number).rank(key)
        return total

    def rows_from(self, key: bytes) -> Iterator[int]:
        """The rows whose keys are this one or come after it, in the order of their keys."""

        def of(number: int) -> Iterator[tuple[bytes, int]]:
            shard, first = self.index(number), int(self.samples[number])
            for row in shard.rows_from(key):
                yield shard.key(row), first + row

        for _, row in heapq.merge(*map(of, range(len(self)))):
            yield row


class _Paths(Sequence[str]):
    """Paths of the indexes of shards, decoded one by one as they are asked for."""

    def __init__(self, data: np.ndarray, starts: np.ndarray, where: str) -> None:
        self._data, self._starts = data.tobytes(), starts
        lengths = np.diff(starts)
        if len(starts) and (starts[0] != 0 or starts[-1] != len(data) or np.any(lengths < 0)):
            raise NotAPackError(f"{where}: its table of paths does not add up")
        doubtful = np.any(lengths == 0) or b".." in self._data or b"\0" in self._data
        if doubtful or np.any(data[starts[:-1]] == ord("/")):
            for path in self:
                if not path or path.startswith("/") or ".." in path.split("/") or "\0" in path:
                    raise NotAPackError(f"{where}: names {path!r}, which is no index of a shard")

    def __len__(self) -> int:
        return len(self._starts) - 1

    @overload
    def __getitem__(self, number: int) -> str: ...
    @overload
    def __getitem__(self, number: slice) -> list[str]: ...
    def __getitem__(self, number: int | slice) -> str | list[str]:
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        if not 0 <= number < len(self):
            raise IndexError(number)
        return os.fsdecode(self._data[self._starts[number] : self._starts[number + 1]])


def table(
    indexes: Sequence[Index], paths: Sequence[str], first_files: Sequence[int]
) -> tuple[dict[str, np.ndarray], list[list[Any]]]:
    """The manifest's columns of shards, and its metadata ``columns``.

    Args:
        indexes: Of the shards, all with the same columns.
        paths: Of the shards' indexes, relative to the manifest.
        first_files: The number of each shard's file 0 in the manifest's table of files.
    """
    kinds: dict[str, list[Any]] = {}
    for index in indexes:
        for name in index.column_names:
            if name not in OF_FILES:
                column = index.column(name)
                kinds[name] = [name, column.dtype.str, *column.shape[1:]]
    names = sorted(kinds)
    data, starts = columns.ragged([os.fsencode(path) for path in paths])
    keys, of_keys = columns.ragged([key for index in indexes for key in _least_and_greatest(index)])
    made: dict[str, np.ndarray] = {
        MARK: np.array([len(index) for index in indexes], np.int64),
        "shard_first_file": np.array(first_files, np.int64),
        "shard_digest": np.frombuffer(
            b"".join(bytes.fromhex(index.digest) for index in indexes), np.uint8
        ).reshape(-1, 32),
        "shard_keys_data": keys,
        "shard_keys_offsets": of_keys,
        "shard_index_data": data,
        "shard_index_offsets": starts,
        "shard_lengths": np.array(
            [[_length(index, name) for name in names] for index in indexes], np.int64
        ).reshape(len(indexes), len(names)),
    }
    return made, [kinds[name] for name in names]


def _keys_of_shards(
    table: Mapping[str, Column], count: int, where: str
) -> tuple[np.ndarray, np.ndarray] | None:
    """The columns of the least and the greatest keys of the shards, if the manifest has them.

    Raises:
        NotAPackError: they do not add up.
    """
    if "shard_keys_data" not in table or "shard_keys_offsets" not in table:
        return None
    data, starts = (table[f"shard_keys_{name}"].array() for name in ("data", "offsets"))
    if not (
        data.dtype.str == "|u1" and starts.dtype.str == "<i8" and data.ndim == 1
        and starts.shape == (2 * count + 1,) and starts[0] == 0 and starts[-1] == len(data)
        and np.all(np.diff(starts) >= 0)
    ):  # fmt: skip
        raise NotAPackError(f"{where}: its table of keys does not add up")
    return data, starts


def _edges(counts: np.ndarray) -> np.ndarray:
    edges = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=edges[1:])
    return edges


def _least_and_greatest(index: Index) -> tuple[bytes, bytes]:
    if not len(index):
        return b"", b""
    order = index.column("key_order")
    return index.key(order.item(0)), index.key(order.item(len(index) - 1))


def _length(index: Index, name: str) -> int:
    if name in index:
        return len(index.column(name))
    return len(columns.absent(name, np.dtype(np.int64), (), len(index)))


def _check(table: Mapping[str, Column], metadata: Mapping[str, Any], where: str) -> None:
    missing = [name for name in _PER_SHARD if name not in table]
    if missing:
        raise NotAPackError(f"{where}: columns missing: {', '.join(missing)}")
    count = len(table[MARK])
    listed = metadata.get("columns")
    if not isinstance(listed, list) or not all(
        isinstance(entry, list) and len(entry) >= 2 and isinstance(entry[0], str)
        and entry[1] in _KNOWN and all(type(n) is int and n >= 0 for n in entry[2:])
        for entry in listed
    ):  # fmt: skip
        raise NotAPackError(f"{where}: its list of columns does not parse")
    expected = {
        MARK: (count,), "shard_first_file": (count,), "shard_digest": (count, 32),
        "shard_index_offsets": (count + 1,), "shard_lengths": (count, len(listed)),
    }  # fmt: skip
    for name, shape in expected.items():
        if table[name].shape != shape or table[name].dtype.str.lstrip("|") != _PER_SHARD[name]:
            raise NotAPackError(f"{where}: column {name} is {table[name].dtype} "
                                f"{table[name].shape}, expected {shape}")  # fmt: skip
    for name in (MARK, "shard_lengths", "shard_first_file"):
        if count and int(table[name].array().min(initial=0)) < 0:
            raise NotAPackError(f"{where}: column {name} has a negative number")


_KNOWN = {"|u1", "<u2", "<u4", "<i8", "<f4"}
