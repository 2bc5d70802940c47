"""Aspect-ratio buckets: the sizes, the size that fits an image best, and the crop to it."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packio.batches.framing import Settings
from packio.errors import OptionError
from packio.images.bucketing import (
    BucketCrop,
    Buckets,
    choose_buckets,
    parse_buckets,
    sizes_of_area,
)
from packio.images.decoders import Decoder

_SIDES = st.integers(1, 64)
_SIZES = st.lists(st.tuples(_SIDES, _SIDES), min_size=1, max_size=8, unique=True)


def plain_number(height: int, width: int, sizes: list[tuple[int, int]]) -> int:
    """The bucket of an image, as a trainer's script finds it, in exact fractions."""

    def distance(size: tuple[int, int]) -> Fraction:
        """Exp of the difference of the logarithms."""
        by = Fraction(width, height) / Fraction(size[1], size[0])
        return max(by, 1 / by)

    nearest = min(map(distance, sizes))
    near = [size for size in sizes if distance(size) == nearest]
    ratio = min(Fraction(w, h) for h, w in near)  # the taller one
    near = [(h, w) for h, w in near if Fraction(w, h) == ratio]
    covered = [(h, w) for h, w in near if h <= height and w <= width]
    return sizes.index(max(covered) if covered else min(near))


@settings(deadline=None, max_examples=300)
@given(sizes=_SIZES, images=st.lists(st.tuples(_SIDES, _SIDES), min_size=1, max_size=20))
def test_an_image_gets_the_size_that_a_plain_script_gives_it(
    sizes: list[tuple[int, int]], images: list[tuple[int, int]]
) -> None:
    pixels = np.array(images, np.int64)
    found = Buckets(sizes).assign(pixels[:, 0], pixels[:, 1])
    assert found.tolist() == [plain_number(*image, sizes) for image in images]


def test_sides_of_photographs_and_panoramas_are_compared_exactly() -> None:
    sizes = sizes_of_area(1024 * 1024)
    r = np.random.default_rng(0)
    height, width = r.integers(100, 9000, (2, 3000))
    height[:4], width[:4] = (1, 178_956_970, 13_377_000, 9), (178_956_970, 1, 13, 16)
    found = Buckets(sizes).assign(height, width)
    pairs = zip(height.tolist(), width.tolist(), strict=True)
    assert found.tolist() == [plain_number(*pair, sizes) for pair in pairs]


def test_of_two_sizes_that_are_equally_near_the_taller_one_is_taken() -> None:
    square = np.array([5])
    assert Buckets([(10, 20), (20, 10)]).assign(square, square).tolist() == [1]
    buckets = Buckets([(20, 20), (18, 8), (9, 16)])  # ratios 1, 4:9 and 16:9
    height, width = np.array([[3, 2], [299, 201], [301, 199], [3, 4], [300, 401]]).T
    assert buckets.assign(height, width).tolist() == [1, 0, 1, 0, 2]


def test_of_sizes_of_one_ratio_an_image_gets_the_largest_that_it_covers() -> None:
    sizes = [(32, 32), (8, 8), (16, 16), (8, 16)]
    sides = np.array([4, 8, 15, 16, 31, 32, 100])
    assert Buckets(sizes).assign(sides, sides).tolist() == [1, 1, 1, 2, 2, 0, 0]


def test_the_sizes_of_an_area_are_those_of_a_plain_script() -> None:
    """As trainers make them: a square, and the other side of each multiple of 64."""
    plain = {(1024, 1024)}
    for side in range(64, 5000, 64):
        other = int(1024 * 1024 / side / 64) * 64
        if other and max(side, other) / min(side, other) <= 4:
            plain |= {(side, other), (other, side)}
    found = sizes_of_area(1024 * 1024, 64)
    assert set(found) == plain
    assert len(found) == len(plain) == 33
    assert [h / w for h, w in found] == sorted((h / w for h, w in found), reverse=True)
    assert {(1024, 1024), (896, 1152), (512, 2048)} <= plain
    assert sizes_of_area(1000, 8, 1) == [(24, 24)]  # 24 x 40 is nearer to 1,000, but not square
    assert sizes_of_area(1000, 8, 2) == [(40, 24), (32, 24), (24, 24), (24, 32), (24, 40)]
    narrow = sizes_of_area(1024 * 1024, 64, 1.5)
    assert narrow == [size for size in found if max(size) <= 1.5 * min(size)]


@settings(deadline=None, max_examples=300)
@given(size=st.tuples(_SIDES, _SIDES), image=st.tuples(_SIDES, _SIDES), u=st.floats(0, 1 - 1e-9))
def test_the_box_has_the_ratio_of_the_size_and_lies_in_the_image(
    size: tuple[int, int], image: tuple[int, int], u: float
) -> None:
    for position in ("random", "center"):
        frame = BucketCrop(size, position).frame(*image, [u, 1 - 1e-9 - u])
        (top, left, height, width), out = frame[:4], frame[4:]
        assert out == (*size, 0, 0, *size, 0.0, 0.0)
        assert 0 <= top <= top + height <= image[0]
        assert 0 <= left <= left + width <= image[1]
        assert height == image[0] or width == image[1]
        # the other side is the exact one, rounded
        exact = Fraction(image[0] * size[1], size[0]), Fraction(image[1] * size[0], size[1])
        assert height == image[0] or abs(height - exact[1]) <= Fraction(1, 2) or height == 1
        assert width == image[1] or abs(width - exact[0]) <= Fraction(1, 2) or width == 1
    assert abs(2 * top + height - image[0]) <= 1  # of the one in the middle
    assert abs(2 * left + width - image[1]) <= 1


@settings(deadline=None, max_examples=300)
@given(size=st.tuples(_SIDES, _SIDES), image=st.tuples(_SIDES, _SIDES), u=st.floats(0, 1 - 1e-9))
def test_a_padded_image_keeps_its_pixels(
    size: tuple[int, int], image: tuple[int, int], u: float
) -> None:
    if image[0] >= size[0] and image[1] >= size[1]:
        crop = BucketCrop(size, small="pad")
        assert crop.frame(*image, [u, u]) == BucketCrop(size).frame(*image, [u, u])
        return
    for position in ("random", "center"):
        frame = BucketCrop(size, position, "pad").frame(*image, [u, 1 - 1e-9 - u])
        assert frame[:6] == (0, 0, *image, *image)
        assert frame[8:10] == size
        for start, side, whole in zip(frame[6:8], size, image, strict=True):
            assert min(0, whole - side) <= start <= max(0, whole - side)
    assert all(
        abs(2 * start + side - whole) <= 1
        for start, side, whole in zip(frame[6:8], size, image, strict=True)
    )


def test_every_place_of_a_random_box_comes_as_often() -> None:
    crop = BucketCrop((4, 8), small="pad")
    places = [crop.frame(8, 8, [n / 999, n / 999]).top for n in range(999)]
    assert {p: places.count(p) for p in set(places)} == dict.fromkeys(range(5), 200) | {4: 199}
    starts = [crop.frame(2, 8, [n / 999, 0.5]).out_top for n in range(999)]
    assert {s: starts.count(s) for s in set(starts)} == dict.fromkeys((0, -1, -2), 333)


def test_settings_of_another_size_count_with_the_same_decoders() -> None:
    whole = Settings((BucketCrop((4, 8)), None), 0.5, 0, Decoder("pillow", "RGB"), True)
    further = whole.further_decoder
    sized = whole.with_size((8, 4))
    assert sized.views[0] != whole.views[0]
    assert sized.further_decoder is further
    assert sized.decoder is whole.decoder


@pytest.mark.parametrize(
    "make",
    [
        lambda: BucketCrop((0, 4)),
        lambda: BucketCrop((4, 4, 4)),  # type: ignore[arg-type]  # what a user may give
        lambda: BucketCrop(position="middle"),
        lambda: BucketCrop(small="keep"),
        lambda: BucketCrop(interpolation="lanczos"),
        lambda: Buckets([]),
        lambda: Buckets([(4, 4), (4, 4)]),
        lambda: Buckets([(4, 1.5)]),  # type: ignore[list-item]  # what a user may give
        lambda: Buckets([4]),  # type: ignore[list-item]  # what a user may give
        lambda: sizes_of_area(63, 8),
        lambda: sizes_of_area(1 << 10, 0),
        lambda: sizes_of_area(-5),
        lambda: sizes_of_area(1024, 8, math.nan),
        lambda: sizes_of_area(1024, 8, math.inf),
        lambda: sizes_of_area(1024, 8, "2"),  # type: ignore[arg-type]  # what a user may give
        lambda: sizes_of_area(1 << 40, 1),
        lambda: choose_buckets(None),
        lambda: choose_buckets([(4, 4)], 16),
        lambda: choose_buckets([(4, 4)], step=2),
        lambda: choose_buckets([]),
    ],
)
def test_what_cannot_be_meant_is_refused(make: Any) -> None:
    with pytest.raises(OptionError, match=r"expected|fits|larger step|need area"):
        make()


def test_a_crop_without_a_size_says_what_to_do() -> None:
    with pytest.raises(OptionError, match=r"batch_sampler=packio\.BucketSampler"):
        BucketCrop().frame(4, 4, [0, 0])


def test_sizes_are_read_from_a_text() -> None:
    assert parse_buckets("1024x1024,896x1152").sizes == ((1024, 1024), (896, 1152))
    assert parse_buckets("area=1048576").sizes == tuple(sizes_of_area(1 << 20))
    sizes = tuple(sizes_of_area(65536, 32, 1.5))
    assert parse_buckets("area=65536,step=32,max_ratio=1.5").sizes == sizes
    for text in ("", "32", "32x32x3", "32x32,area=4", "area", "area=x", "step=8", "side=3", "axb"):
        with pytest.raises(OptionError, match="expected"):
            parse_buckets(text)


def test_lists_and_numpys_integers_are_sizes() -> None:
    sizes: Any = np.array([[4, 8], [8, 4]])
    assert Buckets(sizes).sizes == Buckets([[4, 8], [8, 4]]).sizes == ((4, 8), (8, 4))
