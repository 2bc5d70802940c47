"""TurboLoader: a tar of JPEGs, or its own file of raw pixels, by its C++ threads.

It makes normalised float32, and no uint8 batches. Its resizing is not that of Pillow or
torchvision, an image that it cannot read is a batch's row of zeros, and labels are not in its
batches. Its raw files are made of JPEGs, here of quality 95.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from typing import Any

import turboloader
from _contract import WORKS, Job, files, pixels
from PIL import Image

WAYS = {"rrc224_float": ("train_aug",), "raw160_float": ("TBL, train_aug",)}


def versions() -> dict[str, str]:
    """What was measured."""
    return {name: version(name) for name in ("turboloader", "numpy")}


def prepare(job: Job) -> None:
    """Write a tar, and of raw pixels the file that TurboLoader makes of one."""
    tar, is_raw = job.out / "images.tar", job.work.startswith("raw")
    if not tar.exists():
        with tarfile.open(tar, "w") as file:
            for name, data in encoded(job) if is_raw else kept(job):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                file.addfile(member, io.BytesIO(data))
    if is_raw and not (job.out / "images.tbl").exists():
        side = pixels(job.source).shape[1]
        turboloader.preprocess_to_tbl(
            str(tar), str(job.out / "images.tbl"), side, num_workers=job.cores
        )


def kept(job: Job) -> Iterator[tuple[str, bytes]]:
    """Names and bytes of the image files."""
    for number, (path, _) in enumerate(files(job.source)):
        yield f"{number:06d}.jpg", path.read_bytes()


def encoded(job: Job) -> Iterator[tuple[str, bytes]]:
    """Raw images as JPEGs."""
    for number, image in enumerate(pixels(job.source)):
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "jpeg", quality=95, subsampling="4:4:4")
        yield f"{number:06d}.jpg", buffer.getvalue()


def epochs(job: Job) -> Callable[[], Iterable[Any]]:
    """Its DataLoader, which shuffles by the epoch's number."""
    loader = turboloader.DataLoader(
        str(job.out / ("images.tbl" if job.work.startswith("raw") else "images.tar")),
        batch_size=job.batch, num_workers=job.cores, shuffle=True, drop_last=True,
        image_size=WORKS[job.work].shape[1], train_aug=True, output_format="numpy_chw",
        transform=turboloader.ImageNetNormalize(),
    )  # fmt: skip
    numbers = iter(range(1 << 30))

    def epoch() -> Iterable[Any]:
        loader.set_epoch(next(numbers))
        return loader

    return epoch
