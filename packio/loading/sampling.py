"""Sampling: a global shuffle that needs no memory, resumes anywhere, and fits any world size.

The order of an epoch is a permutation that is computed, not stored: a Feistel network maps each
position to an index. The network permutes the smallest domain of 2^(2k) numbers that holds all
positions; a result outside the wanted range goes through the network again.
Source: Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from typing import Any

import numpy as np
import torch

from packio.batches import draws
from packio.batches.draws import Drawn
from packio.errors import OptionError

_ROUNDS = 8
_CHUNK = 4096  # positions computed together
_M1, _M2 = (
    np.uint64(0xBF58476D1CE4E5B9),
    np.uint64(0x94D049BB133111EB),
)  # as in packio.batches.draws


def permuted(positions: np.ndarray, count: int, key: int) -> np.ndarray:
    """Apply a permutation of 0..count-1 to some positions.

    Args:
        positions: (n,) int64, each in 0..count-1.
        count: Size of the permutation.
        key: 64 bits that select the permutation.

    Returns:
        (n,) int64.
    """
    half = np.uint64(max(1, -(-max(count - 1, 1).bit_length() // 2)))
    mask = np.uint64((1 << int(half)) - 1)
    keys = [np.uint64(draws.mix(key, i)) for i in range(_ROUNDS)]
    result = positions.astype(np.uint64)
    outside = np.ones(len(result), bool)
    while outside.any():  # few rounds: the domain is at most 4 times as large
        values = result[outside]
        left, right = values >> half, values & mask
        for round_key in keys:
            left, right = right, left ^ (_mixed(right ^ round_key) & mask)
        result[outside] = left << half | right
        outside = result >= count
    return result.astype(np.int64)


def _mixed(z: np.ndarray) -> np.ndarray:
    z = (z ^ z >> np.uint64(30)) * _M1
    z = (z ^ z >> np.uint64(27)) * _M2
    mixed: np.ndarray = z ^ z >> np.uint64(31)
    return mixed


class ResumableSampler(torch.utils.data.Sampler[int]):
    """An order in which the index at each position of an epoch is computed by itself.

    A subclass defines ``_indices``. The order works in any DataLoader, persistent workers included.
    Each rank takes every `world_size`-th position, so all ranks together follow the same order,
    whatever their number. Crops and flips of packio's datasets depend on the position, so batches
    are the same for any number of workers.

    Args:
        count: Positions of an epoch.
        seed: Seed of the order.
        epoch: First epoch; each iteration goes on to the next, unless `set_epoch` sets another.
        rank, world_size: This process among all; None: as torch.distributed says, else 0 and 1.
        drop_last: Leave out samples at the end that do not suffice for all ranks; otherwise the
            first samples fill up the last step.

    Raises:
        OptionError: the rank is not below the world size.
    """

    def __init__(
        self, count: int, seed: int, *, epoch: int, rank: int | None, world_size: int | None,
        drop_last: bool,
    ) -> None:  # fmt: skip
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        if world_size is None:
            world_size = torch.distributed.get_world_size() if distributed else 1
        if rank is None:
            rank = torch.distributed.get_rank() if distributed else 0
        if not 0 <= rank < world_size:
            raise OptionError(
                f"rank={rank}, world_size={world_size}: expected 0 <= rank < world_size"
            )
        self.count, self.seed, self.epoch = count, seed, epoch
        self.rank, self.world_size, self.drop_last, self._begun = rank, world_size, drop_last, 0

    @property
    def order(self) -> dict[str, Any]:
        """Everything but the epoch that the order depends on; fits `torch.save` and JSON."""
        return {"sampler": type(self).__name__, "seed": self.seed, "samples": self.count}

    def _indices(self, positions: np.ndarray, epoch: int) -> np.ndarray:
        """The index at each of some ascending positions, 0..count-1, of an epoch."""
        raise NotImplementedError

    def __len__(self) -> int:
        """Samples that this rank takes in a whole epoch."""
        if self.drop_last:
            return self.count // self.world_size
        return (self.count + self.world_size - 1) // self.world_size

    def __iter__(self) -> Iterator[int]:
        """Go through an epoch, from where `load_state_dict` says."""
        epoch, begun = self.epoch, self._begun
        self._begun = 0
        for start in range(begun, len(self), _CHUNK):
            steps = np.arange(start, min(start + _CHUNK, len(self)))
            positions = steps * self.world_size + self.rank
            whole = int(np.searchsorted(positions, self.count))  # then it begins anew
            indices = self._indices(positions[:whole], epoch).tolist()
            indices += self._indices(positions[whole:] % self.count, epoch).tolist()
            for index, position in zip(indices, positions.tolist(), strict=True):
                yield Drawn(index, epoch, position)
        if self.epoch == epoch:  # unless somebody has set another
            self.epoch = epoch + 1

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        self.epoch, self._begun = epoch, 0

    def go_on(self, epoch: int, consumed: int) -> None:
        """Let the next iteration be the rest of an epoch, after so many samples of all ranks."""
        self.epoch, self._begun = epoch, -(-consumed // self.world_size)

    def state_dict(self, consumed: int = 0) -> dict[str, Any]:
        """Tell the position in an epoch.

        Args:
            consumed: Samples of the epoch that this rank has trained on: batches times their size.
                A DataLoader takes more than these from the sampler, as it works ahead.
        """
        return {**self.order, "epoch": self.epoch, "consumed": consumed * self.world_size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state: the next iteration is the rest of its epoch, for any world size.

        Raises:
            OptionError: the state belongs to another order.
        """
        self.check(state)
        self.go_on(state["epoch"], state["consumed"])

    def check(self, state: Mapping[str, Any]) -> None:
        """Check that a state belongs to this order.

        Raises:
            OptionError: it belongs to another order.
        """
        if any(state.get(name) != ours for name, ours in self.order.items()):
            raise OptionError(
                f"the state is of another order: {dict(state)}; that of the {type(self).__name__} "
                f"is {self.order}"
            )


class ShuffleSampler(ResumableSampler):
    """Every sample once an epoch, in an order that depends on seed and epoch alone.

    Works in any DataLoader, persistent workers included. Each rank takes every `world_size`-th
    position, so all ranks together follow the same order, whatever their number. Crops and flips of
    packio's datasets depend on the position, so batches are the same for any number of workers.

    Args:
        data: The dataset, or its length.
        seed: Seed of the order.
        epoch: First epoch; each iteration goes on to the next, unless `set_epoch` sets another.
        rank, world_size: This process among all; None: as torch.distributed says, else 0 and 1.
        drop_last: Leave out samples at the end that do not suffice for all ranks; otherwise the
            first samples fill up the last step.
        shuffle: False keeps the order of the pack.

    Raises:
        OptionError: the rank is not below the world size.
    """

    def __init__(
        self,
        data: Sized | int,
        seed: int = 0,
        *,
        epoch: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        drop_last: bool = False,
        shuffle: bool = True,
    ) -> None:
        super().__init__(
            length(data), seed, epoch=epoch, rank=rank, world_size=world_size, drop_last=drop_last
        )
        self.shuffle = shuffle

    @property
    def order(self) -> dict[str, Any]:
        """What the order depends on, beside the epoch."""
        order = {**super().order, "shuffle": self.shuffle}
        return order if self.shuffle else {n: order[n] for n in order if n != "seed"}

    def _indices(self, positions: np.ndarray, epoch: int) -> np.ndarray:
        if not self.shuffle:
            return positions
        return permuted(positions, self.count, draws.mix(self.seed, epoch, _ORDER))


class RepeatAugSampler(ResumableSampler):
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
            count, seed, epoch=epoch, rank=rank, world_size=world_size, drop_last=drop_last
        )
        self.repeats, self.shuffle, self._size = repeats, shuffle, size

    @property
    def order(self) -> dict[str, Any]:
        """What the order depends on, beside the epoch."""
        mine = {"shuffle": self.shuffle, "repeats": self.repeats, "size": self._size}
        return {**super().order, **mine}

    def _indices(self, positions: np.ndarray, epoch: int) -> np.ndarray:
        places = positions // self.repeats
        if not self.shuffle:
            return places
        return permuted(places, self._size, draws.mix(self.seed, epoch, _ORDER))


def length(data: Sized | int) -> int:
    """Number of samples of a dataset, which is given as a dataset or as that number."""
    return data if isinstance(data, int) else len(data)


_ORDER = 0x6F72646572  # keeps the order's random numbers apart from those of crops
