"""What packio costs beside the work itself: µs a sample of a batch, and of ``ds[i]``.

The same small JPEGs are made into tensors twice, in turns: by a dataset with RandomResizedCrop and
flips, and by a bare loop over the steps that no loader can do without (pread, CRC32C, decode,
resize into planes, flip), with a box and flips decided before. The difference is packio's
overhead: index lookup, random numbers, boxes, bookkeeping. It does not depend on the size of the
images; small ones keep it from drowning in the noise of the decoding.

    python benchmarks/read.py [--save]
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _results
import google_crc32c
import numpy as np
import simplejpeg
import torch

import packio

SIDE, SAMPLES, BATCH = 24, 2048, 128
BOX = (3, 5, 17, 14)  # top, left, height, width: about the mean of RandomResizedCrop's


def make_pack(folder: Path) -> Path:
    """A pack of small JPEGs of random pixels."""
    r = np.random.default_rng(0)
    images = folder / "images" / "class"
    images.mkdir(parents=True)
    for i in range(SAMPLES):
        pixels = r.integers(0, 256, (SIDE, SIDE, 3), np.uint8)
        (images / f"{i:05d}.jpg").write_bytes(simplejpeg.encode_jpeg(pixels, 90))
    packio.pack(folder / "images", folder / "small.lmdb")
    return folder / "small.lmdb"


def bare_step(path: Path) -> Callable[[int, torch.Tensor], None]:
    """A function that makes one sample into planes, with nothing around it."""
    index = packio.open(path).index_file
    file = os.open(path / "data.mdb", os.O_RDONLY)
    offsets, lengths = (index.column(f"image/{n}").array().tolist() for n in ("offset", "length"))
    resize = torch.ops.aten._upsample_bilinear2d_aa.out  # noqa: SLF001 (what interpolate calls)
    top, left, height, width = BOX

    def make(i: int, out: torch.Tensor) -> None:
        data = os.pread(file, lengths[i], offsets[i])
        google_crc32c.value(data)
        box = simplejpeg.decode_jpeg(data, "RGB")[top : top + height, left : left + width]
        planes = torch.from_numpy(box).permute(2, 0, 1).unsqueeze(0)
        resize(planes, [SIDE, SIDE], False, None, None, out=out.unsqueeze(0))
        if i % 2:
            out.copy_(out.flip(2))

    return make


def measure(path: Path, rounds: int) -> dict[str, Any]:  # noqa: C901 (four small functions)
    """µs a sample with and without packio, one thread."""
    torch.set_num_threads(1)
    crop = packio.RandomResizedCrop(SIDE)
    ds = packio.LmdbDataset(path, crop=crop, hflip=0.5, threads=1, decoder="simplejpeg")
    make = bare_step(path)
    order = np.random.default_rng(1).permutation(SAMPLES).tolist()
    batches = [order[i : i + BATCH] for i in range(0, SAMPLES, BATCH)]

    def bare_batch() -> None:
        for batch in batches:
            out = torch.empty(BATCH, 3, SIDE, SIDE, dtype=torch.uint8)
            for slot, i in enumerate(batch):
                make(i, out[slot])

    def batch() -> None:
        for indices in batches:
            packio.collate(ds.__getitems__(indices))

    def bare_single() -> None:
        for i in order:
            make(i, torch.empty(3, SIDE, SIDE, dtype=torch.uint8))

    def single() -> None:
        for i in order:
            ds[i]

    seconds = alternate([bare_batch, batch, bare_single, single], rounds)
    micros = {name: [1e6 * s / SAMPLES for s in values] for name, values in seconds.items()}
    result = {f"{name}_us": _results.summary(values, 1) for name, values in micros.items()}
    for name in ("batch", "single"):
        pairs = list(zip(micros[name], micros[f"bare_{name}"], strict=True))
        result[f"{name}_overhead_us"] = _results.summary([ours - bare for ours, bare in pairs], 1)
        result[f"{name}_ratio"] = _results.summary([ours / bare for ours, bare in pairs], 2)
    return result


def alternate(candidates: list[Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each candidate in each round, in turns, after one warm-up."""
    seconds: dict[str, list[float]] = {run.__name__: [] for run in candidates}
    for number in range(rounds + 1):
        for run in candidates:
            began = time.perf_counter()
            run()
            if number:
                seconds[run.__name__].append(time.perf_counter() - began)
    return seconds


def main() -> None:
    """Measure and print; with --save into benchmarks/results/read.json."""
    given = _results.parser(__doc__, rounds=15).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(make_pack(Path(folder)), given.rounds)
    about = {"machine": _results.machine("numpy", "torch", "simplejpeg"), "rounds": given.rounds}
    _results.finish("read", {**about, **result}, keep=given.save)


if __name__ == "__main__":
    main()
