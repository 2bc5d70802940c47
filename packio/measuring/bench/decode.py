"""How fast each decoder decodes on this machine, and whether its pixels are Pillow's.

>>> from packio.measuring.bench import decode
>>> result = decode.measure(limit=2, rounds=1, decoders=["simplejpeg"])
>>> result.rows[0].decoder, result.rows[0].difference.maximum
('simplejpeg', 0)
"""

from __future__ import annotations

import dataclasses
import os
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from packio import registry
from packio.errors import MissingPackageError, OptionError
from packio.images.decoders import _calibration
from packio.measuring.bench.images import Encoded, collect
from packio.measuring.bench.parity import Difference, Differences, compare
from packio.measuring.bench.passes import Candidate, Pass, candidates_of
from packio.measuring.bench.rounds import in_turns
from packio.system import processors
from packio.system.progress import Progress


@dataclasses.dataclass(frozen=True)
class DecodeRow:
    """One decoder, measured in one way on the images of one encoding.

    Attributes:
        encoding, decoder: The images' encoding, and the decoder.
        stage: "decode", or "open": Pillow's ``Image.open`` alone, which decodes nothing.
        threads, workers: Threads of this process, or else worker processes of a DataLoader.
        images_per_second, megapixels_per_second: Median over the rounds.
        slowest, fastest: Images per second of the slowest and of the fastest round.
        ms_p50, ms_p99: Milliseconds an image, over all rounds.
        images, refused: Number of images, and of those that the decoder refused: Pillow decoded
            them instead.
        difference: Difference to Pillow; None for stage "open", and if the decoder refused all.
    """

    encoding: str
    decoder: str
    stage: str
    threads: int
    workers: int
    images_per_second: float
    megapixels_per_second: float
    slowest: float
    fastest: float
    ms_p50: float
    ms_p99: float
    images: int
    refused: int
    difference: Difference | None

    @property
    def on(self) -> str:
        """The way in words: "1 thread", "8 workers"."""
        count, noun = (self.workers, "worker") if self.workers else (self.threads, "thread")
        return f"{count} {noun}{'s' if count > 1 else ''}"


@dataclasses.dataclass(frozen=True)
class DecodeResult:
    """What `measure` found.

    Attributes:
        origin: Where the images come from.
        images, pixels, bytes: Number, pixels and bytes of the images measured.
        unreadable: Files left out: Pillow cannot identify or decode them.
        rounds: Passes of each candidate over the images.
        cpu, cpus: Model of the processor, and how many CPUs this process may use.
        versions: Version of each decoder measured.
        missing: Decoders that are not installed → how to install them.
        rows: The measurements.
    """

    origin: str
    images: int
    pixels: int
    bytes: int
    unreadable: int
    rounds: int
    cpu: str
    cpus: int
    versions: dict[str, str]
    missing: dict[str, str]
    rows: list[DecodeRow]

    def as_dict(self) -> dict[str, Any]:
        """Give everything as JSON takes it."""
        return dataclasses.asdict(self)

    def save(self) -> str:
        """Keep the figures of the fewest threads for ``decoder="auto"``; return the file's path."""
        fewest = min(row.threads for row in self.rows if not row.workers)
        measured = [
            _calibration.Measured(
                row.encoding, row.decoder, row.images_per_second,
                registry.load("decoders", row.decoder).EXACT
                and row.difference is not None and row.difference.maximum == 0,
            )
            for row in self.rows
            if row.stage == "decode" and row.workers == 0 and row.threads == fewest
        ]  # fmt: skip
        return str(_calibration.save(measured))


def measure(
    path: str | os.PathLike[str] | None = None,
    *,
    decoders: Iterable[str] | None = None,
    threads: Iterable[int] | None = None,
    workers: Iterable[int] = (),
    rounds: int = 5,
    limit: int = 500,
    progress: Callable[[Progress], None] | None = None,
) -> DecodeResult:
    """Measure decoders on the same images, in turns.

    Every image is decoded in full, to RGB, from memory. Pillow decodes the images that a decoder
    refuses, as in training; that time counts as the decoder's.

    Args:
        path: A folder of images, or a pack; None: sample photographs.
        decoders: Names; None: all that are installed.
        threads: Numbers of threads; None: 1 and the number of usable CPUs.
        workers: Numbers of DataLoader worker processes to measure as well.
        rounds: Passes of each candidate over the images; they take turns, as machines are noisy.
        limit: Images at most, spread evenly over those there are.
        progress: Called after each pass.
    """
    thread_counts = sorted(set(threads if threads is not None else (1, processors.usable())))
    worker_counts = sorted(set(workers))
    if rounds < 1 or any(n < 1 for n in (*thread_counts, *worker_counts)):
        raise OptionError(
            f"rounds={rounds}, threads={thread_counts}, workers={worker_counts}: expected 1 or more"
        )
    versions, missing = available(decoders)
    found = collect(path, limit)
    groups, differences, unreadable = compare(found.images, list(versions))
    images = [image for group in groups.values() for image in group]
    if not images:
        raise OptionError(f"{found.origin}: none of the images can be decoded to RGB")
    ways = [(n, 0) for n in thread_counts] + [(0, n) for n in worker_counts]
    candidates = [
        candidate
        for encoding, group in groups.items()
        for candidate in candidates_of(encoding, group, list(versions), ways)
    ]
    try:
        passes = in_turns(
            candidates, rounds, Candidate.run, progress=progress, stage="decoding",
            size=lambda candidate: (len(candidate.images), candidate.bytes),
        )  # fmt: skip
    finally:
        for candidate in candidates:
            candidate.close()
    return DecodeResult(
        origin=found.origin,
        images=len(images),
        pixels=sum(_pixels(image) for image in images),
        bytes=sum(len(image.data) for image in images),
        unreadable=found.unreadable + unreadable,
        rounds=rounds,
        cpu=_calibration._cpu(),  # noqa: SLF001 (the same words as in the calibration)
        cpus=processors.usable(),
        versions=versions,
        missing=missing,
        rows=[_row(c, passes_, differences, len(groups[c.encoding]))
              for c, passes_ in zip(candidates, passes, strict=True)],
    )  # fmt: skip


def available(decoders: Iterable[str] | None) -> tuple[dict[str, str], dict[str, str]]:
    """Find decoders: the versions of those installed, and why the others are not."""
    versions: dict[str, str] = {}
    missing: dict[str, str] = {}
    for name in registry.names("decoders") if decoders is None else dict.fromkeys(decoders):
        try:
            versions[name] = registry.load("decoders", name).version()
        except MissingPackageError as error:
            if decoders is not None:
                raise
            missing[name] = str(error)
    return versions, missing


def _row(
    candidate: Candidate,
    passes: Sequence[Pass],
    differences: dict[tuple[str, str], Differences],
    images: int,
) -> DecodeRow:
    rates = [len(candidate.images) / p.seconds for p in passes]
    latencies = sorted(ms for p in passes for ms in p.milliseconds)
    pixels = sum(_pixels(image) for image in candidate.images)
    decodes = candidate.stage == "decode"
    found = differences[candidate.encoding, candidate.decoder] if decodes else None
    return DecodeRow(
        encoding=candidate.encoding,
        decoder=candidate.decoder,
        stage=candidate.stage,
        threads=candidate.threads,
        workers=candidate.workers,
        images_per_second=statistics.median(rates),
        megapixels_per_second=statistics.median(rates) * pixels / len(candidate.images) / 1e6,
        slowest=min(rates),
        fastest=max(rates),
        ms_p50=latencies[len(latencies) // 2],
        ms_p99=latencies[len(latencies) * 99 // 100],
        images=images,
        refused=found.refused if found else 0,
        difference=found.difference() if found else None,
    )


def _pixels(image: Encoded) -> int:
    return image.stored.height * image.stored.width
