"""packio: the container is that of the suffix; short sides of so many pixels, JPEG 90."""

from __future__ import annotations

import argparse

import lmdb  # noqa: F401 (`import packio` imports nothing else; all others are ready now)
from _turn import take

import packio
import packio.formats.lmdb
import packio.formats.tar
import packio.packing
import packio.sources.image_folder


def keep(given: argparse.Namespace) -> None:
    """Bytes as they are."""
    packio.pack(given.source, given.out)


def resize(given: argparse.Namespace) -> None:
    """Short sides of so many pixels."""
    packio.pack(given.source, given.out, resize=f"short={given.side}", encode="jpeg", quality=90)


if __name__ == "__main__":
    take({"keep": keep, "resize": resize}, "lmdb", "Pillow")
