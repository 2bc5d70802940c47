"""How a loader was made, so that it can be made again with one thing changed."""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from packio.batches.collating import collate as packio_collate
from packio.loading.devices import DevicePrefetcher
from packio.loading.loader import Loader
from packio.measuring.feed import IndexFeed

_LOOKED_AT = 100  # leaves of a batch in which a tensor is looked for
_TIMEOUT = 120.0  # seconds that a worker may take for a batch


class Setup:
    """A loader, and how to make others like it.

    Args:
        loader: torch's DataLoader, a `packio.Loader`, a `packio.DevicePrefetcher` around one of
            them, or any other iterable.

    Attributes:
        dataset: The dataset; None if unknown.
        workers: Number of worker processes; None if unknown.
        batch_size: Samples a batch; None if only the batches tell.
        collate: Makes a batch of samples; None if unknown.
        is_known: Whether the loader is of one of these kinds, so that it can be made again.
        is_map: Whether samples can be fetched one by one.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self._wrap: Callable[[Iterable[Any]], Iterable[Any]] | None = None
        inner = loader
        if isinstance(loader, DevicePrefetcher):
            inner, self._wrap = loader.loader, lambda made: _around(loader, made)
        self._inner = inner
        self.is_known: bool = isinstance(inner, (DataLoader, Loader))
        self.dataset: Any = inner.dataset if self.is_known else None
        self.workers: int | None = inner.num_workers if self.is_known else None
        iterable = isinstance(self.dataset, IterableDataset)
        self.is_map: bool = self.is_known and not iterable
        self._batches = inner.batch_sampler if self.is_map else None
        self.batch_size = getattr(inner, "batch_size", None) if self.is_known else None
        self.collate: Any = None
        if isinstance(inner, DataLoader):
            self.collate = inner.collate_fn
        elif self.is_known:
            self.collate = inner.options["collate_fn"] or packio_collate

    def __str__(self) -> str:
        name = type(self._inner).__name__
        if not self.is_known:
            return name
        inner = type(self.dataset).__name__
        return f"{name} over {inner}, {self.workers} workers, batches of {self.batch_size}"

    @property
    def has_batches(self) -> bool:
        """Whether the loader makes batches of samples; else the dataset gives whole batches."""
        return self.is_map and self._batches is not None

    @property
    def is_persistent(self) -> bool:
        """Whether the workers live on from epoch to epoch."""
        if isinstance(self._inner, DataLoader):
            return bool(self._inner.persistent_workers)
        return bool(self.is_known and self._inner.options["persistent_workers"])

    @property
    def is_pinned(self) -> bool:
        """Whether batches are made in pinned memory."""
        if isinstance(self._inner, DataLoader):
            return bool(self._inner.pin_memory)
        return isinstance(self._inner, Loader)

    def epoch_batches(self) -> int | None:
        """Count the batches of an epoch; None if the loader does not know."""
        with contextlib.suppress(TypeError, NotImplementedError):
            return len(cast("Sized", self.loader))
        return None

    def indices(self) -> Iterable[Any]:
        """Give the indices of an epoch: lists; single ones if the dataset gives whole batches."""
        batches: Any = self._batches if self.has_batches else self._inner.sampler
        order = copy.copy(batches)  # the user's sampler keeps its state
        if isinstance(getattr(order, "sampler", None), torch.utils.data.Sampler):
            order.sampler = copy.copy(order.sampler)
        return cast("Iterable[Any]", order)

    def fetch(self, indices: list[Any]) -> list[Any]:
        """Fetch samples as a DataLoader does."""
        together = getattr(self.dataset, "__getitems__", None)
        made = together(indices) if together else [self.dataset[i] for i in indices]
        return cast("list[Any]", made)  # of packio's datasets, a list that collate knows

    def delivered(self, batch: Any) -> Any:
        """Move a batch to the device as the loader does."""
        if self._wrap is not None:
            return next(iter(self._wrap([batch])))
        if isinstance(self._inner, Loader) and self._inner.options["device"] is not None:
            names = ("device", "dtype", "memory_format", "normalize", "batch_transform")
            return next(iter(DevicePrefetcher(
                [batch], **{name: self._inner.options[name] for name in names}
            )))  # fmt: skip
        return batch

    def make(self, flow: IndexFeed | None, **changes: Any) -> Iterable[Any]:
        """Make the loader anew.

        Args:
            flow: Gives the indices; None: the loader's own order.
            changes: Arguments of DataLoader; ``loader=Loader`` makes a `packio.Loader` instead.
        """
        if not self.is_known:
            return cast("Iterable[Any]", self.loader)
        if changes.pop("loader", None) is Loader or isinstance(self._inner, Loader):
            made = self._made_loader(flow, changes)
        else:
            made = self._made_data_loader(flow, changes)
        return made if self._wrap is None else self._wrap(made)

    def _made_loader(self, flow: IndexFeed | None, changes: dict[str, Any]) -> Iterable[Any]:
        own = dict(self._inner.options) if isinstance(self._inner, Loader) else {
            "collate_fn": self.collate}  # fmt: skip
        for name in ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last"):
            own.pop(name, None)
        options = {"dataset": self.dataset, "num_workers": 0, **own, **changes}
        if options["num_workers"]:
            options |= {"timeout": options.get("timeout") or _TIMEOUT, "persistent_workers": True}
        else:
            for name in ("persistent_workers", "timeout", "worker_init_fn",
                         "multiprocessing_context"):  # fmt: skip
                options.pop(name, None)
        return Loader(batch_sampler=cast("Any", flow), **options)

    def _made_data_loader(self, flow: IndexFeed | None, changes: dict[str, Any]) -> DataLoader[Any]:
        old = cast("DataLoader[Any]", self._inner)
        options: dict[str, Any] = {
            "dataset": self.dataset, "num_workers": old.num_workers,
            "collate_fn": self.collate, "pin_memory": old.pin_memory, **changes,
        }  # fmt: skip
        if flow is None:
            options["batch_size"] = old.batch_size
            options |= {"drop_last": old.drop_last} if old.batch_size is not None else {}
        elif self.has_batches:
            options["batch_sampler"] = flow
        else:
            options |= {"sampler": flow, "batch_size": None}
        if options["num_workers"]:
            options = {
                "timeout": old.timeout or _TIMEOUT, "worker_init_fn": old.worker_init_fn,
                "prefetch_factor": old.prefetch_factor, "persistent_workers": True,
                "multiprocessing_context": old.multiprocessing_context if old.num_workers else None,
                **options,
            }  # fmt: skip
        return DataLoader(**options)


def _around(prefetcher: DevicePrefetcher, loader: Iterable[Any]) -> DevicePrefetcher:
    made = copy.copy(prefetcher)
    made.loader = loader
    return made


def size_of(batch: Any) -> int:
    """Count the samples of a batch: the first dimension of its first tensor, else its length."""
    first = itertools.islice(leaves(batch), _LOOKED_AT)
    sized = next((leaf for leaf in first if getattr(leaf, "ndim", 0)), None)
    if sized is not None:
        return int(sized.shape[0])
    return len(batch) if isinstance(batch, (list, tuple)) else 1


def bytes_of(batch: Any) -> int:
    """Count the bytes of the tensors and arrays of a batch."""
    return sum(int(getattr(leaf, "nbytes", 0)) for leaf in leaves(batch))


def leaves(batch: Any) -> Iterator[Any]:
    """Walk through nested tuples, lists and mappings."""
    if isinstance(batch, (torch.Tensor, np.ndarray)):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from leaves(value)
    elif isinstance(batch, (tuple, list)):
        for value in batch:
            yield from leaves(value)
    else:
        yield batch
