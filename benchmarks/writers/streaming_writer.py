"""MosaicML Streaming's MDSWriter: bytes as they are, neither compressed nor hashed."""

from __future__ import annotations

import argparse

from _turn import images, read, take
from streaming import MDSWriter


def keep(given: argparse.Namespace) -> None:
    """One process, shards of 64 MiB."""
    with MDSWriter(out=given.out, columns={"image": "bytes", "label": "int"}) as writer:
        for path, label in images(given.source):
            writer.write({"image": read(path), "label": label})


if __name__ == "__main__":
    take({"keep": keep}, "mosaicml-streaming")
