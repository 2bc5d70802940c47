"""The sizes of a dataset's images, as its index has them: what buckets are assigned by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch.utils.data

from packio.datasets.concat import ConcatPacks
from packio.datasets.pack_dataset import PackDataset
from packio.errors import OptionError
from packio.packs.table import PackTable

_CHUNK = 1 << 17  # samples that are looked at together
_SIDES = ("image/height", "image/width", "image/orientation")

Sizes = tuple[np.ndarray, np.ndarray]  # (n,) int64 heights and widths, pixels


def chunks(data: Any) -> Iterator[Sizes]:
    """Yield the heights and widths of a dataset's images, upright, in the order of its indices.

    Knows `PackDataset` and its kind, `ConcatPacks`, torch's ConcatDataset and Subset of these,
    packs, and any dataset that has ``image_sizes``: (N, 2) integers, height and width. Images that
    a dataset of packio's turns upright by their Exif orientation are counted as they are turned.
    """
    first = 0
    for height, width in _found(data):
        bad = (height < 1) | (width < 1)
        if bad.any():
            raise OptionError(
                f"sample {first + int(bad.argmax())} has no size in the index, as "
                f"{int(bad.sum())} of {len(bad)} samples: expected images whose header can be "
                "read; leave them out with subset() of the dataset"
            )
        first += len(height)
        yield height, width


def _found(data: Any) -> Iterator[Sizes]:
    given = getattr(data, "image_sizes", None)
    if given is not None:
        sizes = np.asarray(given)
        if sizes.shape != (len(data), 2) or sizes.dtype.kind not in "iu":
            raise OptionError(
                f"image_sizes of {type(data).__name__}: {sizes.dtype} {sizes.shape}; expected "
                f"integers ({len(data)}, 2), height and width"
            )
        for start in range(0, len(sizes), _CHUNK):
            some = sizes[start : start + _CHUNK].astype(np.int64)
            yield some[:, 0], some[:, 1]
    elif isinstance(data, PackTable):
        yield from _of_pack(data, None, upright=True)
    elif isinstance(data, PackDataset):
        chosen = data._chosen  # noqa: SLF001 (which samples of the pack: no business of its users)
        upright = data.options["exif_orientation"]
        yield from _of_pack(data.pack, None if chosen is None else chosen.array, upright=upright)
    elif isinstance(data, ConcatPacks) and data.places is not None:
        yield from _taken(_together(data.datasets), data.places)
    elif isinstance(data, (ConcatPacks, torch.utils.data.ConcatDataset)):
        yield from _together(data.datasets)
    elif isinstance(data, torch.utils.data.Subset):
        yield from _taken(_found(data.dataset), np.asarray(data.indices, np.int64))
    else:
        raise OptionError(
            f"{type(data).__name__} does not know the sizes of its images: give a dataset of "
            "packio's, or one that has image_sizes, (N, 2) integers, height and width"
        )


def _of_pack(pack: PackTable, chosen: np.ndarray | None, *, upright: bool) -> Iterator[Sizes]:
    columns = [pack.index_file.column(name) for name in _SIDES]
    total = len(pack) if chosen is None else len(chosen)
    for start in range(0, total, _CHUNK):
        stop = min(start + _CHUNK, total)
        height, width, orientation = (
            column.span(start, stop) if chosen is None else column.take(chosen[start:stop])
            for column in columns
        )
        swapped = (orientation >= 5) & upright
        pair = np.where(swapped, width, height), np.where(swapped, height, width)
        yield pair[0].astype(np.int64), pair[1].astype(np.int64)


def _together(datasets: Any) -> Iterator[Sizes]:
    for dataset in datasets:
        yield from _found(dataset)


def _taken(found: Iterator[Sizes], indices: np.ndarray) -> Iterator[Sizes]:
    """Some of all images, in any order."""
    each = list(found) or [(np.zeros(0, np.int64),) * 2]
    height, width = (np.concatenate(column) for column in zip(*each, strict=True))
    for start in range(0, len(indices), _CHUNK):
        some = indices[start : start + _CHUNK]
        yield height[some], width[some]
