"""What ``encode="dct"`` costs and brings: bytes, time of a crop, of packing, and from a cold disk.

Sets of JPEGs: as given; the same, saved anew by Pillow with quality 90 and 75, 4:2:0; and large
photographs, which are made. Candidates: JPEGs kept, with seek points; open coefficients; JPEGs kept
with two levels, ``fidelity="fast"``; raw pixels of 256 x 256, whose crops show other pixels; and
torchvision's ImageFolder, if it loads. They take turns at RandomResizedCrop(224) and a flip, one
thread, from packs in the page cache: µs of a processor, and ratios of the same round. "bytes" are
those of images, levels and seek points. Crops of "keep" and "dct" are compared, and the files that
are extracted with their sources. `_throughput.py` has packing, converting back, and the cold disk.

    python benchmarks/dct.py [--images FOLDER] [--save]
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import _results
import _throughput
import levels
import pytest
import torch
from PIL import Image

import packio
from packio.images import native
from packio.inspecting.extracting import extract

sys.path.append(str(Path(__file__).parent.parent / "tests" / "support"))
import vision

MOST, BATCH, EPOCHS = 400, 50, 3
PACKS: dict[str, dict[str, Any]] = {  # name → options of packing
    "keep": {}, "dct": {"encode": "dct"}, "levels": {"levels": 2},
    "raw": {"encode": "raw", "resize": "exact=256x256"},
}  # fmt: skip
READ: dict[str, Any] = {"crop": packio.RandomResizedCrop(224), "hflip": 0.5, "fields": "image"}
Json = dict[str, Any]


class Candidate(NamedTuple):
    """Makes all crops of an epoch: by batches that are asked for, and by a loader."""

    gather: Callable[[int], object]
    loader: Callable[[int], object]
    size: int = 0  # bytes of the pack; 0: of the JPEGs


def files(folder: Path) -> list[Path]:
    """All files below a folder."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def batches(count: int) -> Iterator[range]:
    """Positions of each batch."""
    return (range(i, min(i + BATCH, count)) for i in range(0, count, BATCH))


def anew(images: Path, folder: Path, quality: int) -> Path:
    """The images saved anew, as baseline JPEGs, 4:2:0."""
    for path in files(images):
        to = folder / path.relative_to(images)
        to.parent.mkdir(parents=True, exist_ok=True)
        Image.open(path).convert("RGB").save(to, "JPEG", quality=quality, subsampling="4:2:0")
    return folder


def opened(pack: Path, **options: Any) -> packio.PackDataset:
    """A dataset of one thread; a seed decides its crops."""
    return packio.PackDataset(pack, seed=0, threads=1, **READ, **options)


def of_pack(pack: Path, **options: Any) -> Candidate:
    """A pack, read by packio."""
    dataset = opened(pack, **options)
    loader = packio.Loader(dataset, BATCH, threads=1)

    def gather(epoch: int) -> None:
        dataset.set_epoch(epoch)
        for batch in batches(len(dataset)):
            dataset.gather(batch)

    def load(epoch: int) -> None:
        dataset.set_epoch(epoch)
        all(True for _ in loader)

    return Candidate(gather, load, _throughput.size_of(pack))


def of_torchvision(images: Path) -> Candidate:
    """A folder, read by torchvision and Pillow in the calling process."""
    torchvision = vision.import_torchvision()
    v2 = torchvision.transforms.v2
    steps = [v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), v2.PILToTensor()]
    dataset = torchvision.datasets.ImageFolder(images, v2.Compose(steps))
    loader = torch.utils.data.DataLoader(dataset, BATCH)

    def gather(_: int) -> None:
        for batch in batches(len(dataset)):
            torch.stack([dataset[i][0] for i in batch])

    return Candidate(gather, lambda _: all(True for _ in loader))


def rounds_of(found: dict[str, Candidate], images: Path, rounds: int) -> Json:
    """Microseconds of a processor that a crop takes, and how many times as fast as of "keep"."""
    count, jpegs = len(files(images)), sum(path.stat().st_size for path in files(images))
    ways = [(name, way) for name in found for way in ("gather", "loader")]
    micros: dict[tuple[str, str], list[float]] = {key: [] for key in ways}
    for number in range(rounds + 1):
        for name, way in ways[:: 1 if number % 2 else -1]:
            began = time.process_time()
            getattr(found[name], way)(number)
            if number:
                micros[name, way].append(1e6 * (time.process_time() - began) / count)
    rows = {}
    for name, candidate in found.items():
        size = candidate.size or jpegs
        row = {"bytes": round(size / count), "ratio": round(size / jpegs, 3)}
        for way in ("gather", "loader"):
            ratios = _results.ratios(micros["keep", way], micros[name, way])
            row[f"{way}_us"] = _results.summary(micros[name, way], 1)
            row[f"{way}_times_as_fast"] = _results.summary(ratios, 2)
        rows[name] = row
    about = {"images": count, "jpeg_bytes": round(jpegs / count), "candidates": rows}
    return {**about, "kept_are_faster_below_mb_s": _throughput.speeds(rows)}


def compare(images: Path, packs: dict[str, Path], folder: Path) -> Json:
    """Crops of "keep" and "dct" that differ, and files that do not come back."""
    keep, dct = opened(packs["keep"]), opened(packs["dct"])
    differ = 0
    for epoch in range(EPOCHS):
        for dataset in (keep, dct):
            dataset.set_epoch(epoch)
        for batch in batches(len(keep)):
            a, b = (dataset.gather(batch) for dataset in (keep, dct))
            differ += int((a != b).flatten(1).any(1).sum())
    extract(packs["dct"], folder / "back")
    sources, back = files(images), files(folder / "back")
    lost = sum(a.read_bytes() != b.read_bytes() for a, b in zip(sources, back, strict=True))
    return {
        "crops_compared": EPOCHS * len(keep), "crops_differ": differ,
        "files_compared": len(sources), "files_differ": lost,
        "not_open": len(sources) - len(_throughput.open_keys(packs["dct"])),
    }  # fmt: skip


def measure(images: Path, folder: Path, rounds: int) -> Json:
    """All that is measured of one set."""
    folder.mkdir()
    packs = {name: folder / f"{name}.tar" for name in PACKS}
    for name, pack in packs.items():
        packio.pack(images, pack, **PACKS[name])
    found = {name: of_pack(pack) for name, pack in packs.items() if name != "levels"}
    found["levels"] = of_pack(packs["levels"], fidelity="fast")
    try:
        found["torchvision"] = of_torchvision(images)
    except pytest.skip.Exception as error:
        print(f"left out: {error}", file=sys.stderr)
    return {**rounds_of(found, images, rounds), **compare(images, packs, folder)}


def main() -> None:
    """Measure and print; with --save into benchmarks/results/dct.json."""
    parser = _results.parser(__doc__, rounds=7)
    parser.add_argument("--images", type=Path, help="Folder of class folders of JPEGs.")
    given = parser.parse_args()
    torch.set_num_threads(1)
    load = round(os.getloadavg()[0], 1)  # of other programs: 0 on a quiet machine
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        images = _results.photographs(given.images, folder / "images", MOST)
        sets = {
            "as given": images,
            "quality 90": anew(images, folder / "90", 90),
            "quality 75": anew(images, folder / "75", 75),
            "12 megapixels": levels.write(folder / "large", levels.COUNT, levels.LARGE),
        }
        found = {n: measure(s, folder / f"packs {n}", given.rounds) for n, s in sets.items()}
        pair = [folder / "packs as given" / f"{n}.tar" for n in ("keep", "dct")]
        baseline = [images / key for key in _throughput.open_keys(pair[1])]
        more = {"packing": _throughput.packing(baseline, folder, given.rounds),
                "cold": _throughput.cold(*pair, rounds=given.rounds)}  # fmt: skip
    about = {
        "machine": _results.machine("numpy", "torch", "torchvision", "pillow", load=load),
        "kernels": native.kernels(),
        "images": os.path.basename(given.images or "made"), "rounds": given.rounds,
    }  # fmt: skip
    _results.finish("dct", {**about, "sets": found, **more}, keep=given.save)


if __name__ == "__main__":
    main()
