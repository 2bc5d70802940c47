"""Slices of a batch: the native core reads, checks and makes some samples in one call.

One table says where the samples are, another what is made of them; both are filled by columns, and
threads share the samples out within the core. So a sample costs Python little, and threads seldom
wait for each other. A sample that the core cannot read, or declines, is left to the caller, who
makes it by itself and says what is wrong.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from packio.batches.framing import Framing
from packio.errors import DecodeError, IntegrityError, ReadError
from packio.images import native, regions
from packio.index.indexfile import SPLIT_RECORD
from packio.storage.local import FolderStore, LocalStore
from packio.system.threads import Threads, each

if TYPE_CHECKING:
    import torch

Source = LocalStore | list[bytes]  # where samples lie: in files, or each in memory
_Turn = Callable[[], list[int]]  # of a thread; returns slots that are still to be made
_FILES = 16  # that all threads, or each one, hold open at a time: `ulimit -n` may be small


def make(
    files: Source, framing: Framing, threads: Threads | None,
    batches: Sequence[torch.Tensor], points: Sequence[bytes], but: Collection[int],
    make_one: Callable[[int], None],
) -> dict[int, Exception]:  # fmt: skip
    """Make the images of a batch, slice by slice, each view in (N, C, H, W) uint8, contiguous.

    ``make_one`` makes a sample that the core has not made. Returns slot → what it raised.
    """
    order = np.array(framing.rows.file_order(), np.int32)
    if but:
        order = order[~np.isin(order, list(but))]
    samples, wanted, paths = _samples(files, framing, points)
    requests = _requests(framing, batches, samples["layout"])
    numbers = framing.rows.column("file")
    if len(batches) > 1:
        # which are decoded once for all views, as `packio.images.regions` chooses for a sample
        wanted &= (requests["scale"] == requests["scale"][:, :1]).all(1)
        is_less = regions.is_less_at_once(framing.needs)
        is_cuttable = (samples["points_size"] > 0) | (samples["layout"] == native.LAYOUTS["dct"])
        samples["is_once"] = ~is_cuttable | is_less
    errors: dict[int, Exception] = {}
    work = partial(_work, make_one, errors)
    share = partial(native.Slices, samples, requests, points=b"".join(points), paths=paths)

    def make_part(slots: np.ndarray) -> list[int]:
        with _opened(files, slots, numbers, samples) as is_open:
            is_own = wanted[slots] & is_open
            own = share(slots[is_own])
            left: list[int] = slots[~is_own].tolist()
            while not own.is_done():
                left += own.make()
        return left

    if isinstance(files, FolderStore) or len(set(numbers[order].tolist())) <= _FILES:
        with _opened(files, order, numbers, samples) as is_open:
            if is_open.all():
                is_own = wanted[order]
                shared = share(order[is_own])
                others: list[_Turn] = [partial(list, [slot]) for slot in order[~is_own].tolist()]
                each(work, [*others, *[shared.make] * shared.count], threads)
                return errors
    size = min(_FILES, max(1, len(order) // (8 * (threads.count if threads else 1))))
    parts = np.split(order, range(size, len(order), size))
    each(work, [partial(make_part, part) for part in parts], threads)
    return errors


def _work(
    make_one: Callable[[int], None], errors: dict[int, Exception], turns: Iterable[_Turn]
) -> None:
    for turn in turns:
        for slot in turn():  # which the core has not made
            try:
                make_one(slot)
            except (DecodeError, IntegrityError) as error:
                errors[slot] = error


@contextlib.contextmanager
def _opened(
    files: Source, slots: np.ndarray, numbers: np.ndarray, samples: np.ndarray
) -> Iterator[np.ndarray]:
    """Hold the files of some samples open; gives which are: others are lost, or too many."""
    if isinstance(files, (FolderStore, list)):
        yield np.ones(len(slots), bool)
        return
    listed = numbers[slots].tolist()
    held = {}
    for number in set(listed):
        with contextlib.suppress(ReadError, IntegrityError):  # each of its samples says so
            held[number] = files.descriptor(number)
    samples["file"][slots] = [held[n].number if n in held else -1 for n in listed]
    try:
        yield samples["file"][slots] >= 0
    finally:
        held.clear()  # a traceback may keep this frame


def _samples(
    files: Source, framing: Framing, points: Sequence[bytes]
) -> tuple[np.ndarray, np.ndarray, bytes]:
    """Where the core finds each sample; whether it may take the sample, (N,) bool; joined paths."""
    rows, decoder = framing.rows, framing.settings.decoder
    samples = np.zeros(len(rows), native.SAMPLE)
    flags = rows.column("flags")
    for name in ("file", "offset", "length", "crc32c"):
        samples[name] = rows.column(name)
    samples["is_checked"] = not isinstance(files, list)
    sizes = np.fromiter(map(len, points), np.int64, len(points))
    samples["layout"] = [native.LAYOUTS.get(row.encoding, 0) for row in rows]
    samples["points"] = sizes.cumsum() - sizes
    samples["points_size"] = sizes
    takes = np.fromiter(map(decoder.core_takes, rows), bool, len(rows))
    in_vain = flags & SPLIT_RECORD != 0  # the core declines them, once it has read
    wanted = takes & (samples["offset"] >= 0) & ~in_vain
    if isinstance(files, list):
        samples["file"] = native.IN_MEMORY
        samples["offset"] = [np.frombuffer(data, np.uint8).ctypes.data for data in files]
        return samples, wanted, b""
    if not isinstance(files, FolderStore):
        is_inside = files.check_ranges(rows.column("file"), samples["offset"], samples["length"])
        return samples, wanted & is_inside, b""
    paths, samples["path"] = files.join_paths(rows.column("file").tolist())
    samples["file"] = -1
    return samples, wanted & (samples["path"] >= 0), paths


def _requests(framing: Framing, batches: Sequence[torch.Tensor], layout: np.ndarray) -> np.ndarray:
    rows = framing.rows
    requests = np.zeros((len(rows), len(batches)), native.REQUEST)
    for view, (need, batch) in enumerate(zip(framing.needs, batches, strict=True)):
        own = requests[:, view]
        own["out"] = batch.data_ptr() + batch.stride(0) * np.arange(len(rows))
        own["height"], own["width"] = rows.column("height"), rows.column("width")
        own["channels"] = batch.shape[1]
        names = ("top", "left", "box_height", "box_width", *native.OF_FRAME)
        for name, column in zip(names, (*need.box, *need.frame[4:10]), strict=True):
            own[name] = column
        own["ratio"][:, 0], own["ratio"][:, 1] = need.frame.row_ratio, need.frame.column_ratio
        own["orientation"] = need.orientation
        own["flips"] = np.where(need.hflip, 1, 0) + np.where(need.vflip, 2, 0)
        own["method"] = native.method(need.how)
        own["level"] = 1
        is_jpeg = (layout == native.LAYOUTS["jpeg"]) | (layout == native.LAYOUTS["dct"])
        own["scale"] = np.where(is_jpeg, regions.scale_of(need), 1)
    return requests
