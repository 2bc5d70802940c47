"""torchvision in a DataLoader: image files by Pillow, or by decode_jpeg and transforms v2.

Raw pixels are read from a mapped .npy file by ``torch.index_select``, a batch at a time, or, as
torchvision.datasets.CIFAR10 does, one by one by way of Pillow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from _contract import MEAN, RANDAUGMENT, STD, Job, files, mask_of, pixels
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import io, tv_tensors
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional

RGB = io.ImageReadMode.RGB
_BOTH = ("PIL", "decode_jpeg")
WAYS = {
    **dict.fromkeys(("photos", "eval224", "bicubic384", "pairs"), _BOTH),
    "rrc224": (*_BOTH, "torchcodec"),
    "rrc224_float": _BOTH,
    "raw160_float": ("PIL",),
    "randaugment": ("PIL",),
    "raw224": ("index_select",),
    "raw32": ("index_select", "PIL"),
    "raw32_crop": ("PIL",),
}


def versions() -> dict[str, str]:
    """What was measured."""
    return {
        name: version(name) for name in ("torchvision", "torchcodec", "torch", "pillow", "timm")
    }


def prepare(job: Job) -> None:
    """Image files are read as they are; of raw pixels, (N, C, H, W) is written for index_select."""
    path = job.out / "planes.npy"
    if job.way == "index_select" and not path.exists():
        np.save(path, np.ascontiguousarray(pixels(job.source).transpose(0, 3, 1, 2)))


def transform(work: str) -> list[Any]:
    """Transforms v2, for tensors and for Pillow's images."""
    if work == "eval224":
        return [v2.Resize(256), v2.CenterCrop(224)]
    if work == "bicubic384":
        kind = InterpolationMode.BICUBIC
        return [v2.RandomResizedCrop(384, interpolation=kind), v2.RandomHorizontalFlip()]
    if work == "raw32_crop":
        return [v2.RandomCrop(32, padding=4), v2.RandomHorizontalFlip()]
    if work in ("raw224", "raw32"):
        return []
    steps = [
        v2.RandomResizedCrop(160 if work == "raw160_float" else 224),
        v2.RandomHorizontalFlip(),
    ]
    return [*steps, _randaugment()] if work == "randaugment" else steps


def to_floats(work: str) -> list[Any]:
    """What makes normalised floats of a tensor, where a work asks for them."""
    to_float = v2.ToDtype(torch.float32, scale=True)
    return [to_float, v2.Normalize(MEAN, STD)] if work.endswith("float") else []


def _randaugment() -> Any:
    """Timm's, for Pillow's images; it has none for tensors."""
    from timm.data.auto_augment import rand_augment_transform

    return rand_augment_transform(RANDAUGMENT, {"translate_const": 100})


def open_pil(path: Any, mode: str = "RGB") -> Image.Image:
    """An image as torchvision's default loader opens it, by path or file."""
    with Image.open(path) as image:
        return image.convert(mode)


def open_tensor(path: Any) -> torch.Tensor:
    """(3, H, W) uint8 RGB."""
    return io.decode_jpeg(io.read_file(str(path)), mode=RGB)


def decode_bytes(data: bytes) -> torch.Tensor:
    """The same, of bytes; torch can only borrow what may be written to."""
    return io.decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), mode=RGB)


def open_torchcodec(path: Any) -> torch.Tensor:
    """The same, by what torchvision's decoders move to."""
    from torchcodec.decoders import decode_image

    return decode_image(str(path))


OPEN = {"PIL": open_pil, "decode_jpeg": open_tensor, "torchcodec": open_torchcodec}


class Files(Dataset[Any]):
    """Images one by one, as torchvision.datasets.ImageFolder gives them."""

    def __init__(self, job: Job) -> None:
        self.files = [(str(path), label) for path, label in files(job.source)]
        self.open = OPEN[job.way]
        end = [v2.PILToTensor()] if job.way == "PIL" else []
        self.transform = v2.Compose([*transform(job.work), *end, *to_floats(job.work)])

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, label = self.files[index]
        return self.transform(self.open(path)), label


class Pairs(Dataset[Any]):
    """Images and masks, which transforms v2 treat alike."""

    def __init__(self, job: Job) -> None:
        self.files = [(path, mask_of(path)) for path, _ in files(job.source)]
        self.pil = job.way == "PIL"
        self.transform = v2.Compose(transform(job.work))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        path, mask_path = self.files[index]
        if self.pil:
            mask = tv_tensors.Mask(functional.pil_to_tensor(open_pil(mask_path, "L")))
            image, mask = self.transform(open_pil(path), mask)
            return functional.pil_to_tensor(image), mask
        return self.transform(open_tensor(path), tv_tensors.Mask(io.decode_image(str(mask_path))))


class Pixels(Dataset[Any]):
    """Raw images one by one, by way of Pillow."""

    def __init__(self, job: Job) -> None:
        self.pixels = pixels(job.source)
        steps = [*transform(job.work), v2.PILToTensor(), *to_floats(job.work)]
        self.transform = v2.Compose(steps)

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(Image.fromarray(self.pixels[index])), index % 10


class Planes(Dataset[Any]):
    """Raw images, a batch at a time, as they are."""

    def __init__(self, job: Job) -> None:
        self.planes = torch.from_numpy(np.load(job.out / "planes.npy", mmap_mode="c"))
        self.labels = torch.arange(len(self.planes)) % 10

    def __len__(self) -> int:
        return len(self.planes)

    def __getitems__(self, indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = torch.tensor(indices)
        return self.planes.index_select(0, chosen), self.labels.index_select(0, chosen)


def epochs(job: Job) -> Callable[[], Iterable[Any]]:
    """A DataLoader whose workers stay; index_select, which is faster without, has none."""
    if job.way == "index_select":
        return in_this_process(Planes(job), job)
    made = Pixels if job.work.startswith("raw") else Pairs if job.work == "pairs" else Files
    loader = DataLoader(
        made(job), batch_size=job.batch, shuffle=True, drop_last=True, num_workers=job.cores,
        persistent_workers=True,
    )  # fmt: skip
    return lambda: loader


def in_this_process(planes: Planes, job: Job) -> Callable[[], Iterable[Any]]:
    """Batches of a random order, by torch's own threads."""
    torch.set_num_threads(job.cores)

    def epoch() -> Iterable[Any]:
        order = torch.randperm(len(planes)).split(job.batch)
        return (
            (planes.planes.index_select(0, chosen), planes.labels.index_select(0, chosen))
            for chosen in order
            if len(chosen) == job.batch
        )

    return epoch
