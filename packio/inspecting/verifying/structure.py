"""Checks of the structure: compare what the container and the index say about each sample."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

import numpy as np

from packio.errors import MissingPackageError, PackioError
from packio.inspecting.verifying.findings import Findings, without
from packio.sample.record import IMAGE, Place, Record


def walk(found: Findings, *, always: bool) -> None:
    """Compare shards with the index: all shards, or only those whose files have changed."""
    for shard, positions in found.shards:
        if (found.root / shard).exists() and (
            always or not found.files_of(shard, positions) <= found.intact
        ):
            _walk(found, shard, positions)


def _walk(found: Findings, shard: str, positions: range) -> None:
    assert found.format is not None  # noqa: S101 (the metadata were found good)
    prefix = f"{shard}/" if found.format.caps.is_directory and shard != "." else ""
    try:
        every = found.format.scan(found.root / shard, found.reading)
        records: Iterable[Record[Place]] = (
            r for r in every if r.fields
        )  # else a label without image
        _compare(found, shard, positions, records, prefix)
    except MissingPackageError as error:
        found.warnings.append(f"{shard}: its structure is not checked: {error}")
    except (PackioError, OSError) as error:
        text = str(error).removeprefix(f"{found.root}{os.sep}")
        named = (name for name, _, _ in found.table if text.startswith(name))
        file = max(named, key=len, default=shard)
        found.tell_of_file(file, without(error, found.root / file))


def _compare(
    found: Findings, shard: str, positions: range, records: Iterable[Record[Place]], prefix: str
) -> None:
    metadata = found.index.metadata
    reindexed = metadata.get("source", {}).get("kind") == "reindex"
    spare = metadata["counts"]["skipped"] if reindexed else 0  # images that no pack could take
    expected = iter(positions)
    position = next(expected, None)
    for number, record in enumerate(records):
        place = _at(prefix, record.image)
        if position is not None and _is_at(found, position, place, number):
            for problem in _differences(found, position, record, prefix, reindexed=reindexed):
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
    found: Findings, position: int, record: Record[Place], prefix: str, *, reindexed: bool
) -> Iterator[str]:
    """Describe each difference between the container's record and the index's row of a sample."""
    index, keeps = found.index, found.format.caps.keeps if found.format else frozenset()
    if not reindexed and "key" in keeps and record.key != index.key(position):
        yield f"the container's key is {os.fsdecode(record.key)!r}"
    is_named = index.metadata.get("options", {}).get("label") is not None
    said = None if is_named or isinstance(record.label, str) else record.label
    if said is not None and "label" in index:
        label = index.column("label").take(np.array([position]))[0]
        said = np.asarray(said).reshape(-1) + (found.reading.label_offset if not label.ndim else 0)
        if not np.array_equal(said.astype(label.dtype), np.atleast_1d(label), equal_nan=True):
            yield f"the container's label is {said}, the index's {label}"
    for number, kind in enumerate(found.kinds):
        place = record.fields.get(kind.name)
        if kind.name == IMAGE or place is None:
            continue
        if _at(prefix, place) != found.place(position, number):
            yield f"{kind.name}: {place.length} bytes at {place.offset} by the container"


def _at(prefix: str, place: Place) -> tuple[str, int, int]:
    return prefix + place.file, place.offset, place.length
