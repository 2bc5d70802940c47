"""The plan of a pack: everything that decides its bytes, fixed before the first byte is written."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
import pickle
import statistics
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packio import registry
from packio.errors import DecodeError, OutputError
from packio.images import native
from packio.images.decoders import Decoder
from packio.index.indexfile import canonical_json
from packio.packing.images.encode import Encoding
from packio.packing.run.reading import ReadSample, Treatment, read_one
from packio.sample import levels
from packio.sample.recipe import Recipe, merge_recipes
from packio.sample.record import Field
from packio.sources import Listing
from packio.sources.pack import PackListing
from packio.system import processors

SKIPPED_SUFFIX = ".skipped.jsonl"


@dataclasses.dataclass(frozen=True, slots=True)
class Skip:
    """A path of the source that is not in the pack."""

    key: bytes
    reason: str  # one line

    def as_json(self) -> dict[str, str]:
        """As a line of ``OUT.skipped.jsonl``; bytes that are not UTF-8 are surrogate-escaped."""
        return {"key": os.fsdecode(self.key), "reason": self.reason}


@dataclasses.dataclass(frozen=True, slots=True)
class PackReport:
    """The result of a packing run. ``packed + len(skipped) == found``, unless `up_to_date`.

    Attributes:
        out: The pack.
        format: Name of the container's format.
        found: Number of paths in the source.
        packed: Number of samples in the pack.
        skipped: The other paths, also listed in `skipped_file`. Empty if `up_to_date`.
        classes: Number of classes.
        source_bytes: Bytes of the packed samples in the source.
        out_bytes: Bytes of all files of the pack, the index included.
        seconds: Duration of the whole run.
        digest: Hexadecimal SHA-256 of the index, which digests all files of the pack.
        up_to_date: True if the pack was there already and nothing was written.
        warnings: One line each.
        skipped_file: ``OUT.skipped.jsonl``; None if nothing was skipped.
        part: (i, n) if only a part of the shards was to be written; there is no pack yet.
        quarantined: Number of bad images that were copied to the quarantine.
        resumed: Number of shards that were taken over from an interrupted run.
    """

    out: Path
    format: str
    found: int
    packed: int
    skipped: tuple[Skip, ...]
    classes: int
    source_bytes: int
    out_bytes: int
    seconds: float
    digest: str
    up_to_date: bool = False
    warnings: tuple[str, ...] = ()
    skipped_file: Path | None = None
    part: tuple[int, int] | None = None
    resumed: int = 0
    quarantined: int = 0

    def with_lost(self, fields: Sequence[str]) -> PackReport:
        """The report, with a warning that the pack that was replaced had these added fields."""
        if not fields:
            return self
        warning = (
            f"the pack that was replaced had fields from packio add: {', '.join(fields)}; "
            "make them anew with packio add"
        )
        return dataclasses.replace(self, warnings=(*self.warnings, warning))


_FILES_A_SHARD = 16  # at most, but for arrays of many chunks
_WORTH_PROCESSES = 64 << 20  # bytes; a process starts in about the time that they take to pack


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is packed, and how."""

    listing: Listing
    format: str
    own: Recipe  # of this run
    treatment: Treatment  # as the recipe of this run says
    before: Recipe | None  # of the packs that it is made of
    left_out: int  # samples that are not in the pack by choice, or not in those packs
    shards: tuple[range, ...]  # positions in the listing
    is_sharded: bool  # a folder of shards, even of one shard
    digest: str  # of all above: keys, sizes and labels, but no times and no absolute paths

    @property
    def total_bytes(self) -> int:
        """Source bytes of the samples whose size is known."""
        return sum(size for size in self.listing.sizes if size > 0)

    @property
    def recipe(self) -> Recipe:
        """The recipe of the pack: the recipe of the packs it is made of, then this run's."""
        return self.own if self.before is None else self.before.combine_with(self.own)


def make(
    listing: Listing, format_name: str, recipe: Recipe, *, shards: int = 1,
    shard_size: int | None = None,
) -> Plan:  # fmt: skip
    """Make the plan of a listing; refuse values of the recipe that make no sense."""
    treatment = Treatment.from_recipe(recipe)
    ranges = _ranges(listing.sizes, shards, shard_size)
    digest = hashlib.sha256()
    sharded = shards != 1 or shard_size is not None
    head = {
        "format": format_name, "recipe": recipe.as_json(), "classes": listing.classes,
        "source": listing.kind, "version": listing.version,
        "shards": [r.stop for r in ranges], "sharded": sharded,
    }  # fmt: skip
    digest.update(canonical_json(head).encode())
    for key, size in zip(listing.keys, listing.sizes, strict=True):
        digest.update(struct.pack("<Iq", len(key), size) + key)
    if listing.labels is not None:
        digest.update(np.ascontiguousarray(listing.labels).tobytes())
    if listing.splits is not None:
        digest.update(canonical_json(listing.split_names).encode())
        digest.update(np.asarray(listing.splits, np.uint8).tobytes())
    for key, _ in listing.unlisted:
        digest.update(b"unlisted" + key)
    packs = [p.metadata for p in listing.packs] if isinstance(listing, PackListing) else []
    elsewhere = sum(m["counts"]["skipped"] for m in packs if not m.get("left_out"))  # it lists them
    return Plan(
        listing, format_name, recipe, treatment,
        merge_recipes([Recipe.from_metadata(metadata) for metadata in packs]) if packs else None,
        len(listing.dropped) + elsewhere, ranges, sharded, digest.hexdigest(),
    )  # fmt: skip


def _ranges(sizes: list[int], shards: int, shard_size: int | None) -> tuple[range, ...]:
    count = len(sizes)
    if shard_size is None:
        shards = min(shards, max(count, 1))  # a shard holds at least one sample
        edges = [count * i // shards for i in range(shards + 1)]
    else:
        edges, total = [0], 0
        for i, size in enumerate(sizes):
            if total and total + max(size, 0) > shard_size:
                edges.append(i)
                total = 0
            total += max(size, 0)
        edges.append(count)
    return tuple(range(a, b) for a, b in itertools.pairwise(edges) if b > a) or (range(0),)


def check_space(plan: Plan, out: Path, shards: Sequence[int]) -> None:
    """Refuse to write shards if the disk has too few free bytes or inodes.

    Bytes are not counted if images are encoded anew, as their new size is not known.
    """
    try:
        disk = os.statvfs(out.parent)
    except OSError:  # the folder is missing; making the workshop will say so
        return
    free, needed, sizes = disk.f_bavail * disk.f_frsize, 0, plan.listing.sizes
    if plan.treatment.encoding == Encoding() and shards:
        each = [sum(s for i in plan.shards[n] if (s := sizes[i]) > 0) for n in shards]
        spooled = registry.load("formats", plan.format).caps.spooled
        needed = sum(each) + (max(each) if spooled else 0)
    if needed > free:
        raise OutputError(
            f"{out}: needs at least {needed:,} bytes, {free:,} are free; make room first"
        )
    inodes = len(shards) * _FILES_A_SHARD
    if disk.f_files and inodes > disk.f_favail:
        raise OutputError(
            f"{out}: may need {inodes:,} files, {disk.f_favail:,} more can be made; "
            "make fewer shards, or remove files first"
        )


def count_workers(plan: Plan, wanted: int | None) -> int:
    """Number of processes; 1 for a small pack, or a listing that cannot be sent to a process."""
    listing, is_small = plan.listing, wanted is None and plan.total_bytes < _WORTH_PROCESSES
    if len(plan.shards) == 1 or is_small:
        return 1
    try:
        sent = pickle.dumps((listing.open, None if listing.rows is None else listing.rows[:1]))
    except Exception:  # noqa: BLE001 (whatever its pickling does)
        return 1
    return 1 if b"__main__" in sent else wanted or processors.usable()


_SAMPLE = 64  # images that are looked at
_ROUNDS = 3  # in which a crop of each is made; the fastest round counts
CANDIDATES = (
    Encoding(),
    Encoding(encode="dct"),
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
    images_per_second: float  # crops that one core makes: random ones of 224 pixels
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


def dry_run(plan: Plan) -> DryRun:
    """Look at a plan and at some of its images, drawn at random; write nothing."""
    listing, treatment = plan.listing, plan.treatment
    drawn = np.random.default_rng(0).permutation(len(listing.keys))[:_SAMPLE]
    with listing.open_records() as read:
        reads = [read_one(listing, read, i, treatment) for i in np.sort(drawn).tolist()]
        plain = [read_one(listing, read, r.position) for r in reads if r.problem is None]
    problems = [*listing.unlisted]
    problems += [(listing.keys[r.position], r.problem) for r in reads if r.problem is not None]
    labels = listing.labels
    ints = labels if isinstance(labels, list) else []
    counts = np.bincount(np.array(ints, np.int64), minlength=len(listing.classes))
    kind_of_labels = "none" if labels is None else "class" if listing.classes else "number"
    if labels is not None and not isinstance(labels, list):
        kind_of_labels = f"vector of {np.asarray(labels).shape[1]}"
    return DryRun(
        kind=listing.kind,
        found=len(listing.keys) + len(listing.unlisted) + len(listing.dropped),
        classes=tuple(listing.classes),
        class_counts=tuple(int(n) for n in counts) if listing.classes else (),
        labels=kind_of_labels, shards=len(plan.shards), source_bytes=plan.total_bytes,
        problems=tuple((os.fsdecode(key), text) for key, text in problems),
        warnings=tuple(listing.warnings), looked_at=len(reads),
        advice=tuple(
            _advice(plain, Treatment(candidate), listing.sizes)
            for candidate in CANDIDATES
            if plain and (candidate.encode != "dct" or not native.why_not())
        ),
        levels=_levels_advice(reads, treatment, len(listing.keys)),
    )  # fmt: skip


def _levels_advice(
    reads: Sequence[ReadSample], treatment: Treatment, images: int
) -> LevelsAdvice | None:
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


def _advice(reads: Sequence[ReadSample], treatment: Treatment, sizes: Sequence[int]) -> Advice:
    images = len(sizes)
    encoded: list[Field] = []
    as_listed = min(sizes) >= 0  # whether all images stay as large as the source says
    began = time.perf_counter()
    for r in reads:
        try:
            encoded.append(treatment(r.record).image)
        except DecodeError:
            continue
        as_listed &= len(encoded[-1].data) == sizes[r.position]
    seconds = time.perf_counter() - began
    mean = statistics.fmean(len(image.data) for image in encoded) if encoded else 0.0
    total = round(mean * images)
    if as_listed or (treatment.encoding.resize is None and min(sizes) > 0):  # each is as listed, or
        share = mean * len(encoded) / max(1, sum(sizes[r.position] for r in reads))
        total = sum(sizes) if as_listed else round(sum(sizes) * share)
    return Advice(
        treatment.encoding.as_options(), total, _crops_per_second(encoded),
        seconds / max(len(reads), 1) * images, len(reads) - len(encoded),
    )  # fmt: skip


def _crops_per_second(encoded: Sequence[Field]) -> float:
    from packio.images import regions  # imports torch, which packing needs for nothing else
    from packio.images.frames import Placement
    from packio.images.geometry import RandomResizedCrop

    decoder, crop, best = Decoder(), RandomResizedCrop(224), 0.0
    for seed in range(_ROUNDS):
        numbers = np.random.default_rng(seed).random((len(encoded), crop.draws)).tolist()
        good, began = 0, time.perf_counter()
        for image, u in zip(encoded, numbers, strict=True):
            stored = image.facts
            assert stored is not None  # noqa: S101 (it has been encoded)
            frame = crop.frame(stored.height, stored.width, u)
            how = crop.interpolation
            need = regions.compute_need(
                Placement(frame), stored.height, stored.width, how, fast=False
            )
            with suppress(DecodeError):
                regions.make(decoder, image.data, stored, [need], [None], image.points)
                good += 1
        best = max(best, good / max(time.perf_counter() - began, 1e-9))
    return best
