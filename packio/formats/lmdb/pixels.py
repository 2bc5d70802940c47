"""LMDB values that are plain pixels. A file beside the database tells their shapes.

* ``meta_info.pkl`` (PySODToolBox, BasicSR until 2019): a pickle of ``{"name": text, "resolution":
  ["C_H_W", …], "keys": [name, …]}``: one resolution for each name, or one for all names.
* ``meta_info.txt`` (BasicSR): lines ``name (height,width,channels) level``. The values are mostly
  PNG files; the keys are the names, mostly without extension.

Pixels are (H, W, C) as OpenCV reads them: blue, green, red. They are uint8, unless a value has two
or four bytes for each number: then uint16 or float32.

Sources: ForBigDataset/ImageFolder2LMDB.py (https://github.com/lartpang/PySODToolBox);
basicsr/utils/lmdb_util.py (https://github.com/XPixelGroup/BasicSR), and its create_lmdb.py of 2019.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from packio.errors import NotAPackError
from packio.formats.lmdb.pages import Entry
from packio.formats.wire import Malformed, pickles
from packio.images.encodings import raw_facts
from packio.sample.facts import Facts
from packio.system import files

PICKLE_NAME, TEXT_NAME = "meta_info.pkl", "meta_info.txt"

_LINE = re.compile(rb"(.+?) \((\d{1,9}),(\d{1,9}),(\d{1,9})\)(?: \d+)?\s*")
_RESOLUTION = re.compile(r"(\d{1,9})_(\d{1,9})_(\d{1,9})")


class Listed(NamedTuple):
    """Name and shape that the file tells of a record."""

    name: bytes | None
    height: int
    width: int
    channels: int


def listed(path: Path, *, trust: bool) -> dict[bytes, Listed]:
    """Read names and shapes of records, by their keys. The key b"" stands for all records."""
    found = {}
    for match in map(_LINE.fullmatch, content(path / TEXT_NAME).splitlines()):
        if match:
            described = Listed(match[1], int(match[2]), int(match[3]), int(match[4]))
            found[match[1].rpartition(b".")[0]] = found[match[1]] = described
    return found or (_pickled(path / PICKLE_NAME) if trust else {})


def content(path: Path) -> bytes:
    """Read a whole file; b"" if the file cannot be read."""
    try:
        return files.content(path)
    except OSError:
        return b""


def _pickled(path: Path) -> dict[bytes, Listed]:
    data = content(path)
    if not data:
        return {}
    try:
        meta = pickles.read(data, most_steps=len(data))
    except (pickles.RefusedError, Malformed) as error:
        raise NotAPackError(
            f"{path}: {error}; say the shapes in {TEXT_NAME} instead, "
            "as lines 'key (height,width,channels)'"
        ) from error
    return _by_key(meta) if isinstance(meta, dict) else {}


def _by_key(meta: dict[Any, Any]) -> dict[bytes, Listed]:
    sizes, keys = meta.get("resolution"), meta.get("keys")
    sizes = [sizes] if isinstance(sizes, str) else sizes
    if not isinstance(sizes, list) or not all(isinstance(size, str) for size in sizes):
        return {}
    matches = [match for match in map(_RESOLUTION.fullmatch, sizes) if match]
    shapes = [Listed(None, int(m[2]), int(m[3]), int(m[1])) for m in matches]
    if len(shapes) == len(sizes) == 1:
        return {b"": shapes[0]}
    if not isinstance(keys, list) or not len(shapes) == len(sizes) == len(keys):
        return {}
    names = [str(key).encode("utf-8", "surrogatepass") for key in keys]
    return dict(zip(names, shapes, strict=True))


def facts(found: dict[bytes, Listed], entry: Entry) -> Facts | None:
    """Facts of a value whose length fits its shape; None if not, or if it has no shape."""
    said = found.get(entry.name) or found.get(b"")
    if said is None or not 0 < said.channels < 256:
        return None
    _, height, width, channels = said
    count = height * width * channels
    dtype = {count: "uint8", 2 * count: "uint16", 4 * count: "float32"}.get(entry.length)
    return None if dtype is None else raw_facts(height, width, channels, dtype, "raw_hwc_bgr")
