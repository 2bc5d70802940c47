"""Building an index: the columns are those of the records, whatever comes when."""

from __future__ import annotations

import itertools
import pathlib
import random
from typing import Any

import numpy as np
import pytest

from packio.errors import IntegrityError, OptionError
from packio.index import column, columns, indexfile, layout
from packio.index.building import IndexBuilder, Ranges
from packio.index.column import Pieces
from packio.index.columns import Keys, key_order
from packio.index.indexfile import Index
from packio.sample.record import Facts, Field, Record

FACTS = Facts("jpeg", 7, 9, 3, "uint8", 1, progressive=False)
ALPHABETS = [b"\0", b"\0a", b"ab\xff\0", b"0123456789", bytes(range(256))]
PREFIXES = [b"", b"abcdefgh", b"abcdefgh\0", b"n01440764/n01440764_"]


def _keys(draw: random.Random) -> list[bytes]:
    alphabet, prefix = draw.choice(ALPHABETS), draw.choice(PREFIXES)
    longest = draw.choice([2, 9, 20, 70])
    return [
        (prefix if draw.random() < 0.8 else b"")
        + bytes(draw.choice(alphabet) for _ in range(draw.randrange(longest)))
        for _ in range(draw.randrange(50))
    ]


def test_keys_are_ordered_bytewise_and_those_alike_by_their_rows() -> None:
    keys = [b"b\0", b"b", b"\xff", b"", b"b", b"a"]
    order, all_differ = key_order(*columns.join_values(keys))
    assert order.tolist() == [3, 5, 1, 4, 0, 2]
    assert not all_differ
    assert key_order(*columns.join_values(keys[:4]))[1]


def _tables(seed: int) -> tuple[list[list[bytes]], list[Keys]]:
    """Some lists of keys, of which some may be empty or have keys of others; and their columns."""
    draw = random.Random(seed)
    lists = [_keys(draw) for _ in range(draw.randrange(1, 6))]
    lists[0] += draw.sample(lists[-1], len(lists[-1]) // 2)
    made = [columns.key_columns(keys) for keys in lists]
    return lists, [Keys(t["key_data"], t["key_offsets"], t["key_order"]) for t in made]


@pytest.mark.parametrize("at_once", [1, 4, 30, 1 << 19])
@pytest.mark.parametrize("seed", range(40))
def test_tables_of_keys_are_merged_as_python_orders_bytes(
    seed: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "_ROWS", at_once)
    lists, tables = _tables(seed)
    keys = list(itertools.chain.from_iterable(lists))
    ranges = list(columns.merge_order(tables))
    assert np.concatenate(ranges).tolist() == sorted(range(len(keys)), key=keys.__getitem__)
    assert all(len(rows) <= at_once for rows in ranges)


@pytest.mark.parametrize("order", [[2, 1, 0, 3], [3, 2, 1, 0], [0, 0, 1, 2], [0, 1, 2, 9]])
@pytest.mark.parametrize("at_once", [2, 1 << 19])
def test_an_order_that_is_wrong_is_not_merged(
    order: list[int], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "_ROWS", at_once)
    data, starts = columns.join_values([b"a", b"b", b"c", b"d"])
    with pytest.raises(IntegrityError, match="reindex"):
        list(columns.merge_order([Keys(data, starts, np.array(order, np.uint32))]))


def _built(records: list[Record[Field]]) -> dict[str, np.ndarray]:
    builder = IndexBuilder()
    for record in records:
        builder.add(record)
    count = len(records)
    zeros = np.zeros(count, np.int64)
    return builder.columns({"image": Ranges(zeros.astype(np.uint32), zeros, zeros)})


def _record(key: bytes, boxes: int | None, values: Any = None) -> Record[Field]:
    fields = {"image": Field("image", b"x", FACTS)}
    if boxes is None:
        return Record(key, fields)
    return Record(key, fields, boxes=np.full((boxes, 4), boxes), box_columns={"n": values})


@pytest.mark.parametrize(("values", "expected"), [
    ([[1], [2, 3]], np.array([1, 2, 3], np.int64)),
    ([[1], [2.5, 3]], np.array([1, 2.5, 3], np.float32)),
    ([[0.5], [2, (1 << 24) + 1]], np.array([0.5, 2, 1 << 24], np.float32)),
    ([[], [7]], np.array([7], np.int64)),
    ([[], []], np.zeros(0, np.int64)),
    ([np.zeros(0, np.float64), [7]], np.array([7], np.int64)),
    ([np.array([200], np.uint8), np.array([-1], np.int8)], np.array([200, -1], np.int64)),
])  # fmt: skip
def test_values_of_boxes_are_integers_unless_one_is_a_float(
    values: list[Any], expected: np.ndarray
) -> None:
    records = [_record(b"a", None)]
    records += [_record(b"b%d" % i, len(v), v) for i, v in enumerate(values)]
    table = _built(records)
    assert table["boxes/n"].dtype == expected.dtype
    np.testing.assert_array_equal(table["boxes/n"], expected)
    counts = [0, *(len(v) for v in values)]
    assert np.diff(table["box_offsets"]).tolist() == counts
    assert table["boxes"][:, 2].tolist() == [n for n in counts for _ in range(n)]


def test_boxes_with_other_columns_than_those_before_are_refused() -> None:
    builder = IndexBuilder()
    builder.add(_record(b"a", 0, []))
    with pytest.raises(OptionError, match="expected the same for all boxes"):
        builder.add(Record(b"b", {"image": Field("image", b"x", FACTS)}, boxes=np.zeros((0, 4))))


def test_values_for_other_boxes_than_there_are_are_refused() -> None:
    with pytest.raises(OptionError, match="3 values of n for 2 boxes"):
        IndexBuilder().add(_record(b"a", 2, [1, 2, 3]))


def test_a_field_that_changes_its_kind_is_refused() -> None:
    builder, image = IndexBuilder(), Field("image", b"x", FACTS)
    builder.add(Record(b"a", {"image": image, "a": Field("text", b"a")}))
    with pytest.raises(OptionError, match="'a' is of kind text, now of kind bytes"):
        builder.add(Record(b"b", {"image": image, "a": Field("bytes", b"a")}))


def test_a_builder_knows_whether_keys_differ() -> None:
    for keys, differ in (([b"a", b"b"], True), ([b"a", b"b", b"a"], False), ([], True)):
        builder = IndexBuilder()
        for key in keys:
            builder.add(_record(key, None))
        zeros = np.zeros(len(keys), np.int64)
        builder.columns({"image": Ranges(zeros.astype(np.uint32), zeros, zeros)})
        assert builder.keys_differ is differ


def test_keys_that_are_alike_are_numbered() -> None:
    table = columns.numbered_key_columns(*columns.join_values([b"a", b"", b"a"]))
    data, starts = table["key_data"].tobytes(), table["key_offsets"].tolist()
    assert [data[starts[i] : starts[i + 1]] for i in range(3)] == [
        b"00000000/a", b"00000001/", b"00000002/a",
    ]  # fmt: skip
    assert table["key_order"].tolist() == [0, 1, 2]


def test_keys_that_do_not_add_up_are_refused(tmp_path: pathlib.Path) -> None:
    builder = IndexBuilder()
    for key in (b"ab", b"cd", b"ef"):
        builder.add(Record(key, {"image": Field("image", b"x", FACTS)}, None, None, None, {}, b""))
    where = np.arange(3, dtype=np.int64)
    table = builder.columns({"image": Ranges(np.zeros(3, np.uint32), where, where + 1)})
    table["key_offsets"] = np.array([0, 4, 2, 6], np.int64)
    files = columns.object_columns(["a"], [1], [bytes(32)])
    indexfile.write(tmp_path / "a.packio", table | files, {"version": indexfile.VERSION})
    with pytest.raises(IntegrityError, match="key_offsets does not ascend"):
        list(indexfile.Index(tmp_path / "a.packio").every_key())


# Columns in pieces: what is written is what the whole arrays are

MANY_KEYS = [b"b/%05d" % (n * 7919 % 1000) for n in range(1000)]


def _table(keys: list[bytes], seed: int, names: list[str]) -> dict[str, np.ndarray]:
    draw, count = np.random.default_rng(seed), len(keys)
    found = {
        name: draw.integers(0, 200, count).astype(code) for name, code in layout.PER_SAMPLE.items()
    }
    found["image/file"] = draw.integers(0, len(names), count).astype(np.uint32)
    lengths = draw.integers(0, 3, count)
    found["label"] = draw.random((count, 3), np.float32)
    found |= {
        "boxes": draw.random((int(lengths.sum()), 4), np.float32),
        "box_offsets": columns.offsets(lengths.tolist()),
    }
    data, starts = columns.join_values([name.encode() for name in names])
    return found | columns.key_columns(keys) | {
        "file_bytes": np.arange(len(names)), "file_path_data": data, "file_path_offsets": starts,
        "file_digest": np.zeros((len(names), 32), np.uint8),
    }  # fmt: skip


@pytest.mark.parametrize("rows", [1, 7, 1 << 17])
@pytest.mark.parametrize("block", [64, 1 << 20])
def test_joined_columns_are_written_as_whole_arrays_are(
    tmp_path: pathlib.Path, rows: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (column, indexfile, layout):
        monkeypatch.setattr(module, "BLOCK", block)
    monkeypatch.setattr(column, "_ROWS", rows)
    edges = [0, 3, 3, 400, 1000]  # one of the tables is empty
    tables = [_table(MANY_KEYS[a:b], a, [f"{a}.a", f"{a}.b"]) for a, b in itertools.pairwise(edges)]
    joined = columns.join_tables(tables, [2] * len(tables))
    metadata = {"version": 2}
    digest = indexfile.write(tmp_path / "pieces", joined, metadata)
    whole = {n: c.array() if isinstance(c, Pieces) else c for n, c in joined.items()}
    assert indexfile.write(tmp_path / "whole", whole, metadata) == digest
    assert (tmp_path / "pieces").read_bytes() == (tmp_path / "whole").read_bytes()
    index = Index(tmp_path / "pieces")
    index.check()
    assert index.digest == digest
    assert [index.key(i) for i in range(1000)] == MANY_KEYS
    assert [index.find(key) for key in MANY_KEYS] == list(range(1000))
    expected = np.concatenate([t["image/file"] + 2 * n for n, t in enumerate(tables)])
    np.testing.assert_array_equal(index.column("image/file").array(), expected)
    for row, table, local in ((2, 0, 2), (3, 2, 0), (999, 3, 599)):
        first, last = index.column("box_offsets").span(row, row + 2).tolist()
        begin, end = tables[table]["box_offsets"][local : local + 2].tolist()
        boxes = index.column("boxes").span(first, last)
        np.testing.assert_array_equal(boxes, tables[table]["boxes"][begin:end])
    np.testing.assert_array_equal(
        index.column("label").array(), np.concatenate([t["label"] for t in tables])
    )


def test_columns_without_rows_are_written(tmp_path: pathlib.Path) -> None:
    tables = [_table([], 0, []), _table([], 1, [])]
    indexfile.write(tmp_path / "empty", columns.join_tables(tables, [0, 0]), {"version": 2})
    assert len(Index(tmp_path / "empty")) == 0
