"""Arguments of packing that make no sense, or that people write in another way."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from PIL import Image

import packio
from packio.errors import OptionError


@pytest.fixture
def source(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder of four images."""
    folder = tmp_path / "source"
    folder.mkdir()
    for number in range(4):
        pixels = np.full((6, 8, 3), 50 * number, np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.jpg")
    return folder


def test_sizes_may_be_written_as_on_the_command_line(source: pathlib.Path) -> None:
    out = source.parent / "x"
    largest = max(path.stat().st_size for path in source.iterdir())
    packio.pack(source, out, format="tar", shard_size="0.5kB", memory="256MB", num_workers=1)
    assert len(list(out.glob("*.tar"))) == (4 if largest * 2 > 500 else 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shard_size": "1XB"}, "shard_size='1XB': expected a size in bytes, as 256MB or 1GiB"),
        ({"memory": "much"}, "memory='much': expected a size in bytes"),
        ({"shards": "2"}, "shards='2': expected an int"),
        ({"shards": 2.5}, "shards=2.5: expected an int"),
        ({"num_workers": "4"}, "num_workers='4': expected an int"),
        ({"resize": 128}, "resize=128: expected short=PIXELS"),
        ({"quality": 70}, "quality=70 means nothing where images are kept as they are"),
        ({"subsampling": "4:4:4", "encode": "keep"}, "subsampling='4:4:4' means nothing where"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(
    source: pathlib.Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        packio.pack(source, source.parent / "x.tar", **options)
    assert not (source.parent / "x.tar").exists()


@pytest.mark.parametrize("options", [{"encode": "jpeg"}, {"resize": "short=4"}])
def test_quality_goes_with_what_encodes(source: pathlib.Path, options: dict[str, Any]) -> None:
    packio.pack(source, source.parent / "x.tar", quality=70, num_workers=1, **options)


def test_one_pack_is_no_merge(source: pathlib.Path) -> None:
    out = packio.pack(source, source.parent / "x.tar", num_workers=1).out
    with pytest.raises(OptionError, match=r"^1 pack: expected at least two"):
        packio.merge(source.parent / "y.tar", [out])


def test_a_sample_is_shown_in_short(source: pathlib.Path) -> None:
    out = packio.pack(source, source.parent / "x.tar", num_workers=1).out
    with packio.open(out) as pack:
        shown = repr(pack[0])
        size = (source / "0.jpg").stat().st_size
    assert f"key='0.jpg', data=<{size} bytes>, encoding='jpeg'" in shown
    assert len(shown) < 200


@pytest.mark.parametrize("relative", [True, False])
def test_a_deleted_current_folder_is_said(
    source: pathlib.Path, tmp_path: pathlib.Path, *, relative: bool
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    out = "x.tar" if relative else str(tmp_path / "x.tar")
    code = "import os, sys; os.rmdir(os.getcwd()); os.execv(sys.executable, sys.argv[1:])"
    command = [sys.executable, "-m", "packio", "pack", str(source), out]
    library = str(pathlib.Path(packio.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code, *command], cwd=gone, capture_output=True, text=True,
        check=False, env={**os.environ, "PYTHONPATH": library},
    )  # fmt: skip
    assert done.returncode == (74 if relative else 0), done.stderr
    assert ("x.tar: the current folder was deleted" in done.stderr) == relative
