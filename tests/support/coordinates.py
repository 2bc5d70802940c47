"""Images that tell where each of their pixels lies, with masks and boxes that do, too.

A pixel at (y, x) of a stored image is (x + 1, y + 1, 200); black is beyond the image. Its mask says
`id_at` of the same place. So what a dataset hands out can be checked pixel by pixel, whatever was
drawn.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

import packio

if TYPE_CHECKING:
    import pathlib

    import torch

_ORIENTATION = 0x0112  # Exif tag
BOXES = np.array([[3, 4, 20, 14], [10, 0, 31, 9], [0, 15, 5, 24], [7, 7, 8, 8]], np.float32)
LABELS = np.array([11, 12, 13, 14])


def id_at(x: Any, y: Any, *, wide: bool) -> Any:
    """Class id of a place in the stored mask: 16 bits, or 8."""
    return (y * 64 + x) * 7 + 256 if wide else (x * 3 + y * 5) % 250


def image_of(height: int, width: int) -> np.ndarray:
    """(H, W, 3) uint8 pixels."""
    y, x = np.mgrid[:height, :width]
    return np.stack([x + 1, y + 1, np.full_like(x, 200)], axis=2).astype(np.uint8)


def mask_of(height: int, width: int, *, wide: bool) -> np.ndarray:
    """(H, W) uint8 or uint16 ids."""
    y, x = np.mgrid[:height, :width]
    return np.asarray(id_at(x, y, wide=wide), np.uint16 if wide else np.uint8)


def png(pixels: np.ndarray, orientation: int = 1) -> bytes:
    """A PNG, with an Exif orientation if it is not 1."""
    exif, file = Image.Exif(), io.BytesIO()
    if orientation != 1:
        exif[_ORIENTATION] = orientation
    Image.fromarray(pixels).save(file, "PNG", exif=exif)
    return file.getvalue()


def samples(
    sizes: tuple[tuple[int, int], ...] = ((33, 41), (40, 28)),
    orientations: tuple[int, ...] = tuple(range(1, 9)), *, wide: bool = False,
) -> list[dict[str, Any]]:  # fmt: skip
    """What `packio.pack` takes: a sample of each size and orientation."""
    return [
        {
            "key": f"{number:02d}.png",
            "image": png(image_of(*size), orientation),
            "mask": png(mask_of(*size, wide=wide)),
            "label": number,
            "boxes": BOXES[: number % 5],
            "box_labels": LABELS[: number % 5],
            "where": f"place {number}",
        }
        for number, (size, orientation) in enumerate((s, o) for s in sizes for o in orientations)
    ]


def stored_places(image: torch.Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return x and y of each pixel in the stored image, and whether it is of the image at all."""
    r, g, b = image.numpy().astype(int)
    return r - 1, g - 1, b > 0


def packed(folder: pathlib.Path, suffix: str) -> pathlib.Path:
    """A pack of `samples`, of a format."""
    return packio.pack(samples(), folder / f"a{suffix}", boxes_frame="stored").out
