"""A pack at a URL whose index is read by blocks, as fixtures."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

from packio.index import columns, indexfile
from packio.storage import remote, urls

if TYPE_CHECKING:
    import pathlib

    from range_server import RangeServer

COUNT, LENGTH = 200_000, 16  # samples, bytes of each: several blocks of most columns


@pytest.fixture
def by_blocks(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read every index by blocks; the cache is empty."""
    monkeypatch.setenv("PACKIO_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(urls, "_WAITS", (0.01,) * 4)
    monkeypatch.setattr(remote, "WHOLE", 0)


def _table() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    order = draw.permutation(COUNT)
    keys = np.frombuffer(b"".join(b"k/%08d" % i for i in order.tolist()), np.uint8)
    starts = np.arange(COUNT + 1, dtype=np.int64) * 10
    numbers = {
        "file": np.zeros(COUNT, "<u4"), "offset": np.arange(COUNT, dtype=np.int64) * LENGTH,
        "length": np.full(COUNT, LENGTH, np.int64), "flags": np.zeros(COUNT, np.uint8),
        "crc32c": np.full(COUNT, indexfile.crc32c(bytes(LENGTH)), "<u4"),
        "height": draw.integers(1, 900, COUNT).astype("<u4"),
        "width": draw.integers(1, 900, COUNT).astype("<u4"),
        "encoding": np.ones(COUNT, np.uint8), "orientation": np.ones(COUNT, np.uint8),
        "channels": np.full(COUNT, 3, np.uint8), "dtype": np.zeros(COUNT, np.uint8),
    }  # fmt: skip
    meta, edges = columns.join_values([b'{"n":%d}' % i if i % 3 else b"" for i in range(COUNT)])
    return {
        **{f"image/{name}": column for name, column in numbers.items()},
        **columns.joined_key_columns(keys, starts)[0],
        **columns.object_columns(["train.tar"], [COUNT * LENGTH], [bytes(32)]),
        "label": draw.integers(0, 10, COUNT), "meta_data": meta, "meta_offsets": edges,
    }  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A pack of samples of zeros; its index is 16 MB long."""
    folder = tmp_path_factory.mktemp("made")
    with (folder / "train.tar").open("wb") as file:
        file.truncate(COUNT * LENGTH)
    indexfile.write(folder / "train.tar.packio", _table(), {
        "version": indexfile.VERSION, "format": "tar", "fields": {"image": "image"},
        "shards": [{"name": "train.tar", "samples": COUNT}],
    })  # fmt: skip
    return folder


@pytest.fixture
def url(made: pathlib.Path, web: RangeServer) -> str:
    """URL of the pack that `made` makes; a server has links to its files."""
    for path in made.iterdir():
        os.link(path, web.folder / path.name)
    return f"{web.url}/train.tar"
