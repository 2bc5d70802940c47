"""Checks of values: the checksum of each field of each sample, and whether it decodes."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import BinaryIO, NamedTuple

import numpy as np

from packio.errors import DecodeError, IntegrityError, ReadError
from packio.images import encodings
from packio.images.decoders import Decoder, Stored
from packio.index.indexfile import SPLIT_RECORD, crc32c
from packio.inspecting.verifying.findings import Findings
from packio.sample.fields import PIXELS, decode
from packio.sample.record import IMAGE, Field
from packio.storage.local import LocalFiles
from packio.system.files import read_at
from packio.system.pools import ThreadPool

_STORED = ("file", "offset", "length", "encoding", "height", "width", "channels", "dtype")
_CHUNK = 1024  # samples that are decoded at once


class Values(NamedTuple):
    """The values that lie in one file, by offset."""

    position: np.ndarray  # (n,) of the sample
    offset: np.ndarray  # (n,) bytes
    length: np.ndarray  # (n,) bytes
    crc: np.ndarray  # (n,) uint32
    field: np.ndarray  # (n,) which of the fields: 0 is the image


class Span(NamedTuple):
    """A piece of a file that has been read."""

    file: BinaryIO
    size: int  # of the file, bytes
    begin: int  # in the file, bytes
    view: np.ndarray  # (n,) uint8

    def bytes(self, offset: int, length: int) -> np.ndarray | None:
        """Bytes of the file, by offset in the file; None if they lie beyond the end."""
        if not 0 <= offset <= offset + length <= self.size:
            return None
        if offset < self.begin:  # values overlap: this one begins in the piece before
            return np.frombuffer(read_at(self.file.fileno(), length, offset), np.uint8)
        return self.view[offset - self.begin : offset - self.begin + length]


def values_of(found: Findings, file: int) -> Values:
    """The values of all fields that lie in a file."""
    parts = []
    for number, kind in enumerate(found.kinds):
        if found.by_record and kind.name == IMAGE:
            continue
        begin = np.searchsorted(kind.file, file, "left", sorter=kind.order)
        stop = np.searchsorted(kind.file, file, "right", sorter=kind.order)
        rows = kind.order[begin:stop]
        rows = rows[kind.offset[rows] >= 0]  # else the sample has no such field
        field = np.full(len(rows), number)
        parts.append((rows, kind.offset[rows], kind.length[rows], kind.crc[rows], field))
    if not parts:
        return Values(*[np.zeros(0, np.int64)] * 5)
    columns = [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]
    order = np.argsort(columns[1], kind="stable")
    return Values(*(column[order] for column in columns))


def problem_of(found: Findings, span: Span, values: Values, i: int) -> str | None:
    """Say what is wrong with one value; None if nothing is."""
    data: bytes | np.ndarray | None
    data = span.bytes(int(values.offset[i]), int(values.length[i]))
    if data is None:
        return f"lies beyond the end of the file, which has {span.size} bytes"
    try:
        data = _unsplit(found, int(values.field[i]), int(values.position[i]), data)
    except IntegrityError as error:
        return str(error)
    return None if crc32c(data) == values.crc[i] else "CRC32C differs"


def _unsplit(
    found: Findings, field: int, position: int, data: bytes | np.ndarray
) -> bytes | np.ndarray:
    """The bytes of a value, which may lie in several parts."""
    flags = f"{found.kinds[field].name}/flags"
    if flags not in found.index or not found.index.column(flags).item(position) & SPLIT_RECORD:
        return data
    assert found.format is not None  # noqa: S101 (the metadata were found good)
    return found.format.unsplit(bytes(data))


def tell(found: Findings, name: str, values: Values, i: int, problem: str) -> None:
    """Note what is wrong with a value."""
    position = int(values.position[i])
    found.bad.add(position)
    place = name, int(values.offset[i]), int(values.length[i])
    field = found.kinds[int(values.field[i])].name
    found.tell_of_sample(position, place, problem if field == IMAGE else f"{field}: {problem}")


def decode_images(found: Findings, pool: ThreadPool) -> None:
    """Decode all values whose bytes are those that were packed."""
    found.meter.begin("decoding", 0)
    names, sizes = [t[0] for t in found.table], [t[1] for t in found.table]
    decoder = Decoder("auto", "UNCHANGED")
    with contextlib.closing(LocalFiles(found.root, names, sizes)) as files:
        for shard, positions in found.shards:
            if found.by_record and not found.files_of(shard, positions) <= found.intact:
                continue  # its library may crash over it
            get = _get(found, files, shard)
            work = functools.partial(_decode_sample, found, decoder, get, files)
            for start in range(0, len(positions), _CHUNK):
                list(pool.map(work, positions[start : start + _CHUNK]))


def _get(found: Findings, files: LocalFiles, shard: str) -> Callable[[int, int, int], bytes]:
    """Function that reads an image of a shard by file, offset (or number) and length."""
    if not found.by_record:
        return files.read
    assert found.format is not None  # noqa: S101 (the metadata were found good)
    reader = found.format.reader(found.root / shard, found.reading)
    assert reader is not None  # noqa: S101 (the index says that it is read by one)
    return lambda _, number, __: reader.get(number)


def _decode_sample(
    found: Findings, decoder: Decoder, get: Callable[[int, int, int], bytes], files: LocalFiles,
    position: int,
) -> None:  # fmt: skip
    """Decode the image of a sample, then the sample's other fields."""
    _decode_one(found, decoder, get, position)
    for number, kind in enumerate(found.kinds):
        place = [int(a[position]) for a in (kind.file, kind.offset, kind.length)]
        if kind.name == IMAGE or place[1] < 0 or position in found.bad:
            continue
        try:
            data = bytes(_unsplit(found, number, position, files.read(*place)))
            if found.index.fields[kind.name] in PIXELS:
                decoder(data, encodings.read_facts(data))
            else:
                decode(Field(found.index.fields[kind.name], data))
        except (DecodeError, IntegrityError, ReadError) as error:
            problem = f"{kind.name}: does not decode: {error}"
            found.tell_of_sample(position, found.place(position, number), problem)


def _decode_one(
    found: Findings, decoder: Decoder, get: Callable[[int, int, int], bytes], position: int
) -> None:
    if position in found.bad:
        return
    item = {n: found.index.column(f"image/{n}").item(position) for n in _STORED}
    try:
        data = bytes(
            _unsplit(found, 0, position, get(item["file"], item["offset"], item["length"]))
        )
        encoding = encodings.NAMES.get(item["encoding"], "unknown")
        dtype = encodings.DTYPES[item["dtype"]]
        decoder(data, Stored(encoding, item["height"], item["width"], item["channels"], dtype))
    except (DecodeError, IntegrityError, ReadError, IndexError) as error:
        found.tell_of_sample(position, found.place(position, 0), f"does not decode: {error}")
    found.meter.step(1, item["length"], len(found.damages))
