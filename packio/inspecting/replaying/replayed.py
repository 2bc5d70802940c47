"""What a replay shows: batches of samples with their keys, crops and flips."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from packio.batches.collating import collate
from packio.batches.draws import Drawn
from packio.datasets.dataset import Dataset
from packio.errors import OptionError
from packio.images.frames import Placement
from packio.system.progress import ProgressCallback


@dataclasses.dataclass(frozen=True, slots=True)
class ReplayedSample:
    """A sample of a batch.

    Attributes:
        slot: Place in the batch.
        position: Place in the order of the epoch, over all ranks.
        index: Of the sample in the dataset.
        key: Surrogate-escaped text; None if the dataset is not packio's.
        label: As packed; None if there is none.
        class_name: Of the label; None if it has none.
        placements: For each view, the crop and the flips; None where they are not known.
        drawn: The index with its epoch and position, as the sampler gave it: for ``ds[drawn]``.
    """

    slot: int
    position: int
    index: int
    key: str | None
    label: int | list[float] | None
    class_name: str | None
    placements: tuple[Placement, ...] | None
    drawn: Drawn


@dataclasses.dataclass(frozen=True, slots=True)
class ReplayedBatch:
    """The batch of one rank in one step.

    Attributes:
        epoch, step, rank: Which batch.
        left_out: Whether the run has left the step out, by ``Loader(skip=…)``.
        crops_known: Whether the crops are known, which are the dataset's.
        samples: The samples, in the batch's order.
    """

    epoch: int
    step: int
    rank: int
    left_out: bool
    crops_known: bool
    samples: tuple[ReplayedSample, ...]


@dataclasses.dataclass(frozen=True)
class Replay:
    """Some steps of a run; `packio.replay` makes it.

    Attributes:
        dataset: The dataset, with the seed of the run.
        epoch: Number of the epoch.
        batches: One for each step and rank, by step, then by rank.
        order: What the order depends on.
        seed: Of crops and flips; None: not known, or there are none.
    """

    dataset: Any
    epoch: int
    batches: tuple[ReplayedBatch, ...]
    order: dict[str, Any]
    seed: int | None

    def batch(self, step: int, rank: int = 0) -> ReplayedBatch:
        """The batch of a step and a rank."""
        for batch in self.batches:
            if (batch.step, batch.rank) == (step, rank):
                return batch
        raise OptionError(f"step={step}, rank={rank}: not among the steps that were replayed")

    def load(self, step: int, rank: int = 0) -> Any:
        """Load a batch again: the very tensors that the rank got in that step.

        Args:
            step, rank: Which batch.

        Returns:
            What the loader handed out, before anything that it does on a device.
        """
        batch = self.batch(step, rank)
        if not batch.crops_known:
            raise OptionError(
                f"step {step}, rank {rank}: the crops are not known; hand over the dataset, or say "
                "crop= and seed="
            )
        indices = [sample.drawn for sample in batch.samples]
        if isinstance(self.dataset, Dataset):
            return self.dataset.gather(indices)
        together = getattr(self.dataset, "__getitems__", None)
        found = [self.dataset[i] for i in indices] if together is None else together(indices)
        return collate(found)

    def write_page(
        self, out: str | os.PathLike[str], *, size: int = 128,
        progress: ProgressCallback | None = None,
    ) -> int:  # fmt: skip
        """Write a contact sheet of the crops: one HTML file that needs no other file.

        Args:
            out: The HTML file; an earlier one is replaced.
            size: Longer side of a thumbnail, pixels.
            progress: Called with a `Progress` now and then.

        Returns:
            Bytes of the file.
        """
        from packio.inspecting.replaying.sheet import write_sheet

        return write_sheet(self, out, size=size, progress=progress)

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values, which JSON takes; keys are surrogate-escaped text."""
        return {
            "epoch": self.epoch,
            "order": self.order,
            "seed": self.seed,
            "batches": [
                {
                    "step": batch.step, "rank": batch.rank, "left_out": batch.left_out,
                    "samples": [_plain(sample) for sample in batch.samples],
                }
                for batch in self.batches
            ],
        }  # fmt: skip


def _plain(sample: ReplayedSample) -> dict[str, Any]:
    names = ("slot", "position", "index", "key", "label")
    views = sample.placements
    return {
        **{name: getattr(sample, name) for name in names},
        "class": sample.class_name,
        "crops": None if views is None else [_plain_view(view) for view in views],
    }


def _plain_view(placement: Placement) -> dict[str, Any]:
    numbers = {n: v for n, v in placement.frame._asdict().items() if n != "ratio"}
    return {**numbers, "orientation": placement.orientation,
            "hflip": bool(placement.hflip), "vflip": bool(placement.vflip)}  # fmt: skip


def samples_of(
    dataset: Any, indices: Sequence[Drawn], *, crops: bool
) -> tuple[ReplayedSample, ...]:
    """Describe the samples of a batch; of torch's Subsets, the dataset is the outer one."""
    return tuple(_sample(dataset, slot, drawn, crops=crops) for slot, drawn in enumerate(indices))


def beneath(dataset: Any, drawn: Drawn) -> tuple[Any, Drawn]:
    """The dataset beneath torch's Subsets, and the index of a sample there."""
    while isinstance(dataset, torch.utils.data.Subset):
        drawn = drawn.moved(int(dataset.indices[drawn]))
        dataset = dataset.dataset
    return dataset, drawn


def _sample(dataset: Any, slot: int, drawn: Drawn, *, crops: bool) -> ReplayedSample:
    source, own = beneath(dataset, drawn)
    if not isinstance(source, Dataset):
        return ReplayedSample(slot, drawn.position, int(drawn), None, None, None, None, drawn)
    part, row = source._find(own)  # noqa: SLF001 (no business of a dataset's user)
    pack = part.pack
    placements = None
    if crops:
        found = source.draw_of(own)
        placements = (found,) if isinstance(found, Placement) else found
    label = pack.label(row.position)
    name = None
    if isinstance(label, int) and 0 <= label < len(pack.classes):
        name = pack.classes[label]
    return ReplayedSample(
        slot, drawn.position, int(drawn), pack.key(row.position),
        label.tolist() if isinstance(label, np.ndarray) else label,
        name, placements, drawn,
    )  # fmt: skip
