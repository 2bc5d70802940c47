"""Samples with the same bytes: found by size first, then by a digest."""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np

from packio.errors import DecodeError
from packio.sources import Listing
from packio.system.pools import ThreadPool

_THREADS = 8  # they wait for the disk
_CHUNK = 256  # samples that a thread reads in one go
_SHOWN = 3  # pairs in the warning


def deduplicated(listing: Listing, *, drop: bool) -> Listing:
    """Find samples with the same bytes. Only samples of equal size are read.

    Args:
        listing: The samples.
        drop: Leave out all but the first of each; else only warn.
    """
    order = np.argsort(np.asarray(listing.sizes, np.int64), kind="stable")
    sizes = np.asarray(listing.sizes, np.int64)[order]
    same = np.zeros(len(sizes), bool)
    same[1:] = sizes[1:] == sizes[:-1]
    same[:-1] |= sizes[:-1] == sizes[1:]
    suspects = np.sort(order[same]).tolist()
    first: dict[bytes, int] = {}
    twins = [(i, first[d]) for i, d in _digests(listing, suspects) if first.setdefault(d, i) != i]
    if not twins:
        return listing
    shown = ", ".join(f"{listing.keys[i]!a} = {listing.keys[j]!a}" for i, j in twins[:_SHOWN])
    differ = sum(listing.labels is not None and not _alike(listing, i, j) for i, j in twins)
    labels = f"; {differ} of them with another label" if differ else ""
    what = "dropped" if drop else "kept; drop them with --dedupe drop"
    warning = f"{len(twins)} samples have the bytes of an earlier one{labels}, {what}: {shown}"
    listing = dataclasses.replace(listing, warnings=[*listing.warnings, warning])
    if not drop:
        return listing
    gone = {i for i, _ in twins}
    dropped = [(listing.keys[i], f"the same bytes as {listing.keys[j]!a}") for i, j in twins]
    kept = listing.take([i for i in range(len(listing.keys)) if i not in gone])
    return dataclasses.replace(kept, dropped=[*listing.dropped, *dropped])


def _alike(listing: Listing, i: int, j: int) -> bool:
    return bool(np.array_equal(np.asarray(listing.label(i)), np.asarray(listing.label(j))))


def _digests(listing: Listing, positions: list[int]) -> list[tuple[int, bytes]]:
    """Position and digest of each sample that can be read, in order."""

    def digests(start: int) -> list[tuple[int, bytes]]:
        found = []
        with listing.opened() as read:
            for i in positions[start : start + _CHUNK]:
                try:
                    found.append((i, hashlib.blake2b(read(i).image.data, digest_size=16).digest()))
                except (OSError, DecodeError):
                    continue  # packing it will say why
        return found

    with ThreadPool(_THREADS, "packio-dedupe") as pool:
        return [d for chunk in pool.map(digests, range(0, len(positions), _CHUNK)) for d in chunk]
