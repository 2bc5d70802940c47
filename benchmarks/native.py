"""What the native core brings: the same batches by the core, and by a library and PyTorch.

The same JPEGs are made into the same tensors, bit for bit, in turns: from a pack without seek
points, with seek points, and of the same images saved anew as progressive JPEGs; by
``decoder="simplejpeg"`` and by the core; with one thread and with two. Packs are in the page cache.
The images are those of ``--images``, a folder of class folders, or crops of photographs that are
made.

    python benchmarks/native.py [--images FOLDER] [--save]
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import _results
import torch
from PIL import Image

import packio
from packio.images import native

BATCH, MOST = 50, 400
WORKS = {
    "RandomResizedCrop(224), hflip": {"crop": packio.RandomResizedCrop(224), "hflip": 0.5},
    "Resize(256), CenterCrop(224)": {"crop": packio.ResizeCenterCrop(224)},
}
PACKS = {
    "as they are": {"seek_points": False},
    "seek points": {},
    "progressive": {},
}


def progressive(images: Path, folder: Path) -> Path:
    """The images as progressive JPEGs of quality 90."""
    for path in sorted(p for p in images.rglob("*") if p.is_file())[:MOST]:
        target = folder / path.parent.name / f"{path.stem}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(path) as image:
            image.convert("RGB").save(target, quality=90, progressive=True)
    return folder


def candidates(folder: Path, options: dict[str, Any]) -> dict[str, packio.PackDataset]:
    """Name → dataset: each pack, by each decoder, with each number of threads."""
    made = {}
    for pack in PACKS:
        for decoder in ("simplejpeg", "native"):
            if decoder == "simplejpeg" and pack == "seek points":
                continue  # it makes no use of them
            for threads in (1, 2):
                name = f"{decoder}, {pack}, {threads} thread{'s' * (threads > 1)}"
                made[name] = packio.PackDataset(
                    folder / f"{pack}.lmdb", decoder=decoder, threads=threads, seed=0, **options
                )
    return made


def measure(folder: Path, options: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Microseconds an image of each candidate, and how many times as fast as the first it is."""
    datasets = candidates(folder, options)
    micros: dict[str, list[float]] = {name: [] for name in datasets}
    wanted: dict[bool, torch.Tensor] = {}  # by whether they are progressive
    for number in range(rounds + 1):
        for name, dataset in datasets.items():
            order = list(range(min(len(dataset), MOST)))
            began = time.perf_counter()
            made = [dataset.gather(order[i : i + BATCH])[0] for i in range(0, len(order), BATCH)]
            seconds = time.perf_counter() - began
            if number:
                micros[name].append(1e6 * seconds / len(order))
                continue
            found = torch.cat(made)
            if not torch.equal(found, wanted.setdefault("progressive" in name, found)):
                raise SystemExit(f"{name}: other pixels")
    result: dict[str, Any] = {}
    for name, values in micros.items():
        one = name.rpartition(", ")[2]
        pack = "progressive" if "progressive" in name else "as they are"
        base = micros[f"simplejpeg, {pack}, {one}"]
        ratios = [b / v for b, v in zip(base, values, strict=True)]
        result[name] = {
            "us": _results.summary(values, 0),
            "times_as_fast": _results.summary(ratios, 2),
            "declined": sum(datasets[name].declined.values()) // (rounds + 1),
        }
    for pack in PACKS:
        pairs = zip(
            *(micros[f"native, {pack}, {n}"] for n in ("1 thread", "2 threads")), strict=True
        )
        result[f"native, {pack}, 2 threads"]["scaling"] = round(
            statistics.median(one / two for one, two in pairs), 2
        )
    return result


def main() -> None:
    """Measure and print; with --save into benchmarks/results/native.json."""
    parser = _results.parser(__doc__, rounds=9)
    parser.add_argument("--images", type=Path, help="Folder of class folders of JPEGs.")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        images = _results.photographs(given.images, folder / "images", MOST)
        packs = {}
        for pack, options in PACKS.items():
            began = time.perf_counter()
            source = images
            if pack == "progressive":
                source = progressive(images, folder / "progressive")
            packio.pack(source, folder / f"{pack}.lmdb", **options)
            packs[pack] = {
                "seconds": round(time.perf_counter() - began, 2),
                "bytes": sum(f.stat().st_size for f in (folder / f"{pack}.lmdb").iterdir()),
            }
        works = {w: measure(folder, options, given.rounds) for w, options in WORKS.items()}
    about = {
        "machine": _results.machine("numpy", "torch", "simplejpeg"),
        "kernels": native.kernels(),
        "images": os.path.basename(given.images or "made"),
        "rounds": given.rounds,
    }
    _results.finish("native", {**about, "packs": packs, "works": works}, keep=given.save)


if __name__ == "__main__":
    main()
