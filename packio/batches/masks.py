"""Masks: images of class ids, (H, W), cut and mirrored as the images that they belong to.

A mask is stored in the same position as its image: packing makes sure that both have the same size,
and an Exif orientation turns both. Resizing takes the nearest id and never mixes ids.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch

from packio.batches import columns
from packio.batches.columns import BatchField, FieldColumn
from packio.batches.framing import Framing, Settings
from packio.errors import DecodeError, Decoding, LimitError
from packio.images import encodings, png
from packio.images.decoders import pillow
from packio.images.frames import Placement, orient
from packio.images.pixels import nearest
from packio.packs.opening import Pack
from packio.packs.table import Row, RowList
from packio.system.threads import Threads

_BYTES = {"1", "L", "P"}  # Pillow's modes of up to 8 bits
_OF_IDS = frozenset({png.GRAY, png.PALETTE})  # colour types


def decode(data: bytes, size: tuple[int, int]) -> np.ndarray:
    """Decode a mask of a size in pixels to (H, W) class ids; palettes are ignored.

    uint8, or int32 if ids have more than 8 bits; one-bit masks give 0 and 1. `packio.images.png`
    decodes plain PNGs of 8 bits, in a third of Pillow's time (``benchmarks/png.py``).
    """
    ids = png.decode(data, _OF_IDS, size)
    return decode_with_pillow(data, size) if ids is None else ids[:, :, 0]


def decode_with_pillow(data: bytes, size: tuple[int, int]) -> np.ndarray:
    with Decoding("Pillow: "), encodings.open_image(data) as image:
        if not encodings.has_class_ids(image):
            raise DecodeError(f"pixels of mode {image.mode}; expected class ids, one channel")
        if (image.height, image.width) != size:
            own = f"{image.width}x{image.height}"
            raise DecodeError(f"{own} pixels, its image has {size[1]}x{size[0]}")
        ids = pillow.pixels_of(image)
        if image.mode not in _BYTES:
            return ids.astype(np.int32)
        ids = ids.view(np.uint8)
        return np.minimum(ids, 1, out=ids) if image.mode == "1" else ids  # Pillow's True is 255


def render(ids: np.ndarray, placement: Placement, ignore_index: int, out: np.ndarray) -> None:
    """Take the ids that a view shows, of (H, W) as stored."""
    f = placement.frame
    upright = orient(ids[:, :, None], placement.orientation)[:, :, 0]
    y, rows = _axis(f.top, f.height, f.to_height, f.out_top, f.out_height, mirrored=placement.vflip)
    x, columns = _axis(
        f.left, f.width, f.to_width, f.out_left, f.out_width, mirrored=placement.hflip
    )
    if len(rows) < f.out_height or len(columns) < f.out_width:
        out[...] = ignore_index
    out[y, x] = upright.take(rows, 0)[:, columns]  # indexing with both takes ten times as long


def _axis(
    start: int, length: int, to: int, out_start: int, out: int, *, mirrored: bool
) -> tuple[slice, np.ndarray]:
    """Which placements of an output show the image, and which pixels of the image they show."""
    first, stop = max(0, -out_start), max(0, min(out, to - out_start))
    first = min(first, stop)
    source = start + nearest(length, to)[first + out_start : stop + out_start]
    if mirrored:
        return slice(out - stop, out - first), source[::-1]
    return slice(first, stop), source


def make(
    pack: Pack, framing: Framing, rows: RowList, name: str, threads: Threads | None,
    but: Collection[int] = (),
) -> BatchField:  # fmt: skip
    """Make the masks of some samples: for each view (N, H, W), or N (H, W) that differ in size.

    uint8, or int32 if an id or the border needs it.
    """
    settings, images, each_placement = framing.settings, framing.rows, framing.each_placement

    def one(slot: int) -> list[torch.Tensor]:
        return make_one(pack, settings, images[slot], rows[slot], name, each_placement[slot])

    made = columns.make(rows, one, threads, but)
    return made._replace(views=[widen([view])[0] for view in made.views])


def widen(parts: Sequence[FieldColumn]) -> list[FieldColumn]:
    """Give all masks of some columns the type int32 if one of them has it: ids of over 8 bits."""
    each: list[list[Any]] = [[part] if isinstance(part, torch.Tensor) else part for part in parts]
    if not any(m is not None and m.dtype == torch.int32 for masks in each for m in masks):
        return list(parts)
    wide: list[FieldColumn] = []
    for part, masks in zip(parts, each, strict=True):
        own: list[Any] = [None if mask is None else mask.to(torch.int32) for mask in masks]
        absent = [slot for slot, mask in enumerate(own) if mask is None]
        wide += own if isinstance(part, torch.Tensor) else [columns.stack(own, absent)]
    return wide


def make_one(
    pack: Pack, settings: Settings, image: Row, row: Row, name: str, placements: Sequence[Placement]
) -> list[torch.Tensor]:
    """Make the masks of one sample, (H, W), one a view; all border if the sample has none."""
    data = b"" if row.offset < 0 else pack.read(row, name)
    narrow = np.uint8 if 0 <= settings.ignore_index < 1 << 8 else np.int32
    masks = []
    with pack.naming(row, name):
        if data and image.height * image.width > settings.decoder.max_pixels:
            most = settings.decoder.max_pixels
            raise LimitError(f"{image.width}x{image.height} pixels, the limit is {most:,}")
        ids = decode(data, (image.height, image.width)) if data else None
        for placement in placements:
            shape = placement.frame.out_height, placement.frame.out_width
            if ids is None:
                out = np.full(shape, settings.ignore_index, narrow)
            else:
                out = np.empty(shape, np.result_type(ids, narrow))
                render(ids, placement, settings.ignore_index, out)
            masks.append(torch.from_numpy(out))
    return masks
