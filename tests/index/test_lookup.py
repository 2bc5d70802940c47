"""Rows of an index, looked up one by one: as the columns have them, and checked as these are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from packio.errors import IntegrityError
from packio.index import indexfile, layout
from packio.index.columns import key_columns
from packio.index.indexfile import Index, NumberColumns

if TYPE_CHECKING:
    from pathlib import Path

KEYS = [b"", b"cat/1.jpg", b"\xff\xfe\n", "é".encode(), b"", b"cat/10.jpg", b"x" * 999, b"z"]


def _written(path: Path, keys: list[bytes]) -> Index:
    draw = np.random.default_rng(0)
    columns = {
        name: draw.integers(0, 200, len(keys)).astype(code)
        for name, code in layout.PER_SAMPLE.items()
    }
    columns |= key_columns(keys)
    columns |= {
        "file_path_data": np.zeros(0, np.uint8), "file_path_offsets": np.zeros(1, np.int64),
        "file_bytes": np.zeros(0, np.int64), "file_digest": np.zeros((0, 32), np.uint8),
    }  # fmt: skip
    indexfile.write(path, columns, {"version": 2})
    return Index(path)


@pytest.mark.parametrize("part", [1, 3, 8, 1 << 17])
def test_rows_are_those_of_the_columns(
    tmp_path: Path, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexfile, "_PART", part)
    index = _written(tmp_path / "i", KEYS)
    names = ("image/offset", "image/crc32c", "image/encoding")
    columns = [index.column(name).array().tolist() for name in names]
    numbers = NumberColumns([index.column(name) for name in names], index)
    for _ in range(2):
        for i in (*range(len(KEYS)), *reversed(range(len(KEYS)))):
            assert list(numbers(i)) == [column[i] for column in columns]
            assert index.key(i) == KEYS[i]


def test_damage_is_told_where_it_is_first_touched(tmp_path: Path) -> None:
    count = 2 * indexfile._PART
    path = tmp_path / "i"
    _written(path, [b"%07d" % i for i in range(count)])
    data = bytearray(path.read_bytes())
    header, start = layout.header_of(bytes(data), path)
    start += header["image/offset"]["data_offsets"][0]
    data[start + 8 * (indexfile._PART + 5)] ^= 1
    path.write_bytes(data)
    index = Index(path)
    numbers = NumberColumns([index.column("image/offset"), index.column("image/length")], index)
    next(numbers(indexfile._PART - 1))
    for _ in range(2):
        with pytest.raises(IntegrityError, match="column image/offset"):
            numbers(count - 1)
    assert index.key(count - 1) == b"%07d" % (count - 1)
