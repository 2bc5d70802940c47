"""Slices of a batch: the native core reads, checks and makes some samples in one call.

One table says where the samples are, another what is made of them; both are filled by columns, and
threads share the samples out within the core. So a sample costs Python little, and threads seldom
wait for each other. A sample that the core cannot read, or declines, is left to the caller, who
makes it by itself and says what is wrong.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from packio.batches.framing import Framing
from packio.errors import DecodeError, IntegrityError, ReadError
from packio.images import native, regions
from packio.index.indexfile import PROGRESSIVE, SPLIT_RECORD
from packio.storage.local import FolderStore, LocalStore
from packio.system.threads import Threads, each

if TYPE_CHECKING:
    import torch

_CORE = -1  # a turn of a thread in which the core makes samples; else the slot of one


def make(
    files: LocalStore, framing: Framing, threads: Threads | None,
    batches: Sequence[torch.Tensor], points: Sequence[bytes], but: Collection[int],
    make_one: Callable[[int], None],
) -> dict[int, Exception]:  # fmt: skip
    """Make the images of a batch, slice by slice, each view in (N, C, H, W) uint8, contiguous.

    ``make_one`` makes a sample that the core has not made. Returns slot → what it raised.
    """
    order = np.array(framing.rows.file_order(), np.int32)
    if but:
        order = order[~np.isin(order, list(but))]
    requests = _requests(framing, batches)
    samples, wanted, paths = _samples(files, framing, points)
    numbers = framing.rows.column("file")
    if len(batches) > 1:
        # which are decoded once for all views, as `packio.images.regions` chooses for a sample
        wanted &= (requests["scale"] == requests["scale"][:, :1]).all(1)
        is_less = regions.is_less_at_once(framing.needs)
        samples["is_once"] = (samples["points_size"] == 0) | is_less
    joined = b"".join(points)
    errors: dict[int, Exception] = {}
    for part in _parts(files, order, numbers):
        open_files = _open(files, part[wanted[part]], numbers, samples, wanted)
        own, others = part[wanted[part]], part[~wanted[part]].tolist()
        slices = native.Slices(samples, requests, own, joined, paths)

        def work(turns: Iterable[int], slices: native.Slices = slices) -> None:
            for turn in turns:
                for slot in slices.make() if turn == _CORE else (turn,):
                    try:
                        make_one(slot)
                    except (DecodeError, IntegrityError) as error:
                        errors[slot] = error

        count = max(-(-len(own) // slices.MOST), min(len(own), threads.count if threads else 1))
        each(work, [*others, *[_CORE] * count], threads)
        del open_files  # which may be closed only now
    return errors


def _parts(files: LocalStore, order: np.ndarray, numbers: np.ndarray) -> Sequence[np.ndarray]:
    """Slots in file order: all, or several parts if their files may not be open all at once."""
    if isinstance(files, FolderStore) or not len(order):
        return [order]
    changes = np.diff(numbers[order]) != 0
    groups = np.append(0, changes.cumsum()) // files.most_open()
    return np.split(order, np.flatnonzero(np.diff(groups)) + 1)


def _open(
    files: LocalStore, slots: np.ndarray, numbers: np.ndarray, samples: np.ndarray,
    wanted: np.ndarray,
) -> dict[int, Any]:  # fmt: skip
    """Open the files of some samples, and note that samples of a file that is lost are not wanted.

    The files stay open as long as somebody holds what this returns.
    """
    if isinstance(files, FolderStore):
        return {}
    listed = numbers[slots].tolist()
    held: dict[int, Any] = {}
    for number in set(listed):
        with contextlib.suppress(ReadError, IntegrityError):  # each of its samples says so
            held[number] = files.descriptor(number)
    samples["file"][slots] = [held[n].number if n in held else -1 for n in listed]
    wanted[slots] = samples["file"][slots] >= 0
    return held


def _samples(
    files: LocalStore, framing: Framing, points: Sequence[bytes]
) -> tuple[np.ndarray, np.ndarray, bytes]:
    """Where the core finds each sample; whether it may take the sample, (N,) bool; joined paths."""
    rows, decoder = framing.rows, framing.settings.decoder
    samples = np.zeros(len(rows), native.SAMPLE)
    flags = rows.column("flags")
    for name in ("file", "offset", "length", "crc32c"):
        samples[name] = rows.column(name)
    samples["is_checked"] = 1
    sizes = np.fromiter(map(len, points), np.int64, len(points))
    samples["points"] = sizes.cumsum() - sizes
    samples["points_size"] = sizes
    takes = np.fromiter(map(decoder.core_takes, rows), bool, len(rows))
    in_vain = flags & (SPLIT_RECORD | PROGRESSIVE) != 0  # the core declines them, once it has read
    wanted = takes & (samples["offset"] >= 0) & ~in_vain
    if not isinstance(files, FolderStore):
        is_inside = files.check_ranges(rows.column("file"), samples["offset"], samples["length"])
        return samples, wanted & is_inside, b""
    paths, samples["path"] = files.join_paths(rows.column("file").tolist())
    samples["file"] = -1
    return samples, wanted & (samples["path"] >= 0), paths


def _requests(framing: Framing, batches: Sequence[torch.Tensor]) -> np.ndarray:
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
        own["scale"] = regions.scale_of(need)
    return requests
