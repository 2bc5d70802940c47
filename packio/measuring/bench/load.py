"""How fast a pack loads on this machine, in every setting of threads and workers."""

from __future__ import annotations

import dataclasses
import math
import os
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from packio.batches import collating
from packio.datasets.pack_dataset import PackDataset
from packio.errors import OptionError
from packio.images.geometry import Geometry, RandomResizedCrop
from packio.measuring import gains
from packio.measuring.doctor.loops import Loop
from packio.measuring.turns import IndexFeed, IndexOrder, run_in_turns
from packio.system import processors
from packio.system.quantities import pluralize

_NEVER_LESS = 0.02  # noise, as a share: few rounds may agree by chance
_LEAST_LAPS = 4  # batches of each worker that are timed
_LOOKED_AT = 64  # images whose stages are timed
_LEAST_ROUNDS, _LONG = 3, 0.5  # rounds of the stages; seconds of rounds, if so many are shorter


class Setting(NamedTuple):
    """One way to load, and its rate."""

    workers: int  # processes of the DataLoader; 0: threads of the main process make batches
    threads: int  # of each process
    images_per_second: float  # median over the rounds, as the next
    megabytes_per_second: float  # as they are stored
    slowest: float  # images per second of the slowest round
    fastest: float

    def __str__(self) -> str:
        return _named(self.workers, self.threads)


@dataclasses.dataclass(frozen=True)
class LoadResult:
    """What `measure` found."""

    path: str
    format: str
    samples: int
    batch_size: int
    crop: str
    fidelity: str
    decoder: str
    cpus: int  # that this process may use
    settings: list[Setting]
    stages: dict[str, float]  # name → microseconds an image, on one core, in the page cache
    gains: list[gains.Gain]  # what changes of the pack would bring

    @property
    def noise(self) -> float:
        """How far the rounds of a setting are apart, as a share: ± half of their range, median."""
        return statistics.median(
            (s.fastest - s.slowest) / 2 / max(s.images_per_second, 1e-9) for s in self.settings
        )

    @property
    def best(self) -> Setting:
        """The setting with the fewest processes and threads that is the fastest, but for noise."""
        most = max(setting.images_per_second for setting in self.settings)
        least = most / (1 + 2 * max(self.noise, _NEVER_LESS))
        alike = [s for s in self.settings if s.images_per_second >= least]
        return min(alike, key=lambda s: (max(s.workers, s.threads), s.workers,
                                         -s.images_per_second))  # fmt: skip

    def as_dict(self) -> dict[str, Any]:
        values = dataclasses.asdict(self)
        values["settings"] = [setting._asdict() for setting in self.settings]
        values["gains"] = [gain._asdict() for gain in self.gains]
        return values | {"best": self.best._asdict(), "noise": self.noise,
                         "ceiling": self.ceiling}  # fmt: skip

    @property
    def ceiling(self) -> float:
        """Images per second of all CPUs, if each made images as one does alone."""
        return 1e6 * self.cpus / max(sum(self.stages.values()), 1e-9)


def measure(
    path: str | os.PathLike[str], *, crop: Geometry | None = None, batch_size: int = 64,
    fidelity: str = "exact", decoder: str = "auto", workers: Iterable[int] | None = None,
    threads: Iterable[int] | None = None, rounds: int = 3, images: int = 2000,
    seconds: float = 120.0, say: Callable[[str], None] | None = None,
) -> LoadResult:  # fmt: skip
    """Load a pack in every setting, in turn, and time the stages of one image.

    A setting loads so many `images` in a round, and some batches of each worker at least. Each gets
    an equal share of the `seconds`, and loads fewer images where these would take longer; once the
    time is over, no setting is measured a second time. `workers` of 0 are skipped: `threads` are
    tried without workers; None: 1, 2, 4, … up to the number of CPUs.
    """
    crop = crop if crop is not None else RandomResizedCrop(224)
    if rounds < 1 or batch_size < 1 or images < 1:
        raise OptionError(
            f"rounds={rounds}, batch_size={batch_size}, images={images}: expected at least 1"
        )
    if not seconds > 0:
        raise OptionError(f"seconds={seconds}: expected more than 0")
    threads, workers = list(threads or ()), list(workers or ())
    if any(n < 1 for n in threads) or any(n < 0 for n in workers):
        raise OptionError(f"threads={threads}, workers={workers}: expected 1 thread or more each")
    say = say or (lambda _: None)
    cpus = processors.usable()
    dataset = PackDataset(
        path, crop=crop, hflip=0.5, fidelity=fidelity, decoder=decoder, fields="image",
        on_error="skip",
    )  # fmt: skip
    counts = sorted({cpus, *(1 << i for i in range(cpus.bit_length()) if 1 << i <= cpus)})
    tried = [(0, t) for t in (threads or counts)] + [(w, 1) for w in (workers or counts) if w]
    candidates = [_TimedLoader(dataset, w, t, batch_size, images) for w, t in tried]
    ends, share = time.monotonic() + seconds, seconds / (rounds * len(candidates))

    def run(candidate: _TimedLoader) -> None:
        if not candidate.rates or time.monotonic() < ends:
            candidate.run(say, rounds, share)

    try:
        run_in_turns(candidates, rounds, run)
        settings = [candidate.setting() for candidate in candidates]
    finally:
        candidates.clear()  # ends the workers
    say("stages of one image")
    stages = time_stages(dataset, batch_size)
    say("what a change of the pack would bring")
    pack = dataset.pack
    return LoadResult(
        path=str(pack.path), format=str(pack.metadata["format"]), samples=len(pack),
        batch_size=batch_size, crop=repr(crop), fidelity=fidelity, decoder=decoder, cpus=cpus,
        settings=settings, stages=stages, gains=gains.measure_smaller(dataset, _LOOKED_AT),
    )  # fmt: skip


def _named(workers: int, threads: int) -> str:
    if workers:
        return pluralize(workers, "worker")
    return f"{pluralize(threads, 'thread')}, no workers"


def batches_timed(images: int, batch_size: int, workers: int) -> int:
    """Count the batches of a round: as many of each worker, and enough for so many images."""
    lap = max(1, workers)
    return lap * max(_LEAST_LAPS, -(-images // (batch_size * lap)))


def time_stages(dataset: PackDataset, batch_size: int) -> dict[str, float]:
    """Time "read", "decode and crop" and "collate" of one thread, in microseconds an image."""
    pack, alone = dataset.pack, dataset.with_options(threads=1)
    chosen = gains.choose_images(dataset, _LOOKED_AT)
    count = -(-len(chosen) // batch_size)
    parts = np.resize(chosen, count * batch_size).reshape(count, batch_size)
    rows = [row for part in parts for row in pack.rows(part)]
    times, until = list[list[float]](), time.perf_counter() + _LONG
    while len(times) <= _LEAST_ROUNDS or time.perf_counter() < until:
        began = time.perf_counter()
        for row in rows:
            pack.read(row)
        read = time.perf_counter()
        batches = [alone.__getitems__(part.tolist()) for part in parts]
        made = time.perf_counter()
        for batch in filter(len, batches):
            collating.collate(batch)
        times.append([read - began, made - read, time.perf_counter() - made])
    if not any(map(len, batches)):
        raise OptionError(f"{pack.path}: none of {len(chosen)} images can be decoded")
    reading, making, collate = (
        1e6 * statistics.median(column) / parts.size for column in zip(*times[1:], strict=True)
    )
    reading = min(reading, making)
    return {"read": reading, "decode and crop": making - reading, "collate": collate}


class _TimedLoader:
    """A DataLoader in one setting; its workers stay between rounds."""

    def __init__(
        self, dataset: PackDataset, workers: int, threads: int, batch_size: int, images: int
    ) -> None:
        self.workers, self.threads = workers, threads
        self.rates: list[float] = []
        self._bytes = float(dataset.pack.index_file.column("image/length").array().mean())
        generator = torch.Generator().manual_seed(0)
        feed = IndexFeed(IndexOrder(lambda: torch.utils.data.BatchSampler(
            torch.utils.data.RandomSampler(dataset, replacement=True, generator=generator,
                                           num_samples=batch_size << 10),
            batch_size, drop_last=False,
        )))  # fmt: skip
        loader = torch.utils.data.DataLoader(
            dataset.with_options(threads=threads), batch_sampler=cast("Any", feed),
            num_workers=workers, collate_fn=collating.collate, persistent_workers=workers > 0,
        )  # fmt: skip
        most = batch_size * batches_timed(images, batch_size, workers)
        self._loop = Loop(loader, feed, None, workers, most=most)

    def run(self, say: Callable[[str], None], rounds: int, seconds: float = math.inf) -> None:
        """Time batches while all workers work; after so many seconds, up to the end of a lap."""
        say(f"round {len(self.rates) + 1} of {rounds}: {_named(self.workers, self.threads)}")
        self._loop.seconds = seconds
        self.rates.append(self._loop.run().rate)

    def setting(self) -> Setting:
        rates, middle = self.rates, statistics.median(self.rates)
        return Setting(self.workers, self.threads, middle, middle * self._bytes / 1e6, min(rates),
                       max(rates))  # fmt: skip
