"""Expressions of SQL over the columns of a pack, evaluated by DuckDB.

DuckDB gets the columns that an expression names, and nothing else. It may not read files, attach
databases or load extensions, and its settings are locked. What it evaluates is the condition of one
SELECT that packio writes; an expression that changes the rest of the statement, and a query within
the expression, are refused before anything runs.

Source: DuckDB, "Securing DuckDB", https://duckdb.org/docs/stable/operations_manual/securing_duckdb
"""

from __future__ import annotations

import contextlib
import difflib
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from packio import registry
from packio.errors import OptionError, PackioError
from packio.packs.querying import metadata
from packio.packs.querying.columns import EXTRA, META, ArrowColumns, text_of
from packio.packs.table import PackTable
from packio.system import interrupts, processors

_ROWS = 1 << 20  # of a batch: DuckDB's threads take turns in fetching one
_LOCKED = {
    "enable_external_access": "false", "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false", "allow_community_extensions": "false",
    "python_enable_replacements": "false", "lock_configuration": "true",
}  # fmt: skip
_TEMPLATE = 'SELECT "index" FROM samples WHERE ({}\n)'
_PLACES = ("query_location", "query_location_length")  # of a node in the text
_NUMBERS = {"INTEGER", "BIGINT", "HUGEINT", "UHUGEINT", "DECIMAL", "DOUBLE", "INTEGER_LITERAL"}


class _Parsed(NamedTuple):
    """What is known of an expression before it is evaluated.

    Attributes:
        names: That stand where names of columns do, as they are written.
        label_is_class: Whether the column ``label`` stands for the name of the class.
    """

    names: tuple[str, ...]
    label_is_class: bool


def matching(pack: PackTable, expression: str) -> np.ndarray:
    """Find the samples of a pack that an expression is true of.

    Args:
        pack: The pack.
        expression: A condition of SQL as DuckDB has it, as ``width >= 512 AND label = 'cat'``.
            `ArrowColumns` lists the columns; the samples' metadata are columns, too. ``label``
            beside text is the name of the class, else the number.

    Returns:
        Their positions, (n,) int64, ascending.

    Raises:
        OptionError: no such expression: DuckDB's message, and the columns there are.
        MissingPackageError: DuckDB or pyarrow is not installed.
        IntegrityError: the index is damaged.
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
            except duckdb.Error as error:
                if query.failed is not None:
                    raise query.failed from error
                raise _refused(expression, str(error), query.all_names()) from error

    return interrupts.aside(found, connection.interrupt)  # DuckDB looks for it between chunks only


class _Query:
    """One expression over one pack.

    Attributes:
        failed: The error that came while columns were made, which DuckDB wraps as its own.
    """

    def __init__(self, pack: PackTable, columns: ArrowColumns, connection: Any) -> None:
        self._pack, self._columns, self._connection = pack, columns, connection
        self._known = {name.lower(): name for name in columns.names}
        self.failed: PackioError | None = None

    def positions(self, expression: str) -> np.ndarray:
        """See `matching`."""
        parsed = self._parsed(expression)
        fixed = [self._known[n.lower()] for n in parsed.names if n.lower() in self._known]
        free = [n for n in parsed.names if n.lower() not in self._known]
        types = self._types(free) if free and META in self._columns.names else {}
        selected = [f'"{_quoted(name)}"' for name in dict.fromkeys(["index", *fixed])]
        if parsed.label_is_class and "label" in fixed:
            selected.remove('"label"')
            selected.append('"class" AS "label"')
            fixed.append("class")
        needed = list(dict.fromkeys(["index", *fixed]))
        read = "read"
        if types:
            needed = list(dict.fromkeys([*needed, META]))
            paths = ", ".join(_pointer(name) for name, _ in types.values())
            read = f"(SELECT *, json_extract_string({META}, [{paths}]) AS _found FROM read)"  # noqa: S608 (quoted names)
        for number, (column, (name, kind)) in enumerate(types.items(), 1):
            value = f"CAST(_found[{number}] AS {kind})"
            if kind == metadata.JSON:
                value = f"CAST(json_extract({META}, {_pointer(name)}) AS VARCHAR)"
            selected.append(f'{value} AS "{_quoted(column)}"')
        inner = f"(SELECT {', '.join(selected)} FROM {read}) AS samples"  # noqa: S608 (quoted names)
        with_inner = _TEMPLATE.format(expression).replace("FROM samples", f"FROM {inner}", 1)
        with self._over(needed) as cursor:
            found = cursor.execute(with_inner).fetchnumpy()["index"]
        positions: np.ndarray = np.sort(np.asarray(found, np.int64))
        return positions

    def all_names(self) -> list[str]:
        """Names of all columns, those of metadata among them."""
        names = [name for name in self._columns.names if name != META]
        if META not in self._columns.names:
            return names
        with self._over([META]) as cursor:
            found = cursor.execute(
                f"SELECT DISTINCT unnest(json_keys({META})) FROM read ORDER BY 1 LIMIT 100"  # noqa: S608 (no text of the user's)
            ).fetchall()
        there = [name for (name,) in found]
        return names + [metadata.column_of(name, self._known, there) for name in there]

    @contextlib.contextmanager
    def _over(self, names: Sequence[str]) -> Iterator[Any]:
        """A cursor of DuckDB for one statement, whose table ``read`` has some columns."""
        arrow: Any = registry.require("pyarrow", EXTRA)
        reader = arrow.RecordBatchReader.from_batches(
            self._columns.schema(names), self._batches(names)
        )
        with self._connection.cursor() as cursor:
            cursor.register("read", reader)
            yield cursor

    def _batches(self, names: Sequence[str]) -> Iterator[Any]:
        try:
            yield from self._columns.batches(names, _ROWS)
        except PackioError as error:  # arrives as DuckDB's error otherwise
            self.failed = error
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
        with self._over([META]) as cursor:
            rows = cursor.execute(
                f"SELECT DISTINCT json_type({META}, [{paths}]) FROM read WHERE {META} IS NOT NULL"  # noqa: S608 (quoted names)
            ).fetchall()
        for i, name in enumerate(new):
            kinds = {row[0][i] for row in rows}
            self._pack.meta_kinds[name] = frozenset(kinds - {None})

    def _parsed(self, expression: str) -> _Parsed:
        """Check that an expression is one, and nothing else.

        Raises:
            OptionError: it is not.
        """
        nodes = self._condition(expression)
        every = list(_nodes(nodes))
        if any(node.get("class") == "SUBQUERY" for node in every):
            raise OptionError(
                f"{expression!r}: a query within an expression is not taken; run it in DuckDB "
                "over packio.export(…), and give its result to subset()"
            )
        if any(node.get("class") == "STAR" for node in every):
            raise _refused(expression, "expected names of columns in place of *", self.all_names())
        named = [tuple(n["column_names"]) for n in every if n.get("class") == "COLUMN_REF"]
        names = tuple(dict.fromkeys(part for parts in named for part in parts))
        has_classes = {"label", "class"} <= self._known.keys()
        return _Parsed(names, label_is_class=has_classes and not _compares_number(every))

    def _condition(self, expression: str) -> Any:
        if not expression.strip():
            raise _refused(expression, "expected one condition, as after WHERE", self.all_names())
        asked, plain = (self._tree(_TEMPLATE.format(text)) for text in (expression, "true"))
        if asked["error"]:
            raise _refused(expression, asked["error_message"], self.all_names())
        condition = None
        for tree in (asked, plain):
            node = tree["statements"][0]["node"]
            found = node.pop("where_clause", None)
            condition = found if condition is None else condition
        if _without_places(asked) != _without_places(plain):
            raise _refused(expression, "expected one condition, as after WHERE", self.all_names())
        return condition

    def _tree(self, statement: str) -> Any:
        with self._connection.cursor() as cursor:
            ((text,),) = cursor.execute("SELECT json_serialize_sql(?)", [statement]).fetchall()
        return json.loads(text)


# What json_type says → type of a column. Numbers from 0 on are UBIGINT.
_KINDS = {
    "BOOLEAN": "BOOLEAN", "BIGINT": "BIGINT", "UBIGINT": "BIGINT", "DOUBLE": "DOUBLE",
    "VARCHAR": "VARCHAR", "NULL": "NULL",
}  # fmt: skip


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


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """All objects of a tree."""
    if isinstance(tree, dict):
        yield tree
        tree = tree.values()
    elif not isinstance(tree, list):
        return
    for inner in tree:
        yield from _nodes(inner)


def _without_places(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {n: _without_places(v) for n, v in tree.items() if n not in _PLACES}
    return [_without_places(v) for v in tree] if isinstance(tree, list) else tree


def _compares_number(nodes: Sequence[dict[str, Any]]) -> bool:
    """Whether ``label`` is compared or computed with a number anywhere, as in ``label = 3``."""
    for node in nodes:
        if node.get("class") == "FUNCTION" and not node.get("is_operator"):
            continue  # as left(label, 1)
        beside = list(_children(node))
        if any(map(_is_label, beside)) and any(map(_is_number, beside)):
            return True
    return False


def _children(tree: Any) -> Iterator[dict[str, Any]]:
    """The expressions within one, without those within these."""
    inner = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    for value in inner:
        if isinstance(value, dict) and "class" in value:
            yield value
        else:
            yield from _children(value)


def _is_label(node: dict[str, Any]) -> bool:
    names = node.get("column_names") or [""]
    return node.get("class") == "COLUMN_REF" and str(names[-1]).lower() == "label"


def _is_number(node: dict[str, Any]) -> bool:
    if node.get("class") == "FUNCTION":  # as -1 in some versions
        inner = list(_children(node))
        return bool(inner) and all(map(_is_number, inner))
    if node.get("class") == "CAST":
        return _is_number(node["child"])
    if "literal" in node:  # DuckDB 2
        return node["literal"].get("kind") in ("INTEGER", "NUMERIC")
    return node.get("value", {}).get("type", {}).get("id") in _NUMBERS  # DuckDB 1


def _refused(expression: str, reason: str, names: Sequence[str]) -> OptionError:
    """The error for an expression; its message has the columns there are."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    first = lines[0] if lines else "no reason"
    near = difflib.get_close_matches(_between_quotes(first), names, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return OptionError(f"{expression!r}: {first}{hint}; columns: {', '.join(names)}")


def _between_quotes(text: str) -> str:
    return text.split('"')[1] if text.count('"') > 1 else ""
