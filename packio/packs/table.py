"""What the index of a pack says of its samples: rows, keys, labels, boxes, metadata, splits."""

from __future__ import annotations

import functools
import itertools
import json
import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packio import registry
from packio.errors import (
    IntegrityError,
    Naming,
    NotAPackError,
    OptionError,
)
from packio.formats import Format
from packio.images import encodings
from packio.index.column import constant_column
from packio.index.indexfile import PROGRESSIVE, Index, Keys, NumberColumns
from packio.sample import levels
from packio.sample.fields import PIXELS
from packio.sample.record import IMAGE, Facts


class Row(NamedTuple):
    """What the index says of one value: the image of a sample, or another named field of it."""

    position: int  # of the sample in the pack
    file: int
    offset: int  # bytes; -1: the sample has no such field
    length: int  # bytes
    crc32c: int
    height: int  # pixels, as stored; 0 where the value is no picture
    width: int  # pixels, as stored
    channels: int
    orientation: int  # 1..8
    flags: int  # bits of packio.index.indexfile
    encoding: str
    dtype: str


FEW = 4  # rows: fewer are looked up one by one, which takes less time than columns
_NAMES = Row._fields[1:]
_NEEDED = ("file", "offset", "length", "crc32c")
_ABSENT = [1 if name == "orientation" else 0 for name in _NAMES]  # where there is no column
_new_row = functools.partial(tuple.__new__, Row)  # of an iterable: a third of the time of _make


class RowList(list[Row]):
    """What the index says of some values: a row for each, and the numbers of all in columns.

    Columns, (N,) integers by name, are given as far as they are at hand.
    """

    def __init__(
        self, rows: Iterable[Row], columns: Mapping[str, np.ndarray] | None = None
    ) -> None:
        super().__init__(rows)
        self._columns = columns or {}

    def column(self, name: str) -> np.ndarray:
        """One number of each row, (N,) int64."""
        if name in self._columns:
            return self._columns[name].astype(np.int64)
        at = Row._fields.index(name)
        return np.array([row[at] for row in self], np.int64)

    def file_order(self) -> list[int]:
        """Positions in the list by file and offset: the order to read the values in."""
        if len(self) < FEW:
            return sorted(range(len(self)), key=lambda i: self[i][1:3])  # file, offset
        order: list[int] = np.lexsort((self.column("offset"), self.column("file"))).tolist()
        return order


class RowTable:
    """The rows of one named field, looked up by the positions of their samples."""

    def __init__(self, index: Index, name: str) -> None:
        self._where = f"{index.path}, field {name}"
        found = {n: index.column(f"{name}/{n}") for n in _NAMES if f"{name}/{n}" in index}
        needed = (*_NEEDED, "encoding") if index.fields[name] in PIXELS else _NEEDED
        if not found.keys() >= set(needed) or {len(c) for c in found.values()} != {len(index)}:
            raise IntegrityError(f"{self._where}: columns are missing, or of another length")
        self._columns = [
            found[name] if name in found else constant_column(absent, len(index))
            for name, absent in zip(_NAMES, _ABSENT, strict=True)
        ]
        self._index = index
        self.numbers: NumberColumns = NumberColumns(self._columns, index)

    def row(self, position: int) -> Row:
        """The row of one sample, which is in range."""
        *numbers, encoding, dtype = self.numbers(position)
        return _new_row((position, *numbers, *self.names(encoding, dtype)))

    def rows(self, positions: np.ndarray) -> RowList:
        """The rows of some samples, which are in range."""
        if len(positions) < FEW:
            return RowList(map(self.row, positions.tolist()))
        self._index.check_length()
        self._index.bring(self._columns, positions)
        columns = [column.take(positions) for column in self._columns]
        *numbers, encoding, dtype = (column.tolist() for column in columns)
        known = {pair: self.names(*pair) for pair in {*zip(encoding, dtype, strict=True)}}
        names = [known[pair] for pair in zip(encoding, dtype, strict=True)]
        each = zip(positions.tolist(), *numbers, *zip(*names, strict=True), strict=True)
        return RowList(map(_new_row, each), dict(zip(_NAMES[:-2], columns, strict=False)))

    def names(self, encoding: int, dtype: int) -> tuple[str, str]:
        """Names of the codes of an encoding and of a dtype."""
        if dtype >= len(encodings.DTYPES):  # an IndexError would end a for loop
            raise IntegrityError(f"{self._where}: column dtype has the unknown code {dtype}")
        return encodings.NAMES.get(encoding, "unknown"), encodings.DTYPES[dtype]


class PackTable:
    """The samples of a pack as its index describes them; no byte of a sample is read.

    Attributes:
        path: Of the pack.
        index_file: The index.
        format: The format of the shards.
        fields: Kind of each named field: "image", "mask", "array", "text" or "bytes".
        levels: Divisor → name of the fields that are levels of the images, the smallest first.
        box_columns: Names of the columns that boxes have, as "labels" and "crowd".
        meta_kinds: Name in the samples' metadata → types of its values, as far as a query has found
            them; see `packio.packs.querying.expressions`.
    """

    def __init__(self, path: Path, index: Index) -> None:
        self.path: Path = path
        self.index_file: Index = index
        name = index.metadata.get("format")
        try:
            self.format: Format = registry.load("formats", str(name))
        except OptionError as error:
            raise NotAPackError(
                f"{index.path}: format {name!r} is unknown to this packio"
            ) from error
        self._count = len(index)
        shards = [(s["name"], s["samples"]) for s in index.metadata.get("shards", [])]
        if sum(count for _, count in shards) != self._count:
            raise NotAPackError(
                f"{index.path}: its shards do not have the {self._count} samples it has"
            )
        firsts = itertools.accumulate((count for _, count in shards), initial=0)
        # Names, relative to the index, and the position of the first sample of each
        self._shards = list(zip((name for name, _ in shards), firsts, strict=False))
        whole = {"found": self._count, "packed": self._count, "skipped": 0}
        index.metadata["counts"] = whole | index.metadata.get("counts", {})
        self._label = index.column("label") if "label" in index else None
        self._label_is_int = self._label is not None and len(self._label.shape) == 1
        self.fields: dict[str, str] = index.fields
        self.levels: dict[int, str] = levels.list_levels(self.fields)
        self._tables = {name: RowTable(index, name) for name in self.fields}
        self.box_columns: tuple[str, ...] = index.box_columns
        self._box_columns = [n for n in self.box_columns if n != "labels"]
        self.meta_kinds: dict[str, frozenset[str]] = {}
        self._splits: list[str] = index.metadata.get("splits", []) if "split" in index else []

    def __len__(self) -> int:
        return self._count

    def row(self, index: int, name: str = IMAGE) -> Row:
        """The row of one sample; see `rows`."""
        return self._table(name).row(self._position(index))

    def _table(self, name: str) -> RowTable:
        if name not in self._tables:
            known = ", ".join(self.fields)
            raise OptionError(f"{self.path}: no field {name!r}; there are: {known}")
        return self._tables[name]

    def positions(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """Positions in the pack, (N,) int64 from 0 on; negative indices count from the end.

        Raises:
            IndexError: an index is out of range.
        """
        wanted, size = np.asarray(indices, np.int64), len(self)
        if len(wanted) and not 0 <= wanted.min() <= wanted.max() < size:
            bad = wanted[(wanted < -size) | (wanted >= size)]
            if len(bad):
                raise IndexError(
                    f"index {bad[0]} is out of range: {self.path} has {size} samples"
                    "; a sampler must be made of the same dataset"
                )
            return wanted % size
        return wanted

    def rows(self, indices: Sequence[int] | np.ndarray, name: str = IMAGE) -> RowList:
        """The rows of some samples: what the index says of the values of one field.

        Raises:
            IndexError: an index is out of range.
            IntegrityError: the index is damaged there.
            OptionError: the pack has no field of this name.
        """
        return self._table(name).rows(self.positions(indices))

    def bring(self, name: str, positions: np.ndarray) -> None:
        """Have what the index says of some samples come at once, if the index is far away.

        The name is "key", "meta", "seek" (seek points) or "box"; positions are 0..len-1.
        """
        self.index_file.bring_ragged(f"{name}_offsets", positions)

    def facts(self, name: str, index: int) -> Facts:
        """What the index says of the pixels of a field of kind image or mask."""
        row = self.row(index, name)
        return Facts(
            row.encoding, row.height, row.width, row.channels, row.dtype, row.orientation,
            progressive=bool(row.flags & PROGRESSIVE),
        )  # fmt: skip

    def meta(self, index: int) -> dict[str, Any] | None:
        """The metadata of a sample; None if there is none.

        Raises:
            IntegrityError: the metadata is not a JSON object.
        """
        text = self.meta_bytes(index)
        if text is None:
            return None
        try:
            meta = json.loads(text.decode("utf-8", "surrogatepass"))
        except (ValueError, RecursionError) as error:
            raise self._damaged(index, "metadata", f"no JSON in UTF-8 ({error})") from error
        if not isinstance(meta, dict):
            raise self._damaged(index, "metadata", f"a {type(meta).__name__}, expected an object")
        return meta

    def _damaged(self, index: int, what: str, problem: str) -> IntegrityError:
        return IntegrityError(
            f"{self.index_file.path}: {what} of sample {index}: {problem}; restore the index or "
            "pack again"
        )

    def meta_bytes(self, index: int) -> bytes | None:
        """The metadata of a sample as packed, a JSON object in UTF-8; None if there is none."""
        return self._ragged_bytes("meta_data", "meta_offsets", index) or None

    def seek_points(self, index: int) -> bytes:
        """Where the decoding of a sample's JPEG may begin; empty if the index does not say.

        See `packio.images.native`.
        """
        return self._ragged_bytes("seek_data", "seek_offsets", index)

    def _ragged_bytes(self, name: str, offsets: str, index: int) -> bytes:
        if name not in self.index_file:
            return b""
        return self._ragged(name, offsets, index).tobytes()

    def _ragged(self, name: str, offsets: str, index: int) -> np.ndarray:
        """The values of a sample in a column that has different numbers of them."""
        position = self._position(index)
        start, stop = self.index_file.column(offsets).span(position, position + 2).tolist()
        return self.index_file.column(name).span(start, stop)

    def seek_points_of(self, positions: np.ndarray) -> list[bytes]:
        """`seek_points` of samples at positions, 0..len-1: 0.4 µs each, not 1.3."""
        if "seek_data" not in self.index_file:
            return [b""] * len(positions)
        offsets, data = self.index_file.column("seek_offsets"), self.index_file.column("seek_data")
        spans = zip(
            offsets.take(positions).tolist(), offsets.take(positions + 1).tolist(), strict=True
        )
        return [data.span(*span).tobytes() for span in spans]

    def split_of(self, index: int) -> str | None:
        """Name of the split of a sample; None in a pack without splits."""
        if not self._splits:
            return None
        number = self.index_file.column("split").item(self._position(index))
        if number >= len(self._splits):
            raise self._damaged(index, "split", f"number {number} of {len(self._splits)}")
        return self._splits[number]

    def more_of_boxes(self, index: int) -> dict[str, np.ndarray]:
        """Columns of a sample's boxes beside their labels: name → (k,) int64 or float32."""
        return {
            n: self._ragged(f"boxes/{n}", "box_offsets", index).copy() for n in self._box_columns
        }

    def boxes(self, index: int) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Boxes (k, 4) float32 XYXY in pixels and their labels (k,) int64; None if absent."""
        if "boxes" not in self.index_file:
            return None, None
        boxes = self._ragged("boxes", "box_offsets", index).copy()
        if "boxes/labels" not in self.index_file:
            return boxes, None
        return boxes, self._ragged("boxes/labels", "box_offsets", index).copy()

    def key(self, index: int) -> str:
        """Key of a sample; bytes that are not UTF-8 are surrogate-escaped."""
        return os.fsdecode(self.key_bytes(index))

    def key_bytes(self, index: int) -> bytes:
        """Key of a sample as raw bytes."""
        return self.index_file.key(self._position(index))

    def _position(self, index: int) -> int:
        size = self._count
        try:
            number = operator.index(index)
        except TypeError as error:
            raise TypeError(
                f"{self.path}: index {index!r}; expected a whole number, as find(key) gives"
            ) from error
        if not -size <= number < size:
            raise IndexError(f"index {number} is out of range: {self.path} has {size} samples")
        return number % size

    def naming(self, row: Row, name: str = IMAGE) -> Naming:
        """Put the name of the sample before what is wrong with a value, whatever is raised."""
        part = "sample" if name == IMAGE else f"{name} of sample"
        number = row.position
        return Naming(lambda: f"{self.path}, {part} {number} ({self.key(number)!r})")

    def keys(self) -> Sequence[str]:
        """All keys, in order, decoded lazily."""
        return Keys(self.index_file)

    def find(self, key: str | bytes) -> int:
        """Index of the sample with this key.

        Raises:
            KeyNotFoundError: there is none.
        """
        return self.index_file.find(os.fsencode(key))

    def label(self, index: int) -> int | np.ndarray | None:
        """Label of a sample: an int, a (k,) float32 vector, or None in a pack without labels."""
        if self._label is None:
            return None
        position = self._position(index)
        if self._label_is_int:
            return self._label.item(position)
        vector: np.ndarray = self._label.span(position, position + 1)[0].copy()
        return vector

    def take_labels(self, indices: np.ndarray) -> np.ndarray:
        """Copy the labels of some samples of a labelled pack: (n,) int64 or (n, k) float32."""
        assert self._label is not None  # noqa: S101 (for the type checker)
        return self._label.take(indices)

    @property
    def labels(self) -> np.ndarray | None:
        """All labels: (N,) int64 or (N, k) float32, read-only; None if there are none."""
        if self._label is None:
            return None
        labels = self._label.array()
        if self.index_file.length is not None:  # a view of a map would show what is written later
            labels = labels.copy()
            labels.flags.writeable = False
        return labels

    def split(self, name: str) -> np.ndarray:
        """Positions of the samples of a split, (n,) int64, ascending.

        Raises:
            OptionError: the pack has no such split.
        """
        names = self._splits
        if name not in names or "split" not in self.index_file:
            known = f"there are: {', '.join(names)}" if names else "it has none"
            raise OptionError(f"{self.path}: no split {name!r}; {known}")
        return np.flatnonzero(self.index_file.column("split").array() == names.index(name))

    @property
    def classes(self) -> list[str]:
        """Class names; a label is a position in this list."""
        return list(self.index_file.metadata.get("classes") or [])

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Label of each class name."""
        return {name: i for i, name in enumerate(self.classes)}

    @property
    def metadata(self) -> dict[str, Any]:
        """The index's metadata: format, counts, source, options, versions."""
        return self.index_file.metadata

    @property
    def digest(self) -> str:
        """Hexadecimal SHA-256 that identifies the pack's contents."""
        return self.index_file.digest
