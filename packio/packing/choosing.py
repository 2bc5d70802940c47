"""Choosing samples of a listing by name, number and content; their order, splits and duplicates.

Random numbers come from the seed and the sample's key alone, not from the order of files.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import hashlib
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from packio.errors import DecodeError, OptionError, SourceError
from packio.images import encodings, perceptual
from packio.images.decoders import Decoder
from packio.images.frames import orient
from packio.sample.record import Facts, Field
from packio.sources import Listing
from packio.system import processors
from packio.system.files import check_of_file
from packio.system.pools import ThreadPool

DEDUPE = (None, "report", "drop", "near")
_SHOWN = 3  # paths, or pairs, in a warning
_MOST_SEED = 2**127 - 1  # the salt of a hash, 16 bytes
_PATTERNS = ("include", "exclude")
_WILDCARD = re.compile(r"[*?[]")
_GOLDEN = 0.618033988749895  # multiples of it, modulo 1, are spread evenly
_THREADS = 8  # they wait for the disk
_CHUNK = 128  # samples that a thread reads in one go
_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Choice:
    """Which samples of a listing are packed, in which order, and in which splits.

    Attributes:
        include, exclude: Patterns of keys, as ``*.jpg`` or ``cats/*``; ``*`` also matches slashes.
        dedupe: "report": warn about samples with the same bytes; "drop": keep the first of them.
            "near": keep the first of images that look alike, too, which decodes all images.
        shuffle: Seed of the order; None keeps the order of the source.
        limit: Take this many samples from the beginning.
        split: Share of each named split, as {"train": 0.9, "val": 0.1}, exact in each class. So a
            source that has grown, packed anew, moves some samples to another split. Appending moves
            none: new samples get their splits by a threshold on a hash of their keys.
        seed: Seed that draws the splits.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    dedupe: str | None = None
    shuffle: int | None = None
    limit: int | None = None
    split: tuple[tuple[str, float], ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if self.dedupe not in DEDUPE:
            raise OptionError(f"dedupe={self.dedupe!r}: expected 'report', 'drop' or 'near'")
        if self.limit is not None and self.limit < 1:
            raise OptionError(f"limit={self.limit}: expected at least 1")
        for name, seed in (("shuffle", self.shuffle), ("seed", self.seed)):
            if seed is not None and abs(seed) > _MOST_SEED:
                raise OptionError(f"{name}={seed}: expected a seed below 2**127")
        names, shares = [name for name, _ in self.split], [share for _, share in self.split]
        if self.split and (
            len(set(names)) != len(names) or not all(names) or len(names) > 256
            or not all(share > 0 for share in shares) or abs(sum(shares) - 1) > 1e-6
        ):  # fmt: skip
            raise OptionError(
                f"split={dict(self.split)!r}: expected names and shares that add up to 1, as "
                "train=0.9,val=0.1"
            )

    @staticmethod
    def from_options(options: Mapping[str, Any]) -> Choice:
        """Make a choice of options as a user or a recipe gives them."""
        found: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v
                                 for n, v in options.items()}  # fmt: skip
        found |= {n: (v,) for n, v in options.items() if isinstance(v, str) and n in _PATTERNS}
        split = options.get("split") or ()
        try:
            pairs = split.items() if isinstance(split, Mapping) else split
            found["split"] = tuple((str(n), float(share)) for n, share in pairs)
        except (TypeError, ValueError) as error:
            raise OptionError(
                f"split={split!r}: expected names and shares, as {{'train': 0.9, 'val': 0.1}}"
            ) from error
        return Choice(**found)

    def as_options(self) -> dict[str, object]:
        """Options for the recipe: those that are not the default."""
        found = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        if not self.split:
            del found["seed"]
        return {n: v for n, v in found.items() if v != getattr(_ALL, n) or n == "seed"}

    def choose(self, listing: Listing) -> Listing:
        """The listing of the chosen samples."""
        chosen = self._first(self._deduplicate(self._match(listing)))
        if listing.keys and not chosen.keys:
            raise SourceError(
                f"{listing.root or 'the source'}: none of {len(listing.keys)} samples is chosen by "
                f"include={list(self.include)}, exclude={list(self.exclude)}"
            )
        return _split(chosen, self.split, self.seed) if self.split else chosen

    def choose_new(self, listing: Listing, known: Collection[bytes]) -> Listing:
        """The samples that appending takes, of a listing that has grown.

        What the choice left out before does not come back: samples that no pattern takes, samples
        with the bytes of an earlier sample, and samples beyond the limit; warnings count the first
        and the last. New samples get their splits by a threshold on a hash of their keys, so that
        one more sample moves no other.
        """
        found = len(listing.keys)
        listing = self._match(listing)
        if left := found - len(listing.keys):
            listing = _with_warning(
                listing, f"{left:,} samples of the source are left out: the pack was made with "
                f"include={list(self.include)}, exclude={list(self.exclude)}",
            )  # fmt: skip
        old_first = sorted(range(len(listing.keys)), key=lambda i: listing.keys[i] not in known)
        listing = self._deduplicate(listing.take(old_first))  # of equal samples the first stays
        new = [i for i, key in enumerate(listing.keys) if key not in known]
        there = len(listing.keys) - len(new)
        listing = self._first(listing.take(new), there)
        if left := len(new) - len(listing.keys):
            listing = _with_warning(
                listing, f"{left:,} new samples are left out: the pack was made with "
                f"limit={self.limit}, and {there:,} samples of the source are in it",
            )  # fmt: skip
        if not self.split:
            return listing
        edges = np.cumsum([share for _, share in self.split])
        drawn = [int.from_bytes(_hash_of(key, self.seed), "big") / 2**64 for key in listing.keys]
        splits = np.searchsorted(edges, drawn, "right").clip(max=len(edges) - 1).astype(np.uint8)
        names = [name for name, _ in self.split]
        return dataclasses.replace(listing, splits=splits, split_names=names)

    def _deduplicate(self, listing: Listing) -> Listing:
        if self.dedupe is not None:
            listing = deduplicate(listing, drop=self.dedupe != "report")
        return drop_near(listing) if self.dedupe == "near" else listing

    def _first(self, listing: Listing, there: int = 0) -> Listing:
        """The samples in their order, up to the limit, of which some are there already.

        If there are enough, what cannot be listed is not missed.
        """
        if self.shuffle is not None:
            listing = listing.take(_order(listing.keys, self.shuffle))
        limit = len(listing.keys) + 1 if self.limit is None else max(self.limit - there, 0)
        if limit > len(listing.keys):
            return listing
        if listing.unlisted:
            shown = ", ".join(ascii(os.fsdecode(key)) for key, _ in listing.unlisted[:_SHOWN])
            listing = _with_warning(
                listing, "cannot be listed, and not missed, as "
                f"limit={limit} is reached: {len(listing.unlisted)}, as {shown}",
            )  # fmt: skip
        return dataclasses.replace(listing.take(range(limit)), unlisted=[])

    def _match(self, listing: Listing) -> Listing:
        """The samples that the patterns take, and the unreadable paths that may hold such ones."""
        if not (self.include or self.exclude):
            return listing
        keep = [i for i, key in enumerate(listing.keys) if self._is_wanted(os.fsdecode(key))]
        left = [bad for bad in listing.unlisted if self._may_hold(os.fsdecode(bad[0]))]
        return dataclasses.replace(listing.take(keep), unlisted=left)

    def _may_hold(self, path: str) -> bool:
        """Tell whether a path that cannot be listed may be, or hold, a sample that is wanted."""
        if not path.endswith("/"):
            return self._is_wanted(path)
        if any(p.endswith("*") and fnmatch.fnmatchcase(path, p) for p in self.exclude):
            return False
        starts = [_WILDCARD.split(p, maxsplit=1)[0] for p in self.include]
        return not starts or any(s.startswith(path) or path.startswith(s) for s in starts)

    def _is_wanted(self, key: str) -> bool:
        included = not self.include or any(fnmatch.fnmatchcase(key, p) for p in self.include)
        return included and not any(fnmatch.fnmatchcase(key, p) for p in self.exclude)


_ALL = Choice()


def _with_warning(listing: Listing, warning: str) -> Listing:
    return dataclasses.replace(listing, warnings=[*listing.warnings, warning])


def _hash_of(key: bytes, seed: int) -> bytes:
    return hashlib.blake2b(
        key, digest_size=8, salt=seed.to_bytes(16, "little", signed=True)
    ).digest()


def _order(keys: Sequence[bytes], seed: int) -> list[int]:
    return sorted(range(len(keys)), key=lambda i: (_hash_of(keys[i], seed), keys[i]))


def _split(listing: Listing, shares: Sequence[tuple[str, float]], seed: int) -> Listing:
    """Give each sample a split, so that splits have the same shares of each class, rounded."""
    groups: dict[int, list[int]] = {}
    labels = listing.labels if isinstance(listing.labels, list) else None
    for i in _order(listing.keys, seed):
        groups.setdefault(labels[i] if labels is not None else 0, []).append(i)
    splits = np.zeros(len(listing.keys), np.uint8)
    edges = np.cumsum([share for _, share in shares])
    for number, label in enumerate(sorted(groups)):
        members = groups[label]
        offset = (number + 1) * _GOLDEN % 1  # many small classes add up to the shares, too
        places = (np.arange(len(members)) + offset) / len(members)
        splits[members] = np.searchsorted(edges, places, "right").clip(max=len(shares) - 1)
    return dataclasses.replace(listing, splits=splits, split_names=[name for name, _ in shares])


def deduplicate(listing: Listing, *, drop: bool) -> Listing:
    """Find samples with the same bytes. Only samples of equal size are read."""
    order = np.argsort(np.asarray(listing.sizes, np.int64), kind="stable")
    sizes = np.asarray(listing.sizes, np.int64)[order]
    same = np.zeros(len(sizes), bool)
    same[1:] = sizes[1:] == sizes[:-1]
    same[:-1] |= sizes[:-1] == sizes[1:]
    suspects = np.sort(order[same]).tolist()

    def digest_of(image: Field) -> bytes:
        return hashlib.blake2b(image.data, digest_size=16).digest()

    read = functools.partial(_read_each, listing, digest_of)
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
    """Leave out each image that looks like an earlier one that stays; all images are decoded."""
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
    return perceptual.hash_pixels(orient(decoder(data, facts), facts.orientation))


def _read_each(
    listing: Listing, work: Callable[[Field], _T], positions: Sequence[int]
) -> Iterator[_T | None]:
    """The work done on each image; None of an image that is bad: packing it will say why."""
    with listing.open_records() as read:
        for i in positions:
            try:
                yield work(read(i).image)
            except (OSError, DecodeError) as error:
                check_of_file(error, os.fsdecode(listing.keys[i]))
                yield None
