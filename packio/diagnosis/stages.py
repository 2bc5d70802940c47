"""What a sample and a batch cost, stage by stage, in this process.

Samples are asked for as a DataLoader does, and timed. Then, once more, beneath Python's profiling
hook, which sees every call: reading (the system's calls, files, sockets), decoding (Pillow, OpenCV,
torchvision, packio) and the dataset's transforms; what remains counts as transform where it
computes, as storage where it sleeps. The first pass says how long, the second of what.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import io
import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset

from packio.diagnosis.setups import Setup
from packio.tensors import mapped, new_batch

_LEAST_ITEMS = 4
_IDLE = 1e-4  # seconds without the processor that are worth asking why
_MOST_ITEMS = 64
_READS = frozenset((
    "open", "read", "readinto", "readinto1", "read1", "readline", "readall", "pread", "preadv",
    "stat", "lstat", "fstat", "seek", "close", "recv", "recv_into", "fromfile", "get",
))  # fmt: skip
_READERS = frozenset(("posix", "_io", "io", "mmap", "_socket", "_ssl", "lmdb", "h5py", "numpy"))
_DECODES = frozenset(("imdecode", "imread"))
_DECODING_FILES = ("PIL/ImageFile.py", "packio/regions.py", "packio/raw.py",
                   "torchvision/io/image.py")  # fmt: skip
_DECODING_FOLDERS = ("/packio/decoders/", "/jpeg4py/", "/imageio/", "/torchcodec/")
_TRANSFORMING_FOLDERS = ("/torchvision/transforms/", "/albumentations/", "/kornia/")
_TRANSFORMS = ("transform", "transforms", "target_transform", "joint_transform", "augment",
               "augmentation", "preprocess")  # fmt: skip


class Share(NamedTuple):
    """Seconds a sample."""

    storage: float
    decode: float
    transform: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.storage + self.decode + self.transform


def time_samples(
    setup: Setup, indices: Sequence[Any], seconds: float
) -> tuple[Share, list[Any], list[Any]]:
    """Fetch samples, and share their time out.

    Args:
        setup: The loader.
        indices: Of samples, in the sampler's order.
        seconds: To spend, roughly.

    Returns:
        The shares; samples; and the indices that were asked for.
    """
    dataset, chosen = setup.dataset, list(indices[:_MOST_ITEMS])
    watch = Watch(dataset)
    first = watch.run(dataset, chosen, seconds / 4)
    chosen = chosen[: len(first)]
    parts = mean(first, watch.run(dataset, chosen, seconds / 4))
    rounds: list[float] = []
    until = time.perf_counter() + seconds / 2
    while not rounds or (time.perf_counter() < until and len(rounds) < 5):
        began = _clock()
        samples = setup.fetch(dataset, chosen) if setup.has_batches else [dataset[chosen[0]]]
        rounds.append((_clock() - began) / len(samples))
    scale = statistics.median(rounds) / parts.total if parts.total else 0.0
    return Share(*(part * scale for part in parts)), samples, chosen


def mean(shares: Sequence[Share], again: Sequence[Share] = ()) -> Share:
    """The mean over samples; of those that were asked for twice, by what took less each time.

    A busy machine disturbs now this sample, now that one; what a sample costs, it costs each time.
    """
    pairs = itertools.zip_longest(shares, again)
    least = [a if b is None else Share(*map(min, a, b)) for a, b in pairs]
    return Share(*(statistics.fmean(parts) for parts in zip(*least, strict=True)))


class Watch:
    """Python's profiling hook, telling reading, decoding and transforms from all else."""

    def __init__(self, dataset: Any) -> None:
        self._codes = frozenset(_codes(dataset))
        self._known: dict[Any, str | None] = {}
        self._stack: list[str | None] = []
        self._now, self._seconds = "", dict.fromkeys(("", *Share._fields), 0.0)
        self._at, self._delay, self._slept = (0.0, 0.0), 0.0, 0.0

    def run(self, dataset: Any, indices: Sequence[Any], seconds: float) -> list[Share]:
        """Ask for the samples, one by one, for so long, four at least; say what each took."""
        until, before, found = time.perf_counter() + seconds, sys.getprofile(), list[Share]()
        for index in indices:
            self._seconds, self._slept = dict.fromkeys(self._seconds, 0.0), 0.0
            self._stack, self._now, self._delay = [], "", _run_delay()
            self._at = (time.perf_counter(), time.thread_time())
            sys.setprofile(self._hook)
            try:
                dataset[index]
            finally:
                sys.setprofile(before)
            self._switch("")
            found.append(self._share())
            if len(found) >= _LEAST_ITEMS and time.perf_counter() > until:
                break
        return found

    def _share(self) -> Share:
        spent, slept = self._seconds, self._slept
        computed = max(0.0, spent["transform"] + spent[""] - slept)
        return Share(spent["storage"] + slept, spent["decode"], computed)

    def _switch(self, stage: str) -> None:
        """Count the time so far: computing and sleeping, but not waiting for a processor."""
        now = (time.perf_counter(), time.thread_time())
        computed = now[1] - self._at[1]
        slept = now[0] - self._at[0] - computed
        if slept > _IDLE:
            delay = _run_delay()
            slept, self._delay = max(0.0, slept - (delay - self._delay)), delay
            computed += slept
            self._slept += slept if not self._now else 0.0
        self._seconds[self._now] += computed
        self._at, self._now = now, stage

    def _hook(self, frame: FrameType, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            stage = self._of_code(frame.f_code) if event == "call" else self._of_c(argument)
            if stage == self._now or (stage == "storage" and self._now == "transform"):
                stage = None  # a transform that sleeps is a slow transform
            self._stack.append(None if stage is None else self._now)
            if stage is not None:
                self._switch(stage)
        elif self._stack:
            back = self._stack.pop()
            if back is not None:
                self._switch(back)

    def _of_code(self, code: CodeType) -> str | None:
        if code not in self._known:
            self._known[code] = self._stage_of_code(code)
        return self._known[code]

    def _stage_of_code(self, code: CodeType) -> str | None:
        name = code.co_filename.replace(os.sep, "/")
        if code in self._codes or any(part in name for part in _TRANSFORMING_FOLDERS):
            return "transform"
        if name.endswith(_DECODING_FILES) or any(part in name for part in _DECODING_FOLDERS):
            return "decode"
        return None

    def _of_c(self, function: Any) -> str | None:
        name = function.__name__
        if name in _DECODES:
            return "decode"
        if name not in _READS:
            return None
        owner = getattr(function, "__self__", None)
        if isinstance(owner, (io.BytesIO, io.StringIO, dict)):
            return None
        module = getattr(function, "__module__", None) or type(owner).__module__
        return "storage" if module.partition(".")[0] in _READERS else None


def _run_delay() -> float:
    """Seconds that this thread was ready to run and did not. Source: Linux, sched-stats.rst."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _clock() -> float:
    """Seconds, without those that this thread spent waiting for a processor."""
    return time.perf_counter() - _run_delay()


def _codes(dataset: Any, depth: int = 0) -> Iterator[CodeType]:
    """Code of the transforms of a dataset, and of the ones it wraps."""
    for name in _TRANSFORMS:
        transform = getattr(dataset, name, None)
        if callable(transform):
            yield from _code_of(transform)
    inner = [getattr(dataset, name, None) for name in ("dataset", "ds", "inner", "_dataset")]
    inner += list(getattr(dataset, "datasets", None) or [])[:4]
    for other in inner:
        if other is not None and depth < 4:
            yield from _codes(other, depth + 1)


def _code_of(transform: Any) -> Iterator[CodeType]:
    while isinstance(transform, functools.partial):
        transform = transform.func
    function = getattr(transform, "__func__", transform)
    called = type(transform).__call__ if callable(transform) else None
    code = getattr(function, "__code__", None) or getattr(called, "__code__", None)
    if isinstance(code, CodeType):
        yield code


def time_cold(setup: Setup, indices: Sequence[Any], seconds: float) -> float | None:
    """Seconds of storage a sample, once the files are out of the page cache.

    Returns:
        None where there are no files to be found, or the system keeps them.
    """
    with _opened_files() as opened:
        setup.dataset[indices[0]]
    paths = {*opened, *_open_files()}
    for index in indices:  # whose files are opened one by one
        with _opened_files() as opened:
            setup.dataset[index]
        paths |= opened
    dropped = [_dropped(path) for path in paths]
    if not any(dropped):
        return None
    watch = Watch(setup.dataset)
    return mean(watch.run(setup.dataset, indices, seconds)).storage


@contextlib.contextmanager
def _opened_files() -> Iterator[set[str]]:
    """Take note of the files that this process opens meanwhile."""
    found: set[str] = set()

    def noting(opening: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(opening)
        def noted(path: Any, *rest: Any, **options: Any) -> Any:
            if isinstance(path, (str, bytes, os.PathLike)):
                found.add(os.fsdecode(path))
            return opening(path, *rest, **options)

        return noted

    before = builtins.open, io.open, os.open
    builtins.open, io.open, os.open = noting(before[0]), noting(before[1]), noting(before[2])
    try:
        yield found
    finally:
        builtins.open, io.open, os.open = before


def _open_files() -> set[str]:
    """Regular files that are open, but for libraries and logs: those that are only read."""
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                flags = int(Path(f"/proc/self/fdinfo/{name}").read_text().split()[3], 8)
                if flags & os.O_ACCMODE == os.O_RDONLY:
                    found.add(os.readlink(f"/proc/self/fd/{name}"))
    return found


def _dropped(path: str) -> bool:
    """Ask the system to forget a file's pages; tell whether its first one is gone."""
    try:
        if not os.path.isfile(path) or not os.path.getsize(path):
            return False
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def median_time(work: Callable[[], Any], seconds: float, *, least: int = 3) -> float:
    """Median seconds of a call, after one that does not count."""
    work()
    times: list[float] = []
    until = time.perf_counter() + seconds
    while len(times) < least or (time.perf_counter() < until and len(times) < 200):
        began = _clock()
        work()
        times.append(_clock() - began)
    return statistics.median(times)


def time_collate(setup: Setup, samples: list[Any], size: int, seconds: float) -> tuple[float, Any]:
    """Seconds of collating a batch, and the batch."""
    if len(samples) < size and type(samples) is list:
        samples = (samples * -(-size // len(samples)))[:size]
    batch = setup.collate(samples)
    taken = median_time(lambda: setup.collate(samples), seconds)
    return taken * size / max(1, len(samples)), batch


class _Replay(Dataset[Any]):
    """The same batch again and again, in memory of its own each time.

    Args:
        batch: The batch.
        count: How many times.
        shared: In shared memory at once, as `packio.collate` makes batches in workers.
    """

    def __init__(self, batch: Any, count: int, *, shared: bool) -> None:
        self._batch, self._count, self._shared = batch, count, shared

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        return mapped(self._batch, _copied if self._shared else torch.clone)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return new_batch(tuple(tensor.shape), tensor.dtype).copy_(tensor)


def as_it_is(batch: Any) -> Any:
    """Collate nothing."""
    return batch


def time_hand_over(batch: Any, seconds: float, *, shared: bool, context: Any = None) -> float:
    """Seconds that a batch takes from a worker process to this one; see `_Replay`."""
    copying = median_time(lambda: mapped(batch, torch.clone), seconds / 4)
    most = max(4, min(50, int(seconds / max(2 * copying, 1e-4))))
    loader = DataLoader(
        _Replay(batch, most + 3, shared=shared), batch_size=None, num_workers=1, timeout=60,
        collate_fn=as_it_is, multiprocessing_context=context,
    )  # fmt: skip
    source = iter(loader)
    for _ in range(3):
        next(source)
    arrivals = [time.perf_counter()]
    for _ in source:
        arrivals.append(time.perf_counter())
        if arrivals[-1] - arrivals[0] > seconds and len(arrivals) > 3:
            break
    # the lower quartile: on a busy machine, half of the time goes on waking the other process
    taken = statistics.quantiles((b - a for a, b in itertools.pairwise(arrivals)), n=4)[0]
    return max(taken - copying, 0.1 * taken)


def time_copy(batch: Any, seconds: float) -> float | None:
    """Seconds that a batch takes to the GPU; None without one."""
    if not torch.cuda.is_available():
        return None

    def copied() -> None:
        mapped(batch, lambda t: t.to("cuda", non_blocking=True))
        torch.cuda.synchronize()

    return median_time(copied, seconds)
