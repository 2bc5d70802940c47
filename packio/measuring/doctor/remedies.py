"""Step 3, remedies: changes of a loop that might help, tried in turns, and others estimated."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import default_collate

from packio.batches import collating
from packio.datasets.folders import FolderDataset
from packio.datasets.pack_dataset import PackDataset
from packio.errors import DiagnosisError, PackioError
from packio.images.tensors import ensure_contiguous
from packio.loading.loader import Loader
from packio.measuring import gains
from packio.measuring.doctor.findings import Cause, Measurements, Spread, Trial, shares
from packio.measuring.doctor.loops import Loop, LoopRun, Step
from packio.measuring.doctor.setups import Setup
from packio.measuring.turns import run_in_turns
from packio.system.quantities import pluralize

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


def list_changes(setup: Setup, measured: Measurements) -> list[Change]:
    """List what might help, the kind with the most time first."""
    parts = dict.fromkeys(Cause, 0.0) | shares(measured)
    waiting = 1 - sum(
        parts[k] for k in (Cause.STEP, Cause.COPY, Cause.MEMORY_FORMAT, Cause.START_UP)
    )
    found = list[Change]()
    if measured.has_step and not measured.contiguous:
        found.append(Change(
            Cause.MEMORY_FORMAT, "contiguous batches", "batch = packio.ensure_contiguous(batch)",
            step=lambda step: lambda batch: step(ensure_contiguous(batch)),
        ))  # fmt: skip
    if setup.is_map and measured.batch_size <= 1024:
        size = 4 * measured.batch_size
        found.append(Change(
            Cause.BATCH_SIZE, f"batches of {size}", f"batch_size={size}", size=size,
            note="this changes the training: learning rate, batch norm",
        ))  # fmt: skip
    if setup.is_known and not setup.is_pinned and parts[Cause.COPY] >= _WORTH:  # to a GPU
        code = "pin_memory=True  # and .to(…, non_blocking=True)"
        found.append(Change(Cause.COPY, "pinned memory", code, {"pin_memory": True}))
    if setup.is_known and not getattr(setup.dataset, "decodes_batches", False):  # in this process
        found += _change_workers(setup.workers or 0, measured.cpus, waiting)
    if isinstance(setup.dataset, PackDataset):
        found += _change_pack(setup, setup.dataset, parts, waiting)
    weights = {**parts, Cause.WORKERS_TOO_FEW: 0.6 * waiting, Cause.WORKERS_TOO_MANY: 0.5 * waiting,
               Cause.BATCH_SIZE: 0.3 + parts[Cause.COLLATE] + parts[Cause.HAND_OVER]}  # fmt: skip
    return sorted(found, key=lambda change: -weights[change.kind])


def _change_workers(now: int, cpus: int, waiting: float) -> Iterator[Change]:
    """Try one number in each direction; more than there are processors are always too many."""
    more = min(_MOST_WORKERS, max(2 * now, min(cpus, 4 * now)) or cpus)
    fewer = cpus if now > cpus else now // 2
    numbers = {}
    if fewer and (waiting >= _WORTH or now > cpus):
        numbers[Cause.WORKERS_TOO_MANY] = fewer
    if more > now and waiting >= _WORTH:
        numbers[Cause.WORKERS_TOO_FEW] = more
    for kind, number in numbers.items():
        options = {"num_workers": number}
        yield Change(kind, pluralize(number, "worker"), f"num_workers={number}", options)


def _change_pack(
    setup: Setup, dataset: PackDataset, parts: dict[Cause, float], waiting: float
) -> Iterator[Change]:
    if setup.collate is default_collate and parts[Cause.HAND_OVER] >= _WORTH:
        yield Change(Cause.HAND_OVER, "packio.collate", "collate_fn=packio.collate",
                     {"collate_fn": collating.collate})  # fmt: skip
    if setup.collate is collating.collate and waiting >= _WORTH and setup.workers:
        yield Change(Cause.HAND_OVER, "threads of this process", "packio.Loader(dataset, …)",
                     {"loader": Loader, "num_workers": 0, "prefetch_factor": None})  # fmt: skip
    if dataset.options["fidelity"] == "exact" and parts[Cause.DECODE] >= _WORTH:
        yield Change(Cause.DECODE, "fast decoding", 'fidelity="fast"',
                     {"dataset": dataset.with_options(fidelity="fast")},
                     note="pixels differ: above 35 dB for photographs")  # fmt: skip


# What is not tried, and what each estimate assumes


def estimate_gains(
    setup: Setup, measured: Measurements, indices: list[Any], seconds: float,
    say: Callable[[str], None],
) -> list[Trial]:  # fmt: skip
    """Estimate what workers that live on, memory, and packing, would bring."""
    parts = dict.fromkeys(Cause, 0.0) | shares(measured)
    dataset, trials = setup.dataset, list[Trial]()
    while hasattr(dataset, "indices") and hasattr(dataset, "dataset"):  # torch's Subset
        dataset, indices = dataset.dataset, [dataset.indices[i] for i in indices]
    root, files = find_files(dataset, indices)
    if parts[Cause.START_UP]:
        trials.append(_estimate(
            Cause.START_UP, parts, "workers that live on", "persistent_workers=True",
            f"workers start once; each epoch has {measured.epoch_batches} batches at this rate",
        ))  # fmt: skip
    if parts[Cause.STORAGE] >= _WORTH:
        change = ("samples kept in memory", "samples = [dataset[i] for i in range(len(dataset))]")
        if root:
            change = ("one pack instead of files", f"packio pack {shlex.quote(root)} OUT.lmdb")
        trials.append(_estimate(
            Cause.STORAGE, parts, *change, "at most: as if reading took no time",
        ))  # fmt: skip
    if parts[Cause.DECODE] < _WORTH:
        return trials
    say("what packing would bring")
    count = max(2, int(seconds / max(10 * (measured.stages.decode or 0.0), 1e-4)))
    found = list[gains.Gain]()
    with contextlib.suppress(PackioError, OSError):  # files that only the user's loader reads
        if isinstance(dataset, PackDataset):
            found = gains.measure_smaller(dataset, min(count, _MOST_IMAGES))
        elif files:
            load = getattr(dataset, "loader", None) or gains.load_image
            found = gains.measure_packing(root, files[: min(count, _MOST_FILES)], load)
    for gain in found:
        rest = f"only decoding changes, and is {gain.factor:.1f} times as fast, as on one core here"
        trials.append(_estimate(Cause.DECODE, parts, gain.what, gain.command, rest, gain[2:]))
    return trials


def _estimate(
    kind: Cause, parts: dict[Cause, float], change: str, code: str, assumption: str,
    factors: Sequence[float] = (math.inf,) * 3,
) -> Trial:  # fmt: skip
    """Estimate the loop's gain by the share of its time that gets faster: Amdahl's law."""
    share = parts[kind]
    whole = Spread(*(1 / max(1 - share + share / max(f, 1e-9), 0.02) for f in factors))
    return Trial(kind, change, code, whole, 0, assumption=assumption)


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
    """Calculate the probability that Student's t is larger than this, by summing its density.

    For t = sqrt(freedom) tan(angle), the density of the angle is that of cos(angle)^(freedom - 1).
    """
    angles = np.linspace(-math.pi / 2, math.pi / 2, 100_001)
    density = np.cos(angles) ** (freedom - 1)
    return float(density[angles > math.atan(t / math.sqrt(freedom))].sum() / density.sum())


def try_changes(
    changes: Sequence[Change], baseline: Loop, make: Callable[[Change], Loop], price: float,
    rate: float, until: float, say: Callable[[str], None],
    now: Callable[[], float] = time.monotonic,
) -> tuple[list[Trial], list[LoopRun]]:  # fmt: skip
    """Try the first changes, in turns with the loop as it is, within a time.

    A first look at each change leaves out what does not help; it is no evidence. The evidence is a
    paired t-test: in each round the loop as it is and every change that is left run once, and the
    logarithms of the ratios of their rates are tested against 0. The chances of all changes are
    added (Bonferroni): a diagnosis errs no more often than `ERROR_RATE`. A run of the loop as it is
    takes `price` seconds, at `rate` samples a second. Returns what was tried, and such runs.
    """
    looks = list[tuple[float, float, Change, Loop]]()
    ends, longest = now() + _FOR_LOOKS * (until - now()), 2 * price  # a change may be slower
    for change in changes[:_MOST_CHANGES]:
        if (began := now()) + longest > ends:
            break
        say(f"trying {change.what}")
        with contextlib.suppress(DiagnosisError):  # the loader cannot be changed so
            loop = make(change)
            gain = loop.run().rate / rate
            looks.append((gain, now() - began, change, loop))
        longest = max(longest, now() - began)
    chosen = sorted((look for look in looks if look[0] >= _PROMISING), key=lambda look: -look[0])
    rounds = 0  # fewer than a few are no evidence
    while chosen and rounds < _LEAST_ROUNDS:
        rounds = int((until - now()) / (price + sum(look[1] for look in chosen)))
        if rounds < _LEAST_ROUNDS:
            chosen.pop()
    what = [change.what for *_, change, _ in chosen]
    say(f"in turns with the loop as it is: {', '.join(what) or 'nothing'}")
    for *_, change, loop in looks:
        if change.what not in what:
            loop.close()
    lanes, rounds = [baseline, *(look[-1] for look in chosen)], min(rounds, _MOST_ROUNDS)
    olds, *news = run_in_turns(lanes, rounds if chosen else 0, lambda loop: loop.run())
    ratios = {name: [new.rate / old.rate for new, old in zip(lane, olds, strict=True)]
              for name, lane in zip(what, news, strict=True)}  # fmt: skip
    trials = []
    for gain, _, change, loop in looks:
        loop.close()
        found = ratios.get(change.what, [])
        trials.append(Trial(
            change.kind, change.what, change.code, Spread.summarize(found or [gain]), len(found),
            change.note, chance(found, len(ratios)),
        ))  # fmt: skip
    return trials, olds
