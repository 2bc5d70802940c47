"""What an expression of SQL says, before it runs: one condition, and the names that are in it.

An expression that changes the rest of the statement it stands in, and a query within the
expression, are refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from packio.errors import OptionError

TEMPLATE = 'SELECT "index" FROM samples WHERE ({}\n)'
_BARE = 'SELECT "index" FROM samples WHERE {}\n'
_PLACES = ("query_location", "query_location_length")  # of a node in the text
_NUMBERS = {"INTEGER", "BIGINT", "HUGEINT", "UHUGEINT", "DECIMAL", "DOUBLE", "INTEGER_LITERAL"}


class NotAConditionError(ValueError):
    """The expression is none; the message says why. No user sees this class."""


class Parsed(NamedTuple):
    """What is known of an expression before it is evaluated.

    Attributes:
        names: That stand where names of columns do, as they are written.
        label_is_number: Whether the column ``label`` stands beside a number anywhere.
    """

    names: tuple[str, ...]
    label_is_number: bool


def parsed(connection: Any, expression: str) -> Parsed:
    """Check that an expression is one condition, and nothing else.

    Args:
        connection: Of DuckDB.
        expression: The expression.
    """
    every = list(_nodes(_condition(connection, expression)))
    if any(node.get("class") == "SUBQUERY" for node in every):
        raise OptionError(
            f"{expression!r}: a query within an expression is not taken; run it in DuckDB "
            "over packio.export(…), and give its result to subset()"
        )
    if any(node.get("class") == "STAR" for node in every):
        raise NotAConditionError("expected names of columns in place of *")
    named = [tuple(n["column_names"]) for n in every if n.get("class") == "COLUMN_REF"]
    names = tuple(dict.fromkeys(part for parts in named for part in parts))
    return Parsed(names, _compares_number(every))


def _condition(connection: Any, expression: str) -> Any:
    """The tree of the condition."""
    only_one = "expected one condition, as after WHERE"
    if not expression.strip():
        raise NotAConditionError(only_one)
    asked, bare, plain = (
        _tree(connection, form.format(text))
        for form, text in ((TEMPLATE, expression), (_BARE, expression), (TEMPLATE, "true"))
    )
    if asked["error"]:
        raise NotAConditionError(asked["error_message"])
    if bare["error"] or _without_places(asked) != _without_places(bare):  # as "true) or (true"
        raise NotAConditionError(only_one)
    condition, _ = (
        tree["statements"][0]["node"].pop("where_clause", None) for tree in (asked, plain)
    )
    if _without_places(asked) != _without_places(plain):
        raise NotAConditionError(only_one)
    return condition


def _tree(connection: Any, statement: str) -> Any:
    with connection.cursor() as cursor:
        ((text,),) = cursor.execute("SELECT json_serialize_sql(?)", [statement]).fetchall()
    return json.loads(text)


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
