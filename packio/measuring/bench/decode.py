"""How fast each decoder decodes on this machine, and whether its pixels are Pillow's.

>>> from packio.measuring.bench import decode
>>> result = decode.measure(limit=2, rounds=1, decoders=["simplejpeg"])
>>> result.rows[0].decoder, result.rows[0].difference.maximum
('simplejpeg', 0)
"""

from __future__ import annotations

import dataclasses
import io
import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from PIL import Image

from packio import registry
from packio.errors import DecodeError, OptionError
from packio.images.decoders import Decoder
from packio.measuring.bench.fidelity import Differences, Distance
from packio.measuring.bench.images import EncodedImage, collect, find_decoders
from packio.measuring.turns import run_in_turns
from packio.system import processors
from packio.system.pools import ThreadPool
from packio.system.progress import Progress
from packio.system.quantities import pluralize

_LEAST = 64  # images decoded in a pass: fewer images are decoded several times
_BATCH = 16


@dataclasses.dataclass(frozen=True)
class DecodeRow:
    """One decoder, measured in one way on the images of one encoding."""

    encoding: str
    decoder: str
    stage: str  # "decode", or "open": Pillow's Image.open alone, which decodes nothing
    threads: int  # of this process
    workers: int  # processes of a DataLoader; 0: threads
    images_per_second: float  # median over the rounds, as the next
    megapixels_per_second: float
    slowest: float  # images per second of the slowest round
    fastest: float
    ms_p50: float  # of an image, over all rounds
    ms_p99: float
    images: int
    refused: int  # images that the decoder refused: Pillow decoded them instead
    difference: Distance | None  # to Pillow; None for "open", and if the decoder refused all

    @property
    def on(self) -> str:
        """The way in words: "1 thread", "8 workers"."""
        return pluralize(*((self.workers, "worker") if self.workers else (self.threads, "thread")))


@dataclasses.dataclass(frozen=True)
class DecodeResult:
    """What `measure` found."""

    origin: str
    images: int
    pixels: int
    bytes: int
    unreadable: int  # files left out: Pillow cannot identify or decode them
    rounds: int
    cpu: str
    cpus: int  # that this process may use
    versions: dict[str, str]
    missing: dict[str, str]  # decoder → how to install it
    rows: list[DecodeRow]


def measure(
    path: str | os.PathLike[str] | None = None, *, decoders: Iterable[str] | None = None,
    threads: Iterable[int] | None = None, workers: Iterable[int] = (), rounds: int = 5,
    limit: int = 500, progress: Callable[[Progress], None] | None = None,
) -> DecodeResult:  # fmt: skip
    """Measure decoders on the same images, in turns; to RGB, from memory.

    Pillow decodes the images that a decoder refuses; that time counts as the decoder's. `threads`,
    None: 1 and all usable CPUs. `workers`: numbers of DataLoader's workers to measure as well.
    """
    thread_counts = sorted(set(threads if threads is not None else (1, processors.usable())))
    worker_counts = sorted(set(workers))
    if rounds < 1 or any(n < 1 for n in (*thread_counts, *worker_counts)):
        raise OptionError(
            f"rounds={rounds}, threads={thread_counts}, workers={worker_counts}: expected 1 or more"
        )
    versions, missing = find_decoders(decoders)
    found = collect(path, limit)
    groups, differences = _compare_pixels(found.images, list(versions))
    images = [image for group in groups.values() for image in group]
    if not images:
        raise OptionError(f"{found.origin}: none of the images can be decoded to RGB")
    ways = [(n, 0) for n in thread_counts] + [(0, n) for n in worker_counts]
    candidates = list[_Candidate]()
    for encoding, group in groups.items():
        candidates += _list_candidates(encoding, group, list(versions), ways)
    sizes = [(len(c.images), sum(len(image.data) for image in c.images)) for c in candidates]
    passes = run_in_turns(
        candidates, rounds, _Candidate.run, sizes=sizes, progress=progress, stage="decoding"
    )
    return DecodeResult(
        origin=found.origin, images=len(images), rounds=rounds,
        pixels=sum(image.pixels for image in images),
        bytes=sum(len(image.data) for image in images),
        unreadable=found.unreadable + len(found.images) - len(images),
        cpu=processors.model(), cpus=processors.usable(), versions=versions, missing=missing,
        rows=[_sum_up(c, passes_, differences, len(groups[c.encoding]))
              for c, passes_ in zip(candidates, passes, strict=True)],
    )  # fmt: skip


def _compare_pixels(
    images: Sequence[EncodedImage], names: Sequence[str]
) -> tuple[dict[str, list[EncodedImage]], dict[tuple[str, str], Differences]]:
    """Group images by encoding, and compare the pixels of every decoder with Pillow's.

    Images that Pillow cannot decode to RGB are left out.
    """
    groups: dict[str, list[EncodedImage]] = {}
    differences: dict[tuple[str, str], Differences] = {}
    for image in images:
        try:
            expected = registry.load("decoders", "pillow").decode(image.data, "RGB")
        except DecodeError:
            continue
        encoding = image.stored.encoding
        groups.setdefault(encoding, []).append(image)
        for name in names:
            total = differences.setdefault((encoding, name), Differences())
            try:
                total.add(registry.load("decoders", name).decode(image.data, "RGB"), expected)
            except DecodeError:
                total.refused += 1
    return groups, differences


def _list_candidates(
    encoding: str, images: Sequence[EncodedImage], names: Sequence[str],
    ways: Sequence[tuple[int, int]],
) -> list[_Candidate]:  # fmt: skip
    """List what to measure on the images of one encoding, in ways of so many threads or workers."""
    repeated = list(images) * max(1, _LEAST // len(images))
    plugins = {name: registry.load("decoders", name) for name in names}
    fitting = [name for name in names if encoding in plugins[name].ENCODINGS]
    candidates = [
        _Candidate(encoding, name, repeated, threads=threads, workers=workers)
        for threads, workers in ways
        for name in fitting
        if not (workers and plugins[name].decode_batch)
    ]
    if "pillow" in fitting:
        candidates.append(_Candidate(encoding, "pillow", repeated, stage="open"))
    return candidates


@dataclasses.dataclass(eq=False)
class _Candidate:
    """A decoder and a way to run it. Worker processes stay between passes."""

    encoding: str
    decoder: str
    images: Sequence[EncodedImage]
    stage: str = "decode"
    threads: int = 1
    workers: int = 0

    def __post_init__(self) -> None:
        self._timed = _TimedImages(self.images, self.decoder, self.stage)
        self._loader: Any = None

    def run(self) -> tuple[float, list[float]]:
        """Decode every image. Returns seconds of all, and milliseconds of each."""
        if self.workers and self._loader is None:
            from torch.utils.data import DataLoader

            self._loader = DataLoader(
                self._timed,  # type: ignore[arg-type]  # it has what a map-style dataset needs
                batch_size=_BATCH, num_workers=self.workers, persistent_workers=True,
                collate_fn=list,
            )  # fmt: skip
            list(self._loader)  # starting the workers is not decoding
        indices = range(len(self.images))
        begin = time.perf_counter()
        if self.workers:
            milliseconds = [ms for batch in self._loader for ms in batch]
        elif self.threads == 1:
            milliseconds = [self._timed[i] for i in indices]
        else:
            with ThreadPool(self.threads) as pool:
                milliseconds = list(pool.map(self._timed.__getitem__, indices))
        return time.perf_counter() - begin, milliseconds


class _TimedImages:
    """A map-style dataset: each item is the milliseconds that decoding an image took."""

    def __init__(self, images: Sequence[EncodedImage], decoder: str, stage: str) -> None:
        self._images, self._opens = images, stage == "open"
        self._decode = Decoder(decoder, "RGB")

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> float:
        image = self._images[index]
        begin = time.perf_counter()
        if self._opens:
            Image.open(io.BytesIO(image.data)).close()
        else:
            self._decode(image.data, image.stored)
        return (time.perf_counter() - begin) * 1e3


def _sum_up(
    candidate: _Candidate, passes: Sequence[tuple[float, list[float]]],
    differences: dict[tuple[str, str], Differences], images: int,
) -> DecodeRow:  # fmt: skip
    rates = [len(candidate.images) / seconds for seconds, _ in passes]
    latencies = sorted(ms for _, milliseconds in passes for ms in milliseconds)
    pixels = sum(image.pixels for image in candidate.images) / len(candidate.images)
    decodes = candidate.stage == "decode"
    found = differences[candidate.encoding, candidate.decoder] if decodes else None
    return DecodeRow(
        candidate.encoding, candidate.decoder, candidate.stage, candidate.threads,
        candidate.workers, statistics.median(rates), statistics.median(rates) * pixels / 1e6,
        min(rates), max(rates), latencies[len(latencies) // 2],
        latencies[len(latencies) * 99 // 100], images, found.refused if found else 0,
        found.distance() if found else None,
    )  # fmt: skip
