"""A loop over Pillow: open, resize bilinearly as packio does, save as JPEG 90; a file an image."""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os

import PIL.JpegImagePlugin  # noqa: F401 (Pillow imports it on use)
from _turn import images, take
from PIL import Image


def shrink(found: tuple[str, int], out: str, side: int) -> None:
    """Write one image with a short side of so many pixels, unless it is smaller."""
    path, label = found
    image = Image.open(path).convert("RGB")
    short = min(image.size)
    if short > side:
        width, height = (side * n // short for n in image.size)
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    image.save(os.path.join(out, str(label), os.path.basename(path)), "JPEG", quality=90)


def prepared(given: argparse.Namespace) -> list[tuple[str, int]]:
    """What is to be done, and folders to do it in."""
    found = images(given.source)
    for label in {label for _, label in found}:
        os.makedirs(os.path.join(given.out, str(label)))
    return found


def loop(given: argparse.Namespace) -> None:
    """One process."""
    for image in prepared(given):
        shrink(image, given.out, given.side)


def pool(given: argparse.Namespace) -> None:
    """Two processes."""
    work = functools.partial(shrink, out=given.out, side=given.side)
    with multiprocessing.Pool(2) as processes:
        processes.map(work, prepared(given), chunksize=20)


if __name__ == "__main__":
    take({"loop": loop, "pool": pool}, "Pillow")
