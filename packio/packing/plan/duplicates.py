"""Samples with the same bytes, by size and a digest; and images that look alike, by hashes."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from packio.errors import DecodeError
from packio.images import encodings, perceptual
from packio.sources import Listing
from packio.system import processors
from packio.system.files import check_of_file
from packio.system.pools import ThreadPool

_THREADS = 8  # they wait for the disk
_CHUNK = 256  # samples that a thread reads in one go
_SHOWN = 3  # pairs in the warning


def deduplicated(listing: Listing, *, drop: bool) -> Listing:
    """Find samples with the same bytes. Only samples of equal size are read."""
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
    what = "left out" if drop else "kept; leave them out with --dedupe drop"
    warning = (
        f"samples with the bytes of an earlier one: {len(twins)}{_other(differ)}, {what}: {shown}"
    )
    listing = dataclasses.replace(listing, warnings=[*listing.warnings, warning])
    if not drop:
        return listing
    gone = {i for i, _ in twins}
    dropped = [(listing.keys[i], f"the same bytes as {listing.keys[j]!a}") for i, j in twins]
    kept = listing.take([i for i in range(len(listing.keys)) if i not in gone])
    return dataclasses.replace(kept, dropped=[*listing.dropped, *dropped])


def without_near(listing: Listing) -> Listing:
    """Leave out each image that looks like an earlier one that stays; all images are decoded.

    See `packio.images.perceptual`. An image that cannot be decoded stays: packing it says why.
    """
    found = grouped(_hashes(listing), perceptual.THRESHOLD)
    if not found:
        return listing
    twins = [(twin.position, twin.of) for twin in found]
    shown = ", ".join(f"{listing.keys[i]!a} ~ {listing.keys[j]!a}" for i, j in twins[:_SHOWN])
    differ = sum(listing.labels is not None and not _alike(listing, i, j) for i, j in twins)
    warning = (
        f"images that look like an earlier one: {len(twins)}{_other(differ)}, left out: {shown}"
    )
    gone = {i for i, _ in twins}
    dropped = [(listing.keys[i], f"looks like {listing.keys[j]!a}") for i, j in twins]
    kept = listing.take([i for i in range(len(listing.keys)) if i not in gone])
    return dataclasses.replace(
        kept, dropped=[*listing.dropped, *dropped], warnings=[*listing.warnings, warning]
    )


def _other(count: int) -> str:
    """Say how many of the images have another label than the earlier one has."""
    return f" ({count} of them with another label)" if count else ""


class Twin(NamedTuple):
    """An image that looks like an earlier one.

    Attributes:
        position: Of the image.
        of: Position of the earlier one, which is no twin itself.
        distance: Bits in which their hashes differ.
    """

    position: int
    of: int
    distance: int


def grouped(hashes: Sequence[int | None], threshold: int) -> list[Twin]:
    """Images that look like an earlier one, in order.

    An image that looks only like such a twin is none itself, so that no chain of small changes
    joins images that differ.
    """
    positions = [i for i, found in enumerate(hashes) if found is not None]
    values = np.array([hashes[i] for i in positions], np.uint64)
    different, firsts, groups = np.unique(values, return_index=True, return_inverse=True)
    order = np.argsort(firsts)  # hashes in the order of their first images
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    first, second, bits = perceptual.near(different[order], threshold)
    of = np.arange(len(order))
    distance = np.zeros(len(order), np.int64)
    sort = np.lexsort((first, second))
    for a, b, n in zip(first[sort].tolist(), second[sort].tolist(), bits[sort].tolist(),
                       strict=True):  # fmt: skip
        if of[a] == a and of[b] == b:
            of[b], distance[b] = a, n
    twins = []
    for i, group in zip(positions, rank[groups.reshape(-1)].tolist(), strict=True):
        kept = positions[int(firsts[order[of[group]]])]
        if kept != i:
            twins.append(Twin(i, kept, int(distance[group])))
    return twins


def _hashes(listing: Listing) -> list[int | None]:
    """The hash of each image that can be decoded."""
    hasher = perceptual.Hasher()

    def hashes(start: int) -> list[int | None]:
        found: list[int | None] = []
        with listing.opened() as read:
            for i in range(start, min(start + _CHUNK, len(listing.keys))):
                try:
                    image = read(i).image
                    found.append(
                        hasher(image.data, image.facts or encodings.read_facts(image.data))
                    )
                except (OSError, DecodeError) as error:
                    check_of_file(error, os.fsdecode(listing.keys[i]))
                    found.append(None)
        return found

    with ThreadPool(processors.usable(), "packio-dedupe") as pool:
        chunks = pool.map(hashes, range(0, len(listing.keys), _CHUNK))
        return [found for chunk in chunks for found in chunk]


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
                except (OSError, DecodeError) as error:
                    check_of_file(error, os.fsdecode(listing.keys[i]))
                    continue  # packing it will say why
        return found

    with ThreadPool(_THREADS, "packio-dedupe") as pool:
        return [d for chunk in pool.map(digests, range(0, len(positions), _CHUNK)) for d in chunk]
