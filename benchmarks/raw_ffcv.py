"""FFCV's part of raw.py, for a Python that has FFCV.

It writes the names of what it can time, as JSON; then, for each name that it reads, the seconds
that all images took, by the clock and of the processor. An empty line ends it.

    python raw_ffcv.py FOLDER BATCHES
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ffcv.fields import RGBImageField
from ffcv.fields.decoders import SimpleRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import RandomHorizontalFlip, RandomTranslate, ToTensor, ToTorchImage
from ffcv.writer import DatasetWriter


class Images:
    """Pixels as FFCV's writer takes them: (H, W, 3) each, in a tuple."""

    def __init__(self, path: Path) -> None:
        self._pixels = np.load(path, mmap_mode="r")

    def __len__(self) -> int:
        return len(self._pixels)

    def __getitem__(self, index: int) -> tuple[np.ndarray]:
        return (np.asarray(self._pixels[index]),)


def loader(folder: Path, side: int, batch: int, steps: list[Any], *, last: bool) -> Any:
    """A loader of FFCV's with one worker, in random order."""
    path = folder / f"raw{side}.beton"
    if not path.exists():
        images = Images(folder / f"raw{side}.npy")
        writer = DatasetWriter(str(path), {"image": RGBImageField(write_mode="raw")}, num_workers=1)
        writer.from_indexed_dataset(images)
    pipeline = [SimpleRGBImageDecoder(), *steps, ToTensor(), ToTorchImage(channels_last=last)]
    return Loader(
        str(path), batch_size=batch, num_workers=1, order=OrderOption.RANDOM, os_cache=True,
        drop_last=True, pipelines={"image": pipeline},
    )  # fmt: skip


def main() -> None:
    """Answer what is asked."""
    folder, sizes = Path(sys.argv[1]), json.loads(sys.argv[2])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the writer draws progress
    torch.set_num_threads(1)
    runs = {}
    for last in (True, False):
        form = "view" if last else "contiguous"
        for side in map(int, sizes):
            made = loader(folder, side, sizes[str(side)], [], last=last)
            runs[f"gather {side}, {form}"] = side, made
        augmentations = [RandomHorizontalFlip(), RandomTranslate(padding=4)]
        made = loader(folder, 32, sizes["32"], augmentations, last=last)
        runs[f"crop + flip 32, {form}"] = 32, made
    print(json.dumps([(name, side) for name, (side, _) in runs.items()]), file=answers, flush=True)
    while name := sys.stdin.readline().strip():
        clock, processor = time.perf_counter(), time.process_time()
        for _ in runs[name][1]:
            pass
        seconds = time.perf_counter() - clock, time.process_time() - processor
        print(json.dumps(seconds), file=answers, flush=True)


if __name__ == "__main__":
    main()
