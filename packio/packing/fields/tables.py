"""Values of a field from a table: a column of keys, and a column named as the field.

A list of numbers is an array. In .parquet the column says its type; elsewhere the whole column is
bool, int64 or uint64 if all of its numbers are whole, else float32.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packio.errors import SourceError
from packio.sources._rows import ListedFile
from packio.sources.tables import columns, lines
from packio.sources.tables.parquet_files import ParquetFile

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
_KEY_COLUMNS = ("key", "file_name", "filename", "path")


class _Cell(NamedTuple):
    place: str  # of the row, for messages
    key: Any
    value: Any


def values(path: Path, name: str) -> dict[bytes, Any]:
    """Key → value of each row of a table."""
    dtype = None
    try:
        if path.suffix.lower() == ".parquet":
            cells, dtype = _of_parquet(path, name)
        else:
            cells = _of_text(path, name)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read as a table: {error}") from error
    found: dict[bytes, Any] = {}
    for cell, value in zip(cells, _values(cells, dtype), strict=True):
        key = _key(cell)
        if key in found:
            raise SourceError(f"{cell.place}: {os.fsdecode(key)!r} is there twice; keep one row")
        found[key] = value
    return found


def _of_text(path: Path, name: str) -> list[_Cell]:
    """The rows of a text file."""
    rows = list(_rows(path))
    names = list(dict.fromkeys(member for _, cells in rows for member in cells))
    key, column = _chosen(path, names, name)
    return [_Cell(place, cells.get(key), cells.get(column)) for place, cells in rows]


def _rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Place and cells of each row of a text file."""
    table, count = lines.table(path, None, None), 0
    if table.image is not None:
        raise SourceError(
            f"{path}: its first line names no columns; put a line above it, as key,caption"
        )
    for row in table.rows():
        if row.cells:
            count += 1
            yield f"{path}:{row.line}", row.cells
    if not count:
        raise SourceError(f"{path}: names of columns, and no line below them")


def _of_parquet(path: Path, name: str) -> tuple[list[_Cell], np.dtype | None]:
    """The rows of a Parquet file, and the type of the numbers in its lists."""
    listed, nothing = ListedFile.of(path), np.zeros(1, np.int64)
    with ParquetFile(listed, nothing, nothing).open() as opened:
        schema, count = opened.schema_arrow, opened.metadata.num_rows
    key, column = _chosen(path, schema.names, name)
    if not count:
        raise SourceError(f"{path}: a table without rows")
    file = ParquetFile(listed, np.array([0, count]), nothing)
    kind = schema.field(column).type
    while (inner := getattr(kind, "value_type", None)) is not None:
        kind = inner
    try:
        dtype = np.dtype(kind.to_pandas_dtype())
    except (NotImplementedError, TypeError):
        dtype = None
    rows = zip(file.values(key), file.values(column), strict=True)
    return [_Cell(f"{path}: row {i}", *row) for i, row in enumerate(rows, 1)], dtype


def _chosen(path: Path, names: Sequence[str], wanted: str) -> tuple[str, str]:
    """The columns of keys and of values, the latter perhaps in another case."""
    alike = [name for name in names if name.strip().lower() == wanted.lower()]
    column = wanted if wanted in names else alike[0] if len(alike) == 1 else None
    key = columns.guess(names, _KEY_COLUMNS)
    if key is None or column is None:
        raise SourceError(
            f"{path}: has the columns {', '.join(names)}; expected {wanted}, and the key of each "
            f"sample as one of {', '.join(_KEY_COLUMNS)}; rename the columns, or choose the name "
            "of a column for the field"
        )
    for name in (key, column):
        if names.count(name) > 1:
            raise SourceError(f"{path}: the column {name} is there twice; keep one")
    return key, column


def _key(cell: _Cell) -> bytes:
    key = cell.key
    if isinstance(key, int) and not isinstance(key, bool):
        key = str(key)  # as it would be in a CSV
    if not isinstance(key, (str, bytes)) or not key:
        raise SourceError(
            f"{cell.place}: {key!r} as key; expected the key of a sample, as cats/7.jpg"
        )
    return os.fsencode(key)


def _values(cells: Sequence[_Cell], dtype: np.dtype | None) -> list[Any]:
    """The values of a column, its lists as arrays of one type."""
    found = [cell.value for cell in cells]
    arrays = {i: _array(cell) for i, cell in enumerate(cells) if isinstance(cell.value, list)}
    if dtype is None or dtype.kind not in "biuf":
        dtype = _type_of({array.dtype for array in arrays.values() if array.size})
    for i, array in arrays.items():
        with np.errstate(over="ignore"):
            made = array.astype(dtype)
        if not np.array_equal(np.isfinite(made), np.isfinite(array)):
            raise SourceError(
                f"{cells[i].place}: a number is too large for {dtype}; give arrays as .npy files"
            )
        found[i] = made
    return found


def _array(cell: _Cell) -> np.ndarray:
    try:
        array = np.asarray(cell.value)
    except ValueError:  # lists of different lengths in a list
        array = np.empty(0, object)
    if array.dtype.kind not in "biuf":
        raise SourceError(
            f"{cell.place}: a list that is no array of numbers; expected text, a number, or lists "
            "of numbers of one length"
        )
    return array


def _type_of(found: set[np.dtype]) -> np.dtype:
    """One type for the arrays of a column."""
    kinds = {dtype.kind for dtype in found}
    if not kinds or "f" in kinds or {"i", "u"} <= kinds:
        return np.dtype(np.float32)
    return np.result_type(*found)
