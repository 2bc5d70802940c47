"""FFCV: a beton file of its own, read by its Loader's threads.

``write_mode="jpg"`` encodes the images anew, at FFCV's default quality, 90. Its images are
(N, H, W, C) in memory; "contiguous" are those that ToTorchImage makes (N, C, H, W).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from _contract import Job, files, pixels
from ffcv.fields import IntField, RGBImageField
from ffcv.fields.decoders import (
    CenterCropRGBImageDecoder,
    IntDecoder,
    RandomResizedCropRGBImageDecoder,
    SimpleRGBImageDecoder,
)
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import (
    RandomHorizontalFlip,
    RandomTranslate,
    Squeeze,
    ToTensor,
    ToTorchImage,
)
from ffcv.writer import DatasetWriter
from PIL import Image

WAYS = dict.fromkeys(
    ("rrc224", "raw224", "raw32", "raw32_crop", "photos", "eval224"), ("contiguous", "view")
)
DECODERS = {
    "rrc224": lambda: [RandomResizedCropRGBImageDecoder((224, 224)), RandomHorizontalFlip()],
    "eval224": lambda: [CenterCropRGBImageDecoder((224, 224), 224 / 256)],
    "raw224": lambda: [SimpleRGBImageDecoder()],
    "raw32": lambda: [SimpleRGBImageDecoder()],
    "raw32_crop": lambda: [SimpleRGBImageDecoder(), RandomHorizontalFlip(), RandomTranslate(4)],
}
DECODERS["photos"] = DECODERS["rrc224"]


def versions() -> dict[str, str]:
    """What was measured."""
    return {name: version(name) for name in ("ffcv", "torch", "numba", "opencv-python-headless")}


class _Files:
    """What DatasetWriter takes: (H, W, 3) pixels and a label."""

    def __init__(self, job: Job) -> None:
        self.files = files(job.source)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        path, label = self.files[index]
        return np.asarray(Image.open(path).convert("RGB")), label


class _Pixels:
    """The same, of raw images."""

    def __init__(self, job: Job) -> None:
        self.pixels = pixels(job.source)

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return np.asarray(self.pixels[index]), index % 10


def prepare(job: Job) -> None:
    """Write a beton file."""
    path = job.out / "images.beton"
    if path.exists():
        return
    mode = "raw" if job.work.startswith("raw") else "jpg"
    images = _Pixels(job) if mode == "raw" else _Files(job)
    fields = {"image": RGBImageField(write_mode=mode), "label": IntField()}
    DatasetWriter(str(path), fields, num_workers=job.cores).from_indexed_dataset(images)


def epochs(job: Job) -> Callable[[], Iterable[Any]]:
    """A Loader in random order, the file in the page cache."""
    torch.set_num_threads(1)  # of the copy into (N, C, H, W), in each of its threads
    to_image = ToTorchImage(channels_last=job.way == "view")
    loader = Loader(
        str(job.out / "images.beton"), batch_size=job.batch, num_workers=job.cores,
        order=OrderOption.RANDOM, os_cache=True, drop_last=True,
        pipelines={
            "image": [*DECODERS[job.work](), ToTensor(), to_image],
            "label": [IntDecoder(), ToTensor(), Squeeze()],
        },
    )  # fmt: skip
    return lambda: loader
