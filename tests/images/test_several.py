"""Several outputs of one image: the same pixels as one by one, and no more decoded than needed."""

from __future__ import annotations

from typing import Any

import made
import native_core
import numpy as np
import pytest
from PIL import Image
from skimage import data as photographs

from packio.images import native, regions
from packio.images.decoders import Decoder
from packio.images.encodings import read_facts
from packio.images.frames import Frame, Placement
from packio.images.geometry import RandomCrop, RandomResizedCrop, ResizeCenterCrop

pytestmark = native_core.needed
_SIZE = (231, 317)


def _jpeg(mode: str = "RGB", **options: Any) -> bytes:
    pixels = photographs.astronaut()  # type: ignore[no-untyped-call]  # skimage
    image = Image.fromarray(pixels).resize(_SIZE[::-1]).convert(mode)
    return made.saved(image, "JPEG", **{"quality": 90, **options})


_JPEGS = {
    "4:2:0": _jpeg(), "4:2:2": _jpeg(subsampling="4:2:2"), "4:4:4": _jpeg(subsampling="4:4:4"),
    "gray": _jpeg("L"), "restarts": _jpeg(restart_marker_blocks=3),
}  # fmt: skip


def _needs(seed: int, orientation: int, how: str, *, fast: bool) -> Any:
    """What some random views need: crops, whole images, and boxes beyond the border."""
    draw = np.random.default_rng(seed)
    size = _SIZE[::-1] if orientation >= 5 else _SIZE
    geometries = [
        RandomResizedCrop(40, scale=(0.02, 0.2), interpolation=how),
        RandomResizedCrop((60, 31), interpolation=how), RandomCrop(50), RandomCrop(290),
        ResizeCenterCrop(64, interpolation=how), RandomResizedCrop(90, interpolation=how),
    ]  # fmt: skip
    needs = []
    for number in draw.integers(0, len(geometries), draw.integers(2, 9)).tolist():
        crop = geometries[number]
        placement = Placement(
            crop.frame(*size, draw.random(22).tolist()), orientation,
            hflip=bool(draw.integers(2)), vflip=bool(draw.integers(2)),
        )  # fmt: skip
        needs.append(regions.compute_need(placement, *_SIZE, crop.interpolation, fast=fast))
    return needs


@pytest.mark.parametrize("how", ["bilinear", "bicubic", "nearest", "area"])
@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("kind", _JPEGS)
@pytest.mark.parametrize("fast", [False, True])
def test_pixels_are_those_of_outputs_made_alone(
    kind: str, orientation: int, how: str, fast: bool
) -> None:
    data, decoder = _JPEGS[kind], Decoder()
    facts, points = read_facts(data), native.seek_points(data)
    library = Decoder("pillow")
    for seed in range(4):
        needs = _needs(seed, orientation, how, fast=fast)
        outs = [None] * len(needs)
        made = regions.make(decoder, data, facts, needs, outs, points)
        for need, image in zip(needs, made, strict=True):
            (alone,) = regions.make(decoder, data, facts, [need], [None], points)
            assert np.array_equal(image, alone)
            if not fast:
                (by_library,) = regions.make(library, data, facts, [need], [None])
                assert np.array_equal(image, by_library)
    assert sum(decoder.declined) == 0


@pytest.mark.parametrize("kind", ["4:2:0", "restarts"])
def test_outputs_are_written_where_they_go(kind: str) -> None:
    data = _JPEGS[kind]
    facts = read_facts(data)
    needs = _needs(0, 1, "bilinear", fast=False)
    outs = [np.full((3, *need.frame[8:10]), 7, np.uint8) for need in needs]
    made = regions.make(Decoder(), data, facts, needs, outs)
    assert all(one is out for one, out in zip(made, outs, strict=True))
    assert not any((out == 7).all() for out in outs)


def _at(*boxes: tuple[int, int, int, int], fast: bool = False, to: int = 20) -> Any:
    """Needs of boxes: top, left, height, width."""
    return [
        regions.compute_need(Placement(Frame(*box, to, to, 0, 0, to, to)), *_SIZE, "bilinear",
                       fast=fast)
        for box in boxes
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("needs", "with_points", "calls"),
    [
        (_at((0, 0, 100, 100), (10, 10, 100, 100)), True, [2]),
        (_at((0, 0, 30, 30), (200, 280, 30, 30)), True, [1, 1]),
        (_at((0, 0, 40, 40), (0, 90, 40, 40)), True, [2]),  # a decode costs more than the gap
        (_at((0, 0, 30, 30), (200, 280, 30, 30)), False, [2]),  # what is between is decoded anyway
        (_at((0, 0, 231, 317), (200, 280, 30, 30), (5, 5, 9, 9)), True, [3]),
        (_at((0, 0, 200, 200), (1, 1, 25, 25), fast=True), True, [1, 1]),  # of other scales
        (_at((0, 0, 200, 200), (1, 1, 180, 180), fast=True), True, [2]),
    ],
)
def test_least_is_decoded(
    needs: Any, with_points: bool, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, seen = _JPEGS["4:2:0"], []
    real = native.make

    def counted(data: bytes, requests: bytes, count: int, *rest: Any) -> int:
        seen.append(count)
        return real(data, requests, count, *rest)

    monkeypatch.setattr(native, "make", counted)
    points = native.seek_points(data) if with_points else b""
    regions.make(Decoder(), data, read_facts(data), needs, [None] * len(needs), points)
    assert seen == calls


def test_what_the_core_declines_a_library_makes() -> None:
    data, decoder = _jpeg(keep_rgb=True), Decoder()
    facts = read_facts(data)
    needs = _needs(1, 1, "bilinear", fast=False)
    made = regions.make(decoder, data, facts, needs, [None] * len(needs))
    alone = [regions.make(Decoder("pillow"), data, facts, [need], [None])[0] for need in needs]
    assert all(map(np.array_equal, made, alone))
    assert decoder.declined[native.REASONS.index("kind of JPEG")] == 1


def test_one_output_that_the_core_declines_does_not_keep_it_from_others() -> None:
    data, decoder = _JPEGS["4:2:0"], Decoder()
    facts = read_facts(data)
    black = Frame(0, 0, *_SIZE, *_SIZE, 1000, 1000, 20, 20)  # a crop beyond the image
    beyond = regions.compute_need(Placement(black), *_SIZE, "nearest", fast=False)
    needs = [*_at((0, 0, 100, 100), (10, 10, 100, 100)), beyond]
    made = regions.make(decoder, data, facts, needs, [None] * 3)
    alone = [regions.make(Decoder("pillow"), data, facts, [need], [None])[0] for need in needs]
    assert all(map(np.array_equal, made, alone))
    assert not made[2].any()
    assert decoder.declined == [int(why == "kind of output") for why in native.REASONS]


@pytest.mark.parametrize("count", [0, 17])
def test_no_more_outputs_than_there_is_room_for(count: int) -> None:
    out, frame = np.zeros((3, 20, 20), np.uint8), Frame(0, 0, 20, 20, 20, 20, 0, 0, 20, 20)
    requests = native.request(*_SIZE, (0, 0, 20, 20), frame, out) * count
    assert native.REASONS[native.make(_JPEGS["4:2:0"], requests, count)] == "kind of output"
