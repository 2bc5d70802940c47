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
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from packio import registry
from packio.errors import MissingPackageError, OptionError
from packio.images.decoders import _calibration
from packio.measuring.bench._images import Encoded, collect
from packio.measuring.bench._parity import Difference, Parity, compare
from packio.measuring.bench._passes import Candidate, Pass, candidates_of
from packio.system import processors
from packio.system.progress import Progress


@dataclasses.dataclass(frozen=True)
class Row:
    """One decoder, measured in one way on the images of one encoding.

    Attributes:
        encoding, decoder: Of what, and by what.
        stage: "decode", or "open" for Pillow's ``Image.open`` alone, which decodes nothing.
        threads, workers: Threads in this process, or else worker processes of a DataLoader.
        images_per_second, megapixels_per_second: Median over the rounds.
        slowest, fastest: Images per second of the slowest and of the fastest round.
        ms_p50, ms_p99: Milliseconds an image, over all rounds.
        images, refused: Images decoded, and those of them that Pillow decoded because the decoder
            would not.
        difference: To Pillow; None for stage "open" and where the decoder refused all.
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


@dataclasses.dataclass(frozen=True)
class Result:
    """What `measure` found.

    Attributes:
        origin: Where the images come from.
        images, pixels, bytes: Of the images measured.
        unreadable: Files that Pillow cannot identify or decode; they are left out.
        rounds: Passes over the images by each candidate, in turn.
        cpu, cpus: Model, and how many this process may use.
        versions: Of each decoder measured.
        missing: Decoders that are not installed, and what to do.
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
    rows: list[Row]

    def as_dict(self) -> dict[str, Any]:
        """Give everything as JSON takes it."""
        return dataclasses.asdict(self)

    def save(self) -> str:
        """Keep the single-threaded figures for ``decoder="auto"``; return the file's path.

        Raises:
            OutputError: the cache cannot be written.
        """
        plugins = {name: registry.load("decoders", name) for name in self.versions}
        measured = [
            _calibration.Measured(
                row.encoding, row.decoder, row.images_per_second,
                plugins[row.decoder].EXACT and row.difference is not None
                and row.difference.maximum == 0,
            )
            for row in self.rows
            if row.stage == "decode" and row.workers == 0
            and row.threads == min(r.threads for r in self.rows if not r.workers)
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
) -> Result:
    """Measure decoders on the same images, in turns.

    Every image is decoded in full, to RGB, from memory; what a decoder refuses is decoded by
    Pillow within the time of that decoder, as in training.

    Args:
        path: A folder of images or a pack; None for sample photographs.
        decoders: Names; None for all that are installed.
        threads: Numbers of threads; None for 1 and the number of usable CPUs.
        workers: Numbers of DataLoader worker processes to measure as well.
        rounds: Passes of each candidate over the images; they alternate, since machines are noisy.
        limit: Images at most, evenly spread over those there are.
        progress: Called after each pass.

    Raises:
        OptionError: a number that cannot be meant, or no such decoder.
        MissingPackageError: a decoder asked for by name is not installed.
        SourceError: there are no images.
    """
    thread_counts = sorted(set(threads if threads is not None else (1, processors.usable())))
    worker_counts = sorted(set(workers))
    if rounds < 1 or any(n < 1 for n in (*thread_counts, *worker_counts)):
        raise OptionError("rounds, threads and workers are counted from 1")
    versions, missing = available(decoders)
    found = collect(path, limit)
    groups, parity, unreadable = compare(found.images, list(versions))
    images = [image for group in groups.values() for image in group]
    if not images:
        raise OptionError(f"{found.origin}: none of the images can be decoded to RGB")
    ways = [(n, 0) for n in thread_counts] + [(0, n) for n in worker_counts]
    candidates = [
        candidate
        for encoding, group in groups.items()
        for candidate in candidates_of(encoding, group, list(versions), ways)
    ]
    passes = _alternate(candidates, rounds, progress)
    rows = [_row(c, passes[c], parity, groups) for c in candidates]
    return Result(
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
        rows=rows,
    )


def available(decoders: Iterable[str] | None) -> tuple[dict[str, str], dict[str, str]]:
    """Find decoders: the versions of those installed; why others are not.

    Raises:
        MissingPackageError: one that is asked for by name is not installed.
    """
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


def _alternate(
    candidates: Sequence[Candidate],
    rounds: int,
    progress: Callable[[Progress], None] | None,
) -> dict[Candidate, list[Pass]]:
    passes: dict[Candidate, list[Pass]] = {candidate: [] for candidate in candidates}
    total = rounds * sum(len(c.images) for c in candidates)
    total_bytes = rounds * sum(c.bytes for c in candidates)
    done = done_bytes = 0
    begin = time.perf_counter()
    try:
        for turn in range(rounds):
            start = turn * len(candidates) // rounds  # nobody is always first
            for candidate in (*candidates[start:], *candidates[:start]):
                passes[candidate].append(candidate.run())
                done, done_bytes = done + len(candidate.images), done_bytes + candidate.bytes
                if progress:
                    seconds = time.perf_counter() - begin
                    progress(Progress(done, total, done_bytes, total_bytes, 0, seconds, "decoding"))
    finally:
        for candidate in candidates:
            candidate.close()
    return passes


def _row(
    candidate: Candidate,
    passes: Sequence[Pass],
    parity: dict[tuple[str, str], Parity],
    groups: dict[str, list[Encoded]],
) -> Row:
    rates = [len(candidate.images) / p.seconds for p in passes]
    latencies = sorted(ms for p in passes for ms in p.milliseconds)
    pixels = sum(_pixels(image) for image in candidate.images)
    record = parity[candidate.encoding, candidate.decoder] if candidate.stage == "decode" else None
    return Row(
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
        images=len(groups[candidate.encoding]),
        refused=record.refused if record else 0,
        difference=record.difference() if record else None,
    )


def _pixels(image: Encoded) -> int:
    return image.stored.height * image.stored.width
