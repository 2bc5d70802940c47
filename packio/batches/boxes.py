"""Boxes: moved, cut and mirrored as the images that they belong to.

Boxes are XYXY in pixels of their image as *stored*; an Exif orientation turns both. Along each axis
cropping, resizing and mirroring are a factor and a shift. So the boxes of a whole batch are moved
together.
"""

from __future__ import annotations

import numpy as np
import torch

from packio.batches.framing import Framing
from packio.images import frames, tensors
from packio.images.frames import Condition, Integer, Placement, Real, turns
from packio.packs.opening import Pack

LABELS = "box_labels"  # what datasets call the column "labels"


def make(pack: Pack, framing: Framing, view: int) -> dict[str, list[torch.Tensor]]:
    """Move the boxes of some samples by one view of each; leave out boxes that are not seen.

    Returns "boxes", (k, 4) float32 of each sample, clipped to what the view shows of the image, and
    each column of the boxes by its name, (k,) int64 or float32.
    """
    rows = framing.rows
    if pack.index_file.is_far:
        pack.bring("box", rows.column("position"))
    found = [pack.boxes(row.position) for row in rows]
    each = [boxes for boxes, _ in found if boxes is not None]
    stored = np.concatenate([np.zeros((0, 4), np.float32), *each])
    owner = np.repeat(np.arange(len(rows)), [len(boxes) for boxes in each])
    moves = np.empty((len(rows), _MOVE))
    if framing.columns:
        sizes = rows.column("height"), rows.column("width")
        for i, column in enumerate(_moves(framing.columns[view], *sizes)):
            moves[:, i] = column
    else:
        for i, (row, placements) in enumerate(zip(rows, framing.each_placement, strict=True)):
            moves[i] = _moves(placements[view], row.height, row.width)
    kept, boxes = apply_moves(stored, moves[owner])
    counts = np.bincount(owner[kept], minlength=len(rows)).tolist()
    columns = {"boxes": _split(boxes, counts)}
    if "labels" in pack.box_columns:
        ids = [labels for _, labels in found if labels is not None]
        columns[LABELS] = _split(np.concatenate([np.zeros(0, np.int64), *ids])[kept], counts)
    if set(pack.box_columns) - {"labels"}:
        others = [pack.more_of_boxes(row.position) for row in rows]
        for name in others[0] if others else ():
            columns[name] = _split(np.concatenate([more[name] for more in others])[kept], counts)
    return columns


def _split(values: np.ndarray, counts: list[int]) -> list[torch.Tensor]:
    """Parts of one tensor, so that one tensor only travels from a worker."""
    whole = tensors.new_batch(values.shape, torch.from_numpy(values[:0]).dtype)
    whole.numpy()[...] = values
    return list(torch.split(whole, counts))


_MOVE = 9  # numbers that describe how a sample's boxes move, see `_moves`


def _moves(placement: Placement, height: Integer, width: Integer) -> tuple[Real, ...]:
    """How boxes of stored images move: whether x and y are swapped; `_axis` of x, and of y."""
    f, (swapped, across, upside_down) = placement.frame, turns(placement.orientation)
    upright_height = frames.where(swapped, width, height)
    upright_width = frames.where(swapped, height, width)
    x = _axis((f.left, f.width, f.to_width, f.out_left, f.out_width), upright_width,
              turned=across, mirrored=placement.hflip)  # fmt: skip
    y = _axis((f.top, f.height, f.to_height, f.out_top, f.out_height), upright_height,
              turned=upside_down, mirrored=placement.vflip)  # fmt: skip
    return swapped, *x, *y


def _axis(
    frame: tuple[Integer, ...], length: Integer, *, turned: Condition, mirrored: Condition
) -> tuple[Real, Real, Real, Real]:
    """Factor, shift, and the bounds of what is shown, along one axis: value * factor + shift.

    The frame is its start, length, length after resizing, start and length of the output; all in
    pixels, as is the length of the upright image.
    """
    where = frames.where
    start, size, to, out_start, out = frame
    factor = to / size
    shift = -start * factor - out_start
    factor, shift = where(turned, -factor, factor), where(turned, length * factor + shift, shift)
    low, high = frames.larger(0, -out_start), frames.smaller(out, to - out_start)
    return (
        where(mirrored, -factor, factor), where(mirrored, out - shift, shift),
        where(mirrored, out - high, low), where(mirrored, out - low, high),
    )  # fmt: skip


def apply_moves(boxes: np.ndarray, moves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Move (M, 4) boxes, each by its (M, 9) `_moves`, and clip them.

    Returns (M,) bool, which are left, and (m, 4) float32, the boxes that are left.
    """
    kept = np.isfinite(boxes).all(1) & (boxes[:, :2] < boxes[:, 2:]).all(1)
    swapped, axes = moves[kept, 0] != 0, moves[kept, 1:].reshape(-1, 2, 4)  # x, then y
    factor, shift, low, high = axes.transpose(2, 0, 1)[:, :, None]  # (m, 1, 2) each
    corners = boxes[kept].astype(np.float64).reshape(-1, 2, 2)  # two of (x, y)
    corners = np.where(swapped[:, None, None], corners[:, :, ::-1], corners) * factor + shift
    corners.sort(1)  # mirroring has exchanged left and right sides
    clipped = np.clip(corners, low, high).astype(np.float32).reshape(-1, 4)
    seen = (clipped[:, :2] < clipped[:, 2:]).all(1)
    kept[kept] = seen
    return kept, clipped[seen]
