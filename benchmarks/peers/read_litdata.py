"""LitData: chunks of the files' bytes, decoded by torchvision, through its StreamingDataLoader."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import litdata
from _contract import Job, files
from read_torchvision import decode_bytes, transform
from torchvision.transforms import v2

if TYPE_CHECKING:
    import torch

WAYS = dict.fromkeys(("rrc224", "photos", "eval224", "bicubic384"), ("decode_jpeg",))


def versions() -> dict[str, str]:
    """What was measured."""
    return {name: version(name) for name in ("litdata", "torchvision", "torch")}


def sample(file: tuple[Any, int]) -> dict[str, Any]:
    """What is written of a file."""
    return {"image": file[0].read_bytes(), "label": file[1]}


def prepare(job: Job) -> None:
    """Write chunks of 64 MB."""
    if not (job.out / "index.json").exists():
        litdata.optimize(
            fn=sample, inputs=files(job.source), output_dir=str(job.out), chunk_bytes="64MB",
            num_workers=job.cores, mode="overwrite",
        )  # fmt: skip


class Decode:
    """From what was written to a tensor and a label."""

    def __init__(self, job: Job) -> None:
        self.steps = v2.Compose(transform(job.work))

    def __call__(self, sample: dict[str, Any]) -> tuple[torch.Tensor, int]:
        """Decode, and transform."""
        return self.steps(decode_bytes(sample["image"])), sample["label"]


def epochs(job: Job) -> Callable[[], Iterable[Any]]:
    """A StreamingDataLoader whose workers stay."""
    dataset = litdata.StreamingDataset(
        str(job.out), shuffle=True, drop_last=True, transform=Decode(job)
    )
    loader = litdata.StreamingDataLoader(
        dataset, batch_size=job.batch, num_workers=job.cores, persistent_workers=True,
        drop_last=True,
    )  # fmt: skip
    return lambda: loader
