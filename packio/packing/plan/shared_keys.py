"""Keys that several packs share, found in 8 bytes of memory a sample."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from packio.index.indexfile import Index

_MOST = 1 << 20  # hashes that are looked for at a time


class Shared(NamedTuple):
    """A key that two packs have.

    Attributes:
        key: The key, with the prefixes of both packs.
        one, other: Numbers of the packs.
    """

    key: bytes
    one: int
    other: int


def first(indexes: Sequence[Index], prefixes: Sequence[bytes]) -> Shared | None:
    """A key that two packs share; None if there is none."""
    hashes = np.empty(sum(map(len, indexes)), np.int64)
    for at, (_, key) in enumerate(_keys(indexes, prefixes)):
        hashes[at] = hash(key)
    hashes.sort()
    twice = np.unique(hashes[1:][hashes[1:] == hashes[:-1]])  # other keys may have the same hash
    for start in range(0, len(twice), _MOST):
        asked, found = {*twice[start : start + _MOST].tolist()}, dict[bytes, int]()
        for number, key in _keys(indexes, prefixes):
            if hash(key) in asked and found.setdefault(key, number) != number:
                return Shared(key, found[key], number)
    return None


def _keys(indexes: Sequence[Index], prefixes: Sequence[bytes]) -> Iterator[tuple[int, bytes]]:
    """The number of a pack, and a key of it with its prefix; for all keys."""
    for number, (index, prefix) in enumerate(zip(indexes, prefixes, strict=True)):
        for key in index.every_key():
            yield number, prefix + key
