"""Lossless JPEGs, which no library decodes at a smaller size: libjpeg-turbo then writes too far."""

from __future__ import annotations

import io
import pathlib
import struct
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

import packio
from packio import registry
from packio.errors import MissingPackageError
from packio.images.decoders import load
from packio.images.encodings import read_facts
from packio.inspecting.gallery import make_thumbnail

HEIGHT, WIDTH = 360, 480


def lossless(components: int = 3) -> bytes:
    """A lossless JPEG whose samples are all 128: each is as predicted, which takes one bit.

    Source: ITU-T T.81 (1992), annex H: process 14, predictor 1.
    """
    ids = bytes(range(1, components + 1))
    frame = struct.pack(">BHHB", 8, HEIGHT, WIDTH, components)
    frame += b"".join(bytes([i, 0x11, 0]) for i in ids)
    table = b"\0" + bytes([1] + [0] * 15) + b"\0"  # one code of one bit: no difference
    scan = bytes([components]) + b"".join(bytes([i, 0]) for i in ids) + b"\1\0\0"
    bits = HEIGHT * WIDTH * components
    data = bytes(bits // 8) + (bytes([0xFF >> bits % 8]) if bits % 8 else b"")
    segments = ((0xC3, frame), (0xC4, table), (0xDA, scan))
    head = b"".join(bytes([0xFF, m]) + struct.pack(">H", len(b) + 2) + b for m, b in segments)
    return b"\xff\xd8" + head + data + b"\xff\xd9"


_CODE = """
import sys
import packio
ds = packio.PackDataset(sys.argv[1], fidelity="fast", crop=packio.Resize((30, 40)),
                        decoder=sys.argv[2])
for _ in range(20):
    assert ds.gather([0, 0, 0, 0])[0].eq(128).all()
"""


@pytest.mark.long
@pytest.mark.parametrize("decoder", ["auto", *registry.names("decoders")])
def test_fast_pixels_of_a_lossless_jpeg(decoder: str, tmp_path: pathlib.Path) -> None:
    try:
        load("pillow" if decoder == "auto" else decoder).version()
    except MissingPackageError as error:
        pytest.skip(str(error))
    folder = tmp_path / "class"
    folder.mkdir()
    (folder / "x.jpg").write_bytes(lossless())
    out = packio.pack(tmp_path, tmp_path.with_suffix(".tar")).out
    code = [sys.executable, "-c", _CODE, str(out), decoder]
    done = subprocess.run(code, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_jpeg_is_one() -> None:
    pixels = load("pillow").decode(lossless(), "RGB")
    assert pixels.shape == (HEIGHT, WIDTH, 3)
    assert np.all(pixels == 128)


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """Two lossless JPEGs."""
    (tmp_path / "source" / "class").mkdir(parents=True)
    for name in "ab":
        (tmp_path / "source" / "class" / f"{name}.jpg").write_bytes(lossless())
    return tmp_path / "source"


def test_a_page_of_duplicates_shows_them(folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    out, page = packio.pack(folder, tmp_path / "x.tar").out, tmp_path / "page.html"
    assert len(packio.find_duplicates(out, html=page).found) == 1
    assert page.read_text().count("data:image/jpeg;base64,") == 2


@pytest.mark.parametrize("edge", [50, 300, 1000])
def test_a_thumbnail_is_made(edge: int) -> None:
    data = lossless()
    made = np.asarray(Image.open(io.BytesIO(make_thumbnail(data, edge, read_facts(data)))))
    assert max(made.shape) == min(edge, WIDTH)
    assert np.all(made == 128)


@pytest.mark.parametrize("resize", ["short=100", "exact=40x30"])
def test_they_are_packed_smaller(resize: str, folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    out = packio.pack(folder, tmp_path / "x.tar", encode="jpeg", resize=resize).out
    ds = packio.PackDataset(out)
    assert len(ds) == 2
    assert all(ds[i][0].eq(128).all() for i in range(2))
