"""HDF5 and .pth for the tests that hold for both: records, packio's writer, and others' readers."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import made
import numpy as np
import pytest
import torch

from packio.formats import hdf5, pth

h5py: Any = pytest.importorskip("h5py")

SIZES = [0, 1, 100, 4095, 4096, 4097, 70_000, 0, 9_000_017, 5]


def full(count: int) -> list[made.Made]:
    """Records with all there can be, and keys of any bytes."""
    rng = random.Random(1)
    return [
        made.record(
            rng.randbytes(rng.randrange(3000)),
            np.array([i, 0.5, -i], np.float32),
            b"\xff\x00/%d\n" % i,
            mask=rng.randbytes(i % 5 * 30),
            meta=b'{"i":%d}' % i if i % 2 else b"{}",
            boxes=np.full((i % 3, 4), i + 0.25, np.float32),
            box_labels=np.full(i % 3, -i, np.int64),
        )
        for i in range(count)
    ]


def ragged(arrays: dict[str, Any], name: str) -> list[bytes]:
    """The values of a blob, cut by the offsets beside it."""
    prefix = "" if name == "data" else name.partition("_")[0] + "_"
    data, offsets = arrays[name], arrays[prefix + "offsets"].tolist()
    return [data[a:b].tobytes() for a, b in itertools.pairwise(offsets)]


def at(path: Path, ranges: Iterable[tuple[str, int, int]]) -> list[bytes]:
    """The bytes in some ranges of a file."""
    whole = path.read_bytes()
    return [whole[o : o + n] for name, o, n in ranges if name == path.name]


def data(form: Any, path: Path) -> list[bytes]:
    """The images that a scan finds."""
    return at(path, [(e.file, e.offset, e.length) for e in made.scanned(form, path)])


def _by_h5py(path: Path) -> tuple[dict[str, Any], str]:
    with h5py.File(path) as file:
        return {name: dataset[()] for name, dataset in file.items()}, file.attrs["packio"]


def _by_torch(path: Path, *, mmap: bool) -> tuple[dict[str, Any], str]:
    pack = torch.load(path, weights_only=True, mmap=mmap)
    text = pack.pop("packio")
    return {name: tensor.numpy() for name, tensor in pack.items()}, text


class Kind(NamedTuple):
    """One of the two formats."""

    form: Any
    header: str  # "format" of the text packio
    suffixes: tuple[str, str]

    def arrays(self, path: Path, *, mmap: bool = False) -> tuple[dict[str, Any], str]:
        """The arrays and the text ``packio``, as others' libraries read them."""
        return _by_h5py(path) if self.header == "hdf5" else _by_torch(path, mmap=mmap)


KINDS = {
    "hdf5": Kind(hdf5.FORMAT, "hdf5", (".h5", ".hdf5")),
    "pth": Kind(pth.FORMAT, "pth", (".pth", ".pt")),
}
