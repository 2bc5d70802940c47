"""What levels cost and bring: time, decibels and bytes of ``fidelity="fast"``.

Crops of 224 of large photographs, by one thread, from packs in the page cache: exact, fast, and
fast with 1, 2, 3 levels and with ``levels="auto"``. All candidates take turns; times are those of a
processor, a ratio is of times in the same round. Photographs of 12 megapixels are made of smaller
ones, side by side, with all their detail: compared with a camera's, their levels have more bytes,
and crops of them fewer decibels. ``--images FOLDER`` takes others. Several crops of one read:
``views.py``.

    python benchmarks/levels.py [--images FOLDER] [--save] [--plot FILE]
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import _results
import torch
from PIL import Image

import packio

sys.path.append(str(Path(__file__).parent.parent / "tools"))
import make_sample_images

LARGE, COUNT = (4032, 3024), 8
CROP = packio.RandomResizedCrop(224)
LEVELS: dict[str, int | str] = {"auto": "auto", "1": 1, "2": 2, "3": 3}
EPOCHS = 3  # of which each has other crops, for decibels


def mosaic(number: int, size: tuple[int, int]) -> Image.Image:
    """A photograph of a size (width, height), made of smaller ones side by side."""
    draw, whole = random.Random(number), Image.new("RGB", size)
    photos = [Image.fromarray(pixels) for pixels in make_sample_images.photographs()]
    top = 0
    while top < size[1]:
        left = high = 0
        while left < size[0]:
            photo = draw.choice(photos)
            whole.paste(photo, (left, top))
            left, high = left + photo.width, max(high, photo.height) if high else photo.height
        top += high
    return whole


def write(folder: Path, count: int, size: tuple[int, int]) -> Path:
    """A folder of such photographs, as JPEGs."""
    (folder / "all").mkdir(parents=True)
    for number in range(count):
        image = mosaic(number, (2 * size[0], 2 * size[1]) if size[0] < 1000 else size)
        image.resize(size, Image.Resampling.LANCZOS).save(
            folder / "all" / f"{number}.jpg", quality=92
        )
    return folder


def opened(path: Path, **options: Any) -> packio.PackDataset:
    """A dataset of one thread, with crops that a seed decides."""
    return packio.PackDataset(path, seed=0, threads=1, fields="image", **options)


def timed(work: Any) -> float:
    """Seconds of a processor that a call takes, which other processes change little."""
    began = time.process_time()
    work()
    return time.process_time() - began


def decibels(exact: packio.PackDataset, fast: packio.PackDataset) -> list[float]:
    """PSNR of each crop of one dataset to the same crop of another."""
    found: list[float] = []
    for epoch in range(EPOCHS):
        exact.set_epoch(epoch)
        fast.set_epoch(epoch)
        a, b = (ds.gather(range(len(ds))).double() for ds in (exact, fast))
        errors = ((a - b) ** 2).mean((1, 2, 3)).clamp_min(255**2 / 10**9.9)
        found += (10 * torch.log10(255**2 / errors)).tolist()
    return found


def crops(images: Path, folder: Path, rounds: int) -> dict[str, Any]:
    """Each pack: bytes, time to pack, time of a crop, and decibels."""
    packs, result = {}, {}
    for name in ("none", *LEVELS):
        out = folder / f"{name}.tar"
        given = {} if name == "none" else {"levels": LEVELS[name]}
        seconds = timed(lambda out=out, given=given: packio.pack(images, out, **given))
        packs[name], result[name] = out, {"pack_s": round(seconds, 2)}
    size = {name: path.stat().st_size for name, path in packs.items()}
    datasets = {f"fast, {name}": opened(path, crop=CROP, fidelity="fast")
                for name, path in packs.items()}  # fmt: skip
    datasets["exact, none"] = opened(packs["none"], crop=CROP)
    each: dict[str, list[float]] = {name: [] for name in datasets}
    for number in range(rounds + 1):
        for name, ds in datasets.items():
            ds.set_epoch(number)
            seconds = timed(lambda ds=ds: ds.gather(range(len(ds))))
            if number:
                each[name].append(1e3 * seconds / len(ds))
    for name, millis in each.items():
        fidelity, _, pack = name.partition(", ")
        found = {
            "ms": _results.summary(millis, 2),
            "times_as_fast": _results.summary(_results.ratios(each["fast, none"], millis), 2),
        }
        if fidelity == "fast":
            values = decibels(opened(packs["none"], crop=CROP), datasets[name])
            found["psnr"] = {"mean": round(sum(values) / len(values), 1),
                             "worst": round(min(values), 1), "crops": len(values)}  # fmt: skip
            found["more_bytes"] = round(size[pack] / size["none"] - 1, 3)
        result.setdefault(pack, {})[fidelity] = found
    return result


def plot(found: dict[str, Any], path: Path) -> None:
    """Draw speed against bytes, and decibels against bytes, a point for each pack."""
    from matplotlib.figure import Figure

    figure = Figure((9, 3.6), layout="constrained")
    speed, signal = figure.subplots(1, 2)
    for name, pack in found.items():
        if name == "auto":
            continue  # of such photographs it is the pack of 2
        fast = pack["fast"]
        more = 100 * fast["more_bytes"]
        ratio = fast["times_as_fast"]
        spread = [[ratio["median"] - ratio["min"]], [ratio["max"] - ratio["median"]]]
        speed.errorbar(more, ratio["median"], spread, fmt="o", color="#36c", capsize=3)
        signal.plot([more, more], [fast["psnr"]["worst"], fast["psnr"]["mean"]], "o-", color="#36c")
        for axes, y in ((speed, ratio["median"]), (signal, fast["psnr"]["mean"])):
            axes.annotate(f" levels: {name}", (more, y), fontsize=8)
    speed.set_ylabel("times as fast as without levels")
    signal.set_ylabel("PSNR to exact crops, dB: worst and mean")
    signal.axhline(35, color="#c44", linestyle="--")
    for axes, lowest in ((speed, 0), (signal, 30)):
        axes.set_xlabel("more bytes, %")
        axes.set_ylim(bottom=lowest)
        axes.margins(x=0.2)
    figure.savefig(path)


def main() -> None:
    """Measure and print; with --save into benchmarks/results/levels.json and levels.svg."""
    parser = _results.parser(__doc__, rounds=7)
    parser.add_argument("--images", type=Path, help="Folder of class folders of large images.")
    parser.add_argument("--plot", type=Path, help="Draw a plot into this file.")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        images = given.images or write(folder / "large", COUNT, LARGE)
        found = crops(images, folder, given.rounds)
    about = {
        "machine": _results.machine("numpy", "torch", "pillow"), "rounds": given.rounds,
        "images": os.path.basename(given.images or f"{LARGE[0]} x {LARGE[1]}, made"),
    }  # fmt: skip
    _results.finish("levels", {**about, "crops": found}, keep=given.save)
    if given.plot or given.save:
        plot(found, given.plot or _results.FOLDER / "levels.svg")


if __name__ == "__main__":
    main()
