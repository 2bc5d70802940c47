"""Step 3c, estimates: gains of changes that are not tried, and what each estimate assumes."""

from __future__ import annotations

import contextlib
import os
import shlex
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

import packio
from packio.datasets.kinds import FolderDataset
from packio.datasets.pack_dataset import PackDataset
from packio.errors import PackioError
from packio.images.bucket_crop import BucketCrop
from packio.measuring.bench import stages
from packio.measuring.bench.rounds import in_turns
from packio.measuring.doctor.findings import shares
from packio.measuring.doctor.measured import Cause, Measurements, Spread, Trial
from packio.measuring.doctor.setups import Setup

_WORTH = 0.08  # share of the loop's time from which on a gain is estimated
_MOST_FILES = 24  # that are packed to see what packing would bring
_LARGE = 512  # pixels of the short side from which on smaller copies are looked at
_COMMON = 256  # pixels of the short side of such copies: crops of 224 pixels are cut from them
_ROUNDS = 3
_Way = tuple[Callable[[Any], Any], Sequence[Any]]  # makes an image of each of some things


def of_starting(measured: Measurements, starting: list[float]) -> list[Trial]:
    """Estimate what workers that live on save, from the seconds that starting them takes."""
    epoch = (measured.epoch_batches or 0) * measured.batch_seconds
    if not starting or not epoch:
        return []
    gain = Spread.of([(seconds + epoch) / epoch for seconds in starting])
    assumption = f"workers start once; each epoch has {measured.epoch_batches} batches at this rate"
    return [_estimate(Cause.START_UP, "workers that live on", "persistent_workers=True", gain,
                      assumption)]  # fmt: skip


def of_packing(
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
    each = measured.stages.decode or 0.0
    if isinstance(dataset, PackDataset) and not isinstance(dataset, FolderDataset):
        crop = dataset.options["crop"]
        follows = isinstance(crop, BucketCrop) and crop.size is None  # each batch has a size
        if decoding < _WORTH or crop is None or follows:
            return []
        say("what packing otherwise would bring")
        images = _count(seconds, each, 64)
        return [
            _decoding(decoding, gain.what, gain.command, Spread(*gain[2:]))
            for gain in stages.gains(dataset, images)
        ]
    root, files = image_files(dataset, indices)
    if not files:
        return []
    pack = f"packio pack {shlex.quote(root)} OUT.lmdb"
    found = []
    if reading >= _WORTH:
        most = 1 / max(1 - reading, 0.02)
        found.append(_estimate(
            Cause.STORAGE, "one pack instead of files", pack, Spread(most, most, most),
            "at most: as if reading took no time; a pack is opened once, a file for each sample",
        ))  # fmt: skip
    if decoding >= _WORTH:
        say("what packing would bring")
        files = files[: _count(seconds, each, _MOST_FILES)]
        with contextlib.suppress(PackioError, OSError):  # files that only the user's loader reads
            found += [_decoding(decoding, *gain) for gain in _packed(pack, files, dataset)]
    return found


def _count(seconds: float, each: float, most: int) -> int:
    """Give the number of images that can be decoded ten times within the time."""
    return max(2, min(most, int(seconds / max(10 * each, 1e-4))))


def _decoding(share: float, what: str, code: str, faster: Spread) -> Trial:
    """Estimate the gain of faster decoding, by the share of the loop's time that decoding takes.

    Source: G. M. Amdahl, AFIPS Conference Proceedings 30 (1967), 483-485.
    """
    whole = Spread(*(1 / (1 - share + share / max(factor, 1e-9)) for factor in faster))
    return _estimate(
        Cause.DECODE, what, code, whole,
        f"only decoding changes, and is {faster.median:.1f} times as fast, as on one core here",
    )  # fmt: skip


def _estimate(kind: Cause, what: str, code: str, factor: Spread, assumption: str) -> Trial:
    return Trial(kind, what, code, factor, 0, assumption=assumption)


def image_files(dataset: Any, indices: list[Any]) -> tuple[str, list[str]]:
    """Find the image files of some samples, of an ImageFolder or FolderDataset.

    Returns:
        The folder of the dataset, and files; none if the dataset does not tell.
    """
    if isinstance(dataset, FolderDataset):
        root = Path(dataset.pack.path)
        return str(root), [str(root / os.fsdecode(dataset.pack.keys()[i])) for i in indices]
    samples: Any = getattr(dataset, "samples", None) or getattr(dataset, "imgs", None)
    with contextlib.suppress(TypeError, IndexError, KeyError, ValueError):
        files = [os.fspath(samples[i][0]) for i in indices]
        if files and all(map(os.path.isfile, files)):
            return os.fspath(getattr(dataset, "root", None) or os.path.commonpath(files)), files
    return "", []


def _packed(pack: str, files: list[str], dataset: Any) -> list[tuple[str, str, Spread]]:
    """Pack some files, and compare how fast they become images before and after."""
    shorts = []
    for file in files:
        with Image.open(file) as image:
            shorts.append(min(image.size))
    ways = [("a pack instead of files", pack, dict[str, Any]())]
    if statistics.median(shorts) >= _LARGE:
        resize = f"short={_COMMON}"
        ways.append((f"images of {_COMMON} pixels on the short side, packed",
                     f"{pack} --encode jpeg --resize {resize}",
                     {"encode": "jpeg", "resize": resize}))  # fmt: skip
    before: _Way = (getattr(dataset, "loader", None) or _image, files)
    found = list[tuple[str, str, Spread]]()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "source")
        source.mkdir()
        for number, file in enumerate(dict.fromkeys(files)):
            (source / f"{number:04}{Path(file).suffix}").symlink_to(os.path.abspath(file))
        for number, (what, code, options) in enumerate(ways):
            out = Path(folder, f"{number}.lmdb")
            packio.pack(source, out, on_error="skip", num_workers=1, **options)
            images = PackDataset(out, fields="image", output="pil")
            after: _Way = (images.__getitem__, range(len(images)))
            if isinstance(dataset, FolderDataset) and not options:
                before = after  # the same decoder makes the same images
            else:
                found.append((what, code, _ratios(before, after)))
    return found


def _image(file: str) -> Any:
    with Image.open(file) as image:
        return image.convert("RGB")


def _ratios(before: _Way, after: _Way) -> Spread:
    """Give the seconds of one way to make images as multiples of those of another, in turns."""

    def each(way: _Way) -> float:
        make, sources = way
        began = time.perf_counter()
        for source in sources:
            make(source)
        return (time.perf_counter() - began) / max(1, len(sources))

    olds, news = in_turns([before, after], _ROUNDS, each)
    return Spread.of([old / max(new, 1e-9) for old, new in zip(olds, news, strict=True)])
