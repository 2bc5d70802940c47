"""Adding fields under odd names, of odd values, and in odd orders: each sample keeps its values."""

from __future__ import annotations

import pathlib

import pytest

import packio


@pytest.mark.parametrize("name", ["shard_id", "file_caption", "seek_x", "seek_data", "key_data"])
def test_a_field_named_like_columns_of_an_index_stays_when_the_index_is_made_anew(
    name: str,
    image_folder: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PACKIO_CACHE_DIR", str(tmp_path / "cache"))
    out = tmp_path / "x"
    packio.pack(image_folder, out, shards=2, format="tar")
    with packio.open(out) as pack:
        keys = [pack.key(i) for i in range(len(pack))]
    texts = {key: f"words {i} of {key}" for i, key in enumerate(keys)}
    packio.add_field(out, name, texts)
    packio.add_field(out, "other", texts)
    packio.drop_field(out, "other")
    packio.reindex(out, seek_points=True)
    packio.reindex(out, seek_points=False)
    packio.select(out, f"key = '{keys[5]}' or key = '{keys[2]}'", out=tmp_path / "s.packio")
    for path, expected in ((out, keys), (tmp_path / "s.packio", [keys[2], keys[5]])):
        with packio.open(path) as pack:
            assert [pack.key(i) for i in range(len(pack))] == expected
            found = [pack.read_field(name, i) for i in range(len(pack))]
        assert found == [texts[key].encode() for key in expected]
