"""Batches by aspect ratio: each batch has images that fit one size best."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from packio.batches.draws import Drawn
from packio.datasets.sizes import Bucket
from packio.errors import OptionError
from packio.images.bucketing import choose_buckets
from packio.loading.bucket_blocks import LEFTOVERS, Blocks, assigned, split
from packio.loading.resuming import Pass, Resumable, positions_of

_MOST = 1 << 15  # samples whose places are computed together


class BucketSampler(Resumable[list[Drawn]]):
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

    _steps_are = "batches"

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
        if leftovers not in LEFTOVERS:
            raise OptionError(f"leftovers={leftovers!r}: expected one of {', '.join(LEFTOVERS)}")
        found = assigned(data, choose_buckets(sizes, area, step, max_ratio), drop_small=drop_small)
        self._found = found
        self.buckets: tuple[Bucket, ...] = found.buckets
        self.data_length: int = len(found.order) + found.small
        self.batch_size: int = batch_size
        self.leftovers: str = leftovers
        self.same_size: bool = same_size
        self.shuffle: bool = shuffle
        self.drop_small: bool = drop_small
        super().__init__(
            len(found.order), seed, epoch=epoch, rank=rank, world_size=world_size,
            drop_last=leftovers != "short",
        )  # fmt: skip

    @property
    def order(self) -> dict[str, Any]:
        """What the order depends on, beside the epoch."""
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
        """Make the sampler of an order; see `Resumable.of_order`. Leftovers say drop_last."""
        del drop_last
        made = cls(
            data, [(height, width) for height, width in order["sizes"]],
            batch_size=order["batch_size"], seed=order["seed"], leftovers=order["leftovers"],
            drop_small=order["drop_small"], same_size=order["same_size"] is not None,
            shuffle=order["shuffle"], rank=0, world_size=order["same_size"] or 1,
        )  # fmt: skip
        made.check({**order, "epoch": 0, "consumed": 0})
        return made

    def batches_from(
        self, epoch: int, position: int, batch_size: int, *, rank: int, world_size: int,
        drop_last: bool = False,
    ) -> Iterator[list[Drawn]]:  # fmt: skip
        """Yield the batches that a rank gets; see `Resumable.batches_from`."""
        steps = self._steps(epoch, position, world_size)
        return self.walk(Pass(epoch, position, rank, world_size, steps))

    @property
    def left_out(self) -> dict[str, int]:
        """Samples that the next epoch leaves out."""
        part, blocks = self.pass_from(self.epoch, self._begun), self._blocks()
        leftovers = 0
        if self.leftovers != "short":
            given = blocks.before(part.epoch) + part.consumed(part.steps)
            epochs = part.epoch + 1 if self.leftovers == "carry" else 1
            leftovers = epochs * self.count - given * self.batch_size
        return {"small": self._found.small, "leftovers": leftovers}

    def _blocks(self) -> Blocks:
        ranks = self.world_size if self.same_size else 1
        seed = self.seed if self.shuffle else None
        return Blocks(self._found, self.batch_size, ranks, self.leftovers, seed)

    def __len__(self) -> int:
        """Batches that this rank takes in the whole running epoch, or else in the next one."""
        self._told = self.world_size
        running = self.latest if self._open else None
        epoch = self.epoch if running is None else running.epoch
        return self._steps(epoch, self._first(epoch, self._told), self._told)

    def _positions_of(self, epoch: int) -> int:
        return self._blocks().count(epoch)

    def _first(self, epoch: int, world_size: int) -> int:
        return -(self._blocks().before(epoch) % world_size)

    def _after(self, part: Pass) -> int | None:
        if self.leftovers != "carry":
            return None
        return part.consumed(part.steps) - self._positions_of(part.epoch)

    def check(self, state: Mapping[str, Any]) -> None:
        """Check that a state belongs to this order.

        Raises:
            OptionError: it belongs to another order.
        """
        super().check(state)
        if state["consumed"] < -self._blocks().before(state["epoch"]):
            raise OptionError(f"consumed={state['consumed']}: no such batch before the epoch")

    def walk(self, part: Pass) -> Iterator[list[Drawn]]:
        """Yield the batches of a pass."""
        if self.leftovers == "drop" and self.count and not part.steps and part.begun <= 0:
            most = int(self._found.counts.max())
            warnings.warn(
                f"the epoch has no batch: the largest bucket has {most:,} samples, a step takes "
                f"{self.batch_size:,} of one size on each of {part.world_size} ranks, and "
                "leftovers='drop' leaves the rest out; take a smaller batch_size, larger or fewer "
                "sizes, or leftovers='carry' or 'short'",
                stacklevel=3,
            )
        blocks, sizes = self._blocks(), [bucket.size for bucket in self.buckets]
        for positions in positions_of(part, 1, max(1, _MOST // self.batch_size)):
            found = split(blocks.at(positions, part.epoch))
            for position, (samples, bucket, epoch) in zip(positions.tolist(), found, strict=True):
                size = sizes[bucket]
                # of the epoch that the batch is of, in which no other batch has this place
                first = (position + self._shift(blocks, part.epoch, epoch)) * self.batch_size
                yield [Drawn(i, epoch, first + n, size) for n, i in enumerate(samples)]

    @staticmethod
    def _shift(blocks: Blocks, epoch: int, earlier: int) -> int:
        """From a position in an epoch to the position in an earlier one."""
        return 0 if epoch == earlier else blocks.before(epoch) - blocks.before(earlier)
