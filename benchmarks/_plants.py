"""Training loops with bottlenecks planted in them, each of a size that is drawn by seed."""

from __future__ import annotations

import functools
import pickle
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _slow import (
    Asleep,
    Blur,
    Busy,
    BusyBatch,
    Canvas,
    Collate,
    FirstReads,
    Folder,
    Objects,
    Sleep,
    Started,
    Stems,
    Thrashing,
    Throttled,
    Turned,
)
from torch.utils.data import DataLoader

import packio
from packio.measuring.doctor import Cause


class Parts:
    """What a loop is made of; plants put something slow into it.

    Attributes:
        pack: The small pack, or the one of large images.
        dataset: Called with the pack, gives the dataset.
        step: Seconds a sample.
        expected: The kinds planted.
        proposed: How the code of a remedy begins that has to be proposed.
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
        self.proposed = ""
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


def first_reads(parts: Parts) -> None:
    """Storage whose first read of a sample takes 10 to 30 ms, and a transform of 1 ms."""
    seconds = parts.seconds("first read", 0.01, 0.03)
    parts.wraps.append(lambda dataset: FirstReads(dataset, seconds))
    parts.transform = Busy(0.001)
    parts.expected.append(Cause.STORAGE)


def pickled(parts: Parts) -> None:
    """Many workers whose batches of 30,000 to 80,000 objects one process has to unpickle."""
    parts.workers, parts.batch_size = parts.draw.randint(6, 10), 8
    parts.transform = Asleep(0.005)
    parts.collates.append(Objects(int(parts.seconds("thousands of objects", 30, 80)) * 1000))
    parts.expected.append(Cause.HAND_OVER)


def folder(parts: Parts) -> None:
    """A folder of large images, read as torchvision does; packing is to be proposed."""
    root = parts.packs["large"].parent / "large"
    parts.wraps.append(lambda _: Folder(root, parts.size))
    parts.batch_size, parts.proposed = 4, "packio pack"
    parts.expected.append(Cause.DECODE)


SINGLE = (
    first_reads, pickled, folder, storage, decode, transform, collate, hand_over, too_few, too_many,
    batch_size, memory_format, step, start_up,
)  # fmt: skip
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
