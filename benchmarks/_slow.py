"""What slows a training loop down: storage, transforms, collate functions, steps, as planted."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFilter
from torch.utils.data import Dataset

import packio


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


class FirstReads(Dataset[Any]):
    """Storage whose first read of a sample takes so long; later reads find it in a cache.

    Many samples are made of few: each index is one of its own for the storage.
    """

    def __init__(self, dataset: Any, seconds: float, count: int = 1 << 20) -> None:
        self.dataset, self.seconds, self.count = dataset, seconds, count
        self.seen = torch.zeros(count, dtype=torch.uint8).share_memory_()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if not self.seen[index]:
            time.sleep(self.seconds)
            self.seen[index] = 1
        return self.dataset[index % len(self.dataset)]


class Folder(Dataset[Any]):
    """An image folder as torchvision's ImageFolder reads it: a file a sample, decoded by Pillow."""

    def __init__(self, root: Path, size: int) -> None:
        self.root, self.size = str(root), size
        self.samples = [(str(p), 0) for p in sorted(root.rglob("*.jpg"))]

    @staticmethod
    def loader(path: str) -> Image.Image:
        """Open a file as torchvision does."""
        with Image.open(path) as image:
            return image.convert("RGB")

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        path, label = self.samples[index]
        small = self.loader(path).resize((self.size, self.size), Image.Resampling.NEAREST)
        return torch.from_numpy(np.asarray(small).transpose(2, 0, 1).copy()), label
