"""Parquet files at URLs are packed as those on a disk; a failing network leaves out no image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import fsspec
import made
import pytest

import packio
from packio.errors import ReadError, SourceError
from packio.sources import Context
from packio.sources.parquet import SOURCE
from packio.storage import urls

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Sequence

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACKIO_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def bucket() -> Any:
    """The file system in memory, empty."""
    fs = fsspec.filesystem("memory")
    fs.store.clear()
    return fs


def _put(fs: Any, here: pathlib.Path, folder: str, counts: Sequence[int]) -> None:
    """Write Parquet files of images and labels, on the disk and in the bucket."""
    here.mkdir(exist_ok=True)
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    for number, count in enumerate(counts):
        first = sum(counts[:number])
        images = [
            {"bytes": made.png(width=4 + i, height=3), "path": f"{i}.png"}
            for i in range(first, first + count)
        ]
        labels = [i % 3 for i in range(first, first + count)]
        table = pa.table({"image": pa.array(images, kind), "label": labels})
        path = here / f"train-{number:05d}-of-{len(counts):05d}.parquet"
        pq.write_table(table, path, row_group_size=2)
        fs.pipe_file(f"{folder}/{path.name}", path.read_bytes())


@pytest.mark.parametrize("name", ["", "/data", "/data/train-{00000..00001}-of-00002.parquet"])
def test_files_at_urls_are_packed_as_those_on_a_disk(
    name: str, bucket: Any, tmp_path: pathlib.Path
) -> None:
    _put(bucket, tmp_path / "here", "/hub/data", (5, 4))
    packio.pack(f"memory://hub{name}", tmp_path / "there.tar", shards=2, num_workers=1)
    packio.pack(tmp_path / "here", tmp_path / "here.tar", shards=2, num_workers=1)
    there, here = packio.open(tmp_path / "there.tar"), packio.open(tmp_path / "here.tar")
    assert [(s.key, s.label, s.data) for s in there] == [(s.key, s.label, s.data) for s in here]
    assert [s.data for s in here] == [made.png(width=4 + i, height=3) for i in range(9)]


def test_a_failing_network_leaves_out_no_image(
    bucket: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(urls, "_WAITS", (0.0,))
    _put(bucket, tmp_path / "here", "/hub", (9,))
    listing = SOURCE.listing("memory://hub", Context())
    original = type(bucket).cat_file

    def broken(*_: Any, **__: Any) -> Any:
        raise ConnectionError("the line is dead")

    with listing.open_records() as read:
        monkeypatch.setattr(type(bucket), "cat_file", broken)
        with pytest.raises(ReadError, match="the line is dead; run it again"):
            read(3)
        monkeypatch.setattr(type(bucket), "cat_file", original)
        assert read(3).image.data == made.png(width=7, height=3)


def test_a_file_replaced_after_it_was_listed_is_an_error(
    bucket: Any, tmp_path: pathlib.Path
) -> None:
    _put(bucket, tmp_path / "here", "/hub", (4,))
    listing = SOURCE.listing("memory://hub", Context())
    _put(bucket, tmp_path / "here", "/hub", (4,))
    with (
        listing.open_records() as read,
        pytest.raises(SourceError, match="changed after it was listed"),
    ):
        read(0)
