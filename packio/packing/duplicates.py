"""Samples with the same bytes, by size and a digest; and images that look alike, by hashes."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from packio.errors import DecodeError
from packio.images import encodings, perceptual
from packio.images.decoders import Decoder
from packio.images.frames import oriented
from packio.sample.record import Facts, Field
from packio.sources import Listing
from packio.system import processors
from packio.system.files import check_of_file
from packio.system.pools import ThreadPool

_THREADS = 8  # they wait for the disk
_CHUNK = 128  # samples that a thread reads in one go
_SHOWN = 3  # pairs in the warning
_T = TypeVar("_T")


def deduplicate(listing: Listing, *, drop: bool) -> Listing:
    """Find samples with the same bytes. Only samples of equal size are read."""
    order = np.argsort(np.asarray(listing.sizes, np.int64), kind="stable")
    sizes = np.asarray(listing.sizes, np.int64)[order]
    same = np.zeros(len(sizes), bool)
    same[1:] = sizes[1:] == sizes[:-1]
    same[:-1] |= sizes[:-1] == sizes[1:]
    suspects = np.sort(order[same]).tolist()
    read = functools.partial(_read_each, listing, _digest)
    digests = map_chunks(read, suspects, _THREADS)
    first: dict[bytes, int] = {}
    twins = [
        (i, first[digest])
        for i, digest in zip(suspects, digests, strict=True)
        if digest is not None and first.setdefault(digest, i) != i
    ]
    what = "samples with the bytes of an earlier one"
    return _leave_out(listing, twins, what, ("=", "the same bytes as"), drop=drop)


def drop_near(listing: Listing) -> Listing:
    """Leave out each image that looks like an earlier one that stays; all images are decoded.

    See `packio.images.perceptual`. An image that cannot be decoded stays: packing it says why.
    """
    decoder = Decoder("auto", "RGB")

    def hash_field(image: Field) -> int:
        return hash_image(decoder, image.data, image.facts or encodings.read_facts(image.data))

    read = functools.partial(_read_each, listing, hash_field)
    hashes = list(map_chunks(read, range(len(listing.keys)), processors.usable()))
    twins = [(twin.position, twin.of) for twin in group_twins(hashes, perceptual.THRESHOLD)]
    what = "images that look like an earlier one"
    return _leave_out(listing, twins, what, ("~", "looks like"), drop=True)


def _leave_out(
    listing: Listing, twins: list[tuple[int, int]], what: str, like: tuple[str, str], *, drop: bool
) -> Listing:
    if not twins:
        return listing
    shown = ", ".join(
        f"{listing.keys[i]!a} {like[0]} {listing.keys[j]!a}" for i, j in twins[:_SHOWN]
    )
    differ = sum(
        listing.labels is not None
        and not np.array_equal(np.asarray(listing.label(i)), np.asarray(listing.label(j)))
        for i, j in twins
    )
    others = f" ({differ} of them with another label)" if differ else ""
    done = "left out" if drop else "kept; leave them out with --dedupe drop"
    warning = f"{what}: {len(twins)}{others}, {done}: {shown}"
    listing = dataclasses.replace(listing, warnings=[*listing.warnings, warning])
    if not drop:
        return listing
    gone = {i for i, _ in twins}
    dropped = [(listing.keys[i], f"{like[1]} {listing.keys[j]!a}") for i, j in twins]
    kept = listing.take([i for i in range(len(listing.keys)) if i not in gone])
    return dataclasses.replace(kept, dropped=[*listing.dropped, *dropped])


class Twin(NamedTuple):
    """An image that looks like an earlier one, which is no twin itself."""

    position: int
    of: int
    distance: int  # bits in which their hashes differ


def group_twins(hashes: Sequence[int | None], threshold: int) -> list[Twin]:
    """Images that look like an earlier one, in order.

    An image that looks only like such a twin is none itself, so that no chain of small changes
    joins images that differ.
    """
    positions = [i for i, found in enumerate(hashes) if found is not None]
    values = np.array([hashes[i] for i in positions], np.uint64)
    different, firsts, groups = np.unique(values, return_index=True, return_inverse=True)
    order = np.argsort(firsts)  # hashes in the order of their first images
    pairs = perceptual.near(different[order], threshold)
    of, distance = list(range(len(order))), [0] * len(order)
    for a, b, bits in zip(*(column.tolist() for column in pairs), strict=True):
        if of[a] == a and of[b] == b:
            of[b], distance[b] = a, bits
    twins = []
    for i, group in zip(positions, np.argsort(order)[groups.reshape(-1)].tolist(), strict=True):
        kept = positions[int(firsts[order[of[group]]])]
        if kept != i:
            twins.append(Twin(i, kept, distance[group]))
    return twins


def map_chunks(
    read: Callable[[Sequence[int]], Iterable[_T]], positions: Sequence[int], threads: int
) -> Iterator[_T]:
    """What a function returns of positions, in their order; threads ask for some at a time."""
    chunks = [positions[i : i + _CHUNK] for i in range(0, len(positions), _CHUNK)]
    with ThreadPool(threads, "packio-duplicates") as pool:
        for values in pool.map(lambda chunk: list(read(chunk)), chunks):
            yield from values


def hash_image(decoder: Decoder, data: bytes, facts: Facts) -> int:
    return perceptual.hash_pixels(oriented(decoder(data, facts), facts.orientation))


def _digest(image: Field) -> bytes:
    return hashlib.blake2b(image.data, digest_size=16).digest()


def _read_each(
    listing: Listing, work: Callable[[Field], _T], positions: Sequence[int]
) -> Iterator[_T | None]:
    """The work done on each image; None of an image that is bad: packing it will say why."""
    with listing.opened() as read:
        for i in positions:
            try:
                yield work(read(i).image)
            except (OSError, DecodeError) as error:
                check_of_file(error, os.fsdecode(listing.keys[i]))
                yield None
