"""Pairs of near hashes against all pairs compared; hashes of copies against the library's own."""

from __future__ import annotations

import itertools

import made
import numpy as np
import pytest
from PIL import Image

from packio.errors import DecodeError, OptionError
from packio.images import encodings, perceptual
from packio.images.decoders import Decoder


def hashed(data: bytes) -> int:
    """The hash of an encoded image."""
    return perceptual.hash_image(Decoder("auto", "RGB"), data, encodings.read_facts(data))


def _clustered(seed: int, count: int) -> np.ndarray:
    """Different numbers of 64 bits, many of which differ in few bits."""
    rng = np.random.default_rng(seed)
    centres = rng.integers(0, 1 << 64, 12, np.uint64)
    found = centres[rng.integers(0, 12, count)]
    for _ in range(8):
        found ^= np.where(rng.random(count) < 0.5, np.uint64(1), np.uint64(0)) << rng.integers(
            0, 64, count
        ).astype(np.uint64)
    return rng.permutation(np.unique(found))


@pytest.mark.parametrize("threshold", range(12))
def test_pairs_are_those_that_all_comparisons_find(threshold: int) -> None:
    hashes = _clustered(threshold, 250)
    expected = {
        (i, j, distance)
        for i, j in itertools.combinations(range(len(hashes)), 2)
        if (distance := (int(hashes[i]) ^ int(hashes[j])).bit_count()) <= threshold
    }
    assert expected or threshold < 1
    found = zip(*(part.tolist() for part in perceptual.near(hashes, threshold)), strict=True)
    assert sorted(found) == sorted(expected)


def test_small_pieces_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = _clustered(3, 250)
    whole = perceptual.near(hashes, 6)
    monkeypatch.setattr(perceptual, "_PAIRS", 7)
    for one, other in zip(whole, perceptual.near(hashes, 6), strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("count", [0, 1])
def test_few_hashes_have_no_pairs(count: int) -> None:
    assert [len(part) for part in perceptual.near(np.zeros(count, np.uint64), 4)] == [0, 0, 0]


@pytest.mark.parametrize("threshold", [-1, 12, 64])
def test_thresholds_that_cannot_be_meant_are_refused(threshold: int) -> None:
    with pytest.raises(OptionError, match="expected 0 to 11"):
        perceptual.near(np.zeros(2, np.uint64), threshold)


def test_hashes_are_those_of_the_library(photos: list[np.ndarray]) -> None:
    imagehash = pytest.importorskip("imagehash")
    for pixels in photos:
        expected = int(str(imagehash.phash(Image.fromarray(pixels))), 16)
        assert perceptual.hash_pixels(pixels) == expected


def test_copies_have_near_hashes_and_other_photographs_have_not(photos: list[np.ndarray]) -> None:
    two_views_of_one_scene = 4  # and the photograph before it
    different = [p for i, p in enumerate(photos) if i != two_views_of_one_scene]
    for pixels, other in itertools.pairwise(different):
        image = Image.fromarray(pixels)
        small = image.resize((image.width * 3 // 4, image.height * 3 // 4))
        exif = Image.Exif()
        exif[0x0112] = 6
        turned = image.transpose(Image.Transpose.ROTATE_90)
        datas = [
            made.saved(image), made.saved(image, "JPEG", quality=60), made.saved(small),
            made.saved(turned, "JPEG", quality=95, exif=exif),
            made.saved(other, "PNG"),
        ]  # fmt: skip
        first, *rest, far = map(hashed, datas)
        assert max((first ^ near).bit_count() for near in rest) <= perceptual.MOST
        assert (first ^ far).bit_count() > perceptual.MOST


def test_damaged_images_are_an_error_of_packio(photos: list[np.ndarray]) -> None:
    data = made.saved(photos[0], "PNG")
    with pytest.raises(DecodeError):
        hashed(data[: len(data) // 2])
