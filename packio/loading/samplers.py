"""Samplers: orders that need no memory, resume at any sample, and fit any number of processes.

No order is stored: the index at any position is computed, of 10^10 samples in the same time as of a
thousand.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Sized
from typing import TYPE_CHECKING, Any

from packio.batches import draws
from packio.batches.draws import PositionedIndex
from packio.datasets.sizes import shard_lengths
from packio.errors import OptionError
from packio.loading.order import EpochSlice, Order
from packio.loading.permuting import Windows, permute

if TYPE_CHECKING:
    import numpy as np


class ShuffleSampler(Order[PositionedIndex]):
    """Every sample once an epoch, in an order that depends on seed and epoch alone.

    Works in any DataLoader, persistent workers included. Each rank takes every `world_size`-th
    position, so all ranks together follow the same order, whatever their number. Crops and flips of
    packio's datasets depend on the position, so batches are the same for any number of workers.

    Args:
        data: The dataset, or its length.
        seed: Seed of the order; the same on all ranks.
        epoch: First epoch. Each iteration begins the next one, unless `set_epoch` sets another.
        rank, world_size: This process among all. None: as torch.distributed says when an epoch
            begins, else 0 and 1. Under accelerate or Lightning give neither: the samples are shared
            out once.
        drop_last: Leave out samples at the end that do not suffice for all ranks; otherwise the
            first samples fill up the last step.
        even: False fills up nothing, so that every sample comes once, on one rank, as evaluation
            needs it. Some ranks then get a sample less than others, perhaps a batch less.
        shuffle: False keeps the order of the pack.
        window: Shards that are read at a time, for packs whose shards are far away; see below.
            None: all samples are shuffled together.

    With a `window`, shards come in random order, and every sample still comes once an epoch. The
    samples of ``window`` shards that follow each other in this order are shuffled together. When
    all of them have come, the next shards begin. So all ranks together use ``window`` shards at a
    time, and twice as many for a moment between two windows. Each shard is read in one stretch of
    the epoch, and every rank takes its part of it. A pack of one file is one shard: its order is a
    whole shuffle.

    The price: a batch has samples of ``window`` shards only. Measured with 160,000 samples in 128
    shards, sorted by 100 classes (``benchmarks/orders.py``): a batch of 256 has 4 classes with
    ``window=2``, 13 with 8, 44 with 32, and 93 without a window. Samples move through the whole
    epoch with any window: by a third of its length on average, as without. Samples that
    were shuffled when they were packed (``packio pack --shuffle SEED``) are mixed in any window.

    Raises:
        OptionError: the rank is not below the world size; or there is a window and no shuffling,
            or the dataset does not know its shards. Packio's datasets do, parts of them whose
            shards are not mixed, torch's ConcatDataset and Subset of these, and any dataset that
            has ``shard_lengths``, the number of samples of each shard.
    """

    _options = ("seed", "shuffle", "window", "even")

    def __init__(
        self,
        data: Sized | int,
        seed: int = 0,
        *,
        epoch: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        drop_last: bool = False,
        even: bool = True,
        shuffle: bool = True,
        window: int | None = None,
    ) -> None:
        super().__init__(
            data, length(data), seed, epoch=epoch, rank=rank, world_size=world_size,
            drop_last=drop_last,
        )  # fmt: skip
        self.even = even
        self.data_length: int = self.count  # of the dataset
        self.shuffle: bool = shuffle
        self.window: int | None = window
        self._windows = None
        if window is not None:
            if type(window) is not int or window < 1 or not shuffle:
                raise OptionError(
                    f"window={window!r}, shuffle={shuffle}: expected an int of at least 1 shard, "
                    "and shuffling"
                )
            self._windows = Windows(shard_lengths(data), window)

    @property
    def order(self) -> dict[str, Any]:
        shards = None if self._windows is None else self._windows.digest
        mine = {"shuffle": self.shuffle, "window": self.window, "shards": shards}
        order = {**super().order, **mine, **({} if self.even else {"even": False})}
        return order if self.shuffle else {n: order[n] for n in order if n != "seed"}

    def _indices(self, positions: np.ndarray, epoch: int) -> np.ndarray:
        if not self.shuffle:
            return positions
        key = draws.mix(self.seed, epoch, _ORDER)
        if self._windows is not None:
            return self._windows.indices(positions, key)
        return permute(positions, self.count, key)


class DefaultSampler(ShuffleSampler):
    """The order of a loader: a `ShuffleSampler` whose seed may be left to the loader.

    ``seed=None`` is what ``alone`` returns when an epoch needs it first, if there is one process.
    It is 0 if there are several: what one process draws the others do not know. ``even=None`` is
    True, with a warning where an epoch in the order of the pack, as in evaluation, has samples
    twice.
    """

    def __init__(
        self, data: Sized | int, seed: int | None, alone: Callable[[], int], *, shuffle: bool,
        even: bool | None = True, **others: Any,
    ) -> None:  # fmt: skip
        super().__init__(data, seed or 0, even=even is not False, shuffle=shuffle, **others)
        self._alone = alone if seed is None and shuffle else None
        self._warns = even is None and not shuffle
        self._is_far = False  # the loader itself tells what comes next

    @property
    def order(self) -> dict[str, Any]:
        self._settle()
        return {**super().order, "sampler": "ShuffleSampler"}

    def begin(self, part: EpochSlice | None = None) -> EpochSlice:
        """Begin a slice; the number of processes is known now, and so is the seed."""
        self._settle()
        part = super().begin(part)
        twice = -self.count % part.world_size
        if self._warns and twice and not part.rank:
            self._warns = False
            warnings.warn(
                f"Loader: {self.count} samples for {part.world_size} ranks: {twice} come twice, so "
                "that all ranks take as many steps. In evaluation count each once: "
                "packio.Loader(…, even=False); even=True says that they may come twice",
                stacklevel=5,
            )
        return part

    def _settle(self) -> None:
        if self._alone is not None and self.world_size > 1:
            self.seed = 0
        elif self._alone is not None:
            self.seed = self._alone()
            self._alone = functools.partial(int, self.seed)  # drawn once

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state; its seed is taken if the loader's user gave none."""
        if self._alone is not None and "seed" in state:
            self.seed, self._alone = state["seed"], None
        super().load_state_dict(state)


class RepeatAugSampler(Order[PositionedIndex]):
    """Each sample several times in a row, with other crops and flips: repeated augmentation.

    The copies are at neighbouring positions, and each rank takes every `world_size`-th position. So
    copies are in the same step: on different ranks if there are enough ranks, or side by side in
    the batch of one rank. Packio's datasets crop and flip each copy by random numbers of its own.

    An epoch has as many positions as there are samples, so it shows a `repeats`-th of the samples;
    the next epoch has another order. DeiT's and timm's samplers do the same, but also round the
    epoch down to a multiple of 256.

    Source: Hoffer et al., "Augment your batch", CVPR 2020; Berman et al., "MultiGrain",
    arXiv:1902.05509; DeiT's ``RASampler`` and timm's ``RepeatAugSampler``.

    Args:
        data: The dataset, or its length.
        repeats: Copies of each sample.
        seed, epoch, rank, world_size, drop_last, shuffle: As in `ShuffleSampler`.
        samples_per_epoch: Positions of an epoch, of all ranks together; None: as many as samples.
            ``repeats * len(data)`` shows all samples.

    Raises:
        OptionError: repeats is below 1, there are more positions than ``repeats * len(data)``, or
            the rank is not below the world size.
    """

    _names = ("shuffle", "repeats", "size")
    _options = ("seed", "shuffle", "repeats", "samples_per_epoch")

    def __init__(
        self,
        data: Sized | int,
        repeats: int = 3,
        seed: int = 0,
        *,
        samples_per_epoch: int | None = None,
        epoch: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        drop_last: bool = False,
        shuffle: bool = True,
    ) -> None:
        size = length(data)
        count = size if samples_per_epoch is None else samples_per_epoch
        if repeats < 1:
            raise OptionError(f"repeats={repeats}: expected at least 1")
        if not 0 <= count <= repeats * size:
            raise OptionError(
                f"samples_per_epoch={count}: {size} samples, {repeats} times each, are at most "
                f"{repeats * size}"
            )
        super().__init__(
            data, count, seed, epoch=epoch, rank=rank, world_size=world_size, drop_last=drop_last
        )
        self.data_length: int = size
        self.repeats: int = repeats
        self.shuffle: bool = shuffle
        self.size: int = size

    def _indices(self, positions: np.ndarray, epoch: int) -> np.ndarray:
        places = positions // self.repeats
        if not self.shuffle:
            return places
        return permute(places, self.size, draws.mix(self.seed, epoch, _ORDER))


def length(data: Sized | int) -> int:
    """Number of samples of a dataset, which is given as a dataset or as that number."""
    if isinstance(data, (bool, str, bytes, os.PathLike)):
        raise OptionError(f"data={data!r}: expected a dataset, or its length")
    return data if isinstance(data, int) else len(data)


def check_length(dataset: Any, sampler: Any) -> None:
    """Refuse a sampler that was made for another dataset, as far as the lengths tell.

    Of torch's samplers, only those are refused that number more samples than there are: a shorter
    one may be meant.
    """
    if sampler is None or not isinstance(dataset, Sized):
        return
    inner = getattr(sampler, "sampler", sampler)  # of torch's BatchSampler
    own: int | None = getattr(inner, "data_length", None)
    size = len(dataset)
    sources = (getattr(inner, name, None) for name in ("data_source", "dataset", "weights"))
    of_torch = (len(source) for source in sources if isinstance(source, Sized))
    there = next(of_torch, 0) if own is None else own
    if there > size or (own is not None and own != size):
        raise OptionError(
            f"the {type(inner).__name__} was made for {there} samples, the dataset has {size}; "
            "make the sampler of this dataset"
        )


_ORDER = 0x6F72646572  # keeps the order's random numbers apart from those of crops
