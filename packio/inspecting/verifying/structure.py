"""The structure: what the container itself says of its samples, against what the index says."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

import numpy as np

from packio.errors import MissingPackageError, PackioError
from packio.formats import Entry
from packio.inspecting.verifying.findings import Findings
from packio.inspecting.verifying.report import without
from packio.packs import indexing


def walk(found: Findings, *, always: bool) -> None:
    """Compare the shards with the index: those that are not as they were written, or all."""
    for shard, positions in found.shards:
        if (found.root / shard).exists() and (
            always or not found.files_of(shard, positions) <= found.intact
        ):
            _walk(found, shard, positions)


def _walk(found: Findings, shard: str, positions: range) -> None:
    assert found.format is not None  # noqa: S101 (the metadata were found good)
    prefix = f"{shard}/" if found.format.IS_DIRECTORY and shard != "." else ""
    try:
        entries = indexing.scanned(found.reading, found.format, found.root / shard)
        _compare(found, shard, positions, entries, prefix)
    except MissingPackageError as error:
        found.warnings.append(f"{shard}: its structure is not checked: {error}")
    except (PackioError, OSError) as error:
        text = str(error).removeprefix(f"{found.root}{os.sep}")
        named = (name for name, _, _ in found.table if text.startswith(name))
        file = max(named, key=len, default=shard)
        found.tell_of_file(file, without(error, found.root / file))


def _compare(
    found: Findings, shard: str, positions: range, entries: Iterable[Entry], prefix: str
) -> None:
    metadata = found.index.metadata
    reindexed = metadata.get("source", {}).get("kind") == "reindex"
    spare = metadata["counts"]["skipped"] if reindexed else 0  # images that no pack could take
    expected = iter(positions)
    position = next(expected, None)
    for number, entry in enumerate(entries):
        place = f"{prefix}{entry.file}", entry.offset, entry.length
        if position is not None and _is_at(found, position, place, number):
            for problem in _differences(found, position, entry, prefix, reindexed=reindexed):
                found.tell_of_sample(position, found.place(position, 0), problem)
            position = next(expected, None)
        elif spare:
            spare -= 1
        elif position is None:
            found.tell_of_file(shard, f"more samples than the {len(positions)} of the index")
            return
        else:
            problem = "{}: {} bytes at {} by the container".format(place[0], *place[:0:-1])
            found.tell_of_sample(position, found.place(position, 0), problem)
            return
    if position is not None:
        left = positions.stop - position
        found.tell_of_file(shard, f"{left} samples fewer than the {len(positions)} of the index")


def _is_at(found: Findings, position: int, place: tuple[str, int, int], number: int) -> bool:
    """Whether the index has a sample where the container has its record of this number."""
    known = found.place(position, 0)
    return known[:2] == (place[0], number) if found.by_record else known == place


def _differences(
    found: Findings, position: int, entry: Entry, prefix: str, *, reindexed: bool
) -> Iterator[str]:
    """In what the container and the index say of a sample they differ."""
    index = found.index
    if not reindexed and entry.key is not None and entry.key != index.key(position):
        yield f"the container's key is {os.fsdecode(entry.key)!r}"
    if entry.label is not None and "label" in index:
        said, label = entry.label, index.column("label").array()[position]
        said = said + found.reading.label_offset if isinstance(said, int) else said
        if not np.array_equal(np.asarray(said, label.dtype), label, equal_nan=True):
            yield f"the container's label is {said}, the index's {label}"
    if entry.mask is not None and len(found.kinds) > 1:
        file, offset, length = entry.mask
        if (prefix + file, offset, length) != found.place(position, 1):
            yield f"mask: {length} bytes at {offset} by the container"
