"""WebDataset: tar shards, shuffled by shard and in a buffer, through its WebLoader."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import webdataset as wds
from _contract import Job, files
from read_torchvision import decode_bytes, open_pil, transform
from torchvision.transforms import v2

if TYPE_CHECKING:
    import torch

WAYS = {
    **dict.fromkeys(("rrc224", "photos", "eval224", "bicubic384"), ("PIL", "decode_jpeg")),
    "randaugment": ("PIL",),
}
SHARDS = 8


def versions() -> dict[str, str]:
    """What was measured."""
    return {name: version(name) for name in ("webdataset", "torchvision", "torch", "pillow")}


def prepare(job: Job) -> None:
    """Write the files as they are, spread over shards."""
    if (job.out / f"{SHARDS - 1}.tar").exists():
        return
    writers = [wds.TarWriter(str(job.out / f"{number}.tar")) for number in range(SHARDS)]
    for number, (path, label) in enumerate(files(job.source)):
        sample = {"__key__": f"{number:06d}", "jpg": path.read_bytes(), "cls": label}
        writers[number % SHARDS].write(sample)
    for writer in writers:
        writer.close()


def _from_bytes(pil: bool, steps: v2.Compose, data: bytes) -> torch.Tensor:
    return steps(open_pil(io.BytesIO(data)) if pil else decode_bytes(data))


def _label(data: bytes) -> int:
    return int(data)


def epochs(job: Job) -> Callable[[], Iterable[Any]]:
    """A WebLoader whose workers stay and make the batches."""
    pil = job.way == "PIL"
    steps = v2.Compose([*transform(job.work), *([v2.PILToTensor()] if pil else [])])
    shards = [str(job.out / f"{number}.tar") for number in range(SHARDS)]
    dataset = (
        wds.WebDataset(shards, shardshuffle=SHARDS)
        .shuffle(1000)
        .to_tuple("jpg", "cls")
        .map_tuple(functools.partial(_from_bytes, pil, steps), _label)
        .batched(job.batch)
    )
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=job.cores, persistent_workers=True)
    return lambda: loader
