"""The contact sheet of a replay: the crops of some batches, in one HTML file without any other."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from packio.datasets.dataset import Dataset
from packio.errors import OptionError, PackioError
from packio.images.frames import Placement
from packio.inspecting.gallery.entries import make_pixels_thumbnail
from packio.inspecting.pages import (
    as_base64,
    check_place,
    make_entries,
    make_page,
    readable,
    write_page,
)
from packio.inspecting.replaying.replayed import Replay, ReplayedBatch, ReplayedSample, beneath
from packio.system.progress import ProgressCallback


def write_sheet(
    replay: Replay, out: str | os.PathLike[str], *, size: int, progress: ProgressCallback | None
) -> int:
    """Write a page of a replay; see `Replay.write_page`."""
    if size < 1:
        raise OptionError(f"size={size}: expected at least 1")
    for sample in (s for batch in replay.batches for s in batch.samples):
        if not isinstance(beneath(replay.dataset, sample.drawn)[0], Dataset):
            raise OptionError("a page needs a dataset of packio's, which knows its images")
        break
    path = Path(out)
    check_place(path)
    samples = [(batch, sample) for batch in replay.batches for sample in batch.samples]
    entries = iter(make_entries(lambda one: _entry(replay.dataset, *one, size), samples, progress))
    batches = [
        {"step": batch.step, "rank": batch.rank, "left_out": batch.left_out,
         "samples": [next(entries) for _ in batch.samples]}
        for batch in replay.batches
    ]  # fmt: skip
    values = _values(replay, batches, size)
    return write_page(path, make_page(Path(__file__).parent, values))


def _values(replay: Replay, batches: list[dict[str, Any]], size: int) -> dict[str, Any]:
    """Values for the templates of the page."""
    numbers = sorted({batch.step for batch in replay.batches})
    steps = f"step {numbers[0]}" if len(numbers) == 1 else f"steps {numbers[0]} to {numbers[-1]}"
    count = sum(len(batch["samples"]) for batch in batches)
    facts = [
        f"epoch {replay.epoch}",
        f"{count:,} samples in {len(batches):,} batch{'es' * (len(batches) != 1)}",
        f"order: {replay.order['sampler']}",
    ]
    if replay.seed is not None:
        facts.append(f"seed {replay.seed}")
    if not all(batch.crops_known for batch in replay.batches):
        facts.append("whole images where the crops are not known")
    return {"title": f"Replay: {steps}", "facts": facts, "size": size, "data": batches}


def _entry(dataset: Any, batch: ReplayedBatch, sample: ReplayedSample, size: int) -> dict[str, Any]:
    source, own = beneath(dataset, sample.drawn)
    part, row = source._find(own)  # noqa: SLF001 (no business of a dataset's user)
    upright = part.options["exif_orientation"] and row.orientation >= 5
    height, width = row.height, row.width
    images, error = list[str](), None
    try:
        for image in source._seen(own, whole=not batch.crops_known):  # noqa: SLF001 (as above)
            images.append(as_base64(make_pixels_thumbnail(image.numpy(), size)))
    except PackioError as caught:
        images, error = [], readable(str(caught))
    name = sample.class_name
    if name is None:
        name = "" if sample.label is None else str(sample.label)
    return {
        "slot": sample.slot,
        "position": sample.position,
        "index": sample.index,
        "key": "" if sample.key is None else readable(sample.key),
        "class": readable(name),
        "width": height if upright else width,
        "height": width if upright else height,
        "images": images,
        "views": [_view(placement) for placement in sample.placements or ()],
        "bytes": 0,
        "error": error,
    }


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
        "out_height": f.out_height,
        "out_width": f.out_width,
        "hflip": bool(placement.hflip),
        "vflip": bool(placement.vflip),
    }
