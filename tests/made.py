"""What several test files make or try in the same way."""

from __future__ import annotations

import os
import pathlib
import random
import struct
import zlib
from typing import TYPE_CHECKING

from packio.errors import PackioError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from packio.formats import Entry

# Where another process finds the modules of tests that it imports.
_HERE = pathlib.Path(__file__).parent
FOLDERS = [str(_HERE), *map(str, _HERE.glob("*/"))]


def png(width: int = 4, height: int = 3, padding: int = 0) -> bytes:
    """A black image, written byte by byte: of any size, and with random bytes behind it."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        whole = kind + body
        return struct.pack(">I", len(body)) + whole + struct.pack(">I", zlib.crc32(whole))

    rows = bytes((width + 1) * height) if width * height < 1 << 20 else b""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"") + os.urandom(padding)
    )  # fmt: skip


def image_tree(
    root: pathlib.Path, count: int, classes: int, *, most: int, seed: int
) -> pathlib.Path:
    """An image folder of files that are quickly packed, of up to ``most`` bytes more than a PNG."""
    draw = random.Random(seed)
    for i in range(count):
        path = root / f"class {i % classes}" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(1 + i % 9, 1 + i % 5) + draw.randbytes(draw.randrange(most)))
    return root


def survives(
    scan: Callable[[pathlib.Path], Iterable[Entry]], path: pathlib.Path, content: bytes
) -> list[Entry] | None:
    """Entries of a damaged container, which lie within it; None where it is refused by name."""
    path.write_bytes(content)
    try:
        entries = list(scan(path))
    except PackioError as error:
        assert str(path) in str(error)  # noqa: PT017 (either is right)
        return None
    assert all(0 < e.offset <= e.offset + e.length <= len(content) for e in entries)
    return entries
