"""Files that are mapped, and are truncated while they are open: an error, not a bus error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import packio

_READING = """
import os, sys, numpy as np, packio
from packio.errors import IntegrityError
from packio.index import layout
layout._MOST_PRIVATE = 0  # as if the index were large
pack, what, shrinks = sys.argv[1:]
ds = packio.PackDataset(pack, fields=("image", "label"))
ways = {
    "batch": lambda: ds.__getitems__(range(6)), "gather": lambda: ds.gather([5, 0, 3, 1]),
    "one": lambda: ds[5], "sample": lambda: ds.pack[5], "key": lambda: ds.pack.key(4),
    "labels": lambda: ds.pack.labels.sum(), "find": lambda: ds.pack.find("5.png"),
}
for _ in range(2 if what != "labels" else 1):
    ways[what]()
os.truncate(shrinks, 0)
try:
    ways[what]()
except IntegrityError as error:
    print(error)
"""
_WAYS = ["batch", "gather", "one", "sample", "key", "labels", "find"]


def _read_while_it_shrinks(pack: Path, way: str, file: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _READING, pack, way, file], capture_output=True, text=True,
        check=False, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, f"{done.returncode}: {done.stderr}"
    return done.stdout


@pytest.mark.long
@pytest.mark.parametrize("way", _WAYS)
def test_a_mapped_index_that_shrinks_while_it_is_open_is_an_error(way: str, tmp_path: Path) -> None:
    pack = _packed(tmp_path, ".tar", 1)
    index = pack.with_name("x.tar.packio")
    assert f"{index}: 0 bytes" in _read_while_it_shrinks(pack, way, index)


@pytest.mark.long
@pytest.mark.parametrize("way", ["batch", "gather", "one"])
@pytest.mark.parametrize(("suffix", "shards"), [(".lmdb", 1), (".h5", 1), (".pth", 1), (".h5", 6)])
def test_raw_pixels_that_shrink_while_they_are_open_are_an_error(
    way: str, suffix: str, shards: int, tmp_path: Path
) -> None:
    pack = _packed(tmp_path, suffix, shards, encode="raw")
    file = {".lmdb": pack / "data.mdb"}.get(suffix, pack) if shards == 1 else pack / "x-00005.h5"
    assert f"{file}: 0 bytes" in _read_while_it_shrinks(pack, way, file)


def _packed(folder: Path, suffix: str, shards: int, **options: Any) -> Path:
    source = folder / "source"
    source.mkdir()
    for number in range(6):
        pixels = np.full((8, 9, 3), 40 * number, np.uint8)
        Image.fromarray(pixels).save(source / f"{number}.png")
    lines = ["path,label", *(f"{n}.png,{n % 2}" for n in range(6))]
    (source / "labels.csv").write_text("\n".join(lines))
    out = folder / f"x{suffix}"
    return packio.pack(source / "labels.csv", out, shards=shards, num_workers=1, **options).out
