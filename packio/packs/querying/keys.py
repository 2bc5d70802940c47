"""Positions of many keys in an index, and the keys at many positions."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from packio.errors import KeyNotFoundError, OptionError
from packio.index.indexfile import Index

_FEW = 1000  # keys that are found one by one, by bisection; of more, all keys are gone through
_SHOWN = 3


def positions(
    index: Index, wanted: Sequence[bytes], where: object, *, shown: bool = False
) -> np.ndarray:
    r"""Positions of some keys, (n,) int64, in their order.

    Args:
        shown: Whether keys may be as Arrow's text has them: bytes that are not UTF-8 as ``\xNN``.
    """
    places: dict[bytes, int] = {}
    if len(wanted) <= _FEW:
        for key in dict.fromkeys(wanted):
            try:
                places[key] = index.find(key)
            except KeyNotFoundError:
                continue
    else:
        asked = set(wanted)
        places = {key: row for row, key in enumerate(index.every_key()) if key in asked}
    missing = [key for key in wanted if key not in places]
    if shown and (asked := {key for key in missing if b"\\x" in key}):
        for row, key in enumerate(index.every_key()):
            if not key.isascii() and (text := shown_as(key)) in asked:
                places.setdefault(text, row)
        missing = [key for key in missing if key not in places]
    if missing:
        first_ones = ", ".join(repr(os.fsdecode(key)) for key in missing[:_SHOWN])
        raise KeyNotFoundError(
            f"{where}: {len(missing)} of {len(wanted)} keys are not in the pack: {first_ones}"
        )
    return np.array([places[key] for key in wanted], np.int64)


def shown_as(key: bytes) -> bytes:
    r"""A key as Arrow's text has it: bytes that are not UTF-8 as ``\xNN``."""
    return key.decode("utf-8", "backslashreplace").encode()


def check(index: Index, places: np.ndarray, expected: Sequence[bytes], where: object) -> None:
    """Compare the keys at some positions with those that a table has, which may be `shown_as`."""
    for place, key in zip(places.tolist(), expected, strict=True):
        own = index.key(place)
        if own != key and shown_as(own) != key:
            raise OptionError(
                f"{where}: sample {place} has the key {os.fsdecode(own)!r}, the table says "
                f"{os.fsdecode(key)!r}: the table is of another pack, or the pack has changed; "
                "leave the column index out to go by keys"
            )
