"""packio.decode beside a dataset, simplejpeg and torchcodec: microseconds of a processor.

Candidates take turns within a process, without threads: images whole, their random crops of 224
pixels, and the middle, from bytes in memory. "simplejpeg" and "torchcodec", left out where it does
not load, decode whole images; torch cuts the boxes of the same crops and resizes them. "one"
decodes image by image, "list" 64 of them. "ratio": of the rounds, to "list" of the same task.

    python benchmarks/decoding.py [--images FOLDER] [--rounds 7] [--save]
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _results
import simplejpeg
import torch

import packio

try:
    from torchcodec.decoders import decode_image
except (ImportError, OSError, RuntimeError):  # not there, or not of this torch's build
    decode_image = None

TASKS: dict[str, Any] = {
    "whole": None,
    "random crop": packio.RandomResizedCrop(224),
    "middle": packio.ResizeCenterCrop(224),
}


def by_simplejpeg(data: bytes, crop: Any) -> torch.Tensor:
    """Decode by simplejpeg, and resize by torch."""
    return resized(torch.from_numpy(simplejpeg.decode_jpeg(data)).permute(2, 0, 1), crop)


def by_torchcodec(data: bytes, crop: Any) -> torch.Tensor:
    """Decode by torchcodec, and resize by torch."""
    return resized(decode_image(data), crop)


def resized(image: torch.Tensor, crop: Any) -> torch.Tensor:
    """Cut the box of a crop out of a whole image, and resize it by torch."""
    if crop is None:
        return image.contiguous()
    f = crop.frame(*image.shape[1:], [random.random() for _ in range(crop.draws)])
    box = image[None, :, f.top : f.top + f.height, f.left : f.left + f.width]
    size = f.to_height, f.to_width
    resized = torch.nn.functional.interpolate(box, size, mode="bilinear", antialias=True)[0]
    bottom, right = f.out_top + f.out_height, f.out_left + f.out_width
    return resized[:, f.out_top : bottom, f.out_left : right].contiguous()


def is_plain(data: bytes) -> bool:
    """Whether simplejpeg decodes an image, too."""
    try:
        simplejpeg.decode_jpeg(data)
    except ValueError:
        return False
    return True


def main() -> None:
    """Measure all candidates in turns."""
    parser = _results.parser(__doc__, rounds=7)
    parser.add_argument("--images", type=Path, help="a folder of class folders; else made ones")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        images = _results.photographs(given.images, Path(folder) / "images", 128)
        packio.pack(images, Path(folder) / "pack.lmdb", seek_points=False)
        plain = packio.LmdbDataset(Path(folder) / "pack.lmdb", fields="image", threads=1)
        datas = [plain.pack.read(plain.pack.row(i)) for i in range(128)]
        datas = [data for data in datas if is_plain(data)]
        parts = [range(i, min(i + 64, len(datas))) for i in range(0, len(datas), 64)]
        for task, crop in TASKS.items():
            ds = plain.with_options(crop=crop)
            candidates: dict[str, Callable[[], Any]] = {
                "list": lambda crop=crop: [
                    packio.decode([datas[i] for i in part], crop, threads=1) for part in parts
                ],
                "one": lambda crop=crop: [packio.decode(data, crop) for data in datas],
                "dataset": lambda ds=ds: [ds.gather(list(part)) for part in parts],
                "simplejpeg": lambda crop=crop: [by_simplejpeg(data, crop) for data in datas],
            }
            if decode_image is not None:
                candidates["torchcodec"] = lambda crop=crop: [
                    by_torchcodec(data, crop) for data in datas
                ]
            for turn in range(given.rounds + 1):
                for name, run in candidates.items():
                    begin = time.process_time()
                    run()
                    took = (time.process_time() - begin) / len(datas) * 1e6
                    if turn:  # the first is not counted
                        found.setdefault(f"{task}: {name}", []).append(took)
    mean = round(sum(map(len, datas)) / len(datas))
    result: dict[str, Any] = {
        "machine": _results.machine("torch", "simplejpeg", "torchcodec", bytes_an_image=mean),
        "microseconds": {name: _results.summary(values, 0) for name, values in found.items()},
        "ratio": {
            name: _results.summary(_results.ratios(values, found[f"{name.split(':')[0]}: list"]), 2)
            for name, values in found.items()
        },
    }
    _results.finish("decoding", result, keep=given.save)


if __name__ == "__main__":
    main()
