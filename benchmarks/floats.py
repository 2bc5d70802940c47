"""Normalised floats beside uint8: microseconds of a processor for an image, in threads and workers.

Candidates take turns, each round in processes of its own: `packio.Loader` with its threads, and
torch's DataLoader with two workers; images as uint8, or as normalised floats of a type that
`packio.Normalize` makes; "transform" is torchvision's arithmetic as the user's own ``transform=``,
in workers. RandomResizedCrop(224) and flips, batches of 64. Every page of a batch is read. The
first of three epochs is not counted. "above uint8" compares with uint8 in the same place, round by
round. PEER: folders of packio of other revisions, as "old=/path"; they do what they can.

    python benchmarks/floats.py [--images FOLDER] [--rounds 5] [--peer NAME=PATH …] [--save]
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import _results
import torch
from torch.utils.data import DataLoader

import packio

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
DTYPES = {"uint8": torch.uint8, "float32": torch.float32, "bfloat16": torch.bfloat16}
CANDIDATES = [
    *(f"{name} {place}" for place in ("threads", "workers") for name in DTYPES),
    "transform workers",
]


def transform(image: torch.Tensor) -> torch.Tensor:
    """What torchvision's ToDtype and Normalize do to an image."""
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (MEAN, STD))
    return (image / 255 - mean) / std


def loader_of(pack: Path, candidate: str) -> Any:
    """The loader of a candidate."""
    kind, place = candidate.split()
    options: dict[str, Any] = {"crop": packio.RandomResizedCrop(224), "hflip": 0.5, "seed": 3}
    more: dict[str, Any] = {}
    dtype = DTYPES.get(kind)
    if kind == "transform":
        options["transform"] = transform
    elif dtype != torch.uint8 and hasattr(packio, "Normalize"):
        options |= {"transform": packio.Normalize(MEAN, STD), "dtype": dtype}
    elif dtype != torch.uint8 and place == "threads":  # before there was packio.Normalize
        more = {"dtype": dtype, "normalize": (MEAN, STD), "device": "cpu"}
    elif dtype != torch.uint8:
        options |= {"transform": lambda image: transform(image).to(dtype)}
    ds = packio.PackDataset(pack, **options)
    if place == "threads":
        return packio.Loader(ds, 64, shuffle=True, **more)
    return DataLoader(
        ds, 64, shuffle=True, num_workers=2, collate_fn=packio.collate, persistent_workers=True
    )


def processor_time() -> float:
    """Seconds of this process and its workers."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    seconds = own.ru_utime + own.ru_stime
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    for child in children:
        fields = Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()
        seconds += sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
    return seconds


def measure(pack: Path, candidate: str) -> dict[str, float]:
    """Microseconds of a processor, and of the clock, for an image."""
    loader, count = loader_of(pack, candidate), 0
    for epoch in range(3):
        if epoch == 1:
            before, began, count = processor_time(), time.perf_counter(), 0
        for images, _ in loader:
            count += len(images)
            images.flatten()[:: 4096 // images.element_size()].sum()
    took = processor_time() - before, time.perf_counter() - began
    return dict(
        zip(("processor", "clock"), (seconds / count * 1e6 for seconds in took), strict=True)
    )


def main() -> None:
    """Measure all candidates in turns."""
    parser = _results.parser(__doc__, rounds=5)
    parser.add_argument("--images", type=Path, help="a folder of class folders; else made ones")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--one", nargs=2, help="PACK CANDIDATE: of one process")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(Path(given.one[0]), given.one[1])))
        return
    revisions = {"packio": str(Path(packio.__file__).parent.parent)}
    revisions |= dict(peer.split("=", 1) for peer in given.peer)
    found: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        images = _results.photographs(given.images, Path(folder) / "images", 400)
        pack = Path(folder) / "pack.lmdb"
        packio.pack(images, pack)
        sizes = [row.length for row in packio.open(pack).rows(range(len(packio.open(pack))))]
        for _ in range(given.rounds):
            for candidate in CANDIDATES:
                for name, path in revisions.items():
                    command = [sys.executable, __file__, "--one", str(pack), candidate]
                    done = subprocess.run(command, check=False, capture_output=True, text=True,
                                          env={**os.environ, "PYTHONPATH": path})  # fmt: skip
                    # older revisions abort now and then when all is measured, while Python ends
                    times = found.setdefault(f"{name}: {candidate}", {})
                    for clock, value in json.loads(done.stdout).items():
                        times.setdefault(clock, []).append(value)
    mean = round(sum(sizes) / len(sizes))
    result: dict[str, Any] = {"machine": _results.machine("torch", bytes_an_image=mean)}
    result["microseconds"] = {
        name: {clock: _results.summary(values, 0) for clock, values in times.items()}
        for name, times in found.items()
    }
    result["above uint8"] = {
        name: _results.summary([a - b for a, b in zip(times["processor"], base, strict=True)], 0)
        for name, times in found.items()
        if (base := found[f"{name.split(':')[0]}: uint8 {name.split()[-1]}"]["processor"])
        and "uint8" not in name
    }
    _results.finish("floats", result, keep=given.save)


if __name__ == "__main__":
    main()
