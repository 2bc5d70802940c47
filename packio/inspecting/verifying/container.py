"""Checks beyond checksums: compare a container's records with the index; decode all values."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from packio.errors import (
    DecodeError,
    IntegrityError,
    MissingPackageError,
    PackioError,
    ReadError,
)
from packio.formats import Reader
from packio.images import encodings
from packio.images.decoders import Decoder, Stored
from packio.inspecting.verifying.findings import Findings, strip_path
from packio.sample.fields import PIXELS, decode
from packio.sample.record import IMAGE, Field, Place, Record
from packio.storage.local import LocalStore
from packio.system.pools import ThreadPool

_CHUNK = 1024  # samples that are decoded at once
_Read = Callable[[int, int, int], bytes]  # file, offset (or number), length → bytes


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
        records = (r for r in every if r.fields)  # else a label without image
        _compare(found, shard, positions, records, prefix)
    except MissingPackageError as error:
        found.warnings.append(f"{shard}: its structure is not checked: {error}")
    except (PackioError, OSError) as error:
        text = str(error).removeprefix(f"{found.root}{os.sep}")
        named = (name for name, _, _ in found.table if text.startswith(name))
        file = max(named, key=len, default=shard)
        found.tell_of_file(file, strip_path(error, found.root / file))


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
        known = None if position is None else found.place(position, 0)
        if found.by_record:
            is_there = known is not None and known[:2] == (place[0], number)
        else:
            is_there = known == place
        if position is not None and is_there:
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


def decode_values(found: Findings, pool: ThreadPool) -> None:
    """Decode all values of the samples whose bytes are those that were packed."""
    found.meter.begin("decoding", 0)
    names, sizes = [t[0] for t in found.table], [t[1] for t in found.table]
    decoder = Decoder("auto", "UNCHANGED")
    with contextlib.closing(LocalStore(found.root, names, sizes)) as files:
        for shard, positions in found.shards:
            read_image: _Read = files.read
            if found.by_record:
                if not found.files_of(shard, positions) <= found.intact:
                    continue  # its library may crash over it
                assert found.format is not None  # noqa: S101 (the metadata were found good)
                reader = found.format.reader(found.root / shard, found.reading)
                assert reader is not None  # noqa: S101 (the index says that it is read by one)
                read_image = functools.partial(_read_record, reader)
            work = functools.partial(_decode_sample, found, decoder, read_image, files.read)
            for start in range(0, len(positions), _CHUNK):
                list(pool.map(work, positions[start : start + _CHUNK]))


def _read_record(reader: Reader, _: int, number: int, __: int) -> bytes:
    return reader.get(number)


def _decode_sample(
    found: Findings, decoder: Decoder, read_image: _Read, read: _Read, position: int
) -> None:
    if position in found.bad:
        return
    for number, columns in enumerate(found.kinds):
        name, kind = columns.name, found.index.fields[columns.name]
        place = [int(a[position]) for a in (columns.file, columns.offset, columns.length)]
        if name != IMAGE and place[1] < 0:
            continue  # the sample has no such field
        try:
            data = (read_image if name == IMAGE else read)(*place)
            data = bytes(found.unsplit(position, number, data))
            if kind in PIXELS:
                decoder(data, _facts(found, name, position))
            else:
                decode(Field(kind, data))
        except (DecodeError, IntegrityError, ReadError, IndexError) as error:
            problem = f"{name}: " * (name != IMAGE) + f"does not decode: {error}"
            found.tell_of_sample(position, found.place(position, number), problem)
    found.meter.step(1, int(found.kinds[0].length[position]), len(found.damages))


def _facts(found: Findings, field: str, position: int) -> Stored:
    encoding, height, width, channels, dtype = (
        int(found.index.column(f"{field}/{name}").item(position))
        for name in ("encoding", "height", "width", "channels", "dtype")
    )
    name = encodings.NAMES.get(encoding, "unknown")
    return Stored(name, height, width, channels, encodings.DTYPES[dtype])
