"""What Pillow cannot open is named by its format, with the format's own reason."""

from __future__ import annotations

import importlib.util
import os
import struct
import subprocess
import sys
from typing import TYPE_CHECKING

import made
import numpy as np
import pytest
from PIL import Image

import packio
from packio.errors import DecodeError
from packio.images import encodings
from packio.images.decoders import pillow
from packio.images.encodings import read_facts

if TYPE_CHECKING:
    from pathlib import Path


def _saved(kind: str) -> bytes:
    return made.saved(np.arange(12 * 9 * 3, dtype=np.uint8).reshape(12, 9, 3), kind)


def _of_12_bits() -> bytes:
    data = bytearray(_saved("JPEG"))
    data[data.index(b"\xff\xc0") + 4] = 12
    return bytes(data)


def _of_two_layers() -> bytes:
    data = bytearray(_saved("JPEG"))
    data[data.index(b"\xff\xc0") + 9] = 2
    return bytes(data)


def _with_wrong_crc() -> bytes:
    data = bytearray(_saved("PNG"))
    data[29] ^= 1  # of IHDR
    return bytes(data)


def _cut_bmp() -> bytes:
    return _saved("BMP")[:20]


def _brand(brand: bytes) -> bytes:
    return struct.pack(">I4s4sI4s", 20, b"ftyp", brand, 0, b"mif1") + bytes(60)


_FILES = {
    "JPEG: cannot handle 12-bit layers": _of_12_bits(),
    "JPEG: cannot handle 2-layer images": _of_two_layers(),
    "PNG: broken PNG file": _with_wrong_crc(),
    "BMP: ": _cut_bmp(),
    "HTML": b"\n<!DOCTYPE html><html><body>404 Not Found</body></html>",
    "SVG": b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"/>',
    "PDF": b"%PDF-1.7\n",
    "an archive": b"PK\3\4" + bytes(40),
    "a video": _brand(b"isom"),
    "Git LFS": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
}


@pytest.mark.parametrize("reason", _FILES)
def test_the_format_and_its_reason_are_told(reason: str, tmp_path: Path) -> None:
    data = _FILES[reason]
    start = data[:8].hex(" ")
    for read in (read_facts, pillow.decode):
        with pytest.raises(
            DecodeError, match=f"no image that Pillow can identify: .*{reason}"
        ) as e:
            read(data)
        assert f"({len(data)} bytes, starting {start})" in str(e.value)
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.jpg").write_bytes(data)
    (tmp_path / "in/b.png").write_bytes(_saved("PNG"))
    with pytest.raises(packio.errors.BadImagesError, match=rf"a\.jpg: no image .*{reason}"):
        packio.pack(tmp_path / "in", tmp_path / "out.tar")


def test_text_is_no_image_and_nothing_more() -> None:
    with pytest.raises(DecodeError, match=r"no image that Pillow can identify \(7 bytes, starting"):
        read_facts(b"nothing")


def _forget(kind: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Pillow be as if a plugin were not installed."""
    encodings.load_plugins()
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(Image, "ID", [name for name in Image.ID if name != kind])
    monkeypatch.delitem(Image.OPEN, kind, raising=False)


@pytest.mark.parametrize("brand", [b"heic", b"heix", b"mif1", b"hevc", b"msf1"])
def test_a_heic_file_names_the_plugin_that_reads_it(
    brand: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    _forget("HEIF", "pillow_heif", monkeypatch)
    with pytest.raises(DecodeError, match=r"HEIC.*pip install pillow-heif"):
        read_facts(_brand(brand))


@pytest.mark.parametrize("start", [b"\xff\x0a", b"\0\0\0\x0cJXL \r\n\x87\n"])
def test_a_jpeg_xl_file_names_the_plugin_that_reads_it(
    start: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    _forget("JXL", "pillow_jxl", monkeypatch)
    with pytest.raises(DecodeError, match=r"JPEG XL.*pip install pillow-jxl-plugin"):
        read_facts(start + bytes(60))


_SAVE = """
import sys, importlib, numpy as np
from PIL import Image
plugin = importlib.import_module(sys.argv[1])
if hasattr(plugin, "register_heif_opener"):
    plugin.register_heif_opener()
Image.fromarray(np.arange(64 * 64 * 3, dtype=np.uint8).reshape(64, 64, 3)).save(sys.argv[2])
"""


@pytest.mark.parametrize(("suffix", "module"), [(".heic", "pillow_heif"), (".jxl", "pillow_jxl")])
def test_with_the_plugin_such_files_are_packed_and_read(
    suffix: str, module: str, tmp_path: Path
) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"no {module}")
    (tmp_path / "in/x").mkdir(parents=True)
    file = tmp_path / f"in/x/a{suffix}"
    subprocess.run(  # in a process of its own: here, nobody has loaded the plugin
        [sys.executable, "-c", _SAVE, module, file], check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    packio.pack(tmp_path / "in", tmp_path / "out.tar", endings=suffix, check="decode")
    image, key = packio.PackDataset(tmp_path / "out.tar", fields=("image", "key"))[0]
    with Image.open(file) as expected:
        assert np.array_equal(image.permute(1, 2, 0).numpy(), np.asarray(expected.convert("RGB")))
    assert key == f"x/a{suffix}"
