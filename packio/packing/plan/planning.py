"""The plan of a pack: everything that decides its bytes, fixed before the first byte is written."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
import pickle
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from packio import registry
from packio.errors import OutputError
from packio.index.indexfile import canonical_json
from packio.packing.images.encode import Encoding
from packio.packing.run.reading import Treatment
from packio.sample.recipe import Recipe, merged
from packio.sources import Listing
from packio.sources.pack import PackListing
from packio.system import processors

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
        return self.own if self.before is None else self.before.followed_by(self.own)


def make(
    listing: Listing,
    format_name: str,
    recipe: Recipe,
    *,
    shards: int = 1,
    shard_size: int | None = None,
) -> Plan:
    """Make the plan of a listing; refuse values of the recipe that make no sense."""
    treatment = Treatment.of(recipe)
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
        merged([Recipe.of(metadata) for metadata in packs]) if packs else None,
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
    if len(plan.shards) == 1 or not _pickles(plan.listing):
        return 1
    if wanted is None and plan.total_bytes < _WORTH_PROCESSES:
        return 1
    return wanted or processors.usable()


def _pickles(listing: Listing) -> bool:
    """Tell whether a listing pickles, and needs no class of this program's main module."""
    try:
        sent = pickle.dumps((listing.open, None if listing.rows is None else listing.rows[:1]))
    except Exception:  # noqa: BLE001 (whatever its pickling does)
        return False
    return b"__main__" not in sent
