"""Packing to a file system where an open file that is removed keeps a name, as on NFS."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import user_space
from made import image_tree

import packio

if TYPE_CHECKING:
    import pathlib


@pytest.mark.parametrize("shards", [1, 3])
def test_nothing_but_the_pack_is_left(shards: int, tmp_path: pathlib.Path) -> None:
    source = image_tree(tmp_path / "source", 20, 3, most=500, seed=1)
    with user_space.mounted(tmp_path) as (below, folder):
        digest = packio.pack(source, folder / "x.tar", shards=shards).digest
        assert [name for name in os.listdir(below) if "packio-tmp" in name] == []
        with packio.open(folder / "x.tar") as pack:
            assert pack.digest == digest
