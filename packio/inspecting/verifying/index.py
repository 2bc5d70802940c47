"""Checks of the index: its place, whether it opens, its checksums, and its numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import google_crc32c
import numpy as np

from packio import registry
from packio.errors import IntegrityError, NoSuchPackError, NotAPackError, OptionError
from packio.index.indexfile import INDEX_NAME, INDEX_SUFFIX, Index
from packio.index.raw_blocks import COLUMN, rows_per_block
from packio.inspecting.verifying.findings import FieldColumns, Findings, strip_path
from packio.packs import locating, recognising


def locate_index(path: Path) -> Path:
    """Path of a pack's index, which may be missing."""
    locating.check_finished(path)
    beside = path.with_name(path.name + INDEX_SUFFIX) if path.name else path
    if path.is_dir():
        index = path / INDEX_NAME
    elif path.is_file() or beside.is_file():
        index = beside
    else:
        raise NoSuchPackError(f"{path}: no file or folder; a pack was expected")
    if not index.is_file() and recognising.find(path) is None:
        raise NotAPackError(f"{path}: no {index.name}, and no container that packio knows")
    return index


def open_index(path: Path) -> Index:
    if not path.is_file():
        raise IntegrityError(f"{path}: missing; `packio reindex` makes an index from the files")
    return Index(path)


def check_index(found: Findings) -> bool:
    """Check the index; return whether the places of the samples can be relied on."""
    _check_columns(found)
    _check_metadata(found)
    if found.damages or not _check_owner(found):
        return False
    found.kinds = list(_kinds(found.index))
    for kind in found.kinds:
        for position in np.flatnonzero(kind.file >= len(found.table)).tolist():
            found.bad.add(position)
            found.tell_of_index(
                f"sample {position}: lies in file {kind.file[position]}, which is none"
            )
    whole = not found.damages
    _check_blocks(found)
    return whole


def _check_columns(found: Findings) -> None:
    """Check the columns, and read the table of files."""
    for name in found.index.column_names:
        try:
            found.index.column(name).check()
        except IntegrityError as error:
            found.tell_of_index(strip_path(error, found.index.path))
    try:
        found.table = found.index.files()
    except IntegrityError as error:
        found.tell_of_index(strip_path(error, found.index.path))


def _check_metadata(found: Findings) -> None:
    """Read the format and the shards from the metadata."""
    metadata, first = found.index.metadata, 0
    try:
        for shard in metadata["shards"]:
            positions = range(first, first + int(shard["samples"]))
            found.shards.append((str(shard["name"]), positions))
            first = positions.stop
        found.format = registry.load("formats", str(metadata["format"]))
        if found.by_record and not found.format.caps.reads_by_library:
            access = metadata["access"]
            found.tell_of_index(f"says access={access!r}; its format has 'range' only")
    except (KeyError, TypeError, ValueError, OptionError) as error:
        found.tell_of_index(f"its metadata does not parse ({error})")
    if first != len(found.index):
        found.tell_of_index(f"its shards have {first} samples, the pack {len(found.index)}")


def _check_owner(found: Findings) -> bool:
    name, names = found.path.name, {name for name, _, _ in found.table}
    is_folder = found.index.path.name == INDEX_NAME or found.root == found.path
    if is_folder or name in names or "selection" in found.index.metadata:
        return True
    found.tell_of_index(f"does not list {name}; the index of another pack")
    return False


def _kinds(index: Index) -> Iterator[FieldColumns]:
    for field in index.fields:
        file, offset, length, crc = [
            index.column(f"{field}/{name}").array()
            for name in ("file", "offset", "length", "crc32c")
        ]
        yield FieldColumns(file, offset, length, crc, np.lexsort((offset, file)), field)


def _check_blocks(found: Findings) -> None:
    """Compare the checksums of blocks of raw rows with the checksums of the rows."""
    if COLUMN not in found.index:
        return
    length, crc = found.kinds[0].length, found.kinds[0].crc
    row_bytes = int(length[0]) if len(length) else 0
    if row_bytes < 1 or np.any(length != row_bytes):
        found.tell_of_index(f"column {COLUMN}: the samples differ in length, so there are no rows")
        return
    rows = rows_per_block(row_bytes)
    expected = [_of_blocks(crc[p.start : p.stop], rows, row_bytes) for _, p in found.shards]
    if not np.array_equal(np.concatenate(expected), found.index.column(COLUMN).array()):
        found.tell_of_index(f"column {COLUMN}: differs from what the column crc32c makes it")


def _of_blocks(crcs: np.ndarray, rows: int, row_bytes: int) -> np.ndarray:
    """Compute the CRC32C of each block of rows from the CRC32Cs of the rows, (N,) uint32.

    No bytes are read: crc(A + B) = crc(B) ^ shift(crc(A)). The shift by the length of B is linear
    in each bit; it is the effect of as many zero bytes, strip_path their effect on crc(b"").
    """
    zeros = bytes(row_bytes)
    none = google_crc32c.extend(0, zeros)
    bits = np.array([google_crc32c.extend(1 << i, zeros) ^ none for i in range(32)], np.uint32)
    blocks = np.zeros(-(-len(crcs) // rows), np.uint32)
    for i in range(rows):
        these = crcs[i::rows]
        passed = blocks[: len(these)]
        moved = np.zeros(len(these), np.uint32)
        for bit in range(32):
            moved ^= (passed >> np.uint32(bit) & np.uint32(1)) * bits[bit]
        blocks[: len(these)] = moved ^ these
    return blocks
