"""The index of a pack as Arrow columns: what `packio.export` writes and `where` asks about.

A row is a sample; docs/queries.md lists the columns. Null is what a sample has not, or the index
does not know. Levels of images, which packing made, have no columns.

Numbers and keys are views of the mapped index, so that a column costs little until it is read.

The samples' metadata have one column for each name, of the type of all its values: BOOLEAN, BIGINT,
DOUBLE or VARCHAR. Whole numbers and fractions together are DOUBLE, as are whole numbers beyond 64
bits. Lists, objects, and values of different types are JSON text. A sample that has no such name,
or null, has null. A name that another column has, in upper or lower case, gets the prefix
``meta_``.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from packio import registry
from packio.errors import IntegrityError
from packio.images import encodings
from packio.packs.table import PackTable
from packio.sample import levels
from packio.sample.fields import PIXELS
from packio.sample.record import IMAGE

EXTRA = "query"  # of packio, which installs pyarrow and DuckDB
META = "meta"
_ROWS = 1 << 17  # of a batch
_OF_PIXELS = ("height", "width", "orientation", "channels", "encoding")

_Make = Callable[[int, int], Any]  # first row, row behind the last → pyarrow.Array
JSON = "JSON"
ARROW = {  # type of a column → function of pyarrow that makes the type
    "BOOLEAN": "bool_", "BIGINT": "int64", "DOUBLE": "float64", "VARCHAR": "string",
    JSON: "string",
}  # fmt: skip
PREFIX = "meta_"
_CHUNK = 1 << 14  # samples whose metadata are parsed at a time
_BITS = 63


class ArrowColumns:
    """The columns of a pack, made in pieces when they are asked for."""

    def __init__(self, pack: PackTable) -> None:
        self._pack, self._index = pack, pack.index_file
        self._arrow: Any = registry.require("pyarrow", EXTRA)
        self._made: dict[str, tuple[Any, _Make]] = {}
        self._dictionary = self._arrow.dictionary(self._arrow.int32(), self._arrow.string())
        self.reads_json: bool = False  # Python does, as DuckDB refuses it
        self._class_names = self._arrow.array([text_of(name) for name in pack.classes], "string")
        known = sorted(encodings.NAMES)
        self._encodings = self._arrow.array([encodings.NAMES[code] for code in known], "string")
        self._places = np.full(256, -1)  # code → its place among the names
        self._places[known] = np.arange(len(known))
        self._add_names()
        for name in levels.others(pack.fields):  # levels are of packio's making
            self._add_field(name, pack.fields[name])
        if "boxes" in self._index:
            self._add_boxes()
        if "meta_data" in self._index:
            self._add(META, "large_string", partial(self._texts, META))
        self.names: tuple[str, ...] = tuple(self._made)

    def schema(self, names: Sequence[str]) -> Any:
        return self._arrow.schema([(name, self._made[name][0]) for name in names])

    def batch(self, names: Sequence[str], start: int, stop: int) -> Any:
        """Some columns of the samples start..stop-1, a pyarrow.RecordBatch."""
        self._index.check_length()
        arrays = [self._made[name][1](start, stop) for name in names]
        return self._arrow.record_batch(arrays, schema=self.schema(names))

    def batches(self, names: Sequence[str], rows: int = _ROWS) -> Iterator[Any]:
        """All samples, in batches of at most so many rows."""
        for start in range(0, len(self._pack), rows):
            yield self.batch(names, start, min(start + rows, len(self._pack)))

    def _add(self, name: str, kind: Any, make: _Make) -> None:
        while name in self._made:  # as box_bytes of a field and of a column of boxes
            name += "_"
        self._made[name] = (getattr(self._arrow, kind)() if isinstance(kind, str) else kind, make)

    def _add_names(self) -> None:
        arrow = self._arrow
        self._add("index", "int64", lambda a, b: arrow.array(np.arange(a, b)))
        self._add("key", "large_string", partial(self._texts, "key"))
        if "label" in self._index:
            label = self._index.column("label")
            is_number = len(label.shape) == 1
            kind = arrow.from_numpy_dtype(label.dtype)
            self._add("label", kind if is_number else arrow.list_(kind), self._labels)
            if self._pack.classes:
                kind = self._dictionary if is_number else arrow.list_(arrow.string())
                self._add("class", kind, self._classes)
        if "split" in self._index:
            splits = self._pack.metadata.get("splits", [])
            names = arrow.array([text_of(name) for name in splits], "string")
            self._add("split", self._dictionary, lambda a, b: self._named(
                names, self._index.column("split").span(a, b)
            ))  # fmt: skip

    def _named(self, names: Any, codes: np.ndarray) -> Any:
        """Names of codes; null where a code has none."""
        codes = codes.astype(np.int64, copy=False)
        unknown = (codes < 0) | (codes >= len(names))
        numbers = self._arrow.array(np.where(unknown, 0, codes).astype(np.int32), mask=unknown)
        return self._arrow.DictionaryArray.from_arrays(numbers, names)

    def _labels(self, start: int, stop: int) -> Any:
        labels = self._index.column("label").span(start, stop)
        if labels.ndim == 1:
            return self._arrow.array(labels)
        ends = np.arange(len(labels) + 1) * labels.shape[1]
        return self._listed(ends, self._arrow.array(labels.reshape(-1)))

    def _classes(self, start: int, stop: int) -> Any:
        labels = self._index.column("label").span(start, stop)
        if labels.ndim == 1:
            return self._named(self._class_names, labels)
        rows, numbers = np.nonzero(labels[:, : len(self._class_names)] > 0)
        ends = np.searchsorted(rows, np.arange(len(labels) + 1))
        return self._listed(ends, self._named(self._class_names, numbers).dictionary_decode())

    def _listed(self, ends: np.ndarray, values: Any) -> Any:
        return self._arrow.ListArray.from_arrays(ends.astype(np.int32), values)

    def _add_field(self, name: str, kind: str) -> None:
        prefix = "" if name == IMAGE else f"{name}_"
        self._add(f"{prefix}bytes", "int64", partial(self._of_field, name, "length"))
        for part in _OF_PIXELS if kind in PIXELS else ():
            if f"{name}/{part}" in self._index:
                dtype = self._index.column(f"{name}/{part}").dtype
                own = self._arrow.from_numpy_dtype(dtype)
                own = self._dictionary if part == "encoding" else own
                self._add(prefix + part, own, partial(self._of_field, name, part))

    def _of_field(self, name: str, part: str, start: int, stop: int) -> Any:
        values = self._index.column(f"{name}/{part}").span(start, stop)
        absent = np.zeros(len(values), bool)
        if name != IMAGE:  # which every sample has
            absent = self._index.column(f"{name}/offset").span(start, stop) < 0
        if part == "encoding":
            return self._named(self._encodings, np.where(absent, -1, self._places[values]))
        if part in _OF_PIXELS:  # 0: not known
            absent |= values == 0
        return self._arrow.array(values, mask=absent if absent.any() else None)

    def _add_boxes(self) -> None:
        arrow = self._arrow
        edges = arrow.list_(arrow.list_(arrow.float32()))
        self._add("boxes", edges, partial(self._of_boxes, "boxes"))
        for name in self._pack.box_columns:
            column = f"boxes/{name}"
            kind = arrow.list_(arrow.from_numpy_dtype(self._index.column(column).dtype))
            self._add(f"box_{name}", kind, partial(self._of_boxes, column))
        if "labels" in self._pack.box_columns and self._pack.classes:
            self._add("box_classes", arrow.list_(arrow.string()), self._box_classes)

    def _of_boxes(self, column: str, start: int, stop: int) -> Any:
        ends = self._index.offsets("box_offsets", start, stop)
        values = self._index.column(column).span(int(ends[0]), int(ends[-1]))
        flat = self._arrow.array(values.reshape(-1))
        if values.ndim == 2:
            flat = self._listed(np.arange(len(values) + 1) * values.shape[1], flat)
        return self._listed(ends - ends[0], flat)

    def _box_classes(self, start: int, stop: int) -> Any:
        ends = self._index.offsets("box_offsets", start, stop)
        labels = self._index.column("boxes/labels").span(int(ends[0]), int(ends[-1]))
        names = self._named(self._class_names, labels)  # Arrow reads no lists of dictionaries
        return self._listed(ends - ends[0], names.dictionary_decode())

    def _texts(self, column: str, start: int, stop: int) -> Any:
        """Keys or metadata as text: null where there are none, without a copy if all is UTF-8."""
        if column == META and self.reads_json:
            found = [self._pack.meta(i) for i in range(start, stop)]
            texts = [None if value is None else json_text(value) for value in found]
            return self._arrow.array(texts, self._arrow.large_string())
        ends = self._index.offsets(f"{column}_offsets", start, stop)
        data = self._index.column(f"{column}_data").span(int(ends[0]), int(ends[-1]))
        ends = ends - ends[0]
        absent = None
        if column == META and (is_empty := ends[1:] == ends[:-1]).any():
            packed = np.packbits(~is_empty, bitorder="little")
            absent = self._arrow.py_buffer(packed)
        made = self._arrow.LargeStringArray.from_buffers(
            stop - start, self._arrow.py_buffer(ends), self._arrow.py_buffer(data), absent
        )
        try:
            made.validate(full=True)
        except self._arrow.ArrowInvalid:
            return self._mend(column, ends, data.tobytes())
        return made

    def _mend(self, column: str, ends: np.ndarray, data: bytes) -> Any:
        """Texts that are not UTF-8, shown as far as they are."""
        errors = "surrogatepass" if column == META else "backslashreplace"
        try:
            texts = [
                data[a:b].decode("utf-8", errors) for a, b in itertools.pairwise(ends.tolist())
            ]
        except UnicodeDecodeError as error:
            raise IntegrityError(
                f"{self._index.path}: metadata that are not UTF-8 ({error}); restore the index or "
                "pack again"
            ) from error
        found = [None if column == META and not text else _text(text) for text in texts]
        return self._arrow.array(found, self._arrow.large_string())


def text_of(name: str) -> str:
    r"""Text whose bytes need not be UTF-8, as Arrow takes it: such bytes are shown as ``\xNN``."""
    try:
        return os.fsencode(name).decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # half of a character that UTF-16 writes as two
        return name.encode("utf-8", "backslashreplace").decode()


def type_of(kinds: Collection[str]) -> str:
    found = set(kinds)
    if found == {"BIGINT", "DOUBLE"}:
        return "DOUBLE"
    return next(iter(found)) if len(found) == 1 else JSON


def column_of(name: str, others: Collection[str], there: Collection[str] = ()) -> str:
    """Name of the column of some metadata, beside the columns of all packs."""
    column = PREFIX + name if name.lower() in others else name
    while column != name and (column in there or column.lower() in others):
        column = PREFIX + column
    return column


def types(pack: PackTable) -> dict[str, str]:
    """Name → type of its column, of all metadata of a pack, sorted by name."""
    kinds: dict[str, set[str]] = {}
    for value in itertools.chain.from_iterable(iterate_metadata(pack)):
        for name, entry in value.items():
            kinds.setdefault(name, set()).update(() if entry is None else (_kind(entry),))
    return {name: type_of(found) for name, found in sorted(kinds.items())}


def iterate_metadata(pack: PackTable, rows: int = _CHUNK) -> Iterator[list[dict[str, Any]]]:
    """The metadata of all samples, in lists of so many; an empty object where there are none."""
    index = pack.index_file
    ends, data = index.column("meta_offsets"), index.column("meta_data")
    for start in range(0, len(pack), rows):
        own = ends.span(start, min(start + rows, len(pack)) + 1).tolist()
        text = data.span(own[0], own[-1]).tobytes()
        pairs = itertools.pairwise(own)
        whole = b"[" + b",".join(text[a - own[0] : b - own[0]] or b"{}" for a, b in pairs) + b"]"
        try:
            values = json.loads(whole.decode("utf-8", "surrogatepass"))
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, list) or len(values) != len(own) - 1 or not all(
            isinstance(value, dict) for value in values
        ):  # fmt: skip
            values = [pack.meta(i) or {} for i in range(start, start + len(own) - 1)]
        yield values


def values_of(name: str, kind: str, rows: Iterable[dict[str, Any]]) -> list[Any]:
    """The values of a column, as pyarrow takes them."""
    found = (row.get(name) for row in rows)
    convert: Callable[[Any], Any] = _CONVERTERS.get(kind, lambda value: value)
    return [None if value is None else convert(value) for value in found]


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "BOOLEAN"
    if isinstance(value, int):
        return "BIGINT" if -(1 << _BITS) <= value < 1 << _BITS else "DOUBLE"
    if isinstance(value, float):
        return "DOUBLE"
    return "VARCHAR" if isinstance(value, str) else JSON


def json_text(value: Any) -> str:
    """Compact JSON of a value, as UTF-8 can write it."""
    return _text(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _text(value: str) -> str:
    """Text that UTF-8 can write: half of a character that UTF-16 writes as two becomes ``?``."""
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "DOUBLE": float, "VARCHAR": _text, JSON: json_text,
}  # fmt: skip
