"""What is read must be a regular file: opening a FIFO would wait for ever."""

from __future__ import annotations

import os
import pathlib

import h5py
import numpy as np
import pytest
from cli_runs import run
from PIL import Image

import packio
from packio.errors import OptionError
from packio.system import files


@pytest.mark.timeout(1800)
def test_a_fifo_is_not_opened(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="not a regular file"):
        files.open_file(tmp_path / "fifo")
    (tmp_path / "file").write_bytes(b"abc")
    assert files.content(tmp_path / "file") == b"abc"


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("suffix", "name"),
    [(".lmdb", "labels.tsv"), (".lmdb", "index.packio"), (".lmdb", "data.mdb"), (".tar", "")],
)
def test_a_fifo_in_a_pack_holds_up_nobody(suffix: str, name: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "source").mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "source/0.png")
    out = packio.pack(tmp_path / "source", tmp_path / f"x{suffix}", num_workers=1).out
    fifo = out / name if name else out.with_name("x.tar.packio")
    fifo.unlink()
    os.mkfifo(fifo)
    for command in ("verify", "info", "reindex"):
        done = run(command, out)
        if command == "verify":
            assert done.returncode in (65, 74)
            assert fifo.name in done.stdout + done.stderr


@pytest.mark.parametrize("written", [True, False])
def test_an_offset_that_makes_labels_negative_is_refused(
    tmp_path: pathlib.Path, *, written: bool
) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["images"] = np.zeros((3, 8, 8, 3), np.uint8)
        file["labels"] = np.array([2, 0, 1])
    if written:
        packio.reindex(path)
    with pytest.raises(OptionError, match=r"label 0 with label_offset=-1 would be -1"):
        packio.reindex(path, label_offset=-1)
    packio.reindex(path, label_offset=1)
    with packio.open(path) as pack:
        assert pack.labels is not None
        assert pack.labels.tolist() == [3, 1, 2]
