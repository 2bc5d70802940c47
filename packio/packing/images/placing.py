"""Boxes and masks of a source are moved into the frame of the stored image, where packs have them.

A source has them in the upright frame, which people see, or in the stored one: sizes decide, else
the user, else they are upright. COCO entries in the metadata lie as their file has them, and are
scaled with their image.

Source: https://cocodataset.org/#format-data.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from packio.errors import DecodeError
from packio.packing.images import resizing
from packio.sample.facts import Facts
from packio.sample.record import Field, Frame, Record
from packio.sources.tables.columns import compact

_BACK = {6: 8, 8: 6}  # orientation → the one that undoes it; each other one undoes itself
_IN_PIXELS = (b'"bbox"', b'"segmentation"', b'"keypoints"', b'"bndbox"')  # members of metadata
_DIGITS = 3  # decimals of a coordinate
_SLACK = 0.01  # pixels by which a box may reach beyond the image, from rounding


def placed(record: Record[Field]) -> tuple[Record[Field], Counter[str]]:
    """Move boxes and masks into the stored image; also return what is to be counted."""
    frame, facts, counts = record.frame, record.facts, Counter[str]()
    if frame is None:
        return record, counts
    stored, upright = _sizes(facts)
    masks = {name: field for name, field in record.fields.items() if field.kind == "mask"}
    moved = {name: placed_mask(field, facts, frame) for name, field in masks.items()}
    record = dataclasses.replace(record, frame=None, fields={**record.fields, **moved})
    is_upright = _is_upright(frame, stored, upright)
    if facts.orientation != 1 and frame.is_upright is None:
        of_boxes = record.boxes is not None and len(record.boxes) > 0 and is_upright is None
        counts["undecided"] = int(of_boxes or (stored == upright and bool(masks)))
    if record.boxes is not None and len(record.boxes) > 0:
        given = np.asarray(record.boxes)
        _refuse_senseless(given, fractions=frame.fractions)
        counts["flat"] = int((given[:, 2:] <= given[:, :2]).any(1).sum())
        record, boxes = _with_boxes(record, frame, facts, is_upright=is_upright is not False)
        beyond = (boxes < -_SLACK) | (boxes > np.array([*stored, *stored]) + _SLACK)
        counts["beyond"] = int(beyond.any(1).sum())
    return record, +counts


def has_pixels(meta: bytes | None) -> bool:
    """Whether metadata speaks of boxes or shapes in pixels, as COCO's and Pascal VOC's."""
    return meta is not None and any(mark in meta for mark in _IN_PIXELS)


def scaled_meta(meta: bytes | None, sizes: Mapping[Any, resizing.Size]) -> bytes | None:
    """Scale COCO's entries in metadata with their image.

    `sizes` has the new size of an image for each size that ``width`` and ``height`` in the metadata
    may say. Other metadata stays, and so do masks of run lengths, which have a size of their own.
    """
    if meta is None or not has_pixels(meta):
        return meta
    found = json.loads(meta)
    size = found.get("width"), found.get("height")
    to = sizes.get(size) if all(isinstance(side, (int, float)) for side in size) else None
    if to is None or to == size:
        return meta
    x, y = to[0] / size[0], to[1] / size[1]
    for name, factors in (
        ("bbox", (x, y)), ("segmentation", (x, y)), ("keypoints", (x, y, 1)), ("area", (x * y,)),
    ):  # fmt: skip
        if name in found:
            found[name] = _scaled(found[name], factors)
    found["width"], found["height"] = to
    return compact(found)


def _scaled(values: Any, factors: Sequence[float]) -> Any:
    """Lists of lists of numbers, which are multiplied by the factors in turn."""
    if isinstance(values, list) and any(isinstance(value, list) for value in values):
        return [_scaled(value, factors) for value in values]
    if not isinstance(values, list):
        return values
    return [
        round(value * factor, _DIGITS) if isinstance(value, (int, float)) else value
        for value, factor in zip(values, itertools.cycle(factors))
    ]


def placed_mask(mask: Field, facts: Facts, frame: Frame) -> Field:
    """A mask as its image is stored: one of the upright size becomes a PNG that is turned back."""
    stored, upright = _sizes(facts)
    own = None if mask.facts is None else (mask.facts.width, mask.facts.height)
    if facts.orientation == 1 or own != upright or (own == stored and frame.is_upright is False):
        return mask
    back = _BACK.get(facts.orientation, facts.orientation)
    return Field("mask", resizing.moved_mask(mask.data, upright, upright, back))


def _refuse_senseless(boxes: np.ndarray, *, fractions: bool) -> None:
    """Refuse boxes that end before they begin: each crop would drop them, and say nothing."""
    if not fractions and boxes.max() <= 1 and (boxes % 1).any():
        raise DecodeError(f"no box ends after pixel 1: {boxes[0].tolist()}; fractions, no pixels?")
    good = np.isfinite(boxes).all(1) & (boxes[:, 2:] >= boxes[:, :2]).all(1)
    if not good.all():
        at = int(good.argmin())
        raise DecodeError(
            f"box {at}: {boxes[at].tolist()} as left, top, right, bottom; expected numbers, and "
            "right and bottom not before left and top: are they x, y, width, height?"
        )


def _sizes(facts: Facts) -> tuple[resizing.Size, resizing.Size]:
    """Width and height of the stored image, and of the upright one."""
    stored = facts.width, facts.height
    return stored, stored[::-1] if facts.orientation >= 5 else stored


def _is_upright(frame: Frame, stored: resizing.Size, upright: resizing.Size) -> bool | None:
    """Whether boxes lie in the upright image; None if nothing decides."""
    if frame.is_upright is not None or stored == upright or min(frame.width, frame.height) <= 0:
        return frame.is_upright
    fits = [(frame.width, frame.height) == size for size in (stored, upright)]
    if not any(fits) and frame.rescales:
        fits = [frame.width * height == frame.height * width for width, height in (stored, upright)]
    return None if fits[0] == fits[1] else fits[1]


def _with_boxes(
    record: Record[Field], frame: Frame, facts: Facts, *, is_upright: bool
) -> tuple[Record[Field], np.ndarray]:
    """The record with its boxes in the stored image; these boxes."""
    stored, upright = _sizes(facts)
    size = upright if is_upright else stored
    given = (frame.width, frame.height) if min(frame.width, frame.height) > 0 else size
    if given in (stored, upright):
        given = size  # as the user says, if they differ
    elif not frame.rescales:
        raise DecodeError(
            f"its boxes are for {given[0]:g}x{given[1]:g} pixels, the image has "
            f"{upright[0]}x{upright[1]}; --rescale-boxes scales boxes to their images"
        )
    columns, meta, turn = dict(record.box_columns), record.meta, facts.orientation
    if given != size and "area" in columns:
        scale = size[0] * size[1] / (given[0] * given[1])
        columns["area"] = columns["area"] * np.float32(scale)
    if given != size:
        meta = scaled_meta(meta, {given: size})
    boxes = resizing.moved_boxes(
        np.asarray(record.boxes), (1, 1) if frame.fractions else given, size,
        _BACK.get(turn, turn) if is_upright else 1,
    ).astype(np.float32)  # fmt: skip
    return dataclasses.replace(record, boxes=boxes, box_columns=columns, meta=meta), boxes
