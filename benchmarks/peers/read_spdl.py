"""SPDL: image files, decoded, cropped and resized by FFmpeg's filters, in a pipeline of threads.

Its images are (N, H, W, C) in memory; "contiguous" are those that torch then makes (N, C, H, W).
Boxes are drawn as RandomResizedCrop's, but one that is too wide or too high is cut, not drawn anew:
the filter knows the image's size, the caller does not.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from typing import Any

import spdl.io
import torch
from _contract import Job, files
from spdl.pipeline import PipelineBuilder

WAYS = dict.fromkeys(("rrc224", "photos", "eval224", "bicubic384"), ("contiguous", "view"))


def versions() -> dict[str, str]:
    """What was measured."""
    return {name: version(name) for name in ("spdl-io", "spdl-core", "torch")}


def prepare(job: Job) -> None:
    """SPDL reads image files as they are."""


def filters(work: str) -> str:
    """FFmpeg's filters for one image."""
    if work == "eval224":
        scale = "scale=256:256:force_original_aspect_ratio=increase:flags=bilinear"
        return f"{scale},crop=224:224,format=pix_fmts=rgb24"
    side, kind = (384, "bicubic") if work == "bicubic384" else (224, "bilinear")
    area, ratio = (
        random.uniform(0.08, 1),
        math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3))),
    )
    crop = (
        f"crop=w='min(iw,sqrt(iw*ih*{area * ratio}))':h='min(ih,sqrt(iw*ih*{area / ratio}))'"
        f":x='(iw-ow)*{random.random()}':y='(ih-oh)*{random.random()}'"
    )
    flip = "hflip," if random.random() < 0.5 else ""
    return f"{crop},scale={side}:{side}:flags={kind},{flip}format=pix_fmts=rgb24"


def epochs(job: Job) -> Callable[[], Iterable[Any]]:
    """A pipeline for each epoch, as it cannot be run twice."""
    found = [(str(path), label) for path, label in files(job.source)]

    def batches() -> Iterator[list[tuple[str, int]]]:
        random.shuffle(found)
        for start in range(0, len(found) - job.batch + 1, job.batch):
            yield found[start : start + job.batch]

    def load(batch: list[tuple[str, int]]) -> tuple[torch.Tensor, torch.Tensor]:
        frames = [
            spdl.io.decode_packets(spdl.io.demux_image(path), filter_desc=filters(job.work))
            for path, _ in batch
        ]
        images = spdl.io.to_torch(spdl.io.convert_frames(frames)).permute(0, 3, 1, 2)
        if job.way == "contiguous":
            images = images.contiguous()
        return images, torch.tensor([label for _, label in batch])

    def epoch() -> Iterator[Any]:
        builder = PipelineBuilder().add_source(batches()).pipe(load, concurrency=job.cores)
        pipeline = builder.add_sink(3).build(num_threads=job.cores)
        with pipeline.auto_stop():
            yield from pipeline.get_iterator()

    torch.set_num_threads(1)  # of the copy, in each of its threads
    return epoch
