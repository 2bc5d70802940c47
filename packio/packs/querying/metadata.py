"""The samples' metadata as columns: one column for each name, of one type.

The type is that of all values: BOOLEAN, BIGINT, DOUBLE or VARCHAR. Whole numbers and fractions
together are DOUBLE, as are whole numbers beyond 64 bits. Lists, objects, and values of different
types are JSON text. A sample that has no such name, or null, has null. A name that another column
has, in upper or lower case, gets the prefix ``meta_``.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from packio.packs.table import PackTable

JSON = "JSON"
ARROW = {  # type of a column → function of pyarrow that makes the type
    "BOOLEAN": "bool_", "BIGINT": "int64", "DOUBLE": "float64", "VARCHAR": "string",
    JSON: "string",
}  # fmt: skip
PREFIX = "meta_"
_CHUNK = 1 << 14  # samples whose metadata are parsed at a time
_BITS = 63


def type_of(kinds: Collection[str]) -> str:
    """The type of a column whose values have these types."""
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
    for values in parsed(pack):
        for value in values:
            for name, entry in value.items():
                if entry is not None:
                    kinds.setdefault(name, set()).add(_kind(entry))
                else:
                    kinds.setdefault(name, set())
    return {name: type_of(found) for name, found in sorted(kinds.items())}


def parsed(pack: PackTable, rows: int = _CHUNK) -> Iterator[list[dict[str, Any]]]:
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
    if kind == JSON:
        return [None if value is None else json_text(value) for value in found]
    if kind == "DOUBLE":
        return [None if value is None else float(value) for value in found]
    if kind == "VARCHAR":
        return [None if value is None else _text(value) for value in found]
    return list(found)


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
