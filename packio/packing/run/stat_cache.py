"""Fingerprints of source files, so that a later run need not read again what has not changed.

Two samples are the same if their bytes and annotations are the same. Reading all of them is slow,
so packing notes for each sample the device, inode, size, mtime and ctime of its files. If all five
are those noted, and the row of a table that describes the sample is the same, the sample is not
read again. Times alone prove nothing: `mv` and `cp -p` give other files the old times.

The notes lie in the user's cache, under the pack's digest. Without them everything is read.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import struct
import time
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from packio.sources import Listing
from packio.system import files
from packio.system.files import cache_folder

COLUMN = "seen"  # of the index of a shard, while its pack is built
UNKNOWN = 0  # the fingerprint of a sample that has to be read
_SETTLED = 2_000_000_000  # ns; a file that changed later than this may change within one clock tick


def fingerprints(listing: Listing) -> np.ndarray:
    """Fingerprint of each sample, (n,) int64, taken before the samples are read."""
    found = np.full(len(listing.keys), UNKNOWN, np.int64)
    if listing.root is None:
        return found
    files = listing.files if listing.files is not None else [(key,) for key in listing.keys]
    newest = time.time_ns() - _SETTLED
    folder = os.open(listing.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for i, paths in enumerate(files):
            with suppress(OSError, pickle.PicklingError, TypeError, AttributeError):
                row = b"" if listing.rows is None else pickle.dumps(listing.rows[i : i + 1])
                found[i] = _fingerprint(folder, paths, row, newest)
    finally:
        os.close(folder)
    return found


def _fingerprint(folder: int, paths: Sequence[bytes], row: bytes, newest: int) -> int:
    digest = hashlib.blake2b(row, digest_size=8)
    for path in paths:
        s = os.stat(path, dir_fd=folder)
        if s.st_ctime_ns > newest:
            return UNKNOWN
        digest.update(struct.pack("<5Q", s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns % (1 << 64),
                                  s.st_ctime_ns))  # fmt: skip
    return int.from_bytes(digest.digest(), "little", signed=True)


def save(digest: str, found: np.ndarray | None) -> None:
    """Note the fingerprints of the samples of a pack, in the order of its rows."""
    if found is None or not found.any():
        return
    path = cache_folder("seen", f"{digest}.npy")
    with suppress(OSError):  # a cache that cannot be written costs a later run time, no more
        path.parent.mkdir(parents=True, exist_ok=True)
        with files.replacing(path) as file:
            np.save(file, found)


def load(digest: str, samples: int) -> np.ndarray:
    """Fingerprints of the samples of a pack, (samples,) int64, as far as they are noted."""
    with suppress(OSError, ValueError, EOFError):
        found = np.load(cache_folder("seen", f"{digest}.npy"), allow_pickle=False)
        if isinstance(found, np.ndarray) and found.shape == (samples,) and found.dtype == np.int64:
            return found
    return np.full(samples, UNKNOWN, np.int64)
