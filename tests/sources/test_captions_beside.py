"""A folder of images with a text beside each: what is said of the texts leads to their field."""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING

import pytest
from PIL import Image

import packio
from packio.errors import OptionError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("inside", ["", "a/"])
def test_texts_beside_images_are_told_and_can_be_taken(inside: str, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    (folder / inside).mkdir(parents=True)
    for i in range(3):
        Image.new("RGB", (9, 9), (i, 0, 0)).save(folder / inside / f"000{i}.png")
        (folder / inside / f"000{i}.txt").write_text(f"cat {i}")
    report = packio.pack(folder, tmp_path / "a.lmdb")
    assert any("pack x.tar with --field caption=txt" in warning for warning in report.warnings)
    with pytest.raises(OptionError, match="--field caption=txt"):
        packio.pack(folder, tmp_path / "b.lmdb", fields={"caption": ".txt"})
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        tar.add(folder, ".")
    out = packio.pack(tmp_path / "x.tar", tmp_path / "c.lmdb", fields={"caption": "txt"}).out
    with packio.open(out) as pack:
        assert [pack.read_field("caption", i) for i in range(3)] == [b"cat 0", b"cat 1", b"cat 2"]
