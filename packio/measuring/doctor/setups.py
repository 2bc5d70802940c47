"""A loader, and how it was made, so that it is made again with a change."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, IterableDataset

from packio.batches.collating import collate as packio_collate
from packio.errors import DiagnosisError, PackioError
from packio.loading.devices import DevicePrefetcher
from packio.loading.loader import Loader
from packio.measuring.turns import IndexFeed

_TIMEOUT = 120.0  # seconds that a worker may take for a batch
_OF_ORDER = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "drop_last")
_OF_WORKERS = ("persistent_workers", "timeout", "worker_init_fn", "multiprocessing_context")
_OF_DATA_LOADER = ("num_workers", "collate_fn", "pin_memory", "prefetch_factor", *_OF_WORKERS)


class Setup:
    """A loader, and how to make others like it.

    A DataLoader or a `packio.Loader` can be made again (`is_known`). If the dataset is no stream
    and gives samples, not whole batches, samples can be fetched one by one (`is_map`).
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self._prefetcher = loader if isinstance(loader, DevicePrefetcher) else None
        inner: Any = self._prefetcher.loader if self._prefetcher else loader
        self._inner = inner
        self._options: dict[str, Any] = {}
        if isinstance(inner, Loader):
            given = {**inner.options, "collate_fn": inner.options["collate_fn"] or packio_collate}
            self._options = {name: v for name, v in given.items() if name not in _OF_ORDER}
        elif isinstance(inner, DataLoader):
            self._options = {name: getattr(inner, name) for name in _OF_DATA_LOADER}
        self.is_known = bool(self._options)
        self.dataset: Any = inner.dataset if self.is_known else None
        self.workers: int | None = self._options.get("num_workers")
        self.collate: Any = self._options.get("collate_fn")
        self.is_persistent = bool(self._options.get("persistent_workers"))
        self.is_pinned = bool(self._options.get("pin_memory"))
        self._is_stream = isinstance(self.dataset, IterableDataset)
        self.is_map = self.is_known and not self._is_stream and inner.batch_sampler is not None

    def __str__(self) -> str:
        name = type(self._inner).__name__
        if not self.is_known:
            return name
        dataset, size = type(self.dataset).__name__, self._inner.batch_size
        return f"{name} over {dataset}, {self.workers} workers, batches of {size}"

    def epoch_batches(self) -> int | None:
        with contextlib.suppress(TypeError, NotImplementedError):
            return len(cast("Sized", self.loader))
        return None

    def indices(self) -> Iterable[Any]:
        """Give the lists of indices of an epoch; the user's sampler keeps its state."""
        order = copy.copy(self._inner.batch_sampler)
        if isinstance(getattr(order, "sampler", None), torch.utils.data.Sampler):
            order.sampler = copy.copy(order.sampler)
        return cast("Iterable[Any]", order)

    def fetch(self, indices: list[Any]) -> list[Any]:
        together = getattr(self.dataset, "__getitems__", None)
        made = together(indices) if together else [self.dataset[i] for i in indices]
        return cast("list[Any]", made)  # of packio's datasets, a list that collate knows

    def deliver(self, batch: Any) -> Any:
        """Move a batch to the device as the loader does."""
        prefetcher = self._prefetcher
        if self._options.get("device") is not None:  # of a packio.Loader
            names = ("device", "dtype", "memory_format", "normalize", "batch_transform")
            prefetcher = DevicePrefetcher([], **{name: self._options[name] for name in names})
        return batch if prefetcher is None else next(iter(_prefetch_again(prefetcher, [batch])))

    def make(self, feed: IndexFeed | None, **changes: Any) -> Iterable[Any]:
        """Make the loader anew, in its own order without a feed; ``loader=Loader``: packio's."""
        if not self.is_known:
            return cast("Iterable[Any]", self.loader)
        inner, kind = self._inner, changes.pop("loader", type(self._inner))
        is_ours = issubclass(kind, Loader)
        own = self._options if isinstance(inner, kind) else {"collate_fn": self.collate}
        options = {"dataset": self.dataset, **own, **changes}
        if options["num_workers"]:
            options |= {"timeout": options.get("timeout") or _TIMEOUT, "persistent_workers": True}
        else:
            for name in _OF_WORKERS if is_ours else (*_OF_WORKERS, "prefetch_factor"):
                options.pop(name, None)
        if feed is not None:
            options["batch_sampler"] = feed
        elif inner.batch_size is not None:
            options |= {"batch_size": inner.batch_size, "drop_last": inner.drop_last}
        else:
            options |= {"batch_size": None, "sampler": None if self._is_stream else inner.sampler}
        made: Iterable[Any] = Loader(**options) if is_ours else DataLoader(**options)
        return made if self._prefetcher is None else _prefetch_again(self._prefetcher, made)


def _prefetch_again(prefetcher: DevicePrefetcher, loader: Iterable[Any]) -> DevicePrefetcher:
    again = copy.copy(prefetcher)
    again.loader = loader
    return again


def size_of(batch: Any) -> int:
    """Count the samples of a batch: the first dimension of its first tensor, else its length."""
    sizes = (int(leaf.shape[0]) for leaf in leaves(batch) if getattr(leaf, "ndim", 0))
    return next(sizes, len(batch) if isinstance(batch, (list, tuple)) else 1)


def leaves(batch: Any) -> Iterator[Any]:
    if isinstance(batch, Mapping):
        yield from leaves(list(batch.values()))
    elif isinstance(batch, (tuple, list)):
        for value in batch:
            yield from leaves(value)
    else:
        yield batch


@contextlib.contextmanager
def explain_errors(what: str) -> Iterator[None]:
    """Turn an exception of the user's code into an error that says where it was raised."""
    try:
        yield
    except PackioError:
        raise
    except (Exception, SystemExit) as error:
        raise DiagnosisError(f"{what}: {type(error).__name__}: {error}") from error
