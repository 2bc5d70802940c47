"""Step 1a, samples: how much of a sample's time goes into storage, decoding and transforms.

Python's profiling hook sees every call. Reading (system calls, files, sockets), decoding (Pillow,
OpenCV, torchvision, packio) and the dataset's transforms are known by name. Other code counts as
transform while it computes, and as storage while it sleeps. Time in which the thread waits for a
processor, because the machine is busy, does not count.
"""

from __future__ import annotations

import io
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

from packio.measuring.doctor.findings import Stages
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
_TRANSFORMS = ("transform", "transforms", "target_transform", "joint_transform", "augment",
               "augmentation", "preprocess")  # fmt: skip
_WRAPPED = ("dataset", "datasets", "ds", "inner", "_dataset")  # of datasets that wrap others
_DEPTH = 8  # of datasets in datasets, and of transforms in transforms
_MEMBERS = 32  # of a list of transforms, or of datasets, that are looked into
_TRANSFORM = "transform:"  # a stage, with the qualified name of the transform if it has one
_OF_INSTANCE = "?"  # the stage depends on the object whose method is called


class SampleTime(NamedTuple):
    """Seconds of a sample, by stage."""

    storage: float
    decode: float
    transform: float


def time_samples(
    setup: Setup, indices: Sequence[Any], seconds: float
) -> tuple[Stages, list[Any], list[Any]]:
    """Fetch samples that nobody has fetched yet. Returns their stages, the samples, the indices.

    Samples are fetched one by one under the hook, twice: this gives the share of each stage, and
    the storage of both fetches. Without the hook, they are then fetched as a DataLoader does: this
    gives the time of computing. The very first opens files and imports modules: it does not count.
    """
    began, timer = time.perf_counter(), SampleTimer(setup.dataset)
    timer.run(indices[:1], 0)
    chosen = list(indices[1:] or indices)
    first, steps = timer.run(chosen, seconds / 4), timer.shares()
    again = timer.run(chosen[: len(timer.values)], seconds / 4)
    values = timer.values
    chosen, rounds = chosen[: len(values)], list[float]()
    while len(rounds) < 5 and time.perf_counter() - began < seconds:
        before = clock()
        values = setup.fetch(chosen)
        rounds.append((clock() - before) / len(values))
    parts, storage_again = take_out_hook(
        first, again, statistics.median(rounds) if rounds else sum(again)
    )
    return Stages(*parts, storage_again=storage_again, steps=steps), values, chosen


def take_out_hook(first: SampleTime, again: SampleTime, taken: float) -> tuple[SampleTime, float]:
    """Give the stages of a first fetch, and the storage of a second, as without the hook.

    The lesser time of computing counts: a busy machine rarely disturbs samples twice. `taken`: the
    seconds of a sample without the hook.
    """
    storage, computed = again.storage, again.decode + again.transform
    reading = computing = taken / max(sum(again), 1e-9)
    if taken >= storage:  # else samples of a batch are fetched side by side
        reading, computing = 1.0, min(1.0, (taken - storage) / max(computed, 1e-9))
    decode, transform = (computing * min(pair) for pair in zip(first[1:], again[1:], strict=True))
    return SampleTime(reading * first.storage, decode, transform), reading * storage


class SampleTimer:
    """Python's profiling hook: it tells reading, decoding and transforming from other code."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._known: dict[CodeType, str | None] = {}
        self._seen: dict[int, Any] = {}  # kept: another object may not get the id
        self._find_transforms(dataset)
        self.values: list[Any] = []  # the samples of the last run
        self._spent: dict[str, float] = defaultdict(float)  # seconds of the last run, by stage
        self._stack: list[str | None] = []
        self._now, self._at, self._delay = "", (0.0, 0.0), 0.0

    def run(self, indices: Sequence[Any], seconds: float) -> SampleTime:
        """Fetch samples one by one, one at least, until the time is over. Returns their mean."""
        until, before = time.perf_counter() + seconds, sys.getprofile()
        self.values, self._spent = [], defaultdict(float)
        for index in indices:
            self._stack, self._now, self._delay = [], "", run_delay()
            self._at = (time.perf_counter(), time.thread_time())
            sys.setprofile(self._hook)
            try:
                self.values.append(self._dataset[index])
            finally:
                sys.setprofile(before)
            self._switch("")
            if time.perf_counter() > until:
                break
        storage, decode = self._spent["storage"], self._spent["decode"]
        parts = storage, decode, sum(self._spent.values()) - storage - decode
        return SampleTime(*(part / len(self.values) for part in parts))

    def shares(self) -> dict[str, float]:
        """Give the share of each transform, without those that it calls, the largest first."""
        total = max(sum(self._spent.values()), 1e-9)
        ordered = sorted(self._spent.items(), key=lambda item: -item[1])
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
            self._spent[self._now or "storage"] += slept
        self._spent[self._now] += computed
        self._at, self._now = now, stage

    def _hook(self, frame: FrameType, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            stage = self._find_stage(frame) if event == "call" else _find_stage_of_c(argument)
            # A transform that sleeps is a slow transform.
            if stage == self._now or (stage == "storage" and self._now.startswith(_TRANSFORM)):
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
            name = code.co_filename.replace(os.sep, "/")
            decodes = name.endswith(_DECODING_FILES) or any(f in name for f in _DECODING_FOLDERS)
            self._known[code] = "decode" if decodes else None
        if self._known[code] != _OF_INSTANCE:
            return self._known[code]
        owner: Any = frame.f_locals.get(next(iter(code.co_varnames), ""))
        return _TRANSFORM + _name(type(owner)) if id(owner) in self._seen else None

    def _find_transforms(self, owner: Any, depth: int = _DEPTH) -> None:
        """Find the transforms of a dataset or of a transform, and within what it wraps."""
        found: list[Any] = list(owner) if isinstance(owner, nn.Sequential) else []
        for name in (*_TRANSFORMS, *_WRAPPED):
            value = getattr(owner, name, None)
            found += value[:_MEMBERS] if isinstance(value, (list, tuple)) else [value]
        for part in found:
            is_own = callable(owner) and getattr(part, "__self__", None) is owner  # its method
            if part is not None and not is_own and id(part) not in self._seen and depth:
                self._seen[id(part)] = part
                self._add(part)
                self._find_transforms(part, depth - 1)

    def _add(self, transform: Any) -> None:
        function = getattr(transform, "__func__", transform)
        if isinstance(code := getattr(function, "__code__", None), CodeType):
            self._known[code] = _TRANSFORM + _name(function)
            return
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
