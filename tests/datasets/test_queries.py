"""`where` with an expression and `subset` with a table, against plain Python and DuckDB alone."""

from __future__ import annotations

import os
import pathlib
import random
from typing import TYPE_CHECKING, Any

import fielded
import long
import missing
import pytest
import queried
import torch

import packio
from packio.errors import (
    IntegrityError,
    KeyNotFoundError,
    OptionError,
    PackioError,
)
from packio.index import indexfile
from packio.index.indexfile import Index
from packio.packs.querying import expressions
from packio.sample.record import Field, Record

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
duckdb = pytest.importorskip("duckdb")

SAMPLES = queried.samples()
Test = "Callable[[queried.Described], Any]"


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return queried.write(tmp_path_factory.mktemp("queries") / "p")


@pytest.fixture(scope="module")
def sharded(pack: pathlib.Path) -> pathlib.Path:
    """Four shards, each with an index of its own."""
    return packio.convert(pack, pack.parent / "sharded.tar", shards=4).out


@pytest.fixture(scope="module")
def exported(pack: pathlib.Path) -> str:
    packio.export(pack, pack.parent / "x.parquet")
    return f"{pack.parent}/x.parquet"


def _whole(pack: pathlib.Path, **options: Any) -> packio.PackDataset:
    return packio.PackDataset(pack, fields=("index", "key"), **options)


def _which(ds: Any) -> list[int]:
    return [int(index) for index, _ in (ds[i] for i in range(len(ds)))]


# Expression → what plain Python says of a sample.
EXPRESSIONS: list[tuple[str, Callable[[queried.Described], Any]]] = [
    ("width >= 6 AND class = 'cat'", lambda s: s.name == "cat"),
    ("label = 2", lambda s: s.label == 2),
    ("label IN (0, 2)", lambda s: s.label in (0, 2)),
    ("label = -1 OR label >= 3", lambda s: s.label == -1 or s.label >= 3),
    ("label BETWEEN 1 AND 2", lambda s: 1 <= s.label <= 2),
    ("label % 2 = 1", lambda s: s.label in (1, 3)),
    ("class = '20'", lambda s: s.name == "20"),
    ("class = '1'", lambda s: s.name == "1"),
    ("label = 1", lambda s: s.label == 1),
    ("class IN ('1', 'dog')", lambda s: s.name in ("1", "dog")),
    ("lower(class) LIKE 'c%'", lambda s: s.name == "cat"),
    ("class = 'dog' OR label = 2", lambda s: s.label in (1, 2)),
    ("class IS NULL", lambda s: s.name is None),
    ("samples.class = 'cat'", lambda s: s.name == "cat"),
    ("CLASS = 'cat' AND Split = 'val'", lambda s: s.name == "cat" and s.split == "val"),
    ("key LIKE 'é/%'", lambda s: s.key.startswith("é/")),
    ('"index" < 3', lambda s: int(s.key[2:4]) < 3),
    ("bytes > 90 -- a comment", lambda s: s.fields["image"] > 90),
    ("depth_height = 5", lambda s: "depth" in s.fields),
    ("caption_bytes IS NULL", lambda s: "caption" not in s.fields),
    ("encoding = 'png' AND depth_encoding IS NULL", lambda s: "depth" not in s.fields),
    ("len(boxes) = 3", lambda s: len(s.boxes) == 3),
    ("list_contains(box_labels, 2)", lambda s: 2 in s.box_labels),
    ("list_contains(box_classes, 'dog')", lambda s: 1 in s.box_labels),
    ("list_sum(box_crowd) > 0", lambda s: sum(s.crowd) > 0),
    ("city = 'Köln'", lambda s: s.meta["city"] == "Köln"),
    ("city IS NULL", lambda s: s.meta["city"] is None),
    ("n < 0", lambda s: s.meta["n"] < 0),
    ("score = 2.25 OR score = 4", lambda s: s.meta["score"] in (2.25, 4)),
    ("seen", lambda s: s.meta["seen"]),
    ("NOT seen AND city = 'Ulm'", lambda s: not s.meta["seen"] and s.meta["city"] == "Ulm"),
    ("mixed = '\"x\"'", lambda s: s.meta["mixed"] == "x"),
    ("mixed IN ('1.5', 'true')", lambda s: (s.meta["mixed"] in (1.5, True) and s.meta["mixed"] != 1)
     or s.meta["mixed"] is True),
    ("meta_width = 'wide 7'", lambda s: s.meta["width"] == "wide 7"),
    ("rare > 1152921504606846976", lambda s: s.meta.get("rare", 0) > 2**60),
    ("huge > 1e20", lambda s: s.meta.get("huge", 0) > 1e20),
    ("tags LIKE '%,7]'", lambda s: s.meta["tags"][1] == 7),
    ("\"a b/c~'\"\"\" >= 30", lambda s: s.meta["a b/c~'\""] >= 30),
    ("1 = 1", lambda _: True),
]  # fmt: skip


@pytest.mark.parametrize(("expression", "expected"), EXPRESSIONS, ids=[e for e, _ in EXPRESSIONS])
def test_an_expression_finds_what_plain_python_finds(
    pack: pathlib.Path, sharded: pathlib.Path, expression: str,
    expected: Callable[[queried.Described], Any],
) -> None:  # fmt: skip
    wanted = [i for i, sample in enumerate(SAMPLES) if expected(sample)]
    assert wanted
    assert _which(_whole(pack).where(expression)) == wanted
    assert _which(_whole(sharded).where(expression)) == wanted


@pytest.mark.parametrize("expression", [
    e for e, _ in EXPRESSIONS if "samples." not in e
])  # fmt: skip
def test_it_finds_what_duckdb_finds_in_the_exported_file(
    pack: pathlib.Path, exported: str, expression: str
) -> None:
    sql = f"SELECT \"index\" FROM '{exported}' WHERE ({expression}\n) ORDER BY 1"  # noqa: S608 (ours)
    expected = [int(row[0]) for row in duckdb.sql(sql).fetchall()]
    assert _which(_whole(pack).where(expression)) == expected


def test_conditions_go_together_in_parts_of_a_dataset(pack: pathlib.Path) -> None:
    train = _whole(pack, split="train")
    found = train.where("n > 3", city="Köln")
    assert _which(found) == [
        i for i, s in enumerate(SAMPLES)
        if s.split == "train" and s.meta["n"] > 3 and s.meta["city"] == "Köln"
    ]  # fmt: skip
    backwards = train.subset(range(len(train) - 1, -1, -1))
    assert _which(backwards.where("n > 3")) == [i for i in _which(backwards) if i > 6]
    assert _which(found.where("n > 20")) == [i for i in _which(found) if i > 23]


def test_several_packs_are_asked_each_by_its_own_names(pack: pathlib.Path) -> None:
    ds = _whole(pack)
    both = packio.ConcatPacks([ds.subset([5, 2]), ds.subset(range(30, 40))])
    found = _which(both.subset([0, 11, 1, 3]).where("n % 2 = 0"))
    assert [index % queried.COUNT for index in found] == [5, 39, 31]


def test_a_batch_of_an_expression_is_that_of_its_samples(pack: pathlib.Path) -> None:
    ds = packio.PackDataset(pack)
    part = ds.where("class = 'cat'")
    wanted = [i for i, s in enumerate(SAMPLES) if s.name == "cat"]
    assert torch.equal(part.gather(range(len(part)))[0], ds.gather(wanted)[0])


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("widht > 3", "no column 'widht'; did you mean width"),
        ("label = cat", "no column 'cat'; text needs single quotes: 'cat'"),
        ("label = somebody", "no column 'somebody'; columns: index, key"),
        ("width >", "syntax error"),
        (" ", "one condition"),
        ("width = 'wide'", "Could not convert"),
        ("label = 'cat'", "label is a number, the name is class"),
        ("label = 'no class'", "Could not convert"),
        ("count(*) > 1", "aggregates"),
        ("COLUMNS(*) > 3", "names of columns"),
        ("COLUMNS('w.*') > 3", "names of columns"),
        ("1; DROP TABLE samples", "columns: index, key"),
        ("true) UNION SELECT 1 FROM (SELECT 1", "one condition"),
        ("true) GROUP BY (1", "one condition"),
        ("true) LIMIT (1", "one condition"),
        ("true) or (1=1", "one condition"),
        ("EXISTS (SELECT 1)", "query within an expression"),
        ('"index" IN (SELECT 1)', "query within an expression"),
        ("(SELECT content FROM read_text('/etc/hostname')) IS NOT NULL", "query within"),
        ("\"index\" IN (FROM 'x.parquet')", "query within"),
        ("read_text('/etc/hostname') IS NOT NULL", "table function"),
        ("width = $1", "columns: index, key"),
        ("error('own words')", "own words"),
        ("width > 99", "none of 40 samples"),
    ],
)  # fmt: skip
def test_what_is_no_condition_is_refused(pack: pathlib.Path, expression: str, said: str) -> None:
    with pytest.raises(OptionError, match=said) as raised:
        _whole(pack).where(expression)
    if "none of" not in said and "query within" not in said:
        assert "columns: index, key, label, class, split, bytes, height, width" in str(raised.value)
        assert "city" in str(raised.value)


def test_too_little_memory_is_no_wrong_condition(
    pack: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expressions, "_LOCKED", {"memory_limit": "100kB"})
    with pytest.raises(MemoryError, match="Out of Memory"):
        _whole(pack).where("len(list_sort(range(100000))) > width")


@pytest.mark.parametrize("condition", ["(width > 0) or (true)", "true -- ) or (", "true /* ) */"])
def test_parentheses_and_comments_of_a_condition_stay(pack: pathlib.Path, condition: str) -> None:
    assert len(_whole(pack).where(condition)) == len(_whole(pack))


def test_text_is_expected(pack: pathlib.Path) -> None:
    wrong: Any = 7
    with pytest.raises(OptionError, match="condition of SQL"):
        _whole(pack).where(wrong)


@pytest.mark.parametrize("statement", [
    "ATTACH '{0}/x.db'", "COPY (SELECT 1) TO '{0}/x.csv'", "SELECT * FROM read_csv('{0}/a.csv')",
    "SELECT * FROM '{0}/a.csv'", "SET enable_external_access = true", "LOAD httpfs",
    "INSTALL httpfs", "SELECT * FROM glob('{0}/*')", "EXPORT DATABASE '{0}/d'",
    "SET lock_configuration = false", "SELECT * FROM secret",
])  # fmt: skip
def test_even_a_statement_could_not_reach_files(tmp_path: pathlib.Path, statement: str) -> None:
    (tmp_path / "a.csv").write_text("a\n1\n")
    secret = pa.table({"a": [1]})  # noqa: F841 (DuckDB would find it by its name)
    with (
        duckdb.connect(":memory:", config=expressions._LOCKED) as connection,
        pytest.raises(duckdb.Error),
    ):
        connection.execute(statement.format(tmp_path)).fetchall()
    assert os.listdir(tmp_path) == ["a.csv"]


@pytest.mark.parametrize("count", long.after(1, (40, 150)))
def test_forged_expressions_end_as_errors_of_packio(pack: pathlib.Path, count: int) -> None:
    rng = random.Random(16)
    words = [
        "width", ">", "=", "3", "'cat'", "label", "(", ")", ";", "--", "/*", "SELECT", "FROM",
        "UNION", "\0", "'", '"', ",", "city", "meta", "->>", "$1", "?", "\\", "read_csv('x')",
        "*", "::", "INT", "IS", "NULL", "{", "}", "[", "]", "é", "LIMIT", "ORDER BY", "WINDOW",
    ]  # fmt: skip
    ds = _whole(pack)
    for _ in range(count):
        text = " ".join(rng.choices(words, k=rng.randint(1, 8)))
        try:
            found = _which(ds.where(text))
        except PackioError:
            continue
        assert set(found) <= set(range(queried.COUNT))


def test_a_damaged_index_is_told_as_such(tmp_path: pathlib.Path) -> None:
    folder = queried.write(tmp_path / "p")
    index = Index(folder / "index.packio")
    columns = {n: index.column(n).array().copy() for n in index.column_names}
    columns["key_offsets"][3] = 1
    indexfile.write(folder / "index.packio", columns, index.metadata)
    with pytest.raises(IntegrityError, match="key_offsets does not ascend"):
        _whole(folder).where("key = 'x'")
    columns["key_offsets"][3:] = 1 << 40
    indexfile.write(folder / "index.packio", columns, index.metadata)
    with pytest.raises(IntegrityError, match="asked for"):
        _whole(folder).where("key = 'x'")


def test_keys_and_metadata_need_not_be_text(tmp_path: pathlib.Path) -> None:
    ds = packio.PackDataset(fielded.write(tmp_path / "p"), fields="index")
    assert len(ds.where("key LIKE 'dog/%\\xff.png' AND place = 'ü'")) == 3


def test_bytes_of_classes_and_keys_are_shown_alike(tmp_path: pathlib.Path) -> None:
    rows = [
        Record(
            b"%d\xff" % i if i % 2 else b"%d" % i, {"image": Field("image", fielded.png(i))}, i % 3
        )
        for i in range(9)
    ]
    made = fielded.write(tmp_path / "p", rows, classes=["a", "b\udcff", "c"])
    ds = packio.PackDataset(made, fields="index")
    for text in (r"b\xff", "b\udcff"):  # as a column shows it, and as a shell hands it over
        assert [ds.where(f"class = '{text}'")[i] for i in range(3)] == [1, 4, 7]
    packio.export(made, tmp_path / "p.parquet")
    table = pq.read_table(tmp_path / "p.parquet")
    assert set(table["class"].to_pylist()) == {"a", r"b\xff", "c"}
    by_key = ds.subset(table.select(["key"]).take(pa.array([8, 3, 0])))
    assert [by_key[i] for i in range(3)] == [8, 3, 0]
    with pytest.raises(KeyNotFoundError, match="1 of 1 keys"):
        ds.subset(pa.table({"key": [r"2\xff"]}))


def test_names_in_metadata_may_begin_like_the_prefix(tmp_path: pathlib.Path) -> None:
    """The names width and meta_width both have a column, the same one in SQL and in the export."""
    rows = [
        Record(
            b"%d" % i, {"image": Field("image", fielded.png(i))}, 0,
            meta=b'{"width": %d, "meta_width": %d}' % (10 + i, 20 + i),
        )
        for i in range(3)
    ]  # fmt: skip
    out = fielded.write(tmp_path / "p", rows)
    packio.export(out, tmp_path / "p.parquet")
    expected = {"meta_width": 20, "meta_meta_width": 10}
    table = pq.read_table(tmp_path / "p.parquet")
    assert table["width"].to_pylist() == [6, 6, 6]
    for name, first in expected.items():
        assert table[name].to_pylist() == [first, first + 1, first + 2]
        part = packio.PackDataset(out, fields="index").where(f"{name} = {first + 1}")
        assert [part[i] for i in range(len(part))] == [1]


def _tables(path: str) -> list[Any]:
    """The same rows, of each kind of table that is installed."""
    table = pq.read_table(path).select(["key", "index", "n"]).take(pa.array([7, 3, 3, 30]))
    found: list[Any] = [table, duckdb.from_arrow(table), table.to_batches()[0]]
    for name in ("pandas", "polars"):
        try:
            module = __import__(name)
        except ImportError:
            continue
        found.append(table.to_pandas() if name == "pandas" else module.from_arrow(table))
    return found


@pytest.mark.parametrize("columns", [["key"], ["index"], ["key", "index"]])
def test_a_table_names_samples_in_its_order(
    pack: pathlib.Path, exported: str, columns: list[str]
) -> None:
    for table in _tables(exported):
        chosen = table[columns] if hasattr(table, "iloc") else table.select(
            *([columns] if not hasattr(table, "to_arrow_table") else columns))  # fmt: skip
        part = _whole(pack).subset(chosen)
        assert [(int(i), key) for i, key in (part[j] for j in range(4))] == [
            (i, SAMPLES[i].key) for i in (7, 3, 3, 30)
        ]


def test_a_stream_of_arrow_names_samples(pack: pathlib.Path) -> None:
    stream = pa.table({"index": [7, 3, 3]}).to_reader()  # as DuckDB's arrow() gives
    assert _which(_whole(pack).subset(stream)) == [7, 3, 3]


def test_keys_in_a_list_are_refused_with_what_takes_keys(pack: pathlib.Path) -> None:
    with pytest.raises(OptionError, match="for keys: where"):
        _whole(pack).subset([SAMPLES[3].key])


def test_a_relation_of_duckdb_chooses(pack: pathlib.Path, exported: str) -> None:
    relation = duckdb.sql(
        f"SELECT key, n FROM '{exported}' WHERE class = 'dog' ORDER BY n DESC LIMIT 3"  # noqa: S608 (ours)
    )
    dogs = [i for i, s in enumerate(SAMPLES) if s.name == "dog"]
    assert _which(_whole(pack).subset(relation)) == dogs[::-1][:3]


def test_many_keys_are_found_in_one_pass(
    pack: pathlib.Path, sharded: pathlib.Path, exported: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packio.packs.querying.selections._FEW", 2)
    monkeypatch.setattr("packio.index.indexfile._KEYS", 7)
    table = pq.read_table(exported).select(["key"]).take(pa.array([39, 0, 13, 6, 7]))
    for one in (pack, sharded):
        assert _which(_whole(one).subset(table)) == [39, 0, 13, 6, 7]


def test_tables_that_do_not_fit_are_refused(pack: pathlib.Path) -> None:
    ds = _whole(pack)
    for columns, said in [
        ({"a": [1]}, "expected key, or index"),
        ({"index": [40]}, "40 samples"),
        ({"index": [-1]}, "index -1"),
        ({"index": [0.5]}, "expected integers"),
        ({"index": [None, 1]}, "1 null"),
        ({"key": [1]}, "keys as text"),
        ({"index": [3], "key": ["a/00.png"]}, "of another pack"),
    ]:
        with pytest.raises(OptionError, match=said):
            ds.subset(pa.table(columns))
    with pytest.raises(KeyNotFoundError, match="1 of 2 keys are not in the pack: 'x\\.png'"):
        ds.subset(pa.table({"key": ["a/00.png", "x.png"]}))
    val = _whole(pack, split="val")
    with pytest.raises(OptionError, match="1 of 2 samples in the table are not in this part"):
        val.subset(pa.table({"index": [0, 1]}))
    assert _which(val.subset(pa.table({"index": [9, 0]}))) == [9, 0]
    with pytest.raises(OptionError, match="ConcatPacks"):
        packio.ConcatPacks([ds]).subset(pa.table({"index": [1]}))


def test_without_duckdb_the_command_to_install_it_is_told(pack: pathlib.Path) -> None:
    code = f"packio.PackDataset({str(pack)!r}).where('width > 3')"
    assert "pip install 'packio[query]'" in missing.told("duckdb", code)


def test_only_the_columns_that_are_named_are_made(
    pack: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touched: set[str] = set()
    span = indexfile.Column.span

    def told(self: Any, start: int, stop: int) -> np.ndarray:
        touched.add(self._where.rpartition("column ")[2])
        return span(self, start, stop)

    ds = _whole(pack)
    monkeypatch.setattr(indexfile.Column, "span", told)
    ds.where("width > 3 AND label >= 0")
    assert touched == {"image/width", "label"}
