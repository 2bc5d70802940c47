"""packio: the container is that of the suffix; short sides of so many pixels, JPEG 90."""

from __future__ import annotations

import argparse
import importlib

from _turn import take

import packio

for _needed in ("lmdb", "PIL.JpegImagePlugin", "packio.formats.lmdb", "packio.formats.tar",
                "packio.packing", "packio.sources.image_folder"):  # fmt: skip
    importlib.import_module(_needed)  # on use, otherwise; others have all they need by now


def keep(given: argparse.Namespace) -> None:
    """Bytes as they are."""
    packio.pack(given.source, given.out)


def resize(given: argparse.Namespace) -> None:
    """Short sides of so many pixels."""
    packio.pack(given.source, given.out, resize=f"short={given.side}", encode="jpeg", quality=90)


if __name__ == "__main__":
    take({"keep": keep, "resize": resize}, "lmdb", "Pillow")
