"""Conditions on metadata, and the exported columns, against plain Python over the same objects."""

from __future__ import annotations

import json
import math
import random
from typing import TYPE_CHECKING, Any

import fielded
import long
import pytest

import packio
from packio.errors import IntegrityError, OptionError
from packio.sample.record import Field, Record

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Sequence

pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("duckdb")

SAMPLES = 60
NAMES = ["a", "b c", "é", "x/y~z", "q'\"", "meta_a", "0"]
TEXTS = ["", "Ulm", "é\n", 'q"\\', "日本", "null", "12", "\u0000x", "%_", "😀", "a" * 300]
VALUES: dict[str, Callable[[random.Random], Any]] = {
    "boolean": lambda rng: rng.random() < 0.5,
    "whole": lambda rng: rng.choice([0, -1, 7, 12, 2**53 + 1, -(2**63), 2**63 - 1]),
    "large": lambda rng: rng.choice([-5, 0, 2**63, 2**64 - 1]),
    "real": lambda rng: rng.choice([0.5, -2.25, 1e300, 3.0, -0.0]),
    "number": lambda rng: rng.choice([1, 2.5, -3, 4.0]),
    "text": lambda rng: rng.choice(TEXTS),
    "mixed": lambda rng: rng.choice([1, 2.5, True, "1", "null", "é", [1, None], {"k": {"l": [2]}}]),
    "list": lambda rng: [rng.choice(TEXTS), rng.randint(0, 3), None],
    "object": lambda rng: {"lens": rng.choice(TEXTS), "n": [rng.randint(0, 3)]},
    "nothing": lambda _: None,
}


def _metas(rng: random.Random) -> tuple[list[dict[str, Any] | None], dict[str, str]]:
    """Objects for all samples, and the sort of values that each name has; some are missing."""
    sorts = {name: rng.choice([*VALUES]) for name in NAMES}
    metas: list[dict[str, Any] | None] = []
    for _ in range(SAMPLES):
        own: dict[str, Any] = {}
        for name in rng.sample(NAMES, len(NAMES)):
            if (chance := rng.random()) < 0.8:
                own[name] = VALUES[sorts[name]](rng) if chance > 0.1 else None
        metas.append(own if rng.random() < 0.95 else None)
    return metas, sorts


def _write(folder: pathlib.Path, metas: Sequence[bytes | None]) -> pathlib.Path:
    image = {"image": Field("image", fielded.png(1))}
    return fielded.write(
        folder, [Record(b"%d" % i, image, 0, meta=meta) for i, meta in enumerate(metas)]
    )


def _column(metas: Sequence[dict[str, Any] | None], name: str) -> list[Any]:
    """The values of a name as docs/queries.md says: of one type, else JSON text."""
    values = [(meta or {}).get(name) for meta in metas]
    sorts = {type(value) for value in values} - {type(None)}
    if sorts == {int, float}:
        return [None if value is None else float(value) for value in values]
    if len(sorts) == 1 and sorts <= {bool, int, float, str}:
        return values
    return [
        None if v is None else json.dumps(v, ensure_ascii=False, separators=(",", ":"))
        for v in values
    ]


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, str):
        pieces = ["'" + piece.replace("'", "''") + "'" for piece in value.split("\0")]
        return f"({' || chr(0) || '.join(pieces)})"
    return f"{value!r}::DOUBLE" if isinstance(value, float) else str(value)


def _condition(
    rng: random.Random, name: str, column: Sequence[Any]
) -> tuple[str, list[bool | None]]:  # fmt: skip
    """A condition on one column, and whether it is true, false or null of each value."""
    quoted = '"' + name.replace('"', '""') + '"'
    there = [value for value in column if value is not None]
    kind = rng.choice(["null", "not null", "=", "<>", "<", ">=", "in", "length", "like"])
    if kind in ("null", "not null") or not there:
        text, negated = ("IS NULL", False) if kind == "null" else ("IS NOT NULL", True)
        return f"{quoted} {text}", [(value is None) != negated for value in column]
    some = rng.sample(there, min(3, len(there)))
    is_text = isinstance(some[0], str)

    def each(test: Callable[[Any], bool]) -> list[bool | None]:
        return [None if value is None else test(value) for value in column]

    if kind == "length" and is_text:
        return f"strlen({quoted}) > 3", each(lambda v: len(v.encode()) > 3)
    if kind == "like" and is_text:
        return f"starts_with({quoted}, 'é')", each(lambda v: v.startswith("é"))
    if kind in ("in", "length", "like"):
        listed = ", ".join(map(_literal, some))
        return f"{quoted} IN ({listed})", each(lambda v: v in some)

    def ordered(value: Any) -> Any:
        return value.encode() if isinstance(value, str) else value

    least = ordered(some[0])
    compared: dict[str, Callable[[Any], bool]] = {
        "=": lambda v: v == some[0], "<>": lambda v: v != some[0],
        "<": lambda v: ordered(v) < least, ">=": lambda v: ordered(v) >= least,
    }  # fmt: skip
    return f"{quoted} {kind} {_literal(some[0])}", each(compared[kind])


def _joined(
    rng: random.Random, first: tuple[str, list[bool | None]], second: tuple[str, list[bool | None]]
) -> tuple[str, list[bool | None]]:
    """Two conditions with AND or OR, by the logic of three values."""
    word, strong = rng.choice([("AND", False), ("OR", True)])
    truths: list[bool | None] = []
    for pair in zip(first[1], second[1], strict=True):
        weak = None if None in pair else not strong
        truths.append(strong if strong in pair else weak)
    return f"({first[0]}) {word} ({second[0]})", truths


def _found(pack: pathlib.Path, expression: str) -> list[int]:
    ds = packio.PackDataset(pack, fields="index")
    try:
        part = ds.where(expression)
    except OptionError as error:
        if "none of" in str(error):
            return []
        raise
    return [int(part[i]) for i in range(len(part))]


@pytest.mark.parametrize("seed", long.after(4, range(12)))
def test_conditions_on_metadata_are_those_of_plain_python(
    tmp_path: pathlib.Path, seed: int
) -> None:
    rng = random.Random(seed)
    metas, _ = _metas(rng)
    texts = [None if meta is None else json.dumps(meta, ensure_ascii=rng.random() < 0.5).encode()
             for meta in metas]  # fmt: skip
    pack = _write(tmp_path / "p", texts)
    columns = {name: _column(metas, name) for name in NAMES}
    for _ in range(25):
        one, two = rng.choices(NAMES, k=2)
        expression, truths = _condition(rng, one, columns[one])
        if rng.random() < 0.5:
            other = _condition(rng, two, columns[two])
            expression, truths = _joined(rng, (expression, truths), other)
        wanted = [i for i, truth in enumerate(truths) if truth]
        assert _found(pack, expression) == wanted, expression
    packio.export(pack, tmp_path / "x.parquet")
    table = pq.read_table(tmp_path / "x.parquet")
    for name in NAMES:
        if any((meta or {}).get(name) is not None for meta in metas):
            assert table[name].to_pylist() == _of_export(columns[name]), name


def _of_export(column: list[Any]) -> list[Any]:
    """Whole numbers beyond 64 bits with sign are fractions there."""
    if any(type(value) is int and value >= 1 << 63 for value in column):
        return [None if value is None else float(value) for value in column]
    return column


def test_null_is_null_whatever_other_values_there_are(tmp_path: pathlib.Path) -> None:
    metas = [b'{"a":null,"b":1}', b'{"a":null,"b":"x"}', b'{"b":null}', b'{"b":"null"}']
    pack = _write(tmp_path / "p", metas)
    assert _found(pack, "a IS NULL") == [0, 1, 2, 3]
    assert _found(pack, "b IS NULL") == [2]
    assert _found(pack, "b = 'null'") == []
    assert _found(pack, "b = '\"null\"'") == [3]


def test_names_that_differ_in_case_are_two_columns(tmp_path: pathlib.Path) -> None:
    pack = _write(tmp_path / "p", [b'{"a":1,"A":2}', b'{"a":3}', b'{"A":3}'])
    assert _found(pack, "a = 3") == [1]
    assert _found(pack, "A = 3") == [2]
    with pytest.raises(OptionError, match="'a' and 'A'"):
        _found(pack, "a = 1 AND A = 2")


def test_halves_of_characters_are_question_marks(tmp_path: pathlib.Path) -> None:
    """Python writes and reads them in JSON, DuckDB does not."""
    metas = [json.dumps({"a": "\ud800x", "n": i}).encode() for i in range(3)]
    pack = _write(tmp_path / "p", [*metas, b'{"a":"y","n":3}', None])
    assert _found(pack, "a = '?x' AND n > 0") == [1, 2]
    assert _found(pack, "meta->>'$.a' = 'y'") == [3]
    assert _found(pack, "a IS NULL") == [4]
    with pytest.raises(OptionError, match="did you mean n"):
        _found(pack, "nn > 3")


def test_metadata_that_are_no_json_are_damage(tmp_path: pathlib.Path) -> None:
    pack = _write(tmp_path / "p", [b'{"n":1}', b'{"n":', b'{"n":3}'])
    for expression in ("n = 1", "nn = 1"):
        with pytest.raises(IntegrityError, match="metadata of sample 1"):
            _found(pack, expression)
    assert _found(pack, "width > 3") == [0, 1, 2]


def test_numbers_that_only_python_writes_are_read(tmp_path: pathlib.Path) -> None:
    values = [math.nan, math.inf, -math.inf, 2.5]
    pack = _write(tmp_path / "p", [json.dumps({"a": value}).encode() for value in values])
    assert _found(pack, "isnan(a)") == [0]
    assert _found(pack, "a > 2 AND NOT isnan(a)") == [1, 3]
    assert _found(pack, "a < 0") == [2]
