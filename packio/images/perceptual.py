"""Images that look alike: a perceptual hash of each, and pairs of hashes that differ in few bits.

The hash is pHash: the image, upright, as 32 x 32 gray pixels; the signs of its 8 x 8 lowest
frequencies (DCT-II), around their median; so are those of the package ImageHash
(https://github.com/JohannesBuchner/imagehash), bit for bit. Encoding anew, resizing and slight
changes of colour flip few of the 64 bits. Cropping and mirroring flip many.

Of two hashes that differ in at most t of 64 bits, one of their four 16-bit bands differs in at most
t // 4. So each band of each hash is looked up in the sorted bands of all, as it is and with few
bits flipped: c N (1 + N / 65,536) comparisons, where c is 4, 68 and 548 for t up to 3, 7 and 11.

Source: M. Norouzi, A. Punjani, D. J. Fleet, "Fast Search in Hamming Space with Multi-Index
Hashing", CVPR 2012.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from packio.errors import OptionError
from packio.images.decoders import Decoder
from packio.images.frames import orient
from packio.sample.record import Facts

THRESHOLD = 4  # bits that two images may differ in to look alike
MOST = 11  # the largest threshold
_BANDS, _BITS = 4, 16
_PAIRS = 1 << 21  # that are compared at a time


def hash_pixels(pixels: np.ndarray) -> int:
    """The hash of an upright image, (H, W, 3) uint8 RGB: 64 bits."""
    from PIL import Image

    gray = Image.fromarray(pixels).convert("L").resize((32, 32), Image.Resampling.LANCZOS)
    cosines = np.cos(np.pi / 64 * np.arange(8)[:, None] * np.arange(1, 64, 2))
    lowest = cosines @ np.asarray(gray, np.float64) @ cosines.T
    return int.from_bytes(np.packbits(lowest > np.median(lowest)).tobytes(), "big")


def hash_image(decoder: Decoder, data: bytes, facts: Facts) -> int:
    return hash_pixels(orient(decoder(data, facts), facts.orientation))


def check_threshold(threshold: int) -> None:
    if type(threshold) is not int or not 0 <= threshold <= MOST:
        raise OptionError(f"threshold={threshold!r}: expected 0 to {MOST} of 64 bits")


class Twin(NamedTuple):
    """An image that looks like an earlier one, which is no twin itself."""

    position: int
    of: int
    distance: int  # bits in which their hashes differ


def group_twins(hashes: Sequence[int | None], threshold: int) -> list[Twin]:
    """Images that look like an earlier one, in order.

    An image that looks only like such a twin is none itself, so that no chain of small changes
    joins images that differ.
    """
    positions = [i for i, found in enumerate(hashes) if found is not None]
    values = np.array([hashes[i] for i in positions], np.uint64)
    different, firsts, groups = np.unique(values, return_index=True, return_inverse=True)
    order = np.argsort(firsts)  # hashes in the order of their first images
    pairs = near(different[order], threshold)
    of, distance = list(range(len(order))), [0] * len(order)
    for a, b, bits in zip(*(column.tolist() for column in pairs), strict=True):
        if of[a] == a and of[b] == b:
            of[b], distance[b] = a, bits
    twins = []
    for i, group in zip(positions, np.argsort(order)[groups.reshape(-1)].tolist(), strict=True):
        kept = positions[int(firsts[order[of[group]]])]
        if kept != i:
            twins.append(Twin(i, kept, distance[group]))
    return twins


def near(hashes: np.ndarray, threshold: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find the pairs of different hashes, (N,) uint64, that differ in at most so many bits.

    First and second of each, first < second, sorted, and the number of bits: (n,) int64.
    """
    check_threshold(threshold)
    found: list[np.ndarray] = []
    counts = range(threshold // _BANDS + 1)
    flips = [bits for n in counts for bits in itertools.combinations(range(_BITS), n)]
    for band in range(_BANDS):
        part = (hashes >> np.uint64(_BITS * band)).astype(np.uint16)
        order = np.argsort(part, kind="stable")
        ordered = part[order]
        for bits in flips:
            wanted = part ^ np.uint16(sum(1 << bit for bit in bits))
            low, high = (np.searchsorted(ordered, wanted, side) for side in ("left", "right"))
            for a, b in _candidates(order, low, high):
                close = _ones(hashes[a] ^ hashes[b]) <= threshold
                found.append(a[close] * len(hashes) + b[close])
    pairs = np.unique(np.concatenate(found)) if found else np.zeros(0, np.int64)
    first, second = np.divmod(pairs, max(len(hashes), 1))
    return first, second, _ones(hashes[first] ^ hashes[second])


def _ones(numbers: np.ndarray) -> np.ndarray:
    """How many ones 64-bit numbers have, (n,) int64; NumPy 2 has bitwise_count."""
    table = np.array([number.bit_count() for number in range(256)], np.uint8)
    octets = np.ascontiguousarray(numbers).view(np.uint8).reshape(-1, 8)
    counts: np.ndarray = table[octets].sum(axis=1, dtype=np.int64)
    return counts


def _candidates(
    order: np.ndarray, low: np.ndarray, high: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pairs a < b of a row and the rows order[low[a]:high[a]], some at a time."""
    counts = high - low
    ends = np.cumsum(counts)
    start = 0
    while start < len(counts):
        done = int(ends[start - 1]) if start else 0
        stop = max(int(np.searchsorted(ends, done + _PAIRS, "right")), start + 1)
        some = counts[start:stop]
        a = np.repeat(np.arange(start, stop), some)
        within = np.arange(len(a)) - np.repeat(np.cumsum(some) - some, some)
        b = order[np.repeat(low[start:stop], some) + within]
        is_first = a < b
        yield a[is_first], b[is_first]
        start = stop
