"""Values of a field from a table: a column of keys, and a column named as the field."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from packio import registry
from packio.errors import SourceError
from packio.sources.tables import columns, lines

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
_KEY_COLUMNS = ("key", "file_name", "filename", "path")


def values(path: Path, name: str) -> dict[bytes, Any]:
    """Key → value of each row of a table.

    Args:
        path: Of the table.
        name: Of the field, and of its column, in any case.

    Raises:
        SourceError: a column is missing, a key is there twice, or the file is no table.
    """
    try:
        rows = list(_of_parquet(path) if path.suffix.lower() == ".parquet" else _of_text(path))
    except OSError as error:
        raise SourceError(f"{path}: cannot be read as a table: {error}") from error
    names = list(dict.fromkeys(member for _, cells in rows for member in cells))
    key, column = columns.guess(names, _KEY_COLUMNS), _column(names, name)
    if rows and (key is None or column is None):
        raise SourceError(
            f"{path}: has the columns {', '.join(names)}; expected {name}, and the key of each "
            f"sample as one of {', '.join(_KEY_COLUMNS)}; rename the columns, or choose the name "
            "of a column for the field"
        )
    found: dict[bytes, Any] = {}
    for place, cells in rows:
        at = _key(cells.get(str(key)), place)
        if at in found:
            raise SourceError(f"{place}: {os.fsdecode(at)!r} is there twice; keep one row")
        found[at] = _value(cells.get(str(column)), place)
    return found


def _of_text(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Place and cells of each row of a text file."""
    table, count = lines.table(path, None, None), 0
    if table.image is not None:
        raise SourceError(
            f"{path}: its first line names no columns; put a line above it, as key,caption"
        )
    for row in table.rows():
        place = f"{path}:{row.line}"
        if row.is_odd:
            _check_text(row.cells, place)
        if row.cells:
            count += 1
            yield place, row.cells
    if not count:
        raise SourceError(f"{path}: names of columns, and no line below them")


def _check_text(cells: Mapping[str, Any], place: str) -> None:
    """Refuse text that is not UTF-8; only keys may have other bytes, as names of files may."""
    key = columns.guess(cells, _KEY_COLUMNS)
    for name, cell in cells.items():
        if name != key and any("\udc80" <= letter <= "\udcff" for letter in str(cell)):
            raise SourceError(
                f"{place}: column {name!r} is not UTF-8; save the table as UTF-8, as by: "
                "iconv -f latin1 -t utf-8 TABLE > NEW"
            )


def _of_parquet(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Place and cells of each row of a Parquet file."""
    parquet = registry.require("pyarrow.parquet", "parquet")
    try:
        rows = parquet.read_table(path).to_pylist()
    except ValueError as error:  # pyarrow's errors of files are ValueErrors
        raise SourceError(f"{path}: cannot be read as a table: {error}") from error
    if not rows:
        raise SourceError(f"{path}: a table without rows")
    for number, row in enumerate(rows, 1):
        yield f"{path}: row {number}", row


def _column(names: Sequence[str], wanted: str) -> str | None:
    """The column of this name, else the only one with this name in another case."""
    alike = [name for name in names if name.strip().lower() == wanted.lower()]
    if wanted in names:
        return wanted
    return alike[0] if len(alike) == 1 else None


def _key(cell: Any, place: str) -> bytes:
    if isinstance(cell, int) and not isinstance(cell, bool):
        cell = str(cell)  # as it would be in a CSV
    if not isinstance(cell, (str, bytes)) or not cell:
        raise SourceError(f"{place}: {cell!r} as key; expected the key of a sample, as cats/7.jpg")
    return os.fsencode(cell)


def _value(cell: Any, place: str) -> Any:
    if not isinstance(cell, list):
        return cell
    import numpy as np

    try:
        return np.asarray(cell, np.float32)
    except (ValueError, TypeError) as error:
        raise SourceError(
            f"{place}: a list that is no array of numbers: {error}; expected text, a number, or "
            "lists of numbers of one length"
        ) from error
