"""How a loader is made, so that it can be made again with something changed."""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from packio.batches.batches import collate as packio_collate
from packio.loading.devices import DevicePrefetcher
from packio.loading.loader import Loader

_TIMEOUT = 120.0  # seconds that a worker may take for a batch
_ENDLESS = 1 << 30


class Flow:
    """Batches of indices in the order of a loader's own sampler, epoch after epoch, until closed.

    Args:
        epochs: Makes the batches of an epoch.
        size: Regroup them in batches of this size; None: as they are.
    """

    def __init__(self, epochs: Callable[[], Iterable[Any]], size: int | None = None) -> None:
        self.is_open = True
        self._source = _without_end(epochs)
        if size is not None:
            single = itertools.chain.from_iterable(self._source)
            self._source = iter(lambda: list(itertools.islice(single, size)), [])

    def __len__(self) -> int:
        return _ENDLESS

    def __iter__(self) -> Iterator[Any]:
        while self.is_open:
            try:
                yield next(self._source)
            except StopIteration:
                return


def _without_end(epochs: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    while True:
        empty = True
        for batch in epochs():
            empty = False
            yield list(batch) if isinstance(batch, (list, tuple)) else batch
        if empty:
            return


class Setup:
    """A loader, and how to make others like it.

    Args:
        loader: A DataLoader of torch's, a `packio.Loader`, a `packio.DevicePrefetcher` around one
            of them, or anything to iterate over.

    Attributes:
        dataset: None where it is not known.
        workers: None where they are not known.
        batch_size: Of the loader; None where only its batches tell.
        collate: Samples → batch.
        is_map: Whether the dataset's samples can be asked for one by one.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self._wrap: Callable[[Iterable[Any]], Iterable[Any]] | None = None
        inner = loader
        if isinstance(loader, DevicePrefetcher):
            inner, self._wrap = loader.loader, lambda made: _around(loader, made)
        self._inner = inner
        self.is_known = isinstance(inner, (DataLoader, Loader))
        self.dataset: Any = inner.dataset if self.is_known else None
        self.workers: int | None = inner.num_workers if self.is_known else None
        iterable = isinstance(self.dataset, IterableDataset)
        self.is_map = self.is_known and not iterable
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
        """Whether the loader makes batches of samples (not: the dataset gives them whole)."""
        return self.is_map and self._batches is not None

    @property
    def is_persistent(self) -> bool:
        """Whether the workers stay from epoch to epoch."""
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
        """Batches of an epoch, where the loader says."""
        with contextlib.suppress(TypeError, NotImplementedError):
            return len(cast("Sized", self.loader))
        return None

    def indices(self) -> Iterable[Any]:
        """An epoch's indices: lists of them, or single ones where the dataset gives batches."""
        batches: Any = self._batches if self.has_batches else self._inner.sampler
        order = copy.copy(batches)  # the user's own stays where it stands
        if isinstance(getattr(order, "sampler", None), torch.utils.data.Sampler):
            order.sampler = copy.copy(order.sampler)
        return cast("Iterable[Any]", order)

    def fetch(self, dataset: Any, indices: list[Any]) -> list[Any]:
        """Samples, as DataLoader asks for them."""
        together = getattr(dataset, "__getitems__", None)
        return cast("list[Any]", together(indices) if together else [dataset[i] for i in indices])

    def delivered(self, batch: Any) -> Any:
        """A batch as it comes out of the loader's device prefetcher, where there is one."""
        if self._wrap is not None:
            return next(iter(self._wrap([batch])))
        if isinstance(self._inner, Loader) and self._inner.options["device"] is not None:
            names = ("device", "dtype", "memory_format", "normalize", "batch_transform")
            return next(iter(DevicePrefetcher(
                [batch], **{name: self._inner.options[name] for name in names}
            )))  # fmt: skip
        return batch

    def make(self, flow: Flow | None, **changes: Any) -> Iterable[Any]:
        """Make the loader anew.

        Args:
            flow: Gives the indices, where the dataset is map-style.
            changes: DataLoader's arguments; ``loader=`` makes a `packio.Loader` of it.
        """
        if not self.is_known:
            return cast("Iterable[Any]", self.loader)
        if changes.pop("loader", None) is Loader or isinstance(self._inner, Loader):
            made = self._made_loader(flow, changes)
        else:
            made = self._made_data_loader(flow, changes)
        return made if self._wrap is None else self._wrap(made)

    def _made_loader(self, flow: Flow | None, changes: dict[str, Any]) -> Iterable[Any]:
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

    def _made_data_loader(self, flow: Flow | None, changes: dict[str, Any]) -> DataLoader[Any]:
        old = cast("DataLoader[Any]", self._inner)
        options: dict[str, Any] = {
            "dataset": self.dataset, "num_workers": old.num_workers,
            "collate_fn": self.collate, "pin_memory": old.pin_memory, **changes,
        }  # fmt: skip
        if flow is None:
            options |= {"batch_size": options.get("batch_size", old.batch_size)}
            options |= {"drop_last": old.drop_last} if options["batch_size"] is not None else {}
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
    """Samples in a batch: the first dimension of its first tensor or array, else its length."""
    sized = next((leaf for leaf in leaves(batch) if getattr(leaf, "ndim", 0)), None)
    if sized is not None:
        return int(sized.shape[0])
    return len(batch) if isinstance(batch, (list, tuple)) else 1


def bytes_of(batch: Any) -> int:
    """Bytes of a batch's tensors and arrays."""
    return sum(int(getattr(leaf, "nbytes", 0)) for leaf in leaves(batch))


def leaves(batch: Any) -> Iterator[Any]:
    """What lies in nested tuples, lists and mappings."""
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
