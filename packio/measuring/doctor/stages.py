"""Step 1c, batches: what collating, handing over and copying a batch cost by themselves."""

from __future__ import annotations

import pickle
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

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
    taken = median_time(lambda: setup.collate(samples), seconds)
    return taken * size / max(1, len(samples)), setup.collate(samples)


def time_hand_over(batch: Any, seconds: float, *, shared: bool) -> float:
    """Measure the seconds of a worker for handing a batch over: sharing tensors, pickling the rest.

    What the process that takes batches over spends is part of the loop's time.
    """
    rest = _map_tensors(batch, lambda _: torch.empty(0))
    until, times = time.perf_counter() + seconds, list[float]()
    while len(times) < 2 or (time.perf_counter() < until and len(times) < 50):
        tensors: list[torch.Tensor] = []

        def copy(tensor: torch.Tensor, into: list[torch.Tensor] = tensors) -> torch.Tensor:
            size, dtype = tuple(tensor.shape), tensor.dtype
            into.append(new_batch(size, dtype).copy_(tensor) if shared else tensor.clone())
            return tensor

        _map_tensors(batch, copy)
        began = clock()
        for tensor in tensors:
            tensor.share_memory_()  # type: ignore[no-untyped-call]  # torch's own
        pickle.dumps(rest)
        times.append(clock() - began)
    return statistics.median(times[1:])


def _map_tensors(batch: Any, work: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Map the tensors of a batch; lists of thousands of other objects are not gone through."""
    if isinstance(batch, (list, tuple)):
        parts = [_map_tensors(part, work) if _may_hold(part) else part for part in batch]
        return parts if isinstance(batch, list) else tuple(parts)
    return mapped(batch, work)


def _may_hold(value: Any) -> bool:
    """Tell from its first member whether a part of a batch holds tensors."""
    if isinstance(value, (list, tuple)):
        return bool(value) and _may_hold(value[0])
    return isinstance(value, (torch.Tensor, Mapping))


def time_copy(batch: Any, seconds: float) -> float | None:
    """Measure the seconds that a batch takes to the GPU; None without a GPU."""
    if not torch.cuda.is_available():
        return None

    def copy() -> None:
        mapped(batch, lambda t: t.to("cuda", non_blocking=True))
        torch.cuda.synchronize()

    return median_time(copy, seconds)
