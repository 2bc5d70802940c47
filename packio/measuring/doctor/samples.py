"""Step 1a, samples: how much of a sample's time goes into storage, decoding and transforms.

Python's profiling hook sees every call. Reading (system calls, files, sockets), decoding (Pillow,
OpenCV, torchvision, packio) and the dataset's transforms are known by name. Other code counts as
transform while it computes, and as storage while it sleeps. Time in which the thread waits for a
processor, because the machine is busy, does not count.
"""

from __future__ import annotations

import functools
import io
import itertools
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from packio.measuring.doctor.setups import Setup

_IDLE = 1e-4  # seconds without the processor; a longer time is looked into
_READS = frozenset((
    "open", "read", "readinto", "readinto1", "read1", "readline", "readall", "pread", "preadv",
    "stat", "lstat", "fstat", "seek", "close", "recv", "recv_into", "fromfile", "get",
))  # fmt: skip
_READERS = frozenset(("posix", "_io", "io", "mmap", "_socket", "_ssl", "lmdb", "h5py", "numpy"))
_DECODES = frozenset(("imdecode", "imread"))
_DECODING_FILES = ("PIL/ImageFile.py", "packio/images/regions.py", "packio/images/png.py",
                   "packio/packs/raw.py", "torchvision/io/image.py")  # fmt: skip
_DECODING_FOLDERS = (
    "/packio/images/decoders/",
    "/packio/images/native/",
    "/jpeg4py/",
    "/imageio/",
    "/torchcodec/",
)
_TRANSFORMING_FOLDERS = ("/torchvision/transforms/", "/albumentations/", "/kornia/")
_TRANSFORMS = ("transform", "transforms", "target_transform", "joint_transform", "augment",
               "augmentation", "preprocess")  # fmt: skip


class SampleTime(NamedTuple):
    """Seconds of one sample, by stage."""

    storage: float
    decode: float
    transform: float

    @property
    def total(self) -> float:
        """Seconds of all stages."""
        return self.storage + self.decode + self.transform


def mean(shares: Sequence[SampleTime]) -> SampleTime:
    """Average over samples."""
    return SampleTime(*(statistics.fmean(parts) for parts in zip(*shares, strict=True)))


def least(first: Sequence[SampleTime], again: Sequence[SampleTime]) -> list[SampleTime]:
    """Give the storage of the first fetch of each sample, and the lesser time of other stages.

    A busy machine disturbs now this sample, now that one, but rarely the same sample twice.
    Storage, however, is slow once for each sample: the second read finds the bytes in a cache.
    """
    pairs = itertools.zip_longest(first, again)
    return [
        a if b is None else SampleTime(a.storage, min(a.decode, b.decode),
                                       min(a.transform, b.transform))
        for a, b in pairs
    ]  # fmt: skip


class Samples(NamedTuple):
    """Samples that were timed one by one.

    Attributes:
        time: The mean of their first fetches.
        again: Mean seconds of storage when they were fetched again.
        values, indices: The samples, and their indices.
        steps: Name of a transform → its share of the time of a sample.
    """

    time: SampleTime
    again: float
    values: list[Any]
    indices: list[Any]
    steps: dict[str, float]


def time_samples(setup: Setup, indices: Sequence[Any], seconds: float) -> Samples:
    """Fetch samples, and divide their time among the stages.

    Samples are fetched one by one under the hook, twice: this gives the share of each stage, and
    of storage what the first and the second fetch take. Without the hook, they are then fetched
    as a DataLoader does: this gives the time of computing.

    Args:
        setup: The loader.
        indices: Indices of samples that nobody has fetched yet, in the order of the sampler.
        seconds: Seconds to spend, roughly. Two samples are fetched in any case: the first of them
            opens files and imports modules, and does not count.
    """
    dataset, began = setup.dataset, time.perf_counter()
    timer = SampleTimer(dataset)
    timer.run(indices[:1], 0)
    first = timer.run(indices[1:] or indices, seconds / 4)
    chosen = list((indices[1:] or indices)[: len(first)])
    again = timer.run(chosen, seconds / 4)
    values, chosen = timer.values, chosen[: len(again)]
    parts, second = mean(least(first, again)), mean(again)
    rounds: list[float] = []
    while len(rounds) < 5 and time.perf_counter() - began < seconds:
        before = clock()
        values = setup.fetch(chosen) if setup.has_batches else [dataset[chosen[0]]]
        rounds.append((clock() - before) / len(values))
    taken = statistics.median(rounds) if rounds else second.total
    return Samples(*unhooked(parts, second, taken), values, chosen, timer.shares())


def unhooked(first: SampleTime, again: SampleTime, taken: float) -> tuple[SampleTime, float]:
    """Take out what the hook costs: it slows computing down, not the sleep of storage.

    Returns:
        The first fetch, and the storage of the second fetch.
    """
    if taken < again.storage:  # samples of a batch are fetched side by side
        scale = taken / again.total
        return SampleTime(*(part * scale for part in first)), again.storage * scale
    computed = again.decode + again.transform
    scale = min(1.0, (taken - again.storage) / computed) if computed else 1.0
    return SampleTime(first.storage, first.decode * scale, first.transform * scale), again.storage


class SampleTimer:
    """Python's profiling hook: it tells reading, decoding and transforming from other code.

    Attributes:
        values: The samples of the last run.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset, self._codes = dataset, frozenset(_codes(dataset))
        self.values = list[Any]()
        self._known: dict[Any, str | None] = {}
        self._stack: list[str | None] = []
        self._now, self._seconds = "", dict.fromkeys(("", *SampleTime._fields), 0.0)
        self._at, self._delay, self._slept = (0.0, 0.0), 0.0, 0.0
        self._named = dict(_named_codes(dataset))
        self._step: tuple[int, str, float] | None = None  # depth of its call, name, since when
        self._steps: dict[str, float] = {}
        self._all = 0.0  # seconds of all samples

    def run(self, indices: Sequence[Any], seconds: float) -> list[SampleTime]:
        """Fetch samples one by one, one at least, until the time is over; time each of them."""
        until, before, found = time.perf_counter() + seconds, sys.getprofile(), list[SampleTime]()
        self.values = []
        for index in indices:
            self._seconds, self._slept = dict.fromkeys(self._seconds, 0.0), 0.0
            self._stack, self._now, self._delay = [], "", run_delay()
            self._at = (time.perf_counter(), time.thread_time())
            began, self._step = clock(), None
            sys.setprofile(self._hook)
            try:
                self.values.append(self._dataset[index])
            finally:
                sys.setprofile(before)
            self._all += clock() - began
            self._switch("")
            found.append(self._share())
            if time.perf_counter() > until:
                break
        return found

    def shares(self) -> dict[str, float]:
        """Tell the share of each transform in the time of all samples so far, the largest first."""
        ordered = sorted(self._steps.items(), key=lambda step: -step[1])
        return {name: seconds / self._all for name, seconds in ordered}

    def _share(self) -> SampleTime:
        spent, slept = self._seconds, self._slept
        computed = max(0.0, spent["transform"] + spent[""] - slept)
        return SampleTime(spent["storage"] + slept, spent["decode"], computed)

    def _switch(self, stage: str) -> None:
        """End a stage: count its time of computing and sleeping, not of waiting for a processor."""
        now = (time.perf_counter(), time.thread_time())
        computed = now[1] - self._at[1]
        slept = now[0] - self._at[0] - computed
        if slept > _IDLE:
            delay = run_delay()
            slept, self._delay = max(0.0, slept - (delay - self._delay)), delay
            computed += slept
            self._slept += slept if not self._now else 0.0
        self._seconds[self._now] += computed
        self._at, self._now = now, stage

    def _hook(self, frame: FrameType, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            stage = self._of_code(frame.f_code) if event == "call" else self._of_c(argument)
            if self._step is None and event == "call" and frame.f_code in self._named:
                self._step = len(self._stack), self._name(frame), clock()
            if stage == self._now or (stage == "storage" and self._now == "transform"):
                stage = None  # a transform that sleeps is a slow transform
            self._stack.append(None if stage is None else self._now)
            if stage is not None:
                self._switch(stage)
        elif self._stack:
            back = self._stack.pop()
            if self._step is not None and len(self._stack) == self._step[0]:
                _, name, began = self._step
                self._steps[name] = self._steps.get(name, 0.0) + clock() - began
                self._step = None
            if back is not None:
                self._switch(back)

    def _name(self, frame: FrameType) -> str:
        """Name the transform that is called: the class of a method, or the function."""
        own = frame.f_code.co_varnames[:1] == ("self",)
        return type(frame.f_locals["self"]).__name__ if own else self._named[frame.f_code]

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


def run_delay() -> float:
    """Read the seconds in which this thread was ready to run but had no processor.

    Source: Linux, Documentation/scheduler/sched-stats.rst, ``/proc/<pid>/schedstat``.
    """
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def clock() -> float:
    """Read a clock, in seconds, that stands still while this thread waits for a processor."""
    return time.perf_counter() - run_delay()


def _codes(dataset: Any) -> Iterator[CodeType]:
    """Find the code of the transforms of a dataset, and of the datasets that it wraps."""
    for transform in _transforms(dataset):
        yield from _code_of(transform)


def _named_codes(dataset: Any) -> Iterator[tuple[CodeType, str]]:
    """Find the code of the single transforms: those within a Compose, in its place."""
    found = list(_transforms(dataset))
    while found:
        transform = found.pop()
        if isinstance(parts := getattr(transform, "transforms", None), (list, tuple)):
            found += filter(callable, parts)
            continue
        for code in _code_of(transform):
            yield code, code.co_name
        forward = getattr(type(transform), "forward", None)  # of a torch.nn.Module
        if isinstance(inner := getattr(forward, "__code__", None), CodeType):
            yield inner, inner.co_name


def _transforms(dataset: Any, depth: int = 0) -> Iterator[Any]:
    for name in _TRANSFORMS:
        transform = getattr(dataset, name, None)
        if callable(transform):
            yield transform
    inner = [getattr(dataset, name, None) for name in ("dataset", "ds", "inner", "_dataset")]
    inner += list(getattr(dataset, "datasets", None) or [])[:4]
    for other in inner:
        if other is not None and depth < 4:
            yield from _transforms(other, depth + 1)


def _code_of(transform: Any) -> Iterator[CodeType]:
    while isinstance(transform, functools.partial):
        transform = transform.func
    function = getattr(transform, "__func__", transform)
    called = type(transform).__call__ if callable(transform) else None
    code = getattr(function, "__code__", None) or getattr(called, "__code__", None)
    if isinstance(code, CodeType):
        yield code
