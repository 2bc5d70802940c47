"""What aspect-ratio buckets get of a dataset, and what their crops cut away of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from packio.datasets import image_sizes
from packio.images.bucketing import Buckets, Size, is_small, largest_box


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


class Tally:
    """Counts what each size gets of images."""

    def __init__(self, buckets: Buckets) -> None:
        self._buckets = buckets
        self._images, self._enlarged = (np.zeros(len(buckets), np.int64) for _ in range(2))
        self._lost, self._worst = np.zeros(len(buckets)), np.zeros(len(buckets))

    def add(self, height: np.ndarray, width: np.ndarray, numbers: np.ndarray) -> None:
        """Count some upright images.

        Args:
            height, width: (N,) int64, pixels.
            numbers: (N,) numbers of their sizes.
        """
        size, count = self._buckets.of(numbers), len(self._buckets)
        h, w = largest_box(height, width, *size)
        lost = 1 - (h * w) / (height * width)
        self._images += np.bincount(numbers, minlength=count)
        small: Any = is_small(height, width, *size)
        self._enlarged += np.bincount(numbers[small], minlength=count)
        self._lost += np.bincount(numbers, lost, count)
        np.maximum.at(self._worst, numbers, lost)

    def result(self) -> tuple[Bucket, ...]:
        """What was counted, in the order of the sizes."""
        means = self._lost / np.maximum(self._images, 1)
        columns = (self._images, self._enlarged, means, self._worst)
        each = zip(self._buckets.sizes, *(c.tolist() for c in columns), strict=True)
        return tuple(Bucket(*values) for values in each)


def total(found: Sequence[Bucket]) -> dict[str, float]:
    """All buckets together: "images", "enlarged", "lost_mean" and "lost_worst"."""
    images = sum(bucket.images for bucket in found)
    lost = sum(bucket.images * bucket.lost_mean for bucket in found)
    return {
        "images": images,
        "enlarged": sum(bucket.enlarged for bucket in found),
        "lost_mean": lost / max(images, 1),
        "lost_worst": max((bucket.lost_worst for bucket in found), default=0.0),
    }


def described(data: Any, buckets: Buckets) -> tuple[Bucket, ...]:
    """What each size gets of a dataset or a pack."""
    tally = Tally(buckets)
    for height, width in image_sizes.chunks(data):
        tally.add(height, width, buckets.assign(height, width))
    return tally.result()
