"""An index of several shards under a manifest, against one index of all samples."""

from __future__ import annotations

import os
import pathlib
import pickle
import random
from collections.abc import Callable

import leftovers
import numpy as np
import pytest

from packio.errors import IntegrityError, KeyNotFoundError, NotAPackError
from packio.index import column, columns, indexfile, lookup, shards
from packio.index.building import IndexBuilder, Ranges
from packio.index.indexfile import Index
from packio.index.joined import JoinedColumn
from packio.index.lookup import KeyBytes, NumberColumns
from packio.sample.facts import Facts
from packio.sample.record import Field, Record
from packio.system import files

FACTS = Facts("jpeg", 7, 9, 3, "uint8", 1, progressive=False)
COUNTS = (5, 0, 1, 9, 3)  # samples of each shard: one is empty


def _records(count: int) -> list[Record[Field]]:
    draw = random.Random(0)
    made = []
    for i in range(count):
        fields = {"image": Field("image", draw.randbytes(1 + i), FACTS._replace(height=i + 1))}
        if i % 3 or i < 2:
            fields["caption"] = Field("text", b"text %d" % i)
        boxes = np.full((i % 4, 4), i, np.float32)
        made.append(Record(
            b"%03d" % draw.randrange(1000) + b"/%d" % i, fields, i % 5, None, boxes,
            {"labels": np.arange(i % 4)}, b'{"n":%d}' % i,
        ))  # fmt: skip
    return made


def _columns(records: list[Record[Field]], files: int, first: int) -> dict[str, np.ndarray]:
    """Columns of an index whose files are numbered from `first`, of `files` files."""
    builder = IndexBuilder()
    count = len(records)
    for record in records:
        builder.add(record)
    where = np.arange(count, dtype=np.int64)
    number = np.asarray(first + where % max(files, 1), np.uint32)
    absent = np.array(["caption" not in r.fields for r in records], bool)
    places = {
        "image": Ranges(number, where * 10, where + 1),
        "caption": Ranges(number, np.where(absent, -1, where * 7), np.where(absent, 0, 6)),
    }
    return builder.columns(places)


def _completed(tables: list[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    every = {name: column for table in tables for name, column in table.items()}
    return [
        {name: table[name] if name in table
         else columns.absent(name, c.dtype, c.shape[1:], len(table["image/offset"]))
         for name, c in every.items()}
        for table in tables
    ]  # fmt: skip


def _of_files(names: list[str]) -> dict[str, np.ndarray]:
    data, starts = columns.ragged([name.encode() for name in names])
    return {
        "file_bytes": np.arange(len(names), dtype=np.int64),
        "file_digest": np.zeros((len(names), 32), np.uint8),
        "file_path_data": data, "file_path_offsets": starts,
    }  # fmt: skip


@pytest.fixture
def pair(tmp_path: pathlib.Path) -> tuple[Index, Index]:
    """One index of all samples, and the same under a manifest."""
    records, files = _records(sum(COUNTS)), 2
    metadata = {"version": 2, "fields": {"image": "image", "caption": "text"}}
    made, parts, first = [], [], 0
    for number, count in enumerate(COUNTS):
        mine = records[first : first + count]
        first += count
        names = [f"{number}.a", f"{number}.b"]
        path = tmp_path / f"{number}.packio"
        indexfile.write(path, _columns(mine, files, 0) | _of_files(names), metadata)
        made.append(Index(path))
        parts.append(_columns(mine, files, 0) | _of_files(names))
    whole = columns.joined(_completed(parts), [files] * len(COUNTS))
    indexfile.write(tmp_path / "whole.packio", whole, metadata)
    table, kinds = shards.table(
        made, [f"{i}.packio" for i in range(len(COUNTS))], [files * i for i in range(len(COUNTS))]
    )
    every = [f"{i}.{x}" for i in range(len(COUNTS)) for x in "ab"]
    indexfile.write(
        tmp_path / "index.packio", table | _of_files(every), {**metadata, "columns": kinds}
    )
    return Index(tmp_path / "whole.packio"), Index(tmp_path / "index.packio")


def _names(index: Index) -> set[str]:
    return {n for n in index.column_names if not n.startswith(("file_", "shard_"))}


def test_all_columns_are_those_of_one_index(pair: tuple[Index, Index]) -> None:
    whole, sharded = pair
    assert len(sharded) == len(whole)
    assert _names(sharded) == _names(whole)
    for name in sorted(_names(whole)):
        expected, found = whole.column(name), sharded.column(name)
        assert found.shape == expected.shape, name
        np.testing.assert_array_equal(found.array(), expected.array(), name)


def test_rows_spans_and_items_are_those_of_one_index(pair: tuple[Index, Index]) -> None:
    whole, sharded = pair
    draw = np.random.default_rng(0)
    for name in sorted(_names(whole)):
        expected, found = whole.column(name).array(), sharded.column(name)
        rows = draw.integers(0, len(expected), 40) if len(expected) else np.zeros(0, np.int64)
        np.testing.assert_array_equal(found.take(rows), expected[rows], name)
        for start in range(len(expected) + 1):
            for stop in range(start, len(expected) + 1):
                np.testing.assert_array_equal(found.span(start, stop), expected[start:stop], name)
        if expected.ndim == 1 and expected.dtype.kind in "iu":
            assert [found.item(i) for i in range(len(expected))] == expected.tolist(), name
        with pytest.raises(IntegrityError):
            found.span(0, len(expected) + 1)


@pytest.mark.parametrize("part", [1, 3, 1 << 17])
def test_rows_that_are_looked_up_one_by_one_are_those_of_one_index(
    pair: tuple[Index, Index], part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup, "_PART", part)
    names = [n for n in sorted(_names(pair[0])) if "/" in n and not n.startswith("boxes")]
    whole, sharded = (
        (NumberColumns([index.column(n) for n in names], index), KeyBytes(index)) for index in pair
    )
    for row in [*range(sum(COUNTS)), *reversed(range(sum(COUNTS)))]:
        assert list(sharded[0](row)) == list(whole[0](row))
        assert bytes(sharded[1](row)) == bytes(whole[1](row))


def test_rows_come_in_the_order_of_their_keys(pair: tuple[Index, Index]) -> None:
    whole, sharded = pair
    rows = whole.column("key_order").array().tolist()
    for start in (b"", whole.key(3), b"5", b"\xff"):
        expected = [row for row in rows if whole.key(row) >= start]
        assert list(sharded.rows_from(start)) == list(whole.rows_from(start)) == expected


@pytest.mark.parametrize(("most", "more"), [(len(COUNTS), len(COUNTS)), (len(COUNTS) - 1, 0)])
def test_many_shards_keep_no_descriptor_each(
    pair: tuple[Index, Index], most: int, more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "spare_descriptors", lambda: 4 * most)
    before = leftovers.descriptors_below(pair[1].path.parent)
    index = Index(pair[1].path)
    labels = index.column("label").array()
    assert leftovers.descriptors_below(pair[1].path.parent) - before == more
    np.testing.assert_array_equal(labels, pair[0].column("label").array())


def test_keys_are_found_in_any_shard(pair: tuple[Index, Index]) -> None:
    whole, sharded = pair
    for row in range(len(whole)):
        assert sharded.key(row) == whole.key(row)
        assert sharded.find(whole.key(row)) == row
        assert sharded.rank(whole.key(row)) == whole.rank(whole.key(row))
    with pytest.raises(KeyNotFoundError):
        sharded.find(b"nowhere")
    assert sharded.files()[2 * 3 + 1][0] == "3.b"


def _without_ranges(index: Index) -> Index:
    """The same under a manifest as packio wrote it before it kept keys of shards there."""
    table = {n: c.array() for n, c in index.own_columns.items() if "_keys_" not in n}
    path = index.path.with_name("older.packio")
    indexfile.write(path, table, index.metadata)
    return Index(path)


def test_a_key_is_looked_for_only_where_it_may_be(
    pair: tuple[Index, Index], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, edge = pair[0], 0
    each = []
    for count in COUNTS:
        each.append(sorted(whole.key(row) for row in range(edge, edge + count)))
        edge += count
    wanted = each[2][0]  # of the shard with one sample
    may_have = [i for i, keys in enumerate(each) if keys and keys[0] <= wanted <= keys[-1]]
    opened: list[int] = []
    fresh = Index(pair[1].path)
    assert fresh.shards is not None
    index_of = fresh.shards.index

    def watched(number: int) -> Index:
        opened.append(number)
        return index_of(number)

    monkeypatch.setattr(fresh.shards, "index", watched)
    assert fresh.find(wanted) == whole.find(wanted)
    assert {*opened} <= {*may_have}
    opened.clear()
    with pytest.raises(KeyNotFoundError):
        fresh.find(b"zzz")
    assert not opened


@pytest.mark.parametrize("at_a_time", [1, 4, 1000])
def test_every_key_comes_in_order(
    at_a_time: int, pair: tuple[Index, Index], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexfile, "_KEYS", at_a_time)
    expected = [record.key for record in _records(sum(COUNTS))]
    for index in pair:
        assert [*index.every_key()] == expected
        assert [*indexfile.Keys(index)] == [os.fsdecode(key) for key in expected]


def test_a_manifest_without_ranges_of_keys_finds_the_same(pair: tuple[Index, Index]) -> None:
    whole, older = pair[0], _without_ranges(pair[1])
    for row in range(len(whole)):
        assert older.find(whole.key(row)) == row
        assert older.rank(whole.key(row)) == whole.rank(whole.key(row))
    with pytest.raises(KeyNotFoundError):
        older.find(b"nowhere")


@pytest.mark.parametrize("change", [lambda s: s[:-1], lambda s: s + 1, lambda s: s[::-1].copy()])
def test_ranges_of_keys_that_do_not_add_up_are_refused(
    pair: tuple[Index, Index], change: Callable[[np.ndarray], np.ndarray]
) -> None:
    table = {n: c.array() for n, c in pair[1].own_columns.items()}
    table["shard_keys_offsets"] = change(table["shard_keys_offsets"])
    indexfile.write(pair[1].path, table, pair[1].metadata)
    with pytest.raises(NotAPackError, match="table of keys"):
        Index(pair[1].path)


@pytest.mark.usefixtures("pair")
def test_a_shard_is_opened_when_a_row_of_it_is_touched(tmp_path: pathlib.Path) -> None:
    (tmp_path / "4.packio").unlink()
    sharded = Index(tmp_path / "index.packio")
    assert sharded.column("label").item(0) == 0
    with pytest.raises(Exception, match=r"4\.packio"):
        sharded.column("label").item(len(sharded) - 1)


@pytest.mark.usefixtures("pair")
def test_another_index_of_a_shard_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "3.packio").write_bytes((tmp_path / "0.packio").read_bytes())
    with pytest.raises(IntegrityError, match="not the index"):
        Index(tmp_path / "index.packio").column("label").array()


@pytest.mark.parametrize("name", ["../0.packio", "/etc/passwd", ""])
@pytest.mark.usefixtures("pair")
def test_an_index_outside_the_pack_is_refused(tmp_path: pathlib.Path, name: str) -> None:
    index = Index(tmp_path / "index.packio")
    table = {n: c.array().copy() for n, c in index.own_columns.items()}
    paths = [name.encode(), *(b"%d.packio" % i for i in range(1, len(COUNTS)))]
    table["shard_index_data"], table["shard_index_offsets"] = columns.ragged(paths)
    indexfile.write(tmp_path / "index.packio", table, index.metadata)
    with pytest.raises(NotAPackError, match="no index of a shard"):
        Index(tmp_path / "index.packio")


@pytest.mark.parametrize("listed", [None, 3, [["label"]], [["label", "|O8"]], [[1, "<i8"]],
                                    [["label", "<i8", -1]]])  # fmt: skip
@pytest.mark.usefixtures("pair")
def test_a_list_of_columns_that_does_not_parse_is_refused(
    tmp_path: pathlib.Path, listed: object
) -> None:
    index = Index(tmp_path / "index.packio")
    table = {n: c.array() for n, c in index.own_columns.items()}
    indexfile.write(tmp_path / "index.packio", table, {**index.metadata, "columns": listed})
    with pytest.raises(NotAPackError, match="columns"):
        Index(tmp_path / "index.packio")


def test_digests_differ_where_a_shard_does(
    pair: tuple[Index, Index], tmp_path: pathlib.Path
) -> None:
    before = Index(tmp_path / "index.packio").digest
    assert before == pair[1].digest
    assert pickle.loads(pickle.dumps(before)) == before
    index = Index(tmp_path / "index.packio")
    table = {n: c.array().copy() for n, c in index.own_columns.items()}
    table["shard_digest"][0, 0] ^= 1
    indexfile.write(tmp_path / "index.packio", table, index.metadata)
    assert Index(tmp_path / "index.packio").digest != before


@pytest.mark.parametrize("most_open", [0, 64])
def test_the_index_of_a_shard_that_shrinks_while_it_is_open_is_an_error(
    pair: tuple[Index, Index], most_open: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "spare_descriptors", lambda: 4 * most_open)
    sharded = Index(pair[1].path)
    numbers, keys = NumberColumns([sharded.column("image/height")], sharded), KeyBytes(sharded)
    row = len(sharded) - 1  # of the last shard
    last_key = pair[0].key(row)
    ways: list[Callable[[], object]] = [
        lambda: list(numbers(row)), lambda: bytes(keys(row)), lambda: sharded.key(row),
        lambda: sharded.column("label").take(np.array([row])), lambda: sharded.find(last_key),
    ]  # fmt: skip
    for way in ways[:-1]:
        way()
    path = sharded.path.with_name(f"{len(COUNTS) - 1}.packio")
    os.truncate(path, 0)
    child = os.fork()  # a bus error would end pytest
    if child == 0:
        found = 0
        try:
            for way in ways:
                try:
                    way()
                except IntegrityError as error:
                    found += str(error).startswith(f"{path}: 0 bytes, ")
        finally:
            os._exit(found)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == len(ways)


def test_columns_are_gone_through_in_chunks(
    pair: tuple[Index, Index], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(column, "_CHUNK", 4)
    for index in pair:
        lengths = index.column("image/length")
        chunks = list(lengths.chunks())
        assert [len(chunk) for chunk in chunks] == [4, 4, 4, 4, 2]
        np.testing.assert_array_equal(np.concatenate(chunks), lengths.array())
        assert lengths.total() == int(lengths.array().sum())


def test_damage_is_found_in_every_shard_without_a_whole_column(
    pair: tuple[Index, Index], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = pair[1].path.with_name("3.packio")
    start = 8 + int.from_bytes(path.read_bytes()[:8], "little")
    data = bytearray(path.read_bytes())
    at = start + Index(path)._layout["image/offset"][2]
    data[at] ^= 1
    path.write_bytes(data)
    index = Index(pair[1].path)
    monkeypatch.setattr(JoinedColumn, "array", None)
    index.column("image/length").check()
    with pytest.raises(IntegrityError, match=r"3\.packio, column image/offset"):
        index.column("image/offset").check()
