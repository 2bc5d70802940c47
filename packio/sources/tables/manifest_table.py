"""What a manifest says about its samples: the columns' meanings, labels, fields and metadata."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import math
import os
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packio.errors import OptionError, SourceError
from packio.sources import Context
from packio.sources.tables import lines, tables

_PATH_NAMES = (
    "path", "file_path", "filepath", "file", "file_name", "filename", "image_path", "img_path",
    "image_file", "image", "img", "image_name", "image_id", "id_code", "name", "id",
)  # fmt: skip


class Further(NamedTuple):
    """Reads the further columns of a sample's line: named fields and metadata."""

    manifest: Path
    stamp: tuple[int, int]
    layout: lines.Layout
    used: set[str]  # columns that are path, label or a field
    numbers: set[str]  # columns that have nothing but numbers
    wanted: Mapping[str, tuple[str, str | None]]  # as `Context.fields`

    def digest(self) -> str:
        """Digest of the manifest's text, and of what is taken from the manifest."""
        taken = (sorted(self.used), sorted(self.numbers), sorted(self.wanted.items()))
        digest = hashlib.sha256(repr(taken).encode())
        with self.manifest.open("rb") as file:
            while data := file.read(1 << 20):
                digest.update(data)
        return digest.hexdigest()

    def of(self, text: bytes) -> tuple[dict[str, Any], bytes | None]:
        """Values of the fields, and the metadata if there is any column left for it."""
        found = lines.members(self.layout, text)
        values = {name: found.get(column) for name, (column, _) in self.wanted.items()}
        for name in self.used & found.keys():
            del found[name]
        if self.layout.delimiter:
            for name in self.numbers:
                found[name] = json.loads(found[name]) if found[name] else None
        has_meta = bool(found) or not self.layout.delimiter
        return values, tables.meta(found) if has_meta else None


def stamp(descriptor: int) -> tuple[int, int]:
    """Size of an open file, and when it was changed last."""
    status = os.fstat(descriptor)
    return status.st_size, status.st_mtime_ns


class Table:
    """What a manifest says about its samples.

    Attributes:
        paths: Of the images, as written.
        cells: Values of the named fields, a list for each field.
        has_more: Whether there is more than paths and labels.
        further: Reads what else there is.
    """

    def __init__(self, path: Path, context: Context) -> None:
        delimiter = context.option("delimiter")
        if delimiter is not None and len(delimiter) != 1:
            raise OptionError(f"delimiter={delimiter!r}: expected one character")
        self.paths: list[str] = []
        self._path, self._lines, self._spans = path, list[np.ndarray](), list[np.ndarray]()
        self._values, self._vectors = tables.Column(), list[np.ndarray]()
        with path.open("rb") as file:
            opened = stamp(file.fileno())
            self._layout = lines.layout(path, file, delimiter)
            self._path_col = self._choose_path(context.option("path_col"))
            self._check_fields(context.fields)
            columns = {column for column, _ in context.fields.values()}
            self._label_cols, self._is_vector = self._choose_labels(
                context.option("label_col"), columns
            )
            used = {self._path_col, *self._label_cols, *columns}
            left = set(self._layout.names) - used
            self.further = Further(
                path.absolute(), opened, self._layout, used, set(left), context.fields
            )
            self.has_more = bool(left or context.fields)
            self.cells: list[list[Any]] = [[] for _ in context.fields]
            for block in lines.blocks(path, file, self._layout):
                self._add(block)
        if not self.paths:
            raise SourceError(f"{path}: names of columns, and no line below them")

    def _check_fields(self, wanted: Mapping[str, tuple[str, str | None]]) -> None:
        for name, (column, _) in wanted.items():
            if self._layout.delimiter and column not in self._layout.names:
                raise OptionError(
                    f"{self._path}: field {name!r}: no column {column!r}; there are "
                    f"{_any_of(self._layout.names)}"
                )

    def _choose_path(self, asked: str | None) -> str:
        names = self._layout.names
        guess = self._layout.image or tables.guess(names, _PATH_NAMES)
        found = guess if asked is None else asked
        if found in names:
            return str(found)
        what = "which column has the paths" if asked is None else f"has no column {asked!r}"
        raise OptionError(f"{self._path}: {what}; expected path_col to be {_any_of(names)}")

    def _choose_labels(self, asked: str | None, fields: set[str]) -> tuple[list[str], bool]:
        """Columns of labels, and whether they make a vector."""
        others = [name for name in self._layout.names if name not in {self._path_col, *fields}]
        if asked is None:
            guess = tables.guess(others, tables.LABEL_NAMES)
            if self._layout.image and len(others) == 1:
                guess = others[0]
            return [guess] if guess is not None else [], False
        if asked in others or not asked:
            return [asked] if asked else [], False
        found: list[str] = []
        for part in asked.split(","):
            matching = fnmatch.filter(others, part.strip())
            if not matching:
                raise OptionError(
                    f"{self._path}: has no column {part.strip()!r}; expected label_col to be "
                    f"{_any_of(others)}, several of them, or ''"
                )
            found += [name for name in matching if name not in found]
        return found, True

    def _add(self, block: lines.Block) -> None:
        """Add the samples of some lines."""
        start, is_json = len(self.paths), not self._layout.delimiter
        self._lines.append(block.lines)
        self._spans.append(block.spans)
        self.paths += block.column(self._layout, self._path_col)
        self._check_paths(start)
        for found, (column, _) in zip(self.cells, self.further.wanted.values(), strict=True):
            found.extend(block.column(self._layout, column))
        columns = [block.column(self._layout, name) for name in self._label_cols]
        if self._is_vector:
            self._vectors.append(np.stack([self._floats(c, start) for c in columns], axis=1))
        elif columns:
            self._values.extend(map(_hashable, columns[0]) if is_json else columns[0])
        if is_json and not self.has_more:
            self.has_more = not all(r.keys() <= self.further.used for r in block.records)
        for name in () if is_json else list(self.further.numbers):
            texts = {*filter(None, block.column(self._layout, name))}
            if not all(map(lines.is_number, texts)):
                self.further.numbers.remove(name)

    def _check_paths(self, start: int) -> None:
        new: list[Any] = self.paths[start:]
        if {*map(type, new)} == {str} and all(new) and "\0" not in "".join(new):
            return
        for i, path in enumerate(new, start):
            if not isinstance(path, str) or not path or "\0" in path:
                raise SourceError(
                    f"{self.place(i)}: {path!a} in column {self._path_col!r}; expected the path of "
                    "an image"
                )

    def _floats(self, cells: list[Any], start: int) -> np.ndarray:
        """Numbers of cells, (cells,) float32."""
        column = tables.Column()
        column.extend(map(_hashable, cells))
        numbers = [_number(value) for value in column.values]
        if None in numbers:
            i = column.first(numbers.index(None))
            raise SourceError(f"{self.place(start + i)}: {cells[i]!a} as label; expected a number")
        return np.array(numbers, np.float32)[column.codes]

    def labels(self, classes: Sequence[str] | None, separator: str | None) -> tables.Labels:
        """The labels of all samples, and the names of their classes."""
        if not self._label_cols:
            return None, []
        if not self._is_vector:
            values = self._values.values
            if separator:
                values = [_separated(value, separator) for value in values]
            elif self._layout.delimiter and not (classes and {*values} <= {*classes}):
                values = _typed(values)
            return tables.labels(self._values, values, self.place, classes=classes)
        known = list(classes if classes is not None else self._label_cols)
        if set(known) != set(self._label_cols):
            raise SourceError(
                f"{self._path}: label columns {_any_of(self._label_cols)}; --classes-from says "
                f"{_any_of(known)}"
            )
        order = [self._label_cols.index(name) for name in known]
        return np.concatenate(self._vectors)[:, order], known

    def place(self, position: int | None) -> str:
        """Where a sample stands."""
        where = "" if position is None else f":{np.concatenate(self._lines)[position]}"
        return f"{self._path}{where}"

    def spans(self) -> np.ndarray:
        """(N, 2) offsets of the beginning and the end of each sample's record."""
        return np.concatenate(self._spans)

    def choice(self, labels: tables.Labels) -> str:
        """Say which columns were taken."""
        label = tables.told(self._label_cols, labels)
        wanted, left = self.further.wanted, sorted(set(self._layout.names) - self.further.used)
        more = "".join(f", {column!r} as {name}" for name, (column, _) in wanted.items())
        more += f", {', '.join(map(repr, left))} as meta" if left else ""
        return (
            f"{self._path.name}: took column {self._path_col!r} as path, {label}{more}; "
            "--path-col and --label-col say otherwise"
        )


def _any_of(names: Sequence[str]) -> str:
    return ", ".join(map(ascii, names[:20])) + (", …" if len(names) > 20 else "")


class JSONObject(str):
    """A value that is no label: its kind says so in the error."""

    __slots__ = ()


def _hashable(value: Any) -> Hashable:
    """A value of JSON, lists as tuples."""
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    return JSONObject(json.dumps(value)) if isinstance(value, dict) else value


def _typed(cells: list[str]) -> list[Any]:
    """Cells of a CSV as numbers, if all of them are, or blank; else as text, None if blank."""
    numbers = [_number(cell) for cell in cells]
    if None in numbers or all(map(math.isnan, numbers)):
        return [cell.strip() or None for cell in cells]
    return [number if cell.strip() else None for cell, number in zip(cells, numbers, strict=True)]


def _number(value: Any) -> Any:
    """A cell as number, NaN where it is blank; None if it is none."""
    if value is None or (isinstance(value, str) and value.strip().lower() in ("", "nan")):
        return math.nan
    if isinstance(value, str):
        return json.loads(value) if lines.is_number(value.strip()) else None
    return value if isinstance(value, (bool, int, float)) else None


def _separated(value: Any, separator: str) -> Any:
    """The names in a cell."""
    if not isinstance(value, str):
        return value
    return tuple(filter(None, map(str.strip, value.split(separator))))
