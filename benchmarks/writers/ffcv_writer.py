"""FFCV's DatasetWriter, two processes: bytes as they are, or images encoded anew as JPEG 90."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from _turn import images, read, take
from ffcv.fields import BytesField, IntField, RGBImageField
from ffcv.writer import DatasetWriter
from PIL import Image


class Images:
    """Images and labels as FFCV's writer takes them.

    Args:
        source: Folder of class folders.
        decode: Give images of Pillow, as torchvision's ImageFolder does; else bytes.
    """

    def __init__(self, source: str, *, decode: bool) -> None:
        self._images, self._decode = images(source), decode

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, label = self._images[index]
        if self._decode:
            return Image.open(path).convert("RGB"), label
        return np.frombuffer(read(path), np.uint8), label


def keep(given: argparse.Namespace) -> None:
    """Bytes as they are: its loader has no decoder for them."""
    write(given, BytesField(), decode=False)


def jpg(given: argparse.Namespace) -> None:
    """As its documentation has it; long sides of so many pixels at most, if any are asked for."""
    field = RGBImageField(write_mode="jpg", max_resolution=given.side, jpeg_quality=90)
    write(given, field, decode=True)


def write(given: argparse.Namespace, field: Any, *, decode: bool) -> None:
    """Write a dataset."""
    writer = DatasetWriter(given.out, {"image": field, "label": IntField()}, num_workers=2)
    writer.from_indexed_dataset(Images(given.source, decode=decode))


if __name__ == "__main__":
    take({"keep": keep, "jpg": jpg}, "ffcv", "Pillow", "opencv-python", "opencv-python-headless")
