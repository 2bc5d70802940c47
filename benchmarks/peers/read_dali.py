"""DALI on the CPU: its file reader, decoding only what is cropped, and threads of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from typing import Any

import numpy as np
from _contract import WORKS, Job, files, mask_of, pixels
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.auto_aug import rand_augment

WAYS = {
    **dict.fromkeys(("rrc224", "photos", "bicubic384", "randaugment"), ("fused crop",)),
    "eval224": ("full decode",),
    "raw224": ("numpy reader",),
    "pairs": ("fused crop",),
}
AHEAD = 2  # batches that a pipeline makes ahead, as by default


def versions() -> dict[str, str]:
    """What was measured."""
    return {"nvidia-dali-cuda120": version("nvidia-dali-cuda120"), "numpy": np.__version__}


def prepare(job: Job) -> None:
    """DALI reads image files as they are; raw pixels as .npy files."""
    if job.work == "raw224" and not (job.out / "00000.npy").exists():
        for number, image in enumerate(pixels(job.source)):
            np.save(job.out / f"{number:05d}.npy", image)


def epochs(job: Job) -> Callable[[], Iterable[Any]]:
    """A pipeline, run as often as an epoch has batches."""
    pipe = _PIPELINES[job.work](job)
    pipe.build()
    count = pipe.epoch_size("Reader") // job.batch

    def epoch() -> Iterator[tuple[np.ndarray, ...]]:
        # A pipeline does not stop at an epoch's end: it makes AHEAD batches more, in nobody's
        # time. An epoch begins by throwing those away, and so pays for all that it counts.
        for _ in range(AHEAD):
            pipe.run()
        for _ in range(count):
            yield tuple(np.asarray(out.as_tensor()) for out in pipe.run())

    return epoch


def _pipeline(define: Callable[..., Any]) -> Callable[[Job], Any]:
    """A pipeline of CPU operators, for a job."""
    made = pipeline_def(enable_conditionals=define is _augmented)(define)
    return lambda job: made(
        job, batch_size=job.batch, num_threads=job.cores, device_id=None,
        prefetch_queue_depth=AHEAD, seed=0,
    )  # fmt: skip


def _read(job: Job, masks: list[str] | None = None) -> Any:
    found = files(job.source)  # DALI rewrites this function, and knows no zip(strict=...)
    paths, labels = masks or [str(path) for path, _ in found], [label for _, label in found]
    return fn.readers.file(
        files=paths, labels=labels, random_shuffle=True,
        initial_fill=1024, seed=1, name="Masks" if masks else "Reader",
    )  # fmt: skip


def _crop_and_resize(job: Job, data: Any) -> Any:
    _, height, width = WORKS[job.work].shape
    images = fn.decoders.image_random_crop(
        data, device="cpu", output_type=types.RGB, random_area=[0.08, 1.0],
        random_aspect_ratio=[3 / 4, 4 / 3],
    )  # fmt: skip
    kind = types.INTERP_CUBIC if job.work == "bicubic384" else types.INTERP_LINEAR
    return fn.resize(images, resize_x=width, resize_y=height, interp_type=kind, antialias=True)


def _planes(images: Any, **options: Any) -> Any:
    return fn.crop_mirror_normalize(
        images, dtype=types.UINT8, output_layout="CHW", mean=[0.0], std=[1.0], **options
    )


def _cropped(job: Job) -> Any:
    data, labels = _read(job)
    return _planes(_crop_and_resize(job, data), mirror=fn.random.coin_flip()), labels


def _augmented(job: Job) -> Any:
    data, labels = _read(job)
    images = fn.flip(_crop_and_resize(job, data), horizontal=fn.random.coin_flip())
    # of 31 magnitudes 21 is what 7 of 10 is to timm
    return fn.transpose(rand_augment.rand_augment(images, n=2, m=21), perm=[2, 0, 1]), labels


def _central(job: Job) -> Any:
    data, labels = _read(job)
    images = fn.decoders.image(data, device="cpu", output_type=types.RGB)
    images = fn.resize(images, resize_shorter=256, antialias=True)
    return _planes(images, crop=(224, 224)), labels


def _raw(job: Job) -> Any:
    names = sorted(path.name for path in job.out.iterdir() if path.suffix == ".npy")
    images = fn.readers.numpy(
        file_root=str(job.out), files=names, random_shuffle=True, name="Reader"
    )
    return fn.transpose(images, perm=[2, 0, 1])


def _pairs(job: Job) -> Any:
    data, _ = _read(job)
    masks, _ = _read(job, [str(mask_of(path)) for path, _ in files(job.source)])
    anchor, shape = fn.random_crop_generator(
        fn.peek_image_shape(data), random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3]
    )
    mirror = fn.random.coin_flip()
    box = {"start": anchor, "shape": shape, "axes": (0, 1), "device": "cpu"}
    images = fn.decoders.image_slice(data, output_type=types.RGB, **box)
    masks = fn.decoders.image_slice(masks, output_type=types.GRAY, **box)
    images = fn.resize(images, size=(224, 224), antialias=True)
    masks = fn.resize(masks, size=(224, 224), interp_type=types.INTERP_NN)
    return _planes(images, mirror=mirror), fn.flip(masks, horizontal=mirror)


_PIPELINES = {
    **dict.fromkeys(("rrc224", "photos", "bicubic384"), _pipeline(_cropped)),
    "randaugment": _pipeline(_augmented),
    "eval224": _pipeline(_central),
    "raw224": _pipeline(_raw),
    "pairs": _pipeline(_pairs),
}
