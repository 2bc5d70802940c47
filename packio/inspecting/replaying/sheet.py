"""The contact sheet of a replay: the crops of some batches, in one HTML file without any other."""

from __future__ import annotations

import base64
import dataclasses
import os
import time
import warnings
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packio.datasets.batching import BatchedDataset
from packio.errors import OptionError, PackioError
from packio.images.frames import Placement
from packio.inspecting.gallery.thumbnails import make_pixels_thumbnail
from packio.inspecting.pages import check_place, make_page, readable, write_page
from packio.inspecting.replaying.replayed import Replay, ReplayedBatch, ReplayedSample, beneath
from packio.system import processors
from packio.system.pools import ThreadPool
from packio.system.progress import Progress, ProgressCallback

if TYPE_CHECKING:
    import numpy as np

_AHEAD = 32  # samples that are made at a time


def write_sheet(
    replay: Replay, out: str | os.PathLike[str], *, size: int, progress: ProgressCallback | None
) -> int:
    """Write a page of a replay; see `Replay.write_page`."""
    if size < 1:
        raise OptionError(f"size={size}: expected at least 1")
    for sample in (s for batch in replay.batches for s in batch.samples):
        if not isinstance(beneath(replay.dataset, sample.drawn)[0], BatchedDataset):
            raise OptionError("a page needs a dataset of packio's, which knows its images")
        break
    path = Path(out)
    check_place(path)
    batches = list(_batches(replay, size, progress))
    text = make_page(Path(__file__).parent, _values(replay, batches, size)).encode()
    write_page(path, text)
    return len(text)


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


def _batches(
    replay: Replay, size: int, progress: ProgressCallback | None
) -> Iterator[dict[str, Any]]:
    """Make the entries of all batches in order; threads make some images ahead."""
    began, done, bad = time.monotonic(), 0, 0
    total = sum(len(batch.samples) for batch in replay.batches)
    todo = ((batch, sample) for batch in replay.batches for sample in batch.samples)
    waiting: deque[Future[dict[str, Any]]] = deque()
    with (
        warnings.catch_warnings(),
        ThreadPool(min(8, processors.usable()), "packio-replay") as pool,
    ):
        warnings.simplefilter("ignore")  # Pillow's, of large images and odd metadata
        for batch in replay.batches:
            entries = []
            for _ in batch.samples:
                for pair in todo:
                    waiting.append(pool.submit(_entry, replay.dataset, *pair, size))
                    if len(waiting) >= _AHEAD:
                        break
                entries.append(waiting.popleft().result())
                done, bad = done + 1, bad + (entries[-1]["error"] is not None)
                if progress is not None and (done % 16 == 0 or done == total):
                    seconds = time.monotonic() - began
                    progress(Progress(done, total, 0, 0, bad, seconds, "decoding"))
            told = {"step": batch.step, "rank": batch.rank, "left_out": batch.left_out}
            yield {**told, "samples": entries}


def _entry(dataset: Any, batch: ReplayedBatch, sample: ReplayedSample, size: int) -> dict[str, Any]:
    source, own = beneath(dataset, sample.drawn)
    origin = source._origin(own)  # noqa: SLF001 (no business of a dataset's user)
    upright = origin.settings.exif_orientation and origin.row.orientation >= 5
    height, width = origin.row.height, origin.row.width
    images: list[str] = []
    error = None
    try:
        seen: list[np.ndarray] = [
            image.numpy()
            for image in source._seen(own, whole=not batch.crops_known)  # noqa: SLF001 (as above)
        ]
        images = [_text_of(make_pixels_thumbnail(pixels, size)) for pixels in seen]
    except PackioError as caught:
        error = readable(str(caught))
    views = sample.placements or ()
    return {
        "slot": sample.slot,
        "position": sample.position,
        "index": sample.index,
        "key": "" if sample.key is None else readable(sample.key),
        "class": readable(_class_text(sample)),
        "width": height if upright else width,
        "height": width if upright else height,
        "images": images,
        "views": [_view(placement) for placement in views],
        "error": error,
    }


def _view(placement: Placement) -> dict[str, Any]:
    frame = dataclasses.asdict(_Shown.of(placement))
    return {**frame, "hflip": bool(placement.hflip), "vflip": bool(placement.vflip)}


@dataclasses.dataclass(frozen=True, slots=True)
class _Shown:
    """The box of the upright image that an output shows, pixels, perhaps between two pixels."""

    top: float
    left: float
    height: float
    width: float
    out_height: int
    out_width: int

    @staticmethod
    def of(placement: Placement) -> _Shown:
        """The box of a placement; a border beyond the image is not part of it."""
        f = placement.frame
        sides = []
        for start, length, to, out_start, out in (
            (f.top, f.height, f.to_height, f.out_top, f.out_height),
            (f.left, f.width, f.to_width, f.out_left, f.out_width),
        ):
            first, stop = max(out_start, 0), min(out_start + out, to)
            ratio = length / to
            sides.append((start + first * ratio, max(stop - first, 0) * ratio))
        (top, height), (left, width) = sides
        return _Shown(round(top, 1), round(left, 1), round(height, 1), round(width, 1),
                      f.out_height, f.out_width)  # fmt: skip


def _class_text(sample: ReplayedSample) -> str:
    if sample.class_name is not None:
        return sample.class_name
    return "" if sample.label is None else str(sample.label)


def _text_of(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
