"""A loader: found by its name, and how it was made, so that it is made again with a change."""

from __future__ import annotations

import contextlib
import copy
import importlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sized
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from packio.batches.collating import collate as packio_collate
from packio.errors import DiagnosisError, OptionError, PackioError
from packio.loading.devices import DevicePrefetcher
from packio.loading.loader import Loader
from packio.measuring.turns import IndexFeed
from packio.sources.torch_dataset import SOURCE, current_folder_importable

_LOOKED_AT = 100  # leaves of a batch in which a tensor is looked for
_TIMEOUT = 120.0  # seconds that a worker may take for a batch
_OF_ORDER = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last")
_OF_WORKERS = ("persistent_workers", "timeout", "worker_init_fn", "multiprocessing_context")
_OF_DATA_LOADER = ("num_workers", "pin_memory", "prefetch_factor", *_OF_WORKERS[1:])


class Setup:
    """A loader, and how to make others like it."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self._prefetcher = loader if isinstance(loader, DevicePrefetcher) else None
        inner: Any = self._prefetcher.loader if self._prefetcher else loader
        self._inner = inner
        self.is_known: bool = isinstance(inner, (DataLoader, Loader))  # it can be made again
        self.dataset: Any = inner.dataset if self.is_known else None
        self.workers: int | None = inner.num_workers if self.is_known else None
        iterable = isinstance(self.dataset, IterableDataset)
        self.is_map: bool = self.is_known and not iterable  # samples can be fetched one by one
        # Else the dataset gives whole batches.
        self.has_batches: bool = self.is_map and inner.batch_sampler is not None
        self.batch_size = getattr(inner, "batch_size", None) if self.is_known else None
        self.collate: Any = None
        self.is_persistent, self.is_pinned = False, isinstance(inner, Loader)
        if isinstance(inner, DataLoader):
            self.collate = inner.collate_fn
            self.is_persistent, self.is_pinned = inner.persistent_workers, inner.pin_memory
        elif self.is_known:
            self.collate = inner.options["collate_fn"] or packio_collate
            self.is_persistent = bool(inner.options["persistent_workers"])

    def __str__(self) -> str:
        name = type(self._inner).__name__
        if not self.is_known:
            return name
        inner = type(self.dataset).__name__
        return f"{name} over {inner}, {self.workers} workers, batches of {self.batch_size}"

    def epoch_batches(self) -> int | None:
        """Count the batches of an epoch; None if the loader does not know."""
        with contextlib.suppress(TypeError, NotImplementedError):
            return len(cast("Sized", self.loader))
        return None

    def indices(self) -> Iterable[Any]:
        """Give the indices of an epoch: lists; single ones if the dataset gives whole batches."""
        inner = self._inner
        order: Any = copy.copy(inner.batch_sampler if self.has_batches else inner.sampler)
        # The user's sampler keeps its state.
        if isinstance(getattr(order, "sampler", None), torch.utils.data.Sampler):
            order.sampler = copy.copy(order.sampler)
        return cast("Iterable[Any]", order)

    def fetch(self, indices: list[Any]) -> list[Any]:
        together = getattr(self.dataset, "__getitems__", None)
        made = together(indices) if together else [self.dataset[i] for i in indices]
        return cast("list[Any]", made)  # of packio's datasets, a list that collate knows

    def deliver(self, batch: Any) -> Any:
        """Move a batch to the device as the loader does."""
        if self._prefetcher is not None:
            return next(iter(_prefetch_again(self._prefetcher, [batch])))
        if isinstance(self._inner, Loader) and self._inner.options["device"] is not None:
            names = ("device", "dtype", "memory_format", "normalize", "batch_transform")
            options = {name: self._inner.options[name] for name in names}
            return next(iter(DevicePrefetcher([batch], **options)))
        return batch

    def make(self, feed: IndexFeed | None, **changes: Any) -> Iterable[Any]:
        """Make the loader anew, in its own order without a feed; ``loader=Loader``: packio's."""
        if not self.is_known:
            return cast("Iterable[Any]", self.loader)
        inner = self._inner
        is_ours = changes.pop("loader", None) is Loader or isinstance(inner, Loader)
        own: dict[str, Any] = {}
        if isinstance(inner, Loader):
            own = {name: value for name, value in inner.options.items() if name not in _OF_ORDER}
        elif not is_ours:
            own = {name: getattr(inner, name) for name in _OF_DATA_LOADER}
        options = {"dataset": self.dataset, "num_workers": 0, "collate_fn": self.collate,
                   **own, **changes}  # fmt: skip
        if options["num_workers"]:
            options |= {"timeout": options.get("timeout") or _TIMEOUT, "persistent_workers": True}
        else:
            for name in _OF_WORKERS if is_ours else (*_OF_WORKERS, "prefetch_factor"):
                options.pop(name, None)
        if is_ours or (feed is not None and self.has_batches):
            options["batch_sampler"] = feed
        elif feed is not None:
            options |= {"sampler": feed, "batch_size": None}
        else:
            options["batch_size"] = inner.batch_size
            options |= {"drop_last": inner.drop_last} if inner.batch_size is not None else {}
        made: Iterable[Any] = Loader(**options) if is_ours else DataLoader(**options)
        return made if self._prefetcher is None else _prefetch_again(self._prefetcher, made)


def _prefetch_again(prefetcher: DevicePrefetcher, loader: Iterable[Any]) -> DevicePrefetcher:
    again = copy.copy(prefetcher)
    again.loader = loader
    return again


def size_of(batch: Any) -> int:
    """Count the samples of a batch: the first dimension of its first tensor, else its length."""
    first = itertools.islice(leaves(batch), _LOOKED_AT)
    sized = next((leaf for leaf in first if getattr(leaf, "ndim", 0)), None)
    if sized is not None:
        return int(sized.shape[0])
    return len(batch) if isinstance(batch, (list, tuple)) else 1


def bytes_of(batch: Any) -> int:
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


@contextlib.contextmanager
def explained(what: str) -> Iterator[None]:
    """Turn an exception of the user's code into an error that says where it was raised."""
    try:
        yield
    except PackioError:
        raise
    except Exception as error:
        raise DiagnosisError(f"{what}: {type(error).__name__}: {error}") from error


def is_name(text: str) -> bool:
    """Tell whether a text is ``module:object``, and no file."""
    return SOURCE.recognise(Path(text))


def find_object(name: str, option: str = "") -> Any:
    """Import an object, perhaps of the current folder; `option`: said before it, for messages."""
    if not is_name(name):
        raise OptionError(
            f"{option}{name}: expected module:object, as train:{'step' if option else 'loader'}"
        )
    module, _, names = name.partition(":")
    with current_folder_importable(), explained(name):
        try:
            value: Any = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name not in (module, module.partition(".")[0]):
                raise
            raise OptionError(f"{name}: there is no module {module}") from error
    for part in names.split("."):
        if not hasattr(value, part):
            raise OptionError(f"{name}: there is no {part} in it")
        value = getattr(value, part)
    return value


def make_loader(name: str) -> Any:
    """Import a loader by its name. A function or class is called without arguments."""
    value = find_object(name)
    if callable(value) and (isinstance(value, type) or not hasattr(value, "__iter__")):
        with current_folder_importable(), explained(name):
            value = value()
    return value
