"""Expressions of SQL over the columns of a pack, evaluated by DuckDB.

DuckDB gets the columns that an expression names, and nothing else. It may not read files, attach
databases or load extensions, and its settings are locked. What it evaluates is the condition of one
SELECT that packio writes, which `packio.packs.querying.conditions` has looked at before.

Source: DuckDB, "Securing DuckDB", https://duckdb.org/docs/stable/operations_manual/securing_duckdb
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from packio import registry
from packio.errors import OptionError, PackioError
from packio.packs.querying import conditions, metadata
from packio.packs.querying.columns import EXTRA, META, ArrowColumns, text_of
from packio.packs.table import PackTable
from packio.system import interrupts, processors

_ROWS = 1 << 17  # of a batch: DuckDB's threads take turns in fetching one
_LOCKED = {
    "enable_external_access": "false", "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false", "allow_community_extensions": "false",
    "python_enable_replacements": "false", "lock_configuration": "true",
}  # fmt: skip
_NO_COLUMN = "Referenced column"  # of DuckDB's message
_T = TypeVar("_T")


def matching(pack: PackTable, expression: str) -> np.ndarray:
    """Find the samples of a pack that an expression is true of.

    Args:
        pack: The pack.
        expression: A condition of SQL as DuckDB has it, as ``width >= 512 AND label = 'cat'``.
            `ArrowColumns` lists the columns; the samples' metadata are columns, too. ``label``
            beside text is the name of the class, else the number.

    Returns:
        Their positions, (n,) int64, ascending.
    """
    if not isinstance(expression, str):
        raise OptionError(f"{expression!r}: expected a condition of SQL as text, as 'width > 99'")
    duckdb: Any = registry.require("duckdb", EXTRA)
    columns, expression = ArrowColumns(pack), text_of(expression)
    config = {**_LOCKED, "threads": str(processors.usable())}
    connection = duckdb.connect(":memory:", config=config)

    def found() -> np.ndarray:
        with connection:
            query = _Query(pack, columns, connection)
            try:
                return query.positions(expression)
            except duckdb.OutOfMemoryException as error:
                raise MemoryError(f"{expression!r}: {str(error).splitlines()[0]}") from error
            except (duckdb.Error, conditions.NotAConditionError) as error:
                names = query.all_names()
                raise _refused(expression, str(error), names, pack.classes) from error

    return interrupts.aside(found, connection.interrupt)  # DuckDB looks for it between chunks only


class _Query:
    """One expression over one pack."""

    def __init__(self, pack: PackTable, columns: ArrowColumns, connection: Any) -> None:
        self._pack, self._columns, self._connection = pack, columns, connection
        self._known = {name.lower(): name for name in columns.names}
        self._failed: list[PackioError] = []  # while columns were made; DuckDB wraps them

    def positions(self, expression: str) -> np.ndarray:
        """See `matching`."""
        parsed = conditions.parsed(self._connection, expression)
        fixed = [self._known[n.lower()] for n in parsed.names if n.lower() in self._known]
        free = [n for n in parsed.names if n.lower() not in self._known]
        types = self._types(free) if free and META in self._columns.names else {}
        _check_case(expression, types)
        selected = [f'"{_quoted(name)}"' for name in dict.fromkeys(["index", *fixed])]
        if "label" in fixed and "class" in self._known and not parsed.label_is_number:
            selected.remove('"label"')
            selected.append('"class" AS "label"')
            fixed.append("class")
        needed = list(dict.fromkeys(["index", *fixed, *([META] if types else [])]))
        selected += [f'{value} AS "{_quoted(name)}"' for name, value in _extracted(types).items()]
        read = "read"
        if types:
            paths = ", ".join(_pointer(name) for name, _ in types.values())
            read = f"(SELECT *, json_extract_string({META}, [{paths}]) AS _found FROM read)"  # noqa: S608 (quoted names)
        inner = f"(SELECT {', '.join(selected)} FROM {read}) AS samples"  # noqa: S608 (quoted names)
        with_inner = conditions.TEMPLATE.format(expression).replace(
            "FROM samples", f"FROM {inner}", 1
        )
        found = self._over(needed, lambda cursor: cursor.execute(with_inner).fetchnumpy()["index"])
        positions: np.ndarray = np.sort(np.asarray(found, np.int64))
        return positions

    def all_names(self) -> list[str]:
        """Names of all columns, those of metadata among them."""
        names = [name for name in self._columns.names if name != META]
        if META not in self._columns.names:
            return names
        query = f"SELECT DISTINCT unnest(json_keys({META})) FROM read ORDER BY 1 LIMIT 100"  # noqa: S608 (no text of the user's)
        there = [name for (name,) in self._over([META], lambda c: c.execute(query).fetchall())]
        return names + [metadata.column_of(name, self._known, there) for name in there]

    def _over(self, names: Sequence[str], ask: Callable[[Any], _T]) -> _T:
        """Ask a cursor of DuckDB, whose table ``read`` has some columns, and return what it finds.

        Python writes and reads JSON that DuckDB refuses: half of a character that UTF-16 writes as
        two. Then Python reads the metadata first, sample by sample.
        """
        arrow: Any = registry.require("pyarrow", EXTRA)
        duckdb: Any = registry.require("duckdb", EXTRA)
        reader = arrow.RecordBatchReader.from_batches(
            self._columns.schema(names), self._batches(names)
        )
        try:
            with self._connection.cursor() as cursor:
                cursor.register("read", reader)
                return ask(cursor)
        except duckdb.Error as error:
            if self._failed:
                raise self._failed.pop() from error
            if self._columns.reads_json or "Malformed JSON" not in str(error):
                raise
        self._columns.reads_json = True
        return self._over(names, ask)

    def _batches(self, names: Sequence[str]) -> Iterator[Any]:
        try:
            yield from self._columns.batches(names, _ROWS)
        except PackioError as error:  # arrives as DuckDB's error otherwise
            self._failed.append(error)
            raise

    def _types(self, names: Sequence[str]) -> dict[str, tuple[str, str]]:
        """Of the names that are columns of metadata: name in the metadata, and type."""
        asked = [(column, name) for column in names for name in _unprefixed(column)]
        self._find_kinds([name for _, name in asked])
        present = [name for _, name in asked if self._pack.meta_kinds[name]]
        found: dict[str, tuple[str, str]] = {}
        for column, name in asked:
            if column != metadata.column_of(name, self._known, present):
                continue
            kinds = self._pack.meta_kinds[name]
            there = {_KINDS.get(kind, metadata.JSON) for kind in kinds}
            if there and column not in found:
                kind = metadata.type_of(there - {"NULL"})
                has_large = kind == "BIGINT" and "UBIGINT" in kinds
                found[column] = (name, "HUGEINT" if has_large else kind)
        return found

    def _find_kinds(self, names: Sequence[str]) -> None:
        """Look up the types of the values of some metadata that no query has asked for."""
        new = [name for name in names if name not in self._pack.meta_kinds]
        if not new:
            return
        paths = ", ".join(map(_pointer, new))
        sums = ", ".join(f"bit_or({_bit(f'_kinds[{i}]')})" for i in range(1, len(new) + 1))
        query = f"SELECT {sums} FROM (SELECT json_type({META}, [{paths}]) AS _kinds FROM read)"  # noqa: S608 (quoted names)
        (bits,) = self._over([META], lambda cursor: cursor.execute(query).fetchall())
        for name, found in zip(new, bits, strict=True):
            kinds = [kind for i, kind in enumerate(_KINDS) if (found or 0) >> i & 1]
            self._pack.meta_kinds[name] = frozenset(kinds)


# What json_type says → type of a column. Numbers from 0 on are UBIGINT. The last: all others.
_KINDS = {
    "BOOLEAN": "BOOLEAN", "BIGINT": "BIGINT", "UBIGINT": "BIGINT", "DOUBLE": "DOUBLE",
    "VARCHAR": "VARCHAR", "NULL": "NULL", "OBJECT": metadata.JSON,
}  # fmt: skip


def _bit(kind: str) -> str:
    """A number with one bit set, which tells a kind, in SQL; null of no kind.

    Gathering distinct lists of kinds takes half as long again as gathering bits.
    """
    *known, _ = _KINDS
    cases = " ".join(f"WHEN '{name}' THEN {1 << i}" for i, name in enumerate(known))
    return f"CASE {kind} {cases} ELSE CASE WHEN {kind} IS NOT NULL THEN {1 << len(known)} END END"


def _extracted(types: dict[str, tuple[str, str]]) -> dict[str, str]:
    """Column of metadata → how SQL makes it of ``_found`` and the metadata."""
    found = {}
    for number, (column, (name, kind)) in enumerate(types.items(), 1):
        found[column] = f"CAST(_found[{number}] AS {kind})"
        if kind == metadata.JSON:  # text has quotes, so that 'null' is null
            text = f"CAST(json_extract({META}, {_pointer(name)}) AS VARCHAR)"
            found[column] = f"NULLIF({text}, 'null')"
    return found


def _check_case(expression: str, names: Iterable[str]) -> None:
    """Refuse two names that differ in case only, which SQL has as one."""
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.setdefault(name.lower(), name)) != name:
            raise OptionError(
                f"{expression!r}: {other!r} and {name!r} are two names in the metadata, and one in "
                "SQL; use meta->>'$.name' in place of them"
            )


def _unprefixed(column: str) -> list[str]:
    """Names in the metadata that a column may have: its own, and those without a prefix."""
    names = [column]
    while names[-1].startswith(metadata.PREFIX):
        names.append(names[-1].removeprefix(metadata.PREFIX))
    return names


def _pointer(name: str) -> str:
    """A JSON pointer (RFC 6901) to a name, as a literal of SQL."""
    path = name.replace("~", "~0").replace("/", "~1")
    return "'/" + path.replace("'", "''") + "'"


def _quoted(name: str) -> str:
    return name.replace('"', '""')


def _refused(
    expression: str, reason: str, names: Sequence[str], classes: Sequence[str]
) -> OptionError:
    """The error for an expression; its message has the columns there are."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    first = lines[0] if lines else "no reason"
    unknown = _between_quotes(first)
    near = difflib.get_close_matches(unknown, names, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    if _NO_COLUMN in first:
        first = f"no column {unknown!r}"
        if unknown in classes:
            text = unknown.replace("'", "''")
            hint = f"; text needs single quotes: '{text}'"
    return OptionError(f"{expression!r}: {first}{hint}; columns: {', '.join(names)}")


def _between_quotes(text: str) -> str:
    return text.split('"')[1] if text.count('"') > 1 else ""
