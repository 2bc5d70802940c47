"""Where the shards of a dataset begin: what an order needs that keeps few shards open at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch.utils.data

from packio.datasets.concat import ConcatPacks
from packio.datasets.pack_dataset import PackDataset
from packio.errors import OptionError


def lengths(data: Any) -> np.ndarray:
    """Count the samples of each shard of a dataset, in the order of its indices.

    Knows `PackDataset` and its kind, `ConcatPacks`, torch's ConcatDataset and Subset of these, and
    any dataset that has ``shard_lengths``, a sequence of integers. A pack of one file is one shard.
    A part of a dataset has parts of shards; shards of which nothing is left do not count.

    Returns:
        (S,) int64, each above 0.
    """
    given = getattr(data, "shard_lengths", None)
    if given is not None:
        found = np.asarray(given, np.int64)
        if found.ndim != 1 or (found < 0).any() or int(found.sum()) != len(data):
            raise OptionError(
                f"shard_lengths of {type(data).__name__}: expected integers of at least 0 that sum "
                f"up to its {len(data)} samples"
            )
    elif isinstance(data, PackDataset):
        chosen = data._chosen  # noqa: SLF001 (which samples of the pack: no business of its users)
        found = _kept(_of_pack(data), None if chosen is None else chosen.array)
    elif isinstance(data, ConcatPacks):
        found = _kept(_together(data.datasets), data.places)
    elif isinstance(data, torch.utils.data.ConcatDataset):
        found = _together(data.datasets)
    elif isinstance(data, torch.utils.data.Subset):
        found = _kept(lengths(data.dataset), np.asarray(data.indices, np.int64))
    else:
        raise OptionError(
            f"window= needs to know the shards, which {type(data).__name__} does not: give a "
            "dataset of packio's, or one that has shard_lengths, the samples of each shard"
        )
    return found[found > 0]


def _of_pack(dataset: PackDataset) -> np.ndarray:
    shards = dataset.pack.metadata.get("shards", [])  # a pack of no samples may have none
    return np.array([s["samples"] for s in shards], np.int64)


def _together(datasets: Any) -> np.ndarray:
    return np.concatenate([np.empty(0, np.int64), *map(lengths, datasets)])


def _kept(found: np.ndarray, chosen: np.ndarray | None) -> np.ndarray:
    """Count what is left of each shard.

    Args:
        found: (S,) int64, samples of each shard.
        chosen: (n,) int64, the samples that are left; None: all.
    """
    if chosen is None:
        return found
    ends = np.cumsum(found)
    if (chosen[1:] < chosen[:-1]).any():
        number = np.searchsorted(ends, chosen, "right")
        if (number[1:] < number[:-1]).any():
            raise OptionError(
                "window= needs the samples of each shard side by side; this part of a dataset "
                "mixes its shards: sort the indices that it was made of"
            )
        return np.bincount(number, minlength=len(found))
    return np.diff(np.searchsorted(chosen, ends, "left"), prepend=0)
