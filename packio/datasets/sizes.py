"""Sizes that an index knows: of a dataset's images, of its shards, and what buckets get of it."""

# ruff: noqa: SLF001 (which samples of the packs: no business of a dataset's users)

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch.utils.data

from packio.datasets.dataset import Dataset
from packio.errors import OptionError
from packio.images.bucketing import Buckets, Size, is_small, largest_box
from packio.packs.table import PackTable

_CHUNK = 1 << 17  # samples that are looked at together
_SIDES = ("image/height", "image/width", "image/orientation")

Sizes = tuple[np.ndarray, np.ndarray]  # (n,) int64 heights and widths, pixels


def image_sizes(data: Any) -> Iterator[Sizes]:
    """Yield the heights and widths of a dataset's images, upright, in the order of its indices.

    Knows `PackDataset` and its kind, `ConcatPacks`, torch's ConcatDataset and Subset of these,
    packs, and any dataset that has ``image_sizes``: (N, 2) integers, height and width. Images that
    a dataset of packio's turns upright by their Exif orientation are counted as they are turned.
    """
    chunks = (
        sizes[start : start + _CHUNK] for sizes in _find_sizes(data)
        for start in range(0, len(sizes), _CHUNK)
    )  # fmt: skip
    first = 0
    for chunk in chunks:
        bad: np.ndarray = np.any(chunk < 1, axis=1)
        if bad.any():
            raise OptionError(
                f"sample {first + int(bad.argmax())} has no size in the index, as "
                f"{int(bad.sum())} of {len(bad)} samples: expected images whose header can be "
                "read; leave them out with subset() of the dataset"
            )
        first += len(chunk)
        height, width = chunk.T.astype(np.int64)
        yield height, width


def _find_sizes(data: Any) -> Iterator[np.ndarray]:
    """Yield (n, 2) integers, the heights and widths of some samples that follow each other."""
    given = getattr(data, "image_sizes", None)
    if given is not None:
        sizes = np.asarray(given)
        if sizes.shape != (len(data), 2) or sizes.dtype.kind not in "iu":
            raise OptionError(
                f"image_sizes of {type(data).__name__}: {sizes.dtype} {sizes.shape}; expected "
                f"integers ({len(data)}, 2), height and width"
            )
        yield sizes
    elif isinstance(data, PackTable):
        yield from _sizes_in_pack(data, None, upright=True)
    elif isinstance(data, Dataset):
        parts = (
            sizes for part in data._parts
            for sizes in _sizes_in_pack(
                part.pack, part._chosen.array, upright=part._options["exif_orientation"]
            )
        )  # fmt: skip
        order = data._order.array
        yield from parts if order is None else [_join_sizes(parts)[order]]
    elif isinstance(data, torch.utils.data.ConcatDataset):
        for dataset in data.datasets:
            yield from _find_sizes(dataset)
    elif isinstance(data, torch.utils.data.Subset):
        yield _join_sizes(_find_sizes(data.dataset))[np.asarray(data.indices, np.int64)]
    else:
        raise OptionError(
            f"{type(data).__name__} does not know the sizes of its images: give a dataset of "
            "packio's, or one that has image_sizes, (N, 2) integers, height and width"
        )


def _join_sizes(chunks: Iterable[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.empty((0, 2), np.int64), *chunks])


def _sizes_in_pack(
    pack: PackTable, chosen: np.ndarray | None, *, upright: bool
) -> Iterator[np.ndarray]:
    columns = [pack.index_file.column(name) for name in _SIDES]
    total = len(pack) if chosen is None else len(chosen)
    for start in range(0, total, _CHUNK):
        stop = min(start + _CHUNK, total)
        height, width, orientation = (
            column.span(start, stop) if chosen is None else column.take(chosen[start:stop])
            for column in columns
        )
        is_turned = ((orientation >= 5) & upright)[:, None]
        sides = np.stack([height, width], axis=1)
        yield np.where(is_turned, sides[:, ::-1], sides)


def shard_lengths(data: Any) -> np.ndarray:
    """Count the samples of each shard of a dataset: (S,) int64, in the order of its indices.

    Knows what `image_sizes` knows, but for packs, and any dataset that has ``shard_lengths``, a
    sequence of integers. A pack of one file is one shard. A part of a dataset has parts of shards;
    shards of which nothing is left do not count.
    """
    given = getattr(data, "shard_lengths", None)
    if given is not None:
        found = np.asarray(given, np.int64)
        if found.ndim != 1 or (found < 0).any() or int(found.sum()) != len(data):
            raise OptionError(
                f"shard_lengths of {type(data).__name__}: expected integers of at least 0 that sum "
                f"up to its {len(data)} samples"
            )
    elif isinstance(data, Dataset):
        parts = [
            _count_kept(
                np.array([s["samples"] for s in part.pack.metadata.get("shards", [])], np.int64),
                part._chosen.array,
            )
            for part in data._parts
        ]
        found = _count_kept(np.concatenate(parts), data._order.array)
    elif isinstance(data, torch.utils.data.ConcatDataset):
        found = np.concatenate([np.empty(0, np.int64), *map(shard_lengths, data.datasets)])
    elif isinstance(data, torch.utils.data.Subset):
        found = _count_kept(shard_lengths(data.dataset), np.asarray(data.indices, np.int64))
    else:
        raise OptionError(
            f"window= needs to know the shards, which {type(data).__name__} does not: give a "
            "dataset of packio's, or one that has shard_lengths, the samples of each shard"
        )
    return found[found > 0]


def _count_kept(found: np.ndarray, chosen: np.ndarray | None) -> np.ndarray:
    """Count what is left of (S,) samples of each shard, of (n,) chosen samples; None: all."""
    if chosen is None:
        return found
    number = np.searchsorted(np.cumsum(found), chosen, "right")
    if (number[1:] < number[:-1]).any():
        raise OptionError(
            "window= needs the samples of each shard side by side; this part of a dataset "
            "mixes its shards: sort the indices that it was made of"
        )
    return np.bincount(number, minlength=len(found))


@dataclasses.dataclass(frozen=True)
class Bucket:
    """What a size gets of some images.

    Attributes:
        size: (height, width), pixels.
        images: How many fit this size best.
        enlarged: How many of them are smaller than the size on a side. `BucketCrop` enlarges them,
            or pads them as it was asked to.
        lost_mean, lost_worst: Share of an image's pixels that the crop cuts away, 0..1; 0 without
            images.
    """

    size: Size
    images: int
    enlarged: int
    lost_mean: float
    lost_worst: float


class BucketCounts:
    def __init__(self, buckets: Buckets) -> None:
        self._buckets = buckets
        # images, how many of them are enlarged, sum and greatest of the shares that they lose
        self._columns = np.zeros((4, len(buckets)))

    def add(self, height: np.ndarray, width: np.ndarray, numbers: np.ndarray) -> None:
        """Count (N,) upright images, and the numbers of their sizes."""
        size, count = self._buckets.look_up_sizes(numbers), len(self._buckets)
        h, w = largest_box(height, width, *size)
        lost = 1 - (h * w) / (height * width)
        small: Any = is_small(height, width, *size)
        self._columns[0] += np.bincount(numbers, minlength=count)
        self._columns[1] += np.bincount(numbers[small], minlength=count)
        self._columns[2] += np.bincount(numbers, lost, count)
        np.maximum.at(self._columns[3], numbers, lost)

    def result(self) -> tuple[Bucket, ...]:
        each = zip(self._buckets.sizes, self._columns.T.tolist(), strict=True)
        return tuple(
            Bucket(size, int(images), int(enlarged), lost / max(images, 1), worst)
            for size, (images, enlarged, lost, worst) in each
        )


def sum_buckets(buckets: Sequence[Bucket]) -> dict[str, float]:
    """Sum up all buckets: "images", "enlarged", "lost_mean" and "lost_worst"."""
    images = sum(bucket.images for bucket in buckets)
    lost = sum(bucket.images * bucket.lost_mean for bucket in buckets)
    return {
        "images": images,
        "enlarged": sum(bucket.enlarged for bucket in buckets),
        "lost_mean": lost / max(images, 1),
        "lost_worst": max((bucket.lost_worst for bucket in buckets), default=0.0),
    }


def count_buckets(data: Any, buckets: Buckets) -> tuple[Bucket, ...]:
    tally = BucketCounts(buckets)
    for height, width in image_sizes(data):
        tally.add(height, width, buckets.assign(height, width))
    return tally.result()
