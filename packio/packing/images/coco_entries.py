"""COCO annotations in a sample's metadata, moved with the image that they describe.

Packing keeps an image's COCO entry as metadata: its ``width`` and ``height``, and a list for each
member of its annotations, as ``"bbox": [[x, y, w, h], …]``. Boxes of a pack are columns of their
own; this module keeps the metadata true when packing resizes or turns the image.

Source: https://cocodataset.org/#format-data; run lengths: pycocotools, ``rleFrString``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from packio.packing.images import resizing

_DIGITS = 3  # decimals of a coordinate
_MARKS = (b'"bbox"', b'"segmentation"', b'"keypoints"')

_Corners = Callable[[np.ndarray], np.ndarray]  # (k, 4) XYXY of the old image → of the new one


def moved(meta: bytes, size: resizing.Size, to: resizing.Size, orientation: int) -> bytes:
    """Move what metadata says in pixels of its image; other metadata stays as it is.

    Metadata is taken as COCO's if its width and height are the size. A mask of run lengths is
    resized to the nearest pixel; one that makes no sense becomes null.

    Args:
        meta: A JSON object.
        size, to, orientation: As `resizing.moved_boxes` takes them.
    """
    if not any(mark in meta for mark in _MARKS):
        return meta
    found = json.loads(meta)
    if (found.get("width"), found.get("height")) != size:
        return meta

    def corners(boxes: np.ndarray) -> np.ndarray:
        return resizing.moved_boxes(boxes, size, to, orientation)

    found["width"], found["height"] = to if orientation < 5 else to[::-1]
    scale = to[0] * to[1] / (size[0] * size[1])
    moves: dict[str, Callable[[Any], Any]] = {
        "bbox": lambda box: _box(box, corners),
        "area": lambda area: round(area * scale, _DIGITS),
        "keypoints": lambda flat: _keypoints(flat, corners),
        "segmentation": lambda shape: (
            _run_lengths(shape, size, to, orientation) if isinstance(shape, dict)
            else [_polygon(flat, corners) for flat in shape]
        ),
    }  # fmt: skip
    for name, move in moves.items():
        if isinstance(found.get(name), list):
            found[name] = [_tried(move, value) for value in found[name]]
    text = json.dumps(found, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


def _tried(move: Callable[[Any], Any], value: Any) -> Any:
    """The value moved; null for null, and for a value that is not as COCO describes it."""
    try:
        return None if value is None else move(value)
    except (TypeError, ValueError, KeyError, IndexError, OverflowError):
        return None


def _box(box: Sequence[float], corners: _Corners) -> list[float]:
    x, y, width, height = box
    ((x0, y0, x1, y1),) = corners(np.array([[x, y, x + width, y + height]])).tolist()
    return [round(value, _DIGITS) for value in (x0, y0, x1 - x0, y1 - y0)]


def _polygon(flat: Sequence[float], corners: _Corners) -> list[float]:
    points = np.array(flat, np.float64).reshape(-1, 2)
    return corners(np.tile(points, 2))[:, :2].round(_DIGITS).ravel().tolist()  # type: ignore[no-any-return]  # a list of floats


def _keypoints(flat: Sequence[float], corners: _Corners) -> list[float]:
    """Points x, y, visibility; points of visibility 0 have no place."""
    found = np.array(flat, np.float64).reshape(-1, 3)
    placed = found[:, 2] != 0
    found[placed, :2] = corners(np.tile(found[placed, :2], 2))[:, :2].round(_DIGITS)
    return found.ravel().tolist()  # type: ignore[no-any-return]  # a list of floats


def _run_lengths(
    shape: dict[str, Any], size: resizing.Size, to: resizing.Size, orientation: int
) -> dict[str, Any]:
    """A mask: lengths of runs of 0 and 1 in turn, column by column."""
    from PIL import Image

    counts = shape["counts"]
    lengths = _unpacked(counts) if isinstance(counts, str) else counts
    if [*shape["size"]] != [size[1], size[0]] or sum(lengths) != size[0] * size[1]:
        raise ValueError("another size")
    flat = np.repeat(np.arange(len(lengths), dtype=np.uint8) % 2, lengths)
    image = Image.fromarray(np.ascontiguousarray(flat.reshape(size).T))
    pixels = np.asarray(resizing.upright(resizing.resized(image, to, "nearest"), orientation))
    new = pixels.T.ravel()
    edges = np.flatnonzero(np.diff(new)) + 1
    runs = np.diff(np.concatenate([[0], edges, [len(new)]])).tolist()
    return {**shape, "size": [*pixels.shape], "counts": [0, *runs] if new[0] else runs}


def _unpacked(text: str) -> list[int]:
    """Run lengths of pycocotools' text: 5 bits a character, each the difference to two before."""
    lengths: list[int] = []
    value = shift = 0
    for character in text:
        bits = ord(character) - 48
        value |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        if bits & 16:
            value -= 1 << shift
        lengths.append(value + (lengths[-2] if len(lengths) > 2 else 0))
        value = shift = 0
    return lengths
