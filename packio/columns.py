"""Columns of an index, made of Python values."""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np


def ragged(values: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Values of different lengths as one uint8 array, and N+1 offsets into it."""
    return np.frombuffer(b"".join(values), np.uint8), offsets(map(len, values))


def offsets(lengths: Iterable[int]) -> np.ndarray:
    """N+1 int64 offsets of N values that lie one behind the other."""
    counts = np.frombuffer(array("q", lengths), np.int64)
    result = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=result[1:])
    return result


def of_keys(keys: Sequence[bytes]) -> dict[str, np.ndarray]:
    """The columns of keys: their bytes, and their order for lookup by bisection."""
    order = sorted(range(len(keys)), key=keys.__getitem__)
    data, starts = ragged(keys)
    dtype = np.uint32 if len(keys) < 1 << 32 else np.int64
    return {"key_data": data, "key_offsets": starts, "key_order": np.array(order, dtype)}


def of_files(root: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """The columns of the table of files: paths relative to the root, sizes, SHA-256."""
    with ThreadPoolExecutor(4, "packio-digest") as pool:
        digests = list(pool.map(lambda name: sha256(root / name), names))
    data, starts = ragged([os.fsencode(name) for name in names])
    return {
        "file_bytes": np.array([(root / name).stat().st_size for name in names], np.int64),
        "file_digest": np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32),
        "file_path_data": data,
        "file_path_offsets": starts,
    }


def sha256(path: Path) -> bytes:
    """SHA-256 of a file."""
    digest, buffer = hashlib.sha256(), memoryview(bytearray(1 << 20))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.digest()
