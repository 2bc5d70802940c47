"""Several outputs of one image, as the views of a sample: decode as few pixels as will do.

Entropy-coded data of one place are decoded once, whatever number of outputs shows the place. But
where outputs show places that lie apart, each place is decoded by itself, because less lies in all
of them than in the box that holds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from packio.images import native, regions
from packio.images.arithmetic import Condition, Integer, larger, smaller
from packio.images.decoders import Decoder, Described
from packio.images.regions import Cut, Decoded, Need

if TYPE_CHECKING:
    import numpy as np

# What a decode takes by itself, in pixels of a box: 0.018 ms beside 1.5 ms for 10^6 pixels. Blocks
# are decoded whole: about one more along each side. With four crops of 96 of photographs of 500 x
# 400 a choice by these numbers took 1 % more time than the better one for each image, a choice by
# pixels alone 10 %; of SimCLR's and DINO's crops both chose alike. benchmarks/views.py compares.
_A_CALL, _BLOCK = 12_000, 16


def make(
    decoder: Decoder, data: bytes, stored: Described, needs: Sequence[Need],
    outs: Sequence[np.ndarray | None], points: bytes = b"",
) -> list[np.ndarray]:  # fmt: skip
    """Make outputs of an image, each as `packio.images.regions.make` would.

    Without the native core, a library decodes each box by itself or the whole image once.

    Args:
        decoder, data, stored, points: As of `packio.images.regions.make`.
        needs: What each output needs of the image; all of one level.
        outs: Where each goes, or None.

    Returns:
        The outputs. Under "fast" the pixels of an image that the core declines may differ from
        those of an output that is made alone.
    """
    if len(needs) == 1:
        return [regions.make(decoder, data, stored, needs[0], outs[0], points)]
    made: dict[int, np.ndarray] = {}  # by view
    if decoder.core_takes(stored):
        made = _by_core(decoder, data, stored, needs, outs, points)
    elif decoder.has_core and stored.encoding == "jpeg":
        decoder.count_declined(native.KIND)
    left = [view for view in range(len(needs)) if view not in made]
    if left:
        parts = decode_all(decoder, data, stored, [needs[view] for view in left])
        for view, part in zip(left, parts, strict=True):
            made[view] = regions.render(part, needs[view], outs[view])
    return [made[view] for view in range(len(needs))]


def _by_core(
    decoder: Decoder, data: bytes, stored: Described, needs: Sequence[Need],
    outs: Sequence[np.ndarray | None], points: bytes,
) -> dict[int, np.ndarray]:  # fmt: skip
    """What the native core makes, by view; not what it declines."""
    outputs = [
        regions.core_output(decoder, stored, need, out)
        for need, out in zip(needs, outs, strict=True)
    ]
    made: dict[int, np.ndarray] = {}
    waiting = _together(needs, cuttable=bool(points) or needs[0].cuttable)
    while waiting:
        views = waiting.pop()
        given = [outputs[view] for view in views]
        status = regions.core_declines(data, stored, needs[views[0]], given, points)
        if not status:
            made.update({view: outputs[view].out for view in views})
        elif status == native.OUTPUT and len(views) > 1:
            waiting += [[view] for view in views]  # it makes all but one of them, perhaps
        else:
            decoder.count_declined(status)
    return made


def _together(needs: Sequence[Need], *, cuttable: bool) -> list[list[int]]:
    """Which views are decoded together, so that least is decoded in all.

    Args:
        needs: Of the views.
        cuttable: Whether a part of the JPEG can be decoded without what is before it.
    """
    by_scale: dict[int, list[int]] = {}
    for view, need in enumerate(needs):
        by_scale.setdefault(regions.scale_of(need), []).append(view)
    found: list[list[int]] = []
    for views in by_scale.values():
        at_once = not cuttable or is_less_at_once([needs[view] for view in views])
        found += [views] if at_once else [[view] for view in views]
    return found


def is_less_at_once(needs: Sequence[Need]) -> Condition:
    """Whether it takes less to decode the box that holds all boxes than to decode each box.

    Args:
        needs: Of the outputs of one image, or of N, in columns.
    """
    boxes = [need.box for need in needs]
    top, left = reduce(smaller, (b[0] for b in boxes)), reduce(smaller, (b[1] for b in boxes))
    bottom, right = (
        reduce(larger, (box[i] + box[i + 2] for box in boxes)) for i in (0, 1)
    )  # fmt: skip
    return _cost(bottom - top, right - left) < sum(_cost(b[2], b[3]) for b in boxes)


def _cost(height: Integer, width: Integer) -> Integer:
    """What it takes to decode a box, in pixels; see `_A_CALL`."""
    return (height + _BLOCK) * (width + _BLOCK) + _A_CALL


def decode_all(
    decoder: Decoder, data: bytes, stored: Described, needs: Sequence[Need]
) -> list[Decoded]:
    """Decode what several outputs need of one image: each by itself, or the whole once."""
    if len(needs) == 1 or is_each_by_itself(stored, needs, cuttable=needs[0].cuttable):
        return [regions.decode(decoder, data, stored, one) for one in needs]
    pixels = decoder.fast(data, stored, 1)[0] if needs[0].fast else decoder(data, stored)
    regions.check_whole(pixels.shape[:2], stored)
    return [Decoded(pixels, 0, 0, needs[0].level)] * len(needs)


def is_each_by_itself(stored: Described, needs: Sequence[Need], *, cuttable: bool) -> bool:
    """Tell whether it takes less time to decode an image once for each of several outputs.

    Args:
        stored: What the index says of the whole image, or of the level that all are made of.
        needs: What the outputs need of the image.
        cuttable: Whether a part of the image can be decoded.
    """
    area = sum(one.frame.height * one.frame.width for one in needs) / needs[0].level ** 2
    return cuttable and area < regions.WORTH_CUTTING * stored.height * stored.width


def cut_all(data: bytes, stored: Described, needs: Sequence[Need]) -> list[Cut]:
    """The bytes that several outputs need of one image: as `decode_all` takes them."""
    cuttable = needs[0].cuttable
    if len(needs) > 1 and not is_each_by_itself(stored, needs, cuttable=cuttable):
        return [Cut(data, 0, 0)] * len(needs)
    return [regions.cut(data, stored, one) for one in needs]
