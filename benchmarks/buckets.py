"""What aspect-ratio buckets cost, and how many pixels they save, against one square size.

A million sizes, drawn as those of a mixed collection: 40 % upright; ratios 3:2, 4:3, 16:9 and 1:1
for 80 % of the images, 1:1 to 3:1 at random for the others; a long side of 800 to 4,000 pixels.

* assign: milliseconds to assign the million, and bytes kept of each;
* first, batch: milliseconds from a sampler to its first batch; microseconds a sample of an epoch;
* lost: share of the pixels that crops cut away, mean and worst, in buckets of the area and in one
  square of the area.

Then JPEGs of such sizes, of about a megapixel, are read in batches of 32, in turns, after one
warm-up each:

* buckets: ``packio.Loader`` with a `BucketSampler` of 512 x 512 pixels, and a `BucketCrop`;
* one square: ``packio.Loader`` with `ResizeCenterCrop` to 512 x 512;
* a trainer's script: torch's DataLoader with as many workers as there are processors over a plain
  dataset: Pillow opens, resizes to cover the bucket, crops; the script deals out the buckets.

All rates are of the same images; "times X" compares them with X round by round. Megapixels are
those of the output. A crop to a square leaves more of each image out, and so has less to decode.

    python benchmarks/buckets.py [--rounds 7] [--save]
    python benchmarks/buckets.py --plot benchmarks/results/buckets.svg
"""

from __future__ import annotations

import json
import math
import os
import random
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import _results
import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

import packio
from packio.images.bucketing import Buckets, sizes_of_area

SAMPLES, AREA, STEP, SIDE = 10**6, 1024 * 1024, 64, 512
IMAGES, BATCH, PIXELS = 384, 32, 10**6
TOOLS = Path(__file__).parents[1] / "tools"


class Sizes:
    """A dataset that has sizes and no images."""

    def __init__(self, sizes: np.ndarray) -> None:
        self.image_sizes = sizes

    def __len__(self) -> int:
        return len(self.image_sizes)


def drawn_sizes(count: int, pixels: int | None = None) -> np.ndarray:
    """Heights and widths of a mixed collection, (count, 2); of an area in pixels, if given."""
    r = np.random.default_rng(7)
    ratio = r.choice([3 / 2, 4 / 3, 16 / 9, 1.0], count, p=[0.35, 0.35, 0.15, 0.15])
    others = r.random(count) < 0.2
    ratio[others] = np.exp(r.uniform(0, math.log(3), others.sum()))
    long = r.uniform(800, 4000, count) if pixels is None else np.sqrt(pixels * ratio)
    sides = np.stack([long / ratio, long], axis=1)  # height, width
    upright = r.random(count) < 0.4
    sides[upright] = sides[upright, ::-1]
    found: np.ndarray = np.rint(sides).astype(np.int64)
    return found


def losses(sizes: np.ndarray) -> dict[str, Any]:
    """Share of the pixels that is cut away: in buckets, and in one square."""
    kinds = {"buckets": sizes_of_area(AREA, STEP), "one square": [(math.isqrt(AREA),) * 2]}
    result = {}
    for name, some in kinds.items():
        sampler = packio.BucketSampler(Sizes(sizes), some, batch_size=BATCH)
        found = [bucket for bucket in sampler.buckets if bucket.images]
        lost = sum(bucket.lost_mean * bucket.images for bucket in found) / len(sizes)
        worst = max(bucket.lost_worst for bucket in found)
        result[name] = {"mean": round(lost, 4), "worst": round(worst, 4), "sizes": len(some)}
    return result


def costs(sizes: np.ndarray, rounds: int) -> dict[str, Any]:
    """What assigning and an epoch cost; by the processor's clock."""
    data, times = Sizes(sizes), []
    for _ in range(rounds + 1):
        clocks = [time.process_time()]
        sampler = packio.BucketSampler(data, area=AREA, step=STEP, batch_size=BATCH)
        clocks.append(time.process_time())
        batches = iter(sampler)
        next(batches)
        clocks.append(time.process_time())
        for _ in batches:
            pass
        clocks.append(time.process_time())
        times.append(np.diff(clocks))
    seconds = np.array(times[1:])
    tracemalloc.start()
    kept = packio.BucketSampler(data, area=AREA, step=STEP, batch_size=BATCH)
    taken, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {
        "assign_ms": _results.summary((1e3 * seconds[:, 0]).tolist(), 1),
        "first_batch_ms": _results.summary((1e3 * seconds[:, 1]).tolist(), 2),
        "epoch_us_a_sample": _results.summary((1e6 * seconds[:, 2] / len(sizes)).tolist(), 2),
        "bytes_a_sample": {
            "kept": round(taken / len(data), 1), "most": round(most / len(data), 1),
        },
        "batches": len(kept),
    }  # fmt: skip


def write_images(folder: Path) -> list[Path]:
    """Write crops of photographs, of about a megapixel each, as JPEGs of quality 90."""
    sys.path.insert(0, str(TOOLS))
    import make_sample_images

    photos = [Image.fromarray(array) for array in make_sample_images.photographs()]
    (folder / "all").mkdir()
    paths = []
    for number, (height, width) in enumerate(drawn_sizes(IMAGES, PIXELS).tolist()):
        photo = photos[number % len(photos)]
        scale = max(height / photo.height, width / photo.width)
        shape = round(width / scale), round(height / scale)
        place = random.Random(number)
        left, top = (place.randint(0, a - b) for a, b in zip(photo.size, shape, strict=True))
        box = (left, top, left + shape[0], top + shape[1])
        image = photo.resize((width, height), Image.Resampling.BICUBIC, box)
        paths.append(folder / "all" / f"{number:04d}.jpg")
        image.save(paths[-1], quality=90)
    return paths


class Plain(Dataset[torch.Tensor]):
    """What a trainer's own dataset does: its index is a path's, and the size of the bucket."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: Any) -> torch.Tensor:
        number, high, broad = index
        image = Image.open(self.paths[number]).convert("RGB")
        scale = max(high / image.height, broad / image.width)
        size = max(broad, round(image.width * scale)), max(high, round(image.height * scale))
        image = image.resize(size, Image.Resampling.BILINEAR)
        left, top = random.randint(0, size[0] - broad), random.randint(0, size[1] - high)
        image = image.crop((left, top, left + broad, top + high))
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


class PlainBatches:
    """Deals out buckets, as a trainer's script does."""

    def __init__(self, paths: list[Path], sizes: list[tuple[int, int]]) -> None:
        self._members: dict[tuple[int, int], list[int]] = {}
        for number, path in enumerate(paths):
            with Image.open(path) as image:
                ratio = math.log(image.width / image.height)
            size = min(sizes, key=lambda size: abs(ratio - math.log(size[1] / size[0])))
            self._members.setdefault(size, []).append(number)

    def __iter__(self) -> Iterator[list[tuple[int, int, int]]]:
        batches = []
        for size, members in self._members.items():
            random.shuffle(members)
            batches += [
                [(number, *size) for number in members[i : i + BATCH]]
                for i in range(0, len(members), BATCH)
            ]
        random.shuffle(batches)
        return iter(batches)


def candidates(folder: Path) -> dict[str, Callable[[], Iterator[Any]]]:
    """Name → what gives the batches of an epoch."""
    paths = write_images(folder)
    pack = packio.pack(folder / "all", folder / "a.tar").out
    options: dict[str, Any] = {"fields": "image", "seed": 0}
    ds = packio.TarDataset(pack, crop=packio.BucketCrop(), **options)
    square = packio.TarDataset(pack, crop=packio.ResizeCenterCrop(SIDE, crop_pct=1), **options)
    sampler = packio.BucketSampler(
        ds, area=SIDE * SIDE, step=STEP, batch_size=BATCH, leftovers="short"
    )
    own = packio.Loader(ds, batch_sampler=sampler)
    one = packio.Loader(square, BATCH, shuffle=True)
    script: Any = DataLoader(
        Plain(paths), batch_sampler=PlainBatches(paths, sizes_of_area(SIDE * SIDE, STEP)),
        num_workers=len(os.sched_getaffinity(0)), persistent_workers=True,
    )  # fmt: skip
    return {
        "buckets": lambda: iter(own), "one square": lambda: iter(one),
        "a trainer's script": lambda: iter(script),
    }  # fmt: skip


def rates(rounds: int) -> dict[str, Any]:
    """Images and output megapixels per second of each candidate, and ratios round by round."""
    images: dict[str, list[float]] = {}
    pixels: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        made = candidates(Path(folder))
        for number in range(rounds + 1):
            for name, epoch in made.items():
                began, count, area = time.perf_counter(), 0, 0
                for batch in epoch():
                    count, area = count + len(batch), area + batch[:, 0].numel()
                seconds = time.perf_counter() - began
                if number:
                    images.setdefault(name, []).append(count / seconds)
                    pixels.setdefault(name, []).append(area / seconds / 1e6)
    return {
        name: {
            "images_per_second": _results.summary(images[name], 0),
            "megapixels_per_second": _results.summary(pixels[name], 1),
            **{
                f"times {other}": _results.summary(_results.ratios(images[name], images[other]), 3)
                for other in images
                if other != name
            },
        }
        for name in images
    }


def plot(result: dict[str, Any], picture: Path) -> None:
    """Draw images per second, and the share of pixels lost."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "packio"  # the same bytes for the same results
    mpl.rcParams["svg.fonttype"] = "none"
    figure = Figure(figsize=(9, 2.6), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    names = list(result["loading"])[::-1]
    each = [result["loading"][name]["images_per_second"] for name in names]
    spread = [[e["median"] - e["min"] for e in each], [e["max"] - e["median"] for e in each]]
    colours = ["#d1495b" if name == "buckets" else "#4878a8" for name in names]
    left.barh(names, [e["median"] for e in each], xerr=spread, capsize=2, color=colours)
    left.set_xlabel(f"images per second, median of {result['rounds']} rounds", fontsize=8)
    kinds = ["one square", "buckets"]
    lost = [100 * result["lost"][kind]["mean"] for kind in kinds]
    right.barh(kinds, lost, color=["#4878a8", "#d1495b"])
    right.set_xlabel("% of the pixels cut away, mean of a million images", fontsize=8)
    for axes in (left, right):
        axes.tick_params(labelsize=8)
    machine = result["machine"]
    figure.suptitle(f"{machine['cpu']}, {machine['cores']} cores", fontsize=9)
    figure.savefig(picture, metadata={"Date": None})


def check(sizes: np.ndarray) -> None:
    """Compare the assignment of some images with that of plain Python."""
    some = sizes_of_area(AREA, STEP)
    found = Buckets(some).assign(sizes[:, 0], sizes[:, 1])
    for (height, width), number in zip(sizes[:2000].tolist(), found.tolist(), strict=False):
        ratio = math.log(width / height)
        distances = [abs(ratio - math.log(b / h)) for h, b in some]
        if distances[number] > min(distances) + 1e-12:
            raise SystemExit(f"{height}x{width}: {some[number]} is not the nearest size")


def main() -> None:
    """Measure and print; with --save into benchmarks/results/buckets.json."""
    parser = _results.parser(__doc__, rounds=7)
    parser.add_argument("--plot", type=Path, help="draw what was saved, and measure nothing")
    given = parser.parse_args()
    if given.plot is not None:
        plot(json.loads((_results.FOLDER / "buckets.json").read_text()), given.plot)
        return
    sizes = drawn_sizes(SAMPLES)
    check(sizes)
    result = {
        "machine": _results.machine("numpy", "torch", "pillow"),
        "rounds": given.rounds,
        "samples": SAMPLES,
        "costs": costs(sizes, given.rounds),
        "lost": losses(sizes),
        "images": IMAGES,
        "batch_size": BATCH,
        "loading": rates(given.rounds),
    }
    _results.finish("buckets", result, keep=given.save)


if __name__ == "__main__":
    main()
