"""One shard: samples go from the source into a container, their facts into the index's columns."""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from packio import encodings, indexfile
from packio.errors import PackioError
from packio.formats import Record, Written
from packio.packing.plan import Plan
from packio.packing.reading import Read, read_ahead
from packio.packing.report import Skip

_FACTS = {"crc32c": "I", "height": "I", "width": "I", "encoding": "B", "orientation": "B",
          "channels": "B", "dtype": "B", "flags": "B"}  # fmt: skip

OnChunk = Callable[[int, int, int], None]  # samples, bytes, of them bad


class Shard:
    """What was packed, in order: the columns of the index that come from the samples."""

    def __init__(self) -> None:
        self.positions = array("q")  # in the listing
        self.skipped: list[Skip] = []
        self.source_bytes = 0
        self._facts = {name: array(code) for name, code in _FACTS.items()}

    def add(self, read: Read) -> None:
        """Note one sample that has been handed to the container."""
        facts = read.facts
        assert facts is not None  # noqa: S101 (a Read has facts or a problem)
        values = {
            "crc32c": indexfile.crc32c(read.data),
            "height": facts.height,
            "width": facts.width,
            "encoding": encodings.CODES[facts.encoding],
            "orientation": facts.orientation,
            "channels": facts.channels,
            "dtype": encodings.DTYPES.index(facts.dtype),
            "flags": indexfile.PROGRESSIVE if facts.progressive else 0,
        }
        for name, value in values.items():
            self._facts[name].append(value)
        self.positions.append(read.position)
        self.source_bytes += len(read.data)

    def columns(self, plan: Plan, written: Written) -> dict[str, np.ndarray]:
        """All columns that have a row a sample, and the keys'."""
        positions = self.positions.tolist()
        keys = [plan.listing.keys[i] for i in positions]
        columns = {n: np.array(a, dtype=a.typecode) for n, a in self._facts.items()}
        columns |= {"file": written.file, "offset": written.offset, "length": written.length}
        columns["label"] = np.array([plan.listing.labels[i] for i in positions], np.int64)
        order = sorted(range(len(keys)), key=keys.__getitem__)
        columns["key_order"] = np.array(order, np.uint32 if len(keys) < 1 << 32 else np.int64)
        columns["key_data"], columns["key_offsets"] = ragged(keys)
        return columns


def write_shard(
    plan: Plan, container: ModuleType, path: Path, *, threads: int, skip: bool, on_chunk: OnChunk
) -> tuple[Shard, Written | None]:
    """Write all samples of a plan into one container.

    Args:
        plan: What to pack.
        container: Module of the format.
        path: Of the container; does not exist yet.
        threads: That read ahead.
        skip: Leave bad samples out; else stop writing at the first one, and only check the rest.
        on_chunk: Called after each chunk.

    Returns:
        The shard, and where its samples lie, None where nothing was packed.
    """
    shard = Shard()
    shard.skipped += [Skip(key, reason) for key, reason in plan.listing.unlisted]
    writing = skip or not shard.skipped
    writer = container.Writer(path, count=len(plan.listing.keys), size=plan.total_bytes)
    try:
        for chunk in read_ahead(plan.listing, threads=threads):
            good = _sort_out(chunk, plan, shard)
            on_chunk(len(chunk), sum(len(r.data) for r in chunk), len(chunk) - len(good))
            writing = writing and (skip or len(good) == len(chunk))
            if writing:
                _write(writer, good, plan, shard)
        if not writing or not shard.positions:
            return shard, None
        return shard, writer.close()
    finally:
        writer.abort()


def _sort_out(chunk: list[Read], plan: Plan, shard: Shard) -> list[Read]:
    bad = [r for r in chunk if r.problem is not None]
    shard.skipped += [Skip(plan.listing.keys[r.position], r.problem or "") for r in bad]
    return [r for r in chunk if r.problem is None]


def _write(writer: Any, good: list[Read], plan: Plan, shard: Shard) -> None:
    listing = plan.listing
    writer.add([Record(r.data, listing.labels[r.position], listing.keys[r.position]) for r in good])
    for read in good:
        shard.add(read)


def file_columns(root: Path, files: list[str]) -> dict[str, np.ndarray]:
    """Columns of the table of files: paths, sizes, SHA-256 digests."""
    with ThreadPoolExecutor(4, "packio-digest") as pool:
        digests = list(pool.map(lambda name: _sha256(root / name), files))
    names, offsets = ragged([os.fsencode(name) for name in files])
    return {
        "file_bytes": np.array([(root / name).stat().st_size for name in files], np.int64),
        "file_digest": np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32),
        "file_path_data": names,
        "file_path_offsets": offsets,
    }


def _sha256(path: Path) -> bytes:
    digest, buffer = hashlib.sha256(), memoryview(bytearray(1 << 20))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.digest()


def ragged(values: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Values of different lengths as one array of bytes and N+1 offsets."""
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum([len(v) for v in values], out=offsets[1:])
    return np.frombuffer(b"".join(values), np.uint8), offsets


def check_record_count(shard: Shard, written: Written) -> None:
    """Assert that the container holds what was handed to it.

    Raises:
        PackioError: it does not; a bug or a lying disk.
    """
    if not len(written.offset) == len(written.length) == len(shard.positions):
        raise PackioError(
            f"{len(shard.positions)} samples went into the container, {len(written.offset)} are "
            "in it"
        )
