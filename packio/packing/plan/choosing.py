"""Choosing among the samples of a listing: by name, by number, by content; their order and splits.

Whatever is drawn is drawn from the seed and the sample's key alone, so that it does not depend on
the order in which files are found.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import hashlib
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from packio.errors import DecodeError, OptionError, SourceError
from packio.sources import Listing
from packio.system.pools import ThreadPool

DEDUPE = (None, "report", "drop")
_THREADS = 8  # they wait for the disk
_CHUNK = 256  # samples that a thread reads in one go
_SHOWN = 3
_GOLDEN = 0.618033988749895  # its multiples, modulo 1, are spread evenly


@dataclasses.dataclass(frozen=True)
class Choice:
    """What to take of a listing, in which order.

    Attributes:
        include, exclude: Patterns of keys, as ``*.jpg`` or ``cats/*``; ``*`` matches slashes, too.
        dedupe: "report": tell of samples with the same bytes; "drop": keep the first of them.
        shuffle: Seed of the order; None: as the source has it.
        limit: Take the first so many.
        split: Shares of named splits, as {"train": 0.9, "val": 0.1}; of each class the same.
        seed: Of the splits.
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
            raise OptionError(f"dedupe={self.dedupe!r}: expected 'report' or 'drop'")
        if self.limit is not None and self.limit < 1:
            raise OptionError(f"limit={self.limit}: expected at least 1")
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
    def made(options: Mapping[str, Any]) -> Choice:
        """A choice by options as a user or a recipe gives them: lists, and splits as a dict."""
        found: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v
                                 for n, v in options.items()}  # fmt: skip
        split = options.get("split") or ()
        pairs = split.items() if isinstance(split, Mapping) else split
        found["split"] = tuple((str(n), float(share)) for n, share in pairs)
        return Choice(**found)

    def as_options(self) -> dict[str, object]:
        """For the recipe: all that is not the default."""
        found = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        if not self.split:
            del found["seed"]
        return {n: v for n, v in found.items() if v != getattr(_ALL, n) or n == "seed"}

    def of(self, listing: Listing) -> Listing:
        """The listing of what is chosen.

        Raises:
            SourceError: nothing is.
        """
        found = len(listing.keys)
        if self.include or self.exclude:
            keep = [i for i, key in enumerate(listing.keys) if self._wanted(os.fsdecode(key))]
            listing = listing.take(keep)
        if self.dedupe is not None:
            listing = _deduplicated(listing, drop=self.dedupe == "drop")
        if self.shuffle is not None:
            listing = listing.take(_order(listing.keys, self.shuffle))
        if self.limit is not None:
            listing = listing.take(range(min(self.limit, len(listing.keys))))
        if found and not listing.keys:
            raise SourceError(
                f"{listing.root or 'the source'}: none of {found} samples is chosen by "
                f"include={list(self.include)}, exclude={list(self.exclude)}"
            )
        return _with_splits(listing, self.split, self.seed) if self.split else listing

    def of_new(self, listing: Listing, known: Collection[bytes]) -> Listing:
        """The samples that appending takes, of a listing that has grown.

        What the choice left out before does not come back: samples that no pattern takes, samples
        with the bytes of an earlier one, and samples beyond the limit. New samples get their splits
        by a threshold on a hash of their keys, so that one sample more moves no other.

        Args:
            listing: All samples of the source.
            known: Keys of the samples that the pack has.
        """
        keep = [i for i, key in enumerate(listing.keys) if self._wanted(os.fsdecode(key))]
        keep.sort(key=lambda i: listing.keys[i] not in known)  # of twins the first stays
        listing = listing.take(keep)
        if self.dedupe is not None:
            listing = _deduplicated(listing, drop=self.dedupe == "drop")
        new = [i for i, key in enumerate(listing.keys) if key not in known]
        there = len(listing.keys) - len(new)
        listing = listing.take(new)
        if self.shuffle is not None:
            listing = listing.take(_order(listing.keys, self.shuffle))
        if self.limit is not None:
            listing = listing.take(range(min(max(self.limit - there, 0), len(new))))
        return self._with_drawn_splits(listing) if self.split else listing

    def _with_drawn_splits(self, listing: Listing) -> Listing:
        edges = np.cumsum([share for _, share in self.split])
        drawn = [int.from_bytes(_drawn(key, self.seed), "big") / 2**64 for key in listing.keys]
        splits = np.searchsorted(edges, drawn, "right").clip(max=len(edges) - 1).astype(np.uint8)
        names = [name for name, _ in self.split]
        return dataclasses.replace(listing, splits=splits, split_names=names)

    def _wanted(self, key: str) -> bool:
        included = not self.include or any(fnmatch.fnmatchcase(key, p) for p in self.include)
        return included and not any(fnmatch.fnmatchcase(key, p) for p in self.exclude)


_ALL = Choice()


def _drawn(key: bytes, seed: int) -> bytes:
    return hashlib.blake2b(
        key, digest_size=8, salt=seed.to_bytes(16, "little", signed=True)
    ).digest()


def _order(keys: Sequence[bytes], seed: int) -> list[int]:
    return sorted(range(len(keys)), key=lambda i: (_drawn(keys[i], seed), keys[i]))


def _with_splits(listing: Listing, shares: Sequence[tuple[str, float]], seed: int) -> Listing:
    """Give every sample a split: of each class the same shares, as nearly as whole samples can."""
    groups: dict[int, list[int]] = {}
    labels = listing.labels if isinstance(listing.labels, list) else None
    for i in _order(listing.keys, seed):
        groups.setdefault(labels[i] if labels is not None else 0, []).append(i)
    splits = np.zeros(len(listing.keys), np.uint8)
    edges = np.cumsum([share for _, share in shares])
    for number, label in enumerate(sorted(groups)):
        members = groups[label]
        offset = (number + 1) * _GOLDEN % 1  # so that many small classes add up to the shares, too
        places = (np.arange(len(members)) + offset) / len(members)
        splits[members] = np.searchsorted(edges, places, "right").clip(max=len(shares) - 1)
    return dataclasses.replace(listing, splits=splits, split_names=[name for name, _ in shares])


def _deduplicated(listing: Listing, *, drop: bool) -> Listing:
    """Find samples with the same bytes; only those with a size in common are read."""
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
    """(position, digest of its bytes), in order, of those that can be read."""

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
