"""Step 3c, estimates: gains of changes that are not tried, and what each estimate assumes."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from packio.datasets.folders import FolderDataset
from packio.datasets.pack_dataset import PackDataset
from packio.errors import PackioError
from packio.images.bucketing import BucketCrop
from packio.measuring import gains
from packio.measuring.doctor.findings import shares
from packio.measuring.doctor.measured import Cause, Measurements, Spread, Trial
from packio.measuring.doctor.setups import Setup

_WORTH = 0.08  # share of the loop's time from which on a gain is estimated
_MOST_IMAGES, _MOST_FILES = 64, 24  # that are packed to see what packing would bring


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
    setup: Setup,
    measured: Measurements,
    indices: list[Any],
    seconds: float,
    say: Callable[[str], None],
) -> list[Trial]:
    """Estimate what packing, or packing otherwise, would bring."""
    parts, dataset = shares(measured), setup.dataset
    while hasattr(dataset, "indices") and hasattr(dataset, "dataset"):  # torch's Subset
        dataset, indices = dataset.dataset, [dataset.indices[i] for i in indices]
    decoding, reading = parts.get(Cause.DECODE, 0.0), parts.get(Cause.STORAGE, 0.0)
    affordable = max(2, int(seconds / max(10 * (measured.stages.decode or 0.0), 1e-4)))
    if isinstance(dataset, PackDataset) and not isinstance(dataset, FolderDataset):
        crop = dataset.options["crop"]
        follows = isinstance(crop, BucketCrop) and crop.size is None  # each batch has a size
        if decoding < _WORTH or crop is None or follows:
            return []
        say("what packing otherwise would bring")
        found = gains.measure_smaller(dataset, min(affordable, _MOST_IMAGES))
        return [_weigh(decoding, gain) for gain in found]
    root, files = find_files(dataset, indices)
    if not files:
        return []
    trials = []
    if reading >= _WORTH:
        most = 1 / max(1 - reading, 0.02)
        trials.append(Trial(
            Cause.STORAGE, "one pack instead of files", f"packio pack {shlex.quote(root)} OUT.lmdb",
            Spread(most, most, most), 0, assumption="at most: as if reading took no time; a pack "
            "is opened once, a file for each sample",
        ))  # fmt: skip
    if decoding >= _WORTH:
        say("what packing would bring")
        files = files[: min(affordable, _MOST_FILES)]
        with contextlib.suppress(PackioError, OSError):  # files that only the user's loader reads
            trials += [_weigh(decoding, g) for g in gains.measure_packing(root, files, dataset)]
    return trials


def _weigh(share: float, gain: gains.Gain) -> Trial:
    """Estimate the loop's gain by the share of its time that decoding takes: Amdahl's law."""
    factors = (gain.factor, gain.low, gain.high)
    whole = Spread(*(1 / (1 - share + share / max(factor, 1e-9)) for factor in factors))
    assumption = (
        f"only decoding changes, and is {gain.factor:.1f} times as fast, as on one core here"
    )
    return Trial(Cause.DECODE, gain.what, gain.command, whole, 0, assumption=assumption)


def find_files(dataset: Any, indices: list[Any]) -> tuple[str, list[str]]:
    """Find folder and image files of some samples of an ImageFolder or FolderDataset, if any."""
    if isinstance(dataset, FolderDataset):
        root = Path(dataset.pack.path)
        return str(root), [str(root / os.fsdecode(dataset.pack.keys()[i])) for i in indices]
    samples: Any = getattr(dataset, "samples", None) or getattr(dataset, "imgs", None)
    with contextlib.suppress(TypeError, IndexError, KeyError, ValueError):
        files = [os.fspath(samples[i][0]) for i in indices]
        if files and all(map(os.path.isfile, files)):
            return os.fspath(getattr(dataset, "root", None) or os.path.commonpath(files)), files
    return "", []
