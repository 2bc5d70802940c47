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
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from torch import nn

from packio.measuring.doctor.setups import Setup

_LEAST_SHARE = 0.01  # of a sample's time, from which on a transform is told
_IDLE = 1e-4  # seconds without the processor; a longer time is looked into
_READS = frozenset((
    "open", "read", "readinto", "readinto1", "read1", "readline", "readall", "pread", "preadv",
    "stat", "lstat", "fstat", "seek", "close", "recv", "recv_into", "fromfile", "get",
))  # fmt: skip
_READERS = frozenset(("posix", "_io", "io", "mmap", "_socket", "_ssl", "lmdb", "h5py", "numpy"))
_DECODES = frozenset(("imdecode", "imread"))
_DECODING_FILES = ("PIL/ImageFile.py", "packio/images/regions.py", "packio/images/png.py",
                   "packio/packs/raw.py", "torchvision/io/image.py")  # fmt: skip
_DECODING_FOLDERS = ("/packio/images/decoders/", "/packio/images/native/", "/jpeg4py/", "/imageio/",
                     "/torchcodec/")  # fmt: skip
_TRANSFORMING_FOLDERS = ("/torchvision/transforms/", "/albumentations/", "/kornia/")
_TRANSFORMS = ("transform", "transforms", "target_transform", "joint_transform", "augment",
               "augmentation", "preprocess")  # fmt: skip


_WRAPPED = ("dataset", "ds", "inner", "_dataset")  # attributes of datasets that wrap another one
_DEPTH = 8  # of datasets in datasets, and of transforms in transforms
_TRANSFORM = "transform:"  # a stage, with the qualified name of the transform if it has one
_OF_INSTANCE = "?"  # the stage depends on the object whose method is called


class SampleTime(NamedTuple):
    """Seconds of one sample, by stage."""

    storage: float
    decode: float
    transform: float

    @property
    def total(self) -> float:
        return self.storage + self.decode + self.transform


class Samples(NamedTuple):
    """Samples that were timed one by one."""

    time: SampleTime  # the mean of their first fetches
    again: float  # mean seconds of storage when they were fetched again
    values: list[Any]
    indices: list[Any]
    steps: dict[str, float]  # qualified name of a transform → its share of the time of a sample


def time_samples(setup: Setup, indices: Sequence[Any], seconds: float) -> Samples:
    """Fetch samples that nobody has fetched yet, and divide their time among the stages.

    Samples are fetched one by one under the hook, twice: this gives the share of each stage, and
    the storage of both fetches. Without the hook, they are then fetched as a DataLoader does: this
    gives the time of computing. The very first opens files and imports modules: it does not count.
    """
    dataset, began = setup.dataset, time.perf_counter()
    timer = SampleTimer(dataset)
    timer.run(indices[:1], 0)
    timer.seconds.clear()
    first = timer.run(indices[1:] or indices, seconds / 4)
    chosen = list((indices[1:] or indices)[: len(first)])
    again = timer.run(chosen, seconds / 4)
    values, chosen = timer.values, chosen[: len(again)]
    parts, second = mean(take_least(first, again)), mean(again)
    rounds: list[float] = []
    while len(rounds) < 5 and time.perf_counter() - began < seconds:
        before = clock()
        values = setup.fetch(chosen) if setup.has_batches else [dataset[chosen[0]]]
        rounds.append((clock() - before) / len(values))
    taken = statistics.median(rounds) if rounds else second.total
    return Samples(*take_out_hook(parts, second, taken), values, chosen, timer.shares())


def mean(times: Sequence[SampleTime]) -> SampleTime:
    return SampleTime(*(statistics.fmean(parts) for parts in zip(*times, strict=True)))


def take_least(first: Sequence[SampleTime], again: Sequence[SampleTime]) -> list[SampleTime]:
    """Give the storage of first fetches, and the lesser time of other stages.

    A busy machine rarely disturbs a sample twice; but the second read finds the bytes in a cache.
    """
    return [
        SampleTime(a.storage, min(a.decode, b.decode), min(a.transform, b.transform))
        for a, b in zip(first, itertools.chain(again, first[len(again) :]), strict=True)
    ]


def take_out_hook(first: SampleTime, again: SampleTime, taken: float) -> tuple[SampleTime, float]:
    """Take out what the hook costs computing: the first fetch, and the storage of the second."""
    if taken < again.storage:  # samples of a batch are fetched side by side
        scale = taken / again.total
        return SampleTime(*(part * scale for part in first)), again.storage * scale
    computed = again.decode + again.transform
    scale = min(1.0, (taken - again.storage) / computed) if computed else 1.0
    return SampleTime(first.storage, first.decode * scale, first.transform * scale), again.storage


class SampleTimer:
    """Python's profiling hook: it tells reading, decoding and transforming from other code."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._known: dict[CodeType, str | None] = {}
        self._objects: dict[int, tuple[Any, str]] = {}  # kept: another object may not get the id
        self._find_transforms(dataset, is_dataset=True)
        self.values: list[Any] = []  # the samples of the last run
        self.seconds: dict[str, float] = defaultdict(float)  # of all samples so far, by stage
        self._stack: list[str | None] = []
        self._now, self._spent, self._slept = "", defaultdict[str, float](float), 0.0
        self._at, self._delay = (0.0, 0.0), 0.0

    def run(self, indices: Sequence[Any], seconds: float) -> list[SampleTime]:
        """Fetch samples one by one, one at least, until the time is over; time each of them."""
        until, before, times = time.perf_counter() + seconds, sys.getprofile(), list[SampleTime]()
        self.values = []
        for index in indices:
            self._spent, self._slept = defaultdict(float), 0.0
            self._stack, self._now, self._delay = [], "", run_delay()
            self._at = (time.perf_counter(), time.thread_time())
            sys.setprofile(self._hook)
            try:
                self.values.append(self._dataset[index])
            finally:
                sys.setprofile(before)
            self._switch("")
            spent = self._spent
            for stage, value in spent.items():
                self.seconds[stage] += value
            transforms = sum(s for stage, s in spent.items() if stage.startswith(_TRANSFORM))
            computed = max(0.0, transforms + spent[""] - self._slept)
            times.append(SampleTime(spent["storage"] + self._slept, spent["decode"], computed))
            if time.perf_counter() > until:
                break
        return times

    def shares(self) -> dict[str, float]:
        """Give the share of each transform, without those that it calls, the largest first."""
        total = max(sum(self.seconds.values()), 1e-9)
        ordered = sorted(self.seconds.items(), key=lambda item: -item[1])
        named = {stage.partition(_TRANSFORM)[2]: spent / total for stage, spent in ordered}
        return {name: share for name, share in named.items() if name and share >= _LEAST_SHARE}

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
        self._spent[self._now] += computed
        self._at, self._now = now, stage

    def _hook(self, frame: FrameType, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            stage = self._find_stage(frame) if event == "call" else _find_stage_of_c(argument)
            # A transform that sleeps is a slow transform.
            if stage == self._now or (
                self._now.startswith(_TRANSFORM) and stage in ("storage", _TRANSFORM)
            ):
                stage = None
            self._stack.append(None if stage is None else self._now)
            if stage is not None:
                self._switch(stage)
        elif self._stack:
            back = self._stack.pop()
            if back is not None:
                self._switch(back)

    def _find_stage(self, frame: FrameType) -> str | None:
        code = frame.f_code
        if code not in self._known:
            self._known[code] = _find_stage_of_code(code)
        stage = self._known[code]
        if stage != _OF_INSTANCE:
            return stage
        owner = frame.f_locals.get(next(iter(code.co_varnames), ""))
        _, name = self._objects.get(id(owner), (None, None))
        return _find_stage_of_code(code) if name is None else _TRANSFORM + name

    def _find_transforms(self, owner: Any, depth: int = 0, *, is_dataset: bool) -> None:
        """Find the transforms of a dataset or of a transform, and within these."""
        if depth > _DEPTH:
            return
        found: list[Any] = list(owner) if isinstance(owner, nn.Sequential) else []
        for name in _TRANSFORMS:
            value = getattr(owner, name, None)
            found += value if isinstance(value, (list, tuple)) else [value]
        for transform in found:
            is_own = not is_dataset and getattr(transform, "__self__", None) is owner
            if callable(transform) and not is_own and id(transform) not in self._objects:
                self._add(transform)
                self._find_transforms(transform, depth + 1, is_dataset=False)
        if is_dataset:
            inner = [getattr(owner, name, None) for name in _WRAPPED]
            for other in [*inner, *list(getattr(owner, "datasets", None) or [])[:4]]:
                if other is not None:
                    self._find_transforms(other, depth + 1, is_dataset=True)

    def _add(self, transform: Any) -> None:
        while isinstance(transform, functools.partial):
            transform = transform.func
        function = getattr(transform, "__func__", transform)
        if isinstance(code := getattr(function, "__code__", None), CodeType):
            self._known[code] = _TRANSFORM + _name(function)
            return
        self._objects[id(transform)] = transform, _name(type(transform))
        for method in ("__call__", "forward"):  # forward: of a torch.nn.Module
            called = getattr(type(transform), method, None)
            if isinstance(code := getattr(called, "__code__", None), CodeType):
                self._known[code] = _OF_INSTANCE


def _name(thing: Any) -> str:
    """Name a class or function as it is imported: in the shortest module that has it."""
    parts, name = str(thing.__module__).split("."), str(thing.__qualname__)
    modules = (".".join(parts[:end]) for end in range(1, len(parts) + 1))
    having = (m for m in modules if getattr(sys.modules.get(m), "__dict__", {}).get(name) is thing)
    return f"{next(having, thing.__module__)}.{name}"


def _find_stage_of_code(code: CodeType) -> str | None:
    name = code.co_filename.replace(os.sep, "/")
    if any(part in name for part in _TRANSFORMING_FOLDERS):
        return _TRANSFORM
    if name.endswith(_DECODING_FILES) or any(part in name for part in _DECODING_FOLDERS):
        return "decode"
    return None


def _find_stage_of_c(function: Any) -> str | None:
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
