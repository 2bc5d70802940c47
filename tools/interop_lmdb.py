"""Packs that any py-lmdb reads, and databases of any py-lmdb that packio reads.

    python tools/interop_lmdb.py write FOLDER     with packio: packs
    python tools/interop_lmdb.py read FOLDER      with py-lmdb alone: reads them, writes a database
    python tools/interop_lmdb.py check FOLDER     with packio: reads that

``tools/interop_lmdb.sh`` runs them with old versions of py-lmdb, and so do the tests.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

COUNT = 120
PACKS = {"plain.lmdb": None, "datum.lmdb": "datum"}  # name → the option values of `packio.pack`
THEIRS = "theirs.lmdb"


def images(folder: Path) -> list[bytes]:
    """The images' bytes, in the order that they are packed in."""
    return [path.read_bytes() for path in sorted((folder / "images").glob("*/*.png"))]


def _expect(holds: bool, what: str) -> None:
    if not holds:
        sys.exit(f"not as expected: {what}")


def write(folder: Path) -> None:
    """Write images of all sizes, and packs of them."""
    import numpy as np
    from PIL import Image

    import packio

    rng = np.random.default_rng(0)
    for i in range(COUNT):
        path = folder / f"images/class{i * 3 // COUNT}/{i:05d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        size = 1 + i * 2 % 119, 1 + i  # in their leaves, and in pages of their own
        Image.fromarray(rng.integers(0, 256, (*size, 3), np.uint8)).save(path)
    for name, values in PACKS.items():
        packio.pack(folder / "images", folder / name, values=values)


def read(folder: Path) -> None:
    """Read the packs as LMDB's own users do, with its lock, by cursor and by key; write another."""
    import lmdb

    expected = images(folder)
    for name, values in PACKS.items():
        env = lmdb.open(str(folder / name), readonly=True)
        with env.begin() as transaction:
            found = list(transaction.cursor())
            again = [transaction.get(b"%08d" % i, b"") for i in range(COUNT)]
        env.close()
        _expect([key for key, _ in found] == [b"%08d" % i for i in range(COUNT)], f"{name}: keys")
        _expect([value for _, value in found] == again, f"{name}: the same by cursor and by key")
        within = all(image in value for image, value in zip(expected, again, strict=True))
        _expect(again == expected if values is None else within, f"{name}: the images")
    env = lmdb.open(str(folder / THEIRS), map_size=1 << 28)
    for round_ in range(3):  # pages are freed and taken again
        with env.begin(write=True) as transaction:
            for i in random.Random(round_).sample(range(COUNT), COUNT):
                transaction.put(b"image %05d" % i, b"x" * 9000 if round_ < 2 else expected[i])
    env.close()
    print(f"py-lmdb {lmdb.__version__}: {COUNT} records each of {len(PACKS)} packs")


def check(folder: Path) -> None:
    """Read the database of theirs; the packs are as they were."""
    import packio

    expected = images(folder)
    for name in (THEIRS, *PACKS):
        with packio.open(folder / name) as pack:
            _expect([sample.data for sample in pack] == expected, f"{name}: the images")
    for name in PACKS:
        _expect(packio.verify(folder / name).ok, f"{name}: intact")


if __name__ == "__main__":
    {"write": write, "read": read, "check": check}[sys.argv[1]](Path(sys.argv[2]))
