"""Columns in pieces: what is written is what the whole arrays are."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest

from packio.index import column, columns, indexfile, layout
from packio.index.column import Pieces
from packio.index.indexfile import Index

if TYPE_CHECKING:
    import pathlib

KEYS = [b"b/%05d" % (n * 7919 % 1000) for n in range(1000)]


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
    tables = [_table(KEYS[a:b], a, [f"{a}.a", f"{a}.b"]) for a, b in itertools.pairwise(edges)]
    joined = columns.join_tables(tables, [2] * len(tables))
    metadata = {"version": 2}
    digest = indexfile.write(tmp_path / "pieces", joined, metadata)
    whole = {n: c.array() if isinstance(c, Pieces) else c for n, c in joined.items()}
    assert indexfile.write(tmp_path / "whole", whole, metadata) == digest
    assert (tmp_path / "pieces").read_bytes() == (tmp_path / "whole").read_bytes()
    index = Index(tmp_path / "pieces")
    index.check()
    assert index.digest == digest
    assert [index.key(i) for i in range(1000)] == KEYS
    assert [index.find(key) for key in KEYS] == list(range(1000))
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
