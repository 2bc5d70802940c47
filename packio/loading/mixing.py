"""Mixing: samples of several datasets in given proportions, each dataset in an order of its own."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from packio.batches import draws
from packio.batches.draws import PositionedIndex
from packio.errors import OptionError
from packio.loading.order import Order, tell_difference
from packio.loading.permuting import permute, runs

_ARRANGEMENT, _PASS, _PHASE = 0x6D6978, 0x70617373, 0x7068617365  # what random numbers are for
_BLOCK = 4096  # positions of which each dataset has its share, at random places


class MixedSampler(Order[PositionedIndex]):
    """Samples of several datasets, mixed at random in given proportions.

    In each epoch, every dataset gets its share, exact to one sample. The share is spread evenly
    over blocks of 4,096 positions; within a block the positions are random. Each dataset has an
    order that continues from epoch to epoch: no sample comes again before all samples of that
    dataset have come, and then the order changes. All depends on seed and epoch alone. Ranks,
    workers, resuming and draws work as with `ShuffleSampler`: no order is stored, and resuming
    takes the same time anywhere in an epoch.

    Args:
        data: A `ConcatPacks`, or an object with ``datasets`` one after the other; or their lengths.
        weights: Weight of each dataset, in any unit.
        seed: Seed of the order.
        samples_per_epoch: Samples of all ranks together; None: as many as all datasets have.
        epoch, rank, world_size, drop_last: As in `ShuffleSampler`.

    Attributes:
        shares: Samples of each dataset in an epoch.

    Raises:
        OptionError: there is not one weight of at least 0 for each dataset, a dataset with a weight
            has no samples, or the rank is not below the world size.
    """

    _names = ("sizes", "weights")
    _options = ("seed", "weights", "samples_per_epoch")
    _span = 16 * _BLOCK  # each block that is touched costs

    def __init__(
        self,
        data: Any,
        weights: Sequence[float],
        seed: int = 0,
        *,
        samples_per_epoch: int | None = None,
        epoch: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        drop_last: bool = False,
    ) -> None:
        each = getattr(data, "datasets", data)
        self.sizes: list[int] = [n if isinstance(n, int) else len(n) for n in each]
        places = getattr(data, "places", None)  # if the datasets' samples take turns
        self._at = None if places is None else np.argsort(places)
        self.weights: list[float] = [float(weight) for weight in weights]
        _check_weights(self.weights, self.sizes)
        count = sum(self.sizes) if samples_per_epoch is None else samples_per_epoch
        if count < 0:
            raise OptionError(f"samples_per_epoch={count}: expected at least 0")
        super().__init__(
            data, count, seed, epoch=epoch, rank=rank, world_size=world_size, drop_last=drop_last
        )
        self.data_length: int = sum(self.sizes)
        self.shares: list[int] = shares(self.weights, count)
        self._starts = [0, *itertools.accumulate(self.sizes)]
        nothing = np.empty(0, np.int64)
        self._latest_block = (-1, -1, -1), (nothing, nothing)  # number, epoch and seed; its turns

    @classmethod
    def of_order(
        cls, order: Mapping[str, Any], data: Any, *, drop_last: bool = False
    ) -> Order[Any]:
        """Make the sampler of an order; see `Order.of_order`."""
        sizes = [len(n) for n in getattr(data, "datasets", [data])]
        if sizes != list(order["sizes"]):
            difference = tell_difference("sizes", order["sizes"], sizes)
            raise OptionError(f"other datasets: {difference}; give the same, in the same order")
        parts = data if hasattr(data, "datasets") else sizes
        return super().of_order(order, parts, drop_last=drop_last)

    def _indices(self, positions: np.ndarray, epoch: int) -> np.ndarray:
        owners, turns = np.empty_like(positions), np.empty_like(positions)
        for block, part in runs(positions // _BLOCK):
            mine = positions[part] - block * _BLOCK
            owners[part], turns[part] = (of[mine] for of in self._block(block, epoch))
        return self._find_samples(owners, turns, epoch)

    def _block(self, block: int, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Find the owners of a block's positions, and which of its turns each owner has there."""
        which, found = self._latest_block
        if which != (block, epoch, self.seed):
            before, owners = self._owners(block, epoch)
            found = owners, before[owners] + _count_earlier(owners)
            self._latest_block = (block, epoch, self.seed), found  # at once: another thread reads
        return found

    def _owners(self, block: int, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Count each dataset's samples before a block; find the owners of its positions."""
        start, stop = block * _BLOCK, min((block + 1) * _BLOCK, self.count)
        before, after = (np.array(self._before(position, epoch)) for position in (start, stop))
        owners = np.repeat(np.arange(len(before)), after - before)
        key = draws.mix(self.seed, epoch, block, _ARRANGEMENT)
        return before, owners[permute(np.arange(stop - start), stop - start, key)]

    def _before(self, position: int, epoch: int) -> list[int]:
        """Count the samples of each dataset before the start of a block.

        A dataset takes its share of the positions that the datasets before it leave, rounded. What
        it takes and what it leaves both grow with the position, and sum up to the position.
        """
        counts, left, total = [], position, self.count
        for owner, share in enumerate(self.shares):
            phase = draws.mix(self.seed, epoch, owner, _PHASE) % max(total, 1)
            counts.append((share * left + phase) // max(total, 1))
            left, total = left - counts[-1], total - share
        return counts

    def _find_samples(self, owners: np.ndarray, turns: np.ndarray, epoch: int) -> np.ndarray:
        """Find the sample that a dataset gives at each of its turns of an epoch."""
        indices = np.empty_like(owners)
        for owner in np.flatnonzero(np.bincount(owners)).tolist():
            size, slots = self.sizes[owner], np.flatnonzero(owners == owner)
            passes, places = np.divmod(turns[slots] + epoch * self.shares[owner], size)
            for number, part in runs(passes):
                found = permute(places[part], size, draws.mix(self.seed, owner, number, _PASS))
                indices[slots[part]] = self._starts[owner] + found
        return indices if self._at is None else self._at[indices]


def _check_weights(weights: Sequence[float], sizes: Sequence[int]) -> None:
    if len(sizes) != len(weights) or not sizes:
        raise OptionError(f"{len(weights)} weights for {len(sizes)} datasets; expected one each")
    bad = [f"weights[{i}]={w}" for i, w in enumerate(weights) if not 0 <= w < math.inf]
    if bad or not any(weights):
        raise OptionError(f"{(bad or ['weights'])[0]}: expected numbers of at least 0, not all 0")
    for number, (size, weight) in enumerate(zip(sizes, weights, strict=True)):
        if weight and not size:
            raise OptionError(f"weights: {weight} for dataset {number}, which has no samples")


def shares(weights: Sequence[float], count: int) -> list[int]:
    """Divide a number in proportion to weights; each part is within one of its exact share.

    Uses largest remainders (Hamilton's method); among equal remainders the first wins.
    """
    total = math.fsum(weights)
    exact = [count * (weight / total) for weight in weights]
    parts = [math.floor(value) for value in exact]
    order = sorted(range(len(parts)), key=lambda i: (parts[i] - exact[i], i))
    for i in order[: count - sum(parts)]:
        parts[i] += 1
    return parts


def _count_earlier(owners: np.ndarray) -> np.ndarray:
    """Count, for each owner, how often the same owner came before."""
    small = owners.astype(np.min_scalar_type(owners.max(initial=0)))  # 16 bits sort by radix
    order = np.argsort(small, kind="stable")
    counts = np.bincount(owners)
    earlier = np.empty_like(owners)
    earlier[order] = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    return earlier
