"""The dry run: what packing would find, and how encodings compare in size and speed."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from packio.errors import DecodeError
from packio.images.decoders import Decoder
from packio.packing.images.encode import Encoding
from packio.packing.plan.planning import Plan
from packio.packing.run.reading import Read, Treatment, read_one
from packio.sample import levels
from packio.sample.record import Field

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
    """How large and how fast all images would be in one encoding, estimated from some images."""

    options: dict[str, object]  # of the encoding
    bytes: int  # of all images
    images_per_second: float  # whole images that one core decodes
    pack_seconds: float  # that one core needs to encode all images
    refused: int  # of the images looked at: they cannot be encoded so


class LevelsAdvice(NamedTuple):
    """What levels cost, estimated from some images."""

    options: dict[str, Any]
    images: int  # of those looked at: they get a level
    bytes: int  # of the levels of all images
    share: float  # the same of the bytes of the images


@dataclasses.dataclass(frozen=True, slots=True)
class DryRun:
    """What packing would do."""

    kind: str  # name of the source's module
    found: int  # samples
    classes: tuple[str, ...]
    class_counts: tuple[int, ...]  # empty without int labels
    labels: str  # "none", "class", "number", or "vector of k"
    shards: int
    source_bytes: int  # of all samples whose size is known
    problems: tuple[tuple[str, str], ...]  # (key, reason): not listed, or bad of those looked at
    warnings: tuple[str, ...]
    looked_at: int  # images
    advice: tuple[Advice, ...]
    levels: LevelsAdvice | None = None  # None if the plan has none


def dry_run(plan: Plan, candidates: Sequence[Encoding] = CANDIDATES) -> DryRun:
    """Look at a plan and at some of its images, drawn at random; write nothing."""
    listing, treatment = plan.listing, plan.treatment
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
        levels=_levels_advice(reads, treatment, len(listing.keys)),
    )


def _levels_advice(reads: Sequence[Read], treatment: Treatment, images: int) -> LevelsAdvice | None:
    records = [read.record for read in reads if read.problem is None]
    if treatment.levels is None or not records:
        return None
    sizes = [
        sum(len(field.data) for name, field in record.fields.items() if levels.divisor_of(name))
        for record in records
    ]
    whole = sum(len(record.image.data) for record in records)
    return LevelsAdvice(
        treatment.levels.as_options(), sum(map(bool, sizes)),
        round(statistics.fmean(sizes) * images), sum(sizes) / whole,
    )  # fmt: skip


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
    decoder, best = Decoder(), 0.0
    for _ in range(_ROUNDS):
        good, began = 0, time.perf_counter()
        for image in encoded:
            assert image.facts is not None  # noqa: S101 (it has been encoded)
            with suppress(DecodeError):
                decoder(image.data, image.facts)
                good += 1
        best = max(best, good / max(time.perf_counter() - began, 1e-9))
    return best
