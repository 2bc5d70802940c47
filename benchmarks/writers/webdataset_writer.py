"""WebDataset's ShardWriter: bytes go into tar files as they are."""

from __future__ import annotations

import argparse
import os

import webdataset
from _turn import images, read, take


def keep(given: argparse.Namespace) -> None:
    """One process; its shards end at 3 GB."""
    os.mkdir(given.out)
    with webdataset.ShardWriter(os.path.join(given.out, "%06d.tar"), verbose=0) as writer:
        for number, (path, label) in enumerate(images(given.source)):
            writer.write({"__key__": f"{number:08d}", "jpg": read(path), "cls": label})


if __name__ == "__main__":
    take({"keep": keep}, "webdataset")
