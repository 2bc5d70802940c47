"""Slices of a batch: the native core reads, checks and makes some samples in one call.

What the samples need stands in one table, a row a sample, which is filled by columns. So a sample
costs Python little, and threads seldom wait for each other. A sample that the core cannot read, or
declines, is left to the caller, who makes it by itself and says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from packio.batches.framing import Framing
from packio.errors import DecodeError, IntegrityError, ReadError
from packio.images import native, regions
from packio.images.regions import Need
from packio.index.indexfile import PROGRESSIVE, SEEKABLE, SPLIT_RECORD, UNCHECKED
from packio.packs.opening import Pack
from packio.storage.folder import FolderFiles
from packio.storage.local import LocalFiles
from packio.system.threads import Threads, each

if TYPE_CHECKING:
    import torch

_MOST = 16  # samples of a slice
_A_THREAD = 8  # slices for each thread, at least: all threads end at about the same time


def fits(pack: Pack, framing: Framing) -> bool:
    """Whether the core may read the images of a batch by itself.

    Args:
        pack: Of the samples.
        framing: Of their images; it has columns for one view.
    """
    return (
        native.makes_slices()
        and framing.settings.decoder.has_core
        and len(framing.columns) == 1
        and pack.raw_rows is None
    )


def make(
    files: LocalFiles | FolderFiles, framing: Framing, threads: Threads | None, batch: torch.Tensor,
    points: Sequence[bytes], but: Collection[int], make_one: Callable[[int], None],
) -> dict[int, Exception]:  # fmt: skip
    """Make the images of a batch, slice by slice.

    Args:
        files: Of the pack.
        framing: As of `fits`.
        threads: Threads that work; None: this one.
        batch: (N, C, H, W) uint8, contiguous, where the only view goes.
        points: Seek points of each sample.
        but: Slots to leave out.
        make_one: Makes the sample in a slot, if the core has not made it.

    Returns:
        Slot → the DecodeError or IntegrityError that ``make_one`` raised.
    """
    order = np.array(framing.rows.file_order(), np.int32)
    if but:
        order = order[~np.isin(order, list(but))]
    samples, wanted = _table(framing, batch, points)
    numbers, paths = framing.rows.column("file"), b""
    if isinstance(files, FolderFiles):
        paths, starts = files.joined_paths(numbers.tolist())
        samples["file"], samples["path"] = -1, starts
        wanted &= samples["path"] >= 0
    else:  # descriptors take the places of the numbers in the table
        wanted &= files.within(numbers, samples["offset"], samples["length"])
    count = threads.count if threads is not None else 1
    length = min(_MOST, max(1, len(order) // (_A_THREAD * count)))
    joined = b"".join(points)
    errors: dict[int, Exception] = {}

    def make_slice(slots: np.ndarray) -> None:
        taken = slots[wanted[slots]]
        if isinstance(files, LocalFiles):
            try:
                open_files = files.descriptors(numbers[taken].tolist())
            except (ReadError, IntegrityError):  # each sample says so by itself
                wanted[taken] = False
                return
            samples["file"][taken] = [file.number for file in open_files]
        native.make_slice(samples, taken, joined, paths)

    def work(starts: Iterable[int]) -> None:
        for start in starts:
            slots = order[start : start + length]
            make_slice(slots)
            for slot in slots[~wanted[slots] | (samples["status"][slots] != 0)].tolist():
                try:
                    make_one(slot)
                except (DecodeError, IntegrityError) as error:
                    errors[slot] = error

    each(work, range(0, len(order), length), threads)
    return errors


def _table(
    framing: Framing, batch: torch.Tensor, points: Sequence[bytes]
) -> tuple[np.ndarray, np.ndarray]:
    """What the core is told of each sample; and whether it may take the sample, (N,) bool."""
    rows, decoder, (need,) = framing.rows, framing.settings.decoder, framing.needs
    samples = np.zeros(len(rows), native.SAMPLE)
    flags = rows.column("flags")
    for name in ("file", "offset", "length", "crc32c", "height", "width"):
        samples[name] = rows.column(name)
    samples["is_checked"] = flags & UNCHECKED == 0
    samples["out"] = batch.data_ptr() + batch.stride(0) * np.arange(len(rows))
    samples["channels"] = batch.shape[1]
    _frame(samples, need)
    sizes = np.fromiter(map(len, points), np.int64, len(points))
    samples["points"] = sizes.cumsum() - sizes
    samples["points_size"] = np.where(flags & SEEKABLE, 0, sizes)
    takes = np.fromiter(map(decoder.core_takes, rows), bool, len(rows))
    in_vain = flags & (SPLIT_RECORD | PROGRESSIVE) != 0  # the core declines them, once it has read
    return samples, takes & (samples["offset"] >= 0) & ~in_vain


def _frame(samples: np.ndarray, need: Need) -> None:
    """Fill in where the outputs come from."""
    frame = need.frame
    for name, column in zip(("top", "left", "box_height", "box_width"), need.box, strict=True):
        samples[name] = column
    for name, column in zip(native.OF_FRAME, frame[4:10], strict=True):
        samples[name] = column
    if (ratios := regions.ratios_of(frame)) is not None:
        samples["ratio"] = ratios
    samples["orientation"] = need.orientation
    samples["flips"] = np.where(need.hflip, 1, 0) + np.where(need.vflip, 2, 0)
    samples["method"] = native.method(need.how)
    samples["level"] = 1
    samples["scale"] = regions.scales(need)
