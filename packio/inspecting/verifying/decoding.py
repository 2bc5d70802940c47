"""Checks that values decode: the values of a pack, or of a container without an index."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable

from packio.errors import DecodeError, IntegrityError, ReadError
from packio.images import encodings
from packio.images.decoders import Decoder, Described, Stored
from packio.inspecting.verifying.findings import Findings
from packio.sample.fields import PIXELS, decode
from packio.sample.record import IMAGE, Field
from packio.storage.local import LocalFiles
from packio.system.pools import ThreadPool

_CHUNK = 1024  # samples that are decoded at once
ERRORS = (DecodeError, IntegrityError, ReadError, IndexError)  # of a value that does not decode
_Read = Callable[[int, int, int], bytes]  # file, offset (or number), length → bytes


def decode_value(decoder: Decoder, kind: str, data: bytes, facts: Described | None) -> None:
    """Decode a value of a field.

    Args:
        decoder: For pixels.
        kind, data: Kind and bytes of the field.
        facts: What is known of the pixels; None: what their header says.
    """
    if kind in PIXELS:
        decoder(data, facts or encodings.read_facts(data))
    else:
        decode(Field(kind, data))


def decode_values(found: Findings, pool: ThreadPool) -> None:
    """Decode all values of the samples whose bytes are those that were packed."""
    found.meter.begin("decoding", 0)
    names, sizes = [t[0] for t in found.table], [t[1] for t in found.table]
    decoder = Decoder("auto", "UNCHANGED")
    with contextlib.closing(LocalFiles(found.root, names, sizes)) as files:
        for shard, positions in found.shards:
            if found.by_record and not found.files_of(shard, positions) <= found.intact:
                continue  # its library may crash over it
            read = _image_reader(found, shard) or files.read
            work = functools.partial(_decode_sample, found, decoder, read, files.read)
            for start in range(0, len(positions), _CHUNK):
                list(pool.map(work, positions[start : start + _CHUNK]))


def _image_reader(found: Findings, shard: str) -> _Read | None:
    """What reads the images of a shard that are no ranges of bytes; None: they are ranges."""
    if not found.by_record:
        return None
    assert found.format is not None  # noqa: S101 (the metadata were found good)
    reader = found.format.reader(found.root / shard, found.reading)
    assert reader is not None  # noqa: S101 (the index says that it is read by one)
    return lambda _, number, __: reader.get(number)


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
            facts = _facts(found, name, position) if kind in PIXELS else None
            decode_value(decoder, kind, data, facts)
        except ERRORS as error:
            problem = f"does not decode: {error}"
            problem = problem if name == IMAGE else f"{name}: {problem}"
            found.tell_of_sample(position, found.place(position, number), problem)
    found.meter.step(1, int(found.kinds[0].length[position]), len(found.damages))


def _facts(found: Findings, field: str, position: int) -> Stored:
    """What the index says of the pixels of a field."""
    encoding, height, width, channels, dtype = (
        int(found.index.column(f"{field}/{name}").item(position))
        for name in ("encoding", "height", "width", "channels", "dtype")
    )
    name = encodings.NAMES.get(encoding, "unknown")
    return Stored(name, height, width, channels, encodings.DTYPES[dtype])
