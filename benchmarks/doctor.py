"""Whether `packio.doctor` names what bounds a loop: bottlenecks of random size, planted.

Small packs are made of photographs (tools/make_sample_images.py). A loop over one of them gets one
bottleneck, or two, or none, each drawn by seed; steps sleep, as for a GPU, in proportion to the
batch, but for those of the memory format, which are convolutions. Right is

* with one: it is among the first two findings (``first``: it is the first one);
* with two: both are among the first three;
* with none: nothing but "step" or "none" is found. Its loader is 2 to 6 times as fast as its step.

    python benchmarks/doctor.py [--cases 30] [--seed 1] [--seconds 12] [--only KIND] [--json FILE]
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import pickle
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import _results
import numpy as np
import torch
from PIL import Image, ImageFilter
from torch.utils.data import DataLoader, Dataset

import packio
from packio.measuring.doctor import Cause

TOOL = Path(__file__).parent.parent / "tools" / "make_sample_images.py"
QUIET = (Cause.STEP, Cause.NONE)


class Parts:
    """What a loop is made of; plants put something slow into it.

    Attributes:
        pack: The small pack, or the one of large images.
        dataset: Called with the pack, gives the dataset.
        step: Seconds a sample.
        expected: The kinds planted.
    """

    def __init__(self, draw: random.Random, packs: dict[str, Path]) -> None:
        self.draw, self.packs = draw, packs
        self.pack = packs["small"]
        self.wraps: list[Callable[[Any], Any]] = []
        self.transform: Any = None
        self.collates: list[Callable[[Any], Any]] = []
        self.workers = draw.choice((1, 2))
        self.batch_size = draw.choice((8, 16, 24))
        self.step_seconds = 0.0005  # a sample
        self.step: Callable[[Any], Any] | None = None
        self.persistent = True
        self.init: Callable[[int], None] | None = None
        self.size = 64
        self.expected: list[Cause] = []
        self.sizes: dict[str, float] = {}
        self.rate = 0.0  # of the storage, bytes a second
        self.prices = prices()

    def seconds(self, name: str, low: float, high: float) -> float:
        """Draw a size, and note it."""
        value = self.draw.uniform(low, high)
        self.sizes[name] = round(value, 4)
        return value

    def resize(self, seconds: float) -> None:
        """Have the transform, or the storage, take so long for a sample."""
        self.sizes["resized"] = round(seconds, 4)
        if self.transform is not None:
            self.transform.seconds = seconds
        else:
            self.rate = self.mean_length() / max(seconds - 0.001, 1e-4)

    def mean_length(self) -> float:
        """Bytes of a sample, on average."""
        return float(packio.open(self.pack).index_file.column("image/length").array().mean())

    def loader(self) -> DataLoader[Any]:
        """Put the loader together."""
        dataset: Any = packio.PackDataset(
            self.pack, crop=packio.RandomResizedCrop(self.size), hflip=0.5, seed=0, threads=1,
            transform=self.transform,
        )  # fmt: skip
        for wrap in self.wraps:
            dataset = wrap(dataset)
        return DataLoader(
            dataset, batch_size=self.batch_size, shuffle=True, num_workers=self.workers,
            collate_fn=Collate(self.collates), worker_init_fn=self.init,
            persistent_workers=self.persistent and self.workers > 0,
        )  # fmt: skip

    def steps(self) -> Callable[[Any], Any]:
        """Give the step: a sleep, as long as the batch is large."""
        return self.step or Sleep(self.step_seconds)


class Sleep:
    """A step on a GPU, as this process sees it: it takes time, and none of the processor."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, batch: Any) -> None:
        """Take the time of a batch."""
        time.sleep(self.seconds * len(batch[0]))


class Collate:
    """packio's, and then something else."""

    def __init__(self, after: list[Callable[[Any], Any]]) -> None:
        self.after = after

    def __call__(self, samples: list[Any]) -> Any:
        """Make a batch."""
        batch = packio.collate(samples)
        for change in self.after:
            batch = change(batch)
        return batch


class Throttled(Dataset[Any]):
    """Storage of so many bytes a second, and so slow to begin with."""

    def __init__(self, dataset: Any, rate: float) -> None:
        self.dataset, self.rate = dataset, rate
        self.lengths = packio.open(dataset.pack.path).index_file.column("image/length").array()

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.001 + float(self.lengths[index]) / self.rate)
        return self.dataset[index]


class Thrashing(Dataset[Any]):
    """Storage that gets slower the more read at once, as disks with heads do."""

    def __init__(self, dataset: Any, seconds: float) -> None:
        self.dataset, self.seconds = dataset, seconds
        self.reading = multiprocessing.get_context("fork").Value("i", 0)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        with self.reading.get_lock():
            self.reading.value += 1
            others = self.reading.value
        time.sleep(self.seconds * others**2)
        with self.reading.get_lock():
            self.reading.value -= 1
        return self.dataset[index]


class Busy:
    """Computes for so long, in plain Python."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, value: Any) -> Any:
        """Compute, and give back what came."""
        until, number = time.thread_time() + self.seconds, 0
        while time.thread_time() < until:
            number += 1
        return value


class BusyBatch(Busy):
    """Computes so long for each sample of a batch."""

    def __call__(self, batch: Any) -> Any:
        """Compute, and give back what came."""
        for _ in batch[0]:
            super().__call__(None)
        return batch


class Blur:
    """Blurs with Pillow until it has computed for so long."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        """Blur an image, (3, H, W) uint8."""
        until = time.thread_time() + self.seconds
        made = Image.fromarray(np.ascontiguousarray(image.numpy().transpose(1, 2, 0)))
        while time.thread_time() < until:
            made = made.filter(ImageFilter.GaussianBlur(2))
        return torch.from_numpy(np.ascontiguousarray(np.asarray(made).transpose(2, 0, 1)))


class Asleep:
    """Sleeps so long."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, value: Any) -> Any:
        """Sleep, and give back what came."""
        time.sleep(self.seconds)
        return value


class Objects:
    """Adds so many Python objects to a batch, which have to be pickled."""

    def __init__(self, count: int) -> None:
        self.extra = [(float(i), f"box {i}") for i in range(count)]

    def __call__(self, batch: Any) -> Any:
        """Add them."""
        return [*batch, self.extra]


class Canvas:
    """Adds a tensor of so many bytes, which nobody has written to yet."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, batch: Any) -> Any:
        """Add it."""
        return [*batch, torch.empty(self.size, dtype=torch.uint8)]


class Turned:
    """Gives the images as a view with other strides: samples last, or the sides exchanged."""

    def __init__(self, *, last: bool) -> None:
        self.last = last

    def __call__(self, batch: Any) -> Any:
        """Exchange the strides of the images."""
        images = batch[0].float()
        if self.last:
            images = images.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2)
        else:
            images = images.transpose(2, 3).contiguous().transpose(2, 3)
        return [images, *batch[1:]]


class Stems:
    """Convolutions that look at patches, several of the same images."""

    def __init__(self, count: int) -> None:
        self.weights = [torch.rand(4, 3, 8, 8) for _ in range(count)]

    def __call__(self, batch: Any) -> None:
        """Look at a batch."""
        for weight in self.weights:
            torch.nn.functional.conv2d(batch[0].float(), weight, stride=8)


class Started:
    """Starts a worker slowly: a model that is loaded, a database that is opened."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, worker: int) -> None:
        """Start a worker."""
        time.sleep(self.seconds)


@functools.cache
def prices() -> dict[str, float]:
    """Seconds that an object's way between processes takes, and what turned images cost a stem."""
    batch, stems = [torch.rand(16, 3, 160, 160)], Stems(2)
    objects = Objects(20_000).extra
    found = {"object": least(lambda: pickle.loads(pickle.dumps(objects))) / 20_000}  # noqa: S301 (ours)
    for last in (False, True):
        turned = Turned(last=last)(batch)
        saved = least(lambda turned=turned: stems(turned)) - least(lambda: stems(batch))
        found[f"stem, {last}"] = saved / 2
    return found


def least(work: Callable[[], Any]) -> float:
    """Seconds of the fastest of some calls."""
    times = []
    for _ in range(7):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


# The plants: each makes its part of the loop the slow one.


def storage(parts: Parts) -> None:
    """Storage of 0.5 to 3 MB a second: 3 to 20 ms a sample of 10 kB."""
    rate = parts.seconds("storage, MB/s", 0.5, 3)
    parts.wraps.append(lambda dataset: Throttled(dataset, rate * 1e6))
    parts.expected.append(Cause.STORAGE)


def decode(parts: Parts) -> None:
    """Images of three megapixels."""
    parts.pack, parts.batch_size = parts.packs["large"], 4
    parts.expected.append(Cause.DECODE)


def transform(parts: Parts) -> None:
    """A transform of 6 to 30 ms that computes, blurs or sleeps."""
    kind = parts.draw.choice((Busy, Blur, Asleep))
    parts.transform = kind(parts.seconds(f"transform, {kind.__name__}", 0.006, 0.03))
    parts.expected.append(Cause.TRANSFORM)


def collate(parts: Parts) -> None:
    """A collate function that computes 6 to 20 ms a sample."""
    parts.collates.append(BusyBatch(parts.seconds("collate", 0.006, 0.02)))
    parts.expected.append(Cause.COLLATE)


def hand_over(parts: Parts) -> None:
    """Batches of 100,000 to 300,000 objects, or of 100 to 300 MB."""
    parts.workers = max(1, parts.workers)
    count = int(parts.seconds("hand-over, thousands of objects or MB", 100, 300))
    parts.collates.append(
        Objects(count * 1000) if parts.draw.random() < 0.5 else Canvas(count * 1_000_000)
    )
    parts.expected.append(Cause.HAND_OVER)


def too_few(parts: Parts) -> None:
    """One worker that waits for its transform, and a step that is faster."""
    parts.transform = Asleep(parts.seconds("transform, Asleep", 0.004, 0.012))
    parts.workers = 1
    parts.expected.append(Cause.WORKERS_TOO_FEW)


def too_many(parts: Parts) -> None:
    """6 to 12 workers on storage that gets slower the more read at once."""
    parts.workers = parts.draw.randint(6, 12)
    seconds = parts.seconds("storage for one", 0.002, 0.005)
    parts.wraps.append(lambda dataset: Thrashing(dataset, seconds))
    parts.expected.append(Cause.WORKERS_TOO_MANY)


def batch_size(parts: Parts) -> None:
    """Batches of 1 to 3, and a step that takes 3 to 10 ms for any of these."""
    parts.batch_size = parts.draw.randint(1, 3)
    seconds = parts.seconds("step, a batch", 0.003, 0.01)
    parts.step = Asleep(seconds)
    parts.workers = 2
    parts.expected.append(Cause.BATCH_SIZE)


def memory_format(parts: Parts) -> None:
    """Images with exchanged strides, and 3 to 8 convolutions of them."""
    parts.collates.append(Turned(last=parts.draw.random() < 0.5))
    parts.step = Stems(int(parts.seconds("convolutions", 3, 8)))
    parts.size, parts.workers, parts.batch_size = 160, 1, 16
    parts.expected.append(Cause.MEMORY_FORMAT)


def step(parts: Parts) -> None:
    """A step that takes 20 to 60 ms a sample."""
    parts.step_seconds = parts.seconds("step, a sample", 0.02, 0.06)
    parts.batch_size = 4
    parts.expected.append(Cause.STEP)


def start_up(parts: Parts) -> None:
    """Short epochs, and workers that take 2 to 4 s to start for each."""
    parts.persistent, parts.workers, parts.batch_size = False, 2, 8
    parts.init = Started(parts.seconds("start", 2, 4))
    parts.step_seconds = 0.003
    parts.expected.append(Cause.START_UP)


SINGLE = (storage, decode, transform, collate, hand_over, too_few, too_many, batch_size,
          memory_format, step, start_up)  # fmt: skip
DOUBLE = (
    (storage, transform), (transform, collate), (storage, collate), (collate, hand_over),
    (transform, memory_format), (storage, memory_format),
)  # fmt: skip


def two(parts: Parts, plants: tuple[Callable[[Parts], None], ...]) -> None:
    """Plant two of like size."""
    each = parts.draw.uniform(0.008, 0.02)  # seconds a sample
    others = [each * parts.draw.uniform(0.7, 1.4) for _ in plants]
    parts.batch_size, parts.workers = 8, parts.draw.choice((1, 2))
    for plant, seconds in zip(plants, others, strict=True):
        parts.sizes[plant.__name__] = round(seconds, 4)
        if plant is storage:
            parts.rate = parts.mean_length() / (seconds - 0.001)
            parts.wraps.append(lambda dataset: Throttled(dataset, parts.rate))
            parts.expected.append(Cause.STORAGE)
        elif plant is transform:
            parts.transform = parts.draw.choice((Busy, Asleep))(seconds)
            parts.expected.append(Cause.TRANSFORM)
        elif plant is collate:
            parts.collates.append(BusyBatch(seconds))
            parts.expected.append(Cause.COLLATE)
        elif plant is hand_over:
            parts.collates.append(Objects(int(seconds * 8 / parts.prices["object"])))
            parts.expected.append(Cause.HAND_OVER)
        elif plant is memory_format:  # the other one is sized by it: it is the last of a pair
            memory_format(parts)
            count = len(parts.step.weights) if isinstance(parts.step, Stems) else 0
            last = any(isinstance(c, Turned) and c.last for c in parts.collates)
            parts.workers, own = 0, count * parts.prices[f"stem, {last}"] / parts.batch_size
            parts.resize(max(0.003, own * parts.draw.uniform(0.7, 1.4)))


def none(parts: Parts) -> None:
    """A step that takes 2 to 6 times what the loader takes, where that waits; contiguous."""
    kind = parts.draw.choice(("plain", "transform", "one process"))
    slower = parts.seconds(f"step for one of {kind}", 2, 6)
    own = 0.004 if kind != "plain" else 0.003  # a worker's seconds a sample, on a busy machine
    if kind == "transform":
        parts.transform = Asleep(0.004)
        own += 0.004
    parts.step_seconds = own * slower / max(1, parts.workers)
    if kind == "one process":
        parts.workers, parts.step_seconds = 0, own * 12


class Case(NamedTuple):
    """What is planted, and how that was judged."""

    name: str
    parts: Parts


def cases(count: int, seed: int, packs: dict[str, Path]) -> list[Case]:
    """Draw the cases: of ten, six with one bottleneck, two with two, and two with none."""
    made, singles, doubles = list[Case](), 0, 0
    for number in range(count):
        parts = Parts(random.Random(f"{seed} {number}"), packs)
        if number % 5 == 3:
            none(parts)
            name = "none"
        elif number % 5 == 4:
            pair = DOUBLE[doubles % len(DOUBLE)]
            two(parts, pair)
            name, doubles = " + ".join(plant.__name__ for plant in pair), doubles + 1
        else:
            plant = SINGLE[singles % len(SINGLE)]
            plant(parts)
            name, singles = plant.__name__, singles + 1
        made.append(Case(name, parts))
    return made


def judged(case: Case, seconds: float) -> dict[str, Any]:
    """Have the doctor look at a case."""
    began = time.perf_counter()
    parts = case.parts
    found = packio.doctor(parts.loader(), parts.steps(), seconds=seconds)
    kinds = found.kinds
    if not parts.expected:
        is_right = set(kinds) <= set(QUIET)
    elif len(parts.expected) == 1:
        is_right = parts.expected[0] in kinds[:2]
    else:
        is_right = set(parts.expected) <= set(kinds[:3])
    return {
        "case": case.name, "planted": parts.sizes, "workers": parts.workers,
        "batch_size": parts.batch_size, "expected": [kind.value for kind in parts.expected],
        "found": {f.kind.value: round(f.share, 3) for f in found.findings}, "right": is_right,
        "first": bool(parts.expected) and kinds[0] in parts.expected,
        "waiting": round(found.measured.waiting.median, 3),
        "remedies": [f"{t.change} x{t.factor.median:.2f}" for t in found.remedies],
        "seconds": round(time.perf_counter() - began, 1),
        "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip


def make_packs(folder: Path) -> dict[str, Path]:
    """Pack photographs: 200 of 160 pixels, and 24 of 2,000."""
    packs = {}
    for name, count, size in (("small", 200, 160), ("large", 24, 2000)):
        command = [sys.executable, str(TOOL), str(folder / name), "--n", str(count),
                   "--size", str(size)]  # fmt: skip
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        packs[name] = packio.pack(folder / name, folder / f"{name}.lmdb").out
    return packs


def summed_up(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Right of all: with one bottleneck, with two, with none."""
    groups: dict[str, list[dict[str, Any]]] = {"one": [], "two": [], "none": []}
    for row in rows:
        groups[("none", "one", "two")[len(row["expected"])]].append(row)
    counts = {name: f"{sum(r['right'] for r in g)}/{len(g)}" for name, g in groups.items()}
    return {**counts, "first of one": f"{sum(r['first'] for r in groups['one'])}"
            f"/{len(groups['one'])}"}  # fmt: skip


def main() -> None:
    """Run the campaign."""
    parser = _results.parser(__doc__)
    parser.add_argument("--cases", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=12.0, help="of each diagnosis")
    parser.add_argument("--only", help="cases whose names have this in it")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for case in cases(options.cases, options.seed, make_packs(Path(folder))):
            if options.only and options.only not in case.name:
                continue
            rows.append(judged(case, options.seconds))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    result = {
        "machine": _results.machine("torch", "pillow", "simplejpeg"), "seed": options.seed,
        "seconds": options.seconds, "summary": summed_up(rows), "cases": rows,
    }  # fmt: skip
    print(json.dumps(result["summary"]))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    if options.save:
        _results.save("doctor", result)


if __name__ == "__main__":
    main()
