"""Step 3, remedies: changes of a loop that might help, tried in turns, and others estimated."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.data import Dataset, default_collate

from packio.batches import collating
from packio.datasets.folders import FolderDataset
from packio.datasets.pack_dataset import PackDataset
from packio.errors import DiagnosisError, PackioError
from packio.images.bucketing import BucketCrop
from packio.images.tensors import ensure_contiguous, mapped
from packio.loading.loader import Loader
from packio.measuring import gains
from packio.measuring.doctor.findings import Cause, Measurements, Spread, Trial, shares
from packio.measuring.doctor.loops import Loop, LoopRun, Step
from packio.measuring.doctor.setups import Setup, leaves

_WORTH = 0.08  # share of the loop's time from which on a remedy is tried, or estimated
_MOST_IMAGES, _MOST_FILES = 64, 24  # that are packed to see what packing would bring
_MOST_WORKERS = 64
_PROMISING = 0.85  # gain at first look, noisy as it is, from which on a change runs in turns
_MOST_CHANGES = 4
_LEAST_ROUNDS, _MOST_ROUNDS = 3, 12
_LEAST_SPREAD = 0.01  # of logarithms of ratios: three rounds may agree by chance
_FOR_LOOKS = 0.35  # share of the time that first looks may take


class Change(NamedTuple):
    """A change to try: of the loader's arguments, as `Setup.make` takes them, or of the step."""

    kind: Cause
    what: str
    code: str
    options: dict[str, Any] = {}  # noqa: RUF012 (a NamedTuple's default, never changed)
    size: int | None = None  # samples a batch
    step: Callable[[Step], Step] | None = None  # makes the changed step of the step
    note: str = ""


class _InMemory(Dataset[Any]):
    """Some samples, kept in memory, again and again."""

    def __init__(self, dataset: Any, indices: list[Any]) -> None:
        self._samples = [dataset[i] for i in indices]

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> Any:
        return self._samples[index % len(self._samples)]


def changes(
    setup: Setup, measured: Measurements, samples: list[Any], indices: list[Any]
) -> list[Change]:
    """List what might help: first one change of each kind, the kind with the most time first."""
    parts = shares(measured)
    others = (Cause.STEP, Cause.COPY, Cause.MEMORY_FORMAT, Cause.START_UP)
    waiting = 1 - sum(parts[kind] for kind in others)
    found = list(_change_step(measured, parts))
    if setup.is_known:
        found += _change_workers(setup, measured, waiting)
        found += _change_batches(setup, measured, parts, samples)
        found += _change_dataset(setup, measured, parts, waiting, indices)
    a_batch = parts.get(Cause.COLLATE, 0.0) + parts.get(Cause.HAND_OVER, 0.0)
    weights = {**parts, Cause.WORKERS_TOO_FEW: 0.6 * waiting, Cause.WORKERS_TOO_MANY: 0.5 * waiting,
               Cause.BATCH_SIZE: 0.3 + a_batch, Cause.STEP: 0.1}  # fmt: skip
    before: Counter[Cause] = Counter()
    ranked = []
    for change in found:  # the first of each kind comes before the second of any
        ranked.append((before[change.kind], -weights.get(change.kind, 0.0), change))
        before[change.kind] += 1
    return [change for *_, change in sorted(ranked, key=lambda rank: rank[:2])]


def _change_step(measured: Measurements, parts: dict[Cause, float]) -> Iterator[Change]:
    if not measured.has_step:
        return
    if not measured.contiguous:
        yield Change(Cause.MEMORY_FORMAT, "contiguous batches",
                     "batch = packio.ensure_contiguous(batch)",
                     step=lambda step: lambda batch: step(ensure_contiguous(batch)))  # fmt: skip
    if parts[Cause.STEP] >= 0.5:
        yield Change(
            Cause.STEP, "batches in channels_last",
            "images = images.contiguous(memory_format=torch.channels_last)", step=_channels_last,
            note="together with model.to(memory_format=torch.channels_last) the gain may be larger",
        )  # fmt: skip


def _change_workers(setup: Setup, measured: Measurements, waiting: float) -> Iterator[Change]:
    now, cpus = setup.workers or 0, measured.cpus
    if getattr(setup.dataset, "decodes_batches", False):  # it works in the main process only
        return
    if waiting < _WORTH and now <= cpus:
        return
    more = min(_MOST_WORKERS, max(2 * now, min(cpus, 4 * now)) or cpus)
    numbers = {Cause.WORKERS_TOO_MANY: cpus if now > cpus else now // 2}
    if more > now and waiting >= _WORTH:
        numbers[Cause.WORKERS_TOO_FEW] = more
    for kind, number in numbers.items():
        if number:
            what = f"{number} worker{'s' * (number != 1)}"
            yield Change(kind, what, f"num_workers={number}", {"num_workers": number})


def _change_batches(
    setup: Setup, measured: Measurements, parts: dict[Cause, float], samples: list[Any]
) -> Iterator[Change]:
    if setup.has_batches and measured.batch_size <= 1024:
        size = 4 * measured.batch_size
        yield Change(
            Cause.BATCH_SIZE, f"batches of {size}", f"batch_size={size}", size=size,
            note="this changes the training: learning rate, batch norm",
        )  # fmt: skip
    ours = Change(Cause.COLLATE, "packio.collate", "collate_fn=packio.collate",
                  {"collate_fn": collating.collate})  # fmt: skip
    if setup.collate is default_collate:
        if parts.get(Cause.HAND_OVER, 0) >= _WORTH and hasattr(setup.dataset, "gather"):
            yield ours._replace(kind=Cause.HAND_OVER)
    elif (
        setup.collate is not collating.collate
        and parts.get(Cause.COLLATE, 0) >= _WORTH
        and _collates_alike(setup, samples)
    ):
        yield ours
    if torch.cuda.is_available() and not setup.is_pinned and parts[Cause.COPY] >= _WORTH:
        code = "pin_memory=True  # and .to(…, non_blocking=True)"
        yield Change(Cause.COPY, "pinned memory", code, {"pin_memory": True})


def _change_dataset(
    setup: Setup, measured: Measurements, parts: dict[Cause, float], waiting: float,
    indices: list[Any],
) -> Iterator[Change]:  # fmt: skip
    dataset = setup.dataset
    if parts.get(Cause.STORAGE, 0) >= 0.2 and setup.has_batches:
        count = len(dataset) if hasattr(dataset, "__len__") else 0
        size = measured.stages.batch_bytes / measured.batch_size * count
        yield Change(
            Cause.STORAGE, "samples kept in memory",
            f"samples = [dataset[i] for i in range(len(dataset))]  # {size / 1e9:,.1f} GB",
            {"dataset": _InMemory(dataset, indices)},
            note="random transforms of the dataset are then drawn once, and kept",
        )  # fmt: skip
    if not isinstance(dataset, PackDataset):
        return
    if waiting >= _WORTH and setup.workers and setup.collate is collating.collate:
        yield Change(Cause.HAND_OVER, "threads of this process", "packio.Loader(dataset, …)",
                     {"loader": Loader, "num_workers": 0, "prefetch_factor": None})  # fmt: skip
    if parts.get(Cause.DECODE, 0) < _WORTH:
        return
    if dataset.options["fidelity"] == "exact":
        yield Change(Cause.DECODE, "fast decoding", 'fidelity="fast"',
                     {"dataset": dataset.with_options(fidelity="fast")},
                     note="pixels differ: above 35 dB for photographs")  # fmt: skip
    if dataset.options["decoder"] != "auto":
        yield Change(Cause.DECODE, "the fastest decoder", 'decoder="auto"',
                     {"dataset": dataset.with_options(decoder="auto")})  # fmt: skip


def _channels_last(step: Step) -> Step:
    def lay_out(tensor: torch.Tensor) -> torch.Tensor:
        is_images = tensor.ndim == 4
        return tensor.contiguous(memory_format=torch.channels_last) if is_images else tensor

    return lambda batch: step(mapped(batch, lay_out))


def _collates_alike(setup: Setup, samples: list[Any]) -> bool:
    """Whether packio's collate gives the same values as the loader's own."""
    with contextlib.suppress(Exception):  # the user's samples may be anything
        ours, theirs = (list(leaves(f(samples))) for f in (collating.collate, setup.collate))
        return len(ours) == len(theirs) and all(map(_is_equal, ours, theirs))
    return False


def _is_equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and torch.equal(a, b)
    return bool(a == b)


# What is not tried, and what each estimate assumes


def estimate_persistence(measured: Measurements, starting: list[float]) -> list[Trial]:
    """Estimate what workers that live on save, from the seconds that starting them takes."""
    epoch = (measured.epoch_batches or 0) * measured.batch_seconds
    if not starting or not epoch:
        return []
    gain = Spread.of([(seconds + epoch) / epoch for seconds in starting])
    assumption = f"workers start once; each epoch has {measured.epoch_batches} batches at this rate"
    return [Trial(Cause.START_UP, "workers that live on", "persistent_workers=True", gain, 0,
                  assumption=assumption)]  # fmt: skip


def estimate_packing(
    setup: Setup, measured: Measurements, indices: list[Any], seconds: float,
    say: Callable[[str], None],
) -> list[Trial]:  # fmt: skip
    """Estimate what packing, or packing otherwise, would bring."""
    parts, dataset = shares(measured), setup.dataset
    while hasattr(dataset, "indices") and hasattr(dataset, "dataset"):  # torch's Subset
        dataset, indices = dataset.dataset, [dataset.indices[i] for i in indices]
    decoding, reading = parts.get(Cause.DECODE, 0.0), parts.get(Cause.STORAGE, 0.0)
    affordable = max(2, int(seconds / max(10 * (measured.stages.decode or 0.0), 1e-4)))
    root, files = find_files(dataset, indices)
    trials, found = list[Trial](), list[gains.Gain]()
    if root and reading >= _WORTH:
        most = 1 / max(1 - reading, 0.02)
        trials.append(Trial(
            Cause.STORAGE, "one pack instead of files", f"packio pack {shlex.quote(root)} OUT.lmdb",
            Spread(most, most, most), 0, assumption="at most: as if reading took no time; a pack "
            "is opened once, a file for each sample",
        ))  # fmt: skip
    if decoding >= _WORTH and isinstance(dataset, PackDataset):
        crop = dataset.options["crop"]
        if crop is not None and not (isinstance(crop, BucketCrop) and crop.size is None):
            say("what packing otherwise would bring")
            found = gains.measure_smaller(dataset, min(affordable, _MOST_IMAGES))
    elif decoding >= _WORTH and files:
        say("what packing would bring")
        few, load = files[: min(affordable, _MOST_FILES)], getattr(dataset, "loader", None)
        with contextlib.suppress(PackioError, OSError):  # files that only the user's loader reads
            found = gains.measure_packing(root, few, load)
    return trials + [_weigh(decoding, gain) for gain in found]


def _weigh(share: float, gain: gains.Gain) -> Trial:
    """Estimate the loop's gain by the share of its time that decoding takes: Amdahl's law."""
    factors = (gain.factor, gain.low, gain.high)
    whole = Spread(*(1 / (1 - share + share / max(factor, 1e-9)) for factor in factors))
    assumption = (
        f"only decoding changes, and is {gain.factor:.1f} times as fast, as on one core here"
    )
    return Trial(Cause.DECODE, gain.what, gain.command, whole, 0, assumption=assumption)


def find_files(dataset: Any, indices: list[Any]) -> tuple[str, list[str]]:
    """Find the folder of an ImageFolder or FolderDataset, and files of samples of the former."""
    if isinstance(dataset, FolderDataset):
        return str(dataset.pack.path), []
    samples: Any = getattr(dataset, "samples", None) or getattr(dataset, "imgs", None)
    with contextlib.suppress(TypeError, IndexError, KeyError, ValueError):
        files = [os.fspath(samples[i][0]) for i in indices]
        if files and all(map(os.path.isfile, files)):
            return os.fspath(getattr(dataset, "root", None) or os.path.commonpath(files)), files
    return "", []


# Trials


def chance(ratios: Sequence[float], family: int) -> float:
    """Calculate how probable it is that one of some changes without effect does as well as this."""
    if len(ratios) < _LEAST_ROUNDS:
        return 1.0
    logs = [math.log(ratio) for ratio in ratios]
    spread = max(statistics.stdev(logs), _LEAST_SPREAD) / math.sqrt(len(logs))
    return min(1.0, family * student_tail(statistics.fmean(logs) / spread, len(logs) - 1))


def student_tail(t: float, freedom: int) -> float:
    """Calculate the probability that Student's t is larger than this, for whole degrees of freedom.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions (1964), 26.7.3 and 26.7.4.
    """
    angle = math.atan(t / math.sqrt(freedom))
    cosine, is_odd = math.cos(angle), freedom % 2
    term, total = (cosine, 0.0) if is_odd else (1.0, 0.0)
    for k in range(1 + is_odd, freedom, 2):
        total += term
        term *= k / (k + 1) * cosine**2
    within = math.sin(angle) * total
    return (1 - (2 / math.pi * (angle + within) if is_odd else within)) / 2


class Trials:
    """Tries changes, in turns with the loop as it is, within a time.

    A first look at each change leaves out what does not help; it is no evidence. The evidence is a
    paired t-test: in each round the loop as it is and every change that is left run once, each of
    them first in turn, and the logarithms of the ratios of their rates are tested against 0. The
    chances of all changes are added (Bonferroni): a diagnosis errs no more often than `ERROR_RATE`.
    """

    def __init__(
        self, baseline: Loop, make: Callable[[Change], Loop],
        timed: Callable[[Loop, Change | None], LoopRun], say: Callable[[str], None],
        runs: Sequence[LoopRun], price: float, now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._baseline, self._make, self._timed, self._say = baseline, make, timed, say
        self._price, self._now = price, now
        self.baseline_runs: list[LoopRun] = list(runs)  # all of the loop as it is

    def run(self, candidates: list[Change], until: float) -> list[Trial]:
        """Look at the first changes once; measure those that help in turns with the loop."""
        looks, lanes = list[tuple[float, Change]](), list[tuple[float, Change, Loop]]()
        for gain, change, loop in self._look(candidates, until):
            looks.append((gain, change))
            if gain >= _PROMISING:
                lanes.append((gain, change, loop))
            else:
                loop.close()
        lanes.sort(key=lambda lane: -lane[0])
        fitting = int((until - self._now()) / self._price / (_LEAST_ROUNDS + 1)) - 1
        ratios = self._run_in_turns([lane[1:] for lane in lanes[: max(1, fitting)]], until)
        for *_, loop in lanes:
            loop.close()
        trials = []
        for gain, change in looks:
            found = ratios.get(change.what, [])
            trials.append(Trial(
                change.kind, change.what, change.code, Spread.of(found or [gain]), len(found),
                change.note, chance(found, len(ratios)),
            ))  # fmt: skip
        return trials

    def _look(self, candidates: list[Change], until: float) -> Iterator[tuple[float, Change, Loop]]:
        """Run the first changes once, and give the gain, the change and its loop."""
        until = self._now() + _FOR_LOOKS * (until - self._now())
        price = 2 * self._price
        for change in candidates[:_MOST_CHANGES]:
            if self._now() + price > until:
                break
            self._say(f"trying {change.what}")
            began = self._now()
            with contextlib.suppress(DiagnosisError):  # the loader cannot be changed so
                before, loop = self._run_baseline(), self._make(change)
                yield self._timed(loop, change).rate / before, change, loop
            price = max(price, self._now() - began)

    def _run_baseline(self) -> float:
        self.baseline_runs.append(self._timed(self._baseline, None))
        return self.baseline_runs[-1].rate

    def _run_in_turns(
        self, loops: list[tuple[Change, Loop]], until: float
    ) -> dict[str, list[float]]:
        """Measure changes as multiples of the unchanged loop, in each round."""
        ratios: dict[str, list[float]] = {change.what: [] for change, _ in loops}
        lanes, longest = [None, *loops], 0.0
        for number in range(_MOST_ROUNDS if loops else 0):
            began = self._now()
            if began + longest > until:
                break
            self._say(f"round {number + 1}: {', '.join(ratios)}")
            start, before, rates = number % len(lanes), 1.0, dict[str, float]()
            for lane in lanes[start:] + lanes[:start]:
                if lane is None:
                    before = self._run_baseline()
                else:
                    rates[lane[0].what] = self._timed(lane[1], lane[0]).rate
            for what, rate in rates.items():
                ratios[what].append(rate / before)
            longest = max(longest, self._now() - began)
        return ratios
