"""packio: packs of each format, through torch's DataLoader, and through packio's Loader.

A way is named by what makes the batches (``threads`` of the main process, or ``workers``, for
DataLoader; threads that work ahead, for ``Loader``), the bytes (``kept`` as they are, ``dct`` with
open coefficients), the fidelity, and the format; ``simplejpeg`` before the format means decoded by
that library instead of packio's native core, ``core`` augmented by the core instead of Pillow. Raw
pixels: ``gather`` makes batches in the main process, in one tensor that is reused, or in new ones,
in torch's own threads, as many as cores, or in one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _contract import MEAN, RANDAUGMENT, STD, WORKS, Job, pixels
from torch.utils.data import DataLoader

import packio

_MAIN = (
    "threads kept fast lmdb", "threads kept exact lmdb",
    "workers kept fast lmdb", "workers kept exact lmdb",
)  # fmt: skip
_LOADER = ("Loader kept fast lmdb", "Loader kept exact lmdb")
_OPEN = ("threads dct exact lmdb", "workers dct exact lmdb", "Loader dct exact lmdb")
_WITHOUT_CORE = ("threads kept exact simplejpeg lmdb", "Loader kept exact simplejpeg lmdb")
_OTHERS = tuple(
    f"threads kept exact {name}" for name in ("tar", "h5", "tfrecord", "pth", "rec", "n5", "zarr")
)
_RAW = (
    "gather reused threads lmdb", "gather reused one lmdb", "gather new threads lmdb",
    "workers raw lmdb",
)  # fmt: skip
WAYS = {
    "rrc224": (*_MAIN, *_LOADER, *_OPEN, *_WITHOUT_CORE, *_OTHERS),
    **dict.fromkeys(("photos", "eval224", "bicubic384", "pairs"), (*_MAIN, _WITHOUT_CORE[0])),
    "randaugment": (_MAIN[3], "workers kept exact core lmdb", "Loader kept exact core lmdb"),
    "rrc224_float": (_LOADER[1], _MAIN[3]),
    "raw160_float": ("Loader raw lmdb", "workers raw lmdb"),
    **dict.fromkeys(("raw224", "raw32", "raw32_crop"), _RAW),
}
_CROP = {"crop": packio.RandomResizedCrop(224), "hflip": 0.5}
_FLOATS = {"hflip": 0.5, "transform": packio.Normalize(MEAN, STD)}
OPTIONS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("rrc224", "photos", "pairs", "randaugment"), _CROP),
    "rrc224_float": {"crop": packio.RandomResizedCrop(224), **_FLOATS},
    "raw160_float": {"crop": packio.RandomResizedCrop(160), **_FLOATS},
    "eval224": {"crop": packio.ResizeCenterCrop(224)},
    "bicubic384": {
        "crop": packio.RandomResizedCrop(384, interpolation="bicubic"), "hflip": 0.5,
    },
    "raw32_crop": {"crop": packio.RandomCrop(32, padding=4), "hflip": 0.5},
}  # fmt: skip


def versions() -> dict[str, str]:
    """What was measured."""
    names = ("torch", "simplejpeg", "opencv-python-headless", "lmdb", "numpy")
    return {"packio": packio.__version__, **{name: version(name) for name in names}}


def pack_of(job: Job) -> Path:
    """The pack of a way."""
    words = job.way.split()
    stored = "raw" if job.work.startswith("raw") else words[1]
    return job.out / f"{stored}.{words[-1]}"


def prepare(job: Job) -> None:
    """Pack, unless it is there."""
    path = pack_of(job)
    if path.exists():
        return
    if path.stem == "raw":
        packio.pack(raw_samples(job), path)
    else:
        source = job.source if job.work == "pairs" else job.source / "images"
        packio.pack(source, path, encode="dct" if path.stem == "dct" else "keep")


def stored(job: Job) -> int:
    """Bytes of the pack."""
    path = pack_of(job)
    files = [path] if path.is_file() else list(path.iterdir())
    return sum(file.stat().st_size for file in files)


def raw_samples(job: Job) -> list[packio.Sample]:
    """Raw images as (C, H, W), as training wants them."""
    images = pixels(job.source)
    side = images.shape[1]
    return [
        packio.Sample(
            i, f"{i:06d}", np.ascontiguousarray(image.transpose(2, 0, 1)).tobytes(), "raw",
            i % 10, side, side,
        )
        for i, image in enumerate(images)
    ]  # fmt: skip


def epochs(job: Job) -> Callable[[], Iterable[Any]]:
    """A DataLoader, a Loader, or gather."""
    how, what, *_ = job.way.split()
    options = dict(OPTIONS.get(job.work, {}))
    if what in ("kept", "dct"):
        options["fidelity"] = job.way.split()[2]
    if "simplejpeg" in job.way:
        options["decoder"] = "simplejpeg"
    if job.work == "pairs":
        options["fields"] = ("image", "mask")
    if "core" in job.way.split():
        options["transform"] = packio.TimmRandAugment(RANDAUGMENT)
    elif job.work == "randaugment":
        options.update(output="pil", transform=randaugment())
    threads = 1 if how == "workers" else job.cores
    ds = packio.PackDataset(pack_of(job), threads=threads, **options)
    if how == "gather":
        torch.set_num_threads(1 if "one" in job.way else job.cores)
        return gathered(ds, job, reused=what == "reused")
    if how == "Loader":
        ahead = packio.Loader(ds, job.batch, shuffle=True, drop_last=True)
        return lambda: ahead
    workers = job.cores if how == "workers" else 0
    loader = DataLoader(
        ds, batch_size=job.batch, shuffle=True, drop_last=True, num_workers=workers,
        persistent_workers=bool(workers), collate_fn=packio.collate,
    )  # fmt: skip
    return lambda: loader


def gathered(ds: packio.PackDataset, job: Job, *, reused: bool) -> Callable[[], Iterable[Any]]:
    """Batches of a random order, without a DataLoader."""
    shape = (job.batch, *WORKS[job.work].shape)
    out = torch.empty(shape, dtype=torch.uint8) if reused else None

    def epoch() -> Iterator[Any]:
        order = np.random.default_rng().permutation(len(ds))
        for start in range(0, len(ds) - job.batch + 1, job.batch):
            yield ds.gather(order[start : start + job.batch], out=out)

    return epoch


def randaugment() -> Callable[[Any], torch.Tensor]:
    """Timm's, then a tensor."""
    from timm.data.auto_augment import rand_augment_transform
    from torchvision.transforms.functional import pil_to_tensor

    augment = rand_augment_transform(RANDAUGMENT, {"translate_const": 100})
    return lambda image: pil_to_tensor(augment(image))
