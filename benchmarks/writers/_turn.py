"""A writer's turn, timed from outside: its imports do not count, syncing what it wrote does.

Each script here writes all images of a folder once, for pack.py, by the Python of its peer::

    python ffcv_writer.py SOURCE OUT MODE [--side PIXELS]

It prints a line of JSON when its imports are done: the processor's seconds that they took, and
versions. It begins at a line on its input, and prints another when all is written and synced.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

Write = Callable[[argparse.Namespace], None]


def take(modes: dict[str, Write], *packages: str) -> None:
    """Take one turn.

    Args:
        modes: What each mode does; it is given ``source``, ``out`` and ``side``.
        packages: Whose versions matter.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    parser.add_argument("out")
    parser.add_argument("mode", choices=modes)
    parser.add_argument("--side", type=int, help="pixels that an image is resized to")
    given = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # some print what they do
    ready = {"cpu": time.process_time(), "versions": versions(packages)}
    print(json.dumps(ready), file=answers, flush=True)
    if sys.stdin.readline():
        modes[given.mode](given)
        os.sync()
        print("done", file=answers, flush=True)


def versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Of those that are installed."""
    found = {}
    for name in packages:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def images(source: str) -> list[tuple[str, int]]:
    """Path and label of each image, as torchvision's ImageFolder lists them."""
    found = []
    for label, name in enumerate(sorted(os.listdir(source))):
        folder = os.path.join(source, name)
        found += [(os.path.join(folder, file), label) for file in sorted(os.listdir(folder))]
    return found


def read(path: str) -> bytes:
    """All bytes of a file."""
    with open(path, "rb") as file:
        return file.read()
