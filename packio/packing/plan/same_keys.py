"""Keys of a source as a pack has them, though they are relative to another folder now.

Many sources make keys relative to the folder that all their paths share. One new path outside that
folder renames all keys, as ``a.png`` to ``data/a.png``; without that path the keys go back. If
appending took the new keys as they are, it would add every sample a second time.

So appending looks for keys that differ from keys of the pack by a folder in front, and compares the
contents of a few such samples. If the contents are the same, whatever the labels, the keys get the
folder of the pack.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from packio.errors import OptionError
from packio.sources import Listing, ReadRecord, _files
from packio.sources._rows import ListedRows

_PROBES = 8  # keys that are looked for, shifts that are tried, samples whose bytes are compared


class _Shift(NamedTuple):
    """What to cut off the front of a key, and what to put there instead."""

    cut: bytes
    put: bytes

    def of(self, key: bytes) -> bytes | None:
        """The key as the pack would have it; None if the shift does not concern it."""
        return self.put + key[len(self.cut) :] if key.startswith(self.cut) else None


def aligned(
    listing: Listing, known: Collection[bytes], changed: Callable[[Listing], Collection[bytes]]
) -> Listing:
    """Give samples that the pack has under other keys the keys of the pack."""
    keys = list(listing.keys)
    new = [i for i, key in enumerate(keys) if key not in known]
    gone = set(known).difference(keys)
    if not new or not gone:
        return listing
    for shift in _shifts([keys[i] for i in new], gone):
        found = {i: key for i in new if (key := shift.of(keys[i])) is not None}
        there = [i for i, key in found.items() if key in gone]
        some = _spread(there)
        part = _renamed(listing.take(some), [found[i] for i in some])
        if not some or 2 * len(changed(part)) > len(some):
            continue
        for i, key in found.items():
            keys[i] = key
        new = [i for i in new if i not in found]
        gone.difference_update(found.values())
    if keys == listing.keys:
        return listing
    if len(set(keys)) != len(keys):
        twice = next(key for key, count in Counter(keys).items() if count > 1)
        raise OptionError(
            f"{listing.root or 'the source'}: its keys are relative to another folder than those "
            f"of the pack, and two of its samples would have the key {os.fsdecode(twice)!a}; "
            "rename one of the files"
        )
    was, now = next(pair for pair in zip(listing.keys, keys, strict=True) if pair[0] != pair[1])
    warning = (
        f"keys are relative to the folder that the pack's keys are relative to: "
        f"{os.fsdecode(was)!a} is {os.fsdecode(now)!a}"
    )
    return dataclasses.replace(_renamed(listing, keys), warnings=[*listing.warnings, warning])


def _shifts(new: Sequence[bytes], gone: Collection[bytes]) -> list[_Shift]:
    """Shifts that give new keys the names of keys that are gone; the most frequent first."""
    found: Counter[_Shift] = Counter()
    for probe in _spread(sorted(gone)):
        ending = b"/" + probe
        found.update(_Shift(key[: -len(probe)], b"") for key in new if key.endswith(ending))
    for probe in _spread(new):
        ending = b"/" + probe
        found.update(_Shift(b"", key[: -len(probe)]) for key in gone if key.endswith(ending))
    likely = [shift for shift, _ in found.most_common(_PROBES)]  # counting takes long
    counts = {shift: sum(shift.of(key) in gone for key in new) for shift in likely}
    return sorted(likely, key=lambda shift: (-counts[shift], shift))


def _spread(items: Sequence[Any]) -> Sequence[Any]:
    """A few items, spread evenly."""
    return items[:: max(1, len(items) // _PROBES)][:_PROBES]


def _renamed(listing: Listing, keys: list[bytes]) -> Listing:
    """The listing with other keys; its samples are read from where they were."""
    files, rows, opener = listing.files, listing.rows, listing.open
    if listing.root is not None and files is None:
        files = [(key,) for key in listing.keys]
    if rows is None:
        opener = opener or functools.partial(_files.opened, os.fspath(listing.root or ""))
        opener = functools.partial(_opened, opener)
        rows = ListedRows({"path": listing.keys})
    return dataclasses.replace(listing, keys=keys, files=files, rows=rows, open=opener)


@contextlib.contextmanager
def _opened(
    opener: Callable[[Sequence[bytes]], AbstractContextManager[ReadRecord]], rows: ListedRows
) -> Iterator[ReadRecord]:
    with opener(rows.columns["path"]) as read:
        yield read
