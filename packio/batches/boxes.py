"""Boxes: moved, cut and mirrored as the images that they belong to.

Boxes are XYXY in pixels of their image as *stored*; an Exif orientation turns both. Along each axis
all that happens to an image is a factor and a shift, so that the boxes of a whole batch are moved
together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from packio.batches.plans import Place
from packio.images import tensors
from packio.packs.packs import Pack, Row


class Boxes(NamedTuple):
    """Boxes of some samples."""

    boxes: list[torch.Tensor]  # (k, 4) float32 each
    labels: list[torch.Tensor] | None  # (k,) int64 each


def make(pack: Pack, rows: Sequence[Row], places: Sequence[Place]) -> Boxes:
    """Move the boxes of some samples by one view of each; leave out those that are not seen.

    Args:
        pack: That they are of.
        rows: The samples.
        places: What the view takes of each.

    Returns:
        Boxes, clipped to what the view shows of the image. Out are those of which nothing is left,
        those without width or height, and those that are not finite, and with each its label.
    """
    found = [pack.boxes(row.position) for row in rows]
    each = [boxes for boxes, _ in found if boxes is not None]
    stored = np.concatenate([np.zeros((0, 4), np.float32), *each])
    owner = np.repeat(np.arange(len(rows)), [len(boxes) for boxes in each])
    moves = np.array([_move(place, row) for place, row in zip(places, rows, strict=True)])
    kept, boxes = moved(stored, moves.reshape(-1, len(_Move._fields))[owner])
    counts = np.bincount(owner[kept], minlength=len(rows)).tolist()
    if "box_labels" not in pack.index_file:
        return Boxes(_split(boxes, counts), None)
    ids = [labels for _, labels in found if labels is not None]
    labels = np.concatenate([np.zeros(0, np.int64), *ids])[kept]
    return Boxes(_split(boxes, counts), _split(labels, counts))


def _split(values: np.ndarray, counts: list[int]) -> list[torch.Tensor]:
    """Parts of one tensor, which is all that leaves a worker."""
    together = tensors.new_batch(values.shape, torch.from_numpy(values[:0]).dtype)
    together.numpy()[...] = values
    return list(torch.split(together, counts))


class _Move(NamedTuple):
    """What happens to a sample's boxes: value * factor + shift, after x and y are swapped."""

    swapped: float  # 0 or 1
    x_factor: float
    x_shift: float  # pixels
    x_low: float  # where the view begins to show the image, pixels
    x_high: float
    y_factor: float
    y_shift: float
    y_low: float
    y_high: float


def _move(place: Place, row: Row) -> _Move:
    f, turn = place.frame, place.orientation
    height, width = (row.width, row.height) if turn >= 5 else (row.height, row.width)
    x = _axis(
        (f.left, f.width, f.to_width, f.out_left, f.out_width),
        width if turn in (2, 3, 6, 7) else None, mirrored=place.hflip,
    )  # fmt: skip
    y = _axis(
        (f.top, f.height, f.to_height, f.out_top, f.out_height),
        height if turn in (3, 4, 7, 8) else None, mirrored=place.vflip,
    )  # fmt: skip
    return _Move(turn >= 5, *x, *y)


def _axis(
    frame: tuple[int, int, int, int, int], turned: int | None, *, mirrored: bool
) -> tuple[float, float, float, float]:
    """Factor, shift, and the bounds of what is shown, along one axis.

    Args:
        frame: Start, length, length after resizing, start and length of the output.
        turned: Length of the image, where that is mirrored before; Exif 2.32, table 4, tag 0112.
        mirrored: Whether the output is.
    """
    start, length, to, out_start, out = frame
    factor = to / length
    shift = -start * factor - out_start
    if turned is not None:
        factor, shift = -factor, turned * factor + shift
    low, high = max(0, -out_start), min(out, to - out_start)
    if mirrored:
        return -factor, out - shift, out - high, out - low
    return factor, shift, low, high


def moved(boxes: np.ndarray, moves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Move boxes, each its own way, and clip them.

    Args:
        boxes: (M, 4) XYXY.
        moves: (M, 9), a `_Move` each.

    Returns:
        (M,) bool: which are left; (m, 4) float32: those.
    """
    kept = np.isfinite(boxes).all(1) & (boxes[:, :2] < boxes[:, 2:]).all(1)
    swapped, axes = moves[kept, 0] != 0, moves[kept, 1:].reshape(-1, 2, 4)  # x, then y
    factor, shift, low, high = axes.transpose(2, 0, 1)[:, :, None]  # (m, 1, 2) each
    corners = boxes[kept].astype(np.float64).reshape(-1, 2, 2)  # two of (x, y)
    corners = np.where(swapped[:, None, None], corners[:, :, ::-1], corners) * factor + shift
    corners.sort(1)  # a mirrored box has its right side left
    clipped = np.clip(corners, low, high).astype(np.float32).reshape(-1, 4)
    seen = (clipped[:, :2] < clipped[:, 2:]).all(1)
    kept[kept] = seen
    return kept, clipped[seen]
