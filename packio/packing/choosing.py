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
from typing import Any, TypeVar

import numpy as np

from packio.errors import DecodeError, OptionError, SourceError
from packio.images import encodings, perceptual
from packio.images.decoders import Decoder
from packio.sample.record import Field
from packio.sources import Listing, check_choice
from packio.system import processors
from packio.system.files import check_of_file
from packio.system.pools import ThreadPool

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
        check_choice("dedupe", self.dedupe, "report", "drop", "near")
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

    def choose(self, listing: Listing, known: Collection[bytes] | None = None) -> Listing:
        """The chosen samples of a listing; or of one that has grown, those that appending takes.

        `known` are the keys of the pack that grows. What the choice left out before does not come
        back: samples that no pattern takes, samples with the bytes of an earlier sample, and
        samples beyond the limit; warnings count the first and the last. New samples get their
        splits by a threshold on a hash of their keys, so that one more sample moves no other.
        """
        keys, grows, known = listing.keys, known is not None, known or ()
        warnings = [*listing.warnings]
        unlisted = [bad for bad in listing.unlisted if self._may_hold(os.fsdecode(bad[0]))]
        taken: Sequence[int] = range(len(keys))
        if self.include or self.exclude:
            taken = [i for i in taken if self._is_wanted(os.fsdecode(keys[i]))]
        patterns = f"include={list(self.include)}, exclude={list(self.exclude)}"
        if keys and not taken and not grows:
            raise SourceError(
                f"{listing.root or 'the source'}: none of {len(keys)} samples is chosen by "
                f"{patterns}"
            )
        if grows and (left := len(keys) - len(taken)):
            warnings.append(f"{left:,} samples of the source are left out: the pack was made with "
                            f"{patterns}")  # fmt: skip
        old, new = (
            [i for i in taken if keys[i] in known],
            [i for i in taken if keys[i] not in known],
        )
        gone = self._find_twins(listing, [*old, *new], warnings)  # of equal samples the first stays
        dropped = [*listing.dropped, *((keys[i], why) for i, why in gone.items())]
        old, new = ([i for i in part if i not in gone] for part in (old, new))
        if self.shuffle is not None:
            new = _order(keys, new, self.shuffle)
        if self.limit is not None and self.limit <= len(old) + len(new):
            if unlisted:
                shown = ", ".join(ascii(os.fsdecode(key)) for key, _ in unlisted[:_SHOWN])
                warnings.append(
                    f"cannot be listed, and not missed, as limit={self.limit} is reached: "
                    f"{len(unlisted)}, as {shown}"
                )
            room, unlisted = max(self.limit - len(old), 0), []
            if grows and len(new) > room:
                warnings.append(
                    f"{len(new) - room:,} new samples are left out: the pack was made with "
                    f"limit={self.limit}, and {len(old):,} samples of the source are in it"
                )
            new = new[:room]
        chosen = dataclasses.replace(
            listing if new == [*range(len(keys))] else listing.take(new),
            warnings=warnings, dropped=dropped, unlisted=unlisted,
        )  # fmt: skip
        if not self.split:
            return chosen
        splits = self._draw_splits(chosen, by_hash=grows)
        return dataclasses.replace(
            chosen, splits=splits, split_names=[name for name, _ in self.split]
        )

    def _draw_splits(self, listing: Listing, *, by_hash: bool) -> np.ndarray:
        """Split of each sample: by a hash of its key, or so that all classes have the shares."""
        edges, keys = np.cumsum([share for _, share in self.split]), listing.keys
        if by_hash:
            drawn = [int.from_bytes(_hash_of(key, self.seed), "big") / 2**64 for key in keys]
            return np.searchsorted(edges, drawn, "right").clip(max=len(edges) - 1).astype(np.uint8)
        groups: dict[int, list[int]] = {}
        labels = listing.labels if isinstance(listing.labels, list) else None
        for i in _order(keys, range(len(keys)), self.seed):
            groups.setdefault(labels[i] if labels is not None else 0, []).append(i)
        splits = np.zeros(len(keys), np.uint8)
        for number, label in enumerate(sorted(groups)):
            members = groups[label]
            offset = (number + 1) * _GOLDEN % 1  # many small classes add up to the shares, too
            places = (np.arange(len(members)) + offset) / len(members)
            splits[members] = np.searchsorted(edges, places, "right").clip(max=len(edges) - 1)
        return splits

    def _find_twins(
        self, listing: Listing, positions: list[int], warnings: list[str]
    ) -> dict[int, str]:
        """Position of each sample that is left out as an earlier one's twin → why; warn of all."""
        gone: dict[int, str] = {}
        drops = self.dedupe != "report"
        kinds = _TWINS if self.dedupe == "near" else _TWINS[:1] if self.dedupe else ()
        for find, what, sign, alike in kinds:
            twins = find(listing, [i for i in positions if i not in gone])
            if twins:
                warnings.append(_describe(listing, twins, what, sign, drops=drops))
            if drops:
                gone |= {i: f"{alike} {listing.keys[j]!a}" for i, j in twins}
        return gone

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


def _hash_of(key: bytes, seed: int) -> bytes:
    return hashlib.blake2b(
        key, digest_size=8, salt=seed.to_bytes(16, "little", signed=True)
    ).digest()


def _order(keys: Sequence[bytes], positions: Iterable[int], seed: int) -> list[int]:
    return sorted(positions, key=lambda i: (_hash_of(keys[i], seed), keys[i]))


def _find_same(listing: Listing, positions: Sequence[int]) -> list[tuple[int, int]]:
    """Samples with the bytes of an earlier one, and that one. Only those of equal size are read."""
    sizes = np.asarray(listing.sizes, np.int64)[positions]
    _, group, counts = np.unique(sizes, return_inverse=True, return_counts=True)
    suspects = [positions[i] for i in np.flatnonzero(counts[group.reshape(-1)] > 1).tolist()]

    def digest_of(image: Field) -> bytes:
        return hashlib.blake2b(image.data, digest_size=16).digest()

    digests = map_chunks(functools.partial(_read_each, listing, digest_of), suspects, _THREADS)
    first: dict[bytes, int] = {}
    return [
        (i, first[digest])
        for i, digest in zip(suspects, digests, strict=True)
        if digest is not None and first.setdefault(digest, i) != i
    ]


def _find_near(listing: Listing, positions: Sequence[int]) -> list[tuple[int, int]]:
    """Images that look like an earlier one that stays, and that one; all images are decoded."""
    decoder = Decoder("auto", "RGB")

    def hash_field(image: Field) -> int:
        return perceptual.hash_image(
            decoder, image.data, image.facts or encodings.read_facts(image.data)
        )

    read = functools.partial(_read_each, listing, hash_field)
    hashes = list(map_chunks(read, positions, processors.usable()))
    twins = perceptual.group_twins(hashes, perceptual.THRESHOLD)
    return [(positions[twin.position], positions[twin.of]) for twin in twins]


# How samples are alike: a function that finds them, and the words for it.
_TWINS = (
    (_find_same, "samples with the bytes of an earlier one", "=", "the same bytes as"),
    (_find_near, "images that look like an earlier one", "~", "looks like"),
)


def _describe(
    listing: Listing, twins: Sequence[tuple[int, int]], what: str, sign: str, *, drops: bool
) -> str:
    shown = ", ".join(f"{listing.keys[i]!a} {sign} {listing.keys[j]!a}" for i, j in twins[:_SHOWN])
    labels = listing.labels
    differ = labels is not None and sum(not np.array_equal(labels[i], labels[j]) for i, j in twins)
    others = f" ({differ} of them with another label)" if differ else ""
    done = "left out" if drops else "kept; leave them out with --dedupe drop"
    return f"{what}: {len(twins)}{others}, {done}: {shown}"


def map_chunks(
    read: Callable[[Sequence[int]], Iterable[_T]], positions: Sequence[int], threads: int
) -> Iterator[_T]:
    """What a function returns of positions, in their order; threads ask for some at a time."""
    chunks = [positions[i : i + _CHUNK] for i in range(0, len(positions), _CHUNK)]
    with ThreadPool(threads, "packio-duplicates") as pool:
        for values in pool.map(lambda chunk: list(read(chunk)), chunks):
            yield from values


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
