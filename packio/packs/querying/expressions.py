"""Expressions of SQL over the columns of a pack, evaluated by DuckDB.

DuckDB gets the columns that an expression names, and nothing else. It may not read files, attach
databases or load extensions, and its settings are locked. What it evaluates is the condition of one
SELECT that packio writes: an expression that changes the rest of the statement it stands in, and a
query within the expression, are refused before it runs.

Source: DuckDB, "Securing DuckDB", https://duckdb.org/docs/stable/operations_manual/securing_duckdb
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from packio import registry
from packio.errors import OptionError, PackioError
from packio.packs.querying.columns import (
    EXTRA,
    JSON,
    META,
    PREFIX,
    ArrowColumns,
    column_of,
    text_of,
    type_of,
)
from packio.packs.table import PackTable
from packio.system import interrupts, processors

_ROWS = 1 << 17  # of a batch: DuckDB's threads take turns in fetching one
_LOCKED = {
    "enable_external_access": "false", "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false", "allow_community_extensions": "false",
    "python_enable_replacements": "false", "lock_configuration": "true",
}  # fmt: skip
_STATEMENT = 'SELECT "index" FROM samples WHERE {}\n'
_PLACES = ("query_location", "query_location_length")  # of a node in the text
_NO_COLUMN = "Referenced column"  # of DuckDB's message
_T = TypeVar("_T")
# What json_type says → type of a column; JSON of all else. Numbers from 0 on are UBIGINT.
_KINDS = {
    "BOOLEAN": "BOOLEAN", "BIGINT": "BIGINT", "UBIGINT": "BIGINT", "DOUBLE": "DOUBLE",
    "VARCHAR": "VARCHAR",
}  # fmt: skip


class NotAConditionError(ValueError):
    """The expression is none; the message says why. No user sees this class."""


def matching(pack: PackTable, expression: str) -> np.ndarray:
    """Positions of the samples that a condition of SQL is true of, (n,) int64, ascending."""
    if not isinstance(expression, str):
        raise OptionError(f"{expression!r}: expected a condition of SQL as text, as 'width > 99'")
    duckdb: Any = registry.require("duckdb", EXTRA)
    columns, expression = ArrowColumns(pack), text_of(expression)
    config = {**_LOCKED, "threads": str(processors.usable())}
    connection = duckdb.connect(":memory:", config=config)

    def find() -> np.ndarray:
        with connection:
            query = _Query(pack, columns, connection)
            try:
                return query.positions(expression)
            except duckdb.OutOfMemoryException as error:
                raise MemoryError(f"{expression!r}: {str(error).splitlines()[0]}") from error
            except (duckdb.Error, NotAConditionError) as error:
                names = query.all_names()
                raise _refused(expression, str(error), names, pack.classes) from error

    return interrupts.run_aside(
        find, connection.interrupt
    )  # DuckDB looks for it between chunks only


class _Query:
    """One expression over one pack."""

    def __init__(self, pack: PackTable, columns: ArrowColumns, connection: Any) -> None:
        self._pack, self._columns, self._connection = pack, columns, connection
        self._known = {name.lower(): name for name in columns.names}
        self._failed: list[PackioError] = []  # while columns were made; DuckDB wraps them

    def positions(self, expression: str) -> np.ndarray:
        names = _find_names(self._connection, expression)
        fixed = [self._known[n.lower()] for n in names if n.lower() in self._known]
        free = [n for n in names if n.lower() not in self._known]
        types = self._find_types(expression, free) if META in self._columns.names else {}
        read, needed = "read", list(dict.fromkeys(["index", *fixed]))
        selected = [_quote(name) for name in needed]
        if types:
            needed = list(dict.fromkeys([*needed, META]))
            paths = ", ".join(_pointer(name) for name, _ in types.values())
            read = f"(SELECT *, json_extract_string({META}, [{paths}]) AS _found FROM read)"  # noqa: S608 (quoted names)
        for number, (column, (name, kind)) in enumerate(types.items(), 1):
            value = f"CAST(_found[{number}] AS {kind})"
            if kind == JSON:  # text has quotes, so that 'null' is null
                text = f"CAST(json_extract({META}, {_pointer(name)}) AS VARCHAR)"
                value = f"NULLIF({text}, 'null')"
            selected.append(f"{value} AS {_quote(column)}")
        inner = f"FROM (SELECT {', '.join(selected)} FROM {read}) AS samples"  # noqa: S608 (quoted names)
        statement = f'SELECT "index" {inner} WHERE ({expression}\n)'
        found = self._ask(needed, lambda cursor: cursor.execute(statement).fetchnumpy()["index"])
        positions: np.ndarray = np.sort(np.asarray(found, np.int64))
        return positions

    def all_names(self) -> list[str]:
        """Names of all columns, those of metadata among them."""
        names = [name for name in self._columns.names if name != META]
        if META not in self._columns.names:
            return names
        query = f"SELECT DISTINCT unnest(json_keys({META})) FROM read ORDER BY 1 LIMIT 100"  # noqa: S608 (no text of the user's)
        there = [name for (name,) in self._ask([META], lambda c: c.execute(query).fetchall())]
        return names + [column_of(name, self._known, there) for name in there]

    def _ask(self, names: Sequence[str], ask: Callable[[Any], _T]) -> _T:
        """Ask a cursor of DuckDB, whose table ``read`` has some columns, and return what it finds.

        Python writes and reads JSON that DuckDB refuses: half of a character that UTF-16 writes as
        two. Then Python reads the metadata first, sample by sample.
        """
        arrow: Any = registry.require("pyarrow", EXTRA)
        duckdb: Any = registry.require("duckdb", EXTRA)
        schema = self._columns.schema(names)
        try:
            with self._connection.cursor() as cursor:
                reader = arrow.RecordBatchReader.from_batches(schema, self._batches(names))
                cursor.register("read", reader)
                return ask(cursor)
        except duckdb.Error as error:
            if self._failed:
                raise self._failed.pop() from error
            if self._columns.reads_json or "Malformed JSON" not in str(error):
                raise
        self._columns.reads_json = True
        return self._ask(names, ask)

    def _batches(self, names: Sequence[str]) -> Iterator[Any]:
        try:
            yield from self._columns.batches(names, _ROWS)
        except PackioError as error:  # arrives as DuckDB's error otherwise
            self._failed.append(error)
            raise

    def _find_types(self, expression: str, names: Sequence[str]) -> dict[str, tuple[str, str]]:
        """Of the names that are columns of metadata: name in the metadata, and type."""
        asked: list[tuple[str, str]] = []  # column; name in the metadata that may be meant
        for name in names:
            asked.append((name, name))
            while asked[-1][1].startswith(PREFIX):
                asked.append((name, asked[-1][1].removeprefix(PREFIX)))
        known = self._find_kinds([name for _, name in asked])
        present = [name for _, name in asked if known[name]]
        types: dict[str, tuple[str, str]] = {}
        for column, name in asked:
            kinds, its = known[name], column_of(name, self._known, present)
            if not kinds or column in types or column != its:
                continue
            for other in types:
                if other.lower() == column.lower():
                    raise OptionError(
                        f"{expression!r}: {other!r} and {column!r} are two names in the metadata, "
                        "and one in SQL; use meta->>'$.name' in place of them"
                    )
            kind = type_of({_KINDS.get(k, JSON) for k in kinds - {"NULL"}})
            types[column] = name, "HUGEINT" if kind == "BIGINT" else kind  # UBIGINT among them
        return types

    def _find_kinds(self, names: Sequence[str]) -> dict[str, frozenset[str]]:
        """The types of the values of metadata: looked up once, and kept with the pack."""
        if new := [name for name in names if name not in self._pack.meta_kinds]:
            paths = ", ".join(map(_pointer, new))
            lists = ", ".join(f"list(DISTINCT _kinds[{i}])" for i in range(1, len(new) + 1))
            query = f"SELECT {lists} FROM (SELECT json_type({META}, [{paths}]) AS _kinds FROM read)"  # noqa: S608 (quoted names)
            (found,) = self._ask([META], lambda cursor: cursor.execute(query).fetchall())
            for name, kinds in zip(new, found, strict=True):
                self._pack.meta_kinds[name] = frozenset(kinds or ()) - {None}
        return self._pack.meta_kinds


def _find_names(connection: Any, expression: str) -> list[str]:
    """Names that stand where those of columns do; the expression is checked to be one condition."""
    only_one = NotAConditionError("expected one condition, as after WHERE")
    if not expression.strip():
        raise only_one
    asked, bare, plain = (
        _tree(connection, _STATEMENT.format(text))
        for text in (f"({expression}\n)", expression, "true")
    )
    if asked["error"]:
        raise NotAConditionError(asked["error_message"])
    if bare["error"] or asked != bare:  # as "true) or (true"
        raise only_one
    condition, _ = (t["statements"][0]["node"].pop("where_clause", None) for t in (asked, plain))
    if asked != plain:
        raise only_one
    nodes = list(_nodes(condition))
    if any(node.get("class") == "SUBQUERY" for node in nodes):
        raise OptionError(
            f"{expression!r}: a query within an expression is not taken; run it in DuckDB "
            "over packio.export(…), and give its result to subset()"
        )
    if any(node.get("class") == "STAR" for node in nodes):
        raise NotAConditionError("expected names of columns in place of *")
    named = (node["column_names"] for node in nodes if node.get("class") == "COLUMN_REF")
    return list(dict.fromkeys(part for parts in named for part in parts))


def _tree(connection: Any, statement: str) -> Any:
    """The tree of a statement, without the places of its nodes in the text."""
    with connection.cursor() as cursor:
        ((text,),) = cursor.execute("SELECT json_serialize_sql(?)", [statement]).fetchall()
    return json.loads(text, object_pairs_hook=lambda pairs: {
        name: value for name, value in pairs if name not in _PLACES
    })  # fmt: skip


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
        tree = tree.values()
    elif not isinstance(tree, list):
        return
    for inner in tree:
        yield from _nodes(inner)


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _pointer(name: str) -> str:
    """A JSON pointer (RFC 6901) to a name, as a literal of SQL."""
    path = name.replace("~", "~0").replace("/", "~1")
    return "'/" + path.replace("'", "''") + "'"


def _refused(
    expression: str, reason: str, names: Sequence[str], classes: Sequence[str]
) -> OptionError:
    """The error for an expression; its message has the columns there are."""
    first = next((line.strip() for line in reason.splitlines() if line.strip()), "no reason")
    unknown = first.split('"')[1] if first.count('"') > 1 else ""
    near = difflib.get_close_matches(unknown, names, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    if _NO_COLUMN in first:
        first = f"no column {unknown!r}"
        if unknown in classes:
            text = unknown.replace("'", "''")
            hint = f"; text needs single quotes: '{text}'"
    elif "Could not convert" in first and any(f"'{name}'" in first for name in classes):
        hint = "; label is a number, the name is class"
    return OptionError(f"{expression!r}: {first}{hint}; columns: {', '.join(names)}")
