"""Latents as a field of a pack, against one .npy file a sample in a plain Dataset.

Adds latents of (4, 64, 64) float16 to a pack: from a folder of .npy files, and by a function. Then
reads all of them in a random order in batches of 64, without images, from the page cache: by
`packio.PackDataset` with `packio.collate`, and by a Dataset that calls `numpy.load`, both in this
process. The candidates take turns; the figures are medians.

    python benchmarks/fields.py [--save] [--rounds N]
"""

from __future__ import annotations

import functools
import random
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import _results
import numpy as np
import torch
from PIL import Image

import packio

if TYPE_CHECKING:
    from collections.abc import Callable

COUNT, BATCH = 2000, 64
SHAPE = (4, 64, 64)


class Files(torch.utils.data.Dataset[torch.Tensor]):
    """One .npy file a sample."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.glob("*.npy"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(np.load(self.paths[index]))


def made(top: Path) -> None:
    """Make a pack of small images, and latents for them."""
    images, latents = top / "images", top / "latents"
    images.mkdir()
    latents.mkdir()
    Image.new("RGB", (16, 16)).save(top / "one.jpg")
    data, rng = (top / "one.jpg").read_bytes(), np.random.default_rng(0)
    for i in range(COUNT):
        (images / f"{i:06d}.jpg").write_bytes(data)
        np.save(latents / f"{i:06d}.npy", rng.normal(size=SHAPE).astype(np.float16))
    packio.pack(images, top / "pack.tar")


def seconds(run: Callable[[], Any]) -> float:
    """Time that a call takes."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def main() -> None:
    """Measure, print, and save."""
    arguments = _results.parser(__doc__, rounds=7).parse_args()
    top = Path(tempfile.mkdtemp(prefix="packio-fields-"))
    try:
        made(top)
        figures = measured(top, arguments.rounds)
    finally:
        shutil.rmtree(top)
    result = {
        "machine": _results.machine("torch", "numpy"), "samples": COUNT, "shape": list(SHAPE),
        "dtype": "float16", "batch": BATCH, "rounds": arguments.rounds, "figures": figures,
    }  # fmt: skip
    _results.finish("fields", result, keep=arguments.save)
    if arguments.save:
        plot(result)


def plot(result: dict[str, Any]) -> None:
    """Draw the milliseconds of a latent, a bar a candidate."""
    times = {name: row["seconds"] for name, row in result["figures"].items()}
    ms = 1000 / result["samples"]
    spans = {n: (min(t) * ms, statistics.median(t) * ms, max(t) * ms) for n, t in times.items()}
    title = "milliseconds for one latent of (4, 64, 64) float16, median"
    picture = _results.FOLDER / "fields.svg"
    _results.bars(picture, spans, title, result["machine"], others=".npy")


def measured(top: Path, rounds: int) -> dict[str, Any]:
    """Seconds to add, and latents a second read, each round; medians."""
    pack, files = top / "pack.tar", Files(top / "latents")
    arrays = {path.stem: np.load(path) for path in files.paths}
    times: dict[str, list[float]] = {}

    def note(name: str, run: Callable[..., Any], *arguments: Any) -> None:
        times.setdefault(name, []).append(seconds(functools.partial(run, *arguments)))

    for _ in range(3):
        note("add, a folder", lambda: packio.add_field(pack, "latent", top / "latents"))
        packio.drop_field(pack, "latent")
        copies = top / "copies"
        note("write .npy files", _written, copies, arrays)
        shutil.rmtree(copies)
        note(
            "add, a function",
            lambda: packio.add_field(pack, "latent", lambda s: arrays[s.key[:-4]]),
        )
        packio.drop_field(pack, "latent")
    packio.add_field(pack, "latent", top / "latents")
    dataset = packio.PackDataset(pack, fields=("latent",))
    for number in range(rounds):
        order = list(range(COUNT))
        random.Random(number).shuffle(order)
        batches = [order[i : i + BATCH] for i in range(0, COUNT, BATCH)]
        note("read, packio", _read, batches, dataset.__getitems__, packio.collate)
        stacked = torch.utils.data.default_collate
        note("read, .npy files", _read, batches, lambda b: [files[i] for i in b], stacked)
    return {
        name: {
            "seconds": [round(value, 4) for value in found],
            "samples_a_second": round(COUNT / statistics.median(found)),
        }
        for name, found in times.items()
    }


def _written(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    folder.mkdir()
    for name, array in arrays.items():
        np.save(folder / name, array)


def _read(batches: list[list[int]], taken: Any, collated: Any) -> None:
    for batch in batches:
        found = collated(taken(batch))
        found = found[0] if isinstance(found, (tuple, list)) else found
        if found.shape != (len(batch), *SHAPE):
            raise ValueError(f"a batch of {tuple(found.shape)}")


if __name__ == "__main__":
    main()
