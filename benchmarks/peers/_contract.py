"""What one peer's file, ``read_<peer>.py``, has, and the works that peers do.

    WAYS: dict[str, tuple[str, ...]]    work → the ways in which this peer can do it
    versions() -> dict[str, str]        package → version
    prepare(job) -> None                write the peer's own format to job.out, unless it is there
    epochs(job) -> Callable[[], Iterable[tuple[images, ...]]]
    stored(job) -> int                  bytes that it wrote; may be absent

What ``epochs`` returns is called once for each epoch, and gives its batches: a tuple whose first
item is the images, (N, C, H, W) as Work says, a tensor or an array whose memory holds them; the
second is the labels, or the masks. All images come once, in random order. What can live
from epoch to epoch (workers, threads, buffers) is made once. Each way is the one that the peer's
documentation recommends for speed; what a peer cannot do is left out rather than imitated.

Each file runs in a process of its own, by the Python of its peer (see install.py and _child.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple


class Work(NamedTuple):
    """What is done with all images of a folder.

    Attributes:
        source: Kind of the images: see _sources.py.
        batch: Images in a batch.
        shape: (C, H, W) of what comes out.
        says: In words.
        dtype: uint8, or float32: divided by 255 and normalised by MEAN and STD.
    """

    source: str
    batch: int
    shape: tuple[int, int, int]
    says: str
    dtype: str = "uint8"


WORKS = {
    "rrc224": Work("images", 64, (3, 224, 224), "RandomResizedCrop(224), hflip"),
    "rrc224_float": Work(
        "images", 64, (3, 224, 224), "RandomResizedCrop(224), hflip, normalised float32", "float32"
    ),
    "raw160_float": Work(
        "raw192",
        64,
        (3, 160, 160),
        "raw 192 x 192, RandomResizedCrop(160), hflip, normalised float32",
        "float32",
    ),
    "raw224": Work("raw224", 64, (3, 224, 224), "raw 224 x 224, as they are"),
    "raw32": Work("raw32", 512, (3, 32, 32), "raw 32 x 32, as they are"),
    "raw32_crop": Work("raw32", 512, (3, 32, 32), "raw 32 x 32, RandomCrop(32, padding=4), hflip"),
    "photos": Work("photos", 16, (3, 224, 224), "12 megapixels, RandomResizedCrop(224), hflip"),
    "eval224": Work("images", 64, (3, 224, 224), "Resize(256), CenterCrop(224)"),
    "bicubic384": Work("images", 64, (3, 384, 384), "RandomResizedCrop(384, bicubic), hflip"),
    "pairs": Work("pairs", 64, (3, 224, 224), "image and mask, RandomResizedCrop(224), hflip"),
    "randaugment": Work("images", 64, (3, 224, 224), "RandomResizedCrop(224), hflip, RandAugment"),
}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, of 0 to 1
RANDAUGMENT = "rand-m7-mstd0.5-inc1"  # timm's name; beyond 9, Pillow 13 refuses its posterize


class Job(NamedTuple):
    """One way of one peer to do one work.

    Attributes:
        work: A key of WORKS.
        way: One of the peer's WAYS.
        source: Folder of images, one folder a class; or of ``pixels.npy``, for raw works.
        out: Where the peer writes its own format, of this source.
        cores: Workers or threads.
    """

    work: str
    way: str
    source: Path
    out: Path
    cores: int

    @property
    def batch(self) -> int:
        """Images in a batch."""
        return WORKS[self.work].batch


def files(source: Path) -> list[tuple[Path, int]]:
    """The images of a folder and their labels, sorted."""
    folders = sorted(path for path in (source / "images").iterdir() if path.is_dir())
    return [
        (file, label) for label, folder in enumerate(folders) for file in sorted(folder.iterdir())
    ]


def mask_of(image: Path) -> Path:
    """The mask beside an image of the source "pairs"."""
    return image.parents[2] / "masks" / image.parent.name / f"{image.stem}.png"


def pixels(source: Path) -> Any:
    """The images of a raw source: (N, H, W, 3) uint8, mapped."""
    import numpy as np

    return np.load(source / "pixels.npy", mmap_mode="r")
