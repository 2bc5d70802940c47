"""Building an index: records go in one by one, the columns of all of them come out.

Sources and the scans of foreign containers both end here, so every index is made by one module.

Where all samples of a pack are raw pixels of one shape, order and dtype, a sample is a row, and the
column ``raw_crc32c`` has the CRC32C of each block of `rows_per_block` rows (about 1 MiB): of their
bytes end to end, wherever they lie. Blocks begin anew with each shard, whose last one may be
shorter.
"""

from __future__ import annotations

import mmap
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import google_crc32c
import numpy as np

from packio.errors import DecodeError, IntegrityError, OptionError
from packio.images import encodings
from packio.images.encodings import RAW
from packio.index import columns
from packio.index.indexfile import OF_PIXELS, OF_VALUES, PROGRESSIVE, SPLIT_RECORD, Index, crc32c
from packio.sample.fields import PIXELS
from packio.sample.record import IMAGE, UNKNOWN, Facts, Field, Record

_CODES = {"u1": "B", "<u4": "I", "<i8": "q"}  # dtype → type code of `array`
RAW_CRCS = "raw_crc32c"
_RAW_BYTES = 1 << 20  # of a block of raw pixels
_LARGE = 1 << 16  # bytes of a row; to check such a one, its neighbours need not be read


class Ranges(NamedTuple):
    """Where the values of one field lie, in the order the records were added."""

    file: np.ndarray  # (N,) uint32, which of the shard's files
    offset: np.ndarray  # (N,) int64 bytes; -1: the record has no such field
    length: np.ndarray  # (N,) int64 bytes
    split: np.ndarray | None = None  # (N,) bool: the range holds what the format's `unsplit` joins


class Ragged:
    """Values of bytes while they come in, end to end."""

    def __init__(self) -> None:
        self.data, self._lengths = bytearray(), array("q")

    def __len__(self) -> int:
        return len(self._lengths)

    def add(self, value: bytes) -> None:
        self.data += value
        self._lengths.append(len(value))

    def columns(self, name: str) -> dict[str, np.ndarray]:
        data = np.frombuffer(self.data, np.uint8)
        return {f"{name}_data": data, f"{name}_offsets": columns.offsets(self._lengths)}


class SampleColumns:
    """What records say beside the values of their fields: keys, labels, metadata and boxes."""

    def __init__(self) -> None:
        self.labels = _Labels()
        self._keys, self._metas = Ragged(), Ragged()
        self._boxes, self._box_counts = array("f"), array("q")
        self.box_columns: dict[str, _Numbers] | None = None  # None: no record has had boxes

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, record: Record[Field]) -> None:
        self._keys.add(record.key)
        self.labels.add(record.label)
        self._metas.add(record.meta or b"")
        if record.boxes is None:
            self._box_counts.append(0)
            return
        boxes = np.ascontiguousarray(record.boxes, np.float32).reshape(-1, 4)
        if self.box_columns is None:
            self.box_columns = {name: _Numbers() for name in record.box_columns}
        elif record.box_columns.keys() != self.box_columns.keys():
            raise OptionError(
                f"{record.key!r}: boxes with {sorted(record.box_columns)}, those before with "
                f"{sorted(self.box_columns)}; expected the same for all boxes"
            )
        self._boxes.frombytes(boxes.tobytes())
        self._box_counts.append(len(boxes))
        for name, values in record.box_columns.items():
            count = self.box_columns[name].add(np.asarray(values))
            if count != len(boxes):
                raise OptionError(
                    f"{record.key!r}: {count} values of {name} for {len(boxes)} boxes"
                )

    def columns(self) -> dict[str, np.ndarray]:
        """The columns by their names; they are views: no record can be added any more."""
        table = self.labels.columns() | self._keys.columns("key")
        if self._metas.data:
            table |= self._metas.columns("meta")
        if self.box_columns is not None:
            table["boxes"] = np.frombuffer(self._boxes, np.float32).reshape(-1, 4)
            for name, column in self.box_columns.items():
                table[f"boxes/{name}"] = column.column()
            table["box_offsets"] = columns.offsets(self._box_counts)
        return table


class IndexBuilder:
    """The columns of an index while its records come in, without an object a record."""

    def __init__(self) -> None:
        self.fields: dict[str, str] = {IMAGE: "image"}
        self._values: dict[str, FactColumns] = {IMAGE: FactColumns("image", 0)}
        self._samples, self._points = SampleColumns(), Ragged()
        self._splits = array("B")
        self.labels, self.raw = self._samples.labels, RawBlocks()
        self.keys_differ = True

    def __len__(self) -> int:
        return len(self._samples)

    def add(self, record: Record[Field]) -> None:
        for name, field in record.fields.items():
            kind = self.fields.setdefault(name, field.kind)
            if kind != field.kind:
                raise OptionError(f"field {name!r} is of kind {kind}, now of kind {field.kind}")
            if name not in self._values:
                self._values[name] = FactColumns(kind, len(self))
            self._values[name].add(field)
        for name in self.fields.keys() - record.fields.keys():
            self._values[name].add_absent()
        image = record.image
        if image.facts is not None:
            self.raw.add(image.facts, image.data)
        self._points.add(image.points)
        if record.split is not None:
            self._splits.append(record.split)
        self._samples.add(record)

    def columns(self, places: Mapping[str, Ranges]) -> dict[str, np.ndarray]:
        """All columns but the table of files. They are views: no record can be added any more."""
        table = self._samples.columns() | self.raw.columns()
        for name, values in self._values.items():
            table |= {f"{name}/{n}": c for n, c in values.columns(places[name]).items()}
        keys, self.keys_differ = columns.joined_key_columns(table["key_data"], table["key_offsets"])
        table |= keys
        if len(self._splits):
            if len(self._splits) != len(self):
                raise IntegrityError(f"{len(self._splits)} of {len(self)} samples are of a split")
            table["split"] = np.frombuffer(self._splits, np.uint8)
        return table | (self._points.columns("seek") if self._points.data else {})


class _Numbers:
    """Numbers that come in arrays: integers, or floats from the first float on."""

    def __init__(self) -> None:
        self._values: array[int] | array[float] = array("q")

    def add(self, values: np.ndarray) -> int:
        """Add numbers; return how many they are."""
        if values.dtype.kind == "f" and values.size and self._values.typecode == "q":
            self._values = array("f", np.array(self._values, np.float32).tobytes())
        self._values.frombytes(values.astype(self._values.typecode).tobytes())
        return values.size

    def column(self) -> np.ndarray:
        return np.frombuffer(self._values, self._values.typecode)


class _Labels:
    """The labels: all ints, or all vectors of one length; integers until one has floats."""

    def __init__(self) -> None:
        self._ints = array("q")
        self._vectors = _Numbers()
        self._widths: Counter[int] = Counter()  # -1: an int, -2: none

    def add(self, label: int | np.ndarray | None) -> None:
        if label is None:
            self._widths[-2] += 1
        elif isinstance(label, (int, np.integer)):
            self._widths[-1] += 1
            self._ints.append(int(label))
        else:
            self._widths[self._vectors.add(np.asarray(label).reshape(-1))] += 1

    def columns(self) -> dict[str, np.ndarray]:
        if self._widths.keys() == {-1}:
            return {"label": np.frombuffer(self._ints, np.int64)}
        if len(self._widths) != 1 or (width := next(iter(self._widths))) < 0:
            return {}
        return {"label": self._vectors.column().reshape(-1, width)}

    @property
    def are_missing(self) -> bool:
        return -2 in self._widths and len(self._widths) > 1

    def remark(self) -> str:
        """Say why labels can be in no column; empty if they can."""
        if len(self._widths) < 2:
            return ""
        names = {-2: "none", -1: "an int"}
        counts = (f"{n} have {names.get(w, f'{w} numbers')}" for w, n in self._widths.items())
        return f"not alike: of the samples, {', '.join(counts)}"


class FactColumns:
    """Facts and checksums of the values of one field."""

    def __init__(self, kind: str, absent: int) -> None:
        codes = {n: c for n, c in OF_VALUES.items() if n in ("crc32c", "flags")}
        self._is_pixels = kind in PIXELS
        if self._is_pixels:
            codes |= OF_PIXELS
        self._columns = {name: array(_CODES[code]) for name, code in codes.items()}
        for _ in range(absent):
            self.add_absent()

    def add(self, field: Field) -> None:
        found = fact_values(field.data, _facts(field) if self._is_pixels else UNKNOWN)
        for name, column in self._columns.items():
            column.append(found[name])

    def add_absent(self) -> None:
        for column in self._columns.values():
            column.append(0)

    def columns(self, places: Ranges) -> dict[str, np.ndarray]:
        table = {n: np.frombuffer(a, a.typecode) for n, a in self._columns.items()}
        if places.split is not None:
            table["flags"][places.split] |= SPLIT_RECORD
        return table | {
            "file": places.file, "offset": places.offset, "length": places.length,
        }  # fmt: skip


def fact_values(data: bytes, facts: Facts) -> dict[str, int]:
    """What the columns of an image or a mask say of a value, beside where the value lies."""
    return {
        "crc32c": crc32c(data), "flags": PROGRESSIVE if facts.progressive else 0,
        "height": facts.height, "width": facts.width,
        "encoding": encodings.CODES[facts.encoding], "orientation": facts.orientation,
        "channels": facts.channels, "dtype": encodings.DTYPES.index(facts.dtype),
    }  # fmt: skip


def _facts(field: Field) -> Facts:
    """What is known of an image or a mask; little where its header does not tell."""
    if field.facts is not None:
        return field.facts
    try:
        return encodings.read_facts(field.data)
    except DecodeError:
        return UNKNOWN


def rows_per_block(row_bytes: int) -> int:
    """How many rows of so many bytes a block has."""
    return max(1, _RAW_BYTES // row_bytes)


class RawBlocks:
    """The column while samples come in, one by one; there is none where they are not alike."""

    def __init__(self) -> None:
        self._facts: Facts | None = None
        self._alike = True
        self._crcs = array("I")
        self._crc = self._rows = 0  # of the block that is being filled

    def add(self, facts: Facts, data: bytes) -> None:
        """Take the next sample."""
        if self._facts is None:
            self._facts = facts
        self._alike = self._alike and facts == self._facts and facts.encoding in RAW
        if self._alike:
            self._crc = google_crc32c.extend(self._crc, data)
            self._rows += 1
            if self._rows == rows_per_block(len(data)):
                self.end_shard()

    def end_shard(self) -> None:
        """Have the next sample begin a block."""
        if self._rows:
            self._crcs.append(self._crc)
        self._crc = self._rows = 0

    def columns(self) -> dict[str, np.ndarray]:
        """The column by its name; nothing where there is none."""
        self.end_shard()
        if not self._alike or self._facts is None:
            return {}
        return {RAW_CRCS: np.array(self._crcs, np.uint32)}


class Checks:
    """Which rows have been compared with their checksums, in this or in a forked process.

    Large rows, and those of an index without the column, are blocks of their own.
    """

    def __init__(self, index: Index, counts: Sequence[int], row_bytes: int) -> None:
        self._rows = rows_per_block(row_bytes)
        self._first_rows = columns.offsets(counts)
        self._first_blocks = columns.offsets(-(-n // self._rows) for n in counts)
        name, blocks = RAW_CRCS, (int(self._first_blocks[-1]),)
        if row_bytes >= _LARGE or name not in index or index.column(name).shape != blocks:
            name, self._rows, self._first_blocks = "image/crc32c", 1, self._first_rows
        self._crc = index.column(name)
        shared = mmap.mmap(-1, len(index))  # by forks
        self.marks: memoryview = memoryview(shared)  # 1 for each row that was compared
        self._seen = np.frombuffer(shared, np.uint8)

    def suspects(self, positions: np.ndarray, crc_of: Callable[[np.ndarray], int]) -> list[int]:
        """Check the blocks that some samples are in, those that have not been checked before."""
        slots = np.flatnonzero(self._seen[positions] == 0)
        if not len(slots):
            return []
        new = positions[slots]
        shard = np.searchsorted(self._first_rows, new, "right") - 1
        numbers = (new - self._first_rows[shard]) // self._rows
        for s, number in sorted(set(zip(shard.tolist(), numbers.tolist(), strict=True))):
            start = int(self._first_rows[s]) + number * self._rows
            stop = min(start + self._rows, int(self._first_rows[s + 1]))
            crc = self._crc.item(int(self._first_blocks[s]) + number)
            if crc_of(np.arange(start, stop)) == crc:
                self._seen[start:stop] = 1
        left: list[int] = slots[self._seen[new] == 0].tolist()
        return left
