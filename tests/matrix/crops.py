"""Crops, told as plain numbers, that Pillow makes of described samples; and the size of a bucket.

A crop is what `packio replay --json` prints of it: a dict of ``top, left, height, width`` (a box of
the upright image, pixels), ``to_height, to_width`` (the size that the box is resized to),
``out_top, out_left, out_height, out_width`` (what of the result is shown), ``hflip, vflip``.
"""

from __future__ import annotations

import io
import math
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch.nn.functional import interpolate

Crop = dict[str, Any]
Size = tuple[int, int]  # (height, width), pixels

_ORIENTATION = 0x0112  # Exif tag
IGNORED = 255  # class id beyond a mask
_CLOSE = 2  # grey levels between Pillow's antialiased resizing and PyTorch's


def upright(data: bytes) -> Image.Image:
    """An image as Pillow decodes and turns it, RGB."""
    with Image.open(io.BytesIO(data)) as image:
        return ImageOps.exif_transpose(image).convert("RGB")


def upright_beside(field: bytes, image: bytes) -> Image.Image:
    """A mask or a further image, gray, as the Exif orientation of its image turns it."""
    with Image.open(io.BytesIO(image)) as turned, Image.open(io.BytesIO(field)) as gray:
        copy = gray.copy()
        copy.getexif()[_ORIENTATION] = turned.getexif().get(_ORIENTATION, 1)
        return ImageOps.exif_transpose(copy)


def told(placement: Any) -> Crop:
    """A crop as plain numbers."""
    flips = {"hflip": bool(placement.hflip), "vflip": bool(placement.vflip)}
    return {**placement.frame._asdict(), **flips}


def difference(crop: Crop, image: Image.Image, seen: Any) -> str:
    """What tells an image or a mask that was made from the crop that Pillow makes; "" if nothing.

    Args:
        crop: What is taken.
        image: Upright; "RGB", or a mask.
        seen: (3, H, W) or (H, W) tensor, uint8.
    """
    is_mask = image.mode != "RGB"
    wanted = _shown(crop, image, is_mask=is_mask)
    found = seen.numpy() if is_mask else seen.numpy().transpose(1, 2, 0)
    if found.shape != wanted.shape:
        return f"shape {found.shape}, not {wanted.shape}"
    is_resized = (crop["height"], crop["width"]) != (crop["to_height"], crop["to_width"])
    most = np.abs(found.astype(int) - wanted).max()
    if most > (_CLOSE if is_resized and not is_mask else 0):
        return f"it differs by {most} from what Pillow makes of the box {crop}"
    return ""


def _shown(crop: Crop, image: Image.Image, *, is_mask: bool) -> np.ndarray:
    """What a crop shows, by Pillow, (H, W, 3) or (H, W) ints."""
    top, left = crop["top"], crop["left"]
    size = (crop["to_width"], crop["to_height"])
    box = image.crop((left, top, left + crop["width"], top + crop["height"]))
    if box.size != size:
        box = _nearest(box, size) if is_mask else box.resize(size, Image.Resampling.BILINEAR)
    out = Image.new(image.mode, (crop["out_width"], crop["out_height"]), IGNORED * is_mask)
    out.paste(box, (-crop["out_left"], -crop["out_top"]))
    out = ImageOps.mirror(out) if crop["hflip"] else out
    return np.array(ImageOps.flip(out) if crop["vflip"] else out, int)


def _nearest(mask: Image.Image, size: tuple[int, int]) -> Image.Image:
    """A mask of another width and height, as torchvision resizes masks; Pillow rounds otherwise."""
    ids = torch.from_numpy(np.array(mask))[None, None]
    return Image.fromarray(interpolate(ids, size[::-1], mode="nearest")[0, 0].numpy())


def bucket_of(image: Size, sizes: list[Size]) -> Size:
    """The size whose ratio is nearest to an image's; of one ratio, the largest that it covers."""
    height, width = image

    def distance(size: Size) -> float:
        return abs(math.log(width / height) - math.log(size[1] / size[0]))

    nearest = min(sizes, key=distance)
    alike = [s for s in sizes if Fraction(*s) == Fraction(*nearest)]
    fit = [s for s in alike if s[0] <= height and s[1] <= width]
    return max(fit) if fit else min(alike)


def box_of(image: Size, size: Size) -> Size:
    """Height and width of the largest box of an image that has the ratio of a size."""
    (height, width), (high, broad) = image, size
    if width * high >= height * broad:
        return height, min(width, max(1, round(height * broad / high)))
    return min(height, max(1, round(width * high / broad))), width
