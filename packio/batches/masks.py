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

from packio.batches import columns
from packio.batches.columns import Column, Made
from packio.batches.plan import Plan, Recipe
from packio.errors import DecodeError, LimitError
from packio.images.frames import Place
from packio.images.pixels import nearest, oriented
from packio.packs.packs import Pack
from packio.packs.rows import Row, Rows
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


def make(
    pack: Pack, plan: Plan, rows: Rows, name: str, threads: Threads | None,
    but: Collection[int] = (),
) -> Made:  # fmt: skip
    """Make the masks of some samples.

    Args:
        pack: Where they are read from.
        plan: Of the samples' images.
        rows: The samples' masks.
        name: Of the field.
        threads: Threads that decode; None: this one.
        but: Slots to leave out.

    Returns:
        For each view (N, H, W), or a list of N (H, W) where they differ in size; uint8, or int32
        if an id or the border needs it.
    """
    recipe, images, each_place = plan.recipe, plan.rows, plan.each_place

    def one(slot: int) -> list[torch.Tensor]:
        return make_one(pack, recipe, images[slot], rows[slot], name, each_place[slot])

    made = columns.make(Plan(recipe, rows, plan.places), one, threads, but)
    return made._replace(views=[widened(view) for view in made.views])


def widened(column: Column) -> Column:
    """Masks of one type: int32, if any of them is."""
    if isinstance(column, torch.Tensor):
        return column
    if not any(mask is not None and mask.dtype == torch.int32 for mask in column):
        return column
    wide = [None if mask is None else mask.to(torch.int32) for mask in column]
    bad = [slot for slot, mask in enumerate(wide) if mask is None]
    return columns.together(wide, bad)


def make_one(
    pack: Pack, recipe: Recipe, image: Row, row: Row, name: str, places: Sequence[Place]
) -> list[torch.Tensor]:
    """Make the masks of one sample, (H, W), one a view; all border if the sample has none.

    Args:
        pack: Where the mask is read from.
        recipe: What to make.
        image, row: The image and the mask of the sample.
        name: Of the field.
        places: Of the image, one a view.

    Raises:
        DecodeError, IntegrityError: the mask is bad; the message names the sample.
    """
    ids = None if row.offset < 0 else _read(pack, recipe, image, row, name)
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


def _read(pack: Pack, recipe: Recipe, image: Row, row: Row, name: str) -> np.ndarray | None:
    """Class ids as stored; None where the mask is empty.

    Raises:
        DecodeError, IntegrityError: see `make_one`.
    """
    data = pack.read(row, name)
    if not data:
        return None
    try:
        if image.height * image.width > recipe.decoder.max_pixels:
            raise LimitError(
                f"{image.width}x{image.height} pixels, the limit is {recipe.decoder.max_pixels:,}"
            )
        return decode(data, (image.height, image.width))
    except DecodeError as error:
        raise pack.named(error, row, f"{name} of sample") from error
