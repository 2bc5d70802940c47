"""The samples of a container, collected entry by entry, and the columns of its index."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from packio.errors import DecodeError, OptionError
from packio.formats import Entry
from packio.images import encodings
from packio.index import columns as made
from packio.index import indexfile
from packio.index.raw_blocks import RawBlocks
from packio.storage.local import LocalFiles


class Samples:
    """The samples of a container; each is read, its header and checksum are taken.

    Args:
        root: Folder that the names are relative to.
        names: Of all files of all shards, sorted.
        container: The module of its format.
        label_offset: Added to labels that are ints.

    Attributes:
        skipped: How many entries were no images.
        first_problem: What the first of them is.
        least_label: The smallest label that is an int, as it was found.
        by_library: Whether some samples are no byte ranges; then the column ``offset`` has the
            record numbers of all, for the format's Reader.
    """

    def __init__(
        self, root: Path, names: Sequence[str], container: ModuleType, label_offset: int
    ) -> None:
        self._root, self._names, self._container = root, names, container
        self._label_offset = label_offset
        self._numbers = {name: i for i, name in enumerate(names)}
        sizes = [(root / name).stat().st_size for name in names]
        self._storage = LocalFiles(root, names, sizes)
        self._rows: list[tuple[int, ...]] = []
        self._records = array("q")  # number of each in its shard
        self._masks: list[tuple[int, ...]] = []
        self._keys: list[bytes] = []
        self._labels: list[Any] = []
        self._metas: list[bytes | None] = []
        self._boxes: list[Any] = []
        self._box_labels: list[Any] = []
        self._raw = RawBlocks()
        self.skipped = 0
        self.first_problem = ""
        self.least_label: int | None = None
        self.by_library = False

    def __len__(self) -> int:
        return len(self._rows)

    def add_shard(self, shard: str, entries: Iterable[Entry], reader: Any) -> int:
        """Collect one shard; return how many samples it has.

        Args:
            shard: Its name, relative to the root.
            entries: What it holds.
            reader: Reads the entries that are no byte ranges.
        """
        before = len(self)
        folder = Path(shard) if (self._root / shard).is_dir() else Path(shard).parent
        prefix = "" if folder == Path() else f"{folder}/"  # of the names of the shard's files
        for number, entry in enumerate(entries):
            try:
                self._add(entry, number, prefix, reader)
            except DecodeError as error:
                self.skipped += 1
                self.first_problem = self.first_problem or f"{entry.name!r}: {error}"
        self._raw.end_shard()
        return len(self) - before

    def _add(self, entry: Entry, number: int, prefix: str, reader: Any) -> None:
        file = self._numbers[prefix + entry.file]
        if entry.offset < 0:
            self.by_library = True
            data = reader.get(number)
        else:
            data = self._storage.read(file, entry.offset, entry.length)
        if entry.split:
            data = self._container.unsplit(data)
        facts = entry.facts or encodings.read_facts(data)
        if entry.facts is not None:
            encodings.check_raw(facts, len(data))
        flags = indexfile.flags_of(facts)
        flags |= indexfile.SPLIT_RECORD if entry.split else 0
        length = len(data) if entry.offset < 0 else entry.length
        self._rows.append((
            file, entry.offset, length, indexfile.crc32c(data), facts.height, facts.width,
            encodings.CODES[facts.encoding], facts.orientation, facts.channels,
            encodings.DTYPES.index(facts.dtype), flags,
        ))  # fmt: skip
        self._records.append(number)
        self._raw.add(facts, data)
        self._keys.append(entry.key if entry.key is not None else entry.name)
        self._labels.append(self._label(entry.label))
        self._metas.append(entry.meta)
        self._boxes.append(entry.boxes)
        self._box_labels.append(entry.box_labels)
        if entry.mask is not None:
            self._add_mask(entry.mask, prefix)

    def _label(self, label: int | tuple[float, ...] | None) -> int | tuple[float, ...] | None:
        if not isinstance(label, int):
            return label
        self.least_label = label if self.least_label is None else min(label, self.least_label)
        moved = label + self._label_offset
        if not -(1 << 63) <= moved < 1 << 63:
            raise OptionError(f"label {label} with label_offset={self._label_offset}: "
                              "does not fit 64 bits")  # fmt: skip
        return moved

    def _add_mask(self, place: tuple[str, int, int], prefix: str) -> None:
        name, offset, length = place
        file = self._numbers[prefix + name]
        mask = self._storage.read(file, offset, length)
        try:
            encoding = encodings.read_facts(mask).encoding
        except DecodeError:
            encoding = "unknown"
        code = encodings.CODES[encoding]
        self._masks.append((file, offset, length, indexfile.crc32c(mask), code))

    def classes(self) -> list[str]:
        """Names of int labels: the folders in the keys, where each label has one of its own."""
        names: dict[int, str] = {}
        for label, key in zip(self._labels, self._keys, strict=True):
            folder = os.fsdecode(key).partition("/")
            if not isinstance(label, int) or not folder[1]:
                return []
            if names.setdefault(label, folder[0]) != folder[0]:
                return []
        complete = sorted(names) == list(range(len(names)))
        return [names[i] for i in sorted(names)] if complete else []

    def columns(self) -> dict[str, np.ndarray]:
        """The columns of the index."""
        names = ("file", "offset", "length", "crc32c", "height", "width", "encoding",
                 "orientation", "channels", "dtype", "flags")  # fmt: skip
        columns = _typed(names, self._rows)
        if self.by_library:
            columns["offset"] = np.array(self._records, np.int64)
        if len(set(self._keys)) != len(self._keys):  # not unique: the position makes them so
            self._keys = [b"%08d/%s" % (i, k) for i, k in enumerate(self._keys)]
        columns |= made.of_keys(self._keys) | made.of_files(self._root, self._names)
        return columns | self._label_column() | self._optional_columns() | self._raw.columns()

    def _label_column(self) -> dict[str, np.ndarray]:
        if any(label is None for label in self._labels):
            return {}
        if all(isinstance(label, int) for label in self._labels):
            return {"label": np.array(self._labels, np.int64)}
        widths = {len(label) if isinstance(label, tuple) else -1 for label in self._labels}
        return {"label": np.array(self._labels, np.float32)} if len(widths) == 1 else {}

    def _optional_columns(self) -> dict[str, np.ndarray]:
        columns: dict[str, np.ndarray] = {}
        if len(self._masks) == len(self._rows):
            names = ("mask_file", "mask_offset", "mask_length", "mask_crc32c", "mask_encoding")
            columns |= _typed(names, self._masks)
        metas = [meta for meta in self._metas if meta is not None]
        if len(metas) == len(self._rows):
            columns["meta_data"], columns["meta_offsets"] = made.ragged(metas)
        if all(boxes is not None for boxes in self._boxes):
            flat = [box for boxes in self._boxes for box in boxes]
            columns["boxes"] = np.array(flat, np.float32).reshape(-1, 4)
            columns["box_offsets"] = made.offsets(map(len, self._boxes))
            if all(labels is not None for labels in self._box_labels):
                flat = [label for labels in self._box_labels for label in labels]
                columns["box_labels"] = np.array(flat, np.int64)
        return columns


_WIDE = {"offset", "length", "mask_offset", "mask_length"}
_NARROW = {"encoding", "orientation", "channels", "dtype", "flags", "mask_encoding"}


def _typed(names: Sequence[str], rows: list[tuple[int, ...]]) -> dict[str, np.ndarray]:
    columns = {}
    for name, values in zip(names, zip(*rows, strict=True), strict=True):
        dtype = np.int64 if name in _WIDE else np.uint8 if name in _NARROW else np.uint32
        columns[name] = np.array(values, dtype)
    return columns
