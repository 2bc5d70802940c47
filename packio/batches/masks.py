"""Masks: images of class ids, (H, W), cut and mirrored as the images that they belong to.

A mask is stored in the same position as its image: packing makes sure that both have the same size,
and an Exif orientation turns both. Resizing takes the nearest id and never mixes ids.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from packio.batches.images import Column, Made
from packio.batches.plan import Plan, Recipe
from packio.errors import DecodeError, LimitError
from packio.images import tensors
from packio.images.frames import Place
from packio.images.geometry import Geometry
from packio.images.pixels import nearest, oriented
from packio.packs.packs import Pack
from packio.packs.rows import Row
from packio.system.threads import Threads

if TYPE_CHECKING:
    from PIL import Image

_BYTES = {"1", "L", "P"}  # Pillow's modes of up to 8 bits


def decode(data: bytes, size: tuple[int, int]) -> np.ndarray:
    """Decode a mask with Pillow; palettes are ignored.

    Args:
        data: The encoded bytes.
        size: (height, width) that the mask has to have, pixels.

    Returns:
        (H, W) class ids: uint8, or int32 if ids have more than 8 bits. One-bit masks give 0 and 1.

    Raises:
        DecodeError: damaged, of another size, or of several channels.
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            _check(image, size)
            wide = image.mode not in _BYTES
            return np.array(image, np.int32 if wide else np.uint8)
    except DecodeError:
        raise
    except Exception as error:  # Pillow's plugins raise whatever their parsers meet
        raise DecodeError(f"Pillow: {type(error).__name__}: {error}") from error


def _check(image: Image.Image, size: tuple[int, int]) -> None:
    if image.mode not in _BYTES and not image.mode.startswith("I"):
        raise DecodeError(f"pixels of mode {image.mode}; expected class ids, one channel")
    if (image.height, image.width) != size:
        raise DecodeError(f"{image.width}x{image.height} pixels, its image has {size[1]}x{size[0]}")


def render(ids: np.ndarray, place: Place, ignore_index: int, out: np.ndarray) -> None:
    """Take the ids that a view shows.

    Args:
        ids: (H, W), as stored.
        place: What the view takes.
        ignore_index: Id of the border beyond the image.
        out: (out_height, out_width); all of it is written.
    """
    f = place.frame
    upright = oriented(ids[:, :, None], place.orientation)[:, :, 0]
    y, rows = _axis(f.top, f.height, f.to_height, f.out_top, f.out_height, mirrored=place.vflip)
    x, columns = _axis(f.left, f.width, f.to_width, f.out_left, f.out_width, mirrored=place.hflip)
    if len(rows) < f.out_height or len(columns) < f.out_width:
        out[...] = ignore_index
    out[y, x] = upright.take(rows, 0)[:, columns]  # indexing with both takes ten times as long


def _axis(
    start: int, length: int, to: int, out_start: int, out: int, *, mirrored: bool
) -> tuple[slice, np.ndarray]:
    """Which places of an output show the image, and which pixels of the image they show."""
    first, stop = max(0, -out_start), max(0, min(out, to - out_start))
    first = min(first, stop)
    source = start + nearest(length, to)[first + out_start : stop + out_start]
    if mirrored:
        return slice(out - stop, out - first), source[::-1]
    return slice(first, stop), source


def make(pack: Pack, plan: Plan, threads: Threads | None, but: Collection[int] = ()) -> Made:
    """Make the masks of some samples.

    Args:
        pack: Where they are read from.
        plan: Of the samples.
        threads: Threads that decode; None: this one.
        but: Slots to leave out.

    Returns:
        For each view (N, H, W), or a list of N (H, W) where they may differ in size; uint8, or
        int32 if an id or the border needs it.
    """
    recipe, rows, each_place = plan.recipe, plan.rows, plan.each_place
    views = [[torch.empty(0)] * len(rows) for _ in recipe.views]

    def work(slot: int) -> None:
        made = make_one(pack, recipe, rows[slot], each_place[slot])
        for view, mask in zip(views, made, strict=True):
            view[slot] = mask

    errors = plan.make_each(work, threads, but)
    bad = {*errors, *but}
    pairs = zip(views, recipe.views, strict=True)
    return Made([_together(view, crop, bad) for view, crop in pairs], errors)


def _together(masks: list[torch.Tensor], crop: Geometry | None, bad: Collection[int]) -> Column:
    """One tensor of the widest type among the masks, if the geometry makes all of one size."""
    size = crop.output_size if crop is not None else None
    good = [mask for slot, mask in enumerate(masks) if slot not in bad]
    if size is None or not good:
        return masks
    dtype = max((mask.dtype for mask in good), key=lambda dtype: dtype.itemsize)
    batch = tensors.new_batch((len(masks), *size), dtype)
    for slot, mask in enumerate(masks):
        if slot not in bad:
            batch[slot] = mask
    return batch


def make_one(pack: Pack, recipe: Recipe, row: Row, places: Sequence[Place]) -> list[torch.Tensor]:
    """Make the masks of one sample, (H, W), one a view; all border if the sample has none.

    Raises:
        DecodeError, IntegrityError: the mask is bad; the message names the sample.
    """
    ids = _read(pack, recipe, row)
    narrow = np.uint8 if 0 <= recipe.ignore_index < 1 << 8 else np.int32
    made = []
    for place in places:
        shape = place.frame.out_height, place.frame.out_width
        if ids is None:
            out = np.full(shape, recipe.ignore_index, narrow)
        else:
            out = np.empty(shape, np.result_type(ids, narrow))
            render(ids, place, recipe.ignore_index, out)
        made.append(torch.from_numpy(out))
    return made


def _read(pack: Pack, recipe: Recipe, row: Row) -> np.ndarray | None:
    """Class ids as stored; None where the sample has no mask.

    Raises:
        DecodeError, IntegrityError: see `make_one`.
    """
    data = pack.mask(row.position)
    if not data:
        return None
    try:
        if row.height * row.width > recipe.decoder.max_pixels:
            raise LimitError(
                f"{row.width}x{row.height} pixels, the limit is {recipe.decoder.max_pixels:,}"
            )
        return decode(data, (row.height, row.width))
    except DecodeError as error:
        raise pack.named(error, row, "mask of sample") from error
