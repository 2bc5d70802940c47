"""Batches by aspect ratio: each batch has images that fit one size best.

The samples of a bucket, in an order of their own, are cut into blocks. A block is the batch of one
rank, or the batches of all ranks at one step. The blocks of all buckets of an epoch are shuffled
together. So any batch of any epoch is computed; only the order of all samples by their buckets is
stored, four bytes a sample.

Where leftovers are carried, the orders of a bucket, one behind the other, are one endless row of
samples, and blocks are cut from the row. Epoch e ends where e + 1 orders end, but for what is too
little for a block: this is the beginning of the next epoch.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from packio.batches import draws
from packio.batches.draws import PositionedIndex
from packio.datasets.sizes import Bucket, BucketCounts, image_sizes
from packio.errors import OptionError
from packio.images.bucketing import Buckets, choose_buckets, is_small
from packio.loading.order import EpochSlice, Order
from packio.loading.permuting import permute, runs

Self = TypeVar("Self", bound="BucketSampler")

_LEFTOVERS = ("carry", "drop", "short")
_BLOCKS, _SAMPLES = 0x626C6F636B73, 0x73616D706C6573  # what random numbers are for
_MOST = 1 << 15  # samples whose places are computed together


class BucketSampler(Order[list[PositionedIndex]]):
    """Batches of images that fit one size best by their aspect ratio: aspect-ratio buckets.

    Give it as ``batch_sampler=`` to torch's DataLoader or to `packio.Loader`, and
    ``crop=packio.BucketCrop()`` to the dataset: this crop follows the size of each batch.

    An image belongs to the size whose ratio of width to height is nearest to its own, in
    logarithms; of two that are equally near, to the taller one. Of sizes with one ratio it belongs
    to the largest that it covers. The samples of each bucket are shuffled and cut into batches, and
    the batches of all buckets are shuffled together. All depends on seed and epoch alone. Ranks
    take turns: all take as many steps, and each sample goes to one of them.

    Args:
        data: The dataset. Packio's datasets know the sizes of their images, as do torch's
            ConcatDataset and Subset of these, and any dataset that has ``image_sizes``: (N, 2)
            integers, height and width.
        sizes: (height, width) of each bucket, pixels. Instead of ``area``.
        area: Most pixels of a bucket: all sizes of nearly this area are made.
        step: Sides of these sizes are multiples of it, pixels; None: 64.
        max_ratio: Most that the longer side of these sizes may be of the shorter one; None: 4.
        batch_size: Samples in a batch.
        seed: Of the order; the same on all ranks.
        leftovers: What becomes of samples of a bucket that are too few for a batch, and of batches
            that are too few for all ranks. "carry": they come first in the next epoch. "drop": they
            are left out, other ones in each epoch. "short": they come in smaller batches, and the
            first batches come again where the last step lacks some.
        drop_small: Leave out images that would have to be enlarged. `BucketCrop` enlarges them, or
            pads them, otherwise.
        same_size: Give all ranks batches of one size at each step. More samples are left over, as
            a bucket needs ``batch_size`` samples for each rank; and a state fits the same number of
            ranks only. Sizes of one area take nearly the same time, so that this brings little;
            with sizes of several areas, ranks would wait for the rank with the largest.
        shuffle: False keeps the order of the dataset in each bucket, and of the buckets.
        epoch, rank, world_size: As in `ShuffleSampler`.

    With ``leftovers="carry"`` epochs differ in length by a few batches, and the first batches of an
    epoch may be of an earlier one. Over all epochs every sample comes equally often, but for those
    that wait. A batch of carried samples and of samples of the next order may have a sample twice;
    the batches of a bucket that has fewer samples than a batch always do.

    `state_dict` counts batches. The length is that of the running epoch, else that of the next one.
    A state fits another world size, but not another batch size.

    Attributes:
        buckets: What each size gets of the dataset: a `packio.Bucket` each, in the order of the
            sizes.
        left_out: Samples that the next epoch leaves out: "small" ones, and "leftovers", which wait
            for a later epoch under ``leftovers="carry"``.
        batch_size, leftovers, drop_small, same_size, shuffle, seed: As given.

    Raises:
        OptionError: a value is not allowed, an image has no size in the index, or the rank is not
            below the world size.
    """

    yields_batches = True
    _options = ("sizes", "batch_size", "seed", "leftovers", "drop_small", "shuffle")
    _first_chunk = 1

    def __init__(
        self,
        data: Any,
        sizes: Sequence[tuple[int, int]] | None = None,
        *,
        area: int | None = None,
        step: int | None = None,
        max_ratio: float | None = None,
        batch_size: int,
        seed: int = 0,
        leftovers: str = "carry",
        drop_small: bool = False,
        same_size: bool = False,
        shuffle: bool = True,
        epoch: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        if type(batch_size) is not int or batch_size < 1:
            raise OptionError(f"batch_size={batch_size!r}: expected an int of at least 1")
        if leftovers not in _LEFTOVERS:
            raise OptionError(f"leftovers={leftovers!r}: expected one of {', '.join(_LEFTOVERS)}")
        buckets = choose_buckets(sizes, area, step, max_ratio)
        found = _assign_samples(data, buckets, drop_small=drop_small)
        self._found, self._counts = found, found.counts
        self._last_chunk = max(1, _MOST // batch_size)
        self._starts = np.cumsum(found.counts) - found.counts
        self.buckets: tuple[Bucket, ...] = found.buckets
        self.data_length: int = len(found.order) + found.small
        self.batch_size: int = batch_size
        self.leftovers: str = leftovers
        self.same_size: bool = same_size
        self.shuffle: bool = shuffle
        self.drop_small: bool = drop_small
        super().__init__(
            data, len(found.order), seed, epoch=epoch, rank=rank, world_size=world_size,
            drop_last=leftovers != "short",
        )  # fmt: skip

    @property
    def order(self) -> dict[str, Any]:
        return {
            **super().order, "batch_size": self.batch_size, "buckets": self._found.digest,
            "leftovers": self.leftovers, "shuffle": self.shuffle,
            "same_size": self.world_size if self.same_size else None,
            "sizes": [list(bucket.size) for bucket in self.buckets], "drop_small": self.drop_small,
        }  # fmt: skip

    @classmethod
    def of_order(
        cls, order: Mapping[str, Any], data: Any, *, drop_last: bool = False
    ) -> BucketSampler:
        """Make the sampler of an order; see `Order.of_order`. Leftovers say drop_last."""
        del drop_last
        ranks, given = order["same_size"], {name: order[name] for name in cls._options}
        made = cls(data, **given, same_size=ranks is not None, rank=0, world_size=ranks or 1)
        return made.check({**order, "epoch": 0, "consumed": 0})

    @property
    def left_out(self) -> dict[str, int]:
        """Samples that the next epoch leaves out."""
        part = self.slice_from(self.epoch, self._start)
        leftovers = 0
        if self.leftovers != "short":
            given = self._batches_before(part.epoch) + part.count_consumed(part.steps)
            epochs = part.epoch + 1 if self.leftovers == "carry" else 1
            leftovers = epochs * self.count - given * self.batch_size
        return {"small": self._found.small, "leftovers": leftovers}

    def end_of(self, epoch: int) -> int:
        return int(self._blocks_of(epoch).sum()) * self._batches_of_block

    def start_of(self, epoch: int, world_size: int) -> int:
        return -(self._batches_before(epoch) % world_size)

    def _start_after(self, part: EpochSlice) -> int | None:
        if self.leftovers != "carry":
            return None
        return part.count_consumed(part.steps) - self.end_of(part.epoch)

    def check(self: Self, state: Mapping[str, Any]) -> Self:
        super().check(state)
        if state["consumed"] < -self._batches_before(state["epoch"]):
            raise OptionError(f"consumed={state['consumed']}: no such batch before the epoch")
        return self

    def walk(self, part: EpochSlice) -> Iterator[list[PositionedIndex]]:
        if self.leftovers == "drop" and self.count and not part.steps and part.start <= 0:
            warnings.warn(
                f"the epoch has no batch: the largest bucket has {int(self._counts.max()):,} "
                f"samples, a step takes {self.batch_size:,} of one size on each of "
                f"{part.world_size} ranks, and leftovers='drop' leaves the rest out; take a "
                "smaller batch_size, larger or fewer sizes, or leftovers='carry' or 'short'",
                stacklevel=3,
            )
        return super().walk(part)

    @property
    def _batches_of_block(self) -> int:
        return self.world_size if self.same_size else 1

    def _blocks_before(self, epoch: int) -> np.ndarray:
        """Blocks of each bucket that are of earlier epochs, where leftovers are carried; else 0."""
        if self.leftovers != "carry":
            return np.zeros_like(self._counts)
        before: np.ndarray = self._counts * epoch // (self.batch_size * self._batches_of_block)
        return before

    def _batches_before(self, epoch: int) -> int:
        return int(self._blocks_before(epoch).sum()) * self._batches_of_block

    def _blocks_of(self, epoch: int) -> np.ndarray:
        """Blocks of each bucket in an epoch."""
        if self.leftovers == "carry":
            between: np.ndarray = self._blocks_before(epoch + 1) - self._blocks_before(epoch)
            return between
        size = self.batch_size * self._batches_of_block
        of: np.ndarray = (self._counts + (size - 1 if self.leftovers == "short" else 0)) // size
        return of

    def at(self, positions: np.ndarray, epoch: int) -> list[list[PositionedIndex]]:
        """Compute the batches at some ascending positions of an epoch.

        Negative positions, in which earlier epochs end, are there where leftovers are carried.
        Those behind the end begin anew.
        """
        ranks, number = self._batches_of_block, epoch
        # the epoch that each batch is of, and its place there, which no other batch has
        epochs, places = np.full_like(positions, epoch), positions.copy()
        while self.leftovers == "carry" and (earlier := places < 0).any():
            number -= 1
            epochs[earlier] = number
            places[earlier] += self.end_of(number)
        bucket, start = np.empty_like(places), np.empty_like(places)
        for number, part in runs(epochs):
            ends = np.cumsum(self._blocks_of(number))
            block = places[part] % max(int(ends[-1]) * ranks, 1) // ranks
            if self.shuffle:
                block = permute(block, int(ends[-1]), draws.mix(self.seed, number, _BLOCKS))
            bucket[part] = np.searchsorted(ends, block, "right")
            nth = block - np.append(0, ends)[bucket[part]]
            nth += self._blocks_before(number)[bucket[part]]
            start[part] = nth * self.batch_size * ranks
        samples, edges = self._find_samples(epochs, bucket, start, places % ranks)
        batches = []
        each = zip(places.tolist(), bucket.tolist(), epochs.tolist(), strict=True)
        for number, (place, of, own) in enumerate(each):
            first, size = place * self.batch_size, self.buckets[of].size
            indices = samples[edges[number] : edges[number + 1]]
            batches.append(
                [PositionedIndex(i, own, first + n, size) for n, i in enumerate(indices)]
            )
        return batches

    def _find_samples(
        self, epochs: np.ndarray, bucket: np.ndarray, start: np.ndarray, rank: np.ndarray
    ) -> tuple[list[int], list[int]]:
        """The samples of S batches, one batch behind the other, and the S + 1 edges of the batches.

        Each batch has the ``start`` of its block in the order of its bucket, and a ``rank`` in it.
        """
        ranks = self._batches_of_block
        there = np.full_like(start, self.batch_size * ranks)  # samples of the block
        if self.leftovers == "short":
            there = np.minimum(self._counts[bucket] - start, there)
        lengths = np.maximum(-(-(there - rank) // ranks), 1)
        edges = np.append(0, np.cumsum(lengths))
        owner = np.repeat(np.arange(len(lengths)), lengths)
        slot = np.arange(edges[-1]) - edges[owner]
        # a block of fewer samples than ranks gives some of them twice
        place = start[owner] + (rank[owner] + slot * ranks) % there[owner]
        mine, turn = bucket[owner], epochs[owner]  # the turn numbers the order of the bucket
        if self.leftovers == "carry":
            turn, place = np.divmod(place, self._counts[mine])
        if self.shuffle:
            orders = (turn - turn.min(initial=0)) * len(self._counts) + mine
            by_order = np.argsort(orders, kind="stable")
            for _, part in runs(orders[by_order]):
                at = by_order[part]
                number = int(mine[at[0]])
                key = draws.mix(self.seed, number, int(turn[at[0]]), _SAMPLES)
                place[at] = permute(place[at], int(self._counts[number]), key)
        return self._found.order[self._starts[mine] + place].tolist(), edges.tolist()


class _Assignment(NamedTuple):
    """The samples of a dataset by their buckets."""

    order: np.ndarray  # (n,) indices: those of the first bucket, then those of the second, …
    counts: np.ndarray  # (K,) int64, samples of each bucket
    buckets: tuple[Bucket, ...]
    small: int  # samples that are left out, because they are smaller than their size
    digest: str  # of the sizes, and of the bucket of each sample


def _assign_samples(data: Any, buckets: Buckets, *, drop_small: bool) -> _Assignment:
    """Assign the samples of a dataset to the sizes that fit them best."""
    nowhere, tally = len(buckets), BucketCounts(buckets)
    digest = hashlib.blake2b(repr(buckets.sizes).encode(), digest_size=16)
    parts = [np.empty(0, np.uint8)]
    for height, width in image_sizes(data):
        numbers = buckets.assign(height, width)
        kept = ~(is_small(height, width, *buckets.look_up_sizes(numbers)) & drop_small)
        tally.add(height[kept], width[kept], numbers[kept])
        numbers[~kept] = nowhere
        parts.append(numbers.astype(np.uint8 if nowhere < 1 << 8 else np.uint16))
        digest.update(parts[-1].tobytes())
    numbers = np.concatenate(parts)
    *counts, small = np.bincount(numbers, minlength=nowhere + 1).tolist()
    by_bucket = np.argsort(numbers, kind="stable")  # of 16 bits and less: a radix sort
    dtype = np.uint32 if len(numbers) <= 1 << 32 else np.int64
    order = by_bucket[: len(numbers) - small].astype(dtype)
    return _Assignment(order, np.array(counts), tally.result(), small, digest.hexdigest())
