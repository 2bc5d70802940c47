"""MosaicML Streaming: MDS shards of the files' bytes, through torch's DataLoader."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from _contract import Job, files
from read_torchvision import decode_bytes, open_pil, transform
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
from torchvision.transforms import v2

if TYPE_CHECKING:
    import torch

WAYS = dict.fromkeys(("rrc224", "photos", "eval224", "bicubic384"), ("PIL", "decode_jpeg"))


def versions() -> dict[str, str]:
    """What was measured."""
    return {name: version(name) for name in ("mosaicml-streaming", "torchvision", "torch")}


def prepare(job: Job) -> None:
    """Write shards."""
    if (job.out / "index.json").exists():
        return
    with MDSWriter(
        out=str(job.out), columns={"image": "bytes", "label": "int"}, exist_ok=True
    ) as out:
        for path, label in files(job.source):
            out.write({"image": path.read_bytes(), "label": label})


class Images(StreamingDataset):
    """From what was written to tensors and labels."""

    def __init__(self, job: Job) -> None:
        super().__init__(local=str(job.out), shuffle=True, batch_size=job.batch)
        self.pil = job.way == "PIL"
        end = [v2.PILToTensor()] if self.pil else []
        self.steps = v2.Compose([*transform(job.work), *end])

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        """Decode, and transform."""
        sample = super().__getitem__(index)
        data = sample["image"]
        image = open_pil(io.BytesIO(data)) if self.pil else decode_bytes(data)
        return self.steps(image), sample["label"]


def epochs(job: Job) -> Callable[[], Iterable[Any]]:
    """A StreamingDataLoader whose workers stay."""
    loader = StreamingDataLoader(
        Images(job), batch_size=job.batch, num_workers=job.cores, persistent_workers=True,
        drop_last=True,
    )  # fmt: skip
    return lambda: loader
