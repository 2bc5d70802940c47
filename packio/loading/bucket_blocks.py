"""Which samples each batch of buckets has: computed for any batch of any epoch, never stored.

The samples of a bucket, in an order of their own, are cut into blocks. A block is the batch of one
rank, or the batches of all ranks at one step. The blocks of all buckets of an epoch are shuffled
together. Only the order of all samples by their buckets is stored, four bytes a sample.

Where leftovers are carried, the orders of a bucket, one behind the other, are one endless row of
samples, and blocks are cut from the row. Epoch e ends where e + 1 orders end, but for what is too
little for a block: this is the beginning of the next epoch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from packio.batches import draws
from packio.datasets.sizes import Bucket, BucketCounts, image_sizes
from packio.images.bucketing import Buckets, is_small
from packio.loading.permuting import permuted, runs

LEFTOVERS = ("carry", "drop", "short")
_BLOCKS, _SAMPLES = 0x626C6F636B73, 0x73616D706C6573  # what random numbers are for


class Assignment(NamedTuple):
    """The samples of a dataset by their buckets.

    Attributes:
        order: (n,) uint32, or int64 for more than 2^32 samples: indices of the samples of the
            first bucket, then those of the second, and so on.
        counts: (K,) int64, samples of each bucket.
        small: Samples that are left out, because they are smaller than their size.
        digest: Hexadecimal digest of the sizes, and of the bucket of each sample.
    """

    order: np.ndarray
    counts: np.ndarray
    buckets: tuple[Bucket, ...]
    small: int
    digest: str


def assigned(data: Any, buckets: Buckets, *, drop_small: bool) -> Assignment:
    """Assign the samples of a dataset to the sizes that fit them best.

    Args:
        drop_small: Whether to leave out images that would have to be enlarged.
    """
    nowhere, tally = len(buckets), BucketCounts(buckets)
    digest = hashlib.blake2b(repr(buckets.sizes).encode(), digest_size=16)
    parts, counts = [], np.zeros(nowhere + 1, np.int64)
    for height, width in image_sizes(data):
        numbers = buckets.assign(height, width)
        if drop_small:
            kept = ~is_small(height, width, *buckets.of(numbers))
            tally.add(height[kept], width[kept], numbers[kept])
            numbers[~kept] = nowhere
        else:
            tally.add(height, width, numbers)
        counts += np.bincount(numbers, minlength=nowhere + 1)
        parts.append(numbers.astype(np.uint8 if nowhere < 1 << 8 else np.uint16))
        digest.update(parts[-1].tobytes())
    order = _sorted(parts, counts)
    small = int(counts[-1])
    return Assignment(order, counts[:-1], tally.result(), small, digest.hexdigest())


def _sorted(parts: list[np.ndarray], counts: np.ndarray) -> np.ndarray:
    """Indices of the samples by the numbers of their buckets; those of the last are left out."""
    starts = np.cumsum(counts) - counts
    dtype = np.uint32 if counts.sum() <= 1 << 32 else np.int64
    order, first = np.empty(int(starts[-1]), dtype), 0
    for numbers in parts:
        by_bucket = np.argsort(numbers, kind="stable")  # of 16 bits and less: a radix sort
        for bucket, part in runs(numbers[by_bucket]):
            if bucket < len(counts) - 1:
                count = part.stop - part.start
                order[starts[bucket] : starts[bucket] + count] = first + by_bucket[part]
                starts[bucket] += count
        first += len(numbers)
    return order


class Batches(NamedTuple):
    """Some batches.

    Attributes:
        samples: Indices of the samples of all of them, one batch behind the other.
        edges: (S + 1,) where each batch begins there, and the end.
        epochs: (S,) epoch that each batch is of, which may be earlier than the running one.
    """

    samples: np.ndarray
    edges: np.ndarray
    buckets: np.ndarray
    epochs: np.ndarray


class Blocks:
    """The batches of all epochs.

    Args:
        ranks: Batches of a block: those of all ranks at one step, or 1.
        leftovers: What becomes of samples that are too few for a block, see `LEFTOVERS`.
        seed: Of the orders; None: samples and batches stay in their order.
    """

    def __init__(
        self, found: Assignment, batch_size: int, ranks: int, leftovers: str, seed: int | None
    ) -> None:
        self._found, self._counts = found, found.counts
        self._starts = np.cumsum(found.counts) - found.counts
        self._ranks, self._size, self._seed = ranks, batch_size * ranks, seed
        self._leftovers = leftovers

    def _before(self, epoch: int) -> np.ndarray:
        """Blocks of each bucket that are of earlier epochs, where leftovers are carried."""
        if self._leftovers != "carry":
            return np.zeros_like(self._counts)
        before: np.ndarray = self._counts * epoch // self._size
        return before

    def _of(self, epoch: int) -> np.ndarray:
        """Blocks of each bucket in an epoch."""
        if self._leftovers == "carry":
            between: np.ndarray = self._before(epoch + 1) - self._before(epoch)
            return between
        up = self._size - 1 if self._leftovers == "short" else 0
        of: np.ndarray = (self._counts + up) // self._size
        return of

    def count(self, epoch: int) -> int:
        """Batches of an epoch."""
        return int(self._of(epoch).sum()) * self._ranks

    def before(self, epoch: int) -> int:
        """Batches of all earlier epochs, where leftovers are carried; else 0."""
        return int(self._before(epoch).sum()) * self._ranks

    def at(self, positions: np.ndarray, epoch: int) -> Batches:
        """Find the batches at some positions of an epoch.

        Args:
            positions: (S,) int64, ascending. Negative ones, in which earlier epochs end, are there
                where leftovers are carried. Those behind the end begin anew.
        """
        epochs, places = self._epochs(positions, epoch)
        bucket, nth = np.empty_like(places), np.empty_like(places)
        for number, part in runs(epochs):
            ends = np.cumsum(self._of(number))
            block = places[part] // self._ranks
            if self._seed is not None:
                key = draws.mix(self._seed, number, _BLOCKS)
                block = permuted(block, int(ends[-1]), key)
            bucket[part] = np.searchsorted(ends, block, "right")
            nth[part] = block - np.append(0, ends)[bucket[part]]
            nth[part] += self._before(number)[bucket[part]]
        return self._filled(epochs, bucket, nth * self._size, places % self._ranks)

    def _epochs(self, positions: np.ndarray, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The epoch that each position is of, and the position there."""
        epochs, places, number = np.full_like(positions, epoch), positions.copy(), epoch
        if self._leftovers != "carry":
            return epochs, places % max(self.count(epoch), 1)
        while (earlier := places < 0).any():
            number -= 1
            epochs[earlier] = number
            places[earlier] += self.count(number)
        return epochs, places

    def _filled(
        self, epochs: np.ndarray, bucket: np.ndarray, start: np.ndarray, rank: np.ndarray
    ) -> Batches:
        """Find the samples of batches.

        Args:
            start: (S,) where its block begins in the order of the bucket.
            rank: (S,) which batch of the block it is.
        """
        there = np.full_like(start, self._size)  # samples of the block
        if self._leftovers == "short":
            there = np.minimum(self._counts[bucket] - start, self._size)
        lengths = np.maximum(-(-(there - rank) // self._ranks), 1)
        edges = np.append(0, np.cumsum(lengths))
        owner = np.repeat(np.arange(len(lengths)), lengths)
        slot = np.arange(edges[-1]) - edges[owner]
        # a block of fewer samples than ranks gives some of them twice
        place = start[owner] + (rank[owner] + slot * self._ranks) % there[owner]
        mine, turn = bucket[owner], epochs[owner]
        if self._leftovers == "carry":
            turn, place = np.divmod(place, self._counts[mine])
        return Batches(self._drawn(mine, turn, place), edges, bucket, epochs)

    def _drawn(self, bucket: np.ndarray, turn: np.ndarray, place: np.ndarray) -> np.ndarray:
        """The samples at some places of the orders of their buckets; ``turn`` numbers the order."""
        if self._seed is not None:
            by_order = np.lexsort((turn, bucket))
            for number, part in runs(bucket[by_order]):
                some = by_order[part]
                for own, same in runs(turn[some]):
                    key = draws.mix(self._seed, number, own, _SAMPLES)
                    at = some[same]
                    place[at] = permuted(place[at], int(self._counts[number]), key)
        samples: np.ndarray = self._found.order[self._starts[bucket] + place]
        return samples


def split(batches: Batches) -> Iterator[tuple[list[int], int, int]]:
    """Yield of each batch its samples, its bucket and its epoch."""
    samples, edges = batches.samples.tolist(), batches.edges.tolist()
    each = zip(batches.buckets.tolist(), batches.epochs.tolist(), strict=True)
    for number, (bucket, epoch) in enumerate(each):
        yield samples[edges[number] : edges[number + 1]], bucket, epoch
