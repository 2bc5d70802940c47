"""The dry run: what packing would find, and how encodings compare in size and speed."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from packio.errors import DecodeError
from packio.images.decoders import Decoder
from packio.packing.images.encode import Encoding
from packio.packing.plan.planning import Plan
from packio.packing.run.reading import Read, Treatment, read_one
from packio.sample.record import Field

if TYPE_CHECKING:
    from packio.packing.plan.level_advice import LevelsAdvice

_SAMPLE = 64  # images that are looked at
_ROUNDS = 3  # in which all of them are decoded; the fastest round counts
CANDIDATES = (
    Encoding(),
    Encoding(encode="jpeg", resize="short=512"),
    Encoding(encode="jpeg", resize="short=384"),
    Encoding(encode="jpeg", resize="short=256"),
    Encoding(encode="webp", resize="short=256"),
    Encoding(encode="raw", resize="exact=224x224"),
)


class Advice(NamedTuple):
    """How large and how fast all images would be in one encoding, estimated from some images.

    Attributes:
        options: Options of the encoding, as the plan has them.
        bytes: Bytes of all images.
        images_per_second: Whole images that one core decodes in a second.
        pack_seconds: Seconds that one core needs to encode all images.
        refused: Number of images looked at that cannot be encoded so.
    """

    options: dict[str, object]
    bytes: int
    images_per_second: float
    pack_seconds: float
    refused: int


@dataclasses.dataclass(frozen=True, slots=True)
class DryRun:
    """What packing would do.

    Attributes:
        kind: Name of the source's module.
        found: Number of samples.
        classes: Names of the classes.
        class_counts: Number of samples of each class; empty without int labels.
        labels: "none", "class", "number", or "vector of k".
        shards: Number of shards.
        source_bytes: Bytes of all samples whose size is known.
        problems: (key, reason) of paths that cannot be listed, and of bad images looked at.
        warnings: One line each, as which columns were guessed.
        looked_at: Number of images that were looked at.
        advice: An estimate for each encoding.
        levels: What levels cost and bring; None if the plan has none.
    """

    kind: str
    found: int
    classes: tuple[str, ...]
    class_counts: tuple[int, ...]
    labels: str
    shards: int
    source_bytes: int
    problems: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]
    looked_at: int
    advice: tuple[Advice, ...]
    levels: LevelsAdvice | None = None


def dry_run(plan: Plan, candidates: Sequence[Encoding] = CANDIDATES) -> DryRun:
    """Look at a plan and at some of its images, drawn at random; write nothing."""
    listing, treatment = plan.listing, Treatment.of(plan.own)
    drawn = np.random.default_rng(0).permutation(len(listing.keys))[:_SAMPLE]
    with listing.opened() as read:
        reads = [read_one(listing, read, i, treatment) for i in np.sort(drawn).tolist()]
        plain = [read_one(listing, read, r.position) for r in reads if r.problem is None]
    problems = [(key, reason) for key, reason in listing.unlisted]
    problems += [(listing.keys[r.position], r.problem) for r in reads if r.problem is not None]
    labels = listing.labels
    ints = labels if isinstance(labels, list) else []
    counts = np.bincount(np.array(ints, np.int64), minlength=len(listing.classes))
    return DryRun(
        kind=listing.kind,
        found=len(listing.keys) + len(listing.unlisted) + len(listing.dropped),
        classes=tuple(listing.classes),
        class_counts=tuple(int(n) for n in counts) if listing.classes else (),
        labels=_kind_of_labels(labels, listing.classes),
        shards=len(plan.shards),
        source_bytes=plan.total_bytes,
        problems=tuple((key.decode("utf-8", "surrogateescape"), text) for key, text in problems),
        warnings=tuple(listing.warnings),
        looked_at=len(reads),
        advice=tuple(_advice(plain, c, listing.sizes) for c in candidates) if plain else (),
        levels=_of_levels(reads, treatment, len(listing.keys)),
    )


def _of_levels(reads: Sequence[Read], treatment: Treatment, images: int) -> LevelsAdvice | None:
    if treatment.levels is None:
        return None
    from packio.packing.plan import level_advice  # makes crops, for which it imports torch

    records = [read.record for read in reads if read.problem is None]
    return level_advice.advice(records, treatment.levels, images)


def _kind_of_labels(labels: object, classes: Sequence[str]) -> str:
    if labels is None:
        return "none"
    if isinstance(labels, list):
        return "class" if classes else "number"
    return f"vector of {np.asarray(labels).shape[1]}"


def _advice(reads: Sequence[Read], encoding: Encoding, sizes: Sequence[int]) -> Advice:
    images = len(sizes)
    encoded: list[Field] = []
    as_listed = min(sizes) >= 0  # whether all images stay as large as the source says
    began = time.perf_counter()
    for r in reads:
        try:
            encoded.append(encoding(r.record).image)
        except DecodeError:
            continue
        as_listed &= len(encoded[-1].data) == sizes[r.position]
    seconds = time.perf_counter() - began
    mean = statistics.fmean(len(image.data) for image in encoded) if encoded else 0.0
    total = sum(sizes) if as_listed else round(mean * images)
    return Advice(
        encoding.as_options(), total, _decoded_per_second(encoded),
        seconds / max(len(reads), 1) * images, len(reads) - len(encoded),
    )  # fmt: skip


def _decoded_per_second(encoded: Sequence[Field]) -> float:
    decoder = Decoder()

    def once() -> int:
        good = 0
        for image in encoded:
            assert image.facts is not None  # noqa: S101 (it has been encoded)
            try:
                decoder(image.data, image.facts)
                good += 1
            except DecodeError:
                continue
        return good

    return max((_rate(once) for _ in range(_ROUNDS)), default=0.0)


def _rate(work: Callable[[], int]) -> float:
    began = time.perf_counter()
    count = work()
    return count / max(time.perf_counter() - began, 1e-9)
