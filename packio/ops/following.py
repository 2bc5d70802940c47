"""Masks and boxes follow their image: what moves it moves them, too.

Masks get the nearest id, and the border's id outside. Of a moved box the smallest upright box that
holds it is taken, after each operation, and clipped to the image, as torchvision's v2 transforms
do; a box of which nothing is left is left out.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from packio.batches.columns import FieldColumn
from packio.batches.samples import BOXES
from packio.errors import TransformError
from packio.ops import program
from packio.sample.record import IMAGE

_OPERATION = struct.Struct("@2i12d")
_NAMES = {program.OPERATORS[name]: name for name in ("hflip", "vflip", "affine", "perspective")}
_COEFFICIENTS = {"hflip": 0, "vflip": 0, "affine": 6, "perspective": 8}
Move = tuple[str, tuple[float, ...]]  # an operation's name and coefficients


def follow(
    columns: dict[str, list[FieldColumn]], kinds: Mapping[str, str], view: int,
    programs: Sequence[Sequence[bytes]], ignore_index: int,
) -> None:  # fmt: skip
    """Move masks and boxes of a view as the operations on their images have moved these."""
    moves = [_find_moves(operations) for operations in programs]
    if not any(moves):
        return
    for name, kind in kinds.items():
        if kind == "mask":
            for mask, own in zip(columns[name][view], moves, strict=True):
                if mask is not None and own:
                    _move_mask(mask, own, ignore_index)
    boxes = [name for name, kind in kinds.items() if kind == BOXES]
    if boxes and "boxes" not in boxes:
        raise TransformError(f"{', '.join(boxes)} follow the image if boxes are among the fields")
    for slot, own in enumerate(moves if boxes else ()):
        if own:
            height, width = columns[IMAGE][view][slot].shape[-2:]
            moved, kept = _move_boxes(columns["boxes"][view][slot].numpy(), own, height, width)
            for name in boxes:
                column: Any = columns[name][view]
                column[slot] = torch.from_numpy(moved) if name == "boxes" else column[slot][kept]


def _find_moves(operations: Sequence[bytes]) -> list[Move]:
    found = []
    for operation in operations:
        operator, _, *values = _OPERATION.unpack(operation)
        if (name := _NAMES.get(operator)) is not None:
            found.append((name, tuple(values[: _COEFFICIENTS[name]])))
    return found


def _move_mask(mask: torch.Tensor, moves: Sequence[Move], ignore_index: int) -> None:
    """Move a mask, (H, W) uint8 or int32, in place: ids of 32 bits are four images of bytes."""
    ids = mask[..., None].contiguous().view(torch.uint8)  # (H, W, bytes)
    planes = ids.permute(2, 0, 1)[:, None].contiguous()
    fill = np.array([ignore_index], "<i4").tobytes()
    each = [[program.pack(name, *values, *[float(byte)] * (3 if values else 0))
             for name, values in moves] for byte in fill[: len(planes)]]  # fmt: skip
    program.run(planes, each)
    mask.copy_(planes[:, 0].permute(1, 2, 0).contiguous().view(mask.dtype)[..., 0])


def _move_boxes(
    boxes: np.ndarray, moves: Sequence[Move], height: int, width: int
) -> tuple[np.ndarray, np.ndarray]:
    """Move boxes, (k, 4) float32 XYXY; returns those that are left, and (k,) bool, which."""
    made = boxes.astype(np.float64)
    try:
        inverses = [np.linalg.inv(_matrix(*move, height, width)) for move in moves]
    except np.linalg.LinAlgError:  # all of the image becomes a line, as a tiny one may
        return boxes[:0], np.zeros(len(boxes), bool)
    for inverse in inverses:
        corners = made[:, [[0, 1], [2, 1], [2, 3], [0, 3]]]  # (k, 4, 2)
        points = np.concatenate([corners, np.ones((len(made), 4, 1))], axis=2)
        points @= inverse.T
        with np.errstate(divide="ignore", invalid="ignore"):  # a corner goes to infinity
            points = points[..., :2] / points[..., 2:]
        made = np.concatenate([points.min(1), points.max(1)], axis=1)
        made = np.clip(made, 0, [width, height, width, height])
    small = made.astype(np.float32)
    kept = np.asarray((small[:, :2] < small[:, 2:]).all(1))
    return small[kept], kept


def _matrix(name: str, values: Sequence[float], height: int, width: int) -> np.ndarray:
    """From places of the output to those of the input, in homogeneous coordinates, (3, 3)."""
    if name == "hflip":
        return np.array([[-1.0, 0, width], [0, 1, 0], [0, 0, 1]])
    if name == "vflip":
        return np.array([[1.0, 0, 0], [0, -1, height], [0, 0, 1]])
    last = [*values[6:8], 1.0] if name == "perspective" else [0.0, 0.0, 1.0]
    return np.array([values[:3], values[3:6], last])
