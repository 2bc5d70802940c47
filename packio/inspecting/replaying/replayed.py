"""What a replay shows: batches of samples with their keys, crops and flips."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from packio.batches.collating import collate
from packio.batches.draws import PositionedIndex
from packio.datasets.dataset import Dataset
from packio.datasets.lookahead import unwrap_subset
from packio.errors import OptionError, PackioError
from packio.images.frames import Placement
from packio.inspecting import pages
from packio.inspecting.gallery import make_pixels_thumbnail
from packio.system.progress import ProgressCallback
from packio.system.quantities import pluralize


@dataclasses.dataclass(frozen=True, slots=True)
class ReplayedSample:
    """A sample of a batch."""

    slot: int  # place in the batch
    position: int  # place in the order of the epoch, over all ranks
    index: int  # of the sample in the dataset
    key: str | None  # surrogate-escaped text; None if the dataset is not packio's
    label: int | list[float] | None  # as packed; None if there is none
    class_name: str | None  # of the label; None if it has none
    # For each view, the crop and the flips; None where they are not known
    placements: tuple[Placement, ...] | None
    drawn: PositionedIndex  # as the sampler gave it, with epoch and position: for ``ds[drawn]``


@dataclasses.dataclass(frozen=True, slots=True)
class ReplayedBatch:
    """The batch of one rank in one step."""

    epoch: int  # which batch
    step: int
    rank: int
    left_out: bool  # whether the run has left the step out, by ``Loader(skip=…)``
    crops_known: bool  # whether the crops are known, which are the dataset's
    samples: tuple[ReplayedSample, ...]  # the samples, in the batch's order


@dataclasses.dataclass(frozen=True)
class Replay:
    """Some steps of a run; `packio.replay` makes it."""

    dataset: Any  # the dataset, with the seed of the run
    epoch: int  # number of the epoch
    batches: tuple[ReplayedBatch, ...]  # one for each step and rank, by step, then by rank
    order: dict[str, Any]  # what the order depends on
    seed: int | None  # of crops and flips; None: not known, or there are none

    def batch(self, step: int, rank: int = 0) -> ReplayedBatch:
        """The batch of a step and a rank."""
        for batch in self.batches:
            if (batch.step, batch.rank) == (step, rank):
                return batch
        raise OptionError(f"step={step}, rank={rank}: not among the steps that were replayed")

    def load(self, step: int, rank: int = 0) -> Any:
        """Load a batch again: the very tensors that the rank got in that step.

        Returns:
            What the loader handed out, before anything that it does on a device.
        """
        batch = self.batch(step, rank)
        if not batch.crops_known:
            raise OptionError(
                f"step {step}, rank {rank}: the crops are not known; hand over the dataset, or say "
                f"crop={'' if self.seed is not None else ' and seed='}"
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
        if size < 1:
            raise OptionError(f"size={size}: expected at least 1")
        if not isinstance(unwrap_subset(self.dataset), Dataset):
            raise OptionError("a page needs a dataset of packio's, which knows its images")
        path = Path(out)
        pages.check_place(path)
        samples = [(batch, sample) for batch in self.batches for sample in batch.samples]
        make = functools.partial(_make_entry, self.dataset, size)
        batches = self._batches_of(pages.make_entries(make, samples, progress))
        values = _values(self, len(samples), size)
        return pages.write_page(
            path, pages.make_page(Path(__file__).parent, {**values, "data": batches})
        )

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values, which JSON takes; keys are surrogate-escaped text."""
        entries = [_make_plain(sample) for batch in self.batches for sample in batch.samples]
        batches = self._batches_of(entries)
        return {"epoch": self.epoch, "order": self.order, "seed": self.seed, "batches": batches}

    def _batches_of(self, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The batches with an entry for each of their samples."""
        left = iter(entries)
        return [
            {"step": batch.step, "rank": batch.rank, "left_out": batch.left_out,
             "samples": list(itertools.islice(left, len(batch.samples)))}
            for batch in self.batches
        ]  # fmt: skip


def _make_plain(sample: ReplayedSample) -> dict[str, Any]:
    names, views = ("slot", "position", "index", "key", "label"), sample.placements
    crops = None if views is None else [
        {**{n: v for n, v in view.frame._asdict().items() if n != "ratio"},
         "orientation": view.orientation, "hflip": bool(view.hflip), "vflip": bool(view.vflip)}
        for view in views
    ]  # fmt: skip
    values = {name: getattr(sample, name) for name in names}
    return {**values, "class": sample.class_name, "crops": crops}


def beneath(dataset: Any, drawn: PositionedIndex) -> tuple[Any, PositionedIndex]:
    """The dataset beneath torch's Subsets, and the index of a sample there."""
    while isinstance(dataset, torch.utils.data.Subset):
        drawn = drawn.with_index(int(dataset.indices[drawn]))
        dataset = dataset.dataset
    return dataset, drawn


def describe_sample(
    dataset: Any, slot: int, drawn: PositionedIndex, *, crops: bool
) -> ReplayedSample:
    """A sample of a batch; of torch's Subsets, the dataset is the outer one."""
    source, own = beneath(dataset, drawn)
    if not isinstance(source, Dataset):
        return ReplayedSample(slot, drawn.position, int(drawn), None, None, None, None, drawn)
    part, row = source._find(own)  # noqa: SLF001 (no business of a dataset's user)
    pack, found = part.pack, source.draw_of(own) if crops else None
    label, classes = pack.label(row.position), pack.classes
    return ReplayedSample(
        slot, drawn.position, int(drawn), pack.key(row.position),
        label.tolist() if isinstance(label, np.ndarray) else label,
        classes[label] if isinstance(label, int) and 0 <= label < len(classes) else None,
        (found,) if isinstance(found, Placement) else found, drawn,
    )  # fmt: skip


def _values(replay: Replay, count: int, size: int) -> dict[str, Any]:
    steps = {batch.step for batch in replay.batches}
    first, last = min(steps), max(steps)
    facts = [
        f"epoch {replay.epoch}",
        f"{pluralize(count, 'sample')} in {pluralize(len(replay.batches), 'batch')}",
        f"order: {replay.order['sampler']}",
    ]
    if replay.seed is not None:
        facts.append(f"seed {replay.seed}")
    if not all(batch.crops_known for batch in replay.batches):
        facts.append("whole images where the crops are not known")
    span = f"step {first}" if first == last else f"steps {first} to {last}"
    return {"title": f"Replay: {span}", "facts": facts, "size": size}


def _make_entry(
    dataset: Any, size: int, one: tuple[ReplayedBatch, ReplayedSample]
) -> dict[str, Any]:
    batch, sample = one
    source, own = beneath(dataset, sample.drawn)
    part, row = source._find(own)  # noqa: SLF001 (no business of a dataset's user)
    upright = part.options["exif_orientation"] and row.orientation >= 5
    width, height = (row.height, row.width) if upright else (row.width, row.height)
    images, error = list[str](), None
    try:
        for image in source._seen(own, whole=not batch.crops_known):  # noqa: SLF001 (as above)
            images.append(pages.as_base64(make_pixels_thumbnail(image.numpy(), size)))
    except PackioError as caught:
        images, error = [], pages.readable(str(caught))
    label = "" if sample.label is None else str(sample.label)
    name = label if sample.class_name is None else sample.class_name
    return {
        "slot": sample.slot, "position": sample.position, "index": sample.index,
        "key": pages.readable(sample.key or ""), "class": pages.readable(name),
        "width": width, "height": height,
        "images": images, "views": [_view(placement) for placement in sample.placements or ()],
        "bytes": 0, "error": error,
    }  # fmt: skip


def _view(placement: Placement) -> dict[str, Any]:
    """The box of the upright image that a crop shows, pixels; a border beyond it is no part."""
    f = placement.frame
    box = []
    for start, length, to, out_start, out in (
        (f.top, f.height, f.to_height, f.out_top, f.out_height),
        (f.left, f.width, f.to_width, f.out_left, f.out_width),
    ):
        first, stop = max(out_start, 0), min(out_start + out, to)
        ratio = length / to
        box += [round(start + first * ratio, 1), round(max(stop - first, 0) * ratio, 1)]
    return {
        **dict(zip(("top", "height", "left", "width"), box, strict=True)),
        "out_height": f.out_height, "out_width": f.out_width,
        "hflip": bool(placement.hflip), "vflip": bool(placement.vflip),
    }  # fmt: skip
