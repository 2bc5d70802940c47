"""Step 1c, batches: what collating, handing over and copying a batch cost by themselves."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from packio.images.tensors import mapped, new_batch
from packio.measuring.doctor.samples import clock
from packio.measuring.doctor.setups import Setup


def median_time(work: Callable[[], Any], seconds: float, *, least: int = 3) -> float:
    """Measure the median seconds of a call; the first call counts only if it takes too long."""
    until, times = time.perf_counter() + seconds, list[float]()
    while len(times) <= least or (time.perf_counter() < until and len(times) < 200):
        began = clock()
        work()
        times.append(clock() - began)
        if time.perf_counter() > until + seconds:
            break
    return statistics.median(times[1:] or times)


def time_collate(setup: Setup, samples: list[Any], size: int, seconds: float) -> tuple[float, Any]:
    """Measure the seconds of collating a batch; return also the batch."""
    if len(samples) < size and type(samples) is list:
        samples = (samples * -(-size // len(samples)))[:size]
    batch = setup.collate(samples)
    taken = median_time(lambda: setup.collate(samples), seconds)
    return taken * size / max(1, len(samples)), batch


class _Replay(Dataset[Any]):
    """A dataset that gives copies of one batch.

    Args:
        batch: The batch.
        count: Number of copies.
        shared: Copy into shared memory, as `packio.collate` makes batches in workers.
    """

    def __init__(self, batch: Any, count: int, *, shared: bool) -> None:
        self._batch, self._count, self._shared = batch, count, shared

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        return _fresh(self._batch, _copied if self._shared else torch.clone)


def _fresh(batch: Any, copied: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Copy the tensors of a batch; lists of thousands of other objects are not gone through."""
    if isinstance(batch, (list, tuple)):
        parts = [_fresh(part, copied) if _may_hold(part) else part for part in batch]
        return parts if isinstance(batch, list) else tuple(parts)
    return mapped(batch, copied)


def _may_hold(value: Any) -> bool:
    """Tell from its first member whether a part of a batch holds tensors."""
    if isinstance(value, (list, tuple)):
        return bool(value) and _may_hold(value[0])
    return isinstance(value, (torch.Tensor, Mapping))


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return new_batch(tuple(tensor.shape), tensor.dtype).copy_(tensor)


def as_it_is(batch: Any) -> Any:
    """Collate nothing: the dataset gives batches."""
    return batch


def time_hand_over(batch: Any, seconds: float, *, shared: bool) -> float:
    """Measure the seconds that a batch takes from a worker process to this process.

    Args:
        batch: The batch.
        seconds: Seconds to spend, roughly.
        shared: See `_Replay`.
    """
    copying = median_time(lambda: _fresh(batch, torch.clone), seconds / 4)
    most = max(1, min(50, int(seconds / max(2 * copying, 1e-4))))
    loader = DataLoader(
        _Replay(batch, most + 2, shared=shared), batch_size=None, num_workers=1, timeout=60,
        collate_fn=as_it_is,
    )  # fmt: skip
    source, arrivals = iter(loader), list[float]()
    for _ in source:
        arrivals.append(time.perf_counter())
        if arrivals[-1] - arrivals[0] > seconds and len(arrivals) > 1:
            break
    # The first batches were made while the worker started. The lower quartile: on a busy machine,
    # half of the time is spent on waking the other process.
    gaps = [b - a for a, b in itertools.pairwise(arrivals)]
    gaps = sorted(gaps[2:] or gaps)
    taken = gaps[len(gaps) // 4]
    return max(taken - copying, 0.1 * taken)


def time_copy(batch: Any, seconds: float) -> float | None:
    """Measure the seconds that a batch takes to the GPU; None without a GPU."""
    if not torch.cuda.is_available():
        return None

    def copied() -> None:
        mapped(batch, lambda t: t.to("cuda", non_blocking=True))
        torch.cuda.synchronize()

    return median_time(copied, seconds)
